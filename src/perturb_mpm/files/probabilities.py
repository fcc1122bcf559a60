"""Maps of all labels or regions on one grid, and the distribution over labels they stand for."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from perturb_mpm.checks import FEWEST_LABELS, MOST_LABELS
from perturb_mpm.files.geometry import Geometry
from perturb_mpm.files.images import first_voxel
from perturb_mpm.files.mistakes import labels_axis, scale_advice, scaled_logits_advice
from perturb_mpm.files.nifti import Volume, read_volume, require_same_grid
from perturb_mpm.files.nnunet import (
    Dataset,
    label_map_beside,
    read_npz,
    undo_reorientation,
    was_reoriented,
)
from perturb_mpm.files.source import AnyPath, Digests, InputError, Source

Kind = Literal["probabilities", "logits", "labels"]

SUM_TOLERANCE = 1e-2
_ROUNDING = 1e-6  # how far below 0 the scaling of a file may put a probability
_FOR_LOGITS = 'say `kind="logits"` for a network\'s raw scores'
_FOR_LABELS = '`kind="labels"` for a label map'


@dataclass(frozen=True)
class ScoreMaps:
    """C maps of numbers, before it is known whether they are probabilities or logits."""

    source: Source
    values: NDArray[np.float32]  # (C, X, Y, Z), may be written to
    geometry: Geometry
    label_map: NDArray[np.float32] | None = None  # (X, Y, Z), nnU-Net's own, beside its .npz
    note: str | None = None  # what was assumed about where the voxels are


def read_members(
    paths: Sequence[Path], reference: AnyPath | None, digests: Digests, image: Volume
) -> Iterator[ScoreMaps]:
    """Read one prediction, or one after the other the members of an ensemble.

    A prediction is a 4-D NIfTI (labels last), nnU-Net's .npz, or several 3-D NIfTI, one a label.
    ``image`` says where the voxels of an .npz are that nothing else places.
    """
    sources = [Source("probabilities", path) for path in paths]
    if not sources:
        raise InputError("`probabilities` must name a file, got none")
    if len(set(paths)) < len(paths):
        raise InputError("`probabilities` must name every file once, got one twice")
    archives = [source.path.suffix == ".npz" for source in sources]
    first = None if archives[0] else read_volume(sources[0], digests)
    if len(sources) > 1 and not any(archives) and first is not None and first.voxels.ndim == 3:
        yield _from_several(first, sources, digests)
        return
    for place, (source, archive) in enumerate(zip(sources, archives)):
        if archive:
            yield _from_npz(source, reference, digests, image)
        else:
            volume = read_volume(source, digests) if place or first is None else first
            yield _from_one(volume, image)


def distribution_from_maps(
    maps: ScoreMaps, kind: Kind, dataset: Dataset | None
) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
    """Return the distribution (L, X, Y, Z), and where there is none (X, Y, Z)."""
    values = maps.values
    if len(values) == 1 and (dataset is None or dataset.regions is None):
        return _of_one_map(maps, kind, dataset)
    if dataset is not None and len(values) != dataset.map_count:
        what = "labels" if dataset.regions is None else "regions"
        raise maps.source.error(
            f"must have one map for each of the {dataset.map_count} {what} of "
            f"{dataset.source.path}, got {len(values)}"
        )
    nowhere = np.zeros(values.shape[1:], dtype=bool)
    if dataset is not None and dataset.regions is not None:
        if kind == "logits":
            sigmoid(values, maps.source)
        check_regions(values, maps.source)
        wrong = dataset.regions.contradiction(values)
        if wrong is not None:
            raise maps.source.error(wrong)
        return dataset.regions.exclusive(values), nowhere
    if not FEWEST_LABELS <= len(values) <= MOST_LABELS:
        raise maps.source.error(
            f"must have {FEWEST_LABELS} to {MOST_LABELS} labels with background, got {len(values)}"
        )
    if kind == "logits":
        softmax(values, maps.source)
        return values, nowhere
    return values, normalise(values, maps.source)


def _of_one_map(
    maps: ScoreMaps, kind: Kind, dataset: Dataset | None
) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
    """Return background and foreground (2, X, Y, Z) of the map of a single sigmoid."""
    values = maps.values
    if dataset is not None and len(dataset.labels) != 2:
        raise maps.source.error(
            f"must have one map for each of the {len(dataset.labels)} labels of "
            f"{dataset.source.path}, got 1"
        )
    if kind == "logits":
        sigmoid(values, maps.source)
    elif np.isfinite(values).all() and (values == np.rint(values)).all():
        few = len(np.unique(values)) <= MOST_LABELS
        advice = scale_advice(float(values.max())) if not few or values.max() > 1 else None
        raise maps.source.error(
            "one file must be 4-D with the labels last, or the probability of the foreground, got "
            + (
                f"whole numbers up to {values.max():g}; {advice}"
                if advice
                else f"whole numbers alone, as a label map has them; say {_FOR_LABELS}"
            )
        )
    check_regions(values, maps.source)
    return np.concatenate([1 - values, values]), np.zeros(values.shape[1:], dtype=bool)


def check_finite(values: NDArray[np.float32], source: Source) -> None:
    """Refuse maps (C, X, Y, Z) with a value that is no finite number."""
    for channel, one in enumerate(values):
        bad = ~np.isfinite(one)
        if bad.any():
            raise source.error(
                f"must hold finite numbers, got {int(bad.sum())} NaN or infinite values in map "
                f"{channel}, the first at voxel {first_voxel(bad)}"
            )


def check_not_negative(values: NDArray[np.float32], source: Source) -> None:
    """Refuse negative probabilities (C, X, Y, Z); what is only rounding becomes 0, in place."""
    for channel, one in enumerate(values):
        lowest = one.min()
        if lowest < -_ROUNDING:
            raise source.error(
                f"probabilities must not be negative, got {lowest:.6g} in map {channel} at voxel "
                f"{first_voxel(one < -_ROUNDING)}; {_FOR_LOGITS}"
            )
        if lowest < 0:
            np.maximum(one, 0, out=one)


def normalise(values: NDArray[np.float32], source: Source) -> NDArray[np.bool_]:
    """Make probabilities (L, X, Y, Z) sum to 1, in place, where they already nearly do.

    Voxels without any probability become certain background, as in files that hold nothing
    outside the patient. Returns them (X, Y, Z), for the caller to see that none is inside.
    """
    check_finite(values, source)
    check_not_negative(values, source)
    sums = values.sum(axis=0)  # (X, Y, Z)
    empty: NDArray[np.bool_] = sums == 0
    values[0, empty] = 1
    sums[empty] = 1
    off = np.abs(sums - 1) > SUM_TOLERANCE
    if off.any():
        raise _not_a_distribution(values, sums, off, source)
    values /= sums
    return empty


def softmax(values: NDArray[np.float32], source: Source) -> None:
    """Turn logits (L, X, Y, Z) into probabilities, in place."""
    check_finite(values, source)
    _check_logits(values, source)
    values -= values.max(axis=0)
    np.exp(values, out=values)
    values /= values.sum(axis=0)


def sigmoid(values: NDArray[np.float32], source: Source) -> None:
    """Turn the logits (R, X, Y, Z) of regions into their probabilities, in place."""
    check_finite(values, source)
    _check_logits(values, source)
    values *= 0.5  # the same function by its tanh, which does not overflow on either side
    np.tanh(values, out=values)
    values += 1
    values *= 0.5


def _check_logits(values: NDArray[np.float32], source: Source) -> None:
    wrong = scaled_logits_advice(values)
    if wrong is not None:
        raise source.error(wrong)


def check_regions(values: NDArray[np.float32], source: Source) -> None:
    """Refuse maps (R, X, Y, Z) that cannot each be a probability; what is rounding is clipped."""
    check_finite(values, source)
    check_not_negative(values, source)
    for channel, one in enumerate(values):
        highest = one.max()
        if highest > 1 + SUM_TOLERANCE:
            raise source.error(
                f"a probability must be at most 1, got {highest:.6g} in map {channel}; "
                f"{scale_advice(float(highest)) or _FOR_LOGITS}"
            )
        np.minimum(one, 1, out=one)


def _not_a_distribution(
    values: NDArray[np.float32],
    sums: NDArray[np.float32],
    off: NDArray[np.bool_],
    source: Source,
) -> InputError:
    """Return the error that guesses what the numbers are instead."""
    voxel = first_voxel(off)
    largest = float(values.max())
    hint = "give the map of every label, background first"
    if largest > 1 + SUM_TOLERANCE:
        hint = scale_advice(float(np.median(sums[off]))) or f"{_FOR_LOGITS}, {_FOR_LABELS}"
    elif sums.max() > 1 + SUM_TOLERANCE:
        hint = f"nested regions of an nnU-Net model need its `dataset_json`; {_FOR_LOGITS}"
    return source.error(
        f"probabilities must sum to 1 over the {len(values)} labels to within {SUM_TOLERANCE}, got "
        f"{sums[voxel]:.6g} at voxel {voxel} and {int(off.sum())} such voxels in all; {hint}"
    )


def _from_one(volume: Volume, image: Volume) -> ScoreMaps:
    """Return the maps of one file; a single one is the probability of the foreground."""
    axis = labels_axis(volume.voxels.shape, image.geometry.shape)
    if axis is not None and volume.geometry.shape != image.geometry.shape:
        raise volume.source.error(
            f"must have the labels last, got shape {volume.voxels.shape} with the labels on axis "
            f"{axis}: numpy.moveaxis(maps, {axis}, -1) puts them last"
        )
    maps = volume.voxels if volume.voxels.ndim == 4 else volume.voxels[..., np.newaxis]
    values = np.require(np.moveaxis(maps, -1, 0), requirements=["C", "W"])
    return ScoreMaps(volume.source, values, volume.geometry)


def _from_several(first: Volume, sources: list[Source], digests: Digests) -> ScoreMaps:
    values = np.empty((len(sources), *first.geometry.shape), dtype=np.float32)
    for row, source in enumerate(sources):
        volume = first if row == 0 else read_volume(source, digests)
        if volume.voxels.ndim != 3:
            raise source.error(
                f"must be 3-D where there is one file for each label, got {volume.voxels.shape}"
            )
        require_same_grid(source, volume.geometry, first.source, first.geometry)
        values[row] = volume.voxels
    return ScoreMaps(first.source, values, first.geometry)


def _from_npz(
    source: Source, reference: AnyPath | None, digests: Digests, image: Volume
) -> ScoreMaps:
    values, digest = read_npz(source)
    digests.add(source.path, digest)
    beside = label_map_beside(source.path)
    note = own = None
    if reference is not None:
        grid = read_volume(Source("reference", Path(reference)), digests)
    elif beside is not None:
        grid = read_volume(Source("probabilities", beside), digests)
        own = grid.voxels if grid.voxels.ndim == 3 else None
    else:
        grid = image
        note = (
            f"{source.path.name} does not say where its voxels are, and no label map lies beside "
            f"it: they are taken to be where those of {image.source.path.name} are"
        )
    if was_reoriented(source, digests):
        values = undo_reorientation(values, grid.geometry)
    if values.shape[1:] != grid.geometry.shape:
        z, y, x = values.shape[:0:-1]
        raise source.error(
            f"must have the shape of {grid.source}, got Z, Y, X = {z}, {y}, {x} against "
            f"{', '.join(map(str, grid.geometry.shape[::-1]))}"
            + ("; name a file of its own grid by `reference`" if note else "")
        )
    return ScoreMaps(source, values, grid.geometry, own, note)
