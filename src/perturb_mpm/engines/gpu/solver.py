"""The GPU engine: all problems of a batch side by side, on lattices or on all pairs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray

from perturb_mpm.engines.averaging import HoldRule, in_turn
from perturb_mpm.engines.convergent import convergent_marginals
from perturb_mpm.engines.gpu import transfer
from perturb_mpm.engines.gpu.averaged import averaged_marginals, averaged_variance, follow
from perturb_mpm.engines.gpu.chain import LatticeFilter
from perturb_mpm.engines.gpu.device import (
    Repeated,
    give_back,
    on_device,
    on_host,
    read_later,
)
from perturb_mpm.engines.gpu.exact import ExactFilter
from perturb_mpm.engines.gpu.features import morton_order, places_of
from perturb_mpm.engines.gpu.held import ActiveRows, DeviceHold
from perturb_mpm.engines.gpu.memory import BatchLayout, Pools, choose_batch
from perturb_mpm.engines.gpu.messages import (
    ExactMessages,
    LatticeMessages,
    coupling_of,
    exact_filters,
    lattice_filters,
)
from perturb_mpm.engines.gpu.perturb_kernel import Noise, perturb
from perturb_mpm.engines.gpu.smooth import SmoothDrawer
from perturb_mpm.engines.gpu.update_kernel import update as update_marginals
from perturb_mpm.engines.gpu.votes_kernel import count_votes
from perturb_mpm.engines.lattice import energy_ceiling, groups_of
from perturb_mpm.engines.protocol import (
    Accuracy,
    Change,
    Hold,
    Problems,
    Update,
    change_between,
)
from perturb_mpm.model import DenseCRF
from perturb_mpm.noise import Perturbation, key_words

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
        index = places_of(crf.grid, device)
        self._order = morton_order(crf.grid, index)
        self._index = index[self._order]  # (N,): the voxels' places in the image
        layout = BatchLayout(crf.grid.voxels, crf.n_labels, 0)
        self._unaries = torch.zeros((crf.n_labels, layout.rows), device=device)
        energies = on_device(np.asarray(crf.energies), device)
        self._unaries[:, : layout.voxels] = energies.float()[:, self._order]
        groups = groups_of(crf.terms, crf.n_labels)
        places = (self._order, self._index)
        exact: list[ExactFilter] = []
        lattices: list[LatticeFilter] = []
        if accuracy == "exact":
            exact = exact_filters(crf, *places, dtype)
        else:
            lattices = lattice_filters(crf, *places, self._unaries, accuracy, budget)
        filters: list[ExactFilter | LatticeFilter] = [*exact, *lattices]
        give_back(budget, device)
        self._diagonals = [f.diagonal for f in filters]
        self._coupling = coupling_of(groups, filters, layout, device, self_term=crf.self_term)
        strongest = sum(
            float(np.ptp(term.compatibility)) * float(f.total.max())
            for term, f in zip(crf.terms, filters)
        )
        self._ceiling = energy_ceiling(strongest * (1 + crf.centring))
        self._groups, self._exact = groups, exact
        self._lattices = [each.slim() for each in lattices]
        self._dtype, self._wanted, self._budget = dtype, batch, budget
        del filters, lattices
        give_back(budget, device)
        needs = self._messages.needs
        shared = self._messages.nbytes + self._unaries.nbytes + 3 * self._index.nbytes
        shared += sum(each.nbytes for each in self._lattices)
        planned = choose_batch(layout, needs, batch, shared, dtype.itemsize, budget)
        self._layout, self._pools = layout, Pools(layout, needs, planned, dtype, device)
        self._room = self._pools.room(layout)
        self._votes: torch.Tensor | None = None  # of those that have voted so far, (L, N)
        self._voted = np.empty(0, dtype=np.bool_)
        self._active: ActiveRows | None = None  # what perturbed problems will be
        self._held: ActiveRows | None = None  # what the present problems are
        self._smooth = SmoothDrawer(Perturbation(), crf.grid, crf.n_labels, device)
        self._without_noise = self._smooth
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
        return self._pools.batch if self._active is None else self._active.batch

    def load(self, energies: Problems, marginals: Problems | None = None) -> None:
        """Take B ≤ batch problems, started at softmax(−energies) or at the given marginals."""
        self._make_room(len(energies), "energies")
        for b, problem in enumerate(energies):
            transfer.load_energies(self._room, b, self._taken(problem, "energies"), self._ceiling)
            if marginals is None:
                transfer.begin(self._room, b)
        for b, problem in enumerate(() if marginals is None else marginals):
            transfer.load_marginals(self._room, b, self._taken(problem, "marginals"))
        self._shift(self._room.energies, self._room.layout)

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
        if self._smooth.perturbation != perturbation:
            self._smooth, self._without_noise = (
                SmoothDrawer(each, crf.grid, crf.n_labels, self._device)
                for each in (perturbation, perturbation.without_noise())
            )
        self._samples, self._votes = samples, None
        self._held = self._active
        if self._held is not None:
            if marginals is not None:
                raise ValueError("marginals must be None on the engine gpu where voxels are held")
            self._held.perturb(
                self._noise(samples, perturbation),
                self._smooth.draw(samples),
                ceiling=self._ceiling,
                sharpness=sharpness,
            )
            return
        self._make_room(len(samples), "samples")
        room = self._room
        self._perturbed(
            samples,
            room.layout,
            room.energies,
            self._smooth,
            (room.marginals, room.labels) if marginals is None else None,
            sharpness,
        )
        if marginals is not None:
            start = self._taken(marginals, "marginals")
            for b in range(len(samples)):
                transfer.load_marginals(room, b, start)
        self._shift(room.energies, room.layout)

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
            return self._held.step(damping, sharpness, watched=watched)
        if update == "convergent" and not self._crf.self_term:
            return self._convergent_step(damping)
        self._refresh()
        room = self._room
        changes = update_marginals(
            room,
            self._messages.tiles,
            self._coupling,
            damping=damping,
            sharpness=sharpness,
            watched=watched,
        )
        self._fresh = False
        return transfer.change_of(changes, room.layout.problems, room.layout.voxels)

    @property
    def diagonal(self) -> NDArray[np.float32]:
        """What each voxel would send to itself, (N,)."""
        total = np.zeros(self._crf.grid.voxels, dtype=np.float32)
        for term, d in zip(self._crf.terms, self._diagonals):
            own = transfer.in_mask_order(d.float(), self._order).cpu().numpy()
            total += np.float32(np.abs(term.compatibility).max()) * own
        return total

    def hold(self, held: Hold | None) -> None:
        """Update only active voxels of the problems that ``perturb`` takes from now on."""
        self._active = None
        if held is None:
            return
        rank = np.full(self._crf.grid.voxels, -1, dtype=np.int64)
        rank[held.active] = np.arange(len(held.active))
        mine = on_device(rank, self._device)[self._order]
        active = mine >= 0
        own = mine[active]  # where each active voxel stands in the arrays of ``held``
        energies = on_device(held.energies, self._device)[:, :, own]  # (T, L, A)
        marginals = on_device(held.marginals, self._device)[:, 1:, own]
        last = self._without_centre(self._taken(held.last, "held"))
        self._hold(DeviceHold(active, energies[:, 1:] - energies[:, :1], marginals, last))

    def hold_by(self, rule: HoldRule) -> tuple[float, float]:
        """Hold what the rule says; return the share of active voxels and the bound in nats."""
        self._active = None
        self._make_room(1, "rule")
        table = on_device(rule.table, self._device)
        n = self._crf.grid.voxels
        unaries = -self._unaries[:, :n]  # (L, N)
        energies: list[torch.Tensor] = []  # of q̄ᵗ, (L − 1, N) against label 0's
        path = [averaged_marginals(unaries, table)]  # q̄ᵗ, (L, N)
        last_moved: Callable[[], float] | None = None
        refresh = Repeated(lambda: self._messages.refresh(self._room), self._device)
        while True:
            sent, following, moved = follow(
                self._room,
                self._means_of(path[-1], refresh),
                self._coupling,
                self._unaries,
                self._centre,
                table,
                path[-1],
                energies[-1] if energies else None,
                in_turn(rule.dampings, len(energies)),
            )
            # Asked only now, so that the device need not wait for the host in between.
            if last_moved is not None and last_moved() <= rule.still_nats:
                path.pop()
                break
            energies.append(sent)
            if len(energies) == rule.iterations:
                break
            path.append(following)
            last_moved = read_later(moved.max())
        centred = unaries if self._centre is None else unaries + _with_first(self._centre.T)
        law = torch.softmax(centred - _with_first(energies[-1]), 0)
        active = law.amax(0) < 1 - rule.epsilon
        share = int(active.sum()) / n
        if share > rule.most_active:
            return share, 0.0
        last = self._without_centre(_with_first(energies[-1]))
        bound = self._bound(averaged_variance(path[-1], rule.spread), active, refresh)
        places = torch.nonzero(active)[:, 0]
        here = torch.stack([each.index_select(1, places) for each in energies])
        marginals = torch.stack([each[1:].index_select(1, places) for each in path])
        self._hold(DeviceHold(active, here, marginals, last))
        return share, bound

    def _hold(self, held: DeviceHold) -> None:
        self._active = ActiveRows(
            held,
            self._lattices,
            self._groups,
            self._coupling,
            self._unaries,
            self._index,
            self._centre,
            self._dtype,
            self._wanted,
            self._budget,
        )
        self._forget_all_voxels()

    @cached_property
    def _messages(self) -> ExactMessages | LatticeMessages:
        """What the kernels send between all voxels."""
        if self.accuracy == "exact":
            return ExactMessages(self._exact, self._groups)
        return LatticeMessages(self._lattices, self._groups, self._coupling.totals, self._dtype)

    def _without_centre(self, energies: torch.Tensor) -> torch.Tensor:
        """Return pairwise energies (L, N) less the centre, both against label 0's."""
        centre = 0.0 if self._centre is None else _with_first(self._centre.T)
        return energies - energies[:1] - centre

    def _means_of(self, marginals: torch.Tensor, refresh: Repeated) -> torch.Tensor:
        """Return each group's weighted means of marginals (L, N) on the device, (G, rows, P).

        ``refresh`` makes the rows of the room's one problem.
        """
        room = self._room
        room.problem(room.marginals, 0).copy_(marginals[1:].T)
        refresh()
        groups = range(len(self._coupling.matrices))
        width = room.layout.padded
        messages = self._messages
        assert isinstance(messages, LatticeMessages)  # noqa: S101  # exact ones are never held
        means = [messages.means(room, g, 0, width) for g in groups]
        return means[0][None] if len(means) == 1 else torch.stack(means)

    def _bound(self, variance: torch.Tensor, active: torch.Tensor, refresh: Repeated) -> float:
        """Return the largest standard deviation by which noise may move a held message, in nats.

        ``sampling/held.py`` says why this is one.
        """
        diagonal = torch.zeros_like(variance)
        for term, d in zip(self._crf.terms, self._diagonals):
            diagonal += float(np.abs(term.compatibility).max()) * d
        root = diagonal.sqrt()
        sources = torch.where(active, 0.0, variance * root)
        most = float(sources.max())
        if most == 0:
            return 0.0
        # By linearity: what comes of label 1 in place of label 0.
        sent = torch.zeros((self._crf.n_labels, len(variance)), device=self._device)
        sent[1] = sources / most
        means = self._means_of(sent, refresh)[:, : len(variance), 0]
        moved = torch.zeros_like(sent)
        coupling, rows = self._coupling, slice(len(variance))
        own = self._room.marginals[rows, 0].float()
        for g, matrix in enumerate(coupling.compatibilities):
            message = means[g] * coupling.totals[g, rows] - own * coupling.diagonals[g, rows]
            moved += (matrix[:, 1] - matrix[:, 0])[:, None] * message
        return float((root * moved.abs().amax(0) * most).max().sqrt())

    def conditional(self, chosen: NDArray[np.bool_] | None = None) -> NDArray[np.int64]:
        """Return Σ_b softmax(−U − pairwise) in units of 2⁻³⁰, (L, N)."""
        if self._held is not None:
            wanted = (
                range(self._held.problems) if chosen is None else np.flatnonzero(chosen).tolist()
            )
            held = self._held.conditional(wanted)
            return on_host(transfer.in_mask_order(held, self._order))
        layout = self._room.layout
        taken = self._chosen(chosen, layout.problems)
        total = torch.zeros(
            (layout.n_labels, layout.voxels), dtype=torch.int64, device=self._device
        )
        for first in range(0, layout.problems, self._problems_at_once):
            stop = min(first + self._problems_at_once, layout.problems)
            part = replace(layout, problems=stop - first)
            energies = torch.zeros((part.rows, part.stride), device=self._device)
            self._perturbed(
                self._samples[first:stop], part, energies, self._without_noise, None, 1.0
            )
            self._shift(energies, part)
            pairwise = self._pairwise(first, stop)  # (b, L, N)
            logits = -pairwise
            own = transfer.by_problem(energies[:, : part.width], part)
            logits[:, 1:] -= own
            units = transfer.fixed_point(torch.softmax(logits, 1))
            total += (units * taken[first:stop, None, None].long()).sum(0)
        return on_host(transfer.in_mask_order(total, self._order))

    def count_votes(
        self, counts: NDArray[np.uint32], chosen: NDArray[np.bool_] | None = None
    ) -> NDArray[np.int64]:
        """Add the labels of all or some to ``counts`` (L, N); return all sizes, (B, L)."""
        if self._held is not None:
            votes, sizes = self._held.votes(self._chosen(chosen, self._held.problems))
        else:
            layout = self._room.layout
            votes, sizes = count_votes(
                self._room.labels, layout, self._chosen(chosen, layout.problems)
            )
        if chosen is not None:  # added up here until all have voted: carrying them takes longest
            self._voted = chosen if self._votes is None else self._voted | chosen
            self._votes = votes.int() if self._votes is None else self._votes + votes
            if not self._voted.all():
                return sizes.cpu().numpy()
            votes, self._votes = self._votes, None
        transfer.add_votes(transfer.in_mask_order(votes, self._order), counts)
        return sizes.cpu().numpy()

    def _chosen(self, chosen: NDArray[np.bool_] | None, problems: int) -> torch.Tensor:
        """Return which problems count, (B,)."""
        every = np.ones(problems, dtype=np.bool_) if chosen is None else chosen
        return on_device(every, self._device)

    def marginals(self) -> NDArray[np.float32]:
        """Return Q, (B, L, N)."""
        if self._held is not None:
            return on_host(transfer.in_mask_order(self._held.marginals(), self._order))
        layout = self._room.layout
        if layout.problems == 1:
            q = transfer.marginals_of(self._room, 0)
            return on_host(transfer.in_mask_order(q, self._order))[np.newaxis]
        out = np.empty((layout.problems, layout.n_labels, layout.voxels), dtype=np.float32)
        for b in range(layout.problems):
            q = transfer.marginals_of(self._room, b)
            out[b] = on_host(transfer.in_mask_order(q, self._order))
        return out

    def labels(self) -> NDArray[np.uint8]:
        """Return the most probable label, the lowest of equals, (B, N)."""
        if self._held is not None:
            labels = self._held.labels()
        else:
            labels = self._room.labels[: self._room.layout.voxels].T
        return on_host(transfer.in_mask_order(labels, self._order))

    def pairwise(self) -> NDArray[np.float32]:
        """Return the pairwise energies of the current Q, (B, L, N)."""
        if self._held is not None:
            raise ValueError("pairwise needs every voxel, got problems with held voxels: load them")
        layout = self._room.layout
        out = np.empty((layout.problems, layout.n_labels, layout.voxels), dtype=np.float32)
        for first in range(0, layout.problems, self._problems_at_once):
            stop = min(first + self._problems_at_once, layout.problems)
            part = self._pairwise(first, stop)
            out[first:stop] = on_host(transfer.in_mask_order(part, self._order))
        return out

    @property
    def _problems_at_once(self) -> int:
        return max(1, CHANNELS_AT_ONCE // self._room.layout.padded)

    def _pairwise(self, first: int, stop: int) -> torch.Tensor:
        """Return the pairwise energies of some problems in the engine's order, (b, L, N)."""
        self._refresh()
        room, coupling = self._room, self._coupling
        layout = room.layout
        lanes = slice(first * layout.padded, stop * layout.padded)
        old = room.marginals[:, lanes].float()
        total = torch.zeros((stop - first, layout.n_labels, layout.voxels), device=self._device)
        for g, matrix in enumerate(coupling.compatibilities):
            message = self._messages.received(room, g, lanes.start, lanes.stop - lanes.start)
            message -= old * coupling.diagonals[g][:, None]
            rest = (coupling.totals[g] - coupling.diagonals[g])[: layout.voxels]
            total += transfer.coupled(message, rest, matrix, layout)
        return total

    def _perturbed(
        self,
        samples: NDArray[np.int64],
        layout: BatchLayout,
        energies: torch.Tensor,
        drawer: SmoothDrawer,
        start: tuple[torch.Tensor, torch.Tensor] | None,
        sharpness: float,
    ) -> None:
        perturb(
            self._unaries,
            self._index,
            self._noise(samples, drawer.perturbation),
            drawer.draw(samples),
            layout,
            energies,
            start,
            ceiling=self._ceiling,
            sharpness=sharpness,
        )

    def _noise(self, samples: NDArray[np.int64], perturbation: Perturbation) -> Noise:
        low, high = (int(word) for word in key_words(perturbation.seed))
        numbers = torch.from_numpy(samples.astype(np.int64)).to(self._device)
        return Noise(numbers, (low, high), perturbation.scale, perturbation.antithetic)

    def _shift(self, energies: torch.Tensor, layout: BatchLayout) -> None:
        """Take the centre of a centred CRF off the energies of every problem, (rows, stride)."""
        if self._centre is not None:
            shaped = energies[: layout.voxels, : layout.width].unflatten(1, (-1, layout.padded))
            shaped[:, :, : layout.n_labels - 1] -= self._centre[:, None]

    def _forget_all_voxels(self) -> None:
        """Give back the tables and the room of every voxel; who asks for them makes them again."""
        self.__dict__.pop("_messages", None)
        self._room, self._fresh = self._pools.room(self._layout), False
        self._pools.give_back()

    def _make_room(self, problems: int, name: str) -> None:
        if problems > 1 and problems > self._pools.batch:
            raise ValueError(
                f"{name} must hold at most {self._pools.batch} problems, got {problems}"
            )
        if problems != self._room.layout.problems:
            self._room = self._pools.room(replace(self._layout, problems=problems))
        self._fresh, self._held, self._votes = False, None, None

    def _refresh(self) -> None:
        """Filter the marginals with every kernel, unless that has been done."""
        if self._fresh:
            return
        self._messages.refresh(self._room)
        self._fresh = True

    def _convergent_step(self, damping: float) -> Change:
        old = self.marginals().astype(np.float64)  # (B, L, N)
        energies = np.zeros_like(old)
        for b, problem in enumerate(energies):
            stored = self._room.problem(self._room.energies, b).T.double()
            problem[1:] = transfer.in_mask_order(stored, self._order).cpu().numpy()
        diagonals = [
            transfer.in_mask_order(d.double(), self._order).cpu().numpy() for d in self._diagonals
        ]
        new = convergent_marginals(self._crf, -energies - self.pairwise(), old, diagonals)
        new = (1 - damping) * new + damping * old
        for b, problem in enumerate(new):
            transfer.load_marginals(self._room, b, self._taken(problem, "marginals"))
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


def _with_first(against_first: torch.Tensor) -> torch.Tensor:
    """Put label 0's energies, 0, before those of the others, (L − 1, N)."""
    return torch.cat([torch.zeros_like(against_first[:1]), against_first])
