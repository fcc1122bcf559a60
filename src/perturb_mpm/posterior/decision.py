"""What votes or marginals say at each voxel: its label, its entropy, whether it is certain.

The label is the most probable one, or is decided region by region.
The most probable label decides unions too rarely: background .4 and three tumour labels of .2 each
is background by its largest marginal, and yet tumour with probability .6. With regions (sets of
labels, nested or apart) a voxel belongs to a region where that has more than half of the
probability, outermost regions first, and has the most probable of the labels left to it there. That
is right for most voxels, and not always for a region's Dice: ``choose_regions`` asks which of the
two label maps the probabilities expect more of.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perturb_mpm.posterior.bounds import clopper_pearson

Regions = Mapping[str, tuple[int, ...]]
"""Named sets of labels 0 … L − 1."""

CERTAIN, UNDECIDED, UNCERTAIN = 0, 1, 2

_AT_ONCE = 1 << 14  # voxels


def check_nested(regions: Regions) -> None:
    """Refuse regions that do not decide labels: two that overlap, or that are the same."""
    sets = [(name, frozenset(members)) for name, members in regions.items()]
    for rank, (name, members) in enumerate(sets):
        for other, others in sets[:rank]:
            if members == others:
                raise ValueError(
                    f"`regions` must be different sets of labels, got {other} and {name} with the "
                    "same"
                )
            if members & others and not (members < others or others < members):
                raise ValueError(
                    f"`regions` must be nested or apart to decide labels, got {other} and {name}, "
                    "which share labels and lie neither inside the other: leave one out"
                )


def decide_labels(scores: NDArray[Any], regions: Regions | None = None) -> NDArray[np.uint8]:
    """Return the labels (N,) of scores (L, N), which are the marginals times any number.

    Of equals it is the lowest label, and a region with exactly half of the probability is not
    taken. Without regions it is the most probable label, and N may be several axes.

    Examples
    --------
    >>> p = np.array([[0.4], [0.2], [0.2], [0.2]])  # background and three labels of a tumour
    >>> pm.posterior.decide_labels(p)
    array([0], dtype=uint8)
    >>> pm.posterior.decide_labels(p, {"tumour": (1, 2, 3)})
    array([1], dtype=uint8)
    """
    if not regions:
        return _most_probable(scores)
    check_nested(regions)
    return _decide_among(scores, range(len(scores)), [frozenset(each) for each in regions.values()])


def choose_regions(marginals: NDArray[np.floating], regions: Regions) -> Regions:
    """Return the regions to decide labels by: these, or none where that expects more Dice.

    With marginals p (L, N) the Dice of a region R with its mask S is expected to be about
    2 Σ_S p(R) / (|S| + Σ p(R)). The label map decided by the regions and that of the most probable
    labels are compared by its mean over regions; of equals it is by regions.

    Examples
    --------
    >>> from perturb_mpm.posterior import choose_regions
    >>> p = np.array([[0.4], [0.2], [0.2], [0.2]])
    >>> choose_regions(p, {"tumour": (1, 2, 3)})
    {'tumour': (1, 2, 3)}
    """
    if not regions:
        return regions

    def mean_dice(labels: NDArray[np.uint8]) -> float:
        found = []
        for members in regions.values():
            share = marginals[list(members)].sum(axis=0, dtype=np.float64)  # (N,)
            inside = np.isin(labels, members)
            size = inside.sum() + share.sum()
            found.append(2 * share[inside].sum() / size if size > 0 else 1.0)
        return float(np.mean(found))

    by_regions, by_labels = (mean_dice(decide_labels(marginals, how)) for how in (regions, None))
    return regions if by_regions >= by_labels else {}


def _most_probable(scores: NDArray[Any]) -> NDArray[np.uint8]:
    """Return the label of the highest score, (L, ...) → (...), the lowest of equals.

    NumPy's argmax turns the whole array first, which takes several times as long.
    """
    best = np.zeros(scores.shape[1:], dtype=np.uint8)
    step = max(1, _AT_ONCE // math.prod(scores.shape[2:]))
    for first in range(0, len(best), step):  # pieces stay in the cache
        part = slice(first, first + step)
        highest = scores[0, part].copy()
        for label, each in enumerate(scores[1:, part], start=1):
            above = each > highest
            np.copyto(best[part], np.uint8(label), where=above)
            np.copyto(highest, each, where=above)
    return best


def _decide_among(
    scores: NDArray[Any], labels: Collection[int], inside: list[frozenset[int]]
) -> NDArray[np.uint8]:
    """Return labels out of ``labels``, of which all regions ``inside`` are subsets."""
    outermost = [region for region in inside if not any(region < other for other in inside)]
    left = sorted(set(labels).difference(*outermost)) or sorted(labels)
    result = np.array(left, dtype=np.uint8)[_most_probable(scores[left])]  # (N,)
    half = scores.sum(axis=0, dtype=np.float64) / 2
    for region in outermost:
        members = sorted(region)
        here = scores[members].sum(axis=0, dtype=np.float64) > half
        deeper = [other for other in inside if other < region]
        result[here] = _decide_among(scores[:, here], members, deeper)
    return result


def marginal_entropy(p: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return −Σ_l p(l)·log2 p(l) of each voxel: (L, N) → (N,).

    Examples
    --------
    >>> pm.posterior.marginal_entropy(np.array([[1.0, 0.5], [0.0, 0.5]]))  # bits
    array([0., 1.])
    """
    bits = np.zeros(p.shape[1])
    for first in range(0, len(bits), _AT_ONCE):  # pieces stay in the cache
        piece = bits[first : first + _AT_ONCE]
        for row in p[:, first : first + _AT_ONCE]:
            piece += _minus_p_log_p(row)
    return np.maximum(bits, 0.0, out=bits)


