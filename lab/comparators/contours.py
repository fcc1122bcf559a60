"""Contours of a binary region drawn from a Gaussian process (Lê et al., Med. Image Anal. 2016)."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from lab.comparators.common import Collector, Samples, generator
from perturb_mpm import checks
from perturb_mpm.engines import require, resolve_budget
from perturb_mpm.model import Grid, digest
from perturb_mpm.posterior import Posterior

_PADDING = 3.0  # lengths √2·ℓ: fields wrap around with a correlation of e⁻⁹
_WORKING_COPIES = 5  # padded arrays of 8 bytes a voxel, in memory at once


def euclidean(region: NDArray[np.bool_], grid: Grid) -> NDArray[np.float64]:
    """Return the distance (*spatial) to the box of the nearest voxel on the other side.

    The contour runs between voxels: one beside it is half a voxel away from it on either side. It
    is a staircase, to which it is up to about half a voxel less far than to a smooth contour.
    """
    outside = _to_nearest(region, grid)
    return outside - _to_nearest(~region, grid)


def geodesic(
    region: NDArray[np.bool_], grid: Grid, image: NDArray[np.floating], edge_mm: float
) -> NDArray[np.float64]:
    """Return the length (*spatial) of the shortest way to the contour, edges making it longer.

    A step of ds in mm counts as √(1 + (edge_mm · |∇I|)²) ds with the z-scored image I and its
    gradient per mm: a rise of one standard deviation is worth ``edge_mm`` more or less.
    """
    from lab.comparators.fast_marching import march

    scaled = (image - image.mean()) / (image.std() or 1.0)
    squares = np.zeros(grid.shape)
    for axis, size in enumerate(grid.shape):
        if size > 1:
            squares += np.gradient(scaled, grid.spacing[axis], axis=axis) ** 2
    slowness = np.sqrt(1 + edge_mm**2 * squares)  # (*spatial)
    straight = euclidean(region, grid)
    beside = np.zeros(grid.shape, dtype=bool)
    for axis in range(grid.ndim):
        differs = np.diff(region, axis=axis)
        ends = [(0, 0)] * grid.ndim
        for before in (0, 1):
            ends[axis] = (before, 1 - before)
            beside |= np.pad(differs, ends)
    times = np.where(beside, np.abs(straight) * slowness, np.inf)
    march(times.reshape(-1), slowness.reshape(-1), np.array(grid.shape), np.array(grid.spacing))
    return np.where(region, times, -times)


def _to_nearest(region: NDArray[np.bool_], grid: Grid) -> NDArray[np.float64]:
    """Return each voxel's distance to the nearest box outside the region, 0 outside."""
    from scipy.ndimage import distance_transform_edt

    nearest = distance_transform_edt(
        region, sampling=grid.spacing, return_distances=False, return_indices=True
    )  # (ndim, *spatial)
    squares = np.zeros(grid.shape)
    for axis, size in enumerate(grid.spacing):
        away = np.abs(nearest[axis] - np.indices(grid.shape, sparse=True)[axis]) * size
        squares += np.maximum(away - size / 2, 0.0) ** 2
    return np.sqrt(squares)


