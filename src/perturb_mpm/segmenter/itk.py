"""Resampling to one grid and correction of the bias field, with SimpleITK (the extra ``itk``)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from perturb_mpm import checks
from perturb_mpm.optional import optional_package

_TO_LPS = np.diag([-1.0, -1.0, 1.0, 1.0])  # ITK's axes point left and back


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
    grid = _image(itk, np.zeros(tuple(shape), dtype=np.float32), onto)
    moved = itk.Resample(_image(itk, image, affine), grid, itk.Transform(3, itk.sitkIdentity), how)
    return _array(itk, moved)


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
    whole = _image(itk, image, affine)
    inside = itk.Cast(_image(itk, np.asarray(mask) != 0, affine), itk.sitkUInt8)
    factors = [min(shrink, size) for size in whole.GetSize()]
    corrector = itk.N4BiasFieldCorrectionImageFilter()
    corrector.SetMaximumNumberOfIterations([int(count) for count in iterations])
    corrector.Execute(itk.Shrink(whole, factors), itk.Shrink(inside, factors))
    field = itk.Exp(corrector.GetLogBiasFieldAsImage(whole))
    return _array(itk, whole / itk.Cast(field, itk.sitkFloat32))


def _image(itk: Any, voxels: ArrayLike, affine: ArrayLike) -> Any:  # noqa: ANN401 - no types
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


def _array(itk: Any, image: Any) -> NDArray[np.float32]:  # noqa: ANN401 - no types
    voxels: NDArray[np.float32] = itk.GetArrayFromImage(image)
    return np.ascontiguousarray(voxels.transpose(2, 1, 0), dtype=np.float32)