def vote_entropy(counts: NDArray[Any], samples: int) -> NDArray[np.float64]:
    """Return the entropy of the frequencies counts / S of each voxel: (L, N) → (N,)."""
    # A vote is one of S + 1 numbers: a table of their terms spares every voxel its logarithms.
    terms = _minus_p_log_p(np.arange(samples + 1) / samples)  # (S + 1,)
    bits = np.zeros(counts.shape[1])
    for votes in counts:  # (N,)
        bits += terms[votes]
    return np.maximum(bits, 0.0)


def classify_votes(
    dissent: NDArray[np.int64], samples: int, threshold: float, confidence: float
) -> NDArray[np.uint8]:
    """Compare the Clopper–Pearson interval of dissent / S with the threshold, (N,) → (N,)."""
    lower, upper = clopper_pearson(np.arange(samples + 1), samples, confidence)
    return _classes(upper <= threshold, lower > threshold)[dissent]


def classify_means(
    share: NDArray[np.float64], samples: int, threshold: float, confidence: float
) -> NDArray[np.uint8]:
    """Compare the Chernoff interval of a mean of S numbers in [0, 1] with the threshold.

    The interval is {q : S·kl(share, q) < log(2/α)}: it holds for any law on [0, 1], votes or not.
    """
    from scipy.special import rel_entr

    divergence = rel_entr(share, threshold) + rel_entr(1.0 - share, 1.0 - threshold)
    excluded = samples * divergence >= math.log(2.0 / (1.0 - confidence))  # the threshold, (N,)
    return _classes(excluded & (share < threshold), excluded & (share > threshold))


def _classes(below: NDArray[np.bool_], above: NDArray[np.bool_]) -> NDArray[np.uint8]:
    classes = np.full(below.shape, UNDECIDED, dtype=np.uint8)
    classes[below] = CERTAIN
    classes[above] = UNCERTAIN
    return classes


def _minus_p_log_p(p: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return −p·log2 p, 0 at p = 0."""
    return -p * np.log2(p, out=np.zeros_like(p), where=p > 0)
