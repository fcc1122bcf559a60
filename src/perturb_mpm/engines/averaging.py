"""Marginals averaged over each voxel's own Gumbel noise: what nearly certain voxels are held at.

h(x) = E_γ softmax(β(x + τγ)), with the scale τ of the noise and the sharpness β of the softmax, is
looked up in a table of two labels.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

CHUNK = 1 << 16
"""Voxels whose averaged marginals are computed at once: they stay in the cache."""

# The table of h: log-odds from −SPAN to SPAN; beyond it e^−SPAN counts.
SPAN = 44.0
STEP = 1 / 32


@dataclass(frozen=True)
class HoldRule:
    """Which voxels are held, and what the averaged mean field that they follow is made of.

    A voxel is active where a sample dissents with a probability above ``epsilon``, and nothing is
    held where more than a share ``most_active`` of them is: every voxel then takes hardly longer.
    The averaged mean field makes at most ``iterations`` updates, which are damped as the samples'
    own are, in turns, and stops where its energies move by no more than ``still_nats``.
    """

    epsilon: float
    scale: float
    sharpness: float
    iterations: int
    dampings: tuple[float, ...] = (0.0,)
    most_active: float = 0.6
    still_nats: float = 1e-3

    @property
    def table(self) -> NDArray[np.float32]:
        """The table of h."""
        return averaging_table(self.scale, self.sharpness)

    @property
    def variances(self) -> NDArray[np.float32]:
        """The table of the variance that goes with h."""
        return averaging_table(self.scale, self.sharpness, power=2) - self.table**2

    @property
    def spread(self) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Averaged marginals, rising, and the variance of marginals that have such an average."""
        return self.table[::8], self.variances[::8]  # every eighth is enough


@lru_cache(maxsize=8)
def averaging_table(scale: float, sharpness: float, power: int = 1) -> NDArray[np.float32]:
    """Return E σ(β(Δ + τΛ))ᵖ at log-odds Δ from −SPAN to SPAN, Λ logistic: (2·SPAN/STEP + 1,).

    The difference of two Gumbel variables is logistic. At β = τ = 1 it is r(r − 1 + Δ)/(1 − r)²
    for the less probable label, r = e^−Δ.
    """
    noise = np.arange(-80.0, 80.0, 0.2)  # analytic and falling as e^−|Λ|: trapezoids are exact
    decay = np.exp(-np.abs(noise))
    density = decay / (1 + decay) ** 2
    density /= density.sum()
    gaps = np.arange(-SPAN, SPAN + STEP / 2, STEP)
    return np.array(
        [density @ _logistic(sharpness * (gap + scale * noise)) ** power for gap in gaps]
    ).astype(np.float32)


def averaged_marginals(
    logits: NDArray[np.floating], table: NDArray[np.float32]
) -> NDArray[np.float32]:
    """Return E_γ softmax(β(logits + τγ)), (L, N): exact for two labels.

    With more, each label is held against all others together, which is right where one of them
    is nearly certain.
    """
    out = np.empty(logits.shape, dtype=np.float32)
    for first in range(0, logits.shape[1], CHUNK):
        part = slice(first, first + CHUNK)
        x = logits[:, part].astype(np.float32)
        x -= x.max(axis=0)
        shares = np.exp(x)
        total = shares.sum(axis=0)
        q = out[:, part]
        for l in range(len(x)):
            gap = x[l] - np.log(np.maximum(total - shares[l], np.float32(1e-37)))
            np.clip(gap, np.float32(-SPAN), np.float32(SPAN - 2 * STEP), out=gap)
            gap += np.float32(SPAN)
            gap *= np.float32(1 / STEP)
            place = gap.astype(np.int32)
            gap -= place
            low = table[place]
            q[l] = low + gap * (table[place + 1] - low)
        q /= q.sum(axis=0)
    return out


def in_turn(values: tuple[float, ...], update: int) -> float:
    """Return the value of an update, counted from 0, where values take turns."""
    return values[update % len(values)]


def next_average(
    q: NDArray[np.float32],
    logits: NDArray[np.floating],
    table: NDArray[np.float32],
    damping: float,
) -> NDArray[np.float32]:
    """Return the averaged marginals after q, (L, N), damped as the samples' own are."""
    new = averaged_marginals(logits, table)
    if damping == 0:
        return new
    further = np.maximum(q + np.float32(1 - damping) * (new - q), 0)
    further /= further.sum(axis=0)
    return further


def averaged_variance(q: NDArray[np.float32], rule: HoldRule) -> NDArray[np.float32]:
    """Return the variance of each voxel's marginals over its noise, (N,): the largest label's.

    ``q`` (L, N) are averaged marginals. The log-odds that have such an average say how far a
    marginal spreads around it.
    """
    averages, variances = rule.spread
    most = np.zeros(q.shape[1], dtype=np.float32)
    for each in q:
        np.maximum(most, np.interp(each, averages, variances), out=most, casting="same_kind")
    return most


def _logistic(x: NDArray[np.float64]) -> NDArray[Any]:
    return 0.5 * (1 + np.tanh(0.5 * x))
