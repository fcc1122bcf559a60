"""Some voxels A of a problem are updated, the rest send a constant message.

By linearity K̂Q = K̂_AA(Q_A − reference) + what is sent when A is at the reference, so that

    x = base − K̂_AA(Q − reference),    Q = softmax(sharpness·x)     at A,

with ``base`` the log-odds whose messages are those of the reference. Two problems are of this kind:

- frozen voxels: base = −Ũ − pairwise(q̄ᵗ) and reference = q̄ᵗ, the mean field averaged over the
  noise at update t, for all samples; the others vote by their own noise;
- edits: base = the log-odds of a solution and reference = its softmax, of each problem.

Each chain of K̂ keeps the rows that voxels of A reach and read, with the numbers that it has for the
whole image: what is 0 is skipped without loss. Values are Q − reference, from −1 to 1: float32, or
16-bit whole numbers in units of 1/32767. The compiled kernels come first.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perturb_mpm.engines.cpu import row_kernels
from perturb_mpm.engines.cpu.batch import DEFAULT_BATCH, Batch, Path, SharedMemory
from perturb_mpm.engines.cpu.chain import Filter
from perturb_mpm.engines.cpu.compile import announce_compilation, kernel
from perturb_mpm.engines.cpu.exact import ExactFilter
from perturb_mpm.engines.cpu.layout import TILE_VALUES, Blurred, Slices, Taps, TiledProblem
from perturb_mpm.engines.cpu.preparation import DIFFERENCE_FORMATS, WHOLE_FORMATS, PreparedKernels
from perturb_mpm.engines.cpu.threads import Threads
from perturb_mpm.engines.protocol import FREE, Change, FrozenVoxels, Update, fixed_point
from perturb_mpm.engines.reference import softmax
from perturb_mpm.model import DenseCRF
from perturb_mpm.noise import Perturbation

VOTING_AT_ONCE = 1 << 14
"""Frozen voxels whose noise is in memory at once."""

CERTAIN_NATS = 1e4
"""Log-odds that no message comes near, and half precision can hold."""


@kernel
def mark_rows(taps, has_column, has_row, start, stop):
    """Mark the rows that have an entry in one of the marked columns."""
    pointers, columns, _ = taps
    for v in range(start, stop):
        found = False
        for e in range(pointers[v], pointers[v + 1]):
            found = found or has_column[columns[e]]
        has_row[v] = found


@kernel
def mark_columns(taps, has_row, has_column):
    """Mark the columns that one of the marked rows has an entry in."""
    pointers, columns, _ = taps
    for v in range(has_row.size):
        if has_row[v]:
            for e in range(pointers[v], pointers[v + 1]):
                has_column[columns[e]] = True


@kernel
def count_entries(taps, numbers, rows, counts, start, stop):
    """Count the entries of the chosen rows whose columns have a number, −1 meaning none."""
    pointers, columns, _ = taps
    for r in range(start, stop):
        total = 0
        for e in range(pointers[rows[r]], pointers[rows[r] + 1]):
            total += 1 if numbers[columns[e]] >= 0 else 0
        counts[r] = total


@kernel
def copy_entries(taps, numbers, rows, smaller, start, stop):
    """Copy the entries of the chosen rows whose columns have a number, in their order."""
    pointers, columns, coefficients = taps
    new_pointers, new_columns, new_coefficients = smaller
    for r in range(start, stop):
        at = new_pointers[r]
        for e in range(pointers[rows[r]], pointers[rows[r] + 1]):
            if numbers[columns[e]] >= 0:
                new_columns[at] = numbers[columns[e]]
                new_coefficients[at] = coefficients[e]
                at += 1


def restrict_kernels(kernels: PreparedKernels, voxels: NDArray[np.int64]) -> PreparedKernels:
    """Return all kernels among some voxels (A,), numbered in the engine's order, rising."""
    dtype, form = DIFFERENCE_FORMATS[kernels.compact]
    slices, count = kernels.slices, len(kernels.order)
    columns = slices.columns[voxels]  # (A, P): into the stacked rows of all kernels
    read = np.zeros(int(kernels.starts[-1]), dtype=np.bool_)
    read[columns.reshape(-1)] = True
    numbers = np.full(len(read), -1, dtype=np.int32)
    filters: list[Filter | ExactFilter] = []
    below = 0
    for f, start in zip(kernels.filters, kernels.starts[:-1], strict=True):
        here = slice(start, start + f.rows)
        if isinstance(f, ExactFilter):
            filters.append(f.restrict(voxels))
            last = voxels
        else:
            stages, last = _restrict_stages(f.stages, read[here], voxels, count, kernels.threads)
            filters.append(replace(f, stages=stages))
        numbers[here][last] = below + np.arange(len(last), dtype=np.int32)
        below += filters[-1].rows
    numbers[numbers < 0] = below  # the row that stays 0
    diagonals = np.ascontiguousarray(slices.diagonals[:, voxels])
    coefficients = slices.coefficients[voxels] * (kernels.form.unit / form.unit)
    # All labels of a difference sum to 0, so nothing is left for label 0 but what others miss.
    among = Slices(numbers[columns], coefficients, slices.ends, diagonals, diagonals)
    return replace(
        kernels,
        order=kernels.order[voxels],
        filters=filters,
        slices=among,
        dtype=dtype,
        form=form,
    )


