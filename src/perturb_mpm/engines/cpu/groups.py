"""All kernels of a CRF side by side: the slices they end in and the compatibilities they share.

Kernels with a Potts compatibility form one group, their weights multiplied into their slices; every
other compatibility is a group of its own. With y the messages of a group (labels 1 … L−1, what
label 0 has is left of the row sum R), the pairwise energy of label l against label 0's is

    Σ_{l'≥1} A[l, l'] y_l' + c[l] R
    c[l] = μ[l, 0] − μ[0, 0],   A[l, l'] = μ[l, l'] − μ[0, l'] − c[l]
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from perturb_mpm.crf import PairwiseTerm
from perturb_mpm.engines.cpu.exact import ExactFilter
from perturb_mpm.engines.cpu.filters import Filter


class Slices(NamedTuple):
    """The last stage of all kernels: P entries a voxel, group by group, into stacked rows."""

    columns: NDArray[np.int32]  # (N, P)
    coefficients: NDArray[np.float32]  # (N, P)
    ends: NDArray[np.int64]  # (G,): where each group's entries end
    totals: NDArray[np.float32]  # (G, N): row sums
    diagonals: NDArray[np.float32]  # (G, N): what a voxel must not send to itself


class Compatibilities(NamedTuple):
    """The compatibility of each group, reduced to differences against label 0."""

    potts: NDArray[np.bool_]  # (G,)
    matrices: NDArray[np.float32]  # (G, L−1, L−1): A
    offsets: NDArray[np.float32]  # (G, L−1): c
    firsts: NDArray[np.float32]  # (G, L): label 0's row of μ


def group(
    terms: Sequence[PairwiseTerm],
    filters: Sequence[Filter | ExactFilter],
    n_labels: int,
    voxels: int,
    unit: float,
    *,
    self_term: bool,
) -> tuple[Slices, Compatibilities]:
    """Stack the slices of all kernels; values in rows are in units of 1/unit."""
    starts = np.concatenate([[0], np.cumsum([f.rows for f in filters])]).astype(np.int64)
    potts = [m for m, term in enumerate(terms) if term.potts_weight is not None]
    members = [potts] if potts else []
    members += [[m] for m in range(len(terms)) if m not in potts]
    columns, coefficients, totals, diagonals, matrices = [], [], [], [], []
    for group_members in members:
        total, diagonal = np.zeros((2, voxels), dtype=np.float32)
        for m in group_members:
            weight = terms[m].potts_weight if m in potts else 1.0
            columns.append(filters[m].columns + np.int32(starts[m]))
            coefficients.append(filters[m].coefficients * np.float32((weight or 0.0) / unit))
            total += np.float32(weight or 0.0) * filters[m].total
            diagonal += np.float32(weight or 0.0) * filters[m].diagonal
        totals.append(total)
        diagonals.append(np.zeros_like(diagonal) if self_term else diagonal)
        is_potts = bool(potts) and group_members is members[0]
        matrices.append(1 - np.eye(n_labels) if is_potts else terms[group_members[0]].compatibility)
    widths = [sum(filters[m].columns.shape[1] for m in ms) for ms in members]
    slices = Slices(
        np.concatenate([np.empty((voxels, 0), dtype=np.int32), *columns], axis=1),
        np.concatenate([np.empty((voxels, 0), dtype=np.float32), *coefficients], axis=1),
        np.cumsum(widths, dtype=np.int64),
        np.stack(totals) if totals else np.empty((0, voxels), dtype=np.float32),
        np.stack(diagonals) if diagonals else np.empty((0, voxels), dtype=np.float32),
    )
    return slices, _reduce(
        matrices, [bool(potts) and g == 0 for g in range(len(members))], n_labels
    )


def _reduce(
    matrices: Sequence[NDArray[Any]], potts: Sequence[bool], n_labels: int
) -> Compatibilities:
    mu = np.stack(matrices) if matrices else np.empty((0, n_labels, n_labels))  # (G, L, L)
    offsets = mu[:, 1:, 0] - mu[:, :1, 0]
    reduced = mu[:, 1:, 1:] - mu[:, :1, 1:] - offsets[:, :, np.newaxis]
    return Compatibilities(
        np.array(potts, dtype=np.bool_),
        reduced.astype(np.float32),
        offsets.astype(np.float32),
        mu[:, 0].astype(np.float32),
    )
