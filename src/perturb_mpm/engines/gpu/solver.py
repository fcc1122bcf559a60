"""The GPU engine: all problems of a batch side by side, on lattices or on all pairs.

    Q ← softmax(−sharpness·(U + Σ_m μ_m K̂_m Q)),    Q, U (N, B·(L − 1)) against label 0

``messages.py`` makes K̂Q, ``update_kernel.py`` the rest, ``perturb_kernel.py`` the U of samples.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray

from perturb_mpm.engines.convergent import convergent_marginals
from perturb_mpm.engines.gpu import memory
from perturb_mpm.engines.gpu.chain import LatticeFilter
from perturb_mpm.engines.gpu.device import give_back, on_device, on_host, says_when_full
from perturb_mpm.engines.gpu.exact import ExactFilter
from perturb_mpm.engines.gpu.memory import BatchLayout, Memory, choose_batch
from perturb_mpm.engines.gpu.messages import (
    ExactMessages,
    LatticeMessages,
    exact_filters,
    lattice_filters,
    make_coupling,
    morton_order,
    voxel_indices,
)
from perturb_mpm.engines.gpu.perturb_kernel import NoiseDrawer, Unaries, perturb
from perturb_mpm.engines.gpu.update_kernel import count_votes
from perturb_mpm.engines.gpu.update_kernel import update as update_marginals
from perturb_mpm.engines.lattice import energy_ceiling, group_kernels
from perturb_mpm.engines.protocol import (
    Accuracy,
    Change,
    Problems,
    Update,
    change_between,
)
from perturb_mpm.model import DenseCRF
from perturb_mpm.noise import Perturbation

CHANNELS_AT_ONCE = 32
"""How many channels leave the device's own layout at once."""


