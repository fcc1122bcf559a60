"""Samples of active voxels: the lattices restricted to them, and the state of one batch.

A sample's messages at active voxels are those of the averaged mean field and, by linearity, what
its own marginals there add: Qᵗ − q̄ᵗ, which is 0 at every held voxel. The rows of a lattice stay
those of the whole problem; what active voxels neither reach nor read is left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from perturb_mpm.engines.gpu import transfer
from perturb_mpm.engines.gpu.chain import LatticeFilter
from perturb_mpm.engines.gpu.chain_kernels import (
    need,
    pick_corners,
    reach,
    select,
    touched_by,
)
from perturb_mpm.engines.gpu.memory import (
    DEFAULT_BATCH,
    BatchLayout,
    Pools,
    Room,
    choose_batch,
)
from perturb_mpm.engines.gpu.messages import LatticeMessages
from perturb_mpm.engines.gpu.perturb_kernel import Noise, SmoothNoise, perturb, vote
from perturb_mpm.engines.gpu.update_kernel import AveragedTerms, MessageCoupling, update
from perturb_mpm.engines.gpu.votes_kernel import count_votes
from perturb_mpm.engines.lattice import KernelGroup
from perturb_mpm.engines.protocol import Change


@dataclass(frozen=True)
class DeviceHold:
    """What ``protocol.Hold`` says, on the device and in the engine's order."""

    active: torch.Tensor  # (N,) bool
    energies: torch.Tensor  # (T, L − 1, A): the pairwise energies of q̄ᵗ against label 0's
    marginals: torch.Tensor  # (T, L − 1, A): q̄ᵗ
    last: torch.Tensor  # (L, N): the last pairwise energies, less the centre


