"""Where a correction pays: how much knowing a place would narrow a measure.

The mask is cut into cubes. With v the volume of a structure in one of them and m the measure, in
each sample, knowing v explains the share Cov(m, v)² / (Var v · Var m) of the variance of m. For a
cube of one voxel with the share p of samples in the structure it is Cov(m, 1)² / (p (1 − p) Var m).
Cubes beside each other say the same twice, so that the list is greedy: each next cube explains most
of what those before it leave.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from perturb_mpm import checks
from perturb_mpm.measures.measure import Measure
from perturb_mpm.measures.structure import LabelMap, MeasuredPatient, membership

PATCH_MM = 10.0
"""The side of a cube."""
_SAMPLES_EACH = 10  # as many samples for each cube of the list, at least
_LEAST = 1e-12  # of a variance, relative to what it was


@dataclass(frozen=True)
class PriorityPatch:
    """One cube of the list."""

    centre_voxel: tuple[int, int, int]
    """The voxel nearest to the middle of what is uncertain in it."""
    size_voxels: tuple[int, int, int]
    explained: float
    """The share of the variance that it explains by itself, 0 to 1."""
    explained_so_far: float
    """What it and all before it explain together, in samples that did not choose (two halves)."""


@dataclass(frozen=True, eq=False)
class Priority:
    """What each cube, and each axial slice, would tell about one measure of one structure."""

    structure: str
    measure: str
    values: NDArray[np.float64]  # (S,) the measure
    volumes: NDArray[np.float64]  # (S, P) voxels of the structure in each cube
    slice_volumes: NDArray[np.float64]  # (S, Z) the same in each axial slice
    patches: NDArray[np.int64]  # (R,) the cube of every voxel that samples disagree about
    voxels: NDArray[np.int64]  # (R, 3)
    size_voxels: tuple[int, int, int]
    shape: tuple[int, ...]

    @cached_property
    def explained(self) -> NDArray[np.float64]:
        """The share of the variance that each cube explains by itself, (P,)."""
        return explained_share(self.values, self.volumes)

    def image(self) -> NDArray[np.float32]:
        """Return the share at each voxel that samples disagree about, 0 elsewhere, (X, Y, Z)."""
        found = np.zeros(self.shape, dtype=np.float32)
        found[tuple(self.voxels.T)] = self.explained[self.patches]
        return found

    def slice_list(self, most: int = 10) -> list[tuple[int, float]]:
        """Return the axial slices that explain most by themselves: index and share."""
        share = explained_share(self.values, self.slice_volumes)
        order = np.argsort(-share, kind="stable")[:most]
        return [(int(each), float(share[each])) for each in order if share[each] > 0]

    def patch_list(self, most: int = 12) -> list[PriorityPatch]:
        """Return the cubes in the order in which one should look at them."""
        most = min(most, max(len(self.values) // _SAMPLES_EACH, 1))
        order = greedy_order(self.values, self.volumes, most)
        so_far = explained_elsewhere(self.values, self.volumes, order)
        return [
            PriorityPatch(
                self._centre(each), self.size_voxels, float(self.explained[each]), float(share)
            )
            for each, share in zip(order, so_far)
        ]

    def _centre(self, patch: int) -> tuple[int, int, int]:
        here = self.voxels[self.patches == patch]
        nearest = here[np.square(here - here.mean(axis=0)).sum(axis=1).argmin()]
        return int(nearest[0]), int(nearest[1]), int(nearest[2])


def explained_share(
    values: NDArray[np.float64], volumes: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return the squared correlation of values (S,) with each column (S, P); 0 of a constant."""
    y, x = values - values.mean(), volumes - volumes.mean(axis=0)
    product = np.square(y @ x)
    variance = np.square(x).sum(axis=0) * np.square(y).sum()
    share: NDArray[np.float64] = np.divide(
        product, variance, out=np.zeros(len(product)), where=variance > 0
    )
    return share


def greedy_order(values: NDArray[np.float64], volumes: NDArray[np.float64], most: int) -> list[int]:
    """Return columns (S, P), each the one that explains most of what those before it leave."""
    y, x = values - values.mean(), volumes - volumes.mean(axis=0)
    y = y[:, np.newaxis]
    floor = _LEAST * np.maximum(np.square(x).sum(axis=0), 1.0)
    order: list[int] = []
    for _ in range(min(most, x.shape[1])):
        size = np.square(x).sum(axis=0)
        gain = np.where(size > floor, np.square(y[:, 0] @ x) / np.maximum(size, floor), 0.0)
        gain[order] = 0.0
        best = int(gain.argmax())
        if gain[best] <= _LEAST * np.square(values - values.mean()).sum():
            break
        order.append(best)
        along = x[:, best : best + 1] / np.sqrt(size[best])  # (S, 1)
        y = y - along * (along.T @ y)
        x = x - along * (along.T @ x)
    return order


