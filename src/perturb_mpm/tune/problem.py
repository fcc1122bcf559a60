"""A labelled case as tuning sees it: its marginals and volumes under any settings, and scores."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from perturb_mpm.biomarkers import OFFSET_ML, ConformalWidening, crps
from perturb_mpm.engines import Solver, prepare_with, softmax
from perturb_mpm.evaluation import auroc, domain_mask, region_dice, top_label
from perturb_mpm.files import Case
from perturb_mpm.model import Grid
from perturb_mpm.posterior import Regions, decide_labels, marginal_entropy
from perturb_mpm.run import RunSettings, assumed_length_mm, build_crf, build_sampler
from perturb_mpm.sampling import Sampler

NEAR_MM = 5.0
"""Maps are scored within so many mm of true or predicted foreground."""

# Kernels are solved where there is something to decide: within so many mm of voxels whose
# foreground has at least this probability, or is true.
PLAY_MM = 15.0
PLAY = 0.05
# Voxels whose foreground is less likely than this do not matter for volumes: 1 in 50,000.
IMPOSSIBLE = 2e-5

LEVEL = 0.95
# The fewest cases for a conformal interval of 95 %; so many are believed entirely, fewer half-way.
MANY_CASES = 19
_LEAST = 1e-7

ALONE, TEMPERED, LEARNED = "probabilities alone", "with temperature", "learned"
FIXED, RESIDUAL = "fixed width", "residuals"
METHODS = (ALONE, TEMPERED, LEARNED, FIXED, RESIDUAL)
"""What is compared on cases left out."""


class LabelledProblem:
    """One labelled case; what is expensive is computed once."""

    def __init__(self, name: str, case: Case, kernels: RunSettings) -> None:
        """Take a case with its truth; ``kernels`` are the settings whose kernels may be learned."""
        if case.truth is None:
            raise ValueError(f"cases must have a truth to tune on, got {name} without")
        self.name, self.case = name, case
        self._settings = kernels
        self.grid = Grid(case.geometry.shape, case.geometry.spacing, case.mask)
        self.truth = self.grid.gather(case.truth).astype(np.int64)  # (N,)
        foreground = case.probabilities.argmax(axis=0) > 0
        near = domain_mask(
            "dilated", foreground, case.truth > 0, case.mask, case.geometry.spacing, NEAR_MM
        )
        # Of a case without any foreground every voxel counts.
        self.near: NDArray[np.bool_] = self.grid.gather(near if near.any() else case.mask)
        self.length_mm = assumed_length_mm(case)
        # Settings of one length and seed, and the volumes that were drawn under them, (S, L).
        self._drawn: list[tuple[RunSettings, NDArray[np.float64]]] = []

    @property
    def n_labels(self) -> int:
        """L, the number of labels."""
        return len(self.case.labels)

    @property
    def voxel_ml(self) -> float:
        """The volume of a voxel."""
        return math.prod(self.grid.spacing) / 1000

    @cached_property
    def true_ml(self) -> NDArray[np.float64]:
        """The true volume of every label inside the mask, (L,)."""
        counts = np.bincount(self.truth, minlength=self.n_labels)
        return counts.astype(np.float64) * self.voxel_ml

    @cached_property
    def probabilities(self) -> NDArray[np.float32]:
        """The given probabilities inside the mask, (L, N)."""
        inside: NDArray[np.float32] = self.grid.gather(self.case.probabilities)
        return inside

    def marginals(self, settings: RunSettings) -> NDArray[np.float64]:
        """Return the mean field under temperature, bias, strength and centring, (L, N)."""
        return self.solve(settings)[0]

    def solve(self, settings: RunSettings) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return the mean field and the messages of its last update, both (L, N).

        Messages are added to −U; where kernels are not solved they are 0.
        """
        logits = -self._energies(settings)
        given = softmax(logits, axis=0)
        messages = np.zeros_like(logits)
        if not settings.has_kernels:
            return given, messages
        play = self._play
        q, here = given[:, play], logits[:, play]
        base = settings.coupling.centring * self._pairwise(q)
        for _ in range(settings.sampling.iterations):
            messages[:, play] = (settings.coupling.strength or 0.0) * (base - self._pairwise(q))
            q = softmax(here + messages[:, play], axis=0)
        marginals = given
        marginals[:, play] = q
        return marginals, messages

    def sampled_ml(
        self, settings: RunSettings, lengths_mm: Sequence[float], samples: int, seed: int
    ) -> NDArray[np.float64]:
        """Return volumes of every label in ml, (lengths, samples, L), as ``run`` samples them.

        Kernels act where they are solved; elsewhere voxels are drawn without them, and those whose
        foreground is next to impossible not at all. What was drawn before is not drawn again.
        """
        found = np.empty((len(lengths_mm), samples, self.n_labels))
        samplers: list[Sampler] = []
        for row, length in zip(found, lengths_mm, strict=True):
            drawn = settings.changed(samples=1, seed=seed, until=None, noise_length=length)
            known = next((volumes for made, volumes in self._drawn if made == drawn), row[:0])
            missing = range(len(known), samples)
            if missing:
                samplers = samplers or self._samplers(drawn)
                parts = [each.with_noise(length).draw(missing).volumes for each in samplers]
                row[missing.start :] = sum(part / 1000 for part in parts)
                row[: missing.start] = known
                self._drawn = [each for each in self._drawn if each[0] != drawn]
                self._drawn.append((drawn, row))
            else:
                row[:] = known[:samples]
        return found

    def _samplers(self, settings: RunSettings) -> list[Sampler]:
        """Return one sampler for each part of the mask; a voxel is in one part at most.

        Their volumes add up, because noise depends only on the voxel.
        """
        bare = settings.changed(iterations=0, strength=0.0, tolerance=0.0)
        possible = softmax(-self._energies(settings), axis=0)[1:].sum(axis=0) > IMPOSSIBLE
        parts = [(bare, possible)]
        if settings.has_kernels:
            parts = [(settings, self._play), (bare, possible & ~self._play)]
        return [self._sampler(how, where) for how, where in parts if where.any()]

    def _sampler(self, settings: RunSettings, where: NDArray[np.bool_]) -> Sampler:
        """Return a sampler of some of the voxels, (N,)."""
        part = replace(self.case, mask=self.grid.scatter(where, outside=False))
        return build_sampler(build_crf(part, settings), settings)

    def _energies(self, settings: RunSettings) -> NDArray[np.float64]:
        bare = settings.changed(strength=0.0)
        return build_crf(self.case, bare).energies.astype(np.float64)

    def _pairwise(self, marginals: NDArray[np.floating]) -> NDArray[np.float64]:
        """Return the pairwise energies at a strength of 1, (L, N in play)."""
        q = marginals[np.newaxis].astype(np.float32)
        self._solver.load(q, q)  # any energies will do
        energies: NDArray[np.float64] = self._solver.pairwise()[0].astype(np.float64)
        return energies

    @cached_property
    def _play(self) -> NDArray[np.bool_]:
        """Which voxels inside the mask the kernels are solved for, (N,)."""
        case = self.case
        likely = case.probabilities[1:].sum(axis=0) >= PLAY
        truth = np.zeros(case.mask.shape, dtype=bool) if case.truth is None else case.truth > 0
        near = domain_mask("dilated", likely, truth, case.mask, case.geometry.spacing, PLAY_MM)
        inside: NDArray[np.bool_] = self.grid.gather(near if near.any() else case.mask)
        return inside

    @cached_property
    def _solver(self) -> Solver:
        settings, case = self._settings, self.case
        mask = self.grid.scatter(self._play, outside=False)
        crf = build_crf(replace(case, mask=mask), settings.changed(strength=1.0, centring=0.0))
        return prepare_with(crf, replace(settings.compute, batch=1))


