"""The images of one patient, their names and the voxels that count, on one grid."""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from perturb_mpm.files.case import Geometry, ImageSet
from perturb_mpm.files.geometry import doubts
from perturb_mpm.files.maps import read_noted, require_same_grid
from perturb_mpm.files.nifti import Volume
from perturb_mpm.files.probabilities import where
from perturb_mpm.files.source import Digests, InputError, Source, open_source

_CORNERS = np.ix_([0, -1], [0, -1], [0, -1])


def derive_mask(
    images: Mapping[str, NDArray[np.float32]],
) -> tuple[NDArray[np.bool_], str]:
    """Return the voxels (X, Y, Z) inside the patient, and in words how they were found.

    Where skull-stripped images are all 0 (or not a number) there is nothing. Images that were
    shifted have another constant there: the one value of all eight corners of the grid. Where
    an image has no such background, every voxel counts.
    """
    backgrounds = dict.fromkeys(images, 0.0)
    mask = _foreground(images, backgrounds)
    if not mask.all():
        return mask, f"derived: the {counted(mask)} where any image is not 0"
    corners = {name: np.unique(image[_CORNERS]) for name, image in images.items()}
    if all(len(values) == 1 for values in corners.values()):
        backgrounds = {name: float(values[0]) for name, values in corners.items()}
        mask = _foreground(images, backgrounds)
        if mask.any():
            return mask, (
                f"derived: the {counted(mask)} where any image differs from the value "
                "that it has in all corners"
            )
    mask = np.ones_like(mask)
    return mask, f"derived: all {counted(mask)}, since the images have no constant background"


def _foreground(
    images: Mapping[str, NDArray[np.float32]], backgrounds: Mapping[str, float]
) -> NDArray[np.bool_]:
    inside = [np.isfinite(image) & (image != backgrounds[name]) for name, image in images.items()]
    found: NDArray[np.bool_] = np.logical_or.reduce(inside)
    return found


def counted(mask: NDArray[np.bool_]) -> str:
    """Return how many voxels of a grid are meant."""
    return f"{int(mask.sum()):,} of {mask.size:,} voxels".replace(",", " ")


SEQUENCES = ("t1", "t1c", "t1ce", "t1gd", "t1n", "t1w", "t2", "t2w", "t2f", "flair", "adc", "dwi")
_CHANNEL = re.compile(r"_(\d{4})$")  # nnU-Net's CASE_0000.nii.gz


def derived_names(paths: Sequence[Path], channels: dict[int, str] | None = None) -> list[str]:
    """Return one short name for each image file, all of them different.

    The name is the sequence that ends the file's name (``P01_t1ce.nii.gz``), or for nnU-Net's
    ``P01_0000.nii.gz`` the channel's name where ``channels`` has it; otherwise what tells the
    files apart, and for a single file its whole name.
    """
    stems = [without_endings(path) for path in paths]
    short = [_short(stem, channels or {}) for stem in stems]
    if all(short) and len(set(short)) == len(short):
        return [name for name in short if name]
    rest = [stem[_shared(stems) :].strip("_-. ") for stem in stems]
    for names in (rest, stems):
        if all(names) and len(set(names)) == len(names):
            return names
    return [f"{place}_{stem}" for place, stem in enumerate(stems, start=1)]


def without_endings(path: Path) -> str:
    """Return the name of a file without .nii, .nii.gz or .npz."""
    return re.sub(r"(\.nii)?(\.gz)?$|\.npz$", "", path.name)


def _shared(stems: Sequence[str]) -> int:
    """Return how many letters all names begin with."""
    same = (len(set(letters)) == 1 for letters in zip(*stems))
    return sum(1 for _ in itertools.takewhile(bool, same)) if len(stems) > 1 else 0


def _short(stem: str, channels: dict[int, str]) -> str | None:
    channel = _CHANNEL.search(stem)
    if channel:
        return channels.get(int(channel[1]), channel[1])
    last = re.split(r"[_\-. ]", stem)[-1]
    return last if last.lower() in SEQUENCES else None


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
        with open_source(source):
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
