"""What the kernels make of the marginals, and what that does to the logits.

Messages (K̂_g Q)_i(l) of a group g of kernels are rows on lattices, or exact messages at every
voxel. A lattice's scale and gain are chosen by comparing it with rows of the exact kernel:
``engines/lattice`` says why, and on which part of the image. All scales are tried at once, on
copies of the part side by side.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from perturb_mpm.engines.gpu.chain import (
    LatticeFilter,
    combine,
    factorize,
    filtered_masses,
    row_sums,
)
from perturb_mpm.engines.gpu.device import in_current_stream, on_device
from perturb_mpm.engines.gpu.exact import AllPairs, AlongAxes, ExactFilter, Gaussian
from perturb_mpm.engines.gpu.lattice import Lattice, build
from perturb_mpm.engines.gpu.memory import BatchLayout, Buffers, Needs, require_for_build
from perturb_mpm.engines.gpu.tiles import Tiles, count_rows, make_tiles, slice_group, splat
from perturb_mpm.engines.gpu.update_kernel import MessageCoupling
from perturb_mpm.engines.lattice import (
    BLURS,
    CALIBRATION_SCALES,
    CALIBRATION_VOXELS,
    Blur,
    KernelGroup,
    against_first_label,
    calibration_rows,
    morton_code,
    published_gain,
)
from perturb_mpm.model import (
    BilateralKernel,
    DenseCRF,
    Grid,
    Inside,
    PairwiseTerm,
    SpatialKernel,
)

_FIXED_POINT = 2**20
_SOURCES_AT_ONCE = 2**16


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
    return torch.argsort(morton_code(voxel_coordinates(grid, index), grid.shape), stable=True)


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


def calibrated_scale(features: torch.Tensor, marginals: torch.Tensor, blur: Blur) -> Blur:
    """Return the blur with the scale that filters (N, L) marginals of some voxels best.

    The error is that of K·Q / K·1 at random ones of them.
    """
    n = len(features)
    queries = _queries(n, features.device)
    ones = torch.ones((n, 1), dtype=marginals.dtype, device=marginals.device)
    values = torch.cat([marginals, ones], 1)
    exact = exact_rows(features, queries, values)
    copies = len(CALIBRATION_SCALES)
    lattice = build(features, blur, CALIBRATION_SCALES)
    filtered = filtered_masses(lattice, values)[-1]  # (V, L + 1)
    asked = (torch.arange(copies, device=queries.device)[:, None] * n + queries).reshape(-1)
    weights, columns = lattice.weights[asked], lattice.columns[asked].long()
    found = (weights[:, :, None] * filtered[columns]).sum(1).unflatten(0, (copies, -1))
    wrong = found[..., :-1] / found[..., -1:] - exact[:, :-1] / exact[:, -1:]
    errors = (wrong**2).mean((1, 2))
    return replace(blur, scale=CALIBRATION_SCALES[int(errors.argmin())])


def calibrated_gain(features: torch.Tensor, lattice: Lattice) -> float:
    """Return the factor that makes the lattice's row sums those of the exact kernel on average."""
    queries = _queries(len(features), features.device)
    ones = torch.ones((len(features), 1), dtype=torch.float32, device=features.device)
    exact = exact_rows(features, queries, ones)
    return float(exact.sum() / row_sums(lattice)[queries].sum())


