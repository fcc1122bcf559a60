"""Samples of active voxels: the kernels restricted to them, and the state of one batch.

Each chain keeps the rows that active voxels reach and read. Its numbers stay those of the whole
problem: what is held contributes exactly 0 to Qᵗ − q̄ᵗ, and zeros are left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perturb_mpm.engines.cpu import held_kernels as kernels
from perturb_mpm.engines.cpu import transfer
from perturb_mpm.engines.cpu.buffers import LANES
from perturb_mpm.engines.cpu.chain import Filter, Taps
from perturb_mpm.engines.cpu.compile import announced
from perturb_mpm.engines.cpu.exact import ExactFilter
from perturb_mpm.engines.cpu.groups import Compatibilities, Slices
from perturb_mpm.engines.cpu.perturber import Perturber
from perturb_mpm.engines.cpu.row_kernels import combine
from perturb_mpm.engines.cpu.row_updates import begin_held_rows, fits_registers, update_rows
from perturb_mpm.engines.cpu.threads import Threads
from perturb_mpm.engines.lattice import LARGEST_HALF
from perturb_mpm.engines.protocol import FRACTION_BITS, Change, Hold, fixed_point
from perturb_mpm.engines.reference import softmax
from perturb_mpm.model import DenseCRF
from perturb_mpm.noise import Perturbation, key_words

UNIT = 32767
"""Differences of marginals are kept in 16 bits, in units of 1/32767."""

VOTED_AT_ONCE = 1 << 14
"""Held voxels whose noise is in memory at once."""

LOWEST_GUMBEL = -float(np.log(np.log(2.0**24)))  # of u = 2⁻²⁴, the smallest there is


@dataclass(frozen=True)
class HeldAverages:
    """What a ``Hold`` says, in the engine's order: T averages of A active voxels, H held ones.

    Log-odds and marginals leave label 0 out, against which log-odds are.
    """

    places: NDArray[np.int64]  # (A,): of active voxels, rising
    base: NDArray[np.float32]  # (T, L − 1, A): what q̄ᵗ adds to the log-odds
    averages: NDArray[np.float32]  # (T, L − 1, A): q̄ᵗ
    held_base: NDArray[np.float32]  # (L − 1, H): what the last q̄ᵗ adds at the other places

    @classmethod
    def of(cls, held: Hold, order: NDArray[np.int64]) -> HeldAverages:
        """Bring a ``Hold`` into the engine's order."""
        rank = np.full(len(order), -1, dtype=np.int64)
        rank[held.active] = np.arange(len(held.active))
        rank = rank[order]  # where each voxel stands in the arrays of ``held``
        mine, others = rank[rank >= 0], order[rank < 0]
        return cls(
            np.flatnonzero(rank >= 0),
            _against_first(-held.energies[:, :, mine]),
            np.ascontiguousarray(held.marginals[:, 1:, mine], dtype=np.float32),
            _against_first(-held.last[np.newaxis, :, others])[0],
        )


