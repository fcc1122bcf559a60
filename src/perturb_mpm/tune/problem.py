"""A labelled case as tuning sees it: its samples, its maps at any temperature, and scores."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial

import numpy as np
from numpy.typing import NDArray

from perturb_mpm.biomarkers import LearnedLaw, MeasureScale, crps, to_scale
from perturb_mpm.evaluation import (
    SampleDice,
    auroc,
    domain_mask,
    pairwise_dice,
    region_dice,
    top_label,
)
from perturb_mpm.files import Case
from perturb_mpm.learning import case_properties
from perturb_mpm.measures import Measure, MeasuredPatient, Measurements, Measurer, find_measures
from perturb_mpm.posterior import Regions, choose_regions, decide_labels, marginal_entropy
from perturb_mpm.report import radiological_planes
from perturb_mpm.run import (
    CaseEvidence,
    RunSettings,
    assumed_length_mm,
    build_crf,
    build_sampler,
    find_evidence,
    temper,
)
from perturb_mpm.sampling import Sampler

NEAR_MM = 5.0
"""Maps are scored within so many mm of true or predicted foreground."""

# Kernels are solved where there is something to decide: within so many mm of voxels whose
# foreground has at least this probability.
PLAY_MM = 15.0
PLAY = 0.05
# Voxels whose foreground is less likely than this do not matter for volumes: 1 in 50,000.
IMPOSSIBLE = 2e-5

LEVEL = 0.95
_LEAST = 1e-7
_CLIP = 1e-6  # of probabilities, as ``run`` clips them by default

ALONE, GRID, TEMPERED, LEARNED = (
    "probabilities alone",
    "grid temperature",
    "with temperature",
    "learned",
)
SAMPLED, FIXED, RESIDUAL = "samples alone", "fixed width", "residuals"
METHODS = (ALONE, GRID, TEMPERED, LEARNED, SAMPLED, FIXED, RESIDUAL)
"""What is compared on cases left out."""


@dataclass(frozen=True, eq=False)
class CaseSamples:
    """What samples of a case say, without any label."""

    volumes_ml: NDArray[np.float64]  # (S, L)
    dice: Mapping[str, NDArray[np.float64]]
    """By region, the Dice of the label map at the grid's temperature with each sample, (S,)."""
    true_dice: Mapping[str, float]
    """The Dice of the same label map with the truth; 1 where both lack the region."""
    pairwise_dice: Mapping[str, float]
    """By region, the mean Dice of two samples."""
    mean_field: NDArray[np.float32] | None  # (L, N), None without kernels
    measures: Measurements | None = None
    true_measures: Measurements | None = None


