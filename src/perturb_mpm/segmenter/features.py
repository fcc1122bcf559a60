"""What the trees see of a voxel: families of features, each one function with named columns."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cache, partial
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from perturb_mpm.segmenter.scene import (
    Array3D,
    Scene,
    Slab,
    box_extreme,
    box_mean,
    box_sum,
    map_in_threads,
    whole_voxels,
)

Columns = Iterator[tuple[str, NDArray[np.float32]]]

SMOOTH_MM = (2.0, 4.0, 8.0)


def intensities(slab: Slab) -> Columns:
    """Normalised intensity of each sequence (robust standard deviations from the median)."""
    for name, image in zip(slab.scene.sequences, slab.scene.images):
        yield name, slab.take(image)


def smoothing(slab: Slab) -> Columns:
    """Gaussian mean of each sequence inside the brain, at several scales."""
    for sigma in SMOOTH_MM:
        for name, image in zip(slab.scene.sequences, slab.scene.smooth(sigma)):
            yield f"{name}_smooth_{sigma:g}mm", slab.take(image)


def differences(slab: Slab) -> Columns:
    """Difference of every pair of sequences, as they are and at two scales."""
    scene = slab.scene
    sources = {"": scene.images} | {
        f"_smooth_{sigma:g}mm": scene.smooth(sigma) for sigma in SMOOTH_MM[:2]
    }
    for suffix, images in sources.items():
        values = [slab.take(image) for image in images]
        for first, second in combinations(range(len(values)), 2):
            names = scene.sequences[second], scene.sequences[first]
            yield f"{names[0]}_minus_{names[1]}{suffix}", values[second] - values[first]


def symmetry(slab: Slab) -> Columns:
    """Each sequence minus the same across the mid-sagittal plane, at several scales."""
    scene = slab.scene
    there = scene.nearest(scene.plane.mirror(scene.positions(slab.voxels)))
    for sigma in SMOOTH_MM:
        for name, image in zip(scene.sequences, scene.smooth(sigma)):
            yield f"{name}_asymmetry_{sigma:g}mm", slab.take(image) - image[there]


def location(slab: Slab) -> Columns:
    """Distance from the mid-sagittal plane, position back to front and bottom to top, and depth.

    The first three are shares of the brain's half width, length and height; left and right are
    not told apart.
    """
    scene = slab.scene
    positions = scene.positions(slab.voxels)
    first, last = scene.extent_mm.T
    size = np.maximum(last - first, scene.spacing)
    away = np.abs(scene.plane.distance(positions))
    yield "lateral_share", (away / (size[0] / 2)).astype(np.float32)
    yield "front_share", ((positions[:, 1] - first[1]) / size[1]).astype(np.float32)
    yield "top_share", ((positions[:, 2] - first[2]) / size[2]).astype(np.float32)
    yield "depth_mm", slab.take(scene.depth_mm)


BOXES_MM = ((12.0, 4.0), (24.0, 8.0))  # distance to the box's middle, and from there to its faces
DIRECTIONS = {
    "outwards": (1, 0, 0),  # away from the mid-sagittal plane, so left and right are the same
    "inwards": (-1, 0, 0),
    "front": (0, 1, 0),
    "back": (0, -1, 0),
    "up": (0, 0, 1),
    "down": (0, 0, -1),
}
SURROUNDINGS_MM = (8.0, 16.0)
SURROUNDINGS_SMOOTH_MM = 2.0


def boxes(slab: Slab) -> Columns:
    """Mean of each sequence in a box at a distance, along six rays and at two distances."""
    scene = slab.scene
    positions = scene.positions(slab.voxels)
    outwards = np.where(scene.plane.distance(positions) >= 0, 1.0, -1.0)
    for distance, reach in BOXES_MM:
        means = scene.box_means(reach)
        for direction, (x, y, z) in DIRECTIONS.items():
            step = np.stack([x * outwards, np.full_like(outwards, y), np.full_like(outwards, z)], 1)
            there = scene.nearest(positions + distance * step)
            for name, mean in zip(scene.sequences, means):
                yield f"{name}_box_{direction}_{distance:g}mm", mean[there]


def surroundings(slab: Slab) -> Columns:
    """Largest and smallest smoothed value of each sequence in two large boxes around the voxel."""
    scene = slab.scene
    for reach in SURROUNDINGS_MM:
        for what in ("min", "max"):
            volumes = scene.extremes(SURROUNDINGS_SMOOTH_MM, reach, largest=what == "max")
            for name, volume in zip(scene.sequences, volumes):
                yield f"{name}_around_{what}_{reach:g}mm", slab.take(volume)


NEAR_MM = (2.0, 4.0)  # from the voxel to the faces of the box around it
ENTROPY_BINS = 16
ENTROPY_RANGE = (-4.0, 4.0)  # robust standard deviations; values beyond fall into the end bins
GRADIENT_MM = 2.0
_LEAST_SD = 0.02  # what is flatter has no shape: skewness 0


def statistics(slab: Slab) -> Columns:
    """Mean, standard deviation, skewness, minimum and maximum of each sequence in two boxes."""
    scene = slab.scene
    for reach in NEAR_MM:
        radius = whole_voxels(reach, scene.spacing)
        window = slab.window(radius[0])
        inside = box_sum(scene.weight[window], radius)
        describe = partial(_describe_boxes, mask=scene.mask[window], inside=inside, radius=radius)
        described = map_in_threads(describe, scene.images[:, window])
        for name, volumes in zip(scene.sequences, described):
            for what, volume in zip(("mean", "sd", "skewness", "min", "max"), volumes):
                yield f"{name}_{what}_{reach:g}mm", slab.take_window(volume, radius[0])


def entropies(slab: Slab) -> Columns:
    """Entropy (bits) of each sequence's histogram of 16 fixed bins in the larger box."""
    scene = slab.scene
    radius = whole_voxels(NEAR_MM[-1], scene.spacing)
    window = slab.window(radius[0])
    mask = scene.mask[window]
    inside = box_sum(scene.weight[window], radius)

    def entropy(image: Array3D) -> NDArray[np.float32]:
        bits = _entropy_bits(_bins(image, mask), inside, radius)
        return slab.take_window(bits, radius[0])

    for name, column in zip(scene.sequences, map_in_threads(entropy, scene.images[:, window])):
        yield f"{name}_entropy_{NEAR_MM[-1]:g}mm", column


