"""The made-up patients of the experiments: cohorts like the paper's, and four raters.

A rater draws each region's border where the truth has it, moved by a constant (mm) and by smooth
noise: the level set {signed distance + shift + noise > 0}.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perturb_mpm.checks import integer
from perturb_mpm.phantom import (
    LABEL_NAMES,
    Phantom,
    PhantomGrid,
    RandomSource,
    glioblastoma,
    resect,
)

HEALTHY, OEDEMA, ENHANCING = map(LABEL_NAMES.index, ("healthy", "oedema", "enhancing tumour"))

PREOPERATIVE_CASES = 14
PARTIAL_RESECTIONS, COMPLETE_RESECTIONS = 9, 10
_RESIDUAL_ML = (0.4, 6.0)
_LARGEST_SHARE = 0.35  # of the enhancing tumour that is left behind

_MARGIN_MM = 14.0  # how far from the disease a rater may draw
_HAND_MM = ((14.0, 0.35), (5.0, 0.55))  # length and size of the wanderings of a hand


@dataclass(frozen=True)
class ResectionPair:
    """The same patient before and right after surgery."""

    before: Phantom
    after: Phantom
    residual_ml: float  # 0: a complete resection

    @property
    def complete(self) -> bool:
        """Whether no enhancing tumour was left."""
        return self.residual_ml == 0.0


def cohort(
    n: int, seed: int = 0, *, spacing_mm: float | Sequence[float] = 2.0
) -> Iterator[Phantom]:
    """Return ``n`` patients before surgery; each is made when its turn comes."""
    seeds = _seeds(integer(n, "n", minimum=1), integer(seed, "seed", minimum=0))
    return (glioblastoma(each, spacing_mm=spacing_mm) for each in seeds)


def preoperative_cohort(
    seed: int = 0, *, spacing_mm: float | Sequence[float] = 2.0
) -> Iterator[Phantom]:
    """Return a cohort of the size of the paper's for the quality of uncertainty: 14 patients."""
    return cohort(PREOPERATIVE_CASES, seed, spacing_mm=spacing_mm)


def resection_cohort(
    seed: int = 0, *, spacing_mm: float | Sequence[float] = 2.0
) -> Iterator[ResectionPair]:
    """Return pairs like the paper's for the biomarkers: 9 partial and 10 complete resections.

    Their order is random, the volumes left behind are spread evenly over the logarithm.
    """
    seed = integer(seed, "seed", minimum=0)
    rng = np.random.default_rng([seed, PARTIAL_RESECTIONS])
    low, high = np.log(_RESIDUAL_ML)
    spread = np.exp(low + (high - low) * (np.arange(PARTIAL_RESECTIONS) + 0.5) / PARTIAL_RESECTIONS)
    wanted = rng.permutation([*spread, *[0.0] * COMPLETE_RESECTIONS])
    patients = _seeds(len(wanted), seed + 1)
    return (_pair(each, float(ml), spacing_mm) for each, ml in zip(patients, wanted))


def _pair(seed: int, residual_ml: float, spacing_mm: float | Sequence[float]) -> ResectionPair:
    """Make one patient and operate."""
    before = glioblastoma(seed, spacing_mm=spacing_mm)
    residual_ml = min(residual_ml, _LARGEST_SHARE * before.volume_ml(ENHANCING))
    return ResectionPair(before, resect(before, residual_ml), residual_ml)


def _seeds(n: int, seed: int) -> list[int]:
    """Return the seeds of ``n`` patients; a larger cohort begins with the same ones."""
    return [int(np.random.SeedSequence([seed, i]).generate_state(1)[0]) for i in range(n)]


@dataclass(frozen=True)
class Rater:
    """How one person draws."""

    name: str
    enhancing_mm: float  # how far outside its border enhancing tumour is drawn; negative inside
    core_mm: float
    oedema_mm: float
    overlooks_ml: float  # islands of enhancing tumour below that are missed half of the time
    blood_as_tumour: float  # the share of the blood that is taken for enhancing tumour


RATERS = (
    Rater("generous", 0.7, 0.5, 1.2, 0.05, 0.02),
    Rater("strict", -0.8, -0.5, -1.2, 0.15, 0.0),
    Rater("balanced", -0.05, 0.0, 0.0, 0.1, 0.0),
    Rater("misled by blood", 0.1, 0.1, -0.3, 0.4, 0.2),
)


