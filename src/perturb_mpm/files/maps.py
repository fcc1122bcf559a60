"""Maps of all labels or regions on one grid, and the distribution over labels they stand for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from perturb_mpm.checks import FEWEST_LABELS, MOST_LABELS
from perturb_mpm.files.case import Geometry
from perturb_mpm.files.geometry import difference
from perturb_mpm.files.nifti import Volume, read_volume
from perturb_mpm.files.nnunet import Dataset, label_map_beside, read_npz, turned_back, was_turned
from perturb_mpm.files.probabilities import check_regions, normalise, sigmoid, softmax
from perturb_mpm.files.source import Digests, InputError, Source

OPTION = "--probabilities"


@dataclass(frozen=True)
class Maps:
    """Numbers of C maps, before it is known what they mean."""

    source: Source
    values: NDArray[np.float32]  # (C, X, Y, Z), may be written to
    geometry: Geometry
    label_map: NDArray[np.float32] | None = None  # (X, Y, Z), nnU-Net's own, beside its .npz


def read_maps(paths: Sequence[Path], reference: Path | None, digests: Digests) -> Maps:
    """Read a 4-D NIfTI (labels last), several 3-D ones, or nnU-Net's .npz."""
    sources = [Source(OPTION, path) for path in paths]
    if not sources:
        raise InputError(f"{OPTION} must name a file, got none")
    if any(source.path.suffix == ".npz" for source in sources):
        if len(sources) > 1:
            raise InputError(f"{OPTION} must name one .npz and nothing else, got {len(sources)}")
        return _from_npz(sources[0], reference, digests)
    if len(sources) == 1:
        return _from_one(read_noted(sources[0], digests))
    return _from_several(sources, digests)


def read_noted(source: Source, digests: Digests) -> Volume:
    """Read a NIfTI file and note its digest."""
    volume = read_volume(source)
    digests.add(source.path, volume.digest)
    return volume


def require_same_grid(source: Source, geometry: Geometry, first: Source, grid: Geometry) -> None:
    """Refuse a file that does not lie on the grid of the first."""
    words = difference(geometry, grid)
    if words is not None:
        raise source.error(f"must lie on the grid of {first}, got {words}")


def _from_one(volume: Volume) -> Maps:
    if volume.voxels.ndim != 4:
        raise volume.source.error(
            "must be 4-D with the labels last, or be given once for each label, "
            f"got one file of shape {volume.voxels.shape}; say --kind labels for a label map"
        )
    values = np.require(np.moveaxis(volume.voxels, -1, 0), requirements=["C", "W"])
    return Maps(volume.source, values, volume.geometry)


def _from_several(sources: list[Source], digests: Digests) -> Maps:
    first = read_noted(sources[0], digests)
    values = np.empty((len(sources), *first.geometry.shape), dtype=np.float32)
    for row, source in enumerate(sources):
        volume = first if row == 0 else read_noted(source, digests)
        if volume.voxels.ndim != 3:
            raise source.error(
                f"must be 3-D where there is one file for each label, got {volume.voxels.shape}"
            )
        require_same_grid(source, volume.geometry, first.source, first.geometry)
        values[row] = volume.voxels
    return Maps(first.source, values, first.geometry)


def _from_npz(source: Source, reference: Path | None, digests: Digests) -> Maps:
    beside = label_map_beside(source.path)
    if reference is not None:
        place = Source("--reference", reference)
    elif beside is not None:
        place = Source(OPTION, beside)
    else:
        raise source.error(
            "does not say where its voxels are; put nnU-Net's label map "
            f"{source.path.stem}.nii.gz beside it, or name a NIfTI of the same grid by --reference"
        )
    values, digest = read_npz(source)
    digests.add(source.path, digest)
    grid = read_noted(place, digests)
    if was_turned(source, digests):
        values = turned_back(values, grid.geometry)
    if values.shape[1:] != grid.geometry.shape:
        z, y, x = values.shape[:0:-1]
        raise source.error(
            f"must have the shape of {place}, got Z, Y, X = {z}, {y}, {x} against "
            f"{', '.join(map(str, grid.geometry.shape[::-1]))}"
        )
    own = None if reference or grid.voxels.ndim != 3 else grid.voxels
    return Maps(source, values, grid.geometry, own)


Kind = Literal["probabilities", "logits", "labels"]


def distribution_of(
    maps: Maps, kind: Kind, dataset: Dataset | None
) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
    """Return the distribution (L, X, Y, Z), and where there is none (X, Y, Z)."""
    values = maps.values
    if dataset is not None and len(values) != dataset.maps:
        what = "labels" if dataset.regions is None else "regions"
        raise maps.source.error(
            f"must have one map for each of the {dataset.maps} {what} of {dataset.source.path}, "
            f"got {len(values)}"
        )
    nowhere = np.zeros(values.shape[1:], dtype=bool)
    if dataset is not None and dataset.regions is not None:
        if kind == "logits":
            sigmoid(values, maps.source)
        check_regions(values, maps.source)
        return dataset.regions.exclusive(values), nowhere
    if not FEWEST_LABELS <= len(values) <= MOST_LABELS:
        raise maps.source.error(
            f"must have {FEWEST_LABELS} to {MOST_LABELS} labels with background, got {len(values)}"
        )
    if kind == "logits":
        softmax(values, maps.source)
        return values, nowhere
    return values, normalise(values, maps.source)