def gradients(slab: Slab) -> Columns:
    """Gradient magnitude (per mm) of each smoothed sequence; its mean and sd in two boxes."""
    scene = slab.scene
    radii = [whole_voxels(reach, scene.spacing) for reach in NEAR_MM]
    halo = max(radius[0] for radius in radii)
    window = slab.window(halo)
    # One voxel more on each side: the gradient there needs its neighbours.
    wider = slab.window(halo + 1)
    trim = slice(window.start - wider.start, window.stop - wider.start)
    weight = scene.weight[window]
    insides = [box_sum(weight, radius) for radius in radii]

    def describe(image: Array3D) -> list[NDArray[np.float32]]:
        steepness = gradient_magnitude(image, scene.spacing)[trim] * weight
        columns = [slab.take_window(steepness, halo)]
        for radius, inside in zip(radii, insides):
            mean, sd = _mean_and_sd(steepness, inside, radius)
            columns += [slab.take_window(mean, halo), slab.take_window(sd, halo)]
        return columns

    whats = ["", *(f"_{what}_{reach:g}mm" for reach in NEAR_MM for what in ("mean", "sd"))]
    described = map_in_threads(describe, scene.smooth(GRADIENT_MM)[:, wider])
    for name, values in zip(scene.sequences, described):
        for what, column in zip(whats, values):
            yield f"{name}_gradient{what}", column


def gradient_magnitude(image: Array3D, spacing: Sequence[float]) -> Array3D:
    """Return the length of the gradient by central differences, per mm."""
    square = np.zeros_like(image)
    for axis, edge in enumerate(spacing):
        if image.shape[axis] > 1:
            square += np.gradient(image, edge, axis=axis) ** 2
    return np.sqrt(square)


def _mean_and_sd(image: Array3D, inside: Array3D, radius: Sequence[int]) -> tuple[Array3D, Array3D]:
    mean = box_mean(image, inside, radius)
    square = box_mean(image * image, inside, radius)
    return mean, np.sqrt(np.maximum(square - mean * mean, 0))


