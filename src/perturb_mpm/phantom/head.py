"""One person's head: the atlas bent to an individual, before and after a tumour pushes."""

from __future__ import annotations

import numpy as np

from perturb_mpm.phantom.space import CENTRE_MM, Array, Grid, Source

_BENDS = ((60.0, 3.2), (21.0, 1.3))  # over how many mm, by how many mm
_PUSH_REACH_MM = 75.0


def to_atlas(source: Source, grid: Grid, points: Array) -> Array:
    """Return where in the atlas each of ``points`` (3, X, Y, Z) lies; ``grid`` is where they are.

    Mass effect may have moved ``points`` off the grid; the bends vary so slowly that they are
    taken at the grid itself.
    """
    middle = _column(CENTRE_MM)
    bent = middle + (points - middle) * _column(_scale(source))
    for axis, name in enumerate("xyz"):
        for length_mm, amplitude_mm in _BENDS:
            noise = source.noise(grid, f"bend {name} {length_mm:g}", length_mm)
            bent[axis] += np.float32(amplitude_mm) * noise
    return bent


def to_patient(source: Source, place: Array) -> Array:
    """Return where in the patient a place (3,) of the atlas lies, by fixed-point iteration."""
    scale = _scale(source)
    guess = place.copy()
    for _ in range(12):
        x, y, z = (guess[axis : axis + 1] for axis in range(3))
        here = Grid((x, y, z), (1.0, 1.0, 1.0))
        missed = place - to_atlas(source, here, here.points()).reshape(3)
        guess = guess + missed / scale
    return guess


def undo_push(points: Array, centre: Array, radius_mm: float, depth_mm: Array) -> Array:
    """Return where each of ``points`` (3, X, Y, Z) lay before a ball grew at ``centre`` (3,).

    A growing ball in an incompressible medium sends a radius r0 to the cube root of r0³ + radius³.
    Far away and at the skull (``depth_mm`` 0) nothing moves.
    """
    if radius_mm == 0.0:
        return points
    offset = points - centre.reshape(3, 1, 1, 1)
    r = np.sqrt((offset**2).sum(axis=0)) + np.float32(1e-3)
    ratio = (r / np.float32(radius_mm)) ** 3
    before = np.cbrt(np.maximum(ratio - 1.0 + np.exp(-ratio), 0.0)) * np.float32(radius_mm)
    held = np.exp(-((r / np.float32(_PUSH_REACH_MM)) ** 2))
    held *= 1.0 - np.exp(-np.maximum(depth_mm, 0.0) / np.float32(9.0))
    moved: Array = points - offset * ((r - before) / r * held).astype(np.float32)
    return moved


def _scale(source: Source) -> Array:
    """Return how much larger than the patient the atlas is along each axis, (3,)."""
    rng = source.rng("size")
    overall = rng.normal(1.075, 0.02)  # the atlas is larger than most heads
    scale: Array = (overall * rng.normal(1.0, 0.015, 3)).astype(np.float32)
    return scale


def _column(vector: tuple[float, float, float] | Array) -> Array:
    return np.asarray(vector, dtype=np.float32).reshape(3, 1, 1, 1)
