"""The images of one patient and the voxels that count, on one grid."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from perturb_mpm.io.case import Geometry, ImageSet
from perturb_mpm.io.errors import InputError, Source
from perturb_mpm.io.geometry import doubts
from perturb_mpm.io.hashing import Digests
from perturb_mpm.io.image_names import derived_names
from perturb_mpm.io.maps import read_noted, require_same_grid
from perturb_mpm.io.masks import counted, derive_mask
from perturb_mpm.io.nifti_read import Volume, opened
from perturb_mpm.io.probabilities import where


@dataclass(frozen=True)
class Pictures:
    """Images before it is known which of their voxels count."""

    sources: tuple[Source, ...]
    images: dict[str, NDArray[np.float32]]  # name -> (X, Y, Z), may be written to
    geometry: Geometry  # of the first


def read_images(
    images: Sequence[Path],
    *,
    mask: Path | None = None,
    image_names: Sequence[str] | None = None,
) -> ImageSet:
    """Read images on one grid, and the mask or what can be told of it.

    Everything that is written later lies on the grid of the first image. Raises ``InputError``
    with one line about the file or option that is wrong.
    """
    digests = Digests()
    pictures = read_pictures(images, digests, image_names=image_names)
    inside, origin = find_mask(pictures, mask, digests)
    warnings = [*doubts(pictures.geometry), *settle(pictures, inside)]
    return ImageSet(
        pictures.images, inside, origin, pictures.geometry, digests.named(), tuple(warnings)
    )


def read_pictures(
    paths: Sequence[Path],
    digests: Digests,
    *,
    image_names: Sequence[str] | None = None,
    channels: dict[int, str] | None = None,
) -> Pictures:
    """Read images and check that they are 3-D and lie on the grid of the first."""
    sources = tuple(Source("--image", path) for path in paths)
    if not sources:
        raise InputError("--image must name at least one file, got none")
    names = _checked_names(image_names, paths, channels)
    require_readable(sources)
    images: dict[str, NDArray[np.float32]] = {}
    geometries: list[Geometry] = []
    for name, source in zip(names, sources):
        volume = _three_dimensional(source, digests)
        geometries.append(volume.geometry)
        require_same_grid(source, volume.geometry, sources[0], geometries[0])
        images[name] = np.require(volume.voxels, requirements=["C", "W"])
    return Pictures(sources, images, geometries[0])


def find_mask(
    pictures: Pictures, path: Path | None, digests: Digests
) -> tuple[NDArray[np.bool_], str]:
    """Return the voxels (X, Y, Z) that count and where that is from: the file, or the images."""
    if path is None:
        mask, origin = derive_mask(pictures.images)
        if not mask.any():
            raise pictures.sources[0].error(
                "must not be 0 everywhere in all images; name the voxels that count by --mask"
            )
        return mask, origin
    volume = _three_dimensional(Source("--mask", path), digests)
    require_same_grid(volume.source, volume.geometry, pictures.sources[0], pictures.geometry)
    mask = np.require(np.nan_to_num(volume.voxels) != 0, requirements=["C"])
    if not mask.any():
        raise volume.source.error("must have voxels that are not 0, got none")
    return mask, "given"


def settle(pictures: Pictures, mask: NDArray[np.bool_]) -> list[str]:
    """Refuse what is no number inside the mask, put 0 in its place outside and say so."""
    warnings = []
    for source, (name, image) in zip(pictures.sources, pictures.images.items()):
        bad = ~np.isfinite(image)
        if not bad.any():
            continue
        inside = bad & mask
        if inside.any():
            raise source.error(
                f"must hold finite numbers inside the mask, got {int(inside.sum())} NaN or "
                f"infinite values there, the first at voxel {where(inside)}"
            )
        image[bad] = 0
        warnings.append(f"image {name}: {counted(bad)} outside the mask are no numbers; set to 0")
    return warnings


def require_readable(sources: Sequence[Source]) -> None:
    """Refuse files that cannot be opened before the first of them is read."""
    for source in sources:
        with opened(source):
            pass


def _three_dimensional(source: Source, digests: Digests) -> Volume:
    volume = read_noted(source, digests)
    if volume.voxels.ndim != 3:
        raise source.error(f"must be 3-D, got shape {volume.voxels.shape}")
    return volume


def _checked_names(
    names: Sequence[str] | None, paths: Sequence[Path], channels: dict[int, str] | None
) -> list[str]:
    if names is None:
        return derived_names(paths, channels)
    if len(names) != len(paths):
        raise InputError(
            f"--image-names must give one name for each of the {len(paths)} images, "
            f"got {len(names)}"
        )
    if len(set(names)) < len(names) or not all(names):
        raise InputError(f"--image-names must be different and not empty, got {', '.join(names)}")
    return list(names)
