"""Contours of a binary region drawn from a Gaussian process (Lê et al., Med. Image Anal. 2016)."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from perturb_mpm import checks
from perturb_mpm.comparators import signed_distance
from perturb_mpm.comparators.common import Collector, Samples, generator
from perturb_mpm.engines.memory import require, resolve_budget
from perturb_mpm.fingerprint import digest
from perturb_mpm.grid import Grid
from perturb_mpm.posterior import Posterior

_PADDING = 3.0  # lengths √2·ℓ: fields wrap around with a correlation of e⁻⁹
_WORKING_COPIES = 5  # padded arrays of 8 bytes a voxel, held at once


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
    intensities = None if image is None else _checked_image(image, grid)
    field = GaussianField(grid, length)
    if intensities is None:
        distance = signed_distance.euclidean(inside, grid)
    else:
        distance = signed_distance.geodesic(inside, grid, intensities, edge)
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


def _checked_image(image: ArrayLike, grid: Grid) -> NDArray[np.float64]:
    array = checks.floats(image, "image").astype(np.float64)
    if array.shape != grid.shape:
        raise ValueError(f"image must have the region's shape {grid.shape}, got {array.shape}")
    return array
