"""How many samples are needed, and how far off what they say can be.

Intervals and sample sizes are about Monte Carlo error: how far the frequencies f̂ of S independent
samples lie from the law f they are drawn from. They say nothing about how far f itself lies from
the CRF's distribution P, and with antithetic samples they are not proven. What holds whenever one
looks, and so may decide when to stop, is in ``precision``; the rest holds at an S fixed before.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray

from perturb_mpm import checks
from perturb_mpm.posterior.precision import successes

_SMALLEST_EPSILON = 1e-100  # whose square is still a number


def samples_needed(epsilon: float, delta: float, labels: int, voxels: int = 1) -> int:
    """Return the smallest S with S ≥ log(2·L·V/δ) / (2ε²), by Hoeffding's inequality.

    With that many independent samples, and with probability at least 1 − δ, no frequency of any of
    the L labels is further than ε from its expectation: at one given voxel (``voxels=1``, the
    paper's bound), or at all V voxels at once. S must be fixed beforehand; ``Precision`` is for
    stopping as soon as it is enough. It bounds |f̂ − f|, not the distance of f to P.

    Examples
    --------
    >>> pm.samples_needed(epsilon=0.1, delta=0.05, labels=4)
    254
    >>> pm.samples_needed(epsilon=0.1, delta=0.05, labels=4, voxels=1_000_000)
    945
    """
    epsilon = checks.number(epsilon, "epsilon", positive=True, below=1)
    checks.number(epsilon, "epsilon", minimum=_SMALLEST_EPSILON)
    return math.ceil(_log_events(delta, labels, voxels) / (2.0 * epsilon**2))


def hoeffding(samples: int, delta: float, labels: int, voxels: int = 1) -> float:
    """Return ε = √(log(2·L·V/δ) / (2S)), what S samples guarantee as ``samples_needed`` says.

    It holds for every f and so is wide: for one frequency ``clopper_pearson`` is narrower.

    Examples
    --------
    >>> round(pm.posterior.hoeffding(samples=200, delta=0.05, labels=4), 3)
    0.113
    """
    samples = checks.integer(samples, "samples", minimum=1)
    return math.sqrt(_log_events(delta, labels, voxels) / (2.0 * samples))


def clopper_pearson(
    k: ArrayLike, n: ArrayLike, confidence: float = 0.95
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the lower and upper ends of the exact interval of a share that was seen k times in n.

    With α = 1 − confidence they solve P(Bin(n, lower) ≥ k) = α/2 and P(Bin(n, upper) ≤ k) = α/2,
    and are 0 at k = 0 and 1 at k = n. The interval covers the share with at least the confidence
    for every share, at an n fixed beforehand and for one label of one voxel. Looked at again and
    again while n grows, it fails far more often: use ``anytime_interval`` then.

    Examples
    --------
    >>> lower, upper = pm.posterior.clopper_pearson(k=[0, 10], n=200)
    >>> lower.round(3), upper.round(3)
    (array([0.   , 0.024]), array([0.018, 0.09 ]))
    """
    from scipy.special import betainccinv, betaincinv

    seen, of = successes(k, n)
    confidence = checks.number(confidence, "confidence", positive=True, below=1)
    tail = (1.0 - confidence) / 2.0
    none, all_ = seen == 0, seen == of
    # Where an end is known the beta law is degenerate: a 1 in its place keeps SciPy content.
    lower = betaincinv(np.where(none, 1, seen), of - seen + 1, tail)
    upper = betainccinv(seen + 1, np.where(all_, 1, of - seen), tail)
    return np.where(none, 0.0, lower), np.where(all_, 1.0, upper)


def total_variation_bound(losses: ArrayLike, distance: float = 0.0) -> NDArray[np.float64]:
    """Return ``distance`` + the mean over the first axis of ``losses``, at most 1.

    ``losses`` compares S pairs of labellings made from the same noise: their Hamming losses (S,),
    or whether they differ at each voxel (S, *spatial), which gives a bound for each voxel. For
    Perturb-and-MAP beside Perturb-and-MPM it is

        TV(P, f_MPM) ≤ TV(P, f_MAP) + E[Hamming],

    ``distance`` being TV(P, f_MAP). That is 0 only under full perturbation, one Gumbel for each
    joint labelling, as the paper's Proposition 2 assumes; with noise on the unaries alone it is
    not, and with the default of 0 only the frequencies of the two samplers are compared. The
    mean over S pairs bounds the distance of the S samples' frequencies themselves, exactly.

    Examples
    --------
    >>> losses = [0.02, 0.04, 0.03]  # Hamming losses of three pairs of labellings
    >>> round(float(pm.posterior.total_variation_bound(losses)), 3)
    0.03
    """
    array = _shares(losses, "losses")
    if array.ndim == 0 or len(array) == 0:
        raise ValueError(f"losses must have at least one sample, got shape {array.shape}")
    distance = checks.number(distance, "distance", minimum=0)
    bound: NDArray[np.float64] = np.minimum(distance + array.mean(axis=0), 1.0)
    return bound


def entropy_bound(epsilon: ArrayLike, labels: int) -> NDArray[np.float64]:
    """Return B(ε), the most by which two entropies can differ at total variation ε, in bits.

        B(ε) = ε·log2(L − 1) + h(ε)   for ε ≤ 1 − 1/L,   log2 L   above

    with h(ε) = −ε·log2 ε − (1 − ε)·log2(1 − ε). It is attained, by a point mass against a law that
    takes ε away from it evenly. The paper goes on to ε = 1 with the first form and finds a worst
    case of log2(L − 1): that is false, since uniform against a point mass differ by log2 L.

    ε is a total variation, ½ Σ|p − q|; frequencies that are each off by at most e give one of at
    most ⌊L/2⌋·e.

    Examples
    --------
    >>> pm.posterior.entropy_bound([0.0, 0.1, 1.0], labels=4).round(3)  # bits
    array([0.   , 0.627, 2.   ])
    """
    from scipy.special import entr

    array = _shares(epsilon, "epsilon")
    labels = checks.integer(labels, "labels", minimum=checks.FEWEST_LABELS)
    # The first form is largest, with log2 L, exactly where the second takes over.
    reach = np.minimum(array, 1.0 - 1.0 / labels)
    bits: NDArray[np.float64] = (entr(reach) + entr(1.0 - reach)) / math.log(2)
    return bits + reach * math.log2(labels - 1)


def plug_in_bias(support: ArrayLike, samples: int) -> NDArray[np.float64]:
    """Return by how much the entropy of frequencies is too low on average: (m − 1) / (2S ln 2).

    In bits; m is the number of labels that can occur, and for want of that the number seen
    (Miller–Madow). It is the first order in 1/S of a mean: add it to means over voxels, not to
    single voxels, and do not expect it to mend labels that S samples never show.

    Examples
    --------
    >>> pm.posterior.plug_in_bias(support=[1, 2, 4], samples=100).round(4)  # bits
    array([0.    , 0.0072, 0.0216])
    """
    m = checks.whole(support, "support")
    if m.size and m.min() < 1:
        raise ValueError(f"support must be at least 1, got {m.min()}")
    samples = checks.integer(samples, "samples", minimum=1)
    bias: NDArray[np.float64] = (m - 1) / (2.0 * samples * math.log(2))
    return bias


def _log_events(delta: float, labels: int, voxels: int) -> float:
    """Return log(2·L·V/δ): two tails for each label of each voxel share δ."""
    delta = checks.number(delta, "delta", positive=True, below=1)
    labels = checks.integer(labels, "labels", minimum=checks.FEWEST_LABELS)
    voxels = checks.integer(voxels, "voxels", minimum=1)
    return math.log(2 * labels * voxels) - math.log(delta)


def _shares(value: ArrayLike, name: str) -> NDArray[np.float64]:
    array: NDArray[np.float64] = checks.numeric(value, name).astype(np.float64)
    checks.finite(array, name)
    if array.size and (array.min() < 0 or array.max() > 1):
        raise ValueError(
            f"{name} must lie between 0 and 1, got values from {array.min()} to {array.max()}"
        )
    return array
