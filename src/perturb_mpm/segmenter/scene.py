"""A patient as the features see it: normalised sequences on one grid, cut to the brain.

Filters are in mm and see only the voxels inside the mask; each channel has a thread.
The mid-sagittal plane is the one across which a brain is most like its mirror image.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import cached_property
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from perturb_mpm.engines import Compute, available_cores

Array3D = NDArray[np.float32]
Item = TypeVar("Item")
Result = TypeVar("Result")

_TRUNCATE = 3.0  # sigmas at which a Gaussian is cut off
_LEAST_SHARE = 1e-3  # of a filter's weight inside the mask; below it the value is 0
_limit: ContextVar[int | None] = ContextVar("threads", default=None)
_PLANE_MM = 8.0  # the scale at which a brain is compared with its mirror image
_EXTENT = (1.0, 99.0)  # percentiles: a few stray voxels must not stretch the brain
_PLANE_VOXELS = 6000  # compared voxels, spread evenly over the brain
_FIRST_STEPS = (4.0, 0.05, 0.05)  # of the search: mm, radians, radians
_MOST_TRIALS = 150
_MOST_DIFFERENCE = 1.0  # robust standard deviations: a tumour counts as different, however bright
_TILT_PENALTY = 2.0  # for each squared radian: heads lie nearly straight, tumours bulge


@dataclass(frozen=True, eq=False)
class Scene:
    """Normalised sequences inside the brain; axes point right, front and up.

    Features look voxels up all over the brain, so the few smoothed images that they share are
    cached; everything else is made slab by slab.
    """

    sequences: tuple[str, ...]
    images: NDArray[np.float32]  # (C, X, Y, Z), 0 outside the mask
    mask: NDArray[np.bool_]  # (X, Y, Z)
    spacing: tuple[float, float, float]  # mm
    known_plane: SagittalPlane | None = None  # searched for where it is None
    truth: NDArray[np.uint8] | None = None  # (N,), labels 0 … L − 1 inside the mask, where known
    _volumes: dict[tuple[object, ...], NDArray[np.float32]] = field(
        default_factory=dict, repr=False
    )

    @property
    def shape(self) -> tuple[int, int, int]:
        """The number of voxels along each axis."""
        x, y, z = self.mask.shape
        return x, y, z

    @cached_property
    def weight(self) -> Array3D:
        """The mask as numbers, 1 inside and 0 outside, (X, Y, Z)."""
        return self.mask.astype(np.float32)

    def smooth(self, sigma_mm: float) -> NDArray[np.float32]:
        """Return every sequence smoothed by a Gaussian inside the brain, (C, X, Y, Z)."""

        def make() -> list[Array3D]:
            return map_in_threads(
                lambda image: gaussian_mean(image, self.weight, sigma_mm, self.spacing), self.images
            )

        return self._cached(("smoothed", sigma_mm), make)

    def box_means(self, reach_mm: float) -> NDArray[np.float32]:
        """Return every sequence's mean inside the brain in boxes, (C, X, Y, Z).

        The faces of a box lie ``reach_mm`` from its middle.
        """
        radius = whole_voxels(reach_mm, self.spacing)

        def make() -> list[Array3D]:
            inside = box_sum(self.weight, radius)
            return map_in_threads(lambda image: box_mean(image, inside, radius), self.images)

        return self._cached(("box", reach_mm), make)

    def extremes(self, sigma_mm: float, reach_mm: float, *, largest: bool) -> NDArray[np.float32]:
        """Return the largest or smallest smoothed value in boxes, (C, X, Y, Z)."""
        radius = whole_voxels(reach_mm, self.spacing)

        def make() -> list[Array3D]:
            return map_in_threads(
                lambda image: box_extreme(image, self.mask, radius, largest=largest),
                self.smooth(sigma_mm),
            )

        return self._cached(("extreme", sigma_mm, reach_mm, largest), make)

    def forget(self) -> None:
        """Let go of the smoothed images, which are made again when asked for."""
        self._volumes.clear()

    def _cached(
        self, key: tuple[object, ...], make: Callable[[], list[Array3D]]
    ) -> NDArray[np.float32]:
        if key not in self._volumes:
            self._volumes[key] = np.stack(make())
        return self._volumes[key]

    @cached_property
    def plane(self) -> SagittalPlane:
        """The mid-sagittal plane; the brain's outline counts like one more sequence."""
        if self.known_plane is not None:
            return self.known_plane
        channels = (*self.smooth(_PLANE_MM), self.weight)
        return midsagittal_plane(channels, self.mask, self.spacing)

    @cached_property
    def extent_mm(self) -> NDArray[np.float64]:
        """Where the brain begins and ends along each axis, (3, 2) in mm."""
        positions = np.argwhere(self.mask) * np.asarray(self.spacing)
        return np.percentile(positions, _EXTENT, axis=0).T

    @cached_property
    def depth_mm(self) -> Array3D:
        """How far a voxel lies below the surface of the brain, (X, Y, Z)."""
        from scipy.ndimage import binary_fill_holes, distance_transform_edt

        solid = np.pad(binary_fill_holes(self.mask), 1)
        depth: Array3D = distance_transform_edt(solid, sampling=self.spacing).astype(np.float32)
        return depth[1:-1, 1:-1, 1:-1]

    def positions(self, voxels: NDArray[np.intp]) -> NDArray[np.float64]:
        """Return where voxels (n, 3) lie, (n, 3) in mm."""
        return voxels * np.asarray(self.spacing)

    def nearest(self, positions: NDArray[np.float64]) -> tuple[NDArray[np.intp], ...]:
        """Return the three indices (n,) of the voxels nearest to positions (n, 3) in mm."""
        return tuple(
            np.clip(np.rint(positions[:, axis] / edge), 0, size - 1).astype(np.intp)
            for axis, (edge, size) in enumerate(zip(self.spacing, self.shape))
        )

    def slabs(self, thickness: int) -> Iterator[Slab]:
        """Yield the slabs along the first axis that have voxels inside the mask."""
        for start in range(0, self.shape[0], thickness):
            slab = Slab(self, start, min(start + thickness, self.shape[0]))
            if slab.inside.any():
                yield slab


