"""Mistakes that leave files readable: what their numbers most likely are instead."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

OUTSIDE_SHARE = 0.1
"""Of the foreground: more than this outside the mask looks like another patient's."""
BACKGROUND_SHARE = 0.9
"""Of the voxels outside the patient: so many of one other label look as if background came last."""

_SCALES = {100: "per cent", 255: "probabilities from 0 to 255"}
_SCALE_TOLERANCE = 0.02  # whole numbers that are rounded do not sum to 255 exactly
_LARGEST_LOGIT = 100.0  # a whole number above this is no raw score of a network
_FEWEST_VOXELS = 64  # that say something


def scale_advice(largest: float) -> str | None:
    """Say what numbers up to ``largest`` are, where they are probabilities on another scale.

    ``largest`` is the sum over labels, or the largest value of a single map.
    """
    for scale, name in _SCALES.items():
        if abs(largest - scale) <= _SCALE_TOLERANCE * scale:
            return f"these look like {name}: divide them by {scale}"
    return None


def scaled_logits_advice(values: NDArray[np.floating]) -> str | None:
    """Say why numbers cannot be logits as they are: whole ones that were scaled to be integers."""
    largest = float(np.abs(values).max(initial=0.0))
    if largest <= _LARGEST_LOGIT or not (values == np.rint(values)).all():
        return None
    return (
        f"must be a network's raw scores, got whole numbers up to {largest:g}: scores that were "
        "multiplied to be stored as integers must be divided again"
    )


def labels_axis(shape: Sequence[int], grid: Sequence[int]) -> int | None:
    """Return which axis of a 4-D file holds the labels, where it is not the last one."""
    if len(shape) != 4:
        return None
    for axis in range(3):
        if tuple(shape[:axis]) + tuple(shape[axis + 1 :]) == tuple(grid):
            return axis
    return None


def foreground_warning(labels: NDArray[np.integer], mask: NDArray[np.bool_]) -> str | None:
    """Say that much of the foreground of a label map (X, Y, Z) lies outside the mask."""
    foreground = labels > 0
    outside = int(np.count_nonzero(foreground & ~mask))
    total = int(np.count_nonzero(foreground))
    if outside <= OUTSIDE_SHARE * total or outside < _FEWEST_VOXELS:
        return None
    return (
        f"{100 * outside / total:.0f} % of the foreground of the probabilities lies outside the "
        "mask, where it does not count: do probabilities, images and mask belong together?"
    )


def background_warning(
    labels: NDArray[np.integer], mask: NDArray[np.bool_], names: Sequence[str]
) -> str | None:
    """Say that another label than the first is what lies around the patient.

    Around is outside the mask, or on the faces of the grid where the mask leaves nothing out.
    """
    around = ~mask
    if np.count_nonzero(around) < _FEWEST_VOXELS:
        around = np.ones_like(mask)
        around[tuple(slice(1, -1) if size > 2 else slice(0) for size in mask.shape)] = False
    found = labels[around]
    if len(found) < _FEWEST_VOXELS:
        return None
    counts = np.bincount(found, minlength=len(names))
    most = int(counts.argmax())
    if most == 0 or counts[most] < BACKGROUND_SHARE * len(found):
        return None
    share = 100 * counts[most] / len(found)
    return (
        f"label {names[most]} is the most probable one in {share:.0f} % of the voxels around the "
        f"patient, and {names[0]} is not: is background the first of the maps?"
    )
