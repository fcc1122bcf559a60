"""One batch of problems in the device's memory: its layout, its buffers, and how many fit.

N voxels, rounded up to whole tiles, have a row of B·P channels each in energies and marginals, for
B problems of L labels and P ≥ L − 1. So have R lattice rows and E rows that tiles send:

    bytes = (2·N + R + E + spare)·B·P·item + N·B,

and (4·G + 4 + item)·N·B·P more where G groups of messages are exact.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray

from perturb_mpm.engines.compute import REMEDY, require, require_batch
from perturb_mpm.engines.gpu.device import on_host, threads
from perturb_mpm.engines.gpu.tiles import TILE
from perturb_mpm.engines.protocol import FRACTION_BITS, Change

# As many as are usually drawn: a batch has its memory from the start.
DEFAULT_BATCH = 200
LANES = 64  # the channels of a block, unless one problem has more
ALIGNMENT = 32  # channels, so that a row starts at a cache line or in its middle
# What is left of the budget for arrays that come and go.
SHARE_OF_BUDGET = 0.9


@dataclass(frozen=True)
class BatchLayout:
    """B problems of L labels on N voxels: channel b·P + l of a row is label l + 1 of problem b."""

    voxels: int  # N
    n_labels: int  # L
    problems: int  # B

    @property
    def padded(self) -> int:
        """P, the number of labels but one, rounded up to a power of two."""
        return 1 << (self.n_labels - 2).bit_length()

    @property
    def tiles(self) -> int:
        """The number of tiles."""
        return -(-self.voxels // TILE)

    @property
    def rows(self) -> int:
        """The number of voxels in all tiles, those that only fill up the last included."""
        return self.tiles * TILE

    @property
    def width(self) -> int:
        """The number of channels, B·P."""
        return self.problems * self.padded

    @property
    def stride(self) -> int:
        """The number of channels from one row to the next."""
        # Rows of one problem are so short that many fit into a cache line. Kernels are compiled for
        # multiples of 16 alike: others would add up labels in another order.
        alignment = ALIGNMENT if self.problems > 1 else 16
        return max(1, -(-self.width // alignment)) * alignment

    @property
    def lanes(self) -> int:
        """The number of channels in a block."""
        return max(LANES, self.padded)

    @property
    def blocks(self) -> int:
        """The number of blocks."""
        return -(-self.width // self.lanes)


@dataclass(frozen=True)
class Needs:
    """How many rows of each kind messages need."""

    rows: int = 1
    spare: int = 1
    partials: int = 1
    exact_rows: int = 0


NOTHING = Needs(0, 0, 0, 0)


@dataclass(frozen=True)
class Buffers:
    """Buffers for B problems; see ``BatchLayout`` for what a row holds."""

    layout: BatchLayout
    energies: torch.Tensor  # (tiles·T, stride): against label 0's
    marginals: torch.Tensor  # (tiles·T, stride)
    labels: torch.Tensor  # (tiles, B, T) uint8: the programs of a tile write side by side
    rows: torch.Tensor  # (R, stride): of all lattices
    spare: torch.Tensor  # (most rows of a lattice, stride)
    partials: torch.Tensor  # (E, stride): what each tile sends
    exact: torch.Tensor  # (G, tiles·T, stride) float32: exact messages

    def problem(self, values: torch.Tensor, b: int) -> torch.Tensor:
        """Return the channels of one problem, (N, L − 1), a view of energies or marginals."""
        first = b * self.layout.padded
        return values[: self.layout.voxels, first : first + self.layout.n_labels - 1]

    @property
    def labels_by_problem(self) -> torch.Tensor:
        """The labels of every problem, a copy of (B, N)."""
        return self.labels.transpose(0, 1).flatten(1)[:, : self.layout.voxels]


def _row_counts(layout: BatchLayout, needs: Needs) -> dict[str, int]:
    """Return how many rows each of the buffers has."""
    return {
        **dict.fromkeys(("energies", "marginals"), layout.rows),
        **{name: getattr(needs, name) for name in ("rows", "spare", "partials")},
        "exact": layout.rows * needs.exact_rows,
    }


class BatchMemory:
    """Memory for up to so many problems, taken once."""

    def __init__(
        self, layout: BatchLayout, needs: Needs, dtype: torch.dtype, device: torch.device
    ) -> None:
        self._needs = needs
        self._labels = torch.empty(layout.rows * layout.problems, dtype=torch.uint8, device=device)
        self._flat = {}
        for name, rows in _row_counts(layout, needs).items():
            kind = torch.float32 if name == "exact" else dtype
            self._flat[name] = torch.empty(rows * layout.stride, dtype=kind, device=device)

    def buffers(self, layout: BatchLayout) -> Buffers:
        """Return buffers for the problems of a layout, energies and marginals 0 everywhere."""
        rows, stride = layout.rows, layout.stride
        views = {
            name: self._flat[name][: count * stride].view(count, stride)
            for name, count in _row_counts(layout, self._needs).items()
        }
        for name in ("energies", "marginals"):
            views[name].zero_()
        views["exact"] = views["exact"].view(self._needs.exact_rows, rows, stride)
        labels = self._labels[: rows * layout.problems].view(layout.tiles, layout.problems, TILE)
        return Buffers(layout=layout, labels=labels, **views)


class Memory:
    """Memory for one problem, and for a batch of them once anyone asks for a batch."""

    def __init__(
        self,
        layout: BatchLayout,
        needs: Needs,
        planned: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self._layout, self._needs, self._planned = layout, needs, planned
        self._dtype, self._device = dtype, device
        self._one: BatchMemory | None = None
        self._whole: BatchMemory | None = None

    @property
    def batch(self) -> int:
        """How many problems fit; asking takes the memory."""
        self._taken()
        return self._planned

    def _taken(self) -> BatchMemory:
        if self._whole is None:
            self._one = None
            self._planned, self._whole = take_memory(
                self._layout, self._needs, self._planned, self._dtype, self._device
            )
        return self._whole

    def buffers(self, layout: BatchLayout) -> Buffers:
        """Return buffers for the problems of a layout, at most ``batch``; its marginals are 0."""
        if layout.problems == 0:
            empty = replace(layout, voxels=0)
            return BatchMemory(empty, NOTHING, self._dtype, self._device).buffers(empty)
        if layout.problems <= 1 and self._whole is None:
            if self._one is None:
                one = replace(layout, problems=1)
                self._one = BatchMemory(one, self._needs, self._dtype, self._device)
            return self._one.buffers(layout)
        return self._taken().buffers(layout)


def bytes_for(layout: BatchLayout, needs: Needs, item: int) -> int:
    """Return how much memory the problems of a layout take."""
    rows = 2 * layout.rows + needs.rows + needs.spare + needs.partials
    # Exact messages are made in two copies, from a copy of the marginals.
    exact = needs.exact_rows and layout.rows * (4 * needs.exact_rows + 4 + item)
    return layout.stride * (rows * item + exact) + layout.rows * layout.problems


def choose_batch(
    layout: BatchLayout, needs: Needs, wanted: int | None, shared: int, item: int, budget: int
) -> int:
    """Return how many problems to solve at once, and raise MemoryError where not one fits.

    ``shared`` is the size in bytes of what all problems share, ``item`` that of a value in a row.
    """
    budget = int(SHARE_OF_BUDGET * budget)
    least = replace(layout, problems=1 if wanted is None else wanted)
    what = f"{layout.n_labels} labels on {layout.voxels} voxels and {needs.rows} lattice rows"
    require_batch(shared + bytes_for(least, needs, item), budget, least.problems, what)
    if wanted is not None:
        return wanted
    return bisect_right(
        range(1, DEFAULT_BATCH + 1),
        budget,
        key=lambda problems: shared + bytes_for(replace(layout, problems=problems), needs, item),
    )


def take_memory(
    layout: BatchLayout, needs: Needs, batch: int, dtype: torch.dtype, device: torch.device
) -> tuple[int, BatchMemory]:
    """Take the memory of a batch, a smaller one where the device has less than it said."""
    while True:
        try:
            return batch, BatchMemory(replace(layout, problems=batch), needs, dtype, device)
        except torch.OutOfMemoryError:
            if batch == 1:
                raise
            torch.cuda.empty_cache()
            batch = max(1, batch * 3 // 4)


def require_for_build(voxels: int, features: int, budget: int) -> None:
    """Raise MemoryError where a lattice of so many features could not even be built."""
    # Of each corner: its key and position twice while they are sorted, weights, shares and columns.
    needed = voxels * (16 * features + 64 * (features + 1))
    require(needed, budget, f"building a kernel of {features} features on {voxels} voxels", REMEDY)


def load_energies(buffers: Buffers, b: int, energies: torch.Tensor, ceiling: float) -> None:
    """Take one problem's energies (L, N) against label 0's.

    An energy more than ``ceiling`` above the voxel's lowest counts as that: a forbidden label must
    not use up the digits that tell the others apart.
    """
    away = (energies - energies.amin(0)).clamp_(max=ceiling)
    buffers.problem(buffers.energies, b).copy_((away[1:] - away[:1]).T)


def begin(buffers: Buffers, b: int) -> None:
    """Start a problem at softmax(−energies)."""
    energies = buffers.problem(buffers.energies, b).float()
    logits = torch.cat([torch.zeros_like(energies[:, :1]), -energies], 1)
    load_marginals(buffers, b, torch.softmax(logits, 1).T)


def load_marginals(buffers: Buffers, b: int, marginals: torch.Tensor) -> None:
    """Take one problem's marginals (L, N)."""
    buffers.problem(buffers.marginals, b).copy_(marginals[1:].T)
    largest = marginals.amax(0)
    label = torch.arange(len(marginals), device=marginals.device)[:, None]
    best = torch.where(marginals == largest, label, len(marginals)).amin(0)
    padding = buffers.layout.rows - len(best)
    padded = torch.nn.functional.pad(best.to(torch.uint8), (0, padding))
    buffers.labels[:, b] = padded.view(-1, TILE)


