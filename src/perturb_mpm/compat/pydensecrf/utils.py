"""pydensecrf's helpers: unary energies from labels or probabilities, features from images."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "compute_unary",
    "create_pairwise_bilateral",
    "create_pairwise_gaussian",
    "softmax_to_unary",
    "unary_from_labels",
    "unary_from_softmax",
]

_LOG = logging.getLogger(__name__)


def unary_from_labels(
    labels: NDArray[Any],
    n_labels: int,
    gt_prob: float,
    zero_unsure: bool = True,  # noqa: FBT001, FBT002 - its position in the other library
) -> NDArray[np.float32]:
    """Return the energies (L, N) of a label map that is right with probability ``gt_prob``.

    Where ``zero_unsure``, 0 stands for "could be any label" and the labels are 1 … L; else they
    are 0 … L − 1.
    """
    if not 0 < gt_prob < 1:
        raise AssertionError(f"`gt_prob` must be between 0 and 1, got {gt_prob}")
    flat = np.asarray(labels).ravel().astype(np.int64)  # (N,)
    lowest = 0 if not zero_unsure else 1
    wrong = (flat < 0) | (flat >= n_labels + lowest)
    if wrong.any():
        raise IndexError(
            f"`labels` must be at most {n_labels - 1 + lowest} and not negative, "
            f"got {flat[wrong][0]}"
        )
    own = flat[np.newaxis] - lowest == np.arange(n_labels)[:, np.newaxis]  # (L, N)
    others = (1 - gt_prob) / (n_labels - 1) if n_labels > 1 else 1.0
    energies: NDArray[np.float32] = np.where(own, -np.log(gt_prob), -np.log(others)).astype(
        np.float32
    )
    if zero_unsure:
        energies[:, flat == 0] = np.log(n_labels)
    return energies


def unary_from_softmax(
    sm: NDArray[Any], scale: float | None = None, clip: float | None = 1e-5
) -> NDArray[np.float32]:
    """Return the energies (L, N) of probabilities (L, …), none of them below ``clip``.

    With ``scale`` they are mixed with the uniform distribution, which then weighs 1 − scale.
    """
    probabilities = np.asarray(sm)
    if scale is not None:
        if not 0 < scale <= 1:
            raise AssertionError(f"`scale` must be above 0 and at most 1, got {scale}")
        probabilities = scale * probabilities + (1 - scale) / len(probabilities)
    if clip is not None:
        probabilities = np.clip(probabilities, clip, 1)
    with np.errstate(divide="ignore"):
        energies: NDArray[np.float32] = (-np.log(probabilities)).astype(np.float32)
    return energies.reshape(len(energies), -1)


def compute_unary(labels: NDArray[Any], M: int, GT_PROB: float = 0.5) -> NDArray[np.float32]:
    """Return ``unary_from_labels``, which this is an old name of."""
    _LOG.warning("compute_unary is deprecated: use unary_from_labels")
    return unary_from_labels(labels, M, GT_PROB)


def softmax_to_unary(sm: NDArray[Any], GT_PROB: float = 1) -> NDArray[np.float32]:
    """Return ``unary_from_softmax`` without a smallest probability."""
    _LOG.warning("softmax_to_unary is deprecated: use unary_from_softmax")
    return unary_from_softmax(sm, None if GT_PROB == 1 else GT_PROB, clip=None)


def create_pairwise_gaussian(sdims: Sequence[float], shape: Sequence[int]) -> NDArray[np.float32]:
    """Return position / ``sdims``, (axes, N), the axes in the order of ``shape``."""
    return _positions(sdims, shape).reshape(len(sdims), -1)


def create_pairwise_bilateral(
    sdims: Sequence[float], schan: float | Sequence[float], img: NDArray[Any], chdim: int = -1
) -> NDArray[np.float32]:
    """Return position / ``sdims`` above intensity / ``schan``, (axes + channels, N).

    ``chdim`` is the axis of the channels; −1 says that the image has none.
    """
    image = np.asarray(img)
    channels = image[np.newaxis] if chdim == -1 else np.moveaxis(image, chdim, 0)
    intensities = channels.astype(np.float32)  # (C, …)
    sigmas = np.broadcast_to(np.asarray(schan, dtype=np.float32), len(intensities))
    intensities /= sigmas.reshape(-1, *[1] * (intensities.ndim - 1))
    features = np.concatenate([_positions(sdims, intensities.shape[1:]), intensities])
    return features.reshape(len(features), -1)


def _positions(sdims: Sequence[float], shape: Sequence[int]) -> NDArray[np.float32]:
    """Return the index along each axis, divided in float32 by its sigma, (axes, *shape)."""
    positions = np.indices(tuple(shape), dtype=np.float32)
    for axis, sigma in enumerate(sdims):
        positions[axis] /= sigma
    return positions
