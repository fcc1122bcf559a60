"""From a patient's sequences to a scene: checked, turned, cut to the brain, normalised.

Before that, SimpleITK (the extra ``itk``) can resample them to one grid and correct their bias
fields.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from perturb_mpm import checks
from perturb_mpm.files import CaseFiles, ImageSet, InputError, LabelScheme, read_images
from perturb_mpm.model import bounding_box
from perturb_mpm.optional import optional_package
from perturb_mpm.segmenter.scene import Scene

_LIMIT = 10.0  # robust standard deviations; beyond lie vessels and artefacts
_TO_LPS = np.diag([-1.0, -1.0, 1.0, 1.0])  # ITK's axes point left and back
_TO_SD = 1.349  # the interquartile range of a normal distribution with standard deviation 1


@dataclass(frozen=True, eq=False)
class Prepared:
    """A scene, and the way back to the patient's own grid."""

    scene: Scene
    shape: tuple[int, ...]  # of the patient's own grid
    turn: NDArray[np.float64]  # (3, 2), as nibabel has it, to axes that point right, front and up
    box: tuple[slice, ...]  # of the scene in the turned grid

    def restore(self, values: NDArray[np.float32], outside: ArrayLike) -> NDArray[np.float32]:
        """Put values (L, N) back into the patient's own grid, (L, *shape).

        Voxels outside the mask take ``outside``, one value for each of the L.
        """
        from nibabel.orientations import apply_orientation

        whole = np.empty((len(values), *self.shape), dtype=values.dtype)
        whole[...] = np.reshape(outside, (-1, 1, 1, 1))
        # What is cut out is a view: what is written to it stands in the own grid.
        cut = apply_orientation(np.moveaxis(whole, 0, -1), self.turn)[self.box]
        cut[self.scene.mask] = values.T
        return whole


def prepare(
    images: Mapping[str, ArrayLike],
    affine: ArrayLike,
    mask: ArrayLike | None = None,
    truth: NDArray[np.uint8] | None = None,
) -> Prepared:
    """Return the scene of a patient whose sequences are on one grid.

    Parameters
    ----------
    images
        The sequences (X, Y, Z) by name, in the order that the features take them.
    affine
        (4, 4), from voxel indices to mm, axes pointing right, front and up. It gives the spacing
        and the patient's orientation; tilts are left to the search for the mid-sagittal plane.
    mask
        The brain. Without it a voxel is inside where any sequence is not zero.
    truth
        (X, Y, Z), the true labels 0 … L − 1, where they are known.
    """
    from nibabel.orientations import apply_orientation, io_orientation

    volumes = _check_images(images)
    matrix = checks.affine(affine, "affine")
    brain = brain_mask(list(volumes.values())) if mask is None else _check_mask(mask, volumes)
    turn = io_orientation(matrix)  # (3, 2): for each own axis the world's axis, and its sign
    spacing = np.linalg.norm(matrix[:3, :3], axis=0)[np.argsort(turn[:, 0])]
    turned_mask = apply_orientation(brain, turn)
    box = bounding_box(turned_mask)
    inside = np.ascontiguousarray(turned_mask[box])
    normalised = np.zeros((len(volumes), *inside.shape), dtype=np.float32)
    for channel, (name, volume) in zip(normalised, volumes.items()):
        channel[inside] = robust_scores(apply_orientation(volume, turn)[box][inside], name)
    x, y, z = (float(edge) for edge in spacing)
    if truth is not None and truth.shape != brain.shape:
        raise ValueError(f"truth must have the images' shape {brain.shape}, got {truth.shape}")
    known = None if truth is None else apply_orientation(truth, turn)[box][inside]
    scene = Scene(tuple(volumes), normalised, inside, (x, y, z), truth=known)
    return Prepared(scene, brain.shape, turn, box)


def prepare_images(
    found: ImageSet, what: str = "`images`", truth: NDArray[np.uint8] | None = None
) -> Prepared:
    """Do the same with images that were read from files; what is wrong names ``what``."""
    try:
        return prepare(found.images, found.geometry.affine, found.mask, truth)
    except ValueError as error:
        raise InputError(f"{what}: {error}") from error


def read_scene(case: CaseFiles, sequences: Sequence[str], scheme: LabelScheme) -> Scene:
    """Read a labelled case: its sequences on one grid, and its labels on the same."""
    wanted = case.select_images(sequences)
    found = read_images(
        list(wanted.values()), mask=case.mask, image_names=list(wanted), named_by="data"
    )
    truth = case.read_truth(found.geometry, scheme)
    return prepare_images(found, f"`data`: case {case.name}", truth).scene


def brain_mask(volumes: Sequence[NDArray[np.float32]]) -> NDArray[np.bool_]:
    """Return where any sequence is not zero, as in skull-stripped images."""
    inside = np.zeros(volumes[0].shape, dtype=bool)
    for volume in volumes:
        inside |= volume != 0
    if not inside.any():
        raise ValueError("images must have a voxel that is not zero, got zeros only")
    return inside


