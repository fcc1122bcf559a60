"""One structure of one label map, cropped to its bounding box: what a measure is a function of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perturb_mpm.model import Grid

Box = tuple[slice, ...]


@dataclass(frozen=True, eq=False)
class MeasuredPatient:
    """What all samples of one patient share: grid, structures, label map, images, other masks.

    Examples
    --------
    >>> from perturb_mpm.measures import MeasuredPatient
    >>> labels = np.zeros((4, 4, 4), np.uint8)
    >>> labels[1:3, 1:3, 1:3] = 1
    >>> patient = MeasuredPatient(pm.Grid(labels.shape, spacing=2.0), {"core": (1,)}, labels)
    >>> patient.label_map.structure("core").volume_mm3
    64.0
    """

    grid: Grid
    structures: Mapping[str, tuple[int, ...]]
    """Name -> the label indices that make it."""
    labels: NDArray[np.uint8]  # (X, Y, Z) label indices: the segmentation that samples vary
    images: Mapping[str, NDArray[np.floating]] = field(default_factory=dict)  # (X, Y, Z) each
    masks: Mapping[str, NDArray[np.bool_]] = field(default_factory=dict)  # (X, Y, Z) each
    """Structures that are given and do not vary: a vessel, an organ at risk."""
    dose_gy: NDArray[np.floating] | None = None  # (X, Y, Z)
    across: int = 2
    """The axis of the grid that axial slices are cut across."""
    rows: Mapping[str, NDArray[np.int64]] = field(default_factory=dict)
    """Which voxels of the mask can be in a structure at all, where that is known."""

    def __post_init__(self) -> None:
        if self.grid.ndim != 3:
            raise ValueError(f"grid must have three axes, got {self.grid.ndim}")
        maps = {"labels": self.labels, **self.images, **self.masks}
        for name, each in maps.items():
            if each.shape != self.grid.shape:
                raise ValueError(f"{name} must have the shape {self.grid.shape}, got {each.shape}")

    @property
    def voxel_mm3(self) -> float:
        """The volume of a voxel."""
        return float(np.prod(self.grid.spacing))

    def with_votes(self, counts: NDArray[np.integer]) -> MeasuredPatient:
        """Return the patient that looks only where votes (L, N) of all samples have a structure."""
        rows = {
            name: np.flatnonzero(counts[list(members)].any(axis=0))
            for name, members in self.structures.items()
        }
        return replace(self, rows=rows)

    @cached_property
    def label_map(self) -> LabelMap:
        """The segmentation itself; it may differ from every sample."""
        return LabelMap(replace(self, rows={}), self.grid.gather(self.labels))

    @cached_property
    def distances(self) -> dict[str, NDArray[np.float32]]:
        """Distance maps (X, Y, Z) in mm that were computed so far, by what they lead to."""
        return {}

    def distance_map(self, name: str, mask: NDArray[np.bool_]) -> NDArray[np.float32]:
        """Return how far each voxel's middle is from that of the nearest voxel of a mask, mm."""
        from scipy.ndimage import distance_transform_edt

        if name not in self.distances:
            away = distance_transform_edt(~mask, sampling=self.grid.spacing)
            self.distances[name] = away.astype(np.float32)
        return self.distances[name]


class LabelMap:
    """The labels (N,) of one sample inside the mask; structures are cut out when asked for."""

    def __init__(self, patient: MeasuredPatient, labels: NDArray[np.uint8]) -> None:
        self.patient = patient
        self._labels = labels
        self._structures: dict[str, Structure] = {}

    def structure(self, name: str) -> Structure:
        """Return a structure, cut out once."""
        if name not in self._structures:
            self._structures[name] = self._cut_out(name)
        return self._structures[name]

    def clear(self) -> None:
        """Forget the structures, which refer to this: else memory waits for Python's collector."""
        self._structures.clear()

    def _cut_out(self, name: str) -> Structure:
        patient = self.patient
        if name not in patient.structures:
            raise ValueError(
                f"structure must be one of {', '.join(patient.structures)}, got {name!r}"
            )
        known = patient.rows.get(name)
        labels = self._labels if known is None else self._labels[known]
        inside = np.flatnonzero(membership(patient.structures[name])[labels])
        voxels = patient.grid.index[inside if known is None else known[inside]]
        if len(voxels) == 0:
            empty = np.zeros((0, 0, 0), dtype=np.bool_)
            return Structure(self, name, empty, (slice(0, 0),) * 3)
        at = np.unravel_index(voxels, patient.grid.shape)
        low = [int(each.min()) for each in at]
        box = tuple(slice(a, int(each.max()) + 1) for a, each in zip(low, at))
        mask = np.zeros([each.stop - each.start for each in box], dtype=np.bool_)
        mask[tuple(each - a for a, each in zip(low, at))] = True
        return Structure(self, name, mask, box)


