"""The pairwise energy of a CRF as plain matrices, for the comparators that visit every pair."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from perturb_mpm.comparators.grid_crf import GridCRF
from perturb_mpm.crf import DenseCRF, PairwiseTerm
from perturb_mpm.fingerprint import digest, fingerprint

Model = DenseCRF | GridCRF


class Coupling(NamedTuple):
    """One pairwise energy Σ_{i<j} μ(x_i, x_j) k(i, j)."""

    kernel: NDArray[np.float64]  # (N, N): symmetric, its diagonal 0
    compatibility: NDArray[np.float64]  # (L, L)


def check_model(crf: object) -> None:
    """Raise where ``crf`` is neither of the two models."""
    if not isinstance(crf, DenseCRF | GridCRF):
        raise TypeError(f"crf must be a DenseCRF or a GridCRF, got {type(crf).__name__}")


def problem(crf: Model) -> str:
    """Return a name for all that makes the energy, for posteriors to be told apart by."""
    if isinstance(crf, GridCRF):
        return digest(crf.energies, crf.grid.spacing, crf.grid.index, *crf.edges)
    return fingerprint(crf)


def couplings(crf: Model) -> list[Coupling]:
    """Return the pairwise energies, all Potts terms added up into one.

    Normalisations "before" and "after" make k(i, j) ≠ k(j, i); their mean counts, as it does in
    ``DenseCRF.energy``. There is no self term, whatever the CRF says.
    """
    potts = 1.0 - np.eye(crf.n_labels)
    if isinstance(crf, GridCRF):
        return [Coupling(crf.edges.matrix(crf.grid.voxels), potts)]
    result = []
    total = np.zeros((0, 0))
    for term in crf.terms:
        kernel = _symmetric(term)
        if term.potts_weight is None:
            result.append(Coupling(kernel, term.compatibility))
        else:
            kernel *= term.potts_weight
            total = total + kernel if total.size else kernel
    return [Coupling(total, potts), *result] if total.size else result


def _symmetric(term: PairwiseTerm) -> NDArray[np.float64]:
    from perturb_mpm.engines.reference import kernel_matrix

    kernel = kernel_matrix(term)
    if term.normalization in {"before", "after"}:
        kernel = (kernel + kernel.T) / 2
    np.fill_diagonal(kernel, 0.0)
    return kernel