class LabelledProblem:
    """One labelled case; what is expensive is computed once."""

    def __init__(self, name: str, case: Case) -> None:
        """Take a case with its truth."""
        if case.truth is None:
            raise ValueError(f"cases must have a truth to tune on, got {name} without")
        self.name, self.case = name, case
        self.grid = case.grid
        self.truth = self.grid.gather(case.truth).astype(np.int64)  # (N,)
        foreground = case.probabilities.argmax(axis=0) > 0
        near = domain_mask(
            "dilated", foreground, case.truth > 0, case.mask, case.geometry.spacing, NEAR_MM
        )
        # Of a case without any foreground every voxel counts.
        self.near: NDArray[np.bool_] = self.grid.gather(near if near.any() else case.mask)

    @property
    def n_labels(self) -> int:
        """L, the number of labels."""
        return len(self.case.labels)

    @cached_property
    def evidence(self) -> CaseEvidence:
        """What image and grid say about the probabilities; the image takes a second."""
        return find_evidence(self.case)

    @property
    def grid_temperature(self) -> float:
        """The temperature that ``run`` takes for the maps of this case by itself."""
        return self.evidence.map_temperature

    def choose(self, decisions: Regions) -> Regions:
        """Return which of the regions ``run`` decides the labels of this case by."""
        return choose_regions(self.temper(self.grid_temperature), decisions) if decisions else {}

    def describe(self, skill: float | None) -> dict[str, float]:
        """Return what the case looks like, to tell later whether another one is like it."""
        return case_properties(
            self.case.images,
            self.case.probabilities,
            spacing=self.case.geometry.spacing,
            mask=self.case.mask,
            skill=skill,
            temperature=self.evidence.temperature,
        )

    @cached_property
    def true_ml(self) -> NDArray[np.float64]:
        """The true volume of every label inside the mask, (L,)."""
        return self.volumes_ml(self.truth)

    def volumes_ml(self, labels: NDArray[np.integer]) -> NDArray[np.float64]:
        """Return the volume of every label of a map (N,), (L,)."""
        counts = np.bincount(labels, minlength=self.n_labels)
        return counts.astype(np.float64) * (math.prod(self.grid.spacing) / 1000)

    @cached_property
    def probabilities(self) -> NDArray[np.float32]:
        """The given probabilities inside the mask, (L, N)."""
        return self.grid.gather(self.case.probabilities)

    def temper(
        self, temperature: float, voxels: NDArray[np.int64] | None = None
    ) -> NDArray[np.float32]:
        """Return the probabilities at a temperature, (L, N), or (L, n) of some voxels."""
        p = self.probabilities if voxels is None else self.probabilities[:, voxels]
        return temper(p, temperature, _CLIP)

    def blend(
        self, mean_field: NDArray[np.float32] | None, temperature: float
    ) -> NDArray[np.float32]:
        """Return the maps that ``run`` makes: half mean field, half tempered probabilities."""
        tempered = self.temper(temperature)
        if mean_field is None:
            return tempered
        return (tempered + mean_field) * np.float32(0.5)

    def sample(
        self,
        settings: RunSettings,
        samples: int,
        seed: int,
        regions: Regions,
        decisions: Regions,
        measures: Sequence[str] = (),
    ) -> CaseSamples:
        """Sample the case as ``run`` does under settings that say strength and temperature.

        Kernels act where they are solved; elsewhere voxels are drawn without them, and those whose
        foreground is next to impossible not at all.
        """
        length = settings.sampling.noise_length
        settings = settings.changed(
            temperature=self.grid_temperature,
            samples=samples,
            seed=seed,
            until=None,
            noise_length=assumed_length_mm(self.case) if length is None else length,
        )
        tempered = self.temper(settings.unary.sampling_temperature or self.grid_temperature)
        parts = self._samplers(settings, tempered[1:].sum(axis=0) > IMPOSSIBLE)
        mean_field = None
        if settings.has_kernels:
            mean_field = tempered
            mean_field[:, self._play] = parts[0][1].mean_field()
        maps = self.blend(mean_field, self.grid_temperature)
        labels = decide_labels(maps, self.choose(decisions))
        volumes_ml = np.zeros((samples, self.n_labels))
        votes = np.zeros((self.n_labels, len(labels)), dtype=np.int64)
        kept: list[list[NDArray[np.uint8]]] = [[] for _ in parts]  # by part and sample, (n,)
        for own, (where, sampler) in zip(kept, parts):
            posterior = sampler.draw(keep=partial(_keep, own))
            volumes_ml += posterior.volumes / 1000
            votes[:, where] = posterior.voxel_counts

        def join_parts(number: int) -> NDArray[np.uint8]:
            whole = np.zeros(len(labels), dtype=np.uint8)  # background where none is drawn
            for own, (where, _) in zip(kept, parts):
                whole[where] = own[number]
            return whole

        asked = labels, regions, measures
        dice, measured = self._compare(map(join_parts, range(samples)), *asked)
        true_dice, truly = self._compare([self.truth.astype(np.uint8)], *asked)
        pairwise = {
            name: pairwise_dice(votes[list(members)].sum(axis=0), samples)
            for name, members in regions.items()
        }
        true = {name: float(each[0]) for name, each in true_dice.items()}
        return CaseSamples(volumes_ml, dice, true, pairwise, mean_field, measured, truly)

    def _compare(
        self,
        maps: Iterable[NDArray[np.uint8]],
        labels: NDArray[np.integer],
        regions: Regions,
        measures: Sequence[str],
    ) -> tuple[Mapping[str, NDArray[np.float64]], Measurements | None]:
        """Return the Dice of a label map (N,) with others by region, and the others' measures."""
        agreement, measurer = SampleDice(labels, regions), None
        if measures:
            patient = self._patient(regions, labels)
            measurer = Measurer(patient, find_measures(measures, patient), tuple(regions))
        for number, each in enumerate(maps):
            agreement.add(range(number, number + 1), each[np.newaxis])
            if measurer is not None:
                measurer.add(range(number, number + 1), each[np.newaxis])
        return agreement.dice(), None if measurer is None else measurer.measurements

    def find_measures(self, regions: Regions, measures: Sequence[str]) -> tuple[Measure, ...]:
        """Return measures by their names; ValueError where what they need is missing."""
        return find_measures(measures, self._patient(regions, self.truth)) if measures else ()

    def _patient(self, regions: Regions, labels: NDArray[np.integer]) -> MeasuredPatient:
        return MeasuredPatient(
            self.grid,
            {name: tuple(members) for name, members in regions.items()},
            self.grid.scatter(labels.astype(np.uint8), 0),
            images=self.case.images,
            across=radiological_planes(self.case.geometry.affine)[0].across,
        )

    def _samplers(
        self, settings: RunSettings, possible: NDArray[np.bool_]
    ) -> list[tuple[NDArray[np.bool_], Sampler]]:
        """Return which voxels are drawn, (N,), and how: with kernels first, where there are any."""
        bare = settings.changed(strength=0.0, iterations=0, tolerance=0.0)
        parts = [(possible, bare)]
        if settings.has_kernels:
            parts = [(self._play, settings), (possible & ~self._play, bare)]
        found = []
        for where, how in parts:
            if where.any():
                part = replace(self.case, mask=self.grid.scatter(where, outside=False))
                found.append((where, build_sampler(build_crf(part, how), how)))
        return found

    @cached_property
    def _play(self) -> NDArray[np.bool_]:
        """Which voxels inside the mask the kernels are solved for, (N,)."""
        case = self.case
        likely = case.probabilities[1:].sum(axis=0) >= PLAY
        near = domain_mask(
            "dilated", likely, np.zeros_like(likely), case.mask, case.geometry.spacing, PLAY_MM
        )
        return self.grid.gather(near if near.any() else case.mask)


