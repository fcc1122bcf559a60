"""Oedema: it seeps from the core through white matter, hardly through grey, never through fluid."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from perturb_mpm.phantom.anatomy import Anatomy, anatomy
from perturb_mpm.phantom.disease import Disease
from perturb_mpm.phantom.space import Array, Grid, Source, level_for_volume, soft_step, spline
from perturb_mpm.phantom.tumour import core_depth_mm

_STEP_MM = 4.0
_STEPS = 130
_GREY_SPEED = 0.06


def oedema(
    source: Source,
    grid: Grid,
    disease: Disease,
    around: Anatomy,
    free: NDArray[np.bool_],
) -> Array:
    """Return the share of oedema at every voxel; ``oedema_ml`` of the voxels ``free`` have most."""
    reached = _reached(source, grid, disease)
    fingers = 0.5 * source.noise(grid, "fingers", 10.0) + 0.25 * source.noise(grid, "fringe", 5.0)
    score = reached + fingers - 2.6 * around.grey - 6.0 * around.fluid
    level = level_for_volume(score, free, disease.oedema_ml, grid)
    share: Array = soft_step(score - np.float32(level), 0.8) * (1.0 - around.fluid)
    return share


def _reached(source: Source, grid: Grid, disease: Disease) -> Array:
    """Return the logarithm of how much fluid has seeped to each voxel.

    It is solved on a coarse grid of its own, so that it is the same at every resolution.
    """
    coarse = Grid.over_the_brain((_STEP_MM, _STEP_MM, _STEP_MM))
    around = anatomy(source, coarse, disease)
    depth = core_depth_mm(source, coarse, disease, around, disease.core_ml)
    core = soft_step(depth, _STEP_MM / 2.0)
    speed = (around.white + np.float32(_GREY_SPEED) * around.grey) * around.mask
    speed = np.maximum(speed, core)
    amount = _diffused(core, speed)
    first = [float(axis[0]) for axis in coarse.axes]
    return spline(np.log(amount + np.float32(1e-5)), first, _STEP_MM, grid)


def _diffused(core: Array, speed: Array) -> Array:
    """Return what diffuses out of ``core``, which stays full, at ``speed`` 0 … 1."""
    faces = []  # (this side, that side, how much passes)
    for axis in range(3):
        here = tuple(slice(None, -1) if each == axis else slice(None) for each in range(3))
        there = tuple(slice(1, None) if each == axis else slice(None) for each in range(3))
        faces.append((here, there, np.minimum(speed[here], speed[there]) / np.float32(6.0)))
    amount = core.copy()
    for _ in range(_STEPS):
        change = np.zeros_like(amount)
        for here, there, passes in faces:
            flow = passes * (amount[here] - amount[there])
            change[here] -= flow
            change[there] += flow
        amount = np.maximum(amount + change, core)
    return amount
