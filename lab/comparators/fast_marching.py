"""Distances in an inhomogeneous medium: |∇T| = slowness, by fast marching (Sethian, PNAS 1996)."""

from __future__ import annotations

import heapq

import numpy as np
from numpy.typing import NDArray

from perturb_mpm.engines.cpu import kernel


@kernel
def march(
    times: NDArray[np.float64],
    slowness: NDArray[np.float64],
    shape: NDArray[np.int64],
    spacing: NDArray[np.float64],
) -> None:
    """Fill in ``times`` (V,) from its finite values outwards, voxels in C order.

    The upwind scheme is of first order: exact along an axis and where the front is flat, and up
    to a sixth too slow along the diagonals from a single voxel.
    """
    ndim = len(shape)
    strides = np.ones(ndim, np.int64)
    for k in range(ndim - 2, -1, -1):
        strides[k] = strides[k + 1] * shape[k + 1]
    done = np.zeros(len(times), np.bool_)
    front = [(times[v], v) for v in np.flatnonzero(times < np.inf)]
    heapq.heapify(front)
    while len(front) > 0:
        _, v = heapq.heappop(front)
        if done[v]:
            continue
        done[v] = True
        for k in range(ndim):
            for step in (-1, 1):
                coordinate = v // strides[k] % shape[k] + step
                w = v + step * strides[k]
                if 0 <= coordinate < shape[k] and not done[w]:
                    time = _arrival(w, times, done, slowness[w], shape, strides, spacing)
                    if time < times[w]:
                        times[w] = time
                        heapq.heappush(front, (time, w))


@kernel
def _arrival(
    w: int,
    times: NDArray[np.float64],
    done: NDArray[np.bool_],
    slowness: float,
    shape: NDArray[np.int64],
    strides: NDArray[np.int64],
    spacing: NDArray[np.float64],
) -> float:
    """Return the T of one voxel: Σ_k ((T − t_k) / h_k)² = slowness² over the axes with t_k < T.

    t_k is the earlier of the two neighbours along axis k that the front has passed, if any.
    """
    earliest = np.full(len(shape), np.inf)
    for k in range(len(shape)):
        coordinate = w // strides[k] % shape[k]
        if coordinate > 0 and done[w - strides[k]]:
            earliest[k] = times[w - strides[k]]
        if coordinate < shape[k] - 1 and done[w + strides[k]]:
            earliest[k] = min(earliest[k], times[w + strides[k]])
    a, b, c = 0.0, 0.0, -(slowness**2)
    time = np.inf
    for k in np.argsort(earliest):
        if earliest[k] >= time:
            break
        inverse = 1 / spacing[k] ** 2
        a += inverse
        b += inverse * earliest[k]
        c += inverse * earliest[k] ** 2
        time = (b + np.sqrt(max(b * b - a * c, 0.0))) / a
    return time
