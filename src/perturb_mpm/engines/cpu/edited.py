"""Solved problems answered again after an edit: only some voxels, and only what changes of them.

With x the log-odds of a solution Q, an update is x' = x − pairwise(Q' − Q), Q' = softmax(x'). What
is filtered is Q' − Q, between −1 and 1: float32, or 16-bit whole numbers in units of 1/32767 as in
``held_kernels.py``. Q is computed from x wherever it is needed, so that x alone is kept.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perturb_mpm.engines.cpu import row_kernels
from perturb_mpm.engines.cpu.buffers import LANES
from perturb_mpm.engines.cpu.chain import Filter
from perturb_mpm.engines.cpu.compile import announced, kernel, widened
from perturb_mpm.engines.cpu.exact import ExactFilter
from perturb_mpm.engines.cpu.groups import Compatibilities, Slices
from perturb_mpm.engines.cpu.held import UNIT, restricted, restricted_chain
from perturb_mpm.engines.cpu.row_kernels import ONE, exponentials, interact, scratch_of
from perturb_mpm.engines.cpu.threads import Threads
from perturb_mpm.engines.cpu.vectors import ROUND
from perturb_mpm.engines.protocol import FREE
from perturb_mpm.engines.reference import softmax


@kernel
def _old_marginals(first, size, before, sharpness, old, shaped_old, zero, highest, norm):
    """Set ``old`` (L−1, lanes) to the marginals of a tile's log-odds ``before`` (A, L−1, B)."""
    labels, _, problems = shaped_old.shape
    for t in range(size):
        for l in range(labels):
            for b in range(problems):
                shaped_old[l, t, b] = widened(before[first + t, l, b])
    exponentials(old, sharpness, zero, highest, norm)
    for l in range(labels):
        for k in range(old.shape[1]):
            old[l, k] *= norm[k]


@kernel
def update_edited(
    tile,
    before,
    given,
    filters,
    compatibility,
    rows,
    deltas,
    unit,
    rounded,
    sharpness,
    start,
    stop,
):
    """Update Q' − Q of some tiles once, in place, from the blurred rows; return the largest change.

    ``before`` (A, L−1, B) are the log-odds of Q, ``given`` (A,) the labels that were set.
    """
    count, labels, problems = before.shape
    lanes = tile * problems
    flat_deltas = deltas.reshape(count, labels * problems)
    logits, old = np.zeros((labels, lanes), np.float32), np.zeros((labels, lanes), np.float32)
    shaped_logits = logits.reshape(labels, tile, problems)
    shaped_old = old.reshape(labels, tile, problems)
    scratch = scratch_of(labels, tile, problems)
    zero, highest = np.zeros(lanes, np.float32), np.empty(lanes, np.float32)
    norm = np.empty(lanes, np.float32)
    shaped_norm = norm.reshape(tile, problems)
    inverse = ONE / unit
    most = np.float32(0)
    for block in range(start, stop):
        i0 = block * tile
        size = min(tile, count - i0)
        _old_marginals(i0, size, before, sharpness, old, shaped_old, zero, highest, norm)
        for t in range(size):
            for l in range(labels):
                for b in range(problems):
                    shaped_logits[l, t, b] = widened(before[i0 + t, l, b])
        interact(
            i0, size, filters, compatibility, rows, flat_deltas, inverse, scratch, logits, zero
        )
        exponentials(logits, sharpness, zero, highest, norm)
        for t in range(size):
            if given[i0 + t] != FREE:
                continue
            for l in range(labels):
                for b in range(problems):
                    away = shaped_logits[l, t, b] * shaped_norm[t, b] - shaped_old[l, t, b]
                    away = (away * unit + ROUND) - ROUND if rounded else away
                    step = abs(away - np.float32(deltas[i0 + t, l, b]))
                    most = step if step > most else most
                    deltas[i0 + t, l, b] = away
    return most * inverse


@kernel
def read_edited(tile, before, given, deltas, unit, sharpness, places, out, start, stop):
    """Write Q' of some tiles: out (B, L, A), at ``places`` (A,) of its last axis."""
    count, labels, problems = before.shape
    lanes = tile * problems
    old = np.zeros((labels, lanes), np.float32)
    shaped_old = old.reshape(labels, tile, problems)
    zero, highest = np.zeros(lanes, np.float32), np.empty(lanes, np.float32)
    norm = np.empty(lanes, np.float32)
    inverse = ONE / unit
    for block in range(start, stop):
        i0 = block * tile
        size = min(tile, count - i0)
        _old_marginals(i0, size, before, sharpness, old, shaped_old, zero, highest, norm)
        for t in range(size):
            place = places[i0 + t]
            for b in range(problems):
                rest = ONE
                for l in range(labels):
                    share = shaped_old[l, t, b] + np.float32(deltas[i0 + t, l, b]) * inverse
                    share = share if share > 0 else np.float32(0)
                    if given[i0 + t] != FREE:
                        share = ONE if given[i0 + t] == l + 1 else np.float32(0)
                    out[b, l + 1, place] = share
                    rest -= share
                out[b, 0, place] = rest if rest > 0 else np.float32(0)


