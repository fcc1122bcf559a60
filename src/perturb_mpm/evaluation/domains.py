"""Which voxels count: the same measure over the brain and around the tumour says other things."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from perturb_mpm import checks
from perturb_mpm.evaluation.overlap import mask_pair

Domain = Literal["brain", "union", "prediction", "truth", "dilated"]


def domain_mask(
    domain: Domain,
    prediction: ArrayLike,
    truth: ArrayLike,
    brain: ArrayLike,
    spacing: Sequence[float],
    margin_mm: float = 10.0,
) -> NDArray[np.bool_]:
    """Return the voxels a measure is taken over, all of them inside the brain.

    "brain": all; "prediction", "truth": the region's predicted or true voxels; "union": either;
    "dilated": all within ``margin_mm`` of the union. The masks have the image's shape.
    """
    checks.choice(domain, "domain", get_args(Domain))
    predicted, true = mask_pair(prediction, truth, ("prediction", "truth"))
    predicted, inside = mask_pair(predicted, brain, ("prediction", "brain"))
    if domain == "brain":
        return inside
    if domain == "prediction":
        return predicted & inside
    if domain == "truth":
        return true & inside
    union = (predicted | true) & inside
    if domain == "union":
        return union
    return _dilated(union, spacing, checks.number(margin_mm, "margin_mm", minimum=0)) & inside


def _dilated(mask: NDArray[np.bool_], spacing: Sequence[float], margin: float) -> NDArray[np.bool_]:
    from scipy.ndimage import distance_transform_edt

    step = checks.one_each(
        checks.positive_numbers(spacing, "spacing"), "spacing", mask.ndim, "axis"
    )
    if not mask.any():
        return mask
    near: NDArray[np.bool_] = distance_transform_edt(~mask, sampling=step) <= margin
    return near
