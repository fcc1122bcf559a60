"""What image and grid say about probabilities, without a label.

**Image evidence.** Does the image predict these probabilities? With P_i the probabilities of voxel
i, leave out what is near it and ask whether voxels that look alike say what it is:

    A_i = Σ_j s_ij g_ij P_j / Σ_j s_ij g_ij,    C_i = Σ_j s_ij P_j / Σ_j s_ij,    |x_i − x_j| > b

where s is a Gaussian of position and g one of intensity: A is what a bilateral kernel tells voxel
i, C what position alone tells it. Both are mixed with 2 % of the mean probabilities. The skill

    1 − mean KL(P_i ‖ A_i) / mean KL(P_i ‖ C_i),    over voxels near the predicted foreground,

is the share of what position leaves open that the image explains: near 0 where intensities say
nothing about the labels (one sequence of a hippocampus), near 1 where they say nearly all.

**The grid's temperature.** Truth and training labels are voxels, so a border is known no better
than to s² = 2·h²/12 along an axis of voxel size h. With P′ the probabilities filtered by
[v/2, 1 − v, v/2] along every axis, v = 1/6, the temperature at which the probabilities are as sure
as their grid allows is

    T* = argmin_T Σ_i KL(P′_i ‖ softmax(log P_i / T)),    over the same voxels.

The sum is convex in 1/T, and its derivative is E_softmax[log P] − E_P′[log P]. Where P spreads a
border over the variance σ², T*² is about 1 + s²/σ². A classifier that learned from voxels and knows
how far it errs (calibrated trees, an atlas) has the grid's s² in its σ² already, and its own error,
which is seldom less (``spare_soft_borders``).

**Familiarity.** Is a case like those that settings were learned from? A property of the cases
learned from, on a scale on which it is about normal, predicts that of a new case like them:
mean ± t · sd · √(1 + 1/n). Outside of the central 99 % a case is unfamiliar.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from perturb_mpm import checks
from perturb_mpm.model import Grid

# Bandwidths of the bilateral kernel: mm, standard deviations of the intensities inside the mask.
BANDWIDTHS = ((20.0, 0.3), (20.0, 0.5), (20.0, 1.0))

NEAR_MM = 5.0
"""Voxels within this distance of the predicted foreground count: elsewhere nothing is in doubt."""

EXCLUDED_MM = 6.0
"""Voxels nearer than this predict a voxel by being its neighbours, whatever the image says."""

_ASKED = 500  # voxels i; the skill is then known to about ±.02
_ANSWERING = 20_000  # voxels j, drawn once for all i: within .02 of asking all of a brain
_AT_ONCE = 64  # voxels i whose pairs are in memory together
_PRIOR = 0.02
_CLIP = 1e-6
_GRID_VARIANCE = 1 / 6  # of a border's position, in voxels²: two roundings to a voxel, 1/12 each
_COLDEST, _HOTTEST = 0.05, 20.0


@dataclass(frozen=True)
class ImageEvidence:
    """How well the image predicts probabilities; see ``image_evidence``.

    Examples
    --------
    >>> from perturb_mpm.learning import ImageEvidence
    >>> found = ImageEvidence(0.62, 20.0, 0.5, skills=(0.58, 0.62, 0.4))
    >>> f"{found.skill:.0%} with {found.sigma_intensity} sd"
    '62% with 0.5 sd'
    """

    skill: float
    """The largest of ``skills``: 1 is all, 0 or less nothing."""
    sigma_space: float
    """The bandwidth that has it, mm."""
    sigma_intensity: float
    """The same in standard deviations of the intensities inside the mask."""
    skills: tuple[float, ...]
    """The skill of every bandwidth asked for."""


def image_evidence(
    images: ArrayLike,
    probabilities: ArrayLike,
    *,
    spacing: float | Sequence[float] | None = None,
    mask: ArrayLike | None = None,
    bandwidths: Sequence[tuple[float, float]] = BANDWIDTHS,
    excluded_mm: float = EXCLUDED_MM,
    seed: int = 0,
) -> ImageEvidence | None:
    """Return how well images (C, *spatial) predict probabilities (L, *spatial) beyond position.

    None where no foreground is predicted, and where position alone explains everything.
    ``bandwidths`` are pairs of mm and standard deviations. The same arguments give the same answer.

    Examples
    --------
    >>> from perturb_mpm.learning import image_evidence
    >>> rng = np.random.default_rng(0)
    >>> inside = np.zeros((40, 40)); inside[10:20, 8:30] = 1
    >>> p = np.stack([0.95 - 0.9 * inside, 0.05 + 0.9 * inside])
    >>> bright = inside + 0.1 * rng.normal(size=inside.shape)
    >>> image_evidence(bright[np.newaxis], p).skill > 0.8
    True
    >>> noise = rng.normal(size=inside.shape)
    >>> image_evidence(noise[np.newaxis], p).skill < 0.1
    True
    """
    checks.number(excluded_mm, "excluded_mm", minimum=0)
    for space, intensity in bandwidths:
        checks.number(space, "bandwidths", positive=True)
        checks.number(intensity, "bandwidths", positive=True)
    checks.integer(seed, "seed", minimum=0)
    predicted = _Predicted.of(*_checked_probabilities(probabilities, spacing, mask))
    sequences = _checked_images(images, predicted.grid.shape)
    return _find_skill(sequences, predicted, bandwidths, excluded_mm, seed)


def _find_skill(
    images: Sequence[NDArray[Any]],
    predicted: _Predicted,
    bandwidths: Sequence[tuple[float, float]] = BANDWIDTHS,
    excluded_mm: float = EXCLUDED_MM,
    seed: int = 0,
) -> ImageEvidence | None:
    p, grid, candidates = predicted.p, predicted.grid, predicted.near
    if len(candidates) == 0:
        return None
    rng = np.random.default_rng(seed)
    asked = rng.choice(candidates, min(_ASKED, len(candidates)), replace=False)
    answering = rng.choice(grid.voxels, min(_ANSWERING, grid.voxels), replace=False)
    position, feature = (
        (of[: len(asked)], of[len(asked) :])
        for voxels in [np.concatenate([asked, answering])]
        for of in (_positions(grid, voxels), _standardize(images, grid, voxels))
    )  # of the voxels asked and answering, (I, ndim or C) and (J, ndim or C)
    prior = p.mean(axis=0)  # (L,)
    excess = np.zeros((2, len(bandwidths)))  # summed KL of A and of C, nats
    arrays = np.empty((5, min(_AT_ONCE, len(asked)), len(answering)), dtype=np.float32)
    for start in range(0, len(asked), _AT_ONCE):
        these = slice(start, start + _AT_ONCE)
        i = asked[these]
        far2, apart2, s, g, work = arrays[:, : len(i)]  # (I, J) mm², sd²
        _square_distances(position[0][these], position[1], far2, work)
        _square_distances(feature[0][these], feature[1], apart2, work)
        allowed = far2 > excluded_mm**2
        for space in {space for space, _ in bandwidths}:
            np.exp(np.multiply(far2, np.float32(-0.5 / space**2), out=s), out=s)
            s *= allowed
            by_position = _excess_nats(p[i], _weighted_mean(s, p[answering], prior))
            for k, (_, intensity) in enumerate(bandwidths):
                if bandwidths[k][0] != space:
                    continue
                np.exp(np.multiply(apart2, np.float32(-0.5 / intensity**2), out=g), out=g)
                g *= s
                excess[0, k] += _excess_nats(p[i], _weighted_mean(g, p[answering], prior))
                excess[1, k] += by_position
    if not np.all(excess[1] > 0):
        return None
    skills = 1 - excess[0] / excess[1]
    best = int(skills.argmax())
    space, intensity = bandwidths[best]
    return ImageEvidence(float(skills[best]), space, intensity, tuple(skills.tolist()))


def grid_temperature(
    probabilities: ArrayLike,
    *,
    spacing: float | Sequence[float] | None = None,
    mask: ArrayLike | None = None,
) -> float | None:
    """Return the temperature at which probabilities (L, *spatial) are as sure as their grid allows.

    It needs no label, and it is a floor of doubt: a network that has memorised its patients is
    wrong by more than its grid. None where no foreground is predicted.

    Examples
    --------
    >>> from perturb_mpm.learning import grid_temperature
    >>> edge = 1 / (1 + np.exp(-8.0 * (np.arange(20) - 9.6)))  # from 0 to 1 within a voxel
    >>> grid_temperature(np.stack([1 - edge, edge])) > 1.5
    True
    """
    return _find_temperature(_Predicted.of(*_checked_probabilities(probabilities, spacing, mask)))


def _find_temperature(predicted: _Predicted) -> float | None:
    from scipy.ndimage import correlate1d

    p, near = predicted.p, predicted.near
    if len(near) == 0:
        return None
    if len(near) > _ANSWERING:  # more of them change the third digit
        near = np.random.default_rng(0).choice(near, _ANSWERING, replace=False)
    taps = [_GRID_VARIANCE / 2, 1 - _GRID_VARIANCE, _GRID_VARIANCE / 2]
    target = np.empty((p.shape[1], len(near)))  # (L, M)
    numbers, here = predicted.in_box()
    asked = np.searchsorted(numbers, near)
    for label in range(p.shape[1]):
        blurred = np.full(here.shape, label == 0, dtype=p.dtype)
        blurred[here] = p[numbers, label]
        for axis, size in enumerate(predicted.grid.shape):
            if size > 1:
                blurred = correlate1d(blurred, taps, axis=axis, mode="nearest")
        target[label] = blurred[here][asked]
    target /= target.sum(axis=0)
    logs = np.log(p[near].T.astype(np.float64))  # (L, M)
    wanted = float((target * logs).sum())
    low, high = 1 / _HOTTEST, 1 / _COLDEST  # of 1/T, in which the expectation rises
    for _ in range(50):
        middle = float(np.sqrt(low * high))
        shares = np.exp(middle * (logs - logs.max(axis=0)))
        shares /= shares.sum(axis=0)
        if float((shares * logs).sum()) > wanted:
            high = middle
        else:
            low = middle
    return 1 / float(np.sqrt(low * high))


def ask_image_and_grid(
    images: Sequence[NDArray[np.floating]], probabilities: NDArray[np.floating], grid: Grid
) -> tuple[ImageEvidence | None, float | None]:
    """Return ``image_evidence`` and ``grid_temperature`` of a case whose arrays were checked.

    Each is found on a thread of its own.

    Examples
    --------
    >>> from perturb_mpm.learning import ask_image_and_grid, grid_temperature
    >>> edge = 1 / (1 + np.exp(-8.0 * (np.arange(20) - 9.6)))
    >>> p = np.stack([1 - edge, edge])
    >>> image, temperature = ask_image_and_grid([edge], p, pm.Grid((20,)))
    >>> temperature == grid_temperature(p)
    True
    """
    predicted = _Predicted.of(probabilities, grid)
    with ThreadPoolExecutor(1) as beside:
        temperature = beside.submit(_find_temperature, predicted)
        image = _find_skill(images, predicted)
    return image, temperature.result()


def spare_soft_borders(temperature: float) -> float:
    """Return how much of the grid's temperature is due where borders may know their grid already.

    With s² the grid's variance and s²/σ² = T*² − 1: all of s² is added where the borders' σ² is at
    most 2 s², nothing from 3 s² on, and a share that falls to 0 between them.

    Examples
    --------
    >>> from perturb_mpm.learning import spare_soft_borders
    >>> spare_soft_borders(1.6), spare_soft_borders(1.1)
    (1.6, 1.0)
    """
    added = temperature**2 - 1
    if added >= 0.5:  # of σ² up to 2 s²
        return temperature
    return math.sqrt(1 + max(3 * added - 1, 0.0))


def _checked_probabilities(
    probabilities: ArrayLike, spacing: float | Sequence[float] | None, mask: ArrayLike | None
) -> tuple[NDArray[Any], Grid]:
    """Return probabilities (L, *spatial) as an array, and their grid."""
    given = checks.numeric(probabilities, "probabilities")
    checks.labels_first(given, "probabilities")
    checks.finite(given, "probabilities")
    return given, Grid(given.shape[1:], spacing, mask)


def _checked_images(images: ArrayLike, shape: tuple[int, ...]) -> list[NDArray[Any]]:
    """Return images (C, *spatial) as arrays (*spatial) of this shape."""
    found = []
    for image in images if isinstance(images, Sequence) else checks.numeric(images, "images"):
        given = checks.numeric(image, "images")
        if given.shape != shape:
            raise ValueError(
                f"images must be (channels, *spatial) with the spatial shape {shape} of the "
                f"probabilities, got channels of {given.shape}"
            )
        checks.finite(given, "images")
        found.append(given)
    return found


@dataclass(frozen=True)
class _Predicted:
    """The probabilities of a case, and which voxels lie near predicted foreground."""

    p: NDArray[np.float32]  # (N, L), inside the mask, none of them 0
    grid: Grid
    box: tuple[slice, ...]  # holds the voxels near foreground and their neighbours
    near: NDArray[np.int64]  # (M,), of N

    @classmethod
    def of(cls, probabilities: NDArray[Any], grid: Grid) -> _Predicted:
        inside = np.empty((len(probabilities), grid.voxels), dtype=np.float32)  # (L, N)
        for row, share in zip(inside, probabilities, strict=True):
            row[:] = grid.gather(share)
        np.maximum(inside, np.float32(_CLIP), out=inside)
        inside /= inside.sum(axis=0)
        p = np.ascontiguousarray(inside.T)
        return cls(p, grid, *_near_foreground(p, grid))

    def in_box(self) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """Return which of the N voxels lie in the box, and which of the box's are among these."""
        within = np.zeros(self.grid.shape, dtype=np.bool_)
        within[self.box] = True
        numbers = np.flatnonzero(self.grid.gather(within))
        mask = self.grid.mask
        return numbers, within[self.box] if mask is None else mask[self.box]


