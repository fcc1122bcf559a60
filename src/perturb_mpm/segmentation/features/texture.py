"""First-order statistics of intensities and gradients in two neighbourhoods."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from perturb_mpm.segmentation.features.local import Columns
from perturb_mpm.segmentation.filters import Volume, box_extreme, box_mean, box_sum, voxels_of
from perturb_mpm.segmentation.scene import Slab
from perturb_mpm.segmentation.threads import in_threads

NEAR_MM = (2.0, 4.0)  # from the voxel to the faces of the box around it
ENTROPY_BINS = 16
ENTROPY_RANGE = (-4.0, 4.0)  # robust standard deviations; values beyond fall into the end bins
GRADIENT_MM = 2.0
_LEAST_SD = 0.02  # what is flatter has no shape: skewness 0


def statistics(slab: Slab) -> Columns:
    """Mean, standard deviation, skewness, minimum and maximum of each sequence in two boxes."""
    scene = slab.scene
    for reach in NEAR_MM:
        radius = voxels_of(reach, scene.spacing)
        window = slab.window(radius[0])
        mask = scene.mask[window]
        inside = box_sum(scene.weight[window], radius)

        def describe(
            image: Volume,
            mask: NDArray[np.bool_] = mask,
            inside: Volume = inside,
            radius: tuple[int, ...] = radius,
        ) -> list[Volume]:
            moments = (*_moments(image, inside, radius), *_extremes(image, mask, radius))
            return [slab.take_window(values, radius[0]) for values in moments]

        described = in_threads(describe, scene.images[:, window])
        for name, values in zip(scene.sequences, described):
            for what, column in zip(("mean", "sd", "skewness", "min", "max"), values):
                yield f"{name}_{what}_{reach:g}mm", column


def entropies(slab: Slab) -> Columns:
    """Entropy (bits) of each sequence's histogram of 16 fixed bins in the larger box."""
    scene = slab.scene
    radius = voxels_of(NEAR_MM[-1], scene.spacing)
    window = slab.window(radius[0])
    mask = scene.mask[window]
    inside = box_sum(scene.weight[window], radius)

    def entropy(image: Volume) -> NDArray[np.float32]:
        bits = _entropy_bits(_bins(image, mask), inside, radius)
        return slab.take_window(bits, radius[0])

    for name, column in zip(scene.sequences, in_threads(entropy, scene.images[:, window])):
        yield f"{name}_entropy_{NEAR_MM[-1]:g}mm", column


def gradients(slab: Slab) -> Columns:
    """Gradient magnitude (per mm) of each smoothed sequence; its mean and sd in two boxes."""
    scene = slab.scene
    radii = [voxels_of(reach, scene.spacing) for reach in NEAR_MM]
    halo = max(radius[0] for radius in radii)
    window = slab.window(halo)
    # One voxel more on each side: the gradient there needs its neighbours.
    wider = slab.window(halo + 1)
    trim = slice(window.start - wider.start, window.stop - wider.start)
    weight = scene.weight[window]
    insides = [box_sum(weight, radius) for radius in radii]

    def describe(image: Volume) -> list[NDArray[np.float32]]:
        steepness = gradient_magnitude(image, scene.spacing)[trim] * weight
        columns = [slab.take_window(steepness, halo)]
        for radius, inside in zip(radii, insides):
            mean, sd = _mean_and_sd(steepness, inside, radius)
            columns += [slab.take_window(mean, halo), slab.take_window(sd, halo)]
        return columns

    whats = ["", *(f"_{what}_{reach:g}mm" for reach in NEAR_MM for what in ("mean", "sd"))]
    described = in_threads(describe, scene.smoothed(GRADIENT_MM)[:, wider])
    for name, values in zip(scene.sequences, described):
        for what, column in zip(whats, values):
            yield f"{name}_gradient{what}", column


def gradient_magnitude(image: Volume, spacing: Sequence[float]) -> Volume:
    """Return the length of the gradient by central differences, per mm."""
    square = np.zeros_like(image)
    for axis, edge in enumerate(spacing):
        if image.shape[axis] > 1:
            square += np.gradient(image, edge, axis=axis) ** 2
    return np.sqrt(square)


def _mean_and_sd(image: Volume, inside: Volume, radius: Sequence[int]) -> tuple[Volume, Volume]:
    mean = box_mean(image, inside, radius)
    square = box_mean(image * image, inside, radius)
    return mean, np.sqrt(np.maximum(square - mean * mean, 0))


def _moments(image: Volume, inside: Volume, radius: Sequence[int]) -> tuple[Volume, Volume, Volume]:
    mean = box_mean(image, inside, radius)
    square = box_mean(image * image, inside, radius)
    cube = box_mean(image * image * image, inside, radius)
    sd = np.sqrt(np.maximum(square - mean * mean, 0))
    third = cube - 3 * mean * square + 2 * mean**3
    flat = sd < _LEAST_SD
    skewness = np.where(flat, np.float32(0), third / np.maximum(sd, _LEAST_SD) ** 3)
    return mean, sd, skewness


def _extremes(
    image: Volume, mask: NDArray[np.bool_], radius: Sequence[int]
) -> tuple[Volume, Volume]:
    return (
        box_extreme(image, mask, radius, largest=False),
        box_extreme(image, mask, radius, largest=True),
    )


def _bins(image: Volume, mask: NDArray[np.bool_]) -> NDArray[np.int16]:
    """Return the bin of every voxel, −1 outside the mask."""
    low, high = ENTROPY_RANGE
    scaled = np.floor((image - low) * np.float32(ENTROPY_BINS / (high - low)))
    bins = np.clip(scaled, 0, ENTROPY_BINS - 1).astype(np.int16)
    return np.where(mask, bins, np.int16(-1))


def _entropy_bits(bins: NDArray[np.int16], inside: Volume, radius: Sequence[int]) -> Volume:
    bits = np.zeros(bins.shape, dtype=np.float32)
    for each in range(ENTROPY_BINS):
        share = box_mean((bins == each).astype(np.float32), inside, radius)
        found = share > 0
        bits[found] -= share[found] * np.log2(share[found])
    return np.maximum(bits, 0)
