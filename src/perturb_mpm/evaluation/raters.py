"""Samples against several raters: whether they spread as the raters do."""

from __future__ import annotations

import math
from typing import Literal, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from perturb_mpm import checks
from perturb_mpm.evaluation.masks import dice, overlap_ratios

Overlap = Literal["iou", "dice"]
LEVELS = tuple(round(0.1 * level, 1) for level in range(1, 10))


def pairwise_overlap(
    first: ArrayLike, second: ArrayLike, overlap: Overlap = "iou"
) -> NDArray[np.float64]:
    """Return the overlap of every mask of one set with every mask of another.

    ``first`` (S, *spatial) and ``second`` (R, *spatial) are booleans; the result is (S, R). Two
    empty masks overlap with 1.

    Examples
    --------
    >>> from perturb_mpm.evaluation import pairwise_overlap
    >>> pairwise_overlap(np.array([[1, 1, 0]], bool), np.array([[1, 1, 0], [1, 0, 0]], bool))
    array([[1. , 0.5]])
    """
    checks.choice(overlap, "overlap", get_args(Overlap))
    a, b = _masks(first, "first"), _masks(second, "second")
    if a.shape[1] != b.shape[1]:
        raise ValueError(
            "first and second must be masks on one grid, "
            f"got {np.shape(first)[1:]} and {np.shape(second)[1:]}"
        )
    needed = a.any(axis=0) | b.any(axis=0)  # only voxels of the union matter
    a, b = a[:, needed].astype(np.float32), b[:, needed].astype(np.float32)
    both = np.rint((a @ b.T).astype(np.float64))
    sizes = a.sum(axis=1, dtype=np.float64)[:, np.newaxis] + b.sum(axis=1, dtype=np.float64)
    if overlap == "iou":
        return overlap_ratios(both, sizes - both)
    return overlap_ratios(2 * both, sizes)


def generalized_energy_distance(
    samples: ArrayLike, raters: ArrayLike, overlap: Overlap = "iou"
) -> float:
    """Return GED² = 2·E d(S, Y) − E d(S, S′) − E d(Y, Y′), d = 1 − overlap; lower is better.

    Means are over all ordered pairs, each with itself included (Kohl et al. 2018). With one rater
    the last term is 0.

    Examples
    --------
    >>> from perturb_mpm.evaluation import generalized_energy_distance
    >>> drawn = np.array([[1, 1, 0], [1, 0, 0]], bool)
    >>> generalized_energy_distance(drawn, drawn)  # the same spread
    0.0
    """
    across = 1 - pairwise_overlap(samples, raters, overlap)
    within = 1 - pairwise_overlap(samples, samples, overlap)
    between = 1 - pairwise_overlap(raters, raters, overlap)
    return float(2 * across.mean() - within.mean() - between.mean())


def matched_iou(samples: ArrayLike, raters: ArrayLike) -> float:
    """Return the mean IoU of samples and raters matched one to one, higher is better.

    Both sets are repeated to their least common multiple and matched by the Hungarian method.

    Examples
    --------
    >>> from perturb_mpm.evaluation import matched_iou
    >>> samples = np.array([[1, 1, 0], [1, 0, 0]], bool)
    >>> raters = samples[::-1]
    >>> matched_iou(samples, raters)
    1.0
    """
    from scipy.optimize import linear_sum_assignment

    table = pairwise_overlap(samples, raters)
    size = math.lcm(*table.shape)
    repeated = np.tile(table, (size // table.shape[0], size // table.shape[1]))
    rows, columns = linear_sum_assignment(-repeated)
    return float(repeated[rows, columns].mean())


def best_dice(samples: ArrayLike, raters: ArrayLike) -> NDArray[np.float64]:
    """Return, for each rater, the Dice of the sample that comes closest, (R,).

    Examples
    --------
    >>> from perturb_mpm.evaluation import best_dice
    >>> samples = np.array([[1, 1, 0], [1, 0, 0]], bool)
    >>> raters = np.array([[1, 0, 0], [1, 1, 1]], bool)
    >>> best_dice(samples, raters)
    array([1. , 0.8])
    """
    best: NDArray[np.float64] = pairwise_overlap(samples, raters, "dice").max(axis=0)
    return best


def rater_correlation(uncertainty: ArrayLike, raters: ArrayLike) -> float:
    """Return the correlation of an uncertainty map with the raters' standard deviation.

    The normalised cross-correlation of ValUES (Kahl et al. 2024) as a plain Pearson correlation
    over voxels; NaN where either is constant, as with one rater.

    Examples
    --------
    >>> from perturb_mpm.evaluation import rater_correlation
    >>> raters = np.array([[1, 1, 0, 0], [1, 0, 0, 0]], bool)
    >>> round(rater_correlation([0.0, 1.0, 0.0, 0.0], raters), 3)
    1.0
    """
    votes = _masks(raters, "raters")
    u = np.asarray(uncertainty, dtype=np.float64).ravel()
    if u.shape != votes.shape[1:]:
        raise ValueError(
            "uncertainty must have the raters' grid, "
            f"got {np.shape(uncertainty)} and {np.shape(raters)[1:]}"
        )
    if len(votes) < 2 or u.size < 2:
        return math.nan
    spread = votes.std(axis=0, ddof=1)
    if np.ptp(u) == 0 or np.ptp(spread) == 0:
        return math.nan
    return float(np.corrcoef(u, spread)[0, 1])


def level_dice(share: ArrayLike, raters: ArrayLike) -> float:
    """Return the mean Dice of the samples' and the raters' mean maps cut at 0.1 … 0.9 (QUBIQ).

    Examples
    --------
    >>> from perturb_mpm.evaluation import level_dice
    >>> raters = np.array([[1, 1, 0, 0], [1, 0, 0, 0]], bool)
    >>> level_dice([1.0, 0.5, 0.0, 0.0], raters)
    1.0
    """
    votes = _masks(raters, "raters").mean(axis=0)
    p = np.asarray(share, dtype=np.float64).ravel()
    if p.shape != votes.shape:
        raise ValueError(
            f"share must have the raters' grid, got {np.shape(share)} and {np.shape(raters)[1:]}"
        )
    cuts = [level - 1e-9 for level in LEVELS]
    return float(np.mean([dice(p >= cut, votes >= cut) for cut in cuts]))


def _masks(value: ArrayLike, name: str) -> NDArray[np.bool_]:
    """Return masks as (K, voxels)."""
    masks = np.asarray(value)
    if masks.dtype != np.bool_ or masks.ndim < 2 or len(masks) == 0:
        raise ValueError(
            f"{name} must be booleans (how many, *spatial), got {masks.dtype} {masks.shape}"
        )
    return masks.reshape(len(masks), -1)
