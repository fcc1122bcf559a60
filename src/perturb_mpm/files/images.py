"""The images of one patient on one grid: their names, and the mask of the voxels that count."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from perturb_mpm.files.formats import PICTURE_ENDINGS
from perturb_mpm.files.geometry import Geometry
from perturb_mpm.files.names import name_images, other_patient_warnings
from perturb_mpm.files.source import (
    AnyPath,
    Digests,
    InputError,
    Paths,
    Source,
    all_paths,
    require_readable,
)
from perturb_mpm.files.volumes import Volume, align, read_volume, read_volume_3d

MOST_READERS = 4  # files that are unpacked at the same time
_COLOURS = ("_red", "_green", "_blue")
_CORNERS = np.ix_([0, -1], [0, -1], [0, -1])


@dataclass(frozen=True)
class ImageSet:
    """Images and mask of one patient on one grid, a ``Case`` before it has probabilities.

    Examples
    --------
    >>> from perturb_mpm.files import read_images
    >>> images = read_images("t1c.nii.gz")
    >>> images.geometry.spacing, images.mask_origin
    ((8.0, 8.0, 8.0), 'derived: the 2 601 of 10 500 voxels where any image is not 0')
    """

    images: dict[str, NDArray[np.float32]]  # name -> (X, Y, Z)
    mask: NDArray[np.bool_]  # (X, Y, Z)
    mask_origin: str  # "given", or in words how it was derived
    geometry: Geometry
    hashes: dict[str, str]  # file name -> SHA-256 of every file that was read
    warnings: tuple[str, ...] = ()


def read_images(
    images: Paths,
    *,
    mask: AnyPath | None = None,
    image_names: Sequence[str] | None = None,
    named_by: str | None = None,
) -> ImageSet:
    """Read images on one grid and their mask; raise ``InputError`` in one line where they fail.

    Parameters
    ----------
    images
        A NIfTI file for each sequence. Everything that is written lies on the grid of the first.
    mask
        A NIfTI that is not 0 where voxels count; else it is derived from the images.
    image_names
        Short names of the images; else from their files' names.
    named_by
        The argument that errors name where one has named images and mask, such as ``data``.

    Examples
    --------
    >>> from perturb_mpm.files import read_images
    >>> sorted(read_images(["t1c.nii.gz", "flair.nii.gz"]).images)
    ['flair', 't1c']
    """
    digests = Digests()
    volumes = read_image_volumes(images, digests, image_names=image_names, named_by=named_by)
    geometry = next(iter(volumes.values())).geometry
    inside, origin, notes = find_mask(volumes, mask, digests, named_by)
    found, warnings = clean_images(volumes, inside)
    notes = (*notes, *geometry.warnings(), *warnings)
    return ImageSet(found, inside, origin, geometry, digests.by_name(), notes)


def read_image_volumes(
    images: Paths,
    digests: Digests,
    *,
    image_names: Sequence[str] | None = None,
    channels: dict[int, str] | None = None,
    named_by: str | None = None,
) -> dict[str, Volume]:
    """Read images by name, and check that they are 3-D and lie on the grid of the first."""
    argument = named_by or "images"
    paths = all_paths(images)
    sources = [Source(argument, path) for path in paths]
    if not sources:
        raise InputError(f"`{argument}` must name at least one file, got none")
    names = _choose_names(image_names, paths, channels)
    require_readable(sources)
    volumes: dict[str, Volume] = {}
    for name, (read, digest) in zip(names, _read_side_by_side(sources)):
        digests.take(digest)
        volume = align(read, next(iter(volumes.values()), read))
        for channel, voxels in _split_colours(volume).items():
            own = np.require(voxels, requirements=["C", "W"])
            volumes[f"{name}{channel}"] = replace(volume, voxels=own)
    return volumes


def _read_side_by_side(sources: Sequence[Source]) -> Iterator[tuple[Volume, Digests]]:
    """Yield the volumes of files in their order, with their digests: gzip leaves Python free."""

    def read(source: Source) -> tuple[Volume, Digests]:
        digests = Digests()
        return read_volume(source, digests), digests

    with ThreadPoolExecutor(MOST_READERS) as pool:
        yield from pool.map(read, sources)


def _split_colours(volume: Volume) -> dict[str, NDArray[np.float32]]:
    """Return the one image of a file, or the colours of a picture by what their names end in."""
    if volume.voxels.ndim == 3:
        return {"": volume.voxels}
    colours = volume.source.path.suffix.lower() in PICTURE_ENDINGS
    if not colours or volume.voxels.shape[3] != len(_COLOURS):
        hint = "; pages of a TIFF are slices where nnU-Net's CASE.json has the spacing"
        raise volume.source.error(
            f"must be 3-D, got shape {volume.voxels.shape}{hint if colours else ''}"
        )
    return dict(zip(_COLOURS, np.moveaxis(volume.voxels, -1, 0)))


def find_mask(
    images: Mapping[str, Volume],
    path: AnyPath | None,
    digests: Digests,
    named_by: str | None = None,
) -> tuple[NDArray[np.bool_], str, tuple[str, ...]]:
    """Return the voxels (X, Y, Z) that count, where that is from, and what was done to the file."""
    first = next(iter(images.values()))
    if path is None:
        mask, origin = derive_mask({name: image.voxels for name, image in images.items()})
        if not mask.any():
            raise first.source.error(
                "must not be 0 everywhere in all images; name the voxels that count by `mask`"
            )
        return mask, origin, ()
    volume = align(read_volume_3d(Source(named_by or "mask", Path(path)), digests), first)
    mask = np.require(np.nan_to_num(volume.voxels) != 0, requirements=["C"])
    if not mask.any():
        raise volume.source.error("must have voxels that are not 0, got none")
    return mask, "given", volume.notes


def derive_mask(images: Mapping[str, NDArray[np.float32]]) -> tuple[NDArray[np.bool_], str]:
    """Return the voxels (X, Y, Z) inside the patient, and in words how they were found.

    Where skull-stripped images are all 0 (or not a number) there is nothing. Images that were
    shifted have another constant there: the one value of all eight corners of the grid. Where
    an image has no such background, every voxel counts.
    """
    backgrounds = dict.fromkeys(images, 0.0)
    mask = _foreground(images, backgrounds)
    if not mask.all():
        return mask, f"derived: the {voxel_count(mask)} where any image is not 0"
    corners = {name: np.unique(image[_CORNERS]) for name, image in images.items()}
    if all(len(values) == 1 for values in corners.values()):
        backgrounds = {name: float(values[0]) for name, values in corners.items()}
        mask = _foreground(images, backgrounds)
        if mask.any():
            return mask, (
                f"derived: the {voxel_count(mask)} where any image differs from the value "
                "that it has in all corners"
            )
    mask = np.ones_like(mask)
    return mask, f"derived: all {voxel_count(mask)}, since the images have no constant background"


def _foreground(
    images: Mapping[str, NDArray[np.float32]], backgrounds: Mapping[str, float]
) -> NDArray[np.bool_]:
    shape = next(iter(images.values())).shape
    found, inside, finite = (np.zeros(shape, dtype=np.bool_) for _ in range(3))
    for name, image in images.items():
        np.not_equal(image, backgrounds[name], out=inside)
        inside &= np.isfinite(image, out=finite)
        found |= inside
    return found


def clean_images(
    images: Mapping[str, Volume], mask: NDArray[np.bool_]
) -> tuple[dict[str, NDArray[np.float32]], list[str]]:
    """Return the images with 0 for NaN and infinity outside the mask, and warnings about them.

    Inside the mask they are refused. The volumes' own voxels change.
    """
    paths = [image.source.path for image in images.values()]
    warnings = [note for image in images.values() for note in image.notes]
    warnings += other_patient_warnings(paths[0], paths[1:], channels=True)
    for name, image in images.items():
        finite = np.isfinite(image.voxels)
        if finite.all():
            continue
        bad = ~finite
        inside = bad & mask
        if inside.any():
            raise image.source.error(
                f"must hold finite numbers inside the mask, got {int(inside.sum())} NaN or "
                f"infinite values there, the first at voxel {first_voxel(inside)}"
            )
        image.voxels[bad] = 0
        warnings.append(
            f"image {name}: {voxel_count(bad)} outside the mask are no numbers; set to 0"
        )
    warnings += [
        f"image {name} has the same value everywhere inside the mask and says nothing about the "
        "labels: is it a mask?"
        for name, image in images.items()
        if image.voxels[mask].min() == image.voxels[mask].max()
    ]
    return {name: image.voxels for name, image in images.items()}, warnings


def voxel_count(mask: NDArray[np.bool_]) -> str:
    """Return how many voxels of its grid a mask has, such as "24 of 120 voxels"."""
    return f"{int(mask.sum()):,} of {mask.size:,} voxels".replace(",", " ")


def first_voxel(mask: NDArray[np.bool_]) -> tuple[int, ...]:
    """Return the index of the first voxel of a mask."""
    return tuple(int(i) for i in np.unravel_index(int(mask.argmax()), mask.shape))


def _choose_names(
    names: Sequence[str] | None, paths: Sequence[Path], channels: dict[int, str] | None
) -> list[str]:
    if names is None:
        return name_images(paths, channels)
    if len(names) != len(paths):
        raise InputError(
            f"`image_names` must give one name for each of the {len(paths)} images, "
            f"got {len(names)}"
        )
    if len(set(names)) < len(names) or not all(names):
        raise InputError(f"`image_names` must be different and not empty, got {', '.join(names)}")
    return list(names)