class ActiveVoxels:
    """The kernels of a CRF among its active voxels, and what the others send."""

    def __init__(
        self,
        held: HeldAverages,
        crf: DenseCRF,
        filters: Sequence[Filter | ExactFilter],
        slices: Slices,
        compatibilities: Compatibilities,
        order: NDArray[np.int64],
        centre: NDArray[np.floating] | None,
        ceiling: np.float32,
        threads: Threads,
        *,
        compact: bool,
        unit: float,
    ) -> None:
        self._crf, self._threads, self._compatibilities = crf, threads, compatibilities
        self._ceiling, self._compact = ceiling, compact
        self._unit = np.float32(UNIT if compact else 1)
        self._dtype: np.dtype[Any] = np.dtype(np.int16 if compact else np.float32)
        self._voxels = len(order)
        is_active = np.zeros(self._voxels, dtype=np.bool_)
        is_active[held.places] = True
        self._places = held.places
        self._held_places = np.flatnonzero(~is_active)
        self._order = order[self._places]
        self._held_order = order[self._held_places]
        self._base, self._averages, self._held_base = held.base, held.averages, held.held_base
        self._centre = centre
        with announced():
            self._chains, self._slices = restricted(
                filters, slices, self._places, self._voxels, unit / float(self._unit), threads
            )
        self._limits: tuple[float, NDArray[np.int16], NDArray[np.uint8]] | None = None
        self._problems = 0
        self._updates = 0

    @cached_property
    def _law(self) -> NDArray[np.float32]:
        """The probability of each label at held voxels, (L, H)."""
        unaries = self._crf.energies[:, self._held_order].astype(np.float32)
        against_first = self._held_base - (unaries[1:] - unaries[0])  # (L − 1, H)
        if self._centre is not None:
            centre = self._centre[:, self._held_order]
            against_first += centre[1:] - centre[0]
        logits = np.concatenate([np.zeros_like(against_first[:1]), against_first])
        return softmax(logits, axis=0)

    def perturb(
        self,
        perturbation: Perturbation,
        samples: NDArray[np.int64],
        marginals: NDArray[np.floating] | None,
        sharpness: float,
    ) -> None:
        """Take the perturbed problems of these samples; held voxels vote at once."""
        self._make_room(len(samples))
        self._samples, self._updates, self._perturbation = samples, 0, perturbation
        self._vote(perturbation)
        self._perturber(perturbation, self._order).fill(self._energies, samples, self._ceiling)
        with announced():
            if marginals is None:
                self._begin(np.float32(sharpness))
            else:
                away = marginals[1:, self._order] - self._averages[0]  # (L − 1, A)
                scaled = away.T[:, :, np.newaxis] * self._unit
                self._deltas[:] = np.rint(scaled) if self._compact else scaled
                likely = marginals[:, self._order].argmax(axis=0)  # (A,)
                self.labels[self._places] = likely[:, np.newaxis]
            self._shift(self._energies, self._order)

    def _begin(self, sharpness: np.float32) -> None:
        """Start active voxels without messages."""
        arguments = (self._energies, self._averages[0], self._deltas, self._places, self.labels)
        how = (self._unit, sharpness)
        if self._each_label:
            voxels = len(self._places)
            self._threads.run(begin_held_rows, voxels, *arguments, *how, self._each_label)
        else:
            tiles = len(self._energies)
            self._threads.run(kernels.begin_held, tiles, *arguments, *how, self._compact)

    def step(self, damping: float, sharpness: float, *, watched: bool) -> Change:
        """Update every active voxel once."""
        now = min(self._updates, len(self._base) - 1)
        with announced():
            self._filter()
            changes = self._update(now, np.float32(damping), np.float32(sharpness), watched=watched)
        self._updates += 1
        pieces = np.array(changes, dtype=np.float64)  # (pieces, 3, B)
        overall, foreground = pieces[:, :2].max(axis=0)
        return Change(overall, foreground, pieces[:, 2].sum(axis=0) / self._voxels)

    def _update(
        self, now: int, damping: np.float32, sharpness: np.float32, *, watched: bool
    ) -> list[tuple[NDArray[np.float32], ...]]:
        """Update active voxels by the averages of the present update; return how far they moved."""
        averages = self._averages[now], self._averages[min(now + 1, len(self._base) - 1)]
        filtered = (self._slices, self._compatibilities, self._rows)
        energies, how = (self._energies, self._base[now]), (damping, sharpness, watched)
        if self._each_label:
            return self._threads.run(
                update_rows,
                len(self._places),
                *(*energies, *filtered, self._deltas, *averages, self.labels, self._places),
                *(self._unit, np.float32(0), *how, self._each_label),
            )
        return self._threads.run(
            kernels.update_held,
            len(self._energies),
            *(*energies, *averages, *filtered, self._deltas, self._places, self.labels),
            *(self._unit, self._compact, *how),
        )

    def conditional(self, chosen: NDArray[np.bool_] | None) -> NDArray[np.int64]:
        """Return Σ_b softmax(−U − pairwise) in units of 2⁻³⁰, (L, N)."""
        taken = np.ones(self._problems, dtype=np.bool_) if chosen is None else chosen
        out = np.zeros(self._crf.energies.shape, dtype=np.int64)
        out[:, self._held_order] = int(taken.sum()) * fixed_point(self._law)
        energies = np.zeros(self._energies.shape, dtype=np.float32)
        plain = self._perturber(self._perturbation.without_noise(), self._order)
        plain.fill(energies, self._samples, self._ceiling)
        with announced():
            self._shift(energies, self._order)
            self._filter()
            self._threads.run(
                kernels.conditional_held,
                len(energies),
                energies,
                self._base[min(self._updates, len(self._base) - 1)],
                self._slices,
                self._compatibilities,
                self._rows,
                self._deltas,
                taken,
                self._unit,
                float(1 << FRACTION_BITS),
                self._order,
                out,
            )
        return out

    def marginals(self) -> NDArray[np.float32]:
        """Return Q, (B, L, N): held voxels have the law of their labels."""
        out = np.empty((self._problems, *self._crf.energies.shape), dtype=np.float32)
        out[:, :, self._held_order] = self._law
        now = self._averages[min(self._updates, len(self._base) - 1)]  # (L − 1, A)
        away = self._deltas.transpose(2, 1, 0) / self._unit  # (B, L − 1, A)
        out[:, 1:, self._order] = away + now
        out[:, 0, self._order] = np.maximum(0, 1 - out[:, 1:, self._order].sum(axis=1))
        return out

    def _make_room(self, problems: int) -> None:
        if problems == self._problems:
            return
        self._problems = problems
        labels = self._crf.n_labels - 1
        # One number a label where voxels are updated row by row, nothing where in tiles.
        self._each_label = (0,) * labels if fits_registers(problems, labels) else ()
        self._tile = max(1, LANES // max(1, problems))
        energies: Any = np.uint16 if self._compact else np.float32
        tiles = -(-len(self._places) // self._tile)
        self._energies = np.zeros((tiles, labels, self._tile * problems), dtype=energies)
        self._deltas = np.zeros((len(self._places), labels, problems), dtype=self._dtype)
        self.labels = np.empty((self._voxels, problems), dtype=np.uint8)
        total = sum(chain.rows for chain in self._chains)
        self._rows = np.zeros((total + 1, labels * problems), dtype=self._dtype)  # the last stays 0
        most = max((chain.rows for chain in self._chains), default=0)
        self._spare = np.empty((most, labels * problems), dtype=self._dtype)

    def _filter(self) -> None:
        values = self._deltas.reshape(len(self._places), self._rows.shape[1])
        start = 0
        for chain in self._chains:
            target = self._rows[start : start + chain.rows]
            chain.apply(values, target, self._spare, self._threads)
            start += chain.rows

    def _vote(self, perturbation: Perturbation) -> None:
        """Give held voxels their labels: their own noise, and the last averaged energies."""
        labels, problems = self._crf.n_labels - 1, self._problems
        tiles = max(1, VOTED_AT_ONCE // self._tile)
        energies = np.zeros((tiles, labels, self._tile * problems), dtype=self._energies.dtype)
        doubtful = self._vote_where_certain(perturbation)
        for first in range(0, len(doubtful), tiles * self._tile):
            these = doubtful[first : first + tiles * self._tile]
            order = self._held_order[these]
            part = energies[: -(-len(order) // self._tile)]
            self._perturber(perturbation, order).fill(part, self._samples, self._ceiling)
            with announced():
                self._shift(part, order)
                self._threads.run(
                    kernels.vote_held,
                    len(part),
                    part,
                    np.ascontiguousarray(self._held_base[:, these]),
                    self._held_places[these],
                    self.labels,
                )

    def _vote_where_certain(self, perturbation: Perturbation) -> NDArray[np.int64]:
        """Give held voxels their likely label where no noise can change it; return the others.

        That is seen from random bits alone, before any logarithm is taken.
        """
        doubtful = np.ones(len(self._held_places), dtype=np.bool_)
        if not perturbation.correlated:
            if self._limits is None or self._limits[0] != perturbation.scale:
                self._limits = perturbation.scale, *self._limits_of(perturbation.scale)
            _, most, likely = self._limits
            with announced():
                self._threads.run(
                    kernels.vote_certain,
                    len(doubtful),
                    most,
                    likely,
                    self._held_order,
                    self._crf.grid.index,
                    self._samples.astype(np.uint64),
                    key_words(perturbation.seed).astype(np.uint64),
                    perturbation.antithetic,
                    self._held_places,
                    self.labels,
                    doubtful,
                )
        return np.flatnonzero(doubtful)

    def _limits_of(self, scale: float) -> tuple[NDArray[np.int16], NDArray[np.uint8]]:
        """Return how large random bits of held voxels may be, (H, L), and their likely label, (H,).

        Label l wins only where γ_l − γ_m is at least its gap to the likely label m, over the
        scale, and γ_m is never below that of the smallest u. γ_l is the larger the larger u is.
        """
        most = np.empty((len(self._held_places), self._crf.n_labels), dtype=np.int16)
        likely = np.empty(len(most), dtype=np.uint8)
        # Two energies are rounded, to half precision in compact samples, each by 2⁻¹¹ of the
        # ceiling at most; and again, by up to twice as much, where a centre is taken off. Where the
        # ceiling is that of half precision itself, nothing is said.
        rounded = 1 if self._centre is None else 3
        margin = np.inf
        if self._ceiling < LARGEST_HALF:
            margin = 1e-3 + rounded * float(self._ceiling) * 2.0**-10
        self._threads.run(
            kernels.limit_words,
            len(most),
            self._crf.energies,
            self._held_base,
            np.zeros((0, 0), dtype=np.float32) if self._centre is None else self._centre,
            self._held_order,
            np.float32(margin),
            np.float32(1 / scale if scale else np.inf),
            np.float32(LOWEST_GUMBEL),
            most,
            likely,
        )
        return most, likely

    def _perturber(self, perturbation: Perturbation, order: NDArray[np.int64]) -> Perturber:
        crf = self._crf
        return Perturber(perturbation, crf.energies, crf.grid, order, self._threads)

    def _shift(self, energies: NDArray[Any], order: NDArray[np.int64]) -> None:
        if self._centre is not None:
            arguments = (energies, self._centre, order, np.int64(self._problems))
            self._threads.run(transfer.shift_energies, len(energies), *arguments)


class RestrictedChain:
    """The stages of one kernel among active voxels."""

    def __init__(self, stages: Sequence[Taps]) -> None:
        self._stages = stages
        self.rows = max(stage.rows for stage in stages)

    def apply(
        self, values: NDArray[Any], target: NDArray[Any], spare: NDArray[Any], threads: Threads
    ) -> None:
        """Run (A, C) values through all stages into ``target``."""
        source, places = values, [target, spare]
        for number, stage in enumerate(self._stages):
            place = places[(len(self._stages) - 1 - number) % 2]
            arguments = (stage.pointers, stage.columns, stage.coefficients, source, place)
            threads.run(combine, stage.rows, *arguments, np.float32(0))
            source = place


def restricted(
    filters: Sequence[Filter | ExactFilter],
    slices: Slices,
    places: NDArray[np.int64],
    voxels: int,
    factor: float,
    threads: Threads,
) -> tuple[list[RestrictedChain | ExactFilter], Slices]:
    """Return all kernels among the voxels at ``places``, and the slices that end them.

    Coefficients of slices are multiplied by ``factor``: values in rows have another unit.
    """
    columns = slices.columns[places]  # (A, P): into the stacked rows of all kernels
    read = np.zeros(sum(f.rows for f in filters), dtype=np.bool_)
    read[columns.reshape(-1)] = True
    numbers = np.full(len(read), -1, dtype=np.int32)
    chains: list[RestrictedChain | ExactFilter] = []
    start = below = 0
    for f in filters:
        here = slice(start, start + f.rows)
        if isinstance(f, ExactFilter):
            chain: RestrictedChain | ExactFilter = f.among(places)
            kept = places
        else:
            chain, kept = restricted_chain(f.stages, read[here], places, voxels, threads)
        numbers[here][kept] = below + np.arange(len(kept), dtype=np.int32)
        chains.append(chain)
        start, below = start + f.rows, below + chain.rows
    numbers[numbers < 0] = below  # the row that stays 0
    diagonals = np.ascontiguousarray(slices.diagonals[:, places])
    coefficients = (slices.coefficients[places] * np.float32(factor)).astype(np.float32)
    # All labels of a difference sum to 0, so nothing is left for label 0 but what others miss.
    return chains, Slices(numbers[columns], coefficients, slices.ends, diagonals, diagonals)


def restricted_chain(
    stages: Sequence[Taps],
    read: NDArray[np.bool_],
    places: NDArray[np.int64],
    voxels: int,
    threads: Threads,
) -> tuple[RestrictedChain, NDArray[np.int64]]:
    """Return the stages between the voxels at ``places`` and rows that are ``read``, and which."""
    reached = np.zeros(voxels, dtype=np.bool_)
    reached[places] = True
    by_stage = []
    for stage in stages:
        following = np.zeros(stage.rows, dtype=np.bool_)
        arguments = (stage.pointers, stage.columns, reached, following)
        threads.run(kernels.mark_rows, stage.rows, *arguments)
        by_stage.append(following)
        reached = following
    widths = [voxels, *(stage.rows for stage in stages)]
    needed = read[: widths[-1]]
    for k in range(len(stages) - 1, -1, -1):
        by_stage[k] &= needed
        needed = np.zeros(widths[k], dtype=np.bool_)
        kernels.mark_columns(stages[k].pointers, stages[k].columns, by_stage[k], needed)
    numbers = np.full(voxels, -1, dtype=np.int32)
    numbers[places] = np.arange(len(places), dtype=np.int32)
    kept, smaller = places, []
    for stage, rows in zip(stages, by_stage, strict=True):
        kept = np.flatnonzero(rows)
        smaller.append(_part_of(stage, numbers, kept, threads))
        numbers = np.full(len(rows), -1, dtype=np.int32)
        numbers[kept] = np.arange(len(kept), dtype=np.int32)
    return RestrictedChain(smaller), kept


def _part_of(
    taps: Taps, numbers: NDArray[np.int32], rows: NDArray[np.int64], threads: Threads
) -> Taps:
    """Return these rows of a sparse matrix, with the columns that have a number."""
    counts = np.empty(len(rows), dtype=np.int64)
    threads.run(
        kernels.count_entries, len(rows), taps.pointers, taps.columns, numbers, rows, counts
    )
    pointers = np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(counts)])
    columns = np.empty(pointers[-1], dtype=np.int32)
    coefficients = np.empty(pointers[-1], dtype=np.float32)
    threads.run(
        kernels.copy_entries,
        len(rows),
        taps.pointers,
        taps.columns,
        taps.coefficients,
        numbers,
        rows,
        pointers,
        columns,
        coefficients,
    )
    return Taps(pointers, columns, coefficients)


def _against_first(energies: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return (T, L, V) energies as differences against label 0's, (T, L − 1, V)."""
    differences: NDArray[np.float32] = np.ascontiguousarray(energies[:, 1:] - energies[:, :1])
    return differences
