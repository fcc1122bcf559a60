"""Unary energies that are wrong in a known way: the expert's label map, worsened and blurred.

A label map is worsened (or not), each label's indicator is blurred by a Gaussian of 2 mm, and the
result is mixed with indifference: p = 0.98 · blurred + 0.02 / 4.

- blurred: the map as it is;
- shifted: moved by 4 mm along the first axis;
- eroded: whole tumour, core and enhancing part each lose what lies within 2 mm of their outside. A
  voxel takes the label of the smallest of the three that is left of it, so that what the enhancing
  part loses becomes core, what the core loses oedema, and what the tumour loses background.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from perturb_mpm.reproduce.volume_cases import N_LABELS, REGIONS, Case
from perturb_mpm.unary import unary_from_probabilities

KINDS = ("blurred", "shifted", "eroded")
BLUR_MM = 2.0
SHIFT_MM = 4.0
EROSION_MM = 2.0
INDIFFERENCE = 0.02

# From the largest region to the smallest: the label of what lies in it and in none further on.
_OWN_LABEL = {"whole tumour": 2, "core": 1, "enhancing": 3}


def worsened_unary(case: Case, kind: str) -> NDArray[np.float32]:
    """Return the energies (L, *spatial) of one kind of unaries."""
    if kind == "shifted":
        labels = shifted(case.labels, case.spacing, SHIFT_MM)
    elif kind == "eroded":
        labels = eroded(case.labels, case.spacing, EROSION_MM)
    else:
        labels = case.labels
    energies: NDArray[np.float32] = unary_from_probabilities(blurred(labels, case.spacing))
    return energies


def blurred(labels: NDArray[np.uint8], spacing: Sequence[float]) -> NDArray[np.float32]:
    """Return the probabilities (L, *spatial) of a label map, blurred and mixed."""
    from scipy.ndimage import gaussian_filter

    sigma = [BLUR_MM / size for size in spacing]
    soft = np.empty((N_LABELS, *labels.shape), dtype=np.float32)
    for label, share in enumerate(soft):
        gaussian_filter((labels == label).astype(np.float32), sigma, output=share)
    soft *= (1.0 - INDIFFERENCE) / soft.sum(axis=0)
    soft += INDIFFERENCE / N_LABELS
    return soft


def shifted(
    labels: NDArray[np.uint8], spacing: Sequence[float], shift_mm: float
) -> NDArray[np.uint8]:
    """Return a label map moved along the first axis by the nearest number of voxels."""
    by = round(shift_mm / spacing[0])
    moved = np.zeros_like(labels)
    moved[by:] = labels[: len(labels) - by]
    return moved


def eroded(
    labels: NDArray[np.uint8], spacing: Sequence[float], erosion_mm: float
) -> NDArray[np.uint8]:
    """Return a label map whose three nested regions have lost their outermost millimetres."""
    from scipy.ndimage import distance_transform_edt

    result = np.zeros_like(labels)
    for region, label in _OWN_LABEL.items():
        inside = np.isin(labels, REGIONS[region])
        # The distance of two voxels' centres: at 2 mm a voxel beside the outside is lost.
        away = distance_transform_edt(inside, sampling=spacing)
        result[away > erosion_mm] = label
    return result
