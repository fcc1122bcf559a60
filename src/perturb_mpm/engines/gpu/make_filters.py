"""The filters of a CRF's kernels, as accurate as asked for."""

from __future__ import annotations

import torch

from perturb_mpm.crf import DenseCRF
from perturb_mpm.engines.cpu.filters import published_gain
from perturb_mpm.engines.cpu.solver import BLURS
from perturb_mpm.engines.gpu.calibration import calibrated_gain, calibrated_scale
from perturb_mpm.engines.gpu.exact import AllPairs, AlongAxes, ExactFilter, Gaussian
from perturb_mpm.engines.gpu.features import each, features_of
from perturb_mpm.engines.gpu.filters import LatticeFilter, factorize
from perturb_mpm.engines.gpu.lattice import build
from perturb_mpm.engines.gpu.plan import require_for_build
from perturb_mpm.kernels import SpatialKernel


def lattice_filters(
    crf: DenseCRF,
    order: torch.Tensor,
    index: torch.Tensor,
    unaries: torch.Tensor,
    accuracy: str,
    budget: int,
) -> list[LatticeFilter]:
    """Build a lattice for every kernel; ``unaries`` (L, rows) are in the engine's order."""
    marginals = torch.softmax(-unaries[:, : len(order)], 0).T if accuracy != "plain" else unaries
    filters = []
    for term in crf.terms:
        features = features_of(term, order, index).float()
        require_for_build(crf.grid.voxels, features.shape[1], budget)
        blur = BLURS[accuracy]
        if accuracy != "plain":
            blur = calibrated_scale(features, marginals, blur)
        lattice = build(features, blur)
        gain = published_gain(features.shape[1])
        if accuracy != "plain" and term.normalization == "none":  # cancels in all others
            gain = calibrated_gain(features, lattice)
        filters.append(factorize(lattice, term.normalization, gain))
    return filters


def exact_filters(
    crf: DenseCRF, order: torch.Tensor, index: torch.Tensor, dtype: torch.dtype
) -> list[ExactFilter]:
    """Make an exact filter of every kernel."""
    filters = []
    for term in crf.terms:
        kernel = term.kernel
        gaussian: Gaussian
        if isinstance(kernel, SpatialKernel):
            gaussian = AlongAxes(crf.grid, each(kernel.sigma, crf.grid.ndim), index)
        else:
            gaussian = AllPairs(features_of(term, order, index), dtype)
        filters.append(ExactFilter(gaussian, crf.grid.voxels, term.normalization))
    return filters