def read_marginals(buffers: Buffers, b: int) -> torch.Tensor:
    """Return one problem's marginals, (L, N)."""
    others = buffers.problem(buffers.marginals, b).float().T
    rest = torch.ones_like(others[0])
    for share in others:
        rest = rest - share
    return torch.cat([rest.clamp_(min=0)[None], others])


def couple_labels(
    message: torch.Tensor, rest: torch.Tensor, compatibility: torch.Tensor, layout: BatchLayout
) -> torch.Tensor:
    """Return Σ_l' μ(l, l')·messages, (b, L, N), from those of labels 1 … L − 1, (rows, b·P).

    ``rest`` (N,) is what the messages of all labels sum to.
    """
    others = by_problem(message, layout)  # (b, L − 1, N)
    whole = torch.cat([rest - others.sum(1, keepdim=True), others], 1)
    return torch.einsum("lm,bmn->bln", compatibility, whole)


def by_problem(values: torch.Tensor, layout: BatchLayout) -> torch.Tensor:
    """Return the channels of some problems, (rows, b·P), as (b, L − 1, N)."""
    shaped = values[: layout.voxels].unflatten(1, (-1, layout.padded))
    return shaped[:, :, : layout.n_labels - 1].permute(1, 2, 0)


def fixed_point(marginals: torch.Tensor) -> torch.Tensor:
    """Return marginals as whole numbers of 2⁻³⁰."""
    return torch.round(marginals.double() * (1 << FRACTION_BITS)).long()


def read_change(changes: torch.Tensor | None, problems: int, voxels: int) -> Change:
    """Return what ``update`` saw of (3, B) changes; it sees none where it does not watch."""
    if changes is None:
        nothing = np.zeros(problems)
        return Change(nothing, nothing, nothing)
    maximum, foreground, switched = changes.cpu().numpy().astype(np.float64)
    return Change(maximum, foreground, switched / voxels)


def add_votes(votes: torch.Tensor, counts: NDArray[np.uint32]) -> None:
    """Add votes on the device to counts on the host, both (L, N)."""
    carried = on_host(votes)

    def add(label: int) -> None:
        np.add(counts[label], carried[label], out=counts[label], casting="unsafe")

    list(threads().map(add, range(len(counts))))


def in_mask_order(values: torch.Tensor, order: torch.Tensor) -> torch.Tensor:
    """Return (…, N) values in the order of the mask."""
    out = torch.empty_like(values, memory_format=torch.contiguous_format)
    out[..., order] = values
    return out
