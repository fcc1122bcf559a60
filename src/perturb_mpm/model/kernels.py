"""Gaussian kernels k(f_i, f_j) = exp(−|f_i − f_j|² / 2), their features f in units of sigma."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from perturb_mpm import checks
from perturb_mpm.model.grid import Grid

Normalization = Literal["symmetric", "before", "after", "none"]
Sigma = float | Sequence[float]

# Beyond this many sigmas float32 no longer resolves a hundredth of one, and lattice keys overflow.
LARGEST_FEATURE = 1e5


@dataclass(frozen=True, eq=False)
class Inside:
    """Channels of an image inside the mask of a grid: what is outside takes no memory."""

    values: NDArray[Any]  # (C, N)
    grid: Grid

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the channels on the whole image, (C, *spatial)."""
        return (len(self.values), *self.grid.shape)

    def at(self, grid: Grid) -> NDArray[Any]:
        """Return the voxels of a grid whose mask lies inside this one's, (C, N)."""
        if grid is self.grid:
            return self.values
        ranks = np.searchsorted(self.grid.index, grid.index)
        known = np.take(self.grid.index, ranks, mode="clip") == grid.index
        if not known.all():
            raise ValueError(
                "kernels must know every voxel inside the mask, got those of another CRF, whose "
                f"mask leaves out {int((~known).sum())} of them: make kernels from whole images"
            )
        return np.take(self.values, ranks, axis=1)


class Kernel(ABC):
    """What every kernel shares: a weight, a normalisation and, where it has one, its compatibility.

    With K the matrix of all k(f_i, f_j) and D = K·1 its row sums, both with the self term i = j,
    ``normalization`` makes it D^-½ K D^-½ ("symmetric"), K D⁻¹ ("before"), D⁻¹ K ("after") or
    leaves it as it is ("none"). ``compatibility`` is "potts" or a symmetric (L, L) matrix, and
    None means that of the CRF; ``weight`` multiplies it.
    """

    weight: float
    normalization: Normalization
    compatibility: ArrayLike | None

    @abstractmethod
    def check(self, grid: Grid) -> None:
        """Raise where the kernel does not fit the grid; cheap, nothing is computed."""

    @abstractmethod
    def features_on(self, grid: Grid) -> NDArray[np.float64]:
        """Compute the features of the voxels inside the mask in units of sigma, (N, d)."""

    @abstractmethod
    def dimensions_on(self, grid: Grid) -> int:
        """Return d, the number of features."""

    def inside(self, grid: Grid) -> Kernel:  # noqa: ARG002
        """Return the same kernel, without what it knows of voxels outside the mask."""
        return self

    def _set(self, **values: object) -> None:
        for name, value in values.items():
            object.__setattr__(self, name, value)

    def _check_shared(self) -> None:
        kind = type(self).__name__
        checks.choice(self.normalization, f"normalization of {kind}", get_args(Normalization))
        self._set(weight=checks.nats(self.weight, f"weight of {kind}"))
        if self.compatibility is not None and not isinstance(self.compatibility, str):
            matrix = checks.floats(self.compatibility, f"compatibility of {kind}")
            self._set(compatibility=checks.read_only(matrix))


@dataclass(frozen=True, eq=False)
class SpatialKernel(Kernel):
    """Neighbours in space: features are position / sigma, sigma in mm, one or one for each axis.

    Examples
    --------
    >>> pm.SpatialKernel(sigma=3.0, weight=2.0)  # mm, the same along every axis
    SpatialKernel(sigma=3.0, weight=2.0, normalization='symmetric', compatibility=None)
    >>> pm.SpatialKernel(sigma=(3.0, 3.0, 6.0)).sigma
    (3.0, 3.0, 6.0)
    """

    sigma: Sigma
    weight: float = 1.0
    normalization: Normalization = "symmetric"
    compatibility: ArrayLike | None = None

    def __post_init__(self) -> None:
        self._set(sigma=checks.positive_numbers(self.sigma, "sigma of SpatialKernel"))
        self._check_shared()

    def check(self, grid: Grid) -> None:
        """Check sigma against the axes of the grid."""
        _spatial_sigma(self.sigma, "sigma of SpatialKernel", grid)

    def features_on(self, grid: Grid) -> NDArray[np.float64]:
        """Return position / sigma, (N, ndim)."""
        return grid.positions() / _spatial_sigma(self.sigma, "sigma of SpatialKernel", grid)

    def dimensions_on(self, grid: Grid) -> int:
        """Return the number of axes."""
        return grid.ndim


