"""Uncertainty of a whole structure or image: volume spread, failure detection, agreement.

Samples are compared with each other, and with several raters: whether they spread as these do.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from perturb_mpm import checks
from perturb_mpm.evaluation.masks import dice, overlap_ratios


def volume_variation(volumes: ArrayLike) -> float:
    """Return CV = sd/mean of a structure's sampled volumes (Roy et al. 2019); NaN where it is 0.

    Examples
    --------
    >>> from perturb_mpm.evaluation import volume_variation
    >>> round(volume_variation([9.0, 10.0, 11.0]), 3)
    0.1
    """
    v = checks.floats(volumes, "volumes").astype(np.float64)
    if v.ndim != 1 or len(v) < 2:
        raise ValueError(f"volumes must be a list of at least two, got shape {v.shape}")
    mean = float(v.mean())
    return float(v.std(ddof=1)) / mean if mean > 0 else math.nan


def curvas_crps(expected_volume: float, rater_volumes: ArrayLike) -> float:
    """Return the volume score of the CURVAS challenge, in the unit of the volumes; lower is better.

    The raters' volumes make a normal law (mean and sd, which divides by R); the score is its CRPS
    ∫ (Φ((y − mean)/sd) − [y ≥ V])² dy at V, the sum of the probabilities. The challenge's script
    cuts the integral at three sd, so that it hardly tells a miss of five from one of ten; here it
    is whole. Raters of one volume leave |V − mean|.

    Examples
    --------
    >>> from perturb_mpm.evaluation import curvas_crps
    >>> curvas_crps(12.0, [10.0, 10.0])
    2.0
    >>> round(curvas_crps(10.0, [9.0, 11.0]), 4)
    0.2337
    """
    from scipy.special import ndtr

    v = checks.floats(rater_volumes, "rater_volumes").astype(np.float64)
    if v.ndim != 1 or len(v) < 1:
        raise ValueError(f"rater_volumes must be a list of at least one, got shape {v.shape}")
    apart, sd = float(expected_volume) - float(v.mean()), float(v.std())
    if sd == 0:
        return abs(apart)
    z = apart / sd
    density = math.exp(-z * z / 2) / math.sqrt(2 * math.pi)
    return sd * float(z * (2 * ndtr(z) - 1) + 2 * density - 1 / math.sqrt(math.pi))


def pairwise_dice(votes: ArrayLike, samples: int) -> float:
    """Return the pairwise Dice of S samples of a structure, from its votes k alone.

    Σ k(k − 1)/((S − 1)·Σ k): twice the intersections of all pairs over their sizes, sums before
    ratios. Unlike the IoU of all samples it does not shrink with S. 1 where no sample has it.

    Examples
    --------
    >>> from perturb_mpm.evaluation import pairwise_dice
    >>> pairwise_dice([4, 4, 0], samples=4)
    1.0
    >>> round(pairwise_dice([4, 2, 0], samples=4), 3)
    0.778
    """
    samples = checks.integer(samples, "samples", minimum=2)
    k = np.asarray(votes).astype(np.float64)
    total = float(k.sum())
    return float((k * (k - 1)).sum()) / ((samples - 1) * total) if total else 1.0


@dataclass(frozen=True)
class RiskCoverage:
    """The mean risk of the k most confident cases, for k = 1 … n."""

    coverage: NDArray[np.float64]  # (n,) k/n
    risk: NDArray[np.float64]  # (n,)
    best: float
    """The AURC that the true order of risks would reach."""

    @property
    def aurc(self) -> float:
        """The mean of the curve: lower is better."""
        return float(self.risk.mean())

    @property
    def excess(self) -> float:
        """e-AURC: how far it is from the best order."""
        return self.aurc - self.best


def risk_coverage(confidence: ArrayLike, risk: ArrayLike) -> RiskCoverage:
    """Return the risk–coverage curve; ``risk`` is 1 − Dice, say (Zenk et al. 2025).

    Cases of equal confidence count with their mean risk: the mean over all orders of them.

    Examples
    --------
    >>> from perturb_mpm.evaluation import risk_coverage
    >>> curve = risk_coverage(confidence=[0.9, 0.5, 0.1], risk=[0.1, 0.2, 0.6])
    >>> round(curve.aurc, 3), round(curve.excess, 3)  # the surest is the best: no excess
    (0.183, 0.0)
    """
    kappa = checks.floats(confidence, "confidence").astype(np.float64)
    loss = checks.floats(risk, "risk").astype(np.float64)
    if kappa.ndim != 1 or kappa.shape != loss.shape or len(loss) == 0:
        raise ValueError(
            "confidence and risk must be lists of the same length, at least 1, "
            f"got shapes {kappa.shape} and {loss.shape}"
        )
    number = np.arange(1, len(loss) + 1)
    _, group = np.unique(-kappa, return_inverse=True)
    shared = (np.bincount(group, weights=loss) / np.bincount(group))[group]
    ordered = shared[np.argsort(-kappa, kind="stable")]
    curve = np.cumsum(ordered) / number
    best = np.cumsum(np.sort(loss)) / number
    return RiskCoverage(number / len(loss), curve, float(best.mean()))


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


def generalized_energy_distance(samples: ArrayLike, raters: ArrayLike) -> float:
    """Return GED² = 2·E d(S, Y) − E d(S, S′) − E d(Y, Y′), d = 1 − IoU; lower is better.

    Means are over all ordered pairs, each with itself included (Kohl et al. 2018). With one rater
    the last term is 0.

    Examples
    --------
    >>> from perturb_mpm.evaluation import generalized_energy_distance
    >>> drawn = np.array([[1, 1, 0], [1, 0, 0]], bool)
    >>> generalized_energy_distance(drawn, drawn)  # the same spread
    0.0
    """
    across = 1 - pairwise_overlap(samples, raters)
    within = 1 - pairwise_overlap(samples, samples)
    between = 1 - pairwise_overlap(raters, raters)
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
    return pairwise_overlap(samples, raters, "dice").max(axis=0)


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