class CpuEdit:
    """The kernels of a CRF among some voxels; see ``engines.protocol.EditedVoxels``."""

    def __init__(
        self,
        voxels: NDArray[np.int64],
        given: NDArray[np.int16],
        filters: Sequence[Filter | ExactFilter],
        slices: Slices,
        compatibilities: Compatibilities,
        order: NDArray[np.int64],
        threads: Threads,
        *,
        compact: bool,
        unit: float,
    ) -> None:
        self._compatibilities, self._threads, self._compact = compatibilities, threads, compact
        self._unit = np.float32(UNIT if compact else 1)
        chosen = np.zeros(len(order), dtype=np.bool_)
        chosen[voxels] = True
        places = np.flatnonzero(chosen[order])  # (A,), in the engine's order
        self._rank = np.searchsorted(voxels, order[places])  # where each stands in ``voxels``
        self._given = given[self._rank]
        with announced():
            self._chains, self._slices = restricted(
                filters, slices, places, len(order), unit / float(self._unit), threads
            )

    def solve(
        self,
        before: NDArray[np.float16],
        updates: int,
        *,
        sharpness: float = 1.0,
        tolerance: float = 0.0,
    ) -> NDArray[np.float32]:
        """Return the marginals after so many updates, (B, L, A)."""
        x = before[self._rank].view(np.uint16)  # (A, L − 1, B)
        count, labels, problems = x.shape
        dtype: np.dtype[Any] = np.dtype(np.int16 if self._compact else np.float32)
        deltas = np.zeros(x.shape, dtype=dtype)
        self._set_given(deltas, before[self._rank], sharpness)
        rows = np.zeros(
            (sum(chain.rows for chain in self._chains) + 1, labels * problems), dtype=dtype
        )
        spare = np.empty(
            (max((chain.rows for chain in self._chains), default=0), labels * problems), dtype=dtype
        )
        tile = max(1, LANES // problems)
        tiles, beta = -(-count // tile), np.float32(sharpness)
        out = np.empty((problems, labels + 1, count), dtype=np.float32)
        if count == 0:
            return out
        with announced():
            for _ in range(updates):
                start = 0
                for chain in self._chains:
                    target = rows[start : start + chain.rows]
                    chain.apply(deltas.reshape(count, -1), target, spare, self._threads)
                    start += chain.rows
                moved = self._threads.run(
                    update_edited,
                    tiles,
                    np.int64(tile),
                    x,
                    self._given,
                    self._slices,
                    self._compatibilities,
                    rows,
                    deltas,
                    self._unit,
                    self._compact,
                    beta,
                )
                if max(moved) <= tolerance:
                    break
            self._threads.run(
                read_edited,
                tiles,
                np.int64(tile),
                x,
                self._given,
                deltas,
                self._unit,
                beta,
                self._rank,
                out,
            )
        return out

    def _set_given(
        self, deltas: NDArray[Any], before: NDArray[np.float16], sharpness: float
    ) -> None:
        """Start at the given labels, with everything else as it was."""
        places = np.flatnonzero(self._given != FREE)
        others = before[places].astype(np.float32) * np.float32(sharpness)  # (G, L − 1, B)
        old = softmax(np.concatenate([np.zeros_like(others[:, :1]), others], axis=1))[:, 1:]
        labels = np.arange(1, deltas.shape[1] + 1)[:, np.newaxis]
        wanted = self._given[places, np.newaxis, np.newaxis] == labels  # (G, L − 1, 1)
        away = (wanted - old) * self._unit
        deltas[places] = np.rint(away) if self._compact else away


def reached(
    places: NDArray[np.int64],
    changes: NDArray[np.floating],
    filters: Sequence[Filter | ExactFilter],
    slices: Slices,
    compatibilities: Compatibilities,
    order: NDArray[np.int64],
    threads: Threads,
    unit: float,
) -> NDArray[np.float32]:
    """Return the pairwise energies (L, N) of changes (L, V) at places in the engine's order.

    Rows that these do not reach are never looked at.
    """
    labels, voxels = len(changes) - 1, len(order)
    values = np.ascontiguousarray(changes[1:].T * unit, dtype=np.float32)  # (V, L − 1)
    total = sum(f.rows for f in filters)
    rows = np.zeros((total, labels), dtype=np.float32)
    start = 0
    for f in filters:
        here = rows[start : start + f.rows]
        if isinstance(f, ExactFilter):
            f.apply_from(places, values, here, threads)
        else:
            read = np.ones(f.rows, dtype=np.bool_)
            chain, kept = restricted_chain(f.stages, read, places, voxels, threads)
            target, spare = np.empty((2, chain.rows, labels), dtype=np.float32)
            chain.apply(values, target, spare, threads)
            here[kept] = target[: len(kept)]
        start += f.rows
    everywhere = np.zeros((voxels, labels, 1), dtype=np.float32)
    everywhere[places, :, 0] = values
    out = np.empty((1, labels + 1, voxels), dtype=np.float32)
    # Changes of all labels sum to 0: nothing is left of them for label 0 but what others miss.
    balanced = slices._replace(totals=slices.diagonals)
    threads.run(
        row_kernels.pairwise,
        -(-voxels // LANES),
        np.int64(LANES),
        balanced,
        compatibilities,
        rows,
        everywhere,
        np.float32(unit),
        order,
        out,
    )
    return out[0]