def _describe_boxes(
    image: Array3D, *, mask: NDArray[np.bool_], inside: Array3D, radius: Sequence[int]
) -> tuple[Array3D, ...]:
    """Return mean, standard deviation, skewness, minimum and maximum in the box of each voxel."""
    mean = box_mean(image, inside, radius)
    square = box_mean(image * image, inside, radius)
    cube = box_mean(image * image * image, inside, radius)
    sd = np.sqrt(np.maximum(square - mean * mean, 0))
    third = cube - 3 * mean * square + 2 * mean**3
    flat = sd < _LEAST_SD
    skewness = np.where(flat, np.float32(0), third / np.maximum(sd, _LEAST_SD) ** 3)
    extremes = (box_extreme(image, mask, radius, largest=each) for each in (False, True))
    return mean, sd, skewness, *extremes


def _bins(image: Array3D, mask: NDArray[np.bool_]) -> NDArray[np.int16]:
    """Return the bin of every voxel, −1 outside the mask."""
    low, high = ENTROPY_RANGE
    scaled = np.floor((image - low) * np.float32(ENTROPY_BINS / (high - low)))
    bins = np.clip(scaled, 0, ENTROPY_BINS - 1).astype(np.int16)
    return np.where(mask, bins, np.int16(-1))


def _entropy_bits(bins: NDArray[np.int16], inside: Array3D, radius: Sequence[int]) -> Array3D:
    bits = np.zeros(bins.shape, dtype=np.float32)
    for each in range(ENTROPY_BINS):
        share = box_mean((bins == each).astype(np.float32), inside, radius)
        found = share > 0
        bits[found] -= share[found] * np.log2(share[found])
    return np.maximum(bits, 0)


FAMILIES: dict[str, Callable[[Slab], Columns]] = {
    "intensities": intensities,
    "smoothed": smoothing,
    "differences": differences,
    "statistics": statistics,
    "entropies": entropies,
    "gradients": gradients,
    "symmetry": symmetry,
    "location": location,
    "boxes": boxes,
    "surroundings": surroundings,
}

SLAB_VOXELS = 200_000
"""About how many voxels of the grid a slab has: what bounds the memory of a slab's features."""


def feature_names(sequences: Sequence[str]) -> tuple[str, ...]:
    """Return the names of the F columns for these sequences, in order."""
    return tuple(name for names in family_names(tuple(sequences)).values() for name in names)


@cache
def family_names(sequences: tuple[str, ...]) -> dict[str, tuple[str, ...]]:
    """Return the names of each family's columns, by asking for those of a scene of a few voxels."""
    shape = (2, 2, 2)
    images = np.zeros((len(sequences), *shape), dtype=np.float32)
    scene = Scene(sequences, images, np.ones(shape, dtype=bool), (1.0, 1.0, 1.0))
    slab = Slab(scene, 0, shape[0])
    return {
        family: tuple(name for name, _ in compute(slab)) for family, compute in FAMILIES.items()
    }


def features_in_slabs(
    scene: Scene, thickness: int | None = None
) -> Iterator[tuple[Slab, NDArray[np.float32]]]:
    """Yield each slab with its features (n, F), slabs along the first axis.

    The thickness of a slab (in voxels) changes how much memory is needed and nothing else.
    """
    if thickness is None:
        thickness = max(1, SLAB_VOXELS // (scene.shape[1] * scene.shape[2]))
    width = len(feature_names(scene.sequences))
    for slab in scene.slabs(thickness):
        table = np.empty((len(slab.voxels), width), dtype=np.float32)
        column = 0
        for compute in FAMILIES.values():
            for _, values in compute(slab):
                table[:, column] = values
                column += 1
        yield slab, table


def feature_table(scene: Scene) -> NDArray[np.float16]:
    """Return the features of all voxels inside the mask, (N, F).

    Half precision tells a thousand values apart in each power of two, more than trees use.
    """
    width = len(feature_names(scene.sequences))
    table = np.empty((np.count_nonzero(scene.mask), width), dtype=np.float16)
    row = 0
    for slab, features in features_in_slabs(scene):
        table[row : row + len(slab.voxels)] = features
        row += len(slab.voxels)
    scene.forget()
    return table