@dataclass(frozen=True)
class MapScore:
    """Labels by overlap, maps within 5 mm of foreground; NaN where a case lacks the region."""

    dice: dict[str, float]
    calibration_error: float
    log_score_nats: float
    roc_area: float


@dataclass(frozen=True)
class VolumePrediction:
    """A predicted distribution of one region's volume; ``width`` and CRPS are of log(V + 0.1)."""

    lower_ml: float
    upper_ml: float
    true_ml: float
    crps: float

    @property
    def inside(self) -> bool:
        """Whether the interval contains the truth."""
        return self.lower_ml <= self.true_ml <= self.upper_ml

    @property
    def width(self) -> float:
        """How wide the interval is, as a difference of logarithms."""
        return float(log_ml(self.upper_ml) - log_ml(self.lower_ml))

    def widen(self, by: ConformalWidening) -> VolumePrediction:
        """Return the score with both ends of the interval moved."""
        lower, upper = by.widen([self.lower_ml], [self.upper_ml])
        return VolumePrediction(float(lower[0]), float(upper[0]), self.true_ml, self.crps)


@dataclass(frozen=True)
class CaseScores:
    """What one way gives on one case that it did not learn from."""

    case: str
    method: str  # one of METHODS
    maps: MapScore | None
    volumes: Mapping[str, VolumePrediction] | None