def exact_rows(features: torch.Tensor, queries: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """Return K·values (M, C) at the queried voxels (M,) for features (N, d), values (N, C)."""
    here = features[queries]  # (M, d)
    out = torch.zeros((len(queries), values.shape[1]), dtype=torch.float64, device=values.device)
    for first in range(0, len(features), _SOURCES_AT_ONCE):
        there = features[first : first + _SOURCES_AT_ONCE]
        squares = torch.zeros((len(here), len(there)), device=here.device)
        for k in range(here.shape[1]):  # cdist takes ten times as long
            away = here[:, k, None] - there[:, k]
            squares.addcmul_(away, away)
        out += torch.exp(squares.div_(-2)).double() @ values[first:][: len(there)].double()
    return out


def calibration_part(foreground: torch.Tensor) -> slice:
    """Return the run of voxels, consecutive in the engine's order, with most foreground."""
    size = min(CALIBRATION_VOXELS, len(foreground))
    # Whole numbers: their sums are the same in any order, and the device adds in any.
    units = (foreground.double() * _FIXED_POINT).round().long()
    sums = torch.cat([units.new_zeros(1), units.cumsum(0)])
    start = int((sums[size:] - sums[: len(sums) - size]).argmax())
    return slice(start, start + size)


def _queries(count: int, device: torch.device) -> torch.Tensor:
    return on_device(calibration_rows(count), device)


def lattice_filters(
    crf: DenseCRF,
    order: torch.Tensor,
    index: torch.Tensor,
    unaries: torch.Tensor,
    accuracy: str,
    budget: int,
) -> list[LatticeFilter]:
    """Build a lattice for every kernel; ``unaries`` (L, rows) are in the engine's order."""
    filters = []
    with ThreadPoolExecutor(1) as beside:  # images travel while kernels without any are built
        upload = in_current_stream(upload_images, order.device)
        uploads = [beside.submit(upload, term, order.device) for term in crf.terms]
        part, marginals = slice(0), unaries
        if accuracy != "plain":
            marginals = torch.softmax(-unaries[:, : len(order)], 0).T
            part = calibration_part(1 - marginals[:, 0])
            marginals = marginals[part]
        for term, images in zip(crf.terms, uploads, strict=True):
            features = kernel_features(term, order, index, images.result()).float()
            require_for_build(crf.grid.voxels, features.shape[1], budget)
            blur = BLURS[accuracy]
            if accuracy != "plain":
                blur = calibrated_scale(features[part], marginals, blur)
            lattice = build(features, blur)
            gain = published_gain(features.shape[1])
            # It cancels in normalised kernels.
            if accuracy != "plain" and term.normalization == "none":
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
            images = upload_images(term, order.device)
            gaussian = AllPairs(kernel_features(term, order, index, images), dtype)
        filters.append(ExactFilter(gaussian, crf.grid.voxels, term.normalization))
    return filters


def make_coupling(
    groups: Sequence[KernelGroup],
    filters: Sequence[Any],
    layout: BatchLayout,
    device: torch.device,
    *,
    self_term: bool,
) -> MessageCoupling:
    """Return what messages do to logits; ``filters`` have ``total`` and ``diagonal``, (N,) each."""
    labels, padded = layout.n_labels - 1, layout.padded
    offsets = np.zeros((len(groups), padded), dtype=np.float32)
    matrices = np.zeros((len(groups), padded, padded), dtype=np.float32)
    matrices[:, :labels, :labels], offsets[:, :labels] = against_first_label(groups)
    compatibilities = np.array([group.compatibility for group in groups], dtype=np.float32)
    totals = torch.zeros((len(groups), layout.rows), dtype=torch.float32, device=device)
    diagonals = torch.zeros_like(totals)
    for g, group in enumerate(groups):
        for m, weight in zip(group.members, group.weights, strict=True):
            totals[g, : layout.voxels] += weight * filters[m].total
            if not self_term:
                diagonals[g, : layout.voxels] += weight * filters[m].diagonal
    return MessageCoupling(
        self_term,
        all(group.is_potts for group in groups),
        torch.from_numpy(matrices).to(device),
        torch.from_numpy(offsets).to(device),
        torch.from_numpy(compatibilities).to(device),
        totals,
        diagonals,
    )


class LatticeMessages:
    """Rows on the lattices of all kernels, one lattice after the other."""

    def __init__(
        self,
        filters: Sequence[LatticeFilter],
        groups: Sequence[KernelGroup],
        totals: torch.Tensor,
        dtype: torch.dtype,
    ) -> None:
        """Lay the filters out for the groups' row sums, (G, rows)."""
        self._starts = [sum(f.vertices for f in filters[:m]) for m in range(len(filters))]
        weights = {m: w for g in groups for m, w in zip(g.members, g.weights, strict=True)}
        tiles, outer = make_tiles(
            filters,
            [weights[m] for m in range(len(filters))],
            [g.members for g in groups],
            totals,
            self._starts,
            dtype,
        )
        self.tiles: Tiles | None = tiles
        self._tiles = tiles
        self._totals = totals
        self._chains = [(o, f.passes) for o, f in zip(outer, filters)]
        sizes = [count_rows(f, o) for f, o in zip(filters, outer)]
        # The pieces of a long list lie where the next lattice's rows will be, which are made later.
        ends = [start + size for start, size in zip(self._starts, sizes)]
        self.needs = Needs(max(ends, default=1), max(sizes, default=1), max(1, tiles.entries))

    @property
    def nbytes(self) -> int:
        """The memory that all problems share."""
        matrices = [matrix for outer, passes in self._chains for matrix in (*outer, *passes)]
        return self._tiles.nbytes + sum(matrix.nbytes for matrix in matrices)

    def refresh(self, buffers: Buffers) -> None:
        """Make the rows of the present marginals."""
        width = buffers.layout.width
        splat(self._tiles, buffers.marginals, buffers.partials, width)
        for (outer, passes), start in zip(self._chains, self._starts):
            here, there = buffers.rows[start:], buffers.spare
            if len(passes) % 2:
                here, there = there, here
            combine(outer[0], buffers.partials, here, width)
            for sums in outer[1:]:
                combine(sums, here, here, width)
            for taps in passes:
                combine(taps, here, there, width)
                here, there = there, here

    def receive(self, buffers: Buffers, group: int, first: int, width: int) -> torch.Tensor:
        """Return K̂Q of some channels, summed over a group's kernels, (rows, width)."""
        means = slice_group(self._tiles, buffers.rows, group, buffers.layout, first, width)
        return means.mul_(self._totals[group][:, None])


class ExactMessages:
    """Exact messages at every voxel, group by group."""

    tiles = None

    def __init__(self, filters: Sequence[ExactFilter], groups: Sequence[KernelGroup]) -> None:
        self._filters = filters
        self._groups = groups
        self.needs = Needs(exact_rows=len(groups))

    @property
    def nbytes(self) -> int:
        """The memory that all problems share."""
        return sum(f.nbytes for f in self._filters)

    def refresh(self, buffers: Buffers) -> None:
        """Filter the marginals with every kernel."""
        layout = buffers.layout
        buffers.exact.zero_()
        for g, group in enumerate(self._groups):
            for m, weight in zip(group.members, group.weights, strict=True):
                filtered = self._filters[m].apply(buffers.marginals, layout.width)
                buffers.exact[g, : layout.voxels, : layout.width].add_(filtered, alpha=weight)

    def receive(self, buffers: Buffers, group: int, first: int, width: int) -> torch.Tensor:
        """Return K̂Q of some channels, summed over a group's kernels, (rows, width)."""
        return buffers.exact[group, :, first : first + width].clone()