class GpuSolver:
    """The kernels of one CRF on a GPU; see ``engines.protocol.Solver`` for the methods.

    ``compact`` keeps marginals, energies and lattice values in half precision: meant for many noisy
    problems. Otherwise they are float32.
    """

    engine = "gpu"

    def __init__(
        self,
        crf: DenseCRF,
        accuracy: Accuracy,
        batch: int | None,
        budget: int,
        device: torch.device,
        *,
        compact: bool,
    ) -> None:
        self.accuracy: str = accuracy
        self._crf = crf
        self._device = device
        dtype = torch.float16 if compact else torch.float32
        index = voxel_indices(crf.grid, device)
        self._order = morton_order(crf.grid, index)
        self._index = index[self._order]  # (N,): the voxels' positions in the image
        layout = BatchLayout(crf.grid.voxels, crf.n_labels, 0)
        self._unaries = torch.zeros((crf.n_labels, layout.rows), device=device)
        energies = on_device(np.asarray(crf.energies), device)
        self._unaries[:, : layout.voxels] = energies.float()[:, self._order]
        groups = group_kernels(crf.terms, crf.n_labels)
        positions = (self._order, self._index)
        exact: list[ExactFilter] = []
        lattices: list[LatticeFilter] = []
        if accuracy == "exact":
            exact = exact_filters(crf, *positions, dtype)
        else:
            lattices = lattice_filters(crf, *positions, self._unaries, accuracy, budget)
        filters: list[ExactFilter | LatticeFilter] = [*exact, *lattices]
        give_back(budget, device)
        self._diagonals = [f.diagonal for f in filters]
        self._coupling = make_coupling(groups, filters, layout, device, self_term=crf.self_term)
        strongest = sum(
            float(np.ptp(term.compatibility)) * float(f.total.max())
            for term, f in zip(crf.terms, filters)
        )
        self._ceiling = energy_ceiling(strongest * (1 + crf.centring))
        self._messages: ExactMessages | LatticeMessages
        if accuracy == "exact":
            self._messages = ExactMessages(exact, groups)
        else:
            self._messages = LatticeMessages(lattices, groups, self._coupling.totals, dtype)
        del filters, lattices
        give_back(budget, device)
        needs = self._messages.needs
        shared = self._messages.nbytes + self._unaries.nbytes + 3 * self._index.nbytes
        planned = choose_batch(layout, needs, batch, shared, dtype.itemsize, budget)
        self._layout, self._memory = layout, Memory(layout, needs, planned, dtype, device)
        self._buffers = self._memory.buffers(layout)
        self._votes: torch.Tensor | None = None  # of those that have voted so far, (L, N)
        self._voted = np.empty(0, dtype=np.bool_)
        self._noise = NoiseDrawer(Perturbation(), crf.grid, crf.n_labels, device)
        self._without_noise = self._noise
        self._samples = np.empty(0, dtype=np.int64)
        self._fresh = False  # whether the rows are those of the present marginals
        self.centre: NDArray[np.floating] | None = None
        self._centre: torch.Tensor | None = None  # (N, L − 1) in the engine's order
        if crf.centring > 0:
            self.load(crf.prior[np.newaxis])
            self.centre = np.float32(crf.centring) * self.pairwise()[0]
            taken = self._taken(self.centre, "centre")
            self._centre = (taken[1:] - taken[:1]).T

    @property
    def batch(self) -> int:
        """The most problems at once; asking takes their memory."""
        return self._memory.batch

    @says_when_full
    def load(self, energies: Problems, marginals: Problems | None = None) -> None:
        """Take B ≤ batch problems, started at softmax(−energies) or at the given marginals."""
        self._take_buffers(len(energies), "energies")
        for b, problem in enumerate(energies):
            memory.load_energies(self._buffers, b, self._taken(problem, "energies"), self._ceiling)
            if marginals is None:
                memory.begin(self._buffers, b)
        for b, problem in enumerate(() if marginals is None else marginals):
            memory.load_marginals(self._buffers, b, self._taken(problem, "marginals"))
        self._shift(self._buffers.energies, self._buffers.layout)

    @says_when_full
    def perturb(
        self,
        perturbation: Perturbation,
        samples: NDArray[np.int64],
        marginals: NDArray[np.floating] | None = None,
        *,
        sharpness: float = 1.0,
    ) -> None:
        """Take the perturbed problems of these samples, started cold or at the given marginals."""
        crf = self._crf
        if self._noise.perturbation != perturbation:
            self._noise, self._without_noise = (
                NoiseDrawer(each, crf.grid, crf.n_labels, self._device)
                for each in (perturbation, perturbation.without_noise())
            )
        self._samples, self._votes = samples, None
        self._take_buffers(len(samples), "samples")
        buffers = self._buffers
        self._perturb_samples(
            samples,
            buffers.layout,
            buffers.energies,
            self._noise,
            (buffers.marginals, buffers.labels) if marginals is None else None,
            sharpness,
        )
        if marginals is not None:
            start = self._taken(marginals, "marginals")
            for b in range(len(samples)):
                memory.load_marginals(buffers, b, start)
        self._shift(buffers.energies, buffers.layout)

    @says_when_full
    def step(
        self,
        update: Update = "parallel",
        damping: float = 0.0,
        *,
        sharpness: float = 1.0,
        watched: bool = True,
    ) -> Change:
        """Update every marginal once."""
        if update == "convergent" and not self._crf.self_term:
            return self._convergent_step(damping)
        self._refresh()
        buffers = self._buffers
        changes = update_marginals(
            buffers,
            self._messages.tiles,
            self._coupling,
            damping=damping,
            sharpness=sharpness,
            watched=watched,
        )
        self._fresh = False
        return memory.read_change(changes, buffers.layout.problems, buffers.layout.voxels)

    @property
    def diagonal(self) -> NDArray[np.float32]:
        """What each voxel would send to itself, (N,)."""
        total = np.zeros(self._crf.grid.voxels, dtype=np.float32)
        for term, d in zip(self._crf.terms, self._diagonals):
            own = memory.in_mask_order(d.float(), self._order).cpu().numpy()
            total += np.float32(np.abs(term.compatibility).max()) * own
        return total

    @says_when_full
    def conditional(self, chosen: NDArray[np.bool_] | None = None) -> NDArray[np.int64]:
        """Return Σ_b softmax(−U − pairwise) in units of 2⁻³⁰, (L, N)."""
        layout = self._buffers.layout
        taken = self._chosen(chosen, layout.problems)
        total = torch.zeros(
            (layout.n_labels, layout.voxels), dtype=torch.int64, device=self._device
        )
        for first in range(0, layout.problems, self._problems_at_once):
            stop = min(first + self._problems_at_once, layout.problems)
            part = replace(layout, problems=stop - first)
            energies = torch.zeros((part.rows, part.stride), device=self._device)
            self._perturb_samples(
                self._samples[first:stop], part, energies, self._without_noise, None, 1.0
            )
            self._shift(energies, part)
            pairwise = self._pairwise(first, stop)  # (b, L, N)
            logits = -pairwise
            own = memory.by_problem(energies[:, : part.width], part)
            logits[:, 1:] -= own
            units = memory.fixed_point(torch.softmax(logits, 1))
            total += (units * taken[first:stop, None, None].long()).sum(0)
        return on_host(memory.in_mask_order(total, self._order))

    @says_when_full
    def count_votes(
        self, counts: NDArray[np.uint32], chosen: NDArray[np.bool_] | None = None
    ) -> NDArray[np.int64]:
        """Add the labels of all or some to ``counts`` (L, N); return all sizes, (B, L)."""
        layout = self._buffers.layout
        votes, sizes = count_votes(
            self._buffers.labels, layout, self._chosen(chosen, layout.problems)
        )
        if chosen is not None:  # added up here until all have voted: carrying them takes longest
            self._voted = chosen if self._votes is None else self._voted | chosen
            self._votes = votes.int() if self._votes is None else self._votes + votes
            if not self._voted.all():
                return sizes.cpu().numpy()
            votes, self._votes = self._votes, None
        memory.add_votes(memory.in_mask_order(votes, self._order), counts)
        return sizes.cpu().numpy()

    def _chosen(self, chosen: NDArray[np.bool_] | None, problems: int) -> torch.Tensor:
        """Return which problems count, (B,)."""
        every = np.ones(problems, dtype=np.bool_) if chosen is None else chosen
        return on_device(every, self._device)

    @says_when_full
    def marginals(self) -> NDArray[np.float32]:
        """Return Q, (B, L, N)."""
        layout = self._buffers.layout
        if layout.problems == 1:
            q = memory.read_marginals(self._buffers, 0)
            return on_host(memory.in_mask_order(q, self._order))[np.newaxis]
        out = np.empty((layout.problems, layout.n_labels, layout.voxels), dtype=np.float32)
        for b in range(layout.problems):
            q = memory.read_marginals(self._buffers, b)
            out[b] = on_host(memory.in_mask_order(q, self._order))
        return out

    def labels(self) -> NDArray[np.uint8]:
        """Return the most probable label, the lowest of equals, (B, N)."""
        return on_host(memory.in_mask_order(self._buffers.labels_by_problem, self._order))

    @says_when_full
    def pairwise(self) -> NDArray[np.float32]:
        """Return the pairwise energies of the current Q, (B, L, N)."""
        layout = self._buffers.layout
        out = np.empty((layout.problems, layout.n_labels, layout.voxels), dtype=np.float32)
        for first in range(0, layout.problems, self._problems_at_once):
            stop = min(first + self._problems_at_once, layout.problems)
            part = self._pairwise(first, stop)
            out[first:stop] = on_host(memory.in_mask_order(part, self._order))
        return out

    @property
    def _problems_at_once(self) -> int:
        return max(1, CHANNELS_AT_ONCE // self._buffers.layout.padded)

    def _pairwise(self, first: int, stop: int) -> torch.Tensor:
        """Return the pairwise energies of some problems in the engine's order, (b, L, N)."""
        self._refresh()
        buffers, coupling = self._buffers, self._coupling
        layout = buffers.layout
        lanes = slice(first * layout.padded, stop * layout.padded)
        old = buffers.marginals[:, lanes].float()
        total = torch.zeros((stop - first, layout.n_labels, layout.voxels), device=self._device)
        for g, matrix in enumerate(coupling.compatibilities):
            message = self._messages.receive(buffers, g, lanes.start, lanes.stop - lanes.start)
            message -= old * coupling.diagonals[g][:, None]
            rest = (coupling.totals[g] - coupling.diagonals[g])[: layout.voxels]
            total += memory.couple_labels(message, rest, matrix, layout)
        return total

    def _perturb_samples(
        self,
        samples: NDArray[np.int64],
        layout: BatchLayout,
        energies: torch.Tensor,
        drawer: NoiseDrawer,
        start: tuple[torch.Tensor, torch.Tensor] | None,
        sharpness: float,
    ) -> None:
        problem = Unaries(self._unaries, self._index, self._ceiling)
        perturb(problem, drawer.draw(samples), layout, energies, start, sharpness=sharpness)

    def _shift(self, energies: torch.Tensor, layout: BatchLayout) -> None:
        """Take the centre of a centred CRF off the energies of every problem, (rows, stride)."""
        if self._centre is not None:
            shaped = energies[: layout.voxels, : layout.width].unflatten(1, (-1, layout.padded))
            shaped[:, :, : layout.n_labels - 1] -= self._centre[:, None]

    def _take_buffers(self, problems: int, name: str) -> None:
        if problems > 1 and problems > self._memory.batch:
            raise ValueError(
                f"{name} must hold at most {self._memory.batch} problems, got {problems}"
            )
        if problems != self._buffers.layout.problems:
            self._buffers = self._memory.buffers(replace(self._layout, problems=problems))
        self._fresh, self._votes = False, None

    def _refresh(self) -> None:
        """Filter the marginals with every kernel, unless that has been done."""
        if self._fresh:
            return
        self._messages.refresh(self._buffers)
        self._fresh = True

    def _convergent_step(self, damping: float) -> Change:
        old = self.marginals().astype(np.float64)  # (B, L, N)
        energies = np.zeros_like(old)
        for b, problem in enumerate(energies):
            stored = self._buffers.problem(self._buffers.energies, b).T.double()
            problem[1:] = memory.in_mask_order(stored, self._order).cpu().numpy()
        diagonals = [
            memory.in_mask_order(d.double(), self._order).cpu().numpy() for d in self._diagonals
        ]
        new = convergent_marginals(self._crf, -energies - self.pairwise(), old, diagonals)
        new = (1 - damping) * new + damping * old
        for b, problem in enumerate(new):
            memory.load_marginals(self._buffers, b, self._taken(problem, "marginals"))
        self._fresh = False
        return change_between(old, new)

    def _taken(self, problem: NDArray[np.floating], name: str) -> torch.Tensor:
        """Return a problem's (L, N) array on the device, in the engine's order."""
        array = np.asarray(problem)
        if array.shape != self._crf.energies.shape:
            raise ValueError(
                f"{name} must hold arrays of shape {self._crf.energies.shape}, got {array.shape}"
            )
        narrow = np.asarray(array, dtype=np.float32)
        return on_device(narrow, self._device)[:, self._order]