def explained_elsewhere(
    values: NDArray[np.float64], volumes: NDArray[np.float64], order: list[int]
) -> NDArray[np.float64]:
    """Return what the first 1 … K columns of an order explain in samples they were not fitted to.

    Even samples are fitted and odd ones judged, and the other way round; never below 0 or less
    than fewer columns explain.
    """
    halves = [np.arange(len(values)) % 2 == each for each in (0, 1)]
    shares = np.zeros(len(order))
    if min(half.sum() for half in halves) < 3:
        return shares
    for fitted, judged in (halves, halves[::-1]):
        for k in range(1, len(order) + 1):
            middle, base = volumes[fitted][:, order[:k]].mean(axis=0), values[fitted].mean()
            x = volumes[:, order[:k]] - middle
            weights = np.linalg.lstsq(x[fitted], values[fitted] - base, rcond=1e-6)[0]
            left = values[judged] - base - x[judged] @ weights
            total = np.square(values[judged] - values[judged].mean()).sum()
            shares[k - 1] += (1 - np.square(left).sum() / total) / 2 if total else 0.0
    return np.maximum.accumulate(np.clip(shares, 0.0, 1.0))


class PriorityFinder:
    """Gathers volumes of cubes as samples are drawn; ``add`` is what ``Sampler.draw`` keeps by.

    ``patient`` must know where samples disagree (``MeasuredPatient.with_votes``).

    Examples
    --------
    >>> from perturb_mpm.measures import MeasuredPatient, PriorityFinder, find_measures
    >>> samples = np.array([[1, 0, 0, 0], [1, 1, 1, 0], [1, 1, 1, 0]], np.uint8)  # (S, N)
    >>> labels = samples[0].reshape(4, 1, 1)
    >>> patient = MeasuredPatient(pm.Grid(labels.shape, spacing=1.0), {"core": (1,)}, labels)
    >>> votes = np.stack([(samples == label).sum(axis=0) for label in (0, 1)])
    >>> volume = find_measures(["volume"], patient)[0]
    >>> finder = PriorityFinder(patient.with_votes(votes), "core", volume, patch_mm=1.0)
    >>> finder.add(range(3), samples)
    >>> finder.priority.image().ravel()  # voxels 1 and 2 vary, and say all
    array([0., 1., 1., 0.], dtype=float32)
    """

    def __init__(
        self,
        patient: MeasuredPatient,
        structure: str,
        measure: Measure,
        patch_mm: float = PATCH_MM,
    ) -> None:
        checks.number(patch_mm, "patch_mm", positive=True)
        self._patient, self._name, self._measure = patient, structure, measure
        self._rows = patient.rows[structure]  # (R,) where any sample has it
        x, y, z = (max(round(patch_mm / step), 1) for step in patient.grid.spacing)
        self._size = (x, y, z)
        index = patient.grid.index[self._rows]
        self._voxels = np.stack(np.unravel_index(index, patient.grid.shape), axis=1)  # (R, 3)
        cubes = [n // step + 1 for n, step in zip(patient.grid.shape, self._size)]
        cube = np.ravel_multi_index(tuple((self._voxels // self._size).T), cubes)
        self._cubes, self._patch = np.unique(cube, return_inverse=True)
        self._votes = np.zeros(len(self._rows), dtype=np.int64)
        self._values: list[float] = []
        self._volumes: list[NDArray[np.int64]] = []
        self._slices: list[NDArray[np.int64]] = []

    def add(self, part: range, labels: NDArray[np.uint8]) -> None:
        """Take the samples ``part`` with their labels inside the mask, (B, N)."""
        members = membership(self._patient.structures[self._name])
        for _, each in zip(part, labels, strict=True):
            inside = members[each[self._rows]]
            self._votes += inside
            self._volumes.append(np.bincount(self._patch[inside], minlength=len(self._cubes)))
            height = self._voxels[inside, self._patient.across]
            depth = self._patient.grid.shape[self._patient.across]
            self._slices.append(np.bincount(height, minlength=depth))
            self._values.append(self._measure(LabelMap(self._patient, each).structure(self._name)))

    @property
    def priority(self) -> Priority:
        """What the samples so far say; those in which the measure is undefined are left out."""
        values = np.array(self._values)
        known = np.isfinite(values)
        varies = (self._votes > 0) & (self._votes < len(values))
        return Priority(
            self._name,
            self._measure.name,
            values[known],
            np.array(self._volumes, dtype=np.float64).reshape(len(values), -1)[known],
            np.array(self._slices, dtype=np.float64).reshape(len(values), -1)[known],
            self._patch[varies],
            self._voxels[varies],
            self._size,
            self._patient.grid.shape,
        )
