"""What plain methods give on cases left out, for what was learned to be compared with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from perturb_mpm.biomarkers import OFFSET_ML
from perturb_mpm.posterior import Regions, decide_labels
from perturb_mpm.run import RunSettings
from perturb_mpm.tune.calibration import Calibrate, observe
from perturb_mpm.tune.problem import LabelledProblem
from perturb_mpm.tune.scores import CaseScores, log_ml, region_ml, score_volume
from perturb_mpm.tune.study import Study

TEMPERED, FIXED, RESIDUAL = "with temperature", "fixed width", "residuals"


@dataclass(frozen=True)
class Residuals:
    """How far true volumes lie from those of the label maps in other cases: log differences."""

    differences: tuple[float, ...]

    def shift(self, volume_ml: float) -> NDArray[np.float64]:
        """Return the volumes that these differences say are possible, (n,)."""
        return _volumes_ml(log_ml(volume_ml) + np.asarray(self.differences))

    def normal(self, volume_ml: float, draws: int = 200) -> NDArray[np.float64]:
        """Return volumes of one width for all: a normal law with the differences' mean and sd."""
        from scipy.special import ndtri

        found = np.asarray(self.differences)
        spread = found.std(ddof=1) if len(found) > 1 else 0.0
        grid = ndtri((np.arange(draws) + 0.5) / draws)
        return _volumes_ml(log_ml(volume_ml) + found.mean() + spread * grid)


def score_tempered(study: Study, bare: RunSettings) -> list[CaseScores]:
    """Score maps of one temperature, learned near foreground on the other folds."""
    seen = {i: observe(each, bare, everywhere=False) for i, each in enumerate(study.problems)}
    settings = Calibrate(seen, bare, with_bias=False).cross_fit(study.folds)
    maps = study.score_maps(settings.without, study.folds.everyone)
    return [
        CaseScores(problem.name, TEMPERED, maps[i], None)
        for i, problem in enumerate(study.problems)
    ]


def score_residuals(study: Study) -> list[CaseScores]:
    """Score volumes by the errors that label maps made on the other folds, in two ways."""
    mapped = np.array([_map_ml(each, study.decisions) for each in study.problems])  # (cases, L)
    true = np.array([each.true_ml for each in study.problems])  # (cases, L)

    def fit(cases: Sequence[int]) -> dict[str, Residuals]:
        others = list(cases)
        return {
            name: Residuals(
                tuple(
                    log_ml(region_ml(true[others], members))
                    - log_ml(region_ml(mapped[others], members))
                )
            )
            for name, members in study.regions.items()
        }

    scores = []
    for i, learned in enumerate(study.folds.leave_out(fit)):
        by_method = {FIXED: Residuals.normal, RESIDUAL: Residuals.shift}
        for method, predict in by_method.items():
            found = {
                name: score_volume(
                    predict(learned[name], float(region_ml(mapped[i], members))),
                    float(region_ml(true[i], members)),
                )
                for name, members in study.regions.items()
            }
            scores.append(CaseScores(study.problems[i].name, method, None, found))
    return scores


def _volumes_ml(logarithms: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return V of log(V + 0.1 ml), 0 at least."""
    volumes: NDArray[np.float64] = np.maximum(np.exp(logarithms) - OFFSET_ML, 0.0)
    return volumes


def _map_ml(problem: LabelledProblem, decisions: Regions) -> NDArray[np.float64]:
    """Return the volumes of the label map that the probabilities alone give, (L,)."""
    labels = decide_labels(problem.probabilities, decisions)
    counts = np.bincount(labels, minlength=problem.n_labels)
    return counts.astype(np.float64) * problem.voxel_ml
