"""The reference engine: NumPy, float64, every pair of voxels; what the other engines must equal.

With K_m (N, N) and μ_m (L, L) an update is Q ← softmax(−U − Σ_m μ_m Q K_mᵀ), all Q (B, L, N).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from perturb_mpm.engines.compute import require
from perturb_mpm.engines.convergent import convergent_marginals
from perturb_mpm.engines.protocol import (
    FREE,
    Change,
    FrozenVoxels,
    Problems,
    Update,
    change_between,
    count_votes,
    fixed_point,
    to_log_odds,
)
from perturb_mpm.noise import Perturbation

if TYPE_CHECKING:
    from perturb_mpm.model import DenseCRF, PairwiseTerm


_DEFAULT_BATCH = 16
_WORKING_COPIES = 8  # arrays of the size of Q that one update holds at once


def prepare(crf: DenseCRF, batch: int | None, budget: int) -> ReferenceSolver:
    """Build every kernel matrix of ``crf``, after checking that they fit into ``budget`` bytes."""
    size = batch if batch is not None else _DEFAULT_BATCH
    voxels = crf.grid.voxels
    matrices = (len(crf.terms) + 3) * voxels**2  # those kept, and three while one is made
    needed = 8 * (matrices + _WORKING_COPIES * size * crf.n_labels * voxels)
    require(
        needed,
        budget,
        f'engine "reference" on {voxels} voxels, {len(crf.terms)} kernels and batch {size}',
        'use engine="cpu", a smaller mask, or a larger memory',
    )
    return ReferenceSolver(crf, size)


class ReferenceSolver:
    """All pairs in float64; see ``engines.protocol.Solver`` for what each method does."""

    engine = "reference"
    accuracy = "exact"

    def __init__(self, crf: DenseCRF, batch: int) -> None:
        self.batch = batch
        self._crf = crf
        self._kernels = [kernel_matrix(term) for term in crf.terms]  # each (N, N)
        self._energies = np.empty((0, *crf.energies.shape))  # (B, L, N)
        self._q = self._energies
        self._without_noise: NDArray[np.floating] = self._energies
        self._next_frozen: FrozenVoxels | None = None  # what ``freeze`` asks for
        self._frozen: FrozenVoxels | None = None  # what the present problems follow
        self._updates = 0
        self.centre: NDArray[np.floating] | None = None
        if crf.centring > 0:
            self.load(crf.prior[np.newaxis])
            self.centre = crf.centring * self.pairwise()[0]

    def load(self, energies: Problems, marginals: Problems | None = None) -> None:
        """Take B ≤ batch problems, started at softmax(−energies) or at the given marginals."""
        self._energies = self._check_problems(energies, "energies")
        self._frozen = None
        if marginals is None:
            self._q = softmax(-self._energies)
        else:
            self._q = self._check_problems(marginals, "marginals")
            if self._q.shape != self._energies.shape:
                raise ValueError(
                    f"marginals must have the shape of energies {self._energies.shape}, "
                    f"got {self._q.shape}"
                )
        if self.centre is not None:
            self._energies = self._energies - self.centre

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
        energies = perturbation.energies(crf.energies, crf.grid, samples)
        self._energies = self._check_problems(energies, "energies")
        self._without_noise = crf.energies[np.newaxis]
        self._q = softmax(-sharpness * self._energies)
        if marginals is not None:
            self._q = np.repeat(
                self._check_problems(marginals[np.newaxis], "marginals"), len(energies), 0
            )
        if self.centre is not None:
            self._energies = self._energies - self.centre
            self._without_noise = self._without_noise - self.centre
        self._frozen, self._updates = self._next_frozen, 0

    @property
    def diagonal(self) -> NDArray[np.float64]:
        """What each voxel would send to itself, (N,)."""
        total = np.zeros(self._crf.grid.voxels)
        for term, kernel in zip(self._crf.terms, self._kernels):
            total += np.abs(term.compatibility).max() * np.diag(kernel)
        return total

    def freeze(self, frozen: FrozenVoxels | None) -> None:
        """Update only active voxels of the problems that come next by ``perturb``."""
        self._next_frozen = frozen

    def forget_whole(self) -> None:
        """Keep everything: small problems have nothing to let go of."""

    def find_near(
        self,
        perturbation: Perturbation,
        samples: NDArray[np.int64],
        pairwise: NDArray[np.float32],
        nats: float,
    ) -> NDArray[np.bool_]:
        """Return which voxels come near to another label in any of some samples (S,), (N,)."""
        taken = pairwise if self.centre is None else pairwise - self.centre
        usual = (self._crf.energies + taken).argmin(axis=0)  # (N,)
        away = nats * (usual == np.arange(len(taken))[:, np.newaxis])  # (L, N)
        near = np.zeros(len(usual), dtype=np.bool_)
        for sample in samples.tolist():
            energies = perturbation.energies(self._crf.energies, self._crf.grid, [sample])[0]
            near |= (energies + taken + away).argmin(axis=0) != usual
        return near

    def step(
        self,
        update: Update = "parallel",
        damping: float = 0.0,
        *,
        sharpness: float = 1.0,
        watched: bool = True,  # noqa: ARG002
    ) -> Change:
        """Update every marginal once."""
        logits = -self._energies - self.pairwise()
        if update == "convergent" and not self._crf.self_term:
            diagonals = [np.diag(kernel) for kernel in self._kernels]
            new = convergent_marginals(self._crf, logits, self._q, diagonals)
        else:
            new = softmax(sharpness * logits)
        self._updates += 1
        old, self._q = self._q, (1 - damping) * new + damping * self._q
        if damping < 0:
            self._q = _to_simplex(self._q)
        if self._frozen is not None:  # frozen voxels have what they have from the start
            active = self._frozen.active
            before, old = old, self._q.copy()
            old[:, :, active] = before[:, :, active]
        return change_between(old, self._q)

    def marginals(self) -> NDArray[np.float64]:
        """Return a copy of Q, (B, L, N); frozen voxels have the law of their labels."""
        q = self._q.copy()
        if self._frozen is not None:
            law = softmax(-self._without_noise - self._frozen.last)
            others = np.ones(q.shape[2], dtype=np.bool_)
            others[self._frozen.active] = False
            q[:, :, others] = law[:, :, others]
        return q

    def labels(self) -> NDArray[np.uint8]:
        """Return the most probable label, the first of equals, (B, N)."""
        return self._q.argmax(axis=1).astype(np.uint8)

    def count_votes(
        self, counts: NDArray[np.uint32], chosen: NDArray[np.bool_] | None = None
    ) -> NDArray[np.int64]:
        """Add the labels of all or some to ``counts`` (L, N); return all sizes, (B, L)."""
        labels = self.labels()
        if chosen is not None:
            count_votes(labels[chosen], counts)
            counts = np.zeros_like(counts)
        return count_votes(labels, counts)

    def pairwise(self) -> NDArray[np.float64]:
        """Return Σ_m μ_m Q K_mᵀ, (B, L, N), without the self term unless the CRF keeps it."""
        frozen = self._frozen
        if frozen is None:
            return self.send(self._q, np.arange(self._q.shape[2]))
        now = min(self._updates, len(frozen.energies) - 1)
        total = np.repeat(frozen.last[np.newaxis].astype(np.float64), len(self._q), 0)
        away = self._q[:, :, frozen.active] - frozen.marginals[now]  # (B, L, A)
        total[:, :, frozen.active] = frozen.energies[now] + self.send(away, frozen.active)
        return total

    def send(self, values: NDArray[Any], voxels: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return the pairwise energies that values (B, L, V) at some voxels have among them."""
        total = np.zeros_like(values)
        for term, matrix in zip(self._crf.terms, self._kernels):
            kernel = matrix[np.ix_(voxels, voxels)] if len(voxels) < len(matrix) else matrix
            filtered = values @ kernel.T  # (B, L, V): Σ_j k(i, j) Q_j
            if not self._crf.self_term:
                filtered -= values * np.diag(kernel)
            total += term.compatibility @ filtered
        return total

    def conditional(self, chosen: NDArray[np.bool_] | None = None) -> NDArray[np.int64]:
        """Return Σ_b softmax(−U − pairwise) in units of 2⁻³⁰, (L, N)."""
        marginals = softmax(-self._without_noise - self.pairwise())  # (B, L, N)
        taken = marginals if chosen is None else marginals[chosen]
        return fixed_point(taken).sum(axis=0)

    def log_odds(self, voxels: NDArray[np.int64]) -> NDArray[np.float16]:
        """Return the log-odds of the current Q at some voxels, (V, L − 1, B)."""
        if self._frozen is not None and not np.isin(voxels, self._frozen.active).all():
            raise ValueError("log_odds must be asked of active voxels, got frozen ones")
        return to_log_odds(self._q[:, :, voxels].transpose(2, 1, 0))

    def reach(
        self, voxels: NDArray[np.int64], changes: NDArray[np.floating]
    ) -> NDArray[np.float64]:
        """Return the pairwise energies (L, N) that changes (L, V) at some voxels add."""
        everywhere = np.zeros((1, *self._crf.energies.shape))
        everywhere[0, :, voxels] = changes.T
        return self.send(everywhere, np.arange(everywhere.shape[2]))[0]

    def restrict(self, voxels: NDArray[np.int64]) -> ReferenceRestricted:
        """Return problems of these voxels alone."""
        return ReferenceRestricted(self, voxels)

    def _check_problems(self, values: Problems, name: str) -> NDArray[np.float64]:
        array = np.array(values, dtype=np.float64)
        wanted = self._crf.energies.shape
        if array.ndim != 3 or array.shape[1:] != wanted or len(array) > self.batch:
            raise ValueError(
                f"{name} must be (B, {wanted[0]}, {wanted[1]}) with B at most {self.batch}, "
                f"got shape {array.shape}"
            )
        return array