def draw_rater_maps(patient: Phantom, seed: int = 0) -> NDArray[np.uint8]:
    """Return the label maps (4, X, Y, Z) that the four of ``RATERS`` would draw.

    Parameters
    ----------
    patient
        Whom they outline; the labels are those of its truth.
    seed
        Which occasion: another one moves every line a little.
    """
    seed = integer(seed, "seed", minimum=0)
    box = _box(patient)
    x, y, z = (axis[part] for axis, part in zip(patient.grid.axes, box))
    grid = PhantomGrid((x, y, z), patient.spacing)
    maps = np.zeros((len(RATERS), *patient.truth.shape), dtype=np.uint8)
    blood = patient.tissue["blood"][box] if "blood" in patient.tissue else None
    for number, rater in enumerate(RATERS):
        hand = RandomSource(
            int(np.random.SeedSequence([patient.seed, seed, number]).generate_state(1)[0])
        )
        drawn = _draw_map(rater, hand, grid, patient.truth[box], blood)
        maps[number][box] = np.where(patient.mask[box], drawn, HEALTHY)
    return maps


def _draw_map(
    rater: Rater,
    hand: RandomSource,
    grid: PhantomGrid,
    truth: NDArray[np.uint8],
    blood: NDArray[Any] | None,
) -> NDArray[np.uint8]:
    """Return what one rater draws: oedema first, the core over it, enhancing tumour last."""
    seen = _without_islands(rater, hand, grid, truth)
    core = np.where(np.isin(seen, (HEALTHY, OEDEMA)), HEALTHY, seen)
    inner = np.where(core == ENHANCING, HEALTHY, core)
    drawn = np.where(
        _redraw_border(hand, grid, seen != HEALTHY, "oedema", rater.oedema_mm), OEDEMA, 0
    )
    whole_core = _redraw_border(hand, grid, core != HEALTHY, "core", rater.core_mm)
    if inner.any():
        drawn = np.where(whole_core, _from_nearest(inner, inner == HEALTHY, grid), drawn)
    enhancing = _redraw_border(hand, grid, seen == ENHANCING, "enhancing", rater.enhancing_mm)
    drawn = np.where(enhancing, ENHANCING, drawn)
    if blood is not None and rater.blood_as_tumour > 0.0:
        liking = hand.noise(grid, "blood", 9.0)
        bloody = blood > 0.5
        if bloody.any():
            level = np.quantile(liking[bloody], 1.0 - rater.blood_as_tumour)
            drawn = np.where(bloody & (liking > level), ENHANCING, drawn)
    return drawn.astype(np.uint8)


def _without_islands(
    rater: Rater, hand: RandomSource, grid: PhantomGrid, truth: NDArray[np.uint8]
) -> NDArray[np.uint8]:
    """Return the truth without the small islands of enhancing tumour that a rater overlooks."""
    from scipy.ndimage import label

    islands, count = label(truth == ENHANCING, structure=np.ones((3, 3, 3)))
    sizes = np.bincount(islands.ravel(), minlength=count + 1) * grid.voxel_ml
    overlooked = (sizes < rater.overlooks_ml) & (hand.rng("islands").random(count + 1) < 0.5)
    overlooked[0] = False
    gone = overlooked[islands]
    return truth if not gone.any() else _from_nearest(truth, gone, grid)


def _redraw_border(
    hand: RandomSource, grid: PhantomGrid, region: NDArray[np.bool_], name: str, shift_mm: float
) -> NDArray[np.bool_]:
    """Return ``region`` with its border moved out by ``shift_mm`` and by an unsteady hand."""
    from scipy.ndimage import distance_transform_edt

    if not region.any():
        return region
    half = 0.5 * min(grid.spacing)
    inside = distance_transform_edt(region, sampling=grid.spacing) - half
    outside = distance_transform_edt(~region, sampling=grid.spacing) - half
    signed = np.where(region, inside, -outside) + shift_mm
    for length_mm, size_mm in _HAND_MM:
        signed += size_mm * hand.noise(grid, f"{name} {length_mm:g}", length_mm)
    redrawn: NDArray[np.bool_] = signed > 0.0
    return redrawn


def _from_nearest(
    labels: NDArray[np.uint8], unknown: NDArray[np.bool_], grid: PhantomGrid
) -> NDArray[np.uint8]:
    """Return ``labels`` where every ``unknown`` voxel has the label of the nearest known one."""
    from scipy.ndimage import distance_transform_edt

    index = distance_transform_edt(
        unknown, sampling=grid.spacing, return_distances=False, return_indices=True
    )
    nearest: NDArray[np.uint8] = labels[tuple(index)]
    return nearest


def _box(patient: Phantom) -> tuple[slice, slice, slice]:
    """Return the box around everything that is not healthy, with a margin for generous lines."""
    ill = np.argwhere(patient.truth != HEALTHY)
    margin = [int(np.ceil(_MARGIN_MM / step)) for step in patient.spacing]
    x, y, z = (
        slice(max(int(low) - more, 0), int(high) + 1 + more)
        for low, high, more in zip(ill.min(axis=0), ill.max(axis=0), margin)
    )
    return x, y, z