@dataclass(frozen=True, eq=False)
class BilateralKernel(Kernel):
    """Neighbours in space of like intensity: position / sigma_space, intensity / sigma_intensity.

    ``images`` is (C, *spatial), any number of channels. ``sigma_space`` is in mm, one number or one
    for each axis. ``sigma_intensity`` is in standard deviations of the channel inside the mask, one
    number or one for each channel; with ``standardize=False`` it is in the image's own units.

    Examples
    --------
    >>> images = np.random.default_rng(0).random((2, 8, 8))  # two channels
    >>> kernel = pm.BilateralKernel(images, sigma_space=30.0, sigma_intensity=0.5, weight=5.0)
    >>> kernel.sigma_intensity  # standard deviations
    0.5
    """

    images: ArrayLike | Inside = field(repr=False)
    sigma_space: Sigma
    sigma_intensity: Sigma
    weight: float = 1.0
    normalization: Normalization = "symmetric"
    compatibility: ArrayLike | None = None
    standardize: bool = True

    def __post_init__(self) -> None:
        space, intensity = self.sigma_space, self.sigma_intensity
        self._set(
            images=_channels(self.images, "images of BilateralKernel"),
            sigma_space=checks.positive_numbers(space, "sigma_space of BilateralKernel"),
            sigma_intensity=checks.positive_numbers(
                intensity, "sigma_intensity of BilateralKernel"
            ),
            standardize=checks.flag(self.standardize, "standardize of BilateralKernel"),
        )
        self._check_shared()
        self._intensity_sigma()

    def check(self, grid: Grid) -> None:
        """Check the images against the shape of the grid, and sigma_space against its axes."""
        _check_fits(self.images, "images", "BilateralKernel", grid)
        _spatial_sigma(self.sigma_space, "sigma_space of BilateralKernel", grid)

    def features_on(self, grid: Grid) -> NDArray[np.float64]:
        """Return position / sigma_space, then intensity / sigma_intensity, (N, ndim + C)."""
        self.check(grid)
        sigma = _spatial_sigma(self.sigma_space, "sigma_space of BilateralKernel", grid)
        intensities = _inside(self.images, grid).at(grid).astype(np.float64)  # (C, N)
        with np.errstate(all="ignore"):  # what overflows is found below
            if self.standardize:
                intensities = _standardize(intensities)
            intensities /= self._intensity_sigma()[:, np.newaxis]
        _check_reach(intensities, "sigma_intensity of BilateralKernel")
        return np.concatenate([grid.positions() / sigma, intensities.T], axis=1)

    def dimensions_on(self, grid: Grid) -> int:
        """Return the number of axes and channels."""
        return grid.ndim + _count(self.images)

    def inside(self, grid: Grid) -> BilateralKernel:
        """Return the same kernel with images inside the mask alone."""
        self.check(grid)
        return replace(self, images=_inside(self.images, grid))

    def _intensity_sigma(self) -> NDArray[np.float64]:
        name = "sigma_intensity of BilateralKernel"
        channels = _count(self.images)
        return checks.one_each(_numbers(self.sigma_intensity), name, channels, "channel")


