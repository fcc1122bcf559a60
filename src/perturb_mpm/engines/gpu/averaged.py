"""Marginals averaged over the noise, on the device: ``engines/averaging.py`` says what they are."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from perturb_mpm.engines.averaging import SPAN, STEP

_LEAST = 1e-37


def averaged_marginals(logits: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
    """Return E_γ softmax(β(logits + τγ)), (L, N)."""
    x = logits - logits.amax(0)
    shares = torch.exp(x)
    others = (shares.sum(0) - shares).clamp_(min=_LEAST)
    gap = (x - torch.log(others)).clamp_(-SPAN, SPAN - 2 * STEP)
    gap = (gap + SPAN) * (1 / STEP)
    place = gap.long()
    low = table[place]
    q = low + (gap - place) * (table[place + 1] - low)
    return q / q.sum(0)


def next_average(
    q: torch.Tensor, logits: torch.Tensor, table: torch.Tensor, damping: float
) -> torch.Tensor:
    """Return the averaged marginals after q, (L, N), damped as the samples' own are."""
    new = averaged_marginals(logits, table)
    if damping == 0:
        return new
    further = (q + (1 - damping) * (new - q)).clamp_(min=0)
    return further / further.sum(0)


def averaged_variance(
    q: torch.Tensor, spread: tuple[NDArray[np.float32], NDArray[np.float32]]
) -> torch.Tensor:
    """Return the variance of each voxel's marginals over its noise, (N,): the largest label's.

    ``spread`` are averages, rising, and the variance of marginals that have such an average.
    """
    averages, variances = (torch.from_numpy(each.copy()).to(q.device) for each in spread)
    right = torch.searchsorted(averages, q.contiguous()).clamp_(1, len(averages) - 1)
    left = right - 1
    width = averages[right] - averages[left]
    share = ((q - averages[left]) / torch.where(width > 0, width, 1.0)).clamp_(0, 1)
    return torch.lerp(variances[left], variances[right], share).amax(0)
