"""Intervals that hold at every number of samples at once.

After k successes in n independent trials of unknown probability q, the beta(½, ½)-binomial mixture
M = B(k+½, n−k+½) / B(½, ½) over the likelihood q^k (1−q)^(n−k) is a martingale of mean 1 under the
true q. By Ville's inequality it ever reaches 1/δ with probability at most δ, so that

    {q : M < q^k (1−q)^(n−k) / δ}

contains the true q for all n = 1, 2, … together with probability at least 1 − δ, however often one
looks and whatever one then does.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from perturb_mpm import checks

_HALVINGS = 50  # from a bracket of at most 1 to 1e-15, well inside the promised 1e-10


def anytime_interval(
    k: ArrayLike, n: ArrayLike, delta: float
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the ends of {q : B(k+½, n−k+½) / B(½, ½) < q^k (1−q)^(n−k) / δ}, k seen in n ≥ 1.

    The set is an interval around k/n. With probability at least 1 − δ the true q is in it at every
    n at once; at a single n it is therefore wider than ``clopper_pearson``. It is about one
    frequency: for several at once divide δ by their number. Solved to 1e-10, outwards.
    """
    seen, of = successes(k, n)
    delta = checks.number(delta, "delta", positive=True, below=1)
    floor = _log_floor(seen, of, delta)
    share = seen / of
    lower = _solve(np.zeros_like(share), share, seen, of, floor)
    upper = _solve(np.ones_like(share), share, seen, of, floor)
    return np.where(seen == 0, 0.0, lower), np.where(seen == of, 1.0, upper)


def anytime_halfwidth(counts: ArrayLike, samples: int, delta: float) -> float:
    """Return the furthest that any frequency of a map may be from its expectation.

    It is the largest distance from k/S to an end of its ``anytime_interval`` over all ``counts`` k,
    (L, …). Equal counts have equal intervals, so that a map costs no more than its distinct counts.
    """
    distinct = distinct_counts(counts, samples)
    lower, upper = anytime_interval(distinct, samples, delta)
    share = distinct / samples
    return float(np.maximum(share - lower, upper - share).max())


def successes(k: ArrayLike, n: ArrayLike) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return k and n as int64 of one shape after checking that 0 ≤ k ≤ n and n ≥ 1."""
    seen, of = checks.whole(k, "k"), checks.whole(n, "n")
    try:
        seen, of = np.broadcast_arrays(seen, of)
    except ValueError:
        raise ValueError(f"k and n must fit together, got {seen.shape} and {of.shape}") from None
    if of.size and of.min() < 1:
        raise ValueError(f"n must be at least 1, got {of.min()}")
    if seen.size and (seen.min() < 0 or (seen > of).any()):
        raise ValueError(
            f"k must lie between 0 and n, got values from {seen.min()} to {seen.max()}"
        )
    return seen, of


def _log_floor(k: NDArray[Any], n: NDArray[Any] | int, delta: float) -> NDArray[np.float64]:
    """Return log(M·δ): q is in the set where its log likelihood is above this."""
    from scipy.special import betaln

    floor: NDArray[np.float64] = betaln(k + 0.5, n - k + 0.5) - math.log(math.pi) + math.log(delta)
    return floor


def _log_likelihood(
    q: NDArray[np.float64], k: NDArray[Any], n: NDArray[Any] | int
) -> NDArray[np.float64]:
    from scipy.special import xlog1py, xlogy

    likelihood: NDArray[np.float64] = xlogy(k, q) + xlog1py(n - k, -q)
    return likelihood


def _solve(
    outside: NDArray[np.float64],
    inside: NDArray[np.float64],
    k: NDArray[Any],
    n: NDArray[Any],
    floor: NDArray[np.float64],
) -> NDArray[np.float64]:
    """Bisect between a point outside the set and one inside, and return the outer end."""
    for _ in range(_HALVINGS):
        middle = (outside + inside) / 2.0
        belongs = _log_likelihood(middle, k, n) > floor
        inside = np.where(belongs, middle, inside)
        outside = np.where(belongs, outside, middle)
    return outside


def all_within(k: NDArray[Any], n: int, epsilon: float, delta: float) -> bool:
    """Return whether all intervals lie within k/n ± ε, without solving for their ends.

    The likelihood falls on both sides of k/n: it is enough to ask at k/n ± ε.
    """
    floor = _log_floor(k, n, delta)
    share = k / n
    above, below = share + epsilon, share - epsilon
    narrow_above = (above >= 1) | (_log_likelihood(np.minimum(above, 1.0), k, n) <= floor)
    narrow_below = (below <= 0) | (_log_likelihood(np.maximum(below, 0.0), k, n) <= floor)
    return bool(np.all(narrow_above & narrow_below))


def distinct_counts(counts: ArrayLike, samples: int) -> NDArray[np.int64]:
    """Return the counts k, 0 ≤ k ≤ S, that occur in a map, in order.

    They are ticked off one by one: a map has millions of counts, and few that differ.
    """
    samples = checks.integer(samples, "samples", minimum=1)
    votes = checks.numeric(counts, "counts")
    if votes.dtype.kind not in "iu":
        raise TypeError(f"counts must be integers, got dtype {votes.dtype}")
    if votes.size == 0:
        raise ValueError(f"counts must have at least one voxel, got shape {votes.shape}")
    if votes.min() < 0 or votes.max() > samples:
        raise ValueError(
            f"counts must lie between 0 and the {samples} samples, "
            f"got values from {votes.min()} to {votes.max()}"
        )
    occurs = np.zeros(samples + 1, dtype=np.bool_)
    occurs[votes.ravel()] = True
    return np.flatnonzero(occurs).astype(np.int64)
