"""The kernels' features, computed on the device."""

from __future__ import annotations

import numpy as np
import torch

from perturb_mpm.engines.gpu.device import on_device
from perturb_mpm.engines.gpu.lattice import curve_codes
from perturb_mpm.model import BilateralKernel, Grid, Inside, PairwiseTerm, SpatialKernel


def voxel_indices(grid: Grid, device: torch.device) -> torch.Tensor:
    """Return ``grid.index`` on the device, (N,)."""
    if grid.mask is None:
        return torch.arange(grid.voxels, device=device)
    return torch.nonzero(on_device(grid.mask.reshape(-1), device))[:, 0]


def voxel_coordinates(grid: Grid, index: torch.Tensor) -> list[torch.Tensor]:
    """Return the coordinates along each axis of voxels with these indices in the image, (N,)."""
    rest, along = index, []
    for size in reversed(grid.shape):
        along.append(rest % size)
        rest = rest // size
    return along[::-1]


def morton_order(grid: Grid, index: torch.Tensor) -> torch.Tensor:
    """Return the voxels inside the mask along a Morton curve, (N,), as on the CPU."""
    return torch.argsort(curve_codes(index, 0, grid.shape, last_is_first=True), stable=True)


def upload_images(term: PairwiseTerm, device: torch.device) -> torch.Tensor | None:
    """Return the images of a bilateral kernel inside the mask, on the device, (C, N)."""
    if not isinstance(term.kernel, BilateralKernel):
        return None
    images = term.kernel.inside(term.grid).images
    assert isinstance(images, Inside)  # noqa: S101
    return on_device(images.at(term.grid), device)


def kernel_features(
    term: PairwiseTerm, order: torch.Tensor, index: torch.Tensor, images: torch.Tensor | None
) -> torch.Tensor:
    """Return a kernel's features in units of sigma, (N, d) float64, in the engine's order.

    ``index`` are the voxels' indices in the whole image in that order, ``images`` those of
    ``upload_images``.
    """
    kernel, grid = term.kernel, term.grid
    if isinstance(kernel, SpatialKernel):
        return _positions(grid, index, kernel.sigma)
    if isinstance(kernel, BilateralKernel) and images is not None:
        positions = _positions(grid, index, kernel.sigma_space)
        return torch.cat([positions, _intensities(kernel, images, order)], dim=1)
    return on_device(term.features(), order.device)[order]


def each(sigma: object, count: int) -> np.ndarray:
    """Return one sigma for each of ``count`` axes or channels."""
    return np.broadcast_to(np.asarray(sigma, dtype=np.float64), (count,))


def _positions(grid: Grid, index: torch.Tensor, sigma: object) -> torch.Tensor:
    units = zip(voxel_coordinates(grid, index), grid.spacing, each(sigma, grid.ndim), strict=True)
    return torch.stack([x.double() * spacing / float(one) for x, spacing, one in units], 1)


def _intensities(
    kernel: BilateralKernel, images: torch.Tensor, order: torch.Tensor
) -> torch.Tensor:
    values = images[:, order].double()  # (C, N)
    if kernel.standardize:
        varies = values.amax(1, keepdim=True) > values.amin(1, keepdim=True)
        values = values - values.mean(1, keepdim=True)
        deviation = values.std(1, keepdim=True, correction=0)
        values = torch.where(varies, values / torch.where(varies, deviation, 1.0), 0.0)
    sigma = torch.tensor(each(kernel.sigma_intensity, len(values)).copy(), device=order.device)
    return (values / sigma[:, None]).T