@dataclass(frozen=True, eq=False)
class FeatureKernel(Kernel):
    """Neighbours in any space: ``features`` (d, *spatial) / sigma, one or one for each feature.

    Examples
    --------
    >>> depth_mm = np.arange(12.0).reshape(1, 4, 3)  # one feature
    >>> pm.FeatureKernel(depth_mm, sigma=2.0, weight=1.5).sigma
    2.0
    """

    features: ArrayLike | Inside = field(repr=False)
    sigma: Sigma = 1.0
    weight: float = 1.0
    normalization: Normalization = "symmetric"
    compatibility: ArrayLike | None = None

    def __post_init__(self) -> None:
        self._set(
            features=_channels(self.features, "features of FeatureKernel"),
            sigma=checks.positive_numbers(self.sigma, "sigma of FeatureKernel"),
        )
        self._check_shared()
        self._feature_sigma()

    def check(self, grid: Grid) -> None:
        """Check the features against the shape of the grid."""
        _check_fits(self.features, "features", "FeatureKernel", grid)

    def features_on(self, grid: Grid) -> NDArray[np.float64]:
        """Return features / sigma, (N, d)."""
        self.check(grid)
        features = _inside(self.features, grid).at(grid).astype(np.float64)  # (d, N)
        with np.errstate(over="ignore"):
            features /= self._feature_sigma()[:, np.newaxis]
        _check_reach(features, "sigma of FeatureKernel")
        return np.ascontiguousarray(features.T)

    def dimensions_on(self, grid: Grid) -> int:  # noqa: ARG002
        """Return the number of features."""
        return _count(self.features)

    def inside(self, grid: Grid) -> FeatureKernel:
        """Return the same kernel with features inside the mask alone."""
        self.check(grid)
        return replace(self, features=_inside(self.features, grid))

    def _feature_sigma(self) -> NDArray[np.float64]:
        count = _count(self.features)
        return checks.one_each(_numbers(self.sigma), "sigma of FeatureKernel", count, "feature")


def _inside(channels: ArrayLike | Inside, grid: Grid) -> Inside:
    """Return (C, *spatial) inside the mask of a grid."""
    if isinstance(channels, Inside):
        is_own = channels.grid is grid
        return channels if is_own else Inside(checks.read_only(channels.at(grid)), grid)
    flat = np.asarray(channels).reshape(_count(channels), -1)
    # Indexing alone would lay the channels of a voxel side by side.
    values = flat if grid.mask is None else checks.read_only(np.take(flat, grid.index, axis=1))
    return Inside(values, grid)


def _count(channels: ArrayLike | Inside) -> int:
    return (channels if isinstance(channels, Inside) else np.asarray(channels)).shape[0]


def _numbers(sigma: Sigma) -> float | tuple[float, ...]:
    return tuple(sigma) if isinstance(sigma, Sequence) else sigma


def _channels(value: ArrayLike | Inside, name: str) -> NDArray[Any] | Inside:
    if isinstance(value, Inside):
        checks.at_most(value.values, name, checks.LARGEST_ENERGY)
        return value
    array = checks.floats(value, name)
    checks.at_most(array, name, checks.LARGEST_ENERGY)
    if not 2 <= array.ndim <= 5 or 0 in array.shape:
        raise ValueError(
            f"{name} must be (channels, *spatial) with 1 to 4 spatial axes, none empty, "
            f"got shape {array.shape}"
        )
    return checks.read_only(array)


def _check_fits(channels: ArrayLike | Inside, argument: str, kind: str, grid: Grid) -> None:
    shape = channels.shape if isinstance(channels, Inside) else np.asarray(channels).shape
    if shape[1:] == grid.shape:
        return
    hint = f": pass {argument}[np.newaxis] for one channel" if shape == grid.shape else ""
    wanted = ", ".join(str(n) for n in grid.shape)
    raise ValueError(f"{argument} of {kind} must be (channels, {wanted}), got shape {shape}{hint}")


def _spatial_sigma(sigma: Sigma, name: str, grid: Grid) -> NDArray[np.float64]:
    each = checks.one_each(_numbers(sigma), name, grid.ndim, "axis")
    extent = (np.asarray(grid.shape) - 1) * np.asarray(grid.spacing)  # (ndim,)
    with np.errstate(over="ignore"):
        _check_reach(extent / each, name)
    return each


def _check_reach(features: NDArray[np.float64], name: str) -> None:
    reach = max(float(features.max()), -float(features.min()))
    if not reach <= LARGEST_FEATURE:
        raise ValueError(
            f"{name} must be larger: no voxel may lie beyond {LARGEST_FEATURE:.0e} sigmas "
            f"from the origin, got one at {reach:.1e}"
        )


def _standardize(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Give (C, N) values mean 0 and deviation 1 in each row, 0 in constant rows, in place."""
    for row in values:
        # Rounding of the mean gives even a constant row a tiny spread: ask the values themselves.
        varies = np.ptp(row) > 0
        row -= row.mean()  # noqa: PLW2901
        row /= row.std() if varies else np.inf  # noqa: PLW2901
    return values
