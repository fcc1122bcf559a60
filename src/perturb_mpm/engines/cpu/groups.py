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
def stack(columns, coefficients, first, factor, begin, all_columns, all_coefficients, start, stop):
    """Copy one kernel's entries, whose rows start at ``first``, to their place among all."""
    for i in range(start, stop):
        for r in range(columns.shape[1]):
            all_columns[i, begin + r] = columns[i, r] + first
            all_coefficients[i, begin + r] = coefficients[i, r] * factor


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
    """Stack the slices of all kernels; values in rows are in units of 1/unit."""
    groups = groups_of(terms, n_labels)
    starts = np.concatenate([[0], np.cumsum([f.rows for f in filters])]).astype(np.int32)
    entries = sum(f.columns.shape[1] for f in filters)
    slices = Slices(
        np.empty((voxels, entries), dtype=np.int32),
        np.empty((voxels, entries), dtype=np.float32),
        np.empty(len(groups), dtype=np.int64),
        np.zeros((len(groups), voxels), dtype=np.float32),
        np.zeros((len(groups), voxels), dtype=np.float32),
    )
    end = 0
    for g, each in enumerate(groups):
        for m, weight in zip(each.members, each.weights, strict=True):
            f = filters[m]
            begin, end = end, end + f.columns.shape[1]
            arguments = (f.columns, f.coefficients, starts[m], np.float32(weight / unit))
            threads.run(stack, voxels, *arguments, begin, slices.columns, slices.coefficients)
            slices.totals[g] += np.float32(weight) * f.total
            if not self_term:
                slices.diagonals[g] += np.float32(weight) * f.diagonal
        slices.ends[g] = end
    return slices, _reduced(groups)


def _reduced(groups: Sequence[KernelGroup]) -> Compatibilities:
    matrices, offsets = against_first_label(groups)
    return Compatibilities(
        np.array([group.is_potts for group in groups], dtype=np.bool_),
        matrices.astype(np.float32),
        offsets.astype(np.float32),
        np.array([group.compatibility[0] for group in groups]).astype(np.float32),
    )
