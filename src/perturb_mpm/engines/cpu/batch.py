"""A batch of B problems on prepared kernels: its memory, its updates and what is read of it.

The same class serves the whole image and a restricted problem (``restricted.py``), which follows a
``Path`` of T references: update t stores Q minus reference t + 1 after it read Q minus reference t.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from operator import mul
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from perturb_mpm.engines.compute import require_batch
from perturb_mpm.engines.cpu import potts_rows, row_kernels, transfer
from perturb_mpm.engines.cpu.compile import announce_compilation, is_compiled
from perturb_mpm.engines.cpu.layout import TILE_VALUES, Blurred, TiledProblem, UpdateStep
from perturb_mpm.engines.cpu.perturber import Perturber
from perturb_mpm.engines.cpu.preparation import PreparedKernels
from perturb_mpm.engines.lattice import energy_ceiling
from perturb_mpm.engines.protocol import Change
from perturb_mpm.model import DenseCRF
from perturb_mpm.noise import Perturbation

DEFAULT_BATCH = 32
_LINE = 64  # bytes of the cache: arrays begin at its lines
NO_BASE = np.zeros((1, 0, 0), dtype=np.float32)
NO_REFERENCE = np.zeros((1, 0, 0, 0), dtype=np.float32)


class Path(NamedTuple):
    """What the updates of a restricted problem take from the other voxels; empty without any."""

    bases: NDArray[np.float32] = NO_BASE  # (T, V, L−1): added to the log-odds
    references: NDArray[np.float32] = NO_REFERENCE  # (T, V, L−1, 1 or B): taken off marginals


NO_PATH = Path()


def choose_batch(crf: DenseCRF, wanted: int | None, kernels: PreparedKernels, budget: int) -> int:
    """Return how many problems to solve at once, and raise MemoryError where not one fits."""
    n, labels = crf.grid.voxels, crf.n_labels - 1
    rows, item = kernels.rows - 1 + kernels.most_rows, kernels.dtype.itemsize
    # Of each voxel: energies, marginals, energies without noise, and a label; a row a vertex.
    each = n * (labels * (2 * item + 4) + 1) + rows * labels * item
    fits = (budget - kernels.nbytes) // each
    least = 1 if wanted is None else wanted
    what = f"{crf.n_labels} labels on {n} voxels and {rows} lattice rows"
    require_batch(kernels.nbytes + least * each, budget, least, what)
    return int(wanted or min(DEFAULT_BATCH, fits))


@dataclass(frozen=True)
class BatchBuffers:
    """The memory of B problems; see ``row_kernels.py`` for the layout of tiles and rows."""

    energies: NDArray[Any]  # (tiles, L−1, T·B): float32, or the bits of half-precision floats
    marginals: NDArray[Any]  # (V, L−1, B), in the format of the kernels
    labels: NDArray[np.uint8]  # (V, B)
    rows: NDArray[Any]  # (R, (L−1)·B)
    spare: NDArray[Any]  # (most rows of a kernel, (L−1)·B)
    flat: BatchBuffers | None = None  # all that was taken, each array along one axis

    @classmethod
    def allocate(
        cls, kernels: PreparedKernels, labels: int, problems: int, memory: SharedMemory
    ) -> BatchBuffers:
        """Take memory for so many problems of L − 1 labels, and shape it for them."""
        voxels, width = len(kernels.order), labels * problems
        compact: Any = np.uint16 if kernels.compact else np.float32
        wanted: list[tuple[int, Any]] = [
            (labels * (voxels * problems + TILE_VALUES), compact),
            (voxels * width, kernels.dtype),
            (voxels * problems, np.uint8),
            (kernels.rows * width, kernels.dtype),
            (kernels.most_rows * width, kernels.dtype),
        ]
        energies, shares, votes, rows, spare = memory.divide(wanted)
        return cls(energies, shares, votes, rows, spare).shape_for(kernels, labels, problems)

    def shape_for(self, kernels: PreparedKernels, labels: int, problems: int) -> BatchBuffers:
        """Return the same memory, shaped for no more problems than it was taken for."""
        voxels, width = len(kernels.order), labels * problems
        tile = max(1, TILE_VALUES // max(1, problems))
        tiles = -(-voxels // tile)
        flat = self.flat or self
        shaped = BatchBuffers(
            _shape(flat.energies, tiles, labels, tile * problems),
            _shape(flat.marginals, voxels, labels, problems),
            _shape(flat.labels, voxels, problems),
            _shape(flat.rows, kernels.rows, width),
            _shape(flat.spare, kernels.most_rows, width),
            flat,
        )
        shaped.rows[-1] = 0
        return shaped


def _shape(array: NDArray[Any], *shape: int) -> NDArray[Any]:
    """Return the first values of an array (n,) in another shape."""
    return array[: math.prod(shape)].reshape(shape)


class SharedMemory:
    """The memory of batches of which one is solved at a time: who takes it forgets the others'."""

    def __init__(self) -> None:
        self._bytes = np.empty(0, dtype=np.uint8)
        # Weak, so that a solver that nobody uses gives its memory back at once.
        self.user: Callable[[], Batch | None] = lambda: None

    def divide(self, wanted: Sequence[tuple[int, Any]]) -> list[NDArray[Any]]:
        """Return arrays of so many values of a type, (n,) each; what others have is lost."""
        sizes = [-(-count * np.dtype(dtype).itemsize // _LINE) * _LINE for count, dtype in wanted]
        if sum(sizes) > len(self._bytes):
            self._bytes = np.empty(0, dtype=np.uint8)  # give the old memory back
            self._bytes = np.empty(sum(sizes), dtype=np.uint8)
        starts = np.cumsum([0, *sizes])
        return [
            self._bytes[start : start + count * np.dtype(dtype).itemsize].view(dtype)
            for start, (count, dtype) in zip(starts[:-1], wanted, strict=True)
        ]


class Batch:
    """B problems of a CRF at the voxels of some prepared kernels.

    ``centre`` (L, N), where the CRF has one, is taken off the energies of every problem once it
    has begun.
    """

    def __init__(
        self,
        crf: DenseCRF,
        kernels: PreparedKernels,
        path: Path = NO_PATH,
        memory: SharedMemory | None = None,
    ) -> None:
        self.kernels, self.path = kernels, path
        self._memory = memory or SharedMemory()
        self.centre: NDArray[np.floating] | None = None
        self.samples = np.empty(0, dtype=np.int64)
        self._crf, self._threads = crf, kernels.threads
        strongest = kernels.strongest_message(crf) * (1 + crf.centring)
        self.ceiling = np.float32(energy_ceiling(strongest))
        self.forget()
        self._perturbers: dict[Perturbation, Perturber] = {}
        self._updates = 0
        self._blurred = False  # whether the rows are those of the present marginals

    def forget(self) -> None:
        """Let go of the memory, and of the problems in it."""
        self._most = self.problems = 0
        labels = self._crf.n_labels - 1
        self.buffers = BatchBuffers.allocate(self.kernels, labels, 0, SharedMemory())

    def take(self, problems: int) -> None:
        """Make the memory that of so many problems, all of them new."""
        labels, memory = self._crf.n_labels - 1, self._memory
        user = memory.user()
        if problems > self._most or user is not self:
            if user is not None:
                user.forget()
            memory.user = weakref.ref(self)
            self.buffers = BatchBuffers.allocate(self.kernels, labels, problems, memory)
            self._most = problems
        self.buffers = self.buffers.shape_for(self.kernels, labels, problems)
        self.buffers.energies[-1:] = 0  # voxels that only fill up the last tile
        self.buffers.labels[:] = 0  # whatever happens before they begin, votes can be counted
        self.problems, self._updates, self._blurred = problems, 0, False

    def load_energies(self, problem: int, energies: NDArray[np.float32]) -> None:
        """Set one problem's energies (L, N)."""
        order, count = self.kernels.order, np.int64(self.problems)
        arguments = (energies, order, self.buffers.energies, np.int64(problem), count, self.ceiling)
        self._threads.run(transfer.load_problem, len(order), *arguments)

    def load_marginals(self, problem: int, marginals: NDArray[np.float32]) -> None:
        """Set one problem's marginals (L, N) and its labels."""
        buffers, order = self.buffers, self.kernels.order
        self._threads.run(
            transfer.load_marginals,
            len(order),
            *(marginals, order, self._reference(0), self.kernels.form),
            *(buffers.marginals, buffers.labels, np.int64(problem)),
        )
        self._blurred = False

    def perturb(self, perturbation: Perturbation, samples: NDArray[np.int64]) -> None:
        """Take the perturbed energies of these samples, (B,)."""
        self.take(len(samples))
        self.samples = samples
        self.perturb_energies(perturbation, self.buffers.energies)

    def perturb_energies(self, perturbation: Perturbation, energies: NDArray[Any]) -> None:
        """Set energies in tiles to those of the present samples under a perturbation."""
        self.perturber(perturbation).fill(energies, self.samples, self.ceiling)

    def perturber(self, perturbation: Perturbation) -> Perturber:
        """Return what draws this noise, made once."""
        if perturbation not in self._perturbers:
            crf, order = self._crf, self.kernels.order
            made = Perturber(perturbation, crf.energies, crf.grid, order, self._threads)
            # Two at most: the samples' own, and that without the voxels' noise.
            self._perturbers = {**dict(list(self._perturbers.items())[-1:]), perturbation: made}
        return self._perturbers[perturbation]

    def begin(self, sharpness: float = 1.0) -> None:
        """Start all problems at softmax(−sharpness·energies), then take their centre off."""
        buffers = self.buffers
        nothing = np.empty((0, 0), dtype=np.float32)
        arguments = (
            TiledProblem(buffers.energies, nothing, self._reference(0), self._reference(0)),
            *(buffers.marginals, buffers.labels, self.kernels.form, np.float32(sharpness)),
        )
        each = self._each_label(row_kernels.begin, *arguments)
        begin = potts_rows.begin if each else row_kernels.begin
        self._threads.run(begin, len(buffers.energies), *arguments, *each)
        self.shift(buffers.energies, self.kernels.order, self.problems)

    def shift(self, energies: NDArray[Any], order: NDArray[np.int64], problems: int) -> None:
        """Take the centre of a centred CRF off energies in tiles, of the voxels at ``order``."""
        if self.centre is not None:
            arguments = (energies, self.centre, order, np.int64(problems))
            self._threads.run(transfer.shift_energies, len(energies), *arguments)

    def step(self, damping: float, sharpness: float, *, watched: bool) -> Change:
        """Update every marginal once."""
        buffers = self.buffers
        how = UpdateStep(np.float32(damping), np.float32(sharpness), watched)
        with announce_compilation():
            arguments = (
                *(self._problem(buffers.energies), self._blur()),
                *(buffers.marginals, buffers.labels, (self.kernels.form, how)),
            )
            each = self._each_label(row_kernels.update, *arguments) if damping <= 0 else ()
            update = potts_rows.update if each else row_kernels.update
            changes = self._threads.run(update, len(buffers.energies), *arguments, *each)
        self._updates += 1
        self._blurred = False
        pieces = np.array(changes, dtype=np.float64)  # (pieces, 3, B)
        overall, foreground = pieces[:, :2].max(axis=0)
        return Change(overall, foreground, pieces[:, 2].sum(axis=0) / self._crf.grid.voxels)

    def add_conditional(
        self, energies: NDArray[np.float32], chosen: NDArray[np.bool_], out: NDArray[np.int64]
    ) -> None:
        """Add softmax(−energies − pairwise) of chosen problems, in 2⁻³⁰, to out (L, N)."""
        with announce_compilation():
            self.shift(energies, self.kernels.order, self.problems)
            blurred = self._blur()
            self._threads.run(
                row_kernels.conditional,
                len(energies),
                *(self._problem(energies), blurred, self.buffers.marginals),
                *(self.kernels.form.unit, chosen, self.kernels.order, out),
            )

    def pairwise(self) -> NDArray[np.float32]:
        """Return the pairwise energies of the present marginals, (B, L, N)."""
        out = np.empty((self.problems, *self._crf.energies.shape), dtype=np.float32)
        tiles, _, values = self.buffers.energies.shape
        tile = np.int64(values // self.problems)
        with announce_compilation():
            arguments = (
                *(self._blur(), self.buffers.marginals),
                *(self.kernels.form.unit, self.kernels.order, out),
            )
            if self._each_label(row_kernels.pairwise, tile, *arguments):
                self._threads.run(potts_rows.pairwise, len(self.kernels.order), *arguments)
            else:
                self._threads.run(row_kernels.pairwise, tiles, tile, *arguments)
        return out

    def write_marginals(self, out: NDArray[np.float32], order: NDArray[np.int64]) -> None:
        """Write the marginals into out (B, N, L), each voxel's at ``order`` (V,)."""
        reference = self._reference(self._updates)
        arguments = (self.buffers.marginals, reference, order, self.kernels.form.unit, out)
        self._threads.run(transfer.unload_marginals, len(order), *arguments)

    def shares(self, rows: NDArray[np.int64]) -> NDArray[np.float32]:
        """Return the marginals of labels 1 … L − 1 at some voxels, (V, L − 1, B)."""
        stored = self.buffers.marginals[rows] * (1 / self.kernels.form.unit)
        reference = self._reference(self._updates)
        return stored + reference[rows] if reference.size else stored

    def narrow(self, chosen: NDArray[np.int64]) -> None:
        """Go on with some of the problems, in their order; the memory stays the same."""
        wide, problems = self.buffers, self.problems
        slim = wide.shape_for(self.kernels, self._crf.n_labels - 1, len(chosen))
        tile, new_tile = (each.energies.shape[2] for each in (wide, slim))
        tile, new_tile = tile // problems, new_tile // len(chosen)
        with announce_compilation():
            self._move(
                transfer.narrow_tiles,
                (wide.energies, np.int64(problems), chosen, slim.energies),
                lambda block: block * new_tile // tile * wide.energies[0].size,
                slim.energies,
            )
            for before, after in (
                (wide.marginals, slim.marginals),
                (wide.labels[:, np.newaxis], slim.labels[:, np.newaxis]),
            ):
                arguments = (before, chosen, after)
                self._move(transfer.narrow_rows, arguments, partial(mul, before[0].size), after)
        self.buffers, self.problems, self._blurred = slim, len(chosen), False
        if len(self.samples) == problems:  # problems that were loaded are no samples
            self.samples = self.samples[chosen]

    def _move(
        self,
        move: Callable[..., None],
        arguments: tuple[object, ...],
        first_read: Callable[[int], int],
        target: NDArray[Any],
    ) -> None:
        """Run a kernel that moves pieces towards the start of the memory that they are in.

        Piece i and those after it read nothing before value ``first_read`` (i). As many are moved
        at once as fit in front of that, which is about twice as many each time.
        """
        moved, pieces = 0, len(target)
        while moved < pieces:
            stop = min(pieces, max(moved + 1, first_read(moved) // target[0].size))
            self._threads.run(move, stop - moved, *arguments, np.int64(moved))
            moved = stop

    def energies(self, problem: int) -> NDArray[np.float64]:
        """Return one problem's energies against label 0's in the engine's order, (L−1, V)."""
        stored = self.buffers.energies
        stored = stored if stored.dtype != np.uint16 else stored.view(np.float16)
        by_label = stored.transpose(1, 0, 2).reshape(stored.shape[1], -1)  # (L−1, tiles·T·B)
        return by_label[:, problem :: self.problems][:, : len(self.kernels.order)].astype(float)

    def _blur(self) -> Blurred:
        """Filter the marginals with every kernel, unless that has been done."""
        kernels, buffers = self.kernels, self.buffers
        if not self._blurred:
            kernels.blur(buffers.marginals, buffers.rows, buffers.spare)
        self._blurred = True
        return Blurred(kernels.slices, kernels.compatibilities, buffers.rows)

    def _each_label(
        self, other: Callable[..., Any], *arguments: object
    ) -> tuple[tuple[np.float32, ...], ...]:
        """Return the last argument of the kernels in ``potts_rows``; none where others serve.

        ``other`` is the kernel that does the same with these arguments in ``row_kernels``.
        """
        labels = self._crf.n_labels - 1
        potts = self.kernels.compatibilities.potts
        # A restricted problem takes them whatever its size: nothing else is compiled for it.
        restricted = self.kernels.form.signed and self.path.references.shape[-1] == 1
        few = labels <= potts_rows.MOST_LABELS and len(potts) == 1 and potts[0]
        if not few or (self.path.references.size and not restricted):
            return ()
        many = self.problems >= potts_rows.LEAST_PROBLEMS
        # A first run solves few problems by what samples need too: others take long to compile.
        fits = restricted or many
        fits = fits or (self.kernels.compact and not is_compiled(other, *arguments, 0, 1))
        return ((np.float32(0),) * labels,) if fits else ()

    def _problem(self, energies: NDArray[Any]) -> TiledProblem:
        """Return what the present update takes."""
        base = self.path.bases[min(self._updates, len(self.path.bases) - 1)]
        before, after = (self._reference(t) for t in (self._updates, self._updates + 1))
        return TiledProblem(energies, base, before, after)

    def _reference(self, update: int) -> NDArray[np.float32]:
        return self.path.references[min(update, len(self.path.references) - 1)]