def _keep(kept: list[NDArray[np.uint8]], _: range, labels: NDArray[np.uint8]) -> None:
    """Add the label maps (B, n) of a batch, whose memory the sampler uses again."""
    kept.extend(labels.copy())


@dataclass(frozen=True)
class MapScore:
    """Labels by overlap, maps within 5 mm of foreground; NaN where a case lacks the region."""

    dice: dict[str, float]
    calibration_error: float
    log_score_nats: float
    roc_area: float


@dataclass(frozen=True)
class PredictedMeasure:
    """A predicted distribution of one region's volume in ml, Dice or other measure.

    ``width`` and CRPS are on its ``MeasureScale``, such as log(V + 0.1).
    """

    scale: MeasureScale
    lower: float
    upper: float
    truth: float
    crps: float
    middle: float

    @property
    def inside(self) -> bool:
        """Whether the interval contains the truth."""
        return self.lower <= self.truth <= self.upper

    @property
    def width(self) -> float:
        """How wide the interval is, on the scale."""
        return float(np.diff(to_scale([self.lower, self.upper], self.scale))[0])


@dataclass(frozen=True)
class CaseScores:
    """What one way gives on one case that it did not learn from."""

    case: str
    method: str  # one of METHODS
    maps: MapScore | None = None
    volumes: Mapping[str, PredictedMeasure] | None = None
    dice: Mapping[str, PredictedMeasure] | None = None
    measures: Mapping[str, PredictedMeasure] = field(default_factory=dict)
    """Of other measures, by region and measure: "core.diameter"."""


def region_ml(labels_ml: NDArray[np.float64], members: Sequence[int]) -> NDArray[np.float64]:
    """Return the volume of a region from those of the labels, (…, L) → (…)."""
    return labels_ml[..., list(members)].sum(axis=-1)


def score_maps(
    problem: LabelledProblem,
    marginals: NDArray[np.floating],
    regions: Regions,
    decisions: Regions | None,
) -> MapScore:
    """Score marginals (L, N); labels are decided as ``run`` would, or the most probable."""
    labels = decide_labels(marginals, problem.choose(decisions or {}))
    near, truth = problem.near, problem.truth
    here = np.maximum(marginals[:, near].astype(np.float64), _LEAST)
    here /= here.sum(axis=0)
    true = truth[near]
    return MapScore(
        dice={name: region_dice(labels, truth, members) for name, members in regions.items()},
        calibration_error=top_label(here, true).expected_error,
        log_score_nats=log_score(here, true),
        roc_area=auroc(marginal_entropy(here), labels[near] != true),
    )


def log_score(marginals: NDArray[np.floating], truth: NDArray[np.int64]) -> float:
    """Return the mean of −log p of the true label, nats; marginals are (L, n)."""
    own = np.take_along_axis(marginals, truth[np.newaxis], axis=0)[0]
    return float(-np.log(np.maximum(own, _LEAST)).mean())


def predict(
    samples: NDArray[np.float64], truth: float, scale: MeasureScale, law: LearnedLaw | None = None
) -> PredictedMeasure:
    """Score samples (S,) of one region, under a learned law or as they are."""
    tail = (1 - LEVEL) / 2
    ends = np.quantile(samples, [tail, 1 - tail]) if law is None else law.widen(samples)
    drawn = samples if law is None else law.draws(samples)
    score = crps(to_scale(drawn, scale), float(to_scale(truth, scale)))
    return PredictedMeasure(
        scale, float(ends[0]), float(ends[1]), truth, score, float(np.median(drawn))
    )


def score_volumes(
    problem: LabelledProblem, sampled_ml: NDArray[np.float64], regions: Regions
) -> dict[str, PredictedMeasure]:
    """Score sampled volumes of the labels (S, L) as they are, region by region."""
    return {
        name: predict(
            region_ml(sampled_ml, members), float(region_ml(problem.true_ml, members)), "volume"
        )
        for name, members in regions.items()
    }


def nan_mean(values: Sequence[float]) -> float:
    """Return the mean of the values that are numbers; NaN where there are none."""
    known = [value for value in values if not math.isnan(value)]
    return float(np.mean(known)) if known else math.nan
