"""What an engine must offer: the kernels of one CRF, ready to solve batches of problems.

With kernels K_m (N, N), compatibilities μ_m (L, L) and the sharpness β, an update is

    Q ← (1 − damping)·softmax(−β·(U + Σ_m μ_m Q K_mᵀ)) + damping·Q,    Q, U (B, L, N),

for B problems with unaries U, which ``perturb`` lowers by Gumbel noise. The functions beside
``Solver`` say in NumPy what some of its methods return.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from perturb_mpm.noise import Perturbation

if TYPE_CHECKING:
    from perturb_mpm.model import DenseCRF

Accuracy = Literal["plain", "calibrated", "accurate", "exact"]


class AccuracyWarning(UserWarning):
    """The filter that was asked for is far from the Gaussian that the model states."""


Update = Literal["parallel", "convergent"]
Problems = NDArray[np.floating] | Sequence[NDArray[np.floating]]

# A conditional marginal is summed in units of 2⁻³⁰: off by at most 2⁻³¹ (5e-10) a sample, exact for
# float32 above 1/128, inside int32 for one sample and inside int64 for 2³³ of them.
FRACTION_BITS = 30

FREE = -1
"""Stands for a label where nobody has set one."""

# Marginals in 16 bits are whole numbers of 1/65535: what is 0 there counts as a quarter of one.
LEAST_MARGINAL = 2.0**-18


@dataclass(frozen=True)
class Change:
    """How far one update moved the marginals of each of B problems.

    ``maximum`` is the largest |ΔQ| of any voxel and label, ``foreground`` the same over the voxels
    whose most probable label, before or after the update, is not label 0 (0 where there is none).
    """

    maximum: NDArray[np.float64]  # (B,)
    foreground: NDArray[np.float64]  # (B,)
    switched: NDArray[np.float64]  # (B,): the share of the voxels whose label changed


@dataclass(frozen=True)
class FrozenVoxels:
    """Which voxels of samples are updated, and the averaged mean field that all others follow.

    q̄ᵗ, t < T, are the marginals averaged over the noise, and by linearity a sample's pairwise
    energies at active voxels are those of q̄ᵗ plus those of Qᵗ − q̄ᵗ at active voxels alone. Frozen
    voxels keep the last averaged energies. Updates after the T-th use the last of each.
    Where they are ``steady``, their own noise takes none of them to another label.
    """

    active: NDArray[np.int64]  # (A,), rising: the voxels that are updated
    energies: NDArray[np.float32]  # (T, L, A): the pairwise energies of q̄ᵗ
    marginals: NDArray[np.float32]  # (T, L, A): q̄ᵗ
    last: NDArray[np.float32]  # (L, N): the last pairwise energies, of every voxel
    steady: bool = False


def change_between(old: NDArray[np.floating], new: NDArray[np.floating]) -> Change:
    """Return how far (B, L, N) marginals moved."""
    moved = np.abs(new - old).max(axis=1)  # (B, N)
    before, after = old.argmax(axis=1), new.argmax(axis=1)  # (B, N)
    inside = np.where((before != 0) | (after != 0), moved, 0.0)
    switched = (before != after).sum(axis=1) / max(1, before.shape[1])
    return Change(moved.max(axis=1, initial=0.0), inside.max(axis=1, initial=0.0), switched)


def fixed_point(p: NDArray[Any]) -> NDArray[np.int64]:
    """Return marginals as whole numbers of 2⁻³⁰, whose sums do not depend on their order."""
    return np.rint(p * float(1 << FRACTION_BITS)).astype(np.int64)


def count_votes(labels: NDArray[np.uint8], counts: NDArray[np.uint32]) -> NDArray[np.int64]:
    """Add label maps (B, N) to ``counts`` (L, N); return their sizes in voxels, (B, L)."""
    sizes = np.empty((len(labels), len(counts)), dtype=np.int64)
    for l in range(len(counts)):
        given = labels == l  # (B, N)
        counts[l] += given.sum(axis=0, dtype=np.uint32)
        sizes[:, l] = np.count_nonzero(given, axis=1)
    return sizes


class Updates(Protocol):
    """What can be updated: the problems of a solver, or a restricted problem."""

    def step(
        self,
        update: Update = "parallel",
        damping: float = 0.0,
        *,
        sharpness: float = 1.0,
        watched: bool = True,
    ) -> Change:
        """Update every marginal of every problem once; Q ← (1 − damping)·new + damping·old.

        Damping below 0 goes beyond the new marginals, which weakly coupled problems reach sooner
        by it. New marginals are softmax(sharpness·logits); the convergent update knows no
        sharpness. A step that is not ``watched`` may leave the labels as they were and report no
        change.
        """


class Solver(Updates, Protocol):
    """The kernels of one CRF, ready to solve batches of problems that differ in their unaries.

    N counts the voxels inside the mask, in the order of ``DenseCRF.energies``; whatever order an
    engine works in stays inside it. L is the number of labels.

    Examples
    --------
    >>> crf = pm.DenseCRF(pm.unary_from_logits([[1.0, 0.0], [0.0, 0.0]]))
    >>> solver = pm.prepare(crf, engine="reference", batch=1)
    >>> solver.load(crf.energies[np.newaxis])  # (problems, labels, voxels)
    >>> solver.marginals().round(3)
    array([[[0.731, 0.5  ],
            [0.269, 0.5  ]]])
    """

    engine: str
    accuracy: str
    centre: NDArray[np.floating] | None
    """What the updates of a centred CRF take off the unaries: centring·pairwise(P), (L, N).

    ``load`` and ``perturb`` start without it; None where the CRF is not centred.
    """

    @property
    def batch(self) -> int:
        """The most problems that ``load`` and ``perturb`` take at once."""

    @property
    def diagonal(self) -> NDArray[np.floating]:
        """What each voxel would send to itself: Σ_m max|μ_m|·k_m(f_i, f_i), (N,)."""

    def load(self, energies: Problems, marginals: Problems | None = None) -> None:
        """Take (B, L, N) unary energies, B ≤ batch, and start at softmax(−energies).

        ``marginals`` (B, L, N), where given, is the start instead. Problems are taken one by one:
        a sequence that makes each (L, N) array only when asked for saves memory.
        """

    def perturb(
        self,
        perturbation: Perturbation,
        samples: NDArray[np.int64],
        marginals: NDArray[np.floating] | None = None,
        *,
        sharpness: float = 1.0,
    ) -> None:
        """Take the perturbed unaries Ũ of these samples, (B,), and start at softmax(−sharpness·Ũ).

        ``marginals`` (L, N), where given, are the start of every sample instead.
        """

    def conditional(self, chosen: NDArray[np.bool_] | None = None) -> NDArray[np.int64]:
        """Return the sum of softmax(−U − pairwise) over problems, in 2⁻³⁰, (L, N).

        It is for perturbed problems: U without the noise of each voxel, and the
        pairwise energies of the current Q. ``chosen`` (B,) takes some of the problems.
        """

    def marginals(self) -> NDArray[np.floating]:
        """Return the current Q, (B, L, N)."""

    def labels(self) -> NDArray[np.uint8]:
        """Return the most probable label of every voxel, (B, N)."""

    def count_votes(
        self, counts: NDArray[np.uint32], chosen: NDArray[np.bool_] | None = None
    ) -> NDArray[np.int64]:
        """Add every problem's labels to ``counts`` (L, N); return their sizes in voxels, (B, L).

        ``chosen`` (B,) adds those of some problems only; the sizes are those of all. An engine may
        wait with adding until every problem has been chosen once.
        """

    def pairwise(self) -> NDArray[np.floating]:
        """Return Σ_m Σ_l' μ_m(l, l') Σ_j k_m(f_i, f_j) Q_j(l') for the current Q, (B, L, N).

        The sum leaves out j = i unless the CRF keeps its self term.
        """


@runtime_checkable
class NarrowingSolver(Protocol):
    """A solver for which fewer problems are less work."""

    def drop_converged(self, going: NDArray[np.bool_]) -> bool:
        """Drop all but some of the problems, (B,); return whether that was done.

        Those that go on stay in their order, and nothing else about them changes.
        """


@runtime_checkable
class ReweighingSolver(Protocol):
    """A solver whose kernels may get other weights."""

    def reweigh(self, crf: DenseCRF) -> bool:
        """Go on with the CRF that ``DenseCRF.scale_kernels`` makes; return whether that was done.

        A power of two keeps all bits what they would be if the kernels were prepared anew; other
        factors are refused.
        """


class RestrictedProblem(Updates, Protocol):
    """B problems at A voxels; the other voxels stay as they were.

    With Q₀ = softmax(sharpness·base) an update is x = base − pairwise(Q − Q₀) among these voxels,
    Q = softmax(sharpness·x): where no label is fixed nothing moves, even if Q₀ had not converged.
    """

    def load(
        self, base: NDArray[np.float16], fixed: NDArray[np.int16], *, sharpness: float = 1.0
    ) -> None:
        """Take log-odds (A, L − 1, B), start at Q₀, with the labels ``fixed`` (A,) or FREE."""

    def marginals(self) -> NDArray[np.floating]:
        """Return the current Q, (B, L, A)."""


@runtime_checkable
class FreezingSolver(Solver, Protocol):
    """A solver that can update some voxels while the others send a constant message."""

    def freeze(self, frozen: FrozenVoxels | None) -> None:
        """Update only active voxels of the problems that ``perturb`` takes from now on.

        None takes every voxel again; ``load`` always does. Frozen voxels still get labels and
        conditional marginals, by their own noise and the averaged energies. The problems that the
        solver has now may be lost.
        """

    def forget_whole(self) -> None:
        """Let go of what only problems without frozen voxels need.

        Until the solver is prepared anew it can be asked for nothing but samples that freeze
        what was frozen last.
        """

    def find_near(
        self,
        perturbation: Perturbation,
        samples: NDArray[np.int64],
        pairwise: NDArray[np.float32],
        nats: float,
    ) -> NDArray[np.bool_]:
        """Return which voxels come near to another label in any of some samples (S,), (N,).

        Without noise, and with the same ``pairwise`` energies (L, N) in all samples, a voxel has a
        most probable label. It is near to another one where the noise of a sample leaves less than
        so many nats between them.
        """

    def restrict(self, voxels: NDArray[np.int64]) -> RestrictedProblem:
        """Return problems of these voxels alone, (A,), rising.

        Neither this nor what it returns touches the problems that are loaded.
        """

    def log_odds(self, voxels: NDArray[np.int64]) -> NDArray[np.float16]:
        """Return log Q_l − log Q_0 of the current Q at some active voxels, (V, L − 1, B)."""

    def reach(
        self, voxels: NDArray[np.int64], changes: NDArray[np.floating]
    ) -> NDArray[np.floating]:
        """Return the pairwise energies (L, N) that changes of marginals (L, V) at voxels add."""


def to_log_odds(marginals: NDArray[Any]) -> NDArray[np.float16]:
    """Return marginals (V, L, B) as log-odds against label 0's, (V, L − 1, B)."""
    logs = np.log(np.maximum(marginals, LEAST_MARGINAL))
    return (logs[:, 1:] - logs[:, :1]).astype(np.float16)