def log_ml(volume_ml: float | NDArray[np.float64]) -> NDArray[np.float64]:
    """Return log(V + 0.1 ml)."""
    logarithm: NDArray[np.float64] = np.log(np.asarray(volume_ml, dtype=np.float64) + OFFSET_ML)
    return logarithm


def region_ml(labels_ml: NDArray[np.float64], members: Sequence[int]) -> NDArray[np.float64]:
    """Return the volume of a region from those of the labels, (…, L) → (…)."""
    total: NDArray[np.float64] = labels_ml[..., list(members)].sum(axis=-1)
    return total


def score_maps(
    problem: LabelledProblem,
    marginals: NDArray[np.floating],
    regions: Regions,
    decisions: Regions | None,
) -> MapScore:
    """Score marginals (L, N); labels are decided by ``decisions``, or the most probable."""
    labels = decide_labels(marginals, decisions)
    near, truth = problem.near, problem.truth
    here = np.maximum(marginals[:, near].astype(np.float64), _LEAST)
    here /= here.sum(axis=0)
    true = truth[near]
    own = np.take_along_axis(here, true[np.newaxis], axis=0)[0]
    return MapScore(
        dice={name: region_dice(labels, truth, members) for name, members in regions.items()},
        calibration_error=top_label(here, true).expected_error,
        log_score_nats=float(-np.log(own).mean()),
        roc_area=auroc(marginal_entropy(here), labels[near] != true),
    )


def score_volumes(
    problem: LabelledProblem, sampled_ml: NDArray[np.float64], regions: Regions
) -> dict[str, VolumePrediction]:
    """Score sampled volumes of the labels (S, L), region by region."""
    return {
        name: score_volume(
            region_ml(sampled_ml, members), float(region_ml(problem.true_ml, members))
        )
        for name, members in regions.items()
    }


def score_volume(sampled_ml: NDArray[np.float64], true_ml: float) -> VolumePrediction:
    """Score sampled volumes (S,) of one region."""
    tail = (1 - LEVEL) / 2
    lower, upper = np.quantile(sampled_ml, [tail, 1 - tail])
    return VolumePrediction(
        float(lower), float(upper), true_ml, crps(log_ml(sampled_ml), float(log_ml(true_ml)))
    )


def nan_mean(values: Sequence[float]) -> float:
    """Return the mean of the values that are numbers; NaN where there are none."""
    known = [value for value in values if not math.isnan(value)]
    return float(np.mean(known)) if known else math.nan
