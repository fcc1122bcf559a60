"""How strong and how long the random fields beside the noise must be: learned by scores of volumes.

A setting is scored on a labelled case by two proper scores, both lower where better: the
continuous ranked probability score of log(volume + 1 ml) of every region, and the voxelwise log
score of the votes. Noise and fields are pure functions of seed and sample, so that settings are
compared under the same random numbers and few samples are enough. Scores belong to one case: with
a table of cases and settings, choosing without a case is arithmetic.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import ArrayLike, NDArray

from perturb_mpm import checks
from perturb_mpm.biomarkers import crps
from perturb_mpm.engines import FRACTION_BITS, Compute, Solver, prepare_with
from perturb_mpm.learning.problem import true_labels
from perturb_mpm.model import DenseCRF
from perturb_mpm.noise import Field
from perturb_mpm.posterior import Tally
from perturb_mpm.progress import Progress
from perturb_mpm.sampling import Sampling

# Volumes are compared as log(V + 1 ml): a region of 0 ml has a logarithm, and one of 0.1 ml that
# is missed counts for little.
OFFSET_ML = 1.0
LEVEL = 0.95
# The interval of 32 samples holds one more draw of their own law in 92 % of cases.
OFTEN_ENOUGH = 0.9
# Votes are (count + ½) / (S + L/2) in the log score: no label of no votes is impossible.
SMOOTHING = 0.5

Regions = Mapping[str, Sequence[int]]


@dataclass(frozen=True)
class FieldSetting:
    """A field of amplitude ``shared`` for all labels but 0 together, and ``own`` for each of them.

    Amplitudes are in nats, ``own`` one for all of them or one for each; ``length_mm`` is the length
    of all fields, ``math.inf`` one offset for the whole image. Amplitudes of 0 are the paper's
    noise.
    """

    length_mm: float
    shared: float
    own: float | tuple[float, ...]

    def fields(self, n_labels: int) -> tuple[Field, ...]:
        """Return the fields, those of amplitude 0 left out."""
        foreground = tuple(range(1, n_labels))
        each = checks.one_each(self.own, "own of FieldSetting", len(foreground), "label but 0")
        shared = Field(self.length_mm, self.shared, foreground)
        own = (Field(self.length_mm, a, (l,)) for l, a in zip(foreground, each.tolist()))
        return tuple(field for field in (shared, *own) if field.scale > 0)


NO_FIELDS = FieldSetting(math.inf, 0.0, 0.0)
GRID: tuple[FieldSetting, ...] = tuple(
    FieldSetting(length, shared, own)
    for length in (30.0, 60.0, 100.0, math.inf)
    for shared, own in ((0.5, 0.5), (1.0, 0.5), (1.0, 1.0), (2.0, 1.0), (2.0, 2.0), (3.0, 2.0))
)


@dataclass(frozen=True, eq=False)
class FieldScore:
    """What one setting gives on one case."""

    setting: FieldSetting
    volumes_ml: NDArray[np.float64] = field(repr=False)  # (S, L)
    crps: dict[str, float]  # by region, of log volumes in nats
    inside: dict[str, bool | None]  # whether the 95 % interval holds the truth; None: no region
    log_score: float  # nats, the mean of −log f(truth) over the mask


@dataclass(frozen=True, eq=False)
class LearnedFields:
    """The setting that scores best, and every score it was chosen by: one list for each case."""

    setting: FieldSetting
    fields: tuple[Field, ...]
    scores: tuple[tuple[FieldScore, ...], ...] = field(repr=False)


def learn_fields(
    crfs: Iterable[DenseCRF],
    truths: Iterable[ArrayLike],
    regions: Regions,
    *,
    settings: Sequence[FieldSetting] = GRID,
    sampling: Sampling | None = None,
    compute: Compute | None = None,
    progress: Progress | None = None,
) -> LearnedFields:
    """Choose the amplitudes and the length of random fields on labelled cases.

    Parameters
    ----------
    crfs, truths
        The cases: a CRF, with the parameters that will be sampled, and the true labels of each.
    regions
        The labels of each region whose volume matters, by name.
    settings
        What to choose from; ``NO_FIELDS`` is always scored beside them.
    sampling
        How each case is sampled under each setting, its own fields and ``until`` aside; 32 samples
        where it is None.
    compute
        Where and how it is computed.
    progress
        Called with (cases scored, cases in all).
    """
    sampling = Sampling(samples=32) if sampling is None else sampling
    volumes, labels = list(crfs), list(truths)
    if not volumes or len(volumes) != len(labels):
        raise ValueError(
            f"crfs and truths must be as many, at least one, got {len(volumes)} and {len(labels)}"
        )
    scores = []
    for place, (crf, truth) in enumerate(zip(volumes, labels, strict=True)):
        solver = prepare_with(crf, compute or Compute(), compact=True)
        scores.append(
            tuple(
                score(crf, solver, truth, regions, setting, sampling)
                for setting in (NO_FIELDS, *settings)
            )
        )
        if progress is not None:
            progress(place + 1, len(volumes))
    chosen = best_setting(scores)
    return LearnedFields(chosen, chosen.fields(volumes[0].n_labels), tuple(scores))


def score(
    crf: DenseCRF,
    solver: Solver,
    truth: ArrayLike,
    regions: Regions,
    setting: FieldSetting,
    sampling: Sampling,
) -> FieldScore:
    """Sample a case under one setting; ``solver`` is that of the CRF, the same for all settings."""
    checks.integer(sampling.samples, "samples", minimum=2)
    x = true_labels(crf, truth)  # (N,)
    votes, sizes = draw_votes(crf, solver, setting, sampling)
    return score_votes(crf, x, regions, setting, votes, sizes)


def score_votes(
    crf: DenseCRF,
    x: NDArray[np.int64],
    regions: Regions,
    setting: FieldSetting,
    counts: NDArray[np.int64] | NDArray[np.float64],
    sizes: NDArray[np.int64],
) -> FieldScore:
    """Score votes (L, N) and sizes (S, L) that were drawn under a setting; ``x`` (N,) is true."""
    samples = len(sizes)
    voxel_ml = math.prod(crf.grid.spacing) / 1000.0
    true_sizes = np.bincount(x, minlength=crf.n_labels) * voxel_ml  # (L,)
    volumes: NDArray[np.float64] = sizes.astype(np.float64) * voxel_ml  # (S, L)
    votes = np.take_along_axis(counts, x[np.newaxis], axis=0)[0]  # (N,)
    shares = (votes + SMOOTHING) / (samples + SMOOTHING * crf.n_labels)
    scores: dict[str, float] = {}
    inside: dict[str, bool | None] = {}
    for name, labels in regions.items():
        sampled = volumes[:, list(labels)].sum(axis=1)  # (S,)
        true = float(true_sizes[list(labels)].sum())
        scores[name] = crps(log_volume(sampled), float(log_volume(true)))
        low, high = interval(sampled)
        inside[name] = low <= true <= high if true > 0 else None
    return FieldScore(setting, volumes, scores, inside, float(-np.log(shares).mean()))


def log_volume(volume_ml: ArrayLike) -> NDArray[np.float64]:
    """Return log(V + 1 ml)."""
    logarithm: NDArray[np.float64] = np.log(np.asarray(volume_ml, dtype=np.float64) + OFFSET_ML)
    return logarithm


def best_setting(cases: Sequence[Sequence[FieldScore]]) -> FieldSetting:
    """Return the setting that predicts volumes best without making the voxels worse.

    Settings whose log score is worse than without fields are out. Of the others those stay whose
    intervals hold the truth often enough in every region; where there are none, those that come
    nearest. Of these the one with the lowest CRPS is taken, the mean over regions and cases.
    ``cases`` hold the same settings in the same order, ``NO_FIELDS`` first.
    """
    voxels = np.array([[one.log_score for one in case] for case in cases]).mean(axis=0)
    volumes = np.array([[_mean(one.crps) for one in case] for case in cases]).mean(axis=0)
    covered = np.array([_coverage([case[k] for case in cases]) for k in range(len(voxels))])
    allowed = voxels <= voxels[0]  # (settings,)
    enough = min(OFTEN_ENOUGH, covered[allowed].max())
    stays = allowed & (covered >= enough)
    return cases[0][int(np.argmin(np.where(stays, volumes, np.inf)))].setting


def interval(volumes_ml: ArrayLike) -> tuple[float, float]:
    """Return the central 95 % of sampled volumes."""
    tail = (1.0 - LEVEL) / 2.0
    low, high = np.quantile(np.asarray(volumes_ml, dtype=np.float64), [tail, 1.0 - tail])
    return float(low), float(high)


def _coverage(scores: Sequence[FieldScore]) -> float:
    """Return how often the intervals of the worst region hold the truth, over the cases with it."""
    by_region = [
        [held for score in scores if (held := score.inside[name]) is not None]
        for name in scores[0].inside
    ]
    return min((float(np.mean(held)) for held in by_region if held), default=1.0)


def _mean(by_region: Mapping[str, float]) -> float:
    return float(np.mean(list(by_region.values())))


def draw_votes(
    crf: DenseCRF,
    solver: Solver,
    setting: FieldSetting,
    sampling: Sampling,
) -> tuple[NDArray[np.int64] | NDArray[np.float64], NDArray[np.int64]]:
    """Return votes (L, N) and the labels' sizes in voxels (S, L), under the fields of a setting.

    With the estimator "conditional" a vote is shared by its conditional marginals.
    """
    law = replace(sampling, fields=setting.fields(crf.n_labels), until=None)
    tally = Tally(crf.grid, crf.n_labels, conditional=law.estimator == "conditional")
    start = _unperturbed(crf, solver, law) if law.start == "warm" else None
    for first in range(0, law.samples, solver.batch):
        part = np.arange(first, min(first + solver.batch, law.samples))
        solver.perturb(law.perturbation, part, start, sharpness=law.sharpness)
        for left in range(law.iterations - 1, -1, -1):
            if left == 0 and tally.conditional is not None:
                tally.add_conditional(solver.conditional())
            solver.step(sharpness=law.sharpness, watched=left == 0)
        if law.iterations == 0 and tally.conditional is not None:
            tally.add_conditional(solver.conditional())
        tally.add_counted(solver.count_votes(tally.counts), np.zeros(len(part)))
    if tally.conditional is not None:
        return tally.conditional / (1 << FRACTION_BITS), tally.sizes
    return tally.counts.astype(np.int64), tally.sizes


def _unperturbed(crf: DenseCRF, solver: Solver, law: Sampling) -> NDArray[np.floating]:
    """Return the mean field of the CRF itself, (L, N)."""
    solver.load(crf.energies[np.newaxis])
    for left in range(law.iterations - 1, -1, -1):
        solver.step(watched=left == 0)
    marginals: NDArray[np.floating] = solver.marginals()[0].copy()
    return marginals
