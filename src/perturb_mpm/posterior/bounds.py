"""How many samples are needed, and how far off what they say can be.

Intervals and sample sizes are about Monte Carlo error: how far the frequencies f̂ of S independent
samples lie from the law f they are drawn from. They say nothing about how far f itself lies from
the CRF's distribution P, and with antithetic samples they are not proven. What holds whenever one
looks (``anytime_interval``, ``Precision``) may decide when to stop; the rest holds at an S fixed
before.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from perturb_mpm import checks

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
    return np.minimum(distance + array.mean(axis=0), 1.0)


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
    return (m - 1) / (2.0 * samples * math.log(2))


def _log_events(delta: float, labels: int, voxels: int) -> float:
    """Return log(2·L·V/δ): two tails for each label of each voxel share δ."""
    delta = checks.number(delta, "delta", positive=True, below=1)
    labels = checks.integer(labels, "labels", minimum=checks.FEWEST_LABELS)
    voxels = checks.integer(voxels, "voxels", minimum=1)
    return math.log(2 * labels * voxels) - math.log(delta)


def _shares(value: ArrayLike, name: str) -> NDArray[np.float64]:
    array: NDArray[np.float64] = checks.numeric(value, name).astype(np.float64)
    checks.finite(array, name)
    checks.between(array, name)
    return array


_HALVINGS = 50  # from a bracket of at most 1 to 1e-15, well inside the promised 1e-10


def anytime_interval(
    k: ArrayLike, n: ArrayLike, delta: float
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the ends of {q : B(k+½, n−k+½) / B(½, ½) < q^k (1−q)^(n−k) / δ}, k seen in n ≥ 1.

    The set is an interval around k/n. With probability at least 1 − δ the true q is in it at every
    n at once; at a single n it is therefore wider than ``clopper_pearson``. It is about one
    frequency: for several at once divide δ by their number. Solved to 1e-10, outwards.

    Examples
    --------
    >>> lower, upper = pm.posterior.anytime_interval(k=10, n=200, delta=0.05)
    >>> float(lower.round(3)), float(upper.round(3))
    (0.014, 0.121)
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

    Examples
    --------
    >>> round(float(pm.posterior.anytime_halfwidth([[150, 198], [50, 2]], 200, delta=0.05)), 3)
    0.113
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

    return betaln(k + 0.5, n - k + 0.5) - math.log(math.pi) + math.log(delta)


def _log_likelihood(
    q: NDArray[np.float64], k: NDArray[Any], n: NDArray[Any] | int
) -> NDArray[np.float64]:
    from scipy.special import xlog1py, xlogy

    return xlogy(k, q) + xlog1py(n - k, -q)


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
    checks.between(votes, "counts", 0, samples)
    occurs = np.zeros(samples + 1, dtype=np.bool_)
    occurs[votes.ravel()] = True
    return np.flatnonzero(occurs).astype(np.int64)


Scope = Literal["voxel", "map"]

_SHARES = 1025  # at how many vote shares the worst one is looked for


SMALLEST_EPSILON = 1e-4  # it takes hundreds of millions of samples, more than a run can hold


@dataclass(frozen=True)
class Precision:
    """Every label's frequency known to ±epsilon with confidence 1 − delta: what ``until`` takes.

    It is reached when, at every voxel of the mask and for every label, the anytime interval lies
    within ±epsilon of the frequency. With ``scope="voxel"`` each label's interval is at level
    delta/L: for any one voxel all of them hold with probability at least 1 − delta, at the moment
    sampling stops too, but on average a share of up to delta of an image's voxels may be further
    off. With ``scope="map"`` the level is delta/(L·V), and all V voxels hold together.

    The frequencies are those of independent samples' votes, and the precision is about their own
    law: it does not say how far that law is from the CRF's distribution.

    Examples
    --------
    >>> enough = pm.Precision(epsilon=0.1, delta=0.05)
    >>> enough.samples_to_reach(labels=4)
    378
    >>> enough.is_reached([[400, 398], [0, 2]], samples=400)
    True
    """

    epsilon: float
    delta: float = 0.05
    scope: Scope = "voxel"

    def __post_init__(self) -> None:
        epsilon = checks.number(self.epsilon, "epsilon of Precision", positive=True, below=1)
        checks.number(epsilon, "epsilon of Precision", minimum=SMALLEST_EPSILON)
        delta = checks.number(self.delta, "delta of Precision", positive=True, below=1)
        checks.choice(self.scope, "scope of Precision", get_args(Scope))
        object.__setattr__(self, "epsilon", epsilon)
        object.__setattr__(self, "delta", delta)

    def level(self, labels: int, voxels: int = 1) -> float:
        """Return the level of each label's interval: delta/L, or delta/(L·V) for a whole map."""
        labels = checks.integer(labels, "labels", minimum=checks.FEWEST_LABELS)
        voxels = checks.integer(voxels, "voxels", minimum=1)
        return self.delta / (labels * (voxels if self.scope == "map" else 1))

    def is_reached(self, counts: ArrayLike, samples: int, mask: ArrayLike | None = None) -> bool:
        """Return whether the votes of ``samples`` samples, (L, …), are as precise as asked for.

        Where a ``mask`` (…) is given only the voxels inside count. Ask as often as you like.
        """
        votes = checks.numeric(counts, "counts")
        if votes.ndim < 2:
            raise ValueError(f"counts must be (labels, voxels…), got shape {votes.shape}")
        if mask is not None:
            inside = np.asarray(mask) != 0
            if inside.shape != votes.shape[1:]:
                raise ValueError(f"mask must have the shape {votes.shape[1:]}, got {inside.shape}")
            if not inside.any():
                raise ValueError("mask must contain at least one voxel, got an empty mask")
            votes = votes[:, inside]
        distinct = distinct_counts(votes, samples)
        level = self.level(len(votes), votes[0].size)
        return all_within(distinct, samples, self.epsilon, level)

    def samples_to_reach(self, labels: int, voxels: int = 1, share: float | None = None) -> int:
        """Return how many samples it takes when the votes are split in the worst way.

        The worst split is close to half and half, and some voxel of most images comes near it.
        Where a ``share`` is given, it is that of the label whose share is nearest to ½; 0 gives
        what unanimous votes take.
        """
        level = self.level(labels, voxels)
        if share is None:
            shares = np.linspace(0.0, 0.5, _SHARES)
        else:
            share = checks.number(share, "share", minimum=0)
            if share > 1:
                raise ValueError(f"share must be at most 1, got {share}")
            shares = np.array([share])

        def enough(n: int) -> bool:
            return all_within(shares * n, n, self.epsilon, level)

        most = 1
        while not enough(most):
            most *= 2
        fewest = most // 2  # not enough, or 0
        while most - fewest > 1:
            middle = (fewest + most) // 2
            if enough(middle):
                most = middle
            else:
                fewest = middle
        return most

    def check_reachable(self, maximum: int, labels: int, voxels: int = 1) -> None:
        """Refuse a precision that ``maximum`` samples may fail to reach, and say how many do.

        A higher maximum costs nothing where fewer samples turn out to be enough.
        """
        maximum = checks.integer(maximum, "maximum", minimum=1)
        worst = self.samples_to_reach(labels, voxels)
        if worst > maximum:
            raise ValueError(
                f"{self} must be reachable within {maximum} samples, got one that takes up to "
                f"{worst} ({self.samples_to_reach(labels, voxels, share=0.0)} where all votes "
                f"agree): allow {worst} samples or widen epsilon"
            )
