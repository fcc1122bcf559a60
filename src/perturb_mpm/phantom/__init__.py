"""A brain with a glioma, made from a seed: example data that needs no download."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from perturb_mpm.phantom.anatomy import BRAIN_HALF_AXES_MM, brain_depth_mm, healthy_tissue
from perturb_mpm.phantom.classifier import classify
from perturb_mpm.phantom.scanner import CHANNEL_NAMES, scan
from perturb_mpm.phantom.tumour import Tumour

__all__ = ["CHANNEL_NAMES", "FIELD_OF_VIEW_MM", "LABEL_NAMES", "Phantom", "glioma_phantom"]

LABEL_NAMES = ("healthy", "necrotic core", "oedema", "enhancing rim")

FIELD_OF_VIEW_MM = (160.0, 192.0, 144.0)


@dataclass(frozen=True)
class Phantom:
    """A patient whose truth is known, and what an imperfect classifier says of the images."""

    images: NDArray[np.float32]  # (4, *shape): T1, T1ce, T2, FLAIR; 0 outside the mask
    truth: NDArray[np.uint8]  # shape
    probabilities: NDArray[np.float32]  # (4 labels, *shape), sum to 1 at every voxel
    mask: NDArray[np.bool_]  # shape: the brain
    spacing: tuple[float, float, float]  # mm
    label_names: tuple[str, ...] = LABEL_NAMES
    channel_names: tuple[str, ...] = CHANNEL_NAMES


def glioma_phantom(
    shape: Sequence[int] = (64, 64, 48),
    spacing: Sequence[float] | None = None,
    seed: int = 0,
) -> Phantom:
    """Make a brain with a glioma, its four MR images and a classifier's probabilities.

    The axes run from left to right, back to front and down to up. The brain has its natural
    size; without a ``spacing`` (mm) the grid is stretched over it. The same seed is the same
    patient at every resolution: only the noise of single voxels differs.
    """
    shape, spacing = _checked_grid(shape, spacing)
    streams = [np.random.default_rng(child) for child in np.random.SeedSequence(seed).spawn(5)]
    anatomy_rng, place_rng, tumour_rng, scanner_rng, classifier_rng = streams
    points = _points_mm(shape, spacing)  # (3, *shape)
    soft_mm = max(0.7, 0.4 * float(np.mean(spacing)))

    tumour = Tumour.place(place_rng)
    depth = brain_depth_mm(points, anatomy_rng)
    tissue = healthy_tissue(tumour.undo_mass_effect(points), depth, soft_mm, anatomy_rng)
    tissue |= tumour.tissue(points, tissue, soft_mm, tumour_rng)
    memberships = np.stack(  # (4 labels, *shape)
        [
            tissue["white"] + tissue["grey"] + tissue["fluid"],
            tissue["necrosis"],
            tissue["oedema"],
            tissue["rim"],
        ]
    )
    mask = depth > 0.0
    return Phantom(
        images=scan(tissue, points, mask, scanner_rng),
        truth=np.where(mask, memberships.argmax(axis=0), 0).astype(np.uint8),
        probabilities=classify(memberships, points, tumour, mask, spacing, classifier_rng),
        mask=mask,
        spacing=spacing,
    )


def _checked_grid(
    shape: Sequence[int], spacing: Sequence[float] | None
) -> tuple[tuple[int, int, int], tuple[float, float, float]]:
    """Return three sizes and three spacings whose grid holds the whole brain."""
    if len(shape) != 3 or min(shape) < 8:
        raise ValueError(f"shape must be three sizes of at least 8 voxels, got {tuple(shape)}")
    if spacing is None:
        spacing = [extent / size for extent, size in zip(FIELD_OF_VIEW_MM, shape)]
    if len(spacing) != 3 or not all(0.0 < step < np.inf for step in spacing):
        raise ValueError(
            f"spacing must be three positive numbers of mm, got {tuple(spacing)}; "
            "leave it out to fit the brain"
        )
    for size, step, half_axis in zip(shape, spacing, BRAIN_HALF_AXES_MM):
        if size * step < 2.0 * half_axis:
            raise ValueError(
                f"shape × spacing must cover the brain, {2.0 * np.array(BRAIN_HALF_AXES_MM)} mm, "
                f"got {tuple(shape)} × {tuple(spacing)} mm; leave spacing out to fit the brain"
            )
    nx, ny, nz = (int(size) for size in shape)
    dx, dy, dz = (float(step) for step in spacing)
    return (nx, ny, nz), (dx, dy, dz)


def _points_mm(
    shape: tuple[int, int, int], spacing: tuple[float, float, float]
) -> NDArray[np.float64]:
    """Return where every voxel's centre lies, in mm from the middle of the grid, (3, *shape)."""
    axes = [(np.arange(size) - (size - 1) / 2.0) * step for size, step in zip(shape, spacing)]
    return np.stack(np.meshgrid(*axes, indexing="ij"))