def _standardize(
    images: Sequence[NDArray[Any]], grid: Grid, voxels: NDArray[np.int64]
) -> NDArray[np.float32]:
    """Return what images have at some voxels, (n, C), in standard deviations inside the mask."""
    found = np.empty((len(voxels), len(images)), dtype=np.float32)
    for column, image in zip(found.T, images, strict=True):
        inside = grid.gather(image).astype(np.float64)  # (N,)
        inside -= inside.mean()
        column[:] = inside[voxels] / (inside.std() or 1)
    return found


def _positions(grid: Grid, voxels: NDArray[np.int64]) -> NDArray[np.float32]:
    """Return where some of the voxels inside the mask are, (n, ndim), mm."""
    indices = np.unravel_index(grid.index[voxels], grid.shape)
    return np.stack([each * size for each, size in zip(indices, grid.spacing)], axis=1).astype(
        np.float32
    )


def _near_foreground(
    p: NDArray[np.float32], grid: Grid
) -> tuple[tuple[slice, ...], NDArray[np.int64]]:
    """Return which voxels inside the mask lie near predicted foreground, (M,) of N, and a box.

    The box holds these voxels and their neighbours.
    """
    from scipy.ndimage import distance_transform_edt

    foreground = p.argmax(axis=1) != 0  # (N,)
    if not foreground.any():
        return (), np.empty(0, dtype=np.int64)
    # The distance is asked for in a box around the foreground alone: a brain is ten times larger.
    corners = np.stack(np.unravel_index(grid.index[foreground], grid.shape))  # (ndim, F)
    margins = [int(np.ceil(NEAR_MM / size)) + 1 for size in grid.spacing]
    box = tuple(
        slice(max(low - margin, 0), high + margin + 1)
        for low, high, margin in zip(corners.min(axis=1), corners.max(axis=1), margins)
    )
    whole = grid.scatter(foreground, outside=False)
    near = np.zeros(grid.shape, dtype=np.bool_)
    near[box] = distance_transform_edt(~whole[box], sampling=grid.spacing) <= NEAR_MM
    return box, np.flatnonzero(grid.gather(near))


