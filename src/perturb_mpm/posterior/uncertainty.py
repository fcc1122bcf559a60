"""Entropy in bits, and which voxels are certain, from votes or marginals inside the mask."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perturb_mpm.posterior.bounds import clopper_pearson

CERTAIN, UNDECIDED, UNCERTAIN = 0, 1, 2


def marginal_entropy(p: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return −Σ_l p(l)·log2 p(l) of each voxel: (L, N) → (N,).

    Examples
    --------
    >>> pm.posterior.marginal_entropy(np.array([[1.0, 0.5], [0.0, 0.5]]))  # bits
    array([0., 1.])
    """
    bits = np.zeros(p.shape[1])
    for row in p:  # (N,)
        bits += _minus_p_log_p(row)
    return np.maximum(bits, 0.0)


def entropy_of_votes(counts: NDArray[Any], samples: int) -> NDArray[np.float64]:
    """Return the entropy of the frequencies counts / S of each voxel: (L, N) → (N,)."""
    # A vote is one of S + 1 numbers: a table of their terms spares every voxel its logarithms.
    terms = _minus_p_log_p(np.arange(samples + 1) / samples)  # (S + 1,)
    bits = np.zeros(counts.shape[1])
    for votes in counts:  # (N,)
        bits += terms[votes]
    return np.maximum(bits, 0.0)


def certainty_of_votes(
    dissent: NDArray[np.int64], samples: int, threshold: float, confidence: float
) -> NDArray[np.uint8]:
    """Compare the Clopper–Pearson interval of dissent / S with the threshold, (N,) → (N,)."""
    lower, upper = clopper_pearson(np.arange(samples + 1), samples, confidence)
    return _classes(upper <= threshold, lower > threshold)[dissent]


def certainty_of_means(
    share: NDArray[np.float64], samples: int, threshold: float, confidence: float
) -> NDArray[np.uint8]:
    """Compare the Chernoff interval of a mean of S numbers in [0, 1] with the threshold.

    The interval is {q : S·kl(share, q) < log(2/α)}: it holds for any law on [0, 1], votes or not.
    """
    from scipy.special import rel_entr

    divergence = rel_entr(share, threshold) + rel_entr(1.0 - share, 1.0 - threshold)
    told = samples * divergence >= math.log(2.0 / (1.0 - confidence))
    return _classes(told & (share < threshold), told & (share > threshold))


def _classes(below: NDArray[np.bool_], above: NDArray[np.bool_]) -> NDArray[np.uint8]:
    classes = np.full(below.shape, UNDECIDED, dtype=np.uint8)
    classes[below] = CERTAIN
    classes[above] = UNCERTAIN
    return classes


def _minus_p_log_p(p: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return −p·log2 p, 0 at p = 0."""
    return -p * np.log2(p, out=np.zeros_like(p), where=p > 0)
