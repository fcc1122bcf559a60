"""The label of each voxel from its marginals: the most probable one, or region by region.

The most probable label decides unions too rarely: background .4 and three tumour labels of .2 each
is background by its largest marginal, and yet tumour with probability .6. With regions (sets of
labels, nested or apart) a voxel belongs to a region where that has more than half of the
probability, outermost regions first, and has the most probable of the labels left to it there.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

Regions = Mapping[str, tuple[int, ...]]
"""Named sets of labels 0 … L − 1."""


def check_nested(regions: Regions) -> None:
    """Refuse regions that do not decide labels: two that overlap, or that are the same."""
    sets = [(name, frozenset(members)) for name, members in regions.items()]
    for place, (name, members) in enumerate(sets):
        for other, others in sets[:place]:
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
    taken. Without regions it is the most probable label.

    Examples
    --------
    >>> p = np.array([[0.4], [0.2], [0.2], [0.2]])  # background and three labels of a tumour
    >>> pm.posterior.decide_labels(p)
    array([0], dtype=uint8)
    >>> pm.posterior.decide_labels(p, {"tumour": (1, 2, 3)})
    array([1], dtype=uint8)
    """
    if not regions:
        best: NDArray[np.uint8] = np.argmax(scores, axis=0).astype(np.uint8)
        return best
    check_nested(regions)
    return _decided(scores, range(len(scores)), [frozenset(each) for each in regions.values()])


def _decided(
    scores: NDArray[Any], labels: Collection[int], inside: list[frozenset[int]]
) -> NDArray[np.uint8]:
    """Return labels out of ``labels``, which hold all of these regions ``inside`` them."""
    outermost = [region for region in inside if not any(region < other for other in inside)]
    left = sorted(set(labels).difference(*outermost)) or sorted(labels)
    result = _most_probable(scores, left)  # (N,)
    half = scores.sum(axis=0, dtype=np.float64) / 2
    for region in outermost:
        members = sorted(region)
        here = scores[members].sum(axis=0, dtype=np.float64) > half
        deeper = [other for other in inside if other < region]
        result[here] = _decided(scores[:, here], members, deeper)
    return result


def _most_probable(scores: NDArray[Any], labels: list[int]) -> NDArray[np.uint8]:
    best: NDArray[np.intp] = np.argmax(scores[labels], axis=0)
    return np.array(labels, dtype=np.uint8)[best]
