"""All kernels of a CRF side by side: the slices they end in and the compatibilities they share.

Kernels with a Potts compatibility form one group, their weights multiplied into their slices; every
other compatibility is a group of its own. With y the messages of a group (labels 1 … L−1, what
label 0 has is left of the row sum R), the pairwise energy of label l against label 0's is

    Σ_{l'≥1} A[l, l'] y_l' + c[l] R
    c[l] = μ[l, 0] − μ[0, 0],   A[l, l'] = μ[l, l'] − μ[0, l'] − c[l]
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from perturb_mpm.engines.cpu.chain import Filter
from perturb_mpm.engines.cpu.exact import ExactFilter
from perturb_mpm.model import PairwiseTerm


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


@dataclass(frozen=True)
class _Group:
    members: list[int]  # the kernels
    weights: list[float]  # what multiplies each
    compatibility: NDArray[np.float64]  # (L, L)
    is_potts: bool


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
    groups = _groups(terms, n_labels)
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
            np.add(f.columns, starts[m], out=slices.columns[:, begin:end])
            factor = np.float32(weight / unit)
            np.multiply(f.coefficients, factor, out=slices.coefficients[:, begin:end])
            slices.totals[g] += np.float32(weight) * f.total
            if not self_term:
                slices.diagonals[g] += np.float32(weight) * f.diagonal
        slices.ends[g] = end
    return slices, _reduced(groups, n_labels)


def _groups(terms: Sequence[PairwiseTerm], n_labels: int) -> list[_Group]:
    potts = [(m, t.potts_weight) for m, t in enumerate(terms) if t.potts_weight is not None]
    groups = [
        _Group([m], [1.0], term.compatibility, is_potts=False)
        for m, term in enumerate(terms)
        if term.potts_weight is None
    ]
    if potts:
        members, weights = [m for m, _ in potts], [w for _, w in potts]
        groups.insert(0, _Group(members, weights, 1 - np.eye(n_labels), is_potts=True))
    return groups


def _reduced(groups: Sequence[_Group], n_labels: int) -> Compatibilities:
    mu = np.array([g.compatibility for g in groups]).reshape(-1, n_labels, n_labels)  # (G, L, L)
    offsets = mu[:, 1:, 0] - mu[:, :1, 0]
    differences = mu[:, 1:, 1:] - mu[:, :1, 1:] - offsets[:, :, np.newaxis]
    return Compatibilities(
        np.array([g.is_potts for g in groups], dtype=np.bool_),
        differences.astype(np.float32),
        offsets.astype(np.float32),
        mu[:, 0].astype(np.float32),
    )