def membership(members: Sequence[int]) -> NDArray[np.bool_]:
    """Return which of the 256 label indices are in a structure."""
    found = np.zeros(256, dtype=np.bool_)
    found[list(members)] = True
    return found


@dataclass(frozen=True, eq=False)
class Structure:
    """A structure in one sample: ``mask`` is cropped to its ``box`` in the image.

    Examples
    --------
    >>> from perturb_mpm.measures import MeasuredPatient
    >>> labels = np.zeros((4, 4, 4), np.uint8)
    >>> labels[1:3, 1:3, 1:3] = 1
    >>> image = np.arange(64.0).reshape(4, 4, 4)
    >>> grid, images = pm.Grid(labels.shape), {"T1": image}
    >>> patient = MeasuredPatient(grid, {"core": (1,)}, labels, images=images)
    >>> core = patient.label_map.structure("core")
    >>> core.mask.shape, float(core.intensities("T1").mean())
    ((2, 2, 2), 31.5)
    """

    sample: LabelMap
    name: str
    mask: NDArray[np.bool_]  # (x, y, z), the smallest box around it; (0, 0, 0) where it is empty
    box: Box

    @property
    def patient(self) -> MeasuredPatient:
        """What all samples share."""
        return self.sample.patient

    @property
    def spacing(self) -> tuple[float, ...]:
        """The voxel size in mm."""
        return self.patient.grid.spacing

    @cached_property
    def voxels(self) -> int:
        """How many voxels it has."""
        return int(np.count_nonzero(self.mask))

    @property
    def volume_mm3(self) -> float:
        """Its volume."""
        return self.voxels * self.patient.voxel_mm3

    @property
    def reference(self) -> Structure:
        """The same structure in the label map."""
        return self.patient.label_map.structure(self.name)

    def other(self, name: str) -> Structure:
        """Return another structure of the same sample."""
        return self.sample.structure(name)

    def values(self, image: NDArray[Any]) -> NDArray[Any]:
        """Return an image (X, Y, Z) at the structure's voxels, (V,)."""
        return image[self.box][self.mask]

    def intensities(self, name: str) -> NDArray[np.floating]:
        """Return a named image at the structure's voxels, (V,)."""
        if name not in self.patient.images:
            known = ", ".join(self.patient.images) or "none"
            raise ValueError(f"image must be one of {known}, got {name!r}")
        return self.values(self.patient.images[name])

    def given_mask(self, name: str) -> NDArray[np.bool_]:
        """Return a given mask, (X, Y, Z)."""
        if name not in self.patient.masks:
            known = ", ".join(self.patient.masks) or "none"
            raise ValueError(f"mask must be one of {known}, got {name!r}")
        return self.patient.masks[name]

    def in_box(self, box: Box) -> NDArray[np.bool_]:
        """Return the structure in another box of the image that contains its own."""
        whole = np.zeros([each.stop - each.start for each in box], dtype=np.bool_)
        if self.voxels:
            inner = tuple(
                slice(own.start - outer.start, own.stop - outer.start)
                for own, outer in zip(self.box, box)
            )
            whole[inner] = self.mask
        return whole

    @cached_property
    def cache(self) -> dict[str, Any]:
        """What several measures of this structure share."""
        return {}


def box_around_both(one: Structure, other: Structure) -> Box:
    """Return the smallest box that contains two structures."""
    boxes = [each.box for each in (one, other) if each.voxels]
    if not boxes:
        return one.box
    return tuple(
        slice(min(each.start for each in axis), max(each.stop for each in axis))
        for axis in zip(*boxes)
    )
