"""Masks of known form, and structures cut out of them."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

import perturb_mpm as pm
from perturb_mpm.measures import MeasuredPatient, Structure


def cut_out(mask: NDArray[np.bool_], spacing: Sequence[float], **patient: Any) -> Structure:
    """Return a mask as the structure "a" of a label map."""
    grid = pm.Grid(mask.shape, tuple(spacing))
    return MeasuredPatient(grid, {"a": (1,)}, mask.astype(np.uint8), **patient).label_map.structure(
        "a"
    )


def rotation(seed: int) -> NDArray[np.float64]:
    """Return a random rotation (3, 3)."""
    found: NDArray[np.float64] = np.linalg.qr(np.random.default_rng(seed).normal(size=(3, 3)))[0]
    return found


def ellipsoid(
    axes_mm: Sequence[float], turned: NDArray[np.float64], spacing: Sequence[float]
) -> NDArray[np.bool_]:
    """Return an ellipsoid by its half axes, off the middle of a voxel."""
    sizes = [int(2 * max(axes_mm) / step) + 7 for step in spacing]
    along = [(np.arange(n) - (n - 1) / 2 + 0.13) * step for n, step in zip(sizes, spacing)]
    places = np.stack(np.meshgrid(*along, indexing="ij"), axis=-1) @ turned
    inside: NDArray[np.bool_] = ((places / np.array(axes_mm)) ** 2).sum(axis=-1) <= 1
    return inside


def every_labelling(voxels: int, n_labels: int = 2) -> NDArray[np.uint8]:
    """Return all labellings of some voxels, (n_labels ** voxels, voxels)."""
    return np.array(list(itertools.product(range(n_labels), repeat=voxels)), dtype=np.uint8)