def _square_distances(
    a: NDArray[np.float32],
    b: NDArray[np.float32],
    out: NDArray[np.float32],
    work: NDArray[np.float32],
) -> None:
    """Write |a_i − b_j|², (I, J), for a (I, K) and b (J, K), to ``out``; both are (I, J)."""
    np.add((a**2).sum(axis=1)[:, np.newaxis], (b**2).sum(axis=1), out=out)
    np.matmul(a, b.T, out=work)
    work *= 2
    out -= work
    np.maximum(out, 0, out=out)


def _excess_nats(p: NDArray[np.float32], predicted: NDArray[np.float32]) -> float:
    """Return Σ_i KL(p_i ‖ predicted_i) for (I, L) probabilities."""
    return float((p * np.log(p / predicted)).sum())


def _weighted_mean(
    weights: NDArray[np.float32], p: NDArray[np.float32], prior: NDArray[np.float32]
) -> NDArray[np.float32]:
    """Return Σ_j w_ij p_j / Σ_j w_ij, (I, L), mixed with the prior; the prior where w is 0."""
    total = weights.sum(axis=1, keepdims=True)  # (I, 1)
    mean = np.where(total > 0, weights @ p / np.where(total > 0, total, 1), prior)
    return np.asarray((1 - _PRIOR) * mean + _PRIOR * prior, dtype=np.float32)


