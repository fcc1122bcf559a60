"""The convergent update: the concave-convex procedure (CCCP) on the mean-field free energy.

With Ψ the pairwise term over all pairs, self term included, and M_i = Σ_m μ_m k_m(i, i) the part of
it that couples a voxel to itself, the free energy without self term is

    F(Q) = Σ_i [q_i·U_i + q_i·log q_i − ½ q_i·M_i q_i]  +  ½ Q·ΨQ

Gaussian kernels are positive semi-definite. Where every compatibility is negative semi-definite on
the directions in which probabilities can move (those that sum to zero), the second part is concave
and the first convex. Replacing the concave part by its tangent at the current Q bounds F from above
and touches it there, so the minimum of the bound cannot raise F. It is found voxel by voxel:

    q_i = softmax(a_i + M_i q_i),   a_i = −U_i − (ΨQ)_i

with Q, U and a (L, N), their columns (L,) at voxel i, and M_i (L, L).

Where the CRF keeps its self term, F holds the whole of ½ Q·ΨQ: nothing is left to add back, M = 0,
and the parallel update is already the convergent one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from perturb_mpm.model import DenseCRF


_MOST_NEWTON_STEPS = 100
_NEWTON_ACCURACY = 1e-10  # before the last step, which squares it
_ACCURACY = 1e-14
_ROUNDING = 1e-9
_STRONG = 100.0  # a coupling from which on c q is divided by c


def check_convergent(crf: DenseCRF) -> None:
    """Raise ValueError where the convergent update would not be sure to converge."""
    for number, term in enumerate(crf.terms):
        where = f"kernels[{number}] ({type(term.kernel).__name__})"
        if term.normalization in ("before", "after"):
            raise ValueError(
                f'update "convergent" needs normalization "symmetric" or "none", '
                f'got "{term.normalization}" in {where}: use update="parallel" with damping'
            )
        largest = _largest_on_tangent(term.compatibility)
        if largest > _ROUNDING * np.abs(term.compatibility).max(initial=0.0):
            raise ValueError(
                'update "convergent" needs a compatibility that is negative semi-definite on '
                f"vectors that sum to zero, got an eigenvalue of {largest:.3g} in {where}: "
                'use update="parallel" with damping'
            )


def convergent_marginals(
    crf: DenseCRF,
    logits: NDArray[np.float64],
    old: NDArray[np.float64],
    diagonals: Sequence[NDArray[np.float64]],
) -> NDArray[np.float64]:
    """Return the updated marginals, (B, L, N), of a CRF without self term.

    ``logits`` are those of the parallel update, −U − Σ_{j≠i} …, ``old`` the present marginals,
    ``diagonals`` k_m(i, i), (N,) for each kernel.
    """
    check_convergent(crf)
    terms = crf.terms
    full = logits.astype(np.float64)
    for term, diagonal in zip(terms, diagonals):
        full -= term.compatibility @ old * diagonal
    weights = [term.potts_weight for term in terms if term.potts_weight is not None]
    if len(weights) < len(terms):
        return solve_matrix(full, [term.compatibility for term in terms], diagonals)
    coupling = np.zeros(crf.grid.voxels)
    for weight, diagonal in zip(weights, diagonals):
        coupling += weight * diagonal
    return solve_potts(full, coupling)


def _largest_on_tangent(compatibility: NDArray[np.float64]) -> float:
    centring = np.eye(len(compatibility)) - 1 / len(compatibility)
    return float(np.linalg.eigvalsh(centring @ compatibility @ centring).max())


def solve_potts(logits: NDArray[np.float64], weight: NDArray[np.float64]) -> NDArray[np.float64]:
    """Solve q = softmax(a − c q) for logits a (…, L, N) and the Potts self coupling c (N,).

    M q = c (1 − q) for Potts, and the constant cancels. With λ the normaliser, log q + c q = a − λ
    gives c q = ω(a − λ + log c), ω being the Wright omega function. The sum of q over the labels is
    convex and falls with λ, and it is at least 1 at λ = max a − c, where the largest q is 1: from
    there Newton's method climbs to the solution without ever passing it. Only differences of a
    count: it begins with 0 for the largest, so that large numbers do not swallow small ones.
    """
    from scipy.special import wrightomega

    with np.errstate(divide="ignore"):
        log_weight = np.log(weight)  # −∞ where there is no coupling, and ω(−∞) = 0
    strong = weight > _STRONG
    divisor = np.where(strong, weight, 1.0)
    relative = logits - logits.max(axis=-2, keepdims=True)  # (…, L, N)

    def solution(normaliser: NDArray[np.float64]) -> NDArray[np.float64]:
        shifted = relative - normaliser
        coupled: NDArray[np.float64] = wrightomega(shifted + log_weight)  # c q
        # The difference of two large numbers has no digits left, their quotient has all.
        return np.where(strong, coupled / divisor, np.exp(np.where(strong, 0, shifted - coupled)))

    normaliser = np.broadcast_to(-weight, relative.max(axis=-2, keepdims=True).shape).copy()
    for _ in range(_MOST_NEWTON_STEPS):
        q = solution(normaliser)
        excess = q.sum(axis=-2, keepdims=True) - 1
        normaliser += excess / (q / (1 + weight * q)).sum(axis=-2, keepdims=True)
        if excess.max(initial=0.0) <= _NEWTON_ACCURACY:
            break
    q = solution(normaliser)
    q /= q.sum(axis=-2, keepdims=True)
    return q


def solve_matrix(
    logits: NDArray[np.float64],
    compatibilities: Sequence[NDArray[np.float64]],
    diagonals: Sequence[NDArray[np.float64]],
) -> NDArray[np.float64]:
    """Solve q = softmax(a + Σ_m k_m μ_m q) for logits a (…, L, N), μ_m (L, L) and k_m(i, i) (N,).

    The convex objective −a·q + q·log q − ½ q·M q is minimised by a fixed point damped in log q,

        log q ← (a + M q + β log q) / (1 + β) − normaliser,

    a Bregman gradient step. ½ q·(−M) q curves at most β times as much as the entropy, where
    β = max_{l,l'} (2 M_ll' − M_ll − M_l'l') / 4 (Pinsker's inequality at the corners of the
    unit ball of the 1-norm), so that every step lowers the objective and the distance to the
    solution shrinks by β / (1 + β).
    """

    def self_coupling(q: NDArray[np.float64]) -> NDArray[np.float64]:
        return sum(
            (k * (mu @ q) for mu, k in zip(compatibilities, diagonals)), start=np.zeros_like(q)
        )

    beta = np.zeros(logits.shape[-1])  # (N,)
    for mu, k in zip(compatibilities, diagonals):
        own = np.diag(mu)
        beta += k * (2 * mu - own[:, np.newaxis] - own).max() / 4

    log_q = _log_softmax(logits)
    slowest = float(beta.max(initial=0.0))
    for _ in range(math.ceil(-math.log(_ACCURACY) * (1 + slowest))):
        q = np.exp(log_q)
        log_q = _log_softmax((logits + self_coupling(q) + beta * log_q) / (1 + beta))
        if np.abs(np.exp(log_q) - q).max(initial=0.0) * (1 + slowest) <= _ACCURACY:
            break
    return np.exp(log_q)


def _log_softmax(logits: NDArray[np.float64]) -> NDArray[np.float64]:
    shifted: NDArray[np.float64] = logits - logits.max(axis=-2, keepdims=True)
    shifted -= np.log(np.exp(shifted).sum(axis=-2, keepdims=True))
    return shifted
