"""The CPU engine: batches of problems on compiled filters, every core, deterministic."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import cached_property, partial
from operator import mul
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perturb_mpm.engines.averaging import HoldRule
from perturb_mpm.engines.convergent import convergent_marginals
from perturb_mpm.engines.cpu import row_kernels as kernels
from perturb_mpm.engines.cpu import transfer
from perturb_mpm.engines.cpu.averaged import AveragedPath, furthest
from perturb_mpm.engines.cpu.buffers import (
    BufferPool,
    Buffers,
    choose_batch,
    require_for_build,
)
from perturb_mpm.engines.cpu.chain import Filter, factorize
from perturb_mpm.engines.cpu.compile import announced
from perturb_mpm.engines.cpu.edited import CpuEdit, reached
from perturb_mpm.engines.cpu.exact import ExactFilter
from perturb_mpm.engines.cpu.groups import stack_slices
from perturb_mpm.engines.cpu.held import ActiveVoxels, HeldAverages
from perturb_mpm.engines.cpu.lattice import build
from perturb_mpm.engines.cpu.perturber import Perturber
from perturb_mpm.engines.cpu.row_updates import begin_rows, update_rows
from perturb_mpm.engines.cpu.scale import calibrated_gain, calibrated_scale, calibration_part
from perturb_mpm.engines.cpu.store import NOTHING_KEPT, KernelStore
from perturb_mpm.engines.cpu.threads import Threads
from perturb_mpm.engines.lattice import BLURS, energy_ceiling, morton_order, published_gain
from perturb_mpm.engines.memory import give_back
from perturb_mpm.engines.protocol import (
    FRACTION_BITS,
    Accuracy,
    Change,
    Hold,
    Problems,
    Update,
    change_between,
    log_odds_of,
)
from perturb_mpm.engines.reference import softmax
from perturb_mpm.model import DenseCRF, PairwiseTerm
from perturb_mpm.noise import Perturbation

# The part of the image that calibration looks at, (P,) voxels, and their marginals, (P, L).
Calibration = tuple[slice, NDArray[np.float32]]

# Bytes of what all problems share: of a small image, the next one takes what is freed.
WORTH_GIVING_BACK = 1 << 26


class CpuSolver:
    """The kernels of one CRF on all cores; see ``engines.protocol.Solver`` for the methods.

    ``compact`` keeps marginals and lattice values in 16 bits, exact to 1e-5, and energies in half
    precision, at half the memory: meant for many noisy problems.
    """

    engine = "cpu"

    def __init__(
        self,
        crf: DenseCRF,
        accuracy: Accuracy,
        batch: int | None,
        threads: int | None,
        budget: int,
        *,
        compact: bool,
        store: KernelStore = NOTHING_KEPT,
    ) -> None:
        self.accuracy: str = accuracy
        self._crf = crf
        self._budget = budget
        self._store = store
        self._threads = Threads(threads)
        compact = compact and accuracy != "exact"
        self._dtype: np.dtype[Any] = np.dtype(np.uint16 if compact else np.float32)
        self._unit = np.float32(65535 if compact else 1)
        self._rounding = np.float32(0.5 if compact else 0)
        self._order = morton_order(crf.grid)
        with announced():
            self._filters = self._filters_within(budget)
            self._slices, self._compatibilities = stack_slices(
                crf.terms,
                self._filters,
                crf.n_labels,
                crf.grid.voxels,
                float(self._unit),
                self._threads,
                self_term=crf.self_term,
            )
        if self._shared_bytes() > WORTH_GIVING_BACK:
            give_back()
        rows = [f.rows for f in self._filters]
        self._starts = np.concatenate([[0], np.cumsum(rows)]).astype(np.int64)
        self._most_rows = max(rows, default=0)
        strongest = self._strongest_message() * (1 + crf.centring)
        self._ceiling = np.float32(energy_ceiling(strongest))
        self.batch = choose_batch(
            crf,
            batch,
            int(self._starts[-1]) + self._most_rows,
            self._shared_bytes(),
            self._dtype.itemsize,
            budget,
        )
        self._perturber = self._without_noise = self._perturber_of(Perturbation(scale=0.0))
        self._samples = np.empty(0, dtype=np.int64)
        self._pool = self._pool_for(0)
        self._buffers = self._room_for(0)
        self._fresh = False  # whether the rows are those of the present marginals
        self._active: ActiveVoxels | None = None  # what ``hold`` asks for
        self._held: ActiveVoxels | None = None  # what the present problems are
        self.centre: NDArray[np.floating] | None = None
        if crf.centring > 0:
            self.load(crf.prior[np.newaxis])
            self.centre = np.float32(crf.centring) * self.pairwise()[0]

    @property
    def diagonal(self) -> NDArray[np.float32]:
        """What each voxel would send to itself, (N,)."""
        total = np.empty(len(self._order), dtype=np.float32)
        total[self._order] = self._diagonal()
        return total

    def hold(self, held: Hold | None) -> None:
        """Update only active voxels of the problems that come next by ``perturb``."""
        self._active = None
        if held is not None:
            self._hold(HeldAverages.of(held, self._order))

    def _hold(self, held: HeldAverages) -> None:
        self._active = ActiveVoxels(
            held,
            self._crf,
            self._filters,
            self._slices,
            self._compatibilities,
            self._order,
            self.centre,
            self._ceiling,
            self._threads,
            compact=self._dtype == np.uint16,
            unit=float(self._unit),
        )

    def hold_by(self, rule: HoldRule) -> tuple[float, float]:
        """Hold what the rule says; return the share of active voxels and the bound in nats."""
        self._held = None
        self._make_room(1, "rule")
        with announced():
            logits = self._against_first(self._crf.energies, -1)
            centre = np.zeros(logits.shape, np.float32)
            if self.centre is not None:
                centre = self._against_first(self.centre)
            path = AveragedPath(
                rule,
                logits,
                centre,
                self._buffers,
                self._slices,
                self._compatibilities,
                self._blur,
                self._unit,
                self._rounding,
                self._threads,
            )
            whole = rule.iterations * logits.size * (4 + self._dtype.itemsize)
            fits = self._shared_bytes() + whole <= self._budget
            steps = deque(path.steps(), maxlen=None if fits else 1)
            dissent, variance = path.judged(steps[-1][0])
            places = np.flatnonzero(dissent > rule.epsilon)
            share = len(places) / self._crf.grid.voxels
            if share > rule.most_active:
                self.hold(None)
                return share, 0.0
            # Where there is no room to keep all of it, it is followed once more.
            again = (steps.popleft() for _ in range(len(steps))) if fits else path.steps()
            held = path.held_at(places, again)
            del path, steps, again, logits, centre  # room for what is made of it
            self._hold(held)
        variance[places] = 0
        return share, self._bound_of_held(variance)

    def _bound_of_held(self, variance: NDArray[np.float32]) -> float:
        """Return how far noise may move a held message, in nats, as ``held_bound`` does.

        ``variance`` (N,) is in the engine's order and 0 where voxels are active.
        """
        root = np.sqrt(self._diagonal())
        sources = variance * root
        most = sources.max(initial=0.0)
        if most == 0:
            return 0.0
        buffers = self._buffers
        buffers.marginals[:] = 0
        buffers.marginals[:, 0, 0] = sources / most * self._unit + self._rounding
        with announced():
            self._blur()
            moved = self._threads.run(
                furthest,
                buffers.tiles,
                np.int64(buffers.tile),
                self._slices,
                self._compatibilities,
                buffers.rows,
                buffers.marginals,
                tuple(np.zeros(x.shape, x.dtype) for x in (buffers.rows, buffers.marginals)),
                self._unit,
                root,
            )
        return float(np.sqrt(max(moved) * most))

    def _diagonal(self) -> NDArray[np.float32]:
        """Return what each voxel would send to itself, (N,), in the engine's order."""
        strengths = [np.float32(np.abs(term.compatibility).max()) for term in self._crf.terms]
        total = np.zeros(len(self._order), dtype=np.float32)
        for strength, f in zip(strengths, self._filters, strict=True):
            total += strength * f.diagonal
        return total

    def load(self, energies: Problems, marginals: Problems | None = None) -> None:
        """Take B ≤ batch problems, started at softmax(−energies) or at the given marginals."""
        self._held = None
        self._make_room(len(energies), "energies")
        with announced():
            for b, problem in enumerate(energies):
                self._load_energies(problem, b)
            if marginals is None:
                self._begin(1.0)
                return
            for b, problem in enumerate(marginals):
                self._load_marginals(problem, b)
            self._shift(self._buffers.energies)

    def perturb(
        self,
        perturbation: Perturbation,
        samples: NDArray[np.int64],
        marginals: NDArray[np.floating] | None = None,
        *,
        sharpness: float = 1.0,
    ) -> None:
        """Take the perturbed problems of these samples, started cold or at the given marginals."""
        self._held = self._active
        if self._held is not None:
            self._check_room(len(samples), "samples")
            self._held.perturb(perturbation, samples, marginals, sharpness)
            return
        if self._perturber.perturbation != perturbation:
            self._perturber = self._perturber_of(perturbation)
            self._without_noise = self._perturber_of(perturbation.without_noise())
        self._make_room(len(samples), "samples")
        self._samples = samples
        self._perturber.fill(self._buffers.energies, samples, self._ceiling)
        with announced():
            if marginals is None:
                self._begin(sharpness)
                return
            for b in range(len(samples)):
                self._load_marginals(marginals, b)
            self._shift(self._buffers.energies)

    def go_on_with(self, kept: NDArray[np.bool_]) -> bool:
        """Drop all but some of the problems; return whether that was done."""
        if self._held is not None:
            return False
        wide, places = self._buffers, np.flatnonzero(kept)
        narrow = self._room_for(len(places))
        with announced():
            self._move(
                transfer.narrow_tiles,
                (wide.energies, np.int64(wide.problems), places, narrow.energies),
                lambda block: block * narrow.tile // wide.tile * wide.energies[0].size,
                narrow.energies,
            )
            for before, after in (
                (wide.marginals, narrow.marginals),
                (wide.labels[:, np.newaxis], narrow.labels[:, np.newaxis]),
            ):
                arguments = (before, places, after)
                self._move(transfer.narrow_rows, arguments, partial(mul, before[0].size), after)
        self._buffers = narrow
        if len(self._samples) == wide.problems:  # problems that were loaded are no samples
            self._samples = self._samples[places]
        self._fresh = False
        return True

    def _move(
        self,
        kernel: Callable[..., None],
        arguments: tuple[object, ...],
        first_read: Callable[[int], int],
        target: NDArray[Any],
    ) -> None:
        """Run a kernel that moves pieces towards the start of the memory where they are.

        Piece i and those after it read nothing before value ``first_read`` (i). As many are moved
        at once as fit in front of that, which is about twice as many each time.
        """
        moved, pieces = 0, len(target)
        while moved < pieces:
            room = first_read(moved) // target[0].size
            stop = min(pieces, max(moved + 1, room))
            self._threads.run(kernel, stop - moved, *arguments, np.int64(moved))
            moved = stop

    def step(
        self,
        update: Update = "parallel",
        damping: float = 0.0,
        *,
        sharpness: float = 1.0,
        watched: bool = True,
    ) -> Change:
        """Update every marginal once."""
        if self._held is not None:
            return self._held.step(min(damping, 0.0), sharpness, watched=watched)
        if update == "convergent" and not self._crf.self_term:
            return self._convergent_step(damping)
        with announced():
            self._refresh()
            changes = self._update(np.float32(damping), np.float32(sharpness), watched=watched)
        self._fresh = False
        pieces = np.array(changes, dtype=np.float64)  # (pieces, 3, B)
        overall, foreground = pieces[:, :2].max(axis=0)
        return Change(overall, foreground, pieces[:, 2].sum(axis=0) / self._crf.grid.voxels)

    def _update(
        self, damping: np.float32, sharpness: np.float32, *, watched: bool
    ) -> list[tuple[NDArray[np.float32], ...]]:
        """Update every marginal once, from rows that are fresh; return how far each piece moved."""
        buffers = self._buffers
        filtered = (self._slices, self._compatibilities, buffers.rows)
        how = (self._unit, self._rounding, damping, sharpness, watched)
        if damping <= 0 and buffers.by_rows:
            return self._threads.run(
                update_rows,
                self._crf.grid.voxels,
                *(buffers.energies, (), *filtered, buffers.marginals, (), (), buffers.labels, ()),
                *(*how, buffers.each_label),
            )
        return self._threads.run(
            kernels.update,
            buffers.tiles,
            *(buffers.energies, *filtered, buffers.marginals, buffers.labels, *how),
        )

    def conditional(self, chosen: NDArray[np.bool_] | None = None) -> NDArray[np.int64]:
        """Return Σ_b softmax(−U − pairwise) in units of 2⁻³⁰, (L, N)."""
        if self._held is not None:
            return self._held.conditional(chosen)
        taken = np.ones(self._buffers.problems, dtype=np.bool_) if chosen is None else chosen
        out = np.zeros(self._crf.energies.shape, dtype=np.int64)
        energies = np.zeros(self._buffers.energies.shape, dtype=np.float32)
        self._without_noise.fill(energies, self._samples, self._ceiling)
        with announced():
            self._shift(energies)
            self._refresh()
            self._threads.run(
                kernels.conditional,
                self._buffers.tiles,
                energies,
                self._slices,
                self._compatibilities,
                self._buffers.rows,
                self._buffers.marginals,
                taken,
                self._unit,
                float(1 << FRACTION_BITS),
                self._order,
                out,
            )
        return out

    def count_votes(
        self, counts: NDArray[np.uint32], chosen: NDArray[np.bool_] | None = None
    ) -> NDArray[np.int64]:
        """Add the labels of all or some to ``counts`` (L, N); return all sizes, (B, L)."""
        labels = self._voted
        taken = np.ones(labels.shape[1], dtype=np.bool_) if chosen is None else chosen
        sizes = self._threads.run(
            transfer.count_votes, len(self._order), labels, self._order, taken, counts
        )
        total: NDArray[np.int64] = np.sum(sizes, axis=0)
        return total

    def marginals(self) -> NDArray[np.float32]:
        """Return Q, (B, L, N)."""
        if self._held is not None:
            return self._held.marginals()
        labels, voxels = self._crf.energies.shape
        out = np.empty((self._buffers.problems, voxels, labels), dtype=np.float32)
        arguments = (self._buffers.marginals, self._order, self._unit, out)
        self._threads.run(transfer.unload_marginals, voxels, *arguments)
        return out.transpose(0, 2, 1)

    def labels(self) -> NDArray[np.uint8]:
        """Return the most probable label, the lowest of equals, (B, N)."""
        labels = self._voted  # (N, B)
        out = np.empty(labels.shape[::-1], dtype=np.uint8)
        out[:, self._order] = labels.T
        return out

    @property
    def _voted(self) -> NDArray[np.uint8]:
        """The labels in the engine's order, (N, B)."""
        return self._buffers.labels if self._held is None else self._held.labels

    def pairwise(self) -> NDArray[np.float32]:
        """Return the pairwise energies of the current Q, (B, L, N)."""
        if self._held is not None:
            raise ValueError("pairwise needs every voxel, got problems with held voxels: load them")
        out = np.empty((self._buffers.problems, *self._crf.energies.shape), dtype=np.float32)
        with announced():
            self._refresh()
            self._threads.run(
                kernels.pairwise,
                self._buffers.tiles,
                np.int64(self._buffers.tile),
                self._slices,
                self._compatibilities,
                self._buffers.rows,
                self._buffers.marginals,
                self._unit,
                self._order,
                out,
            )
        return out

    def log_odds(self, voxels: NDArray[np.int64]) -> NDArray[np.float16]:
        """Return the log-odds of the current Q at some voxels, (V, L − 1, B)."""
        if self._held is not None:
            raise ValueError("log_odds need every voxel, got problems with held voxels")
        others = self._buffers.marginals[self._place[voxels]] * (1 / self._unit)  # (V, L − 1, B)
        first = np.maximum(1 - others.sum(axis=1, keepdims=True), 0)
        return log_odds_of(np.concatenate([first, others], axis=1))

    def reach(
        self, voxels: NDArray[np.int64], changes: NDArray[np.floating]
    ) -> NDArray[np.float32]:
        """Return the pairwise energies (L, N) that changes (L, V) at some voxels add."""
        places = self._place[voxels]
        rising = np.argsort(places)
        with announced():
            return reached(
                places[rising],
                changes[:, rising],
                self._filters,
                self._slices,
                self._compatibilities,
                self._order,
                self._threads,
                float(self._unit),
            )

    def edit(self, voxels: NDArray[np.int64], given: NDArray[np.int16]) -> CpuEdit:
        """Return these voxels, ready to be solved with the labels that are given."""
        return CpuEdit(
            voxels,
            given,
            self._filters,
            self._slices,
            self._compatibilities,
            self._order,
            self._threads,
            compact=self._dtype == np.uint16,
            unit=float(self._unit),
        )

    @cached_property
    def _place(self) -> NDArray[np.int64]:
        """Where each voxel of the mask stands in the engine's order, (N,)."""
        place = np.empty_like(self._order)
        place[self._order] = np.arange(len(place))
        return place

    def _filters_within(self, budget: int) -> list[Filter | ExactFilter]:
        """Build the filters of all terms, where there is memory for it."""
        exact = self.accuracy == "exact"
        require_for_build(self._crf, budget, exact=exact)
        if exact:
            return [self._exact_filter(term) for term in self._crf.terms]
        looked_at = None
        if self.accuracy != "plain" and self._crf.terms:
            looked_at = self._calibration()
        return [self._filter(term, looked_at) for term in self._crf.terms]

    def _exact_filter(self, term: PairwiseTerm) -> ExactFilter:
        features = term.features()[self._order]  # (N, d)
        return ExactFilter(features, term.normalization, self._threads)

    def _filter(self, term: PairwiseTerm, looked_at: Calibration | None) -> Filter:
        """Build the filter of a term; its lattice is calibrated on what is looked at."""
        threads = self._threads
        features = self._in_order(term.features())  # (N, d)
        blur = BLURS[self.accuracy]
        if looked_at is not None:
            part, values = looked_at
            blur = calibrated_scale(features[part], values, blur, threads, self._store)
        compact = self._dtype == np.uint16

        def make() -> Filter:
            lattice = build(features, blur, threads)
            gain = published_gain(features.shape[1])
            # It cancels in normalised kernels.
            if self.accuracy != "plain" and term.normalization == "none":
                gain = calibrated_gain(features, lattice, threads)
            return factorize(lattice, term.normalization, gain, threads, wide_rows=compact)

        plain = (self.accuracy, blur, term.normalization, compact)
        return self._store.filter(make, len(features), len(features), features, plain)

    def _in_order(self, features: NDArray[np.float64]) -> NDArray[np.float32]:
        """Return (N, d) features in the engine's order."""
        out = np.empty(features.shape, dtype=np.float32)
        self._threads.run(transfer.in_order, len(out), features, self._order, out)
        return out

    def _calibration(self) -> Calibration:
        """Return which part of the image calibration looks at, and softmax(−U) there."""
        foreground = np.empty(len(self._order), dtype=np.float32)
        arguments = (self._crf.energies, self._order, foreground)
        self._threads.run(kernels.foreground, len(foreground), *arguments)
        part = calibration_part(foreground)
        marginals = softmax(-self._crf.energies[:, self._order[part]], axis=0)  # (L, P)
        return part, marginals.T.astype(np.float32)

    def _strongest_message(self) -> float:
        """Return a bound on how far the kernels can move the log-odds of two labels."""
        spans = [np.ptp(term.compatibility) for term in self._crf.terms]
        return float(sum(s * f.total.max() for s, f in zip(spans, self._filters, strict=True)))

    def _shared_bytes(self) -> int:
        arrays: list[NDArray[Any]] = [*self._slices, self._order]
        for f in self._filters:
            if isinstance(f, Filter):
                arrays += [part for stage in f.stages for part in vars(stage).values()]
        return sum(array.nbytes for array in arrays)

    def _check_room(self, problems: int, name: str) -> None:
        if problems > self.batch:
            raise ValueError(f"{name} must hold at most {self.batch} problems, got {problems}")

    def _make_room(self, problems: int, name: str) -> None:
        self._check_room(problems, name)
        if problems > self._pool.problems:
            self._pool = self._pool_for(0)
            self._buffers = self._room_for(0)  # the old memory is given back first
            self._pool = self._pool_for(problems)
        self._buffers = self._room_for(problems)
        self._buffers.energies[-1:] = 0  # voxels that only fill up the last tile
        self._fresh = False

    def _pool_for(self, problems: int) -> BufferPool:
        return BufferPool.take(
            self._crf.grid.voxels,
            self._crf.n_labels - 1,
            problems,
            int(self._starts[-1]),
            self._most_rows,
            self._dtype,
        )

    def _room_for(self, problems: int) -> Buffers:
        return Buffers.within(
            self._pool,
            self._crf.grid.voxels,
            self._crf.n_labels - 1,
            problems,
            int(self._starts[-1]),
            self._most_rows,
        )

    def _perturber_of(self, perturbation: Perturbation) -> Perturber:
        crf = self._crf
        return Perturber(perturbation, crf.energies, crf.grid, self._order, self._threads)

    def _begin(self, sharpness: float) -> None:
        """Start all problems, and take the centre of a centred CRF off their energies."""
        buffers = self._buffers
        arguments = (
            buffers.energies,
            np.empty((0, 0), dtype=np.float32) if self.centre is None else self.centre,
            self._order,
            buffers.marginals,
            buffers.labels,
            self._unit,
            self._rounding,
            np.float32(sharpness),
        )
        if buffers.by_rows:
            self._threads.run(begin_rows, len(self._order), *arguments, buffers.each_label)
        else:
            self._threads.run(kernels.begin, buffers.tiles, *arguments)

    def _shift(self, energies: NDArray[Any]) -> None:
        """Take the centre of a centred CRF off energies in tiles."""
        if self.centre is not None:
            arguments = (energies, self.centre, self._order, np.int64(self._buffers.problems))
            self._threads.run(transfer.shift_energies, len(energies), *arguments)

    def _load_energies(self, problem: NDArray[np.floating], place: int) -> None:
        source = self._checked(problem, "energies")
        self._threads.run(
            transfer.load_problem,
            source.shape[1],
            source,
            self._order,
            self._buffers.energies,
            np.int64(place),
            np.int64(self._buffers.problems),
            self._ceiling,
        )

    def _load_marginals(self, problem: NDArray[np.floating], place: int) -> None:
        source = self._checked(problem, "marginals")
        self._threads.run(
            transfer.load_marginals,
            source.shape[1],
            source,
            self._order,
            self._buffers.marginals,
            self._buffers.labels,
            np.int64(place),
            self._unit,
            self._rounding,
        )
        self._fresh = False

    def _refresh(self) -> None:
        """Filter the marginals with every kernel, unless that has been done."""
        if not self._fresh:
            self._blur()
        self._fresh = True

    def _blur(self, marginals: NDArray[Any] | None = None) -> None:
        """Filter marginals (N, L − 1, B), those in the buffers or given ones, with every kernel."""
        rows, spare = self._buffers.rows, self._buffers.spare
        taken = self._buffers.marginals if marginals is None else marginals
        values = taken.reshape(self._crf.grid.voxels, -1)
        for f, start, stop in zip(self._filters, self._starts[:-1], self._starts[1:], strict=True):
            f.apply(values, rows[start:stop], spare, self._threads)

    def _against_first(self, values: NDArray[np.floating], sign: int = 1) -> NDArray[np.float32]:
        """Return (L, N) values less label 0's, times a sign, in the engine's order, (L − 1, N)."""
        out = np.empty((len(values) - 1, values.shape[1]), dtype=np.float32)
        arguments = (values, self._order, np.float32(sign), out)
        self._threads.run(transfer.against_first, values.shape[1], *arguments)
        return out

    def _convergent_step(self, damping: float) -> Change:
        old = self.marginals().astype(np.float64, order="C")  # (B, L, N)
        energies = np.zeros_like(old)
        for b, problem in enumerate(energies):
            problem[1:, self._order] = self._buffers.energies_of(b)
        diagonals = []
        for f in self._filters:
            diagonal = np.empty(len(self._order))
            diagonal[self._order] = f.diagonal
            diagonals.append(diagonal)
        new = convergent_marginals(self._crf, -energies - self.pairwise(), old, diagonals)
        new = (1 - damping) * new + damping * old
        for b, problem in enumerate(new):
            self._load_marginals(problem, b)
        return change_between(old, new)

    def _checked(self, problem: NDArray[np.floating], name: str) -> NDArray[np.float32]:
        array = np.ascontiguousarray(problem, dtype=np.float32)
        if array.shape != self._crf.energies.shape:
            raise ValueError(
                f"{name} must hold arrays of shape {self._crf.energies.shape}, got {array.shape}"
            )
        return array