LEVEL = 0.99
"""The share of cases like those learned from that lie inside the range of a property."""

SKILL, TEMPERATURE = "image evidence", "grid temperature"
ENTROPY, VOLUME = "entropy of the foreground, bits", "foreground, ml"
_LOGARITHMIC = (TEMPERATURE, ENTROPY, VOLUME)
# The least spread that a property has, on its scale: cases alike to the last digit are chance.
_LEAST_SPREAD = 0.02


@dataclass(frozen=True)
class Unfamiliar:
    """A property of a case that lies outside of its range."""

    name: str
    value: float
    lowest: float
    highest: float

    def __str__(self) -> str:
        """Return it in words: "grid temperature 2.1 (1.2 to 1.7)"."""
        return f"{self.name} {self.value:.3g} ({self.lowest:.3g} to {self.highest:.3g})"


def case_properties(
    images: Mapping[str, ArrayLike],
    probabilities: ArrayLike,
    *,
    spacing: float | Sequence[float] | None = None,
    mask: ArrayLike | None = None,
    skill: float | None = None,
    temperature: float | None = None,
) -> dict[str, float]:
    """Return what a case looks like, of its images by name and its probabilities (L, *spatial).

    ``skill`` and ``temperature`` are those of ``image_evidence`` and ``grid_temperature``. Of each
    image: the contrast of what is predicted as foreground, in standard deviations inside the mask,
    and its smoothness, the correlation of neighbouring voxels. A property that a case does not have
    is left out.

    Examples
    --------
    >>> from perturb_mpm.learning import case_properties
    >>> inside = np.zeros((10, 10)); inside[3:6, 3:6] = 1
    >>> p = np.stack([0.9 - 0.8 * inside, 0.1 + 0.8 * inside])
    >>> found = case_properties({"t1": inside}, p)
    >>> found["contrast of t1, sd"] > 2
    True
    """
    given = checks.floats(probabilities, "probabilities")
    checks.labels_first(given, "probabilities")
    grid = Grid(given.shape[1:], spacing, mask)
    p = grid.gather(given).astype(np.float64)  # (L, N)
    foreground = p.argmax(axis=0) > 0
    expected = 1 - p[0]
    found = {VOLUME: float(expected.sum()) * math.prod(grid.spacing) / 1000}
    if skill is not None:
        found[SKILL] = skill
    if temperature is not None:
        found[TEMPERATURE] = temperature
    if foreground.any():
        here = np.maximum(p[:, foreground], 1e-12)
        found[ENTROPY] = float(-(here * np.log2(here)).sum(axis=0).mean())
    for name, image in images.items():
        found |= _image_properties(name, np.asarray(image, dtype=np.float64), grid, foreground)
    return {name: value for name, value in found.items() if math.isfinite(value)}