def contours(
    region: ArrayLike,
    samples: Samples,
    seed: int,
    *,
    amplitude_mm: float,
    length_mm: float,
    spacing: float | Sequence[float] | None = None,
    image: ArrayLike | None = None,
    edge_mm: float = 5.0,
) -> Posterior:
    """Draw regions {φ ≥ 0}, φ a Gaussian process around the signed distance to a region's contour.

    The covariance is amplitude² · exp(−r² / 2ℓ²); in the paper's terms w0 = amplitude² and
    w1 = √2·ℓ. The mean contour is the region's own, a voxel is inside with probability
    Φ(distance / amplitude), and nothing but the region and the image's edges matters: the model
    that made the region does not. Sample t depends on the seed and on t alone.

    Two labels only; the region must be neither empty nor all of the image; the memory must hold
    five arrays of 8 bytes a voxel, of the image with a margin of 3·√2·ℓ on each axis.

    Parameters
    ----------
    region
        The voxels inside, (*spatial), where not zero: label 1 of the result.
    samples, seed
        How many, or which range of them; the seed.
    amplitude_mm
        The standard deviation of φ.
    length_mm
        ℓ, how far the deviations of neighbouring parts of the contour go together.
    spacing
        The voxel size in mm, one number or one for each axis; 1 mm where it is None.
    image
        Intensities (*spatial): distances are then geodesic, so the contour moves less where it
        lies on an edge. Without it they are Euclidean.
    edge_mm
        What a rise of the intensity by one standard deviation of the image adds to a distance.
    """
    inside = checks.numeric(region, "region") != 0
    grid = Grid(inside.shape, spacing)
    amplitude = checks.number(amplitude_mm, "amplitude_mm", minimum=0)
    length = checks.number(length_mm, "length_mm", positive=True)
    edge = checks.number(edge_mm, "edge_mm", minimum=0)
    options = {"amplitude_mm": amplitude, "length_mm": length, "edge_mm": edge}
    run = Collector("contours", samples, seed, **options)
    if inside.all() or not inside.any():
        raise ValueError(
            "region must have voxels both inside and outside, or there is no contour; got "
            f"{int(inside.sum())} of {inside.size} voxels inside"
        )
    intensities = None if image is None else _check_image(image, grid)
    field = GaussianField(grid, length)
    if intensities is None:
        distance = euclidean(inside, grid)
    else:
        distance = geodesic(inside, grid, intensities, edge)
    draws = _draw(distance, amplitude, field, run.samples, run.seed)
    return run.collect(grid, 2, draws, digest(inside, grid.spacing, intensities))


class GaussianField:
    """Stationary Gaussian fields of unit variance, correlation exp(−r² / 2ℓ²), by FFT.

    White noise on a torus that is the image and a margin, filtered with the root of the
    correlation's spectrum: at the voxels the correlation is exact but for what wraps around.
    """

    def __init__(self, grid: Grid, length: float) -> None:
        from scipy.fft import next_fast_len

        margin = _PADDING * math.sqrt(2) * length
        self._grid = grid
        self.shape = tuple(
            next_fast_len(size + math.ceil(margin / step), real=True)
            for size, step in zip(grid.shape, grid.spacing)
        )
        require(
            8 * _WORKING_COPIES * math.prod(self.shape),
            resolve_budget(None),
            f"a random field of {' × '.join(map(str, self.shape))} voxels with its margin",
            "use a shorter length_mm, a coarser grid or a smaller image",
        )
        self._filters = []  # one for each axis
        for axis, (size, step) in enumerate(zip(self.shape, grid.spacing)):
            index = np.arange(size)
            away = np.minimum(index, size - index) * step
            spectrum = np.fft.fft(np.exp(-((away / length) ** 2) / 2)).real
            half = spectrum[: size // 2 + 1] if axis == grid.ndim - 1 else spectrum
            root = np.sqrt(np.maximum(half, 0.0))
            self._filters.append(root.reshape(-1, *(1,) * (grid.ndim - 1 - axis)))

    def draw(self, random: np.random.Generator) -> NDArray[np.float64]:
        """Return one field, (*spatial)."""
        from scipy.fft import irfftn, rfftn

        spectrum = rfftn(random.standard_normal(self.shape))
        for root in self._filters:
            spectrum *= root
        field: NDArray[np.float64] = irfftn(spectrum, self.shape)
        return field[tuple(slice(size) for size in self._grid.shape)]


def _draw(
    distance: NDArray[np.float64],
    amplitude: float,
    field: GaussianField,
    samples: range,
    seed: int,
) -> Iterator[NDArray[np.uint8]]:
    for index in samples:
        random = generator("contours", seed, index)
        phi = distance + amplitude * field.draw(random)
        yield (phi >= 0).astype(np.uint8).reshape(1, -1)


def _check_image(image: ArrayLike, grid: Grid) -> NDArray[np.float64]:
    array = checks.floats(image, "image").astype(np.float64)
    if array.shape != grid.shape:
        raise ValueError(f"image must have the region's shape {grid.shape}, got {array.shape}")
    return array