def _restrict_stages(
    stages: Sequence[Taps],
    read: NDArray[np.bool_],
    voxels: NDArray[np.int64],
    count: int,
    threads: Threads,
) -> tuple[tuple[Taps, ...], NDArray[np.int64]]:
    """Return the stages between some of ``count`` voxels and the rows that are ``read``.

    The rows that the last of them has are returned too.
    """
    reached = np.zeros(count, dtype=np.bool_)
    reached[voxels] = True
    by_stage = []
    for stage in stages:
        following = np.zeros(stage.rows, dtype=np.bool_)
        threads.run(mark_rows, stage.rows, stage, reached, following)
        by_stage.append(following)
        reached = following
    widths = [count, *(stage.rows for stage in stages)]
    needed = read[: widths[-1]]
    for k in range(len(stages) - 1, -1, -1):
        by_stage[k] &= needed
        needed = np.zeros(widths[k], dtype=np.bool_)
        mark_columns(stages[k], by_stage[k], needed)
    numbers = np.full(count, -1, dtype=np.int32)
    numbers[voxels] = np.arange(len(voxels), dtype=np.int32)
    smaller, rows = [], voxels
    for stage, marked in zip(stages, by_stage, strict=True):
        rows = np.flatnonzero(marked)
        smaller.append(_select_entries(stage, numbers, rows, threads))
        numbers = np.full(len(marked), -1, dtype=np.int32)
        numbers[rows] = np.arange(len(rows), dtype=np.int32)
    return tuple(smaller), rows


def _select_entries(
    taps: Taps, numbers: NDArray[np.int32], rows: NDArray[np.int64], threads: Threads
) -> Taps:
    """Return these rows of a sparse matrix, with the columns that have a number."""
    counts = np.empty(len(rows), dtype=np.int64)
    threads.run(count_entries, len(rows), taps, numbers, rows, counts)
    pointers = np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(counts)])
    columns = np.empty(pointers[-1], dtype=np.int32)
    smaller = Taps(pointers, columns, np.empty(len(columns), dtype=np.float32))
    threads.run(copy_entries, len(rows), taps, numbers, rows, smaller)
    return smaller