def familiar_ranges(cases: Sequence[Mapping[str, float]]) -> dict[str, tuple[float, float]]:
    """Return between which values 99 % of cases like these lie, for properties that all have.

    Examples
    --------
    >>> from perturb_mpm.learning import familiar_ranges, find_unfamiliar
    >>> learned = familiar_ranges([{"skill": 0.7}, {"skill": 0.75}, {"skill": 0.72}])
    >>> find_unfamiliar({"skill": 0.73}, learned)
    ()
    >>> print(find_unfamiliar({"skill": 0.1}, learned)[0])
    skill 0.1 (0.435 to 1.01)
    """
    from scipy.special import stdtrit

    n = len(cases)
    if n < 2:
        raise ValueError(f"cases must be at least 2, got {n}")
    reach = float(stdtrit(n - 1, (1 + LEVEL) / 2)) * math.sqrt(1 + 1 / n)
    ranges = {}
    for name in cases[0]:
        if not all(name in each for each in cases):
            continue
        values = _to_scale(name, np.array([each[name] for each in cases]))
        half = reach * max(float(values.std(ddof=1)), _LEAST_SPREAD)
        ends = np.array([values.mean() - half, values.mean() + half])
        low, high = np.exp(ends) if name in _LOGARITHMIC else ends
        ranges[name] = (float(f"{low:.4g}"), float(f"{high:.4g}"))
    return ranges


