"""How far labellings and marginals are apart: the paper's error measures."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from perturb_mpm import checks


def hamming_loss(a: ArrayLike, b: ArrayLike, mask: ArrayLike | None = None) -> float:
    """Return the share of voxels whose labels differ: (1/V) Σ_i [a_i ≠ b_i], inside the mask.

    Examples
    --------
    >>> from lab import comparators
    >>> comparators.hamming_loss([0, 1, 1, 2], [0, 1, 2, 2])
    0.25
    """
    one, other = _alike(a, b, "a", "b")
    return float(_inside(one != other, mask).mean())


def total_variation(p: ArrayLike, q: ArrayLike, mask: ArrayLike | None = None) -> float:
    """Return (1/V) Σ_i ½ Σ_l |p_i(l) − q_i(l)|, p and q (L, *spatial), inside the mask.

    The paper writes it ‖P − Q‖₁: half the l1 norm of the difference, averaged over the voxels. It
    compares marginals, voxel by voxel; joint laws of equal marginals are at distance 0.

    Examples
    --------
    >>> from lab import comparators
    >>> p, q = [[0.9, 0.5], [0.1, 0.5]], [[0.7, 0.5], [0.3, 0.5]]
    >>> round(comparators.total_variation(p, q), 3)
    0.1
    """
    return float(_inside(total_variation_map(p, q), mask).mean())


def total_variation_map(p: ArrayLike, q: ArrayLike) -> NDArray[np.float64]:
    """Return ½ Σ_l |p_i(l) − q_i(l)| of each voxel, (*spatial).

    Examples
    --------
    >>> from lab import comparators
    >>> p, q = [[0.9, 0.5], [0.1, 0.5]], [[0.7, 0.5], [0.3, 0.5]]
    >>> comparators.total_variation_map(p, q).round(3)
    array([0.2, 0. ])
    """
    one, other = _marginals(p, q)
    total = np.zeros(one.shape[1:])
    for mine, theirs in zip(one, other):  # each (*spatial); one label at a time to save memory
        total += np.abs(mine.astype(np.float64) - theirs)
    return total / 2.0


def log_probability_error(p: ArrayLike, q: ArrayLike, mask: ArrayLike | None = None) -> float:
    """Return the mean over voxels and labels of |log p_i(l) − log q_i(l)|, in nats.

    It is what the caption of the paper's synthetic experiment names, where its text names the l1
    norm. It needs p, q > 0: pass frequencies through ``smoothed_frequencies``.

    Examples
    --------
    >>> from lab import comparators
    >>> p, q = [[0.5], [0.5]], [[0.25], [0.75]]
    >>> round(comparators.log_probability_error(p, q), 3)
    0.549
    """
    one, other = _marginals(p, q)
    errors = []
    for mine, theirs in zip(one, other):  # each (*spatial)
        inside = [_inside(array, mask).astype(np.float64) for array in (mine, theirs)]
        for values, name in zip(inside, "pq"):
            if values.min() <= 0:
                raise ValueError(
                    f"{name} must be positive, got {values.min()}: "
                    "smoothed_frequencies(counts) is positive for labels without a vote too"
                )
        errors.append(np.abs(np.log(inside[0]) - np.log(inside[1])).mean())
    return float(np.mean(errors))


def smoothed_frequencies(counts: ArrayLike) -> NDArray[np.float64]:
    """Return (k + ½) / (S + L/2) for counts k (L, *spatial) that sum to S: never 0 or 1.

    Examples
    --------
    >>> from lab import comparators
    >>> comparators.smoothed_frequencies([[10, 5], [0, 5]]).round(3)
    array([[0.955, 0.5  ],
           [0.045, 0.5  ]])
    """
    votes = checks.whole(counts, "counts")
    if votes.ndim < 2 or votes.min() < 0:
        raise ValueError(
            f"counts must be (labels, *spatial) and at least 0, got shape {votes.shape} "
            f"and values from {votes.min()}"
        )
    frequencies: NDArray[np.float64] = (votes + 0.5) / (votes.sum(axis=0) + len(votes) / 2.0)
    return frequencies


def _alike(a: ArrayLike, b: ArrayLike, one: str, other: str) -> tuple[NDArray[Any], NDArray[Any]]:
    first, second = checks.numeric(a, one), checks.numeric(b, other)
    if first.shape != second.shape or first.size == 0:
        raise ValueError(
            f"{one} and {other} must have the same shape and at least one voxel, "
            f"got {first.shape} and {second.shape}"
        )
    return first, second


def _marginals(p: ArrayLike, q: ArrayLike) -> tuple[NDArray[Any], NDArray[Any]]:
    one, other = _alike(p, q, "p", "q")
    if one.ndim < 2:
        raise ValueError(f"p and q must be (labels, *spatial), got shape {one.shape}")
    for array, name in ((one, "p"), (other, "q")):
        checks.finite(array, name)
    return one, other


def _inside(values: NDArray[Any], mask: ArrayLike | None) -> NDArray[Any]:
    """Return the (N,) values where the mask is not zero, all of them where there is none."""
    if mask is None:
        return values.ravel()
    chosen = np.asarray(mask) != 0
    if chosen.shape != values.shape:
        raise ValueError(f"mask must have the shape {values.shape}, got {chosen.shape}")
    if not chosen.any():
        raise ValueError("mask must contain at least one voxel, got an empty mask")
    inside: NDArray[Any] = values[chosen]
    return inside