def reach_energies(
    kernels: PreparedKernels, voxels: NDArray[np.int64], changes: NDArray[np.floating]
) -> NDArray[np.float32]:
    """Return the pairwise energies (L, N) of changes (L, V) at voxels in the engine's order.

    Rows that these do not reach are never looked at.
    """
    labels, count, threads = len(changes) - 1, len(kernels.order), kernels.threads
    unit = kernels.form.unit
    values = np.ascontiguousarray(changes[1:].T * unit, dtype=np.float32)  # (V, L − 1)
    rows = np.zeros((kernels.rows, labels), dtype=np.float32)
    for f, start in zip(kernels.filters, kernels.starts[:-1], strict=True):
        here = rows[start : start + f.rows]
        if isinstance(f, ExactFilter):
            f.apply_from(voxels, values, here, threads)
            continue
        everywhere = np.ones(f.rows, dtype=np.bool_)
        stages, last = _restrict_stages(f.stages, everywhere, voxels, count, threads)
        chain = replace(f, stages=stages)
        target, spare = np.empty((2, chain.rows, labels), dtype=np.float32)
        chain.apply(values, target, spare, threads)
        here[last] = target[: len(last)]
    marginals = np.zeros((count, labels, 1), dtype=np.float32)
    marginals[voxels, :, 0] = values
    out = np.empty((1, labels + 1, count), dtype=np.float32)
    # Changes of all labels sum to 0: nothing is left of them for label 0 but what others miss.
    balanced = kernels.slices._replace(totals=kernels.slices.diagonals)
    threads.run(
        row_kernels.pairwise,
        -(-count // TILE_VALUES),
        *(np.int64(TILE_VALUES), Blurred(balanced, kernels.compatibilities, rows)),
        *(marginals, unit, kernels.order, out),
    )
    return out[0]


class CpuRestricted:
    """Problems at some voxels; see ``engines.protocol.RestrictedProblem``."""

    def __init__(self, crf: DenseCRF, kernels: PreparedKernels, voxels: NDArray[np.int64]) -> None:
        chosen = np.zeros(len(kernels.order), dtype=np.bool_)
        chosen[voxels] = True
        with announce_compilation():
            among = restrict_kernels(kernels, np.flatnonzero(chosen[kernels.order]))
        self._batch = Batch(crf, among)
        self._rank = np.searchsorted(voxels, among.order)  # where each stands in ``voxels``

    def load(
        self, base: NDArray[np.float16], fixed: NDArray[np.int16], *, sharpness: float = 1.0
    ) -> None:
        """Take log-odds (A, L − 1, B), start at their softmax, with the labels that are fixed."""
        batch = self._batch
        batch.take(base.shape[2])
        self._fixed = fixed
        here, labels = base[self._rank], fixed[self._rank]
        self._set_energies(here)
        reference = np.empty(here.shape, dtype=np.float32)
        self._softmax(reference, sharpness)
        batch.path = Path(references=reference[np.newaxis])
        given = np.flatnonzero(labels != FREE)
        others = np.arange(1, here.shape[1] + 1)[:, np.newaxis]
        certain = labels[given, np.newaxis, np.newaxis] == others  # (G, L − 1, 1)
        # A fixed label has log-odds so large that every update finds it again.
        is_first = (labels[given] == 0)[:, np.newaxis, np.newaxis]
        here[given] = np.where(is_first, -CERTAIN_NATS, np.where(certain, CERTAIN_NATS, 0))
        self._set_energies(here)
        unit, marginals = batch.kernels.form.unit, batch.buffers.marginals
        marginals[:] = 0
        away = (certain - reference[given]) * unit
        marginals[given] = np.rint(away) if batch.kernels.compact else away

    def step(
        self,
        update: Update = "parallel",
        damping: float = 0.0,
        *,
        sharpness: float = 1.0,
        watched: bool = True,
    ) -> Change:
        """Update every voxel once."""
        return self._batch.step(damping, sharpness, watched=watched)

    def marginals(self) -> NDArray[np.float32]:
        """Return Q, (B, L, A)."""
        batch = self._batch
        shape = (batch.problems, len(self._rank), batch.buffers.marginals.shape[1] + 1)
        out = np.empty(shape, dtype=np.float32)
        batch.write_marginals(out, self._rank)
        given = np.flatnonzero(self._fixed != FREE)  # exact, whatever 16 bits make of them
        out[:, given] = np.eye(out.shape[2], dtype=np.float32)[self._fixed[given]]
        return out.transpose(0, 2, 1)

    def _set_energies(self, log_odds: NDArray[np.float16]) -> None:
        """Set the energies of all problems to minus their log-odds, (A, L − 1, B)."""
        energies = self._batch.buffers.energies
        tiles, labels, values = energies.shape
        problems = log_odds.shape[2]
        padded = np.zeros((tiles * values // problems, labels, problems), dtype=np.float16)
        padded[: len(log_odds)] = -log_odds
        shaped = padded.reshape(tiles, values // problems, labels, problems).transpose(0, 2, 1, 3)
        in_tiles = shaped.reshape(energies.shape)
        energies[:] = in_tiles.view(np.uint16) if energies.dtype == np.uint16 else in_tiles

    def _softmax(self, out: NDArray[np.float32], sharpness: float) -> None:
        """Write softmax(−sharpness·energies) into out (A, L − 1, B), and find the labels."""
        batch, form = self._batch, WHOLE_FORMATS[False][1]
        buffers, nothing = batch.buffers, np.zeros((0, 0), dtype=np.float32)
        none = np.zeros((0, 0, 0), dtype=np.float32)
        with announce_compilation():
            batch.kernels.threads.run(
                row_kernels.begin,
                len(buffers.energies),
                TiledProblem(buffers.energies, nothing, none, none),
                *(out, buffers.labels, form, np.float32(sharpness)),
            )


class ConstantMessages:
    """Voxels that receive the same messages in every sample, and labels by their own noise alone.

    Their log-odds without noise are −U − pairwise, plus the centre of a centred CRF.
    """

    def __init__(
        self, crf: DenseCRF, batch: Batch, pairwise: NDArray[np.float32], voxels: NDArray[np.int64]
    ) -> None:
        self._batch, self._pairwise, self._voxels = batch, pairwise, voxels
        self.logits = -np.asarray(crf.energies[:, voxels], dtype=np.float32)  # (L, V)
        self.logits -= pairwise[:, voxels]
        if batch.centre is not None:
            self.logits += batch.centre[:, voxels]
        self.usual = self.logits.argmax(axis=0).astype(np.uint8)  # (V,): labels without noise

    def vote(self, perturbation: Perturbation, samples: NDArray[np.int64]) -> NDArray[np.uint8]:
        """Return the labels of all voxels in some samples, (V, B)."""
        votes = np.empty((len(self._voxels), len(samples)), dtype=np.uint8)
        for part in self._parts(len(samples)):
            votes[part] = self._decide(perturbation, samples, part)
        return votes

    def find_near(
        self, perturbation: Perturbation, samples: NDArray[np.int64], nats: float
    ) -> NDArray[np.bool_]:
        """Return which voxels come near to another label in any of some samples (S,), (V,).

        Smooth noise is small in most blocks of neighbours at once: few are looked at one by one.
        """
        perturber = self._batch.perturber(perturbation)
        edges = range(0, len(samples), DEFAULT_BATCH)
        batches = [samples[first : first + DEFAULT_BATCH] for first in edges]
        if perturber.is_smooth:
            return perturber.find_near(self._voxels, self.logits, batches, nats)
        near = np.zeros(len(self._voxels), dtype=np.bool_)
        for some in batches:
            for part in self._parts(len(some)):
                labels = self._decide(perturbation, some, part, nats)
                near[part] |= (labels != self.usual[part, np.newaxis]).any(axis=1)
        return near

    def _parts(self, problems: int) -> Iterator[slice]:
        """Cut the voxels into whole tiles of so many problems that fit into the memory at once."""
        tile = max(1, TILE_VALUES // problems)
        at_once = max(tile, VOTING_AT_ONCE // tile * tile)
        for first in range(0, len(self._voxels), at_once):
            yield slice(first, min(first + at_once, len(self._voxels)))

    def _decide(
        self, perturbation: Perturbation, samples: NDArray[np.int64], part: slice, nats: float = 0.0
    ) -> NDArray[np.uint8]:
        """Return labels of some voxels where the usual one has so many nats less, (V, B)."""
        batch, voxels, problems = self._batch, self._voxels[part], len(samples)
        tile = max(1, TILE_VALUES // problems)
        shape = (-(-len(voxels) // tile), len(self.logits) - 1, tile * problems)
        energies = np.zeros(shape, dtype=batch.buffers.energies.dtype)
        batch.perturber(perturbation).fill(energies, samples, batch.ceiling, voxels)
        last = self._pairwise[:, voxels]
        last[self.usual[part], np.arange(len(voxels))] += np.float32(nats)
        base = np.ascontiguousarray((last[:1] - last[1:]).T, dtype=np.float32)  # (V, L − 1)
        form, none = WHOLE_FORMATS[False][1], np.zeros((0, 0, 0), dtype=np.float32)
        marginals: NDArray[Any] = np.empty((*base.shape, problems), dtype=np.float32)
        votes = np.empty((len(voxels), problems), dtype=np.uint8)
        with announce_compilation():
            batch.shift(energies, voxels, problems)
            batch.kernels.threads.run(
                row_kernels.begin,
                len(energies),
                TiledProblem(energies, base, none, none),
                *(marginals, votes, form, np.float32(1)),
            )
        return votes


class FrozenSamples:
    """Samples of which active voxels alone are updated; the frozen ones vote once."""

    def __init__(
        self,
        crf: DenseCRF,
        kernels: PreparedKernels,
        frozen: FrozenVoxels,
        centre: NDArray[np.floating] | None,
        memory: SharedMemory,
    ) -> None:
        self.voxels = frozen
        rank = np.full(len(kernels.order), -1, dtype=np.int64)
        rank[frozen.active] = np.arange(len(frozen.active))
        rank = rank[kernels.order]  # where each voxel stands in the arrays of ``frozen``
        self._active, rest = np.flatnonzero(rank >= 0), np.flatnonzero(rank < 0)
        mine = rank[self._active]
        bases = -(frozen.energies[:, 1:, mine] - frozen.energies[:, :1, mine])  # (T, L − 1, A)
        averages = frozen.marginals[:, 1:, mine]
        path = Path(
            np.ascontiguousarray(bases.transpose(0, 2, 1)),
            np.ascontiguousarray(averages.transpose(0, 2, 1)[..., np.newaxis]),
        )
        with announce_compilation():
            among = restrict_kernels(kernels, self._active)
        self.batch = Batch(crf, among, path, memory)
        self.batch.centre = centre
        self._frozen = kernels.order[rest]  # (F,), in the order of the mask
        self._messages = ConstantMessages(crf, self.batch, frozen.last, self._frozen)
        self._votes = self._messages.usual[:, np.newaxis]  # (F, B), or (F, 1) for all samples

    @property
    def labels(self) -> list[tuple[NDArray[np.uint8], NDArray[np.int64]]]:
        """Labels (V, B), or (V, 1) where all samples have the same, and voxels (V,), in pieces."""
        active = self.batch.kernels.order
        return [(self.batch.buffers.labels, active), (self._votes, self._frozen)]

    def perturb(
        self,
        perturbation: Perturbation,
        samples: NDArray[np.int64],
        marginals: NDArray[np.float32] | None,
        sharpness: float,
    ) -> None:
        """Take the perturbed problems of these samples; frozen voxels vote at once."""
        batch = self.batch
        self._perturbation = perturbation
        batch.perturb(perturbation, samples)
        if not self.voxels.steady:
            self._votes = self._messages.vote(perturbation, samples)
        with announce_compilation():
            batch.begin(sharpness)
            if marginals is not None:
                for b in range(len(samples)):
                    batch.load_marginals(b, marginals)

    def add_conditional(self, chosen: NDArray[np.bool_], out: NDArray[np.int64]) -> None:
        """Add Σ_b softmax(−U − pairwise) of chosen problems in units of 2⁻³⁰ to out (L, N)."""
        out[:, self._frozen] += int(chosen.sum()) * fixed_point(self._law)
        energies = np.zeros(self.batch.buffers.energies.shape, dtype=np.float32)
        self.batch.perturb_energies(self._perturbation.without_noise(), energies)
        self.batch.add_conditional(energies, chosen, out)

    def write_marginals(self, out: NDArray[np.float32]) -> None:
        """Write Q into out (B, N, L): frozen voxels have the law of their labels."""
        out[:, self._frozen] = self._law.T
        self.batch.write_marginals(out, self.batch.kernels.order)

    def shares(self, rows: NDArray[np.int64]) -> NDArray[np.float32]:
        """Return the marginals of labels 1 … L − 1 at some active voxels, (V, L − 1, B)."""
        at = np.minimum(np.searchsorted(self._active, rows), len(self._active) - 1)
        if not np.array_equal(self._active[at], rows):
            raise ValueError("log_odds must be asked of active voxels, got frozen ones")
        return self.batch.shares(at)

    def narrow(self, chosen: NDArray[np.int64]) -> None:
        """Go on with some of the samples."""
        self.batch.narrow(chosen)
        if not self.voxels.steady:
            self._votes = np.ascontiguousarray(self._votes[:, chosen])

    @cached_property
    def _law(self) -> NDArray[np.float32]:
        """The probability of each label at frozen voxels, (L, F)."""
        return softmax(self._messages.logits, axis=0)