def find_unfamiliar(
    properties: Mapping[str, float], ranges: Mapping[str, tuple[float, float]]
) -> tuple[Unfamiliar, ...]:
    """Return the properties of a case that lie outside of their ranges; others do not count.

    Examples
    --------
    >>> from perturb_mpm.learning import find_unfamiliar
    >>> find_unfamiliar({"skill": 0.7, "foreground, ml": 80.0}, {"skill": (0.4, 1.0)})
    ()
    >>> [each.name for each in find_unfamiliar({"skill": 0.1}, {"skill": (0.4, 1.0)})]
    ['skill']
    """
    return tuple(
        Unfamiliar(name, properties[name], low, high)
        for name, (low, high) in ranges.items()
        if name in properties and not low <= properties[name] <= high
    )


def _to_scale(name: str, values: NDArray[np.float64]) -> NDArray[np.float64]:
    if name not in _LOGARITHMIC:
        return values
    return np.log(np.maximum(values, 1e-9))


def _image_properties(
    name: str, image: NDArray[np.float64], grid: Grid, foreground: NDArray[np.bool_]
) -> dict[str, float]:
    """Return contrast and smoothness of one image; smoothness along the first axis."""
    inside = grid.gather(image)  # (N,)
    spread = float(inside.std())
    if spread == 0:
        return {}
    found = {}
    if foreground.any() and not foreground.all():
        difference = inside[foreground].mean() - inside[~foreground].mean()
        found[f"contrast of {name}, sd"] = float(difference) / spread
    standard = (image - float(inside.mean())) / spread
    where = grid.scatter(np.ones(grid.voxels, dtype=np.bool_), outside=False)
    pairs = where[1:] & where[:-1]
    if pairs.any():
        found[f"smoothness of {name}"] = float((standard[1:] * standard[:-1])[pairs].mean())
    return found