def robust_scores(values: NDArray[Any], name: str) -> NDArray[np.float32]:
    """Return values as robust standard deviations from their median.

    The scale is the interquartile range, which neither a tumour nor a few bright vessels move
    far; results are cut at ±10.
    """
    low, middle, high = np.percentile(values, (25, 50, 75))
    scale = (high - low) / _TO_SD
    if not scale > 0:
        raise ValueError(
            f"images must vary inside the mask, got {name} with {middle:g} in half of its voxels "
            "or more: is the mask the brain's?"
        )
    scores = (values.astype(np.float64) - middle) / scale
    return np.clip(scores, -_LIMIT, _LIMIT).astype(np.float32)


def _check_images(images: Mapping[str, ArrayLike]) -> dict[str, NDArray[np.float32]]:
    if not images:
        raise ValueError("images must hold at least one sequence, got none")
    volumes = {
        name: np.asarray(checks.numeric(image, f"images[{name!r}]"), dtype=np.float32)
        for name, image in images.items()
    }
    first, *others = volumes
    if volumes[first].ndim != 3:
        raise ValueError(f"images must be (X, Y, Z), got {first} with {volumes[first].shape}")
    for name in others:
        if volumes[name].shape != volumes[first].shape:
            raise ValueError(
                f"images must be on one grid, got {first} with {volumes[first].shape} and {name} "
                f"with {volumes[name].shape}: resample them first (perturb_mpm.segmenter.resample)"
            )
    for name, volume in volumes.items():
        checks.finite(volume, f"images[{name!r}]")
    return volumes


def _check_mask(mask: ArrayLike, volumes: Mapping[str, NDArray[np.float32]]) -> NDArray[np.bool_]:
    inside: NDArray[np.bool_] = checks.numeric(mask, "mask") != 0
    shape = next(iter(volumes.values())).shape
    if inside.shape != shape:
        raise ValueError(f"mask must have the images' shape {shape}, got {inside.shape}")
    if not inside.any():
        raise ValueError("mask must contain at least one voxel, got an empty mask")
    return inside


def resample(
    image: ArrayLike,
    affine: ArrayLike,
    shape: Sequence[int],
    onto: ArrayLike,
    *,
    labels: bool = False,
) -> NDArray[np.float32]:
    """Return an image (X, Y, Z) on another grid, 0 where it does not reach.

    Parameters
    ----------
    image
        The image.
    affine
        (4, 4), from its voxel indices to mm.
    shape
        The shape of the grid wanted.
    onto
        (4, 4), from the voxel indices of the grid wanted to mm.
    labels
        Take the nearest voxel and do not interpolate, as a label map needs it.
    """
    itk = optional_package("SimpleITK", "resampling")
    how = itk.sitkNearestNeighbor if labels else itk.sitkLinear
    grid = _to_itk(itk, np.zeros(tuple(shape), dtype=np.float32), onto)
    moved = itk.Resample(_to_itk(itk, image, affine), grid, itk.Transform(3, itk.sitkIdentity), how)
    return _from_itk(itk, moved)


def correct_bias(
    image: ArrayLike,
    mask: ArrayLike,
    affine: ArrayLike,
    *,
    shrink: int = 4,
    iterations: Sequence[int] = (50, 50, 50),
) -> NDArray[np.float32]:
    """Return an image (X, Y, Z) divided by its smooth bias field (N4, Tustison et al. 2010).

    The field is estimated inside the mask on a grid that is ``shrink`` times coarser.
    """
    itk = optional_package("SimpleITK", "the correction of the bias field")
    checks.integer(shrink, "shrink", minimum=1)
    whole = _to_itk(itk, image, affine)
    inside = itk.Cast(_to_itk(itk, np.asarray(mask) != 0, affine), itk.sitkUInt8)
    factors = [min(shrink, size) for size in whole.GetSize()]
    corrector = itk.N4BiasFieldCorrectionImageFilter()
    corrector.SetMaximumNumberOfIterations([int(count) for count in iterations])
    corrector.Execute(itk.Shrink(whole, factors), itk.Shrink(inside, factors))
    field = itk.Exp(corrector.GetLogBiasFieldAsImage(whole))
    return _from_itk(itk, whole / itk.Cast(field, itk.sitkFloat32))


def _to_itk(itk: Any, voxels: ArrayLike, affine: ArrayLike) -> Any:  # noqa: ANN401 - no types
    array = np.asarray(checks.numeric(voxels, "image"), dtype=np.float32)
    if array.ndim != 3:
        raise ValueError(f"image must be (X, Y, Z), got {array.shape}")
    matrix = _TO_LPS @ np.asarray(affine, dtype=np.float64)
    spacing = np.linalg.norm(matrix[:3, :3], axis=0)
    image = itk.GetImageFromArray(array.transpose(2, 1, 0))
    image.SetSpacing(spacing.tolist())
    image.SetOrigin(matrix[:3, 3].tolist())
    image.SetDirection((matrix[:3, :3] / spacing).ravel().tolist())
    return image


def _from_itk(itk: Any, image: Any) -> NDArray[np.float32]:  # noqa: ANN401 - no types
    voxels: NDArray[np.float32] = itk.GetArrayFromImage(image)
    return np.ascontiguousarray(voxels.transpose(2, 1, 0), dtype=np.float32)
