"""Nested regions, such as whole tumour ⊃ core ⊃ enhancing, and the exclusive labels inside them.

A model with regions gives every region its own probability p between 0 and 1, and the regions
overlap. Where any two of them are disjoint or one inside the other they form trees, and what a
region has more than the regions directly inside it belongs to the label it is painted with:

    p(label of a region) = max(p(region) − Σ p(regions directly inside it), 0)
    p(background)        = max(1 − Σ p(outermost regions), 0)

The sum of all of these is at least 1, and more only where a network's own regions contradict each
other (an inner one more likely than the one around it); they are divided by it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from perturb_mpm.files.labels import LabelScheme

_DECIDED = 0.5  # a region is where its probability is above this
_MANY = 0.2  # of an inner region's voxels, and at least so many
_MANY_VOXELS = 50


@dataclass(frozen=True)
class Region:
    """A set of labels with a map of its own, and the label that is painted where it is found."""

    name: str
    labels: frozenset[int]
    painted: int


class NestedRegions:
    """Regions in the order of their maps, which may be any: which lies in which is in their labels.

    nnU-Net paints in this order, so that an outer region that comes after an inner one hides it in
    nnU-Net's own label map (``painted``), but never in the distribution.
    """

    def __init__(self, regions: Sequence[Region]) -> None:
        self.regions = tuple(regions)
        _check(self.regions)
        self._around = [self._directly_around(place) for place in range(len(regions))]

    def __len__(self) -> int:
        return len(self.regions)

    def scheme(self) -> LabelScheme:
        """Return the exclusive labels: 0 for background, then every painted value."""
        values = sorted({region.painted for region in self.regions})
        return LabelScheme((0, *values), ("background", *map(self._name, values)))

    def members(self) -> dict[str, tuple[int, ...]]:
        """Return the exclusive labels, indices of ``scheme``, that each region is made of."""
        values = self.scheme().values
        return {
            region.name: tuple(i for i, value in enumerate(values) if value in region.labels)
            for region in self.regions
        }

    def exclusive(self, regions: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return the distribution (L, X, Y, Z) over the labels from region maps (R, X, Y, Z)."""
        row_of = {value: row for row, value in enumerate(self.scheme().values)}
        result = np.zeros((len(row_of), *regions.shape[1:]), dtype=np.float32)
        for place, region in enumerate(self.regions):
            rest = regions[place].copy()  # (X, Y, Z)
            for inner in self._directly_inside(place):
                rest -= regions[inner]
            result[row_of[region.painted]] += np.maximum(rest, 0, out=rest)
        outermost = [place for place, around in enumerate(self._around) if around is None]
        result[0] = np.maximum(1 - regions[outermost].sum(axis=0), 0)
        result /= result.sum(axis=0)
        return result

    def painted(self, regions: NDArray[np.float32]) -> NDArray[np.int64]:
        """Return the labels (X, Y, Z) as nnU-Net decides on them: above ½, in the order of maps."""
        labels = np.zeros(regions.shape[1:], dtype=np.int64)
        for region, probability in zip(self.regions, regions):
            labels[probability > _DECIDED] = region.painted
        return labels

    def contradiction(self, regions: NDArray[np.float32]) -> str | None:
        """Say which region often lies outside the one around it, as swapped maps do, or None."""
        for place, around in enumerate(self._around):
            if around is None:
                continue
            inner = regions[place] > _DECIDED  # (X, Y, Z)
            outside = int((inner & (regions[around] <= _DECIDED)).sum())
            if outside >= _MANY_VOXELS and outside > _MANY * int(inner.sum()):
                return (
                    f"the region {self.regions[place].name!r} (map {place}) must lie inside "
                    f"{self.regions[around].name!r} (map {around}), got {outside} of its "
                    f"{int(inner.sum())} voxels outside: are the maps in the order of the regions?"
                )
        return None

    def _directly_around(self, place: int) -> int | None:
        """Return the smallest region around one; those around it lie in each other."""
        own = self.regions[place].labels
        around = [i for i, region in enumerate(self.regions) if region.labels > own]
        return min(around, key=lambda i: len(self.regions[i].labels), default=None)

    def _directly_inside(self, place: int) -> list[int]:
        return [inner for inner, around in enumerate(self._around) if around == place]

    def _name(self, value: int) -> str:
        """Return the region that is this label alone, or the one of which it is the rest."""
        alone = [region.name for region in self.regions if region.labels == {value}]
        rests = [f"{region.name} (rest)" for region in self.regions if region.painted == value]
        return (alone or rests)[0]


def _check(regions: tuple[Region, ...]) -> None:
    """Refuse regions that cannot be told apart into exclusive labels."""
    for place, region in enumerate(regions):
        if 0 in region.labels:
            raise ValueError(f"the region {region.name!r} must not contain background (0)")
        for earlier in regions[:place]:
            _check_pair(earlier, region)
        inside = frozenset[int]().union(*(r.labels for r in regions if r.labels < region.labels))
        own = region.labels - inside
        if region.painted not in (own or region.labels):
            raise ValueError(
                f"the region {region.name!r} must be painted with a label of its own "
                f"({_listed(own or region.labels)}), got {region.painted}"
            )


def _check_pair(earlier: Region, later: Region) -> None:
    if earlier.labels == later.labels:
        raise ValueError(f"the regions {earlier.name!r} and {later.name!r} have the same labels")
    nested = later.labels < earlier.labels or earlier.labels < later.labels
    if not nested and later.labels & earlier.labels:
        raise ValueError(
            "regions must be nested or apart, but "
            f"{earlier.name!r} ({_listed(earlier.labels)}) and {later.name!r} "
            f"({_listed(later.labels)}) overlap; give the probabilities of exclusive labels"
        )


def _listed(labels: frozenset[int]) -> str:
    return ", ".join(map(str, sorted(labels)))