class ActiveRows:
    """The kernels of a CRF among the active voxels of a hold, and room for a batch of them."""

    def __init__(
        self,
        held: DeviceHold,
        filters: Sequence[LatticeFilter],
        groups: Sequence[KernelGroup],
        coupling: MessageCoupling,
        unaries: torch.Tensor,
        index: torch.Tensor,
        centre: torch.Tensor | None,
        dtype: torch.dtype,
        wanted: int | None,
        budget: int,
    ) -> None:
        """Take ``unaries`` (L, rows), ``index`` (N,) and ``centre`` (N, L − 1) of all voxels."""
        device, (n_labels, n) = unaries.device, held.last.shape
        places = torch.nonzero(held.active)[:, 0]
        others = torch.nonzero(~held.active)[:, 0]
        self.places, self.held_places = places, others
        layout = BatchLayout(len(places), n_labels, 0)
        self._held_layout = BatchLayout(len(others), n_labels, 0)
        self._unaries = _padded(unaries[:, places], layout)
        self._index = index[places]
        self._held_unaries = _padded(unaries[:, others] + held.last[:, others], self._held_layout)
        self._held_index = index[others]
        self._centre = None if centre is None else centre[places]
        smaller = [restricted(each, places) for each in filters]
        self._coupling = replace(
            coupling,
            totals=_padded(coupling.totals[:, places], layout),
            diagonals=_padded(coupling.diagonals[:, places], layout),
        )
        self._messages = LatticeMessages(smaller, groups, self._coupling.totals, dtype)
        self._base = _by_row(-held.energies, layout)  # (T, rows, P)
        self._averages = _by_row(held.marginals, layout)
        shared = self._messages.nbytes + 8 * n * n_labels
        item = dtype.itemsize
        needs = self._messages.needs
        planned = choose_batch(
            layout, needs, wanted, shared, item, budget - n * (wanted or DEFAULT_BATCH)
        )
        self._layout, self._pools = layout, Pools(layout, needs, planned, dtype, device)
        self._room = self._pools.room(layout)
        self._held_labels = torch.empty((0, 0), dtype=torch.uint8, device=device)
        self._updates = 0
        self._voxels = n

    @property
    def batch(self) -> int:
        """The most problems at once; asking takes their memory."""
        return self._pools.batch

    @property
    def problems(self) -> int:
        """How many problems are loaded."""
        return self._room.layout.problems

    def perturb(
        self, noise: Noise, smooth: SmoothNoise, *, ceiling: float, sharpness: float
    ) -> None:
        """Take the perturbed problems of these samples; held voxels vote at once."""
        problems = len(noise.samples)
        if problems != self.problems:
            self._room = self._pools.room(replace(self._layout, problems=problems))
            rows = self._held_layout.rows
            self._held_labels = torch.empty(
                (rows, problems), dtype=torch.uint8, device=self._index.device
            )
        room, self._updates = self._room, 0
        everyone = replace(self._held_layout, problems=problems)
        vote(self._held_unaries, self._held_index, noise, smooth, everyone, self._held_labels)
        start = (room.marginals, room.labels)
        perturb(
            self._unaries,
            self._index,
            noise,
            smooth,
            room.layout,
            room.energies,
            start,
            ceiling=ceiling,
            sharpness=sharpness,
            averages=self._averages[0],
        )
        if self._centre is not None:
            labels = room.layout.n_labels - 1
            _shaped(room, room.energies)[:, :, :labels] -= self._centre[:, None]

    def step(self, damping: float, sharpness: float, *, watched: bool) -> Change:
        """Update every active voxel once."""
        if not len(self.places):
            return transfer.change_of(None, self.problems, self._voxels)
        now = min(self._updates, len(self._base) - 1)
        following = min(now + 1, len(self._base) - 1)
        room = self._room
        self._messages.refresh(room)
        changes = update(
            room,
            self._messages.tiles,
            self._coupling,
            damping=damping,
            sharpness=sharpness,
            watched=watched,
            averaged=AveragedTerms(self._base[now], self._averages[now], self._averages[following]),
        )
        self._updates += 1
        return transfer.change_of(changes, self.problems, self._voxels)

    def votes(self, chosen: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return each label's votes at every voxel, (L, N), and label sizes, (B, L)."""
        room = self._room
        layout = replace(self._held_layout, problems=self.problems)
        here, sizes = count_votes(room.labels, room.layout, chosen)
        there, held_sizes = count_votes(self._held_labels, layout, chosen)
        votes = torch.empty((len(here), self._voxels), dtype=here.dtype, device=here.device)
        votes[:, self.places], votes[:, self.held_places] = here, there
        return votes, sizes + held_sizes

    def labels(self) -> torch.Tensor:
        """Return the labels of every voxel, (B, N)."""
        out = torch.empty(
            (self.problems, self._voxels), dtype=torch.uint8, device=self._index.device
        )
        out[:, self.places] = self._room.labels[: len(self.places)].T
        out[:, self.held_places] = self._held_labels[: len(self.held_places)].T
        return out

    def marginals(self) -> torch.Tensor:
        """Return Q of every problem, (B, L, N): held voxels have the law of their labels."""
        layout = self._room.layout
        q = _shaped(self._room, self._room.marginals).float() + self._now(self._averages)[:, None]
        others = q[:, :, : layout.n_labels - 1].permute(1, 2, 0)  # (B, L − 1, A)
        first = (1 - others.sum(1, keepdim=True)).clamp_(min=0)
        out = torch.empty((self.problems, layout.n_labels, self._voxels), device=q.device)
        out[:, :, self.places] = torch.cat([first, others], 1)
        out[:, :, self.held_places] = self._law()
        return out

    def conditional(self, chosen: Sequence[int]) -> torch.Tensor:
        """Return Σ softmax(−U − pairwise) of some problems in units of 2⁻³⁰, (L, N)."""
        self._messages.refresh(self._room)
        n_labels = self._room.layout.n_labels
        out = torch.zeros((n_labels, self._voxels), dtype=torch.int64, device=self._index.device)
        # One by one: sums over several may be rounded otherwise, and a batch must not matter.
        for b in chosen:
            logits = -self._unaries[:, : len(self.places)] - self._pairwise(b)
            logits[1:] += self._now(self._base)[:, : n_labels - 1].T
            if self._centre is not None:
                logits[1:] += self._centre.T
            out[:, self.places] += transfer.fixed_point(torch.softmax(logits, 0))
        out[:, self.held_places] = len(chosen) * transfer.fixed_point(self._law())
        return out

    def _pairwise(self, b: int) -> torch.Tensor:
        """Return what Q − q̄ of one problem adds to the pairwise energies, (L, A)."""
        room, layout = self._room, self._room.layout
        first, width = b * layout.padded, layout.padded
        away = room.problem(room.marginals, b).float().T  # (L − 1, A)
        total = torch.zeros((layout.n_labels, layout.voxels), device=away.device)
        for g, matrix in enumerate(self._coupling.compatibilities):
            message = self._messages.received(room, g, first, width)
            message = message[: layout.voxels, : layout.n_labels - 1].T
            message = message - away * self._coupling.diagonals[g][: layout.voxels]
            total += matrix @ torch.cat([-message.sum(0, keepdim=True), message])
        return total

    def _law(self) -> torch.Tensor:
        """Return the law of the labels of held voxels, (L, H)."""
        return torch.softmax(-self._held_unaries[:, : len(self.held_places)], 0)

    def _now(self, path: torch.Tensor) -> torch.Tensor:
        """Return what the path says at the next update, (A, P)."""
        return path[min(self._updates, len(path) - 1)][: self._room.layout.voxels]


def restricted(whole: LatticeFilter, places: torch.Tensor) -> LatticeFilter:
    """Return a filter among some voxels, with the rows that these reach and read."""
    read = touched_by(whole.columns, places, whole.vertices)
    reached = [read]  # before the first pass, after each
    for taps in whole.passes:
        reached.append(reach(taps, reached[-1]))
    needed, used = [read], read.clone()  # after the last pass, before each
    for k in range(len(whole.passes) - 1, -1, -1):
        needed.append(need(whole.passes[k], reached[k], reached[k + 1], needed[-1], used))
    rows = torch.nonzero(used)[:, 0]
    number = used.cumsum(0, dtype=torch.int32) - 1
    passes = [
        select(taps, before, after, wanted, number, rows)
        for taps, before, after, wanted in zip(
            whole.passes, reached, reached[1:], reversed(needed[:-1]), strict=False
        )
    ]
    columns, splats, slices = pick_corners(
        whole.columns, whole.splats, whole.slices, places, number
    )  # (A, p) each
    lattice = replace(
        whole.lattice, columns=columns, vertices=len(rows), passes=(), pass_weights=()
    )
    return LatticeFilter(
        lattice=lattice,
        passes=tuple(passes),
        splats=splats,
        mass=whole.mass[rows],
        slices=slices,
        total=whole.total[places],
        diagonal=whole.diagonal[places],
    )


def _padded(values: torch.Tensor, layout: BatchLayout) -> torch.Tensor:
    """Return (L, V) values as (L, rows)."""
    out = torch.zeros((len(values), layout.rows), device=values.device)
    out[:, : layout.voxels] = values
    return out


def _by_row(values: torch.Tensor, layout: BatchLayout) -> torch.Tensor:
    """Return (T, L − 1, A) values as (T, rows, P), as the channels of one problem lie."""
    out = torch.zeros((len(values), layout.rows, layout.padded), device=values.device)
    out[:, : layout.voxels, : layout.n_labels - 1] = values.transpose(1, 2)
    return out


def _shaped(room: Room, values: torch.Tensor) -> torch.Tensor:
    """Return the channels of all problems, a view (A, B, P) of energies or marginals."""
    layout = room.layout
    return values[: layout.voxels, : layout.width].unflatten(1, (-1, layout.padded))
