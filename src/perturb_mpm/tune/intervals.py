"""Intervals of volumes and of Dice: the laws that cases teach, and plain baselines beside them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from perturb_mpm.biomarkers import LearnedLaw, MeasureScale, fit_law, from_scale, to_scale
from perturb_mpm.measures import Measure
from perturb_mpm.posterior import Regions
from perturb_mpm.tune.problem import (
    FIXED,
    RESIDUAL,
    CaseSamples,
    CaseScores,
    LabelledProblem,
    PredictedMeasure,
    predict,
    region_ml,
)
from perturb_mpm.tune.study import Study

Laws = Mapping[str, LearnedLaw]  # by region
_DIGITS = 4


@dataclass(frozen=True, eq=False)
class SampledMeasure:
    """One measure of every case: its samples and truth by region."""

    scale: MeasureScale
    samples: Sequence[Mapping[str, NDArray[np.float64]]]  # by case and region, (S,)
    truth: Sequence[Mapping[str, float]]

    def fit(
        self, cases: Sequence[int], regions: Sequence[str], *, conformal: bool = True
    ) -> dict[str, LearnedLaw]:
        """Return the laws that these cases teach: none of fewer than two that have a region."""
        laws = {}
        for name in regions:
            known = [case for case in cases if self._is_defined(case, name)]
            if len(known) >= 2:
                samples = [self._defined_samples(case, name) for case in known]
                truth = [self.truth[case][name] for case in known]
                laws[name] = _round(fit_law(samples, truth, self.scale, conformal=conformal))
        return laws

    def _defined_samples(self, case: int, name: str) -> NDArray[np.float64]:
        values = self.samples[case][name]
        return values[~np.isnan(values)]

    def _is_defined(self, case: int, name: str) -> bool:
        """Whether the truth has the measure, and a sample does."""
        return not math.isnan(self.truth[case][name]) and len(self._defined_samples(case, name)) > 0

    def predict(self, case: int, laws: Laws, regions: Sequence[str]) -> dict[str, PredictedMeasure]:
        """Predict a case by laws, or by its samples as they are where a region has none."""
        return {
            name: predict(
                self._defined_samples(case, name),
                self.truth[case][name],
                self.scale,
                laws.get(name),
            )
            for name in regions
            if self._is_defined(case, name)
        }


def measure_volumes(
    problems: Sequence[LabelledProblem], samples: Sequence[CaseSamples], regions: Regions
) -> SampledMeasure:
    """Return the volumes of every region in ml."""
    return SampledMeasure(
        "volume",
        [
            {name: region_ml(each.volumes_ml, members) for name, members in regions.items()}
            for each in samples
        ],
        [
            {name: float(region_ml(each.true_ml, members)) for name, members in regions.items()}
            for each in problems
        ],
    )


def measure_dice(samples: Sequence[CaseSamples]) -> SampledMeasure:
    """Return the Dice of the label map with samples and truth."""
    return SampledMeasure(
        "share", [each.dice for each in samples], [each.true_dice for each in samples]
    )


def other_measures(
    samples: Sequence[CaseSamples], measures: Sequence[Measure]
) -> dict[str, SampledMeasure]:
    """Return other measures by region and measure, as "core.diameter"."""
    found = {}
    for column in samples[0].measures.columns if samples[0].measures else ():
        scale = next(each.scale for each in measures if each.name == column.measure)
        values, truth = (
            [{column.key: each[column.key]} for each in of if each is not None]
            for of in ([s.measures for s in samples], [s.true_measures for s in samples])
        )
        true = [{key: float(each[0]) for key, each in one.items()} for one in truth]
        found[column.key] = SampledMeasure(scale, values, true)
    return found


def score_residuals(study: Study) -> list[CaseScores]:
    """Score volumes by the errors that label maps made on the other folds, in two ways."""
    others: tuple[list[int], ...] = study.folds.leave_out(list)
    return [
        CaseScores(problem.name, method, volumes=found)
        for i, problem in enumerate(study.problems)
        for method, found in predict_baselines(study, others[i], i).items()
    ]


def predict_baselines(
    study: Study, cases: Sequence[int], case: int
) -> dict[str, dict[str, PredictedMeasure]]:
    """Predict the volumes of a case by what label maps missed in other cases, in two ways."""
    ways = {FIXED: fixed_width_volumes, RESIDUAL: shifted_volumes}
    found: dict[str, dict[str, PredictedMeasure]] = {method: {} for method in ways}
    for name, members in study.regions.items():
        true, volume = (
            {i: float(region_ml(of(i), members)) for i in (*cases, case)}
            for of in (lambda i: study.problems[i].true_ml, study.map_ml.__getitem__)
        )
        missed = np.array(
            [float(to_scale(true[i], "volume") - to_scale(volume[i], "volume")) for i in cases]
        )
        for method, predict_volumes in ways.items():
            volumes = predict_volumes(volume[case], missed)
            found[method][name] = predict(volumes, true[case], "volume")
    return found


def shifted_volumes(volume_ml: float, differences: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the volumes that the log differences (n,) of other cases say are possible, (n,)."""
    return from_scale(to_scale(volume_ml, "volume") + differences, "volume")


def fixed_width_volumes(volume_ml: float, differences: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return volumes of one width for all: Student's law with the differences' mean and sd."""
    from scipy.special import stdtrit

    n = len(differences)
    spread = differences.std(ddof=1) * math.sqrt(1 + 1 / n) if n > 1 else 0.0
    grid = stdtrit(max(n - 1, 1), (np.arange(400) + 0.5) / 400)
    middle = to_scale(volume_ml, "volume") + differences.mean()
    return from_scale(middle + spread * grid, "volume")


def _round(law: LearnedLaw) -> LearnedLaw:
    """Return the law as a settings file holds it."""
    shift, floor, trust, reach = (
        math.nan if each is None else float(f"{each:.{_DIGITS}g}")
        for each in (law.shift, law.floor, law.trust, law.reach)
    )
    rounded = replace(law, shift=shift, floor=floor, trust=trust)
    return rounded if law.reach is None else replace(rounded, reach=reach)