@dataclass(frozen=True, eq=False)
class Slab:
    """The voxels of a scene whose first index lies in [start, stop)."""

    scene: Scene
    start: int
    stop: int

    @cached_property
    def inside(self) -> NDArray[np.bool_]:
        """Which voxels of the slab are inside the mask, (stop − start, Y, Z)."""
        return self.scene.mask[self.start : self.stop]

    @cached_property
    def voxels(self) -> NDArray[np.intp]:
        """The indices in the scene of the n voxels inside the mask, (n, 3)."""
        found = np.argwhere(self.inside)
        found[:, 0] += self.start
        return found

    def take(self, volume: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return the values (n,) of a volume over the whole scene."""
        return volume[self.start : self.stop][self.inside]

    def window(self, halo: int) -> slice:
        """Return the slab's range with ``halo`` voxels more on both sides, inside the scene."""
        return slice(max(0, self.start - halo), min(self.scene.shape[0], self.stop + halo))

    def take_window(self, volume: NDArray[np.float32], halo: int) -> NDArray[np.float32]:
        """Return the values (n,) of a volume over the slab's ``window(halo)``."""
        first = self.start - self.window(halo).start
        return volume[first : first + self.stop - self.start][self.inside]


@dataclass(frozen=True)
class SagittalPlane:
    """The points r (mm) with normal · r = offset; the normal points to the right."""

    normal: tuple[float, ...]  # of length 1
    offset: float  # mm

    def distance(self, positions: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the signed distance (n,) of positions (n, 3) in mm, positive to the right."""
        return positions @ np.asarray(self.normal) - self.offset

    def mirror(self, positions: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the mirror images (n, 3) of positions (n, 3) in mm."""
        across = 2.0 * self.distance(positions)[:, np.newaxis]
        return positions - across * np.asarray(self.normal)


def midsagittal_plane(
    channels: Sequence[NDArray[np.float32]], mask: NDArray[np.bool_], spacing: Sequence[float]
) -> SagittalPlane:
    """Return the plane with the least mean difference between brain and mirror image.

    ``channels`` are smoothed volumes in robust standard deviations. The search begins with the
    plane through the brain's centre at right angles to the first axis.
    """
    from scipy.optimize import minimize

    voxels = np.argwhere(mask)
    positions = voxels * np.asarray(spacing)
    centre = positions.mean(axis=0)
    chosen = np.unique(np.linspace(0, len(voxels) - 1, _PLANE_VOXELS).round().astype(np.intp))
    sample = positions[chosen]
    here = [_interpolate(channel, sample, spacing) for channel in channels]

    def asymmetry(parameters: NDArray[np.float64]) -> float:
        image = _plane(parameters, centre).mirror(sample)
        there = (_interpolate(channel, image, spacing) for channel in channels)
        apart = (np.minimum(np.abs(a - b), _MOST_DIFFERENCE).mean() for a, b in zip(here, there))
        tilt = float(parameters[1] ** 2 + parameters[2] ** 2)
        return float(sum(apart)) + _TILT_PENALTY * tilt

    found = minimize(
        asymmetry,
        np.zeros(3),
        method="Nelder-Mead",
        options={
            "initial_simplex": np.vstack([np.zeros(3), np.diag(_FIRST_STEPS)]),
            "maxfev": _MOST_TRIALS,
            "xatol": 1e-3,
            "fatol": 1e-6,
        },
    )
    return _plane(found.x, centre)


def _plane(parameters: NDArray[np.float64], centre: NDArray[np.float64]) -> SagittalPlane:
    """Return the plane moved by mm along, and turned by two angles from, the first axis."""
    shift, yaw, roll = parameters
    normal = np.array([1.0, np.tan(yaw), np.tan(roll)])
    normal /= np.linalg.norm(normal)
    return SagittalPlane(tuple(normal.tolist()), float(normal @ centre + shift))


def _interpolate(
    volume: NDArray[np.float32], positions: NDArray[np.float64], spacing: Sequence[float]
) -> NDArray[np.float32]:
    from scipy.ndimage import map_coordinates

    return map_coordinates(volume, (positions / np.asarray(spacing)).T, order=1, mode="nearest")


def whole_voxels(length_mm: float, spacing: Sequence[float]) -> tuple[int, ...]:
    """Return a length in whole voxels along each axis, at least one."""
    return tuple(max(1, round(length_mm / edge)) for edge in spacing)


def gaussian_mean(
    image: Array3D, mask: Array3D, sigma_mm: float, spacing: Sequence[float]
) -> Array3D:
    """Return the mean of the voxels inside the mask, weighted by a Gaussian.

    ``image`` must be 0 where ``mask`` is 0. Voxels far outside the mask are 0.
    """
    return _share(_gaussian(image, sigma_mm, spacing), _gaussian(mask, sigma_mm, spacing))


def box_sum(image: Array3D, radius: Sequence[int]) -> Array3D:
    """Return the mean over the box of 2·radius + 1 voxels around each voxel, outside counted as 0.

    Divided by the same of the mask it is the mean inside the mask.
    """
    from scipy.ndimage import correlate1d, uniform_filter1d

    edge = 2 * radius[0] + 1
    weights = np.full(edge, 1.0 / edge)
    # A running sum would depend on where the slab begins.
    result = correlate1d(image, weights, axis=0, mode="constant")
    for axis in (1, 2):
        size = 2 * radius[axis] + 1
        result = uniform_filter1d(result, size, axis=axis, mode="constant")
    return result


def box_mean(image: Array3D, inside: Array3D, radius: Sequence[int]) -> Array3D:
    """Return the mean of the voxels inside the mask in a box; ``inside`` is box_sum of the mask."""
    return _share(box_sum(image, radius), inside)


def box_extreme(
    image: Array3D, mask: NDArray[np.bool_], radius: Sequence[int], *, largest: bool
) -> Array3D:
    """Return the largest or smallest value inside the mask in a box (0 where the box has none)."""
    from scipy.ndimage import maximum_filter, minimum_filter

    nowhere = np.float32(-np.inf if largest else np.inf)
    size = tuple(2 * r + 1 for r in radius)
    apply = maximum_filter if largest else minimum_filter
    found = apply(np.where(mask, image, nowhere), size=size, mode="nearest")
    return np.where(np.isfinite(found), found, np.float32(0))


@contextmanager
def limit_threads(threads: int | None) -> Iterator[None]:
    """Let the segmenter use no more than so many threads, or all processors where it is None."""
    before = _limit.set(Compute(threads=threads).threads)  # checked there
    try:
        yield
    finally:
        _limit.reset(before)


def available_threads() -> int:
    """Return how many threads may be used: the limit, else one for each processor."""
    limit = _limit.get()
    return available_cores() if limit is None else limit


def map_in_threads(task: Callable[[Item], Result], items: Iterable[Item]) -> list[Result]:
    """Return ``task`` of every item, in order; SciPy's filters run side by side."""
    with ThreadPoolExecutor(available_threads()) as executor:
        return list(executor.map(task, items))


def _gaussian(image: Array3D, sigma_mm: float, spacing: Sequence[float]) -> Array3D:
    from scipy.ndimage import gaussian_filter

    sigma = [sigma_mm / edge for edge in spacing]
    return gaussian_filter(image, sigma, mode="constant", truncate=_TRUNCATE)


def _share(total: Array3D, weight: Array3D) -> Array3D:
    enough = weight > _LEAST_SHARE
    return np.divide(total, weight, out=np.zeros_like(total), where=enough)
