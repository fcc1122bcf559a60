"""All kernels of a CRF side by side: the slices they end in and the compatibilities they share.

``engines/lattice/groups.py`` says which kernels share one; their weights are multiplied into their
slices.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from perturb_mpm.engines.cpu.chain import Filter
from perturb_mpm.engines.cpu.compile import kernel
from perturb_mpm.engines.cpu.exact import ExactFilter
from perturb_mpm.engines.cpu.threads import Threads
from perturb_mpm.engines.lattice import KernelGroup, against_first_label, groups_of
from perturb_mpm.model import PairwiseTerm


@kernel
def put_columns(values, shift, columns, first, start, stop):
    """Write (N, p) column numbers, each plus ``shift``, into columns (N, P) from ``first`` on."""
    for i in range(start, stop):
        for r in range(values.shape[1]):
            columns[i, first + r] = values[i, r] + shift


@kernel
def put_coefficients(values, factor, coefficients, first, start, stop):
    """Write (N, p) coefficients, each times ``factor``, as ``put_columns`` does."""
    for i in range(start, stop):
        for r in range(values.shape[1]):
            coefficients[i, first + r] = values[i, r] * factor


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


def stack_slices(
    terms: Sequence[PairwiseTerm],
    filters: Sequence[Filter | ExactFilter],
    n_labels: int,
    voxels: int,
    unit: float,
    threads: Threads,
    *,
    self_term: bool,
) -> tuple[Slices, Compatibilities]:
    """Stack the slices of all kernels, which forget theirs; rows are in units of 1/unit."""
    groups = groups_of(terms, n_labels)
    starts = np.concatenate([[0], np.cumsum([f.rows for f in filters])]).astype(np.int32)
    members = [m for each in groups for m in each.members]
    weights = [weight for each in groups for weight in each.weights]
    ends = np.cumsum([0, *(filters[m].columns.shape[1] for m in members)])
    # One kind after the other, so that no more than one of them is there twice.
    columns = np.empty((voxels, ends[-1]), dtype=np.int32)
    for m, first in zip(members, ends[:-1], strict=True):
        threads.run(put_columns, voxels, filters[m].columns, starts[m], columns, first)
        filters[m].columns = columns[:0]
    coefficients = np.empty(columns.shape, dtype=np.float32)
    for m, first, weight in zip(members, ends[:-1], weights, strict=True):
        factor = np.float32(weight / unit)
        arguments = (filters[m].coefficients, factor, coefficients, first)
        threads.run(put_coefficients, voxels, *arguments)
        filters[m].coefficients = coefficients[:0]
    totals, diagonals = np.zeros((2, len(groups), voxels), dtype=np.float32)
    for g, each in enumerate(groups):
        for m, weight in zip(each.members, each.weights, strict=True):
            totals[g] += np.float32(weight) * filters[m].total
            if not self_term:
                diagonals[g] += np.float32(weight) * filters[m].diagonal
    last = np.cumsum([len(each.members) for each in groups], dtype=np.int64)
    return Slices(columns, coefficients, ends[last], totals, diagonals), _reduced(groups)


def _reduced(groups: Sequence[KernelGroup]) -> Compatibilities:
    matrices, offsets = against_first_label(groups)
    return Compatibilities(
        np.array([group.is_potts for group in groups], dtype=np.bool_),
        matrices.astype(np.float32),
        offsets.astype(np.float32),
        np.array([group.compatibility[0] for group in groups]).astype(np.float32),
    )
