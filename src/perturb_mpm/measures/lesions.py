"""Lesions one by one: how probable each is, how large, and whether two of them are one.

Candidates come from the share of samples that have a structure at each voxel. A candidate is a
peak of that map: a connected set of voxels above some level, large enough, that stays apart from
every higher peak for ``PROMINENCE`` or more. Its *basin* is all that drains to this peak, and its
*core* is the part of the basin with at least half of the peak's share. Basins are disjoint.

In a sample a lesion *exists* where a connected piece (26 neighbours) of at least ``least_ml``
covers more than ``COVERED`` of its core; its volume is the part of such pieces in its basin; two
lesions are *joined* where one piece covers so much of both cores. A truth is judged as a sample
is, so that the probability of a lesion is the chance that this truth has it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from perturb_mpm import checks
from perturb_mpm.measures.structure import Box, LabelMap, MeasuredPatient
from perturb_mpm.posterior import clopper_pearson

LEAST_SHARE = 0.05
"""A candidate is in at least this share of the samples somewhere."""
LEAST_ML = 0.05
"""Pieces below are no lesions; the BraTS challenge leaves out as much (50 voxels of 1 mm³)."""
PROMINENCE = 0.1
COVERED = 0.2
"""A piece must cover more than this share of a core. PI-CAI asks for 0.1, which counts samples that
graze a core more often than truths do so: probabilities come out too large (``lab lesions``)."""
_LEVELS = np.arange(20, 0, -1) * LEAST_SHARE  # 1, 0.95 … 0.05
_ROUNDING = 1e-6


def connected_pieces(mask: NDArray[np.bool_]) -> tuple[NDArray[np.int32], int]:
    """Return a number for each voxel's piece, by 26 neighbours, 0 outside, and how many there are.

    Examples
    --------
    >>> from perturb_mpm.measures.lesions import connected_pieces
    >>> connected_pieces(np.array([1, 0, 1, 1], bool).reshape(4, 1, 1))[1]
    2
    """
    from scipy.ndimage import label

    numbers, count = label(mask, structure=np.ones((3, 3, 3)))
    return numbers, int(count)


@dataclass(frozen=True)
class SampledLesion:
    """One lesion that samples may have; volumes are of the samples that have it.

    Examples
    --------
    >>> from perturb_mpm.measures import LesionFinder, MeasuredPatient
    >>> labels = np.ones((2, 2, 2), np.uint8)
    >>> patient = MeasuredPatient(pm.Grid(labels.shape, spacing=10.0), {"lesion": (1,)}, labels)
    >>> finder = LesionFinder(patient, "lesion", labels.astype(float))
    >>> finder.add(range(1), labels.reshape(1, -1))
    >>> next(iter(finder.lesions)).centre_voxel
    (0.5, 0.5, 0.5)
    """

    number: int
    """From 1 on; its value in the map of lesions."""
    probability: float
    probability_interval: tuple[float, float]
    """How far the probability is known by so many samples (Clopper–Pearson, 95 %)."""
    median_ml: float
    interval_ml: tuple[float, float]  # central 95 %
    label_map_ml: float
    """Its volume in the label map, 0 where the map does not have it."""
    centre_voxel: tuple[float, float, float]
    peak: float
    """The largest share of samples at one voxel."""
    joined: tuple[tuple[int, float], ...]
    """Number of another lesion, and the probability that both are one; the largest first."""


@dataclass(frozen=True, eq=False)
class PieceMatch:
    """Which candidates one label map has."""

    ml: NDArray[np.float64]  # (C,) 0 where it does not exist
    joined: NDArray[np.bool_]  # (C, C) symmetric, nothing on the diagonal
    pieces: int
    """Connected pieces that are large enough, whether a candidate or not."""
    unmatched: int
    """Those of them that cover no core."""

    @property
    def exists(self) -> NDArray[np.bool_]:
        """Which candidates it has, (C,)."""
        return self.ml > 0


@dataclass(frozen=True, eq=False)
class LesionCandidates:
    """Where lesions may be; 0 is none, candidate c has the value c + 1.

    Examples
    --------
    >>> from perturb_mpm.measures import LesionCandidates
    >>> share = np.zeros((9, 3, 3))
    >>> share[1:3], share[6:8] = 0.9, 0.3  # two slabs of 18 ml
    >>> found = LesionCandidates.from_share(share, voxel_ml=1.0)
    >>> found.peaks, found.match(share > 0.5).exists
    (array([0.9, 0.3]), array([ True, False]))
    """

    box: Box
    basins: NDArray[np.int32]  # (x, y, z) in the box
    cores: NDArray[np.int32]
    share: NDArray[np.float32]
    shape: tuple[int, ...]  # of the image
    voxel_ml: float
    least_ml: float

    @classmethod
    def from_share(
        cls, share: NDArray[np.floating], voxel_ml: float, least_ml: float = LEAST_ML
    ) -> LesionCandidates:
        """Find the candidates of a map (X, Y, Z) of the share of samples that have a structure."""
        from scipy.ndimage import find_objects, watershed_ift

        checks.number(least_ml, "least_ml", minimum=0)
        possible = share > 0
        box: Box = (find_objects(possible.astype(np.int8)) or [(slice(0, 0),) * 3])[0]
        inside = share[box].astype(np.float32)
        fewest = max(int(np.ceil(least_ml / voxel_ml - _ROUNDING)), 1)
        markers = _find_peaks(inside, fewest)
        if not markers.any():
            empty = np.zeros(inside.shape, dtype=np.int32)
            return cls(box, empty, empty, inside, share.shape, voxel_ml, least_ml)
        cost = np.rint(255 * (1 - inside)).astype(np.uint8)
        basins = watershed_ift(cost, markers, structure=np.ones((3, 3, 3)))
        islands, count = connected_pieces(inside > 0)
        peaked = np.zeros(count + 1, dtype=np.bool_)
        peaked[islands[markers > 0]] = True  # what has no peak drains to none
        basins = np.where(peaked[islands], basins, 0).astype(np.int32)
        peaks = _largest(inside, basins)
        cores = np.where(inside >= peaks[basins] / 2, basins, 0)
        return cls(box, basins, cores, inside, share.shape, voxel_ml, least_ml)

    def __len__(self) -> int:
        return int(self.basins.max(initial=0))

    @cached_property
    def _core_sizes(self) -> NDArray[np.int64]:
        return np.bincount(self.cores.ravel(), minlength=len(self) + 1)

    @cached_property
    def peaks(self) -> NDArray[np.float64]:
        """The largest share in each, (C,)."""
        return _largest(self.share, self.basins)[1:].round(6)

    @cached_property
    def centres(self) -> NDArray[np.float64]:
        """The middle of each core in voxels of the image, weighted by share, (C, 3)."""
        from scipy.ndimage import center_of_mass

        if not len(self):
            return np.zeros((0, 3))
        middle = center_of_mass(self.share, self.cores, np.arange(1, len(self) + 1))
        corner = [each.start for each in self.box]
        return np.asarray(middle, dtype=np.float64) + np.array(corner, dtype=np.float64)

    def match(self, mask: NDArray[np.bool_], *, cropped: bool = False) -> PieceMatch:
        """Return which candidates a structure (X, Y, Z) has; ``cropped`` to the box already."""
        numbers, count = connected_pieces(mask)
        sizes = np.bincount(numbers.ravel(), minlength=count + 1) * self.voxel_ml
        large = sizes >= self.least_ml - _ROUNDING
        large[0] = False
        here = numbers if cropped else numbers[self.box]
        pairs = np.zeros((len(self) + 1, count + 1), dtype=np.int64)
        np.add.at(pairs, (self.cores[here > 0], here[here > 0]), 1)
        covers = (pairs > COVERED * self._core_sizes[:, None]) & large & (pairs > 0)
        covers[0] = False
        shared = covers[1:].astype(np.int64) @ covers[1:].T
        joined = (shared > 0) & ~np.eye(len(self), dtype=np.bool_)
        own = covers[self.basins, here]
        voxels = np.bincount(self.basins[own], minlength=len(self) + 1)[1:]
        ml: NDArray[np.float64] = voxels * np.float64(self.voxel_ml)
        pieces = int(large.sum())
        return PieceMatch(ml, joined, pieces, pieces - int(covers.any(axis=0).sum()))

    def paint(self, values: NDArray[np.generic], least_share: float = 0.0) -> NDArray[np.generic]:
        """Return an image (X, Y, Z) with the value of each candidate (C,) in its basin."""
        found = np.zeros(self.shape, dtype=values.dtype)
        every = np.concatenate([np.zeros(1, values.dtype), values])
        found[self.box] = np.where(self.share >= least_share, every[self.basins], 0)
        return found


def _largest(share: NDArray[np.floating], basins: NDArray[np.int32]) -> NDArray[np.float64]:
    """Return the largest share in each basin, (C + 1,); that of none is 0."""
    peaks = np.zeros(int(basins.max(initial=0)) + 1)
    np.maximum.at(peaks, basins.ravel(), share.ravel().astype(np.float64))
    peaks[0] = 0.0
    return peaks


def _pairs(
    one: NDArray[np.int32], other: NDArray[np.int32], counted: NDArray[np.bool_]
) -> NDArray[np.int64]:
    """Return which values, 0 left out, two maps have at one voxel, (P, 2)."""
    both = (one > 0) & counted[other]
    return np.unique(np.stack([one[both], other[both]], axis=1).astype(np.int64), axis=0)


def _find_peaks(share: NDArray[np.float32], fewest: int) -> NDArray[np.int32]:
    """Return a marker for each peak that stays apart; the level falls from 1 to LEAST_SHARE."""
    markers = np.zeros(share.shape, dtype=np.int32)
    born: dict[int, float] = {}  # the level at which a peak is large enough
    for level in _LEVELS:
        pieces, count = connected_pieces(share >= level - _ROUNDING)
        if not count:
            continue
        sizes = np.bincount(pieces.ravel(), minlength=count + 1)
        every = np.ones(count + 1, dtype=np.bool_)
        every[0] = False
        known: dict[int, list[int]] = {}
        for peak, piece in _pairs(markers, pieces, every):
            known.setdefault(int(piece), []).append(int(peak))
        for piece in np.flatnonzero(sizes[1:] >= fewest) + 1:
            if int(piece) not in known:
                number = max(born, default=0) + 1
                born[number] = float(level)
                markers[pieces == piece] = number
        for peaks in known.values():
            highest = max(peaks, key=lambda peak: (born[peak], -peak))
            for peak in peaks:
                if peak != highest and born[peak] - level < PROMINENCE - _ROUNDING:
                    markers[markers == peak] = 0
    kept = np.unique(markers)
    renumbered: NDArray[np.int32] = np.searchsorted(kept, markers).astype(np.int32)
    return renumbered + int(kept.size > 0 and kept[0] > 0)


@dataclass(frozen=True, eq=False)
class Lesions:
    """All lesions of one structure that samples may have, and how many there are at once.

    Examples
    --------
    >>> from perturb_mpm.measures import LesionFinder, MeasuredPatient
    >>> labels = np.ones((2, 2, 2), np.uint8)
    >>> patient = MeasuredPatient(pm.Grid(labels.shape, spacing=10.0), {"lesion": (1,)}, labels)
    >>> finder = LesionFinder(patient, "lesion", labels.astype(float))
    >>> finder.add(range(1), labels.reshape(1, -1))
    >>> finder.lesions.probability, finder.lesions.number_distribution
    (array([1.]), {1: 1.0})
    """

    structure: str
    candidates: LesionCandidates
    ml: NDArray[np.float64]  # (S, C) volume in each sample, 0 where it does not exist
    joined: NDArray[np.float64]  # (C, C) share of samples
    counts: NDArray[np.int64]  # (S,) lesions in each sample, by connected pieces
    label_map: PieceMatch

    @property
    def samples(self) -> int:
        """S, the number of samples."""
        return len(self.counts)

    @cached_property
    def probability(self) -> NDArray[np.float64]:
        """The share of samples in which each exists, (C,)."""
        return (self.ml > 0).mean(axis=0)

    @property
    def number_distribution(self) -> dict[int, float]:
        """How many lesions there are at once -> share of samples."""
        number, times = np.unique(self.counts, return_counts=True)
        return {int(n): float(t) / self.samples for n, t in zip(number, times)}

    def __iter__(self) -> Iterator[SampledLesion]:
        for index, probability in enumerate(self.probability):
            sizes = self.ml[self.ml[:, index] > 0, index]
            low, middle, high = (
                np.quantile(sizes, [0.025, 0.5, 0.975]) if len(sizes) else (0.0, 0.0, 0.0)
            )
            x, y, z = self.candidates.centres[index].tolist()
            ends = clopper_pearson(len(sizes), self.samples, 0.95)
            others = np.argsort(-self.joined[index], kind="stable")
            yield SampledLesion(
                number=index + 1,
                probability=float(probability),
                probability_interval=(float(ends[0]), float(ends[1])),
                median_ml=float(middle),
                interval_ml=(float(low), float(high)),
                label_map_ml=float(self.label_map.ml[index]),
                centre_voxel=(x, y, z),
                peak=float(self.candidates.peaks[index]),
                joined=tuple(
                    (int(each) + 1, float(self.joined[index, each]))
                    for each in others
                    if self.joined[index, each] > 0
                ),
            )

    def by_doubt(self) -> list[SampledLesion]:
        """Return all, those of which one knows least whether they exist first."""
        return sorted(self, key=lambda each: (abs(each.probability - 0.5), -each.median_ml))


class LesionFinder:
    """Looks for lesions in samples as they are drawn; ``add`` is what ``Sampler.draw`` keeps by.

    ``share`` (X, Y, Z) is the share of samples that have the structure at each voxel.

    Examples
    --------
    >>> from perturb_mpm.measures import LesionFinder, MeasuredPatient
    >>> labels = np.zeros((9, 3, 3), np.uint8)
    >>> labels[1:3] = 1
    >>> patient = MeasuredPatient(pm.Grid(labels.shape, spacing=10.0), {"lesion": (1,)}, labels)
    >>> samples = np.stack([labels, labels])
    >>> samples[1, 6:8] = 1
    >>> finder = LesionFinder(patient, "lesion", (samples == 1).mean(axis=0))
    >>> finder.add(range(2), samples.reshape(2, -1))
    >>> [(lesion.probability, lesion.median_ml) for lesion in finder.lesions]
    [(1.0, 18.0), (0.5, 18.0)]
    >>> finder.lesions.number_distribution
    {1: 0.5, 2: 0.5}
    """

    def __init__(
        self,
        patient: MeasuredPatient,
        structure: str,
        share: NDArray[np.floating],
        least_ml: float = LEAST_ML,
    ) -> None:
        self._patient, self._name = patient, structure
        self.candidates = LesionCandidates.from_share(share, patient.voxel_mm3 / 1000, least_ml)
        self._ml: list[NDArray[np.float64]] = []
        self._joined = np.zeros((len(self.candidates),) * 2, dtype=np.int64)
        self._counts: list[int] = []

    def add(self, part: range, labels: NDArray[np.uint8]) -> None:
        """Take the samples ``part`` with their labels inside the mask, (B, N)."""
        for _, each in zip(part, labels, strict=True):
            sample = LabelMap(self._patient, each)
            found = sample.structure(self._name)
            match = self.candidates.match(found.in_box(self.candidates.box), cropped=True)
            sample.clear()
            self._ml.append(match.ml)
            self._joined += match.joined
            self._counts.append(match.pieces)

    @property
    def lesions(self) -> Lesions:
        """The lesions of the samples so far."""
        mapped = np.isin(self._patient.labels, self._patient.structures[self._name])
        return Lesions(
            self._name,
            self.candidates,
            np.array(self._ml).reshape(-1, len(self.candidates)),
            self._joined / max(len(self._counts), 1),
            np.array(self._counts, dtype=np.int64),
            self.candidates.match(mapped),
        )
