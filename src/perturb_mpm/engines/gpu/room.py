"""The device memory of one batch of problems."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch

from perturb_mpm.engines.gpu.layout import Layout


class Needs(Protocol):
    """How many rows of each kind the messages need."""

    rows: int
    spare: int
    partials: int
    exact_rows: int


@dataclass(frozen=True)
class Room:
    """Room for B problems; see ``layout.py`` for what a row holds."""

    layout: Layout
    energies: torch.Tensor  # (tiles·T, stride): against label 0's
    marginals: torch.Tensor  # (tiles·T, stride)
    labels: torch.Tensor  # (tiles·T, B) uint8
    rows: torch.Tensor  # (R, stride): of all lattices
    spare: torch.Tensor  # (most rows of a lattice, stride)
    partials: torch.Tensor  # (E, stride): what each tile sends
    exact: torch.Tensor  # (G, tiles·T, stride) float32: exact messages

    def problem(self, values: torch.Tensor, b: int) -> torch.Tensor:
        """Return the channels of one problem, (N, L − 1), a view of energies or marginals."""
        first = b * self.layout.padded
        return values[: self.layout.voxels, first : first + self.layout.n_labels - 1]


class Pool:
    """Memory for up to so many problems, taken once."""

    def __init__(
        self, layout: Layout, needs: Needs, dtype: torch.dtype, device: torch.device
    ) -> None:
        self._needs = needs
        stride = layout.stride

        def take(rows: int, kind: torch.dtype) -> torch.Tensor:
            return torch.empty(rows * stride, dtype=kind, device=device)

        self._energies = take(layout.rows, dtype)
        self._marginals = take(layout.rows, dtype)
        self._labels = torch.empty(layout.rows * layout.problems, dtype=torch.uint8, device=device)
        self._rows = take(needs.rows, dtype)
        self._spare = take(needs.spare, dtype)
        self._partials = take(needs.partials, dtype)
        self._exact = take(layout.rows * needs.exact_rows, torch.float32)

    def room(self, layout: Layout) -> Room:
        """Return room for the problems of a layout, its marginals 0 everywhere."""

        def view(flat: torch.Tensor, rows: int) -> torch.Tensor:
            return flat[: rows * layout.stride].view(rows, layout.stride)

        needs = self._needs
        return Room(
            layout=layout,
            energies=view(self._energies, layout.rows).zero_(),
            marginals=view(self._marginals, layout.rows).zero_(),
            labels=self._labels[: layout.rows * layout.problems].view(layout.rows, layout.problems),
            rows=view(self._rows, needs.rows),
            spare=view(self._spare, needs.spare),
            partials=view(self._partials, needs.partials),
            exact=view(self._exact, layout.rows * needs.exact_rows).view(
                needs.exact_rows, layout.rows, layout.stride
            ),
        )