class ReferenceRestricted:
    """Problems at some voxels; see ``engines.protocol.RestrictedProblem``."""

    def __init__(self, solver: ReferenceSolver, voxels: NDArray[np.int64]) -> None:
        self._solver, self._voxels = solver, voxels

    def load(
        self, base: NDArray[np.float16], fixed: NDArray[np.int16], *, sharpness: float = 1.0
    ) -> None:
        """Take log-odds (A, L − 1, B), start at their softmax, with the labels that are fixed."""
        others = base.astype(np.float64).transpose(2, 1, 0)  # (B, L − 1, A)
        self._base = np.concatenate([np.zeros_like(others[:, :1]), others], axis=1)
        self._fixed = fixed
        self._reference = softmax(sharpness * self._base)  # (B, L, A)
        self._q = self._fix_labels(self._reference)

    def step(
        self,
        update: Update = "parallel",  # noqa: ARG002
        damping: float = 0.0,
        *,
        sharpness: float = 1.0,
        watched: bool = True,  # noqa: ARG002
    ) -> Change:
        """Update every voxel once."""
        sent = self._solver.send(self._q - self._reference, self._voxels)
        new = self._fix_labels(softmax(sharpness * (self._base - sent)))
        old, self._q = self._q, (1 - damping) * new + damping * self._q
        if damping < 0:
            self._q = _to_simplex(self._q)
        return change_between(old, self._q)

    def marginals(self) -> NDArray[np.float64]:
        """Return Q, (B, L, A)."""
        return self._q

    def _fix_labels(self, q: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return marginals with the fixed labels for certain."""
        certain = np.arange(q.shape[1])[:, np.newaxis] == self._fixed  # (L, A)
        return np.where(self._fixed == FREE, q, certain)


def _to_simplex(q: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return marginals that went too far, (B, L, N), as probabilities again.

    Below 0 counts as 0, and where labels 1 … L − 1 have more than 1 together they share it.
    """
    others = np.maximum(q[:, 1:], 0)
    total = others.sum(axis=1, keepdims=True)
    first = np.maximum(1 - total, 0)
    return np.concatenate([first, others / np.maximum(total, 1)], axis=1)


def kernel_matrix(term: PairwiseTerm) -> NDArray[np.float64]:
    """Return the normalised kernel over all pairs, (N, N), with its diagonal."""
    features = term.features()  # (N, d)
    squares = np.zeros((len(features), len(features)))
    for f in features.T:  # (N,)
        squares += (f[:, np.newaxis] - f) ** 2
    kernel = np.exp(-squares / 2)
    sums = kernel.sum(axis=1)  # (N,)
    if term.normalization == "symmetric":
        kernel /= np.sqrt(sums[:, np.newaxis] * sums)
    elif term.normalization == "before":
        kernel /= sums
    elif term.normalization == "after":
        kernel /= sums[:, np.newaxis]
    return kernel


def softmax(logits: NDArray[Any], axis: int = 1) -> NDArray[Any]:
    """Return exp(logits), normalised over the labels: axis 1 of (B, L, N) and of (N, L)."""
    q: NDArray[Any] = np.exp(logits - logits.max(axis=axis, keepdims=True))
    q /= q.sum(axis=axis, keepdims=True)
    return q
