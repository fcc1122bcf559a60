"""pydensecrf's dense CRF on our CPU engine, with its own filter (``accuracy="plain"``).

Where pydensecrf's energies have −w·(K Q) for a number w, ours have +w·(K·1 − K Q): the difference
is the same for all labels of a voxel and changes no marginal. ``klDivergence`` takes it out again.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import replace
from enum import IntEnum
from numbers import Number
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from perturb_mpm import model
from perturb_mpm.compat.pydensecrf.eigen import float32_array
from perturb_mpm.engines import AccuracyWarning, Solver, prepare

if TYPE_CHECKING:
    from perturb_mpm.model import Normalization
    from perturb_mpm.posterior import Posterior

__all__ = [
    "CONST_KERNEL",
    "ConstUnary",
    "DIAG_KERNEL",
    "DenseCRF",
    "DenseCRF2D",
    "FULL_KERNEL",
    "KernelType",
    "LogisticUnary",
    "NORMALIZE_AFTER",
    "NORMALIZE_BEFORE",
    "NORMALIZE_SYMMETRIC",
    "NO_NORMALIZATION",
    "NormalizationType",
    "Unary",
]


class KernelType(IntEnum):
    """How a kernel would be learned; inference does not depend on it."""

    CONST_KERNEL = 0
    DIAG_KERNEL = 1
    FULL_KERNEL = 2


class NormalizationType(IntEnum):
    """On which side of the kernel its row sums are divided out."""

    NO_NORMALIZATION = 0
    NORMALIZE_BEFORE = 1
    NORMALIZE_AFTER = 2
    NORMALIZE_SYMMETRIC = 3


CONST_KERNEL, DIAG_KERNEL, FULL_KERNEL = KernelType
NO_NORMALIZATION, NORMALIZE_BEFORE, NORMALIZE_AFTER, NORMALIZE_SYMMETRIC = NormalizationType

_NORMALIZATIONS: dict[NormalizationType, Normalization] = {
    NO_NORMALIZATION: "none",
    NORMALIZE_BEFORE: "before",
    NORMALIZE_AFTER: "after",
    NORMALIZE_SYMMETRIC: "symmetric",
}
_CEILING = np.float32(1e4)  # nats above a voxel's lowest energy: forbidden for any kernel
_SMALLEST = 1e-20  # of a marginal in a logarithm


class Unary:
    """Unary energies (L, N)."""

    energies: NDArray[np.float32]


class ConstUnary(Unary):
    """Energies as they are given, (L, N)."""

    def __init__(self, u: Any) -> None:  # noqa: ANN401
        self.energies = float32_array(u, "u", 2)


class LogisticUnary(Unary):
    """Energies that are linear in features: ``L`` (labels, d) times ``f`` (d, N)."""

    def __init__(self, L: Any, f: Any) -> None:  # noqa: ANN401
        weights, features = float32_array(L, "L", 2), float32_array(f, "f", 2)
        if weights.shape[1] != features.shape[0]:
            raise ValueError(
                f"`f` must have {weights.shape[1]} rows, one for each column of `L`, "
                f"got shape {features.shape}"
            )
        self.energies = weights @ features


Compatibility = float | NDArray[np.floating]  # w of −w·(K Q), or a symmetric matrix (L, L)


class PyDenseCRF:
    """``DenseCRF(nvar, nlabels)``: a CRF over ``nvar`` variables, features given as matrices."""

    def __init__(self, nvar: int, nlabels: int) -> None:
        self._start(int(nvar), int(nlabels), (int(nvar),))

    def _start(self, nvar: int, nlabels: int, shape: tuple[int, ...]) -> None:
        if nvar < 1 or nlabels < 1:
            raise ValueError(f"`nvar` and `nlabels` must be at least 1, got {nvar} and {nlabels}")
        self._nvar, self._nlabel, self._shape = nvar, nlabels, shape
        self._energies: NDArray[np.float32] | None = None
        self._kernels: list[model.FeatureKernel] = []
        self._solver: Solver | None = None
        self._at: NDArray[np.float32] | None = None  # the marginals that the solver stands at

    def setUnary(self, u: Unary) -> None:
        """Take the energies of a ``ConstUnary`` or ``LogisticUnary``."""
        if not isinstance(u, Unary):
            raise TypeError(f"`u` must be a ConstUnary or LogisticUnary, got {type(u).__name__}")
        self._set_energies(u.energies)

    def setUnaryEnergy(self, u: Any, f: Any = None) -> None:  # noqa: ANN401
        """Take float32 energies (nlabels, nvar), or with ``f`` those of a ``LogisticUnary``."""
        self._set_energies((ConstUnary(u) if f is None else LogisticUnary(u, f)).energies)

    def addPairwiseEnergy(
        self,
        features: Any,  # noqa: ANN401
        compat: Any,  # noqa: ANN401
        kernel: int = DIAG_KERNEL,
        normalization: int = NORMALIZE_SYMMETRIC,
    ) -> None:
        """Add a Gaussian kernel on float32 features (d, nvar) that are divided by their sigmas."""
        matrix = float32_array(features, "features", 2)
        if matrix.shape[1] != self._nvar:
            raise ValueError(
                f"`features` must have the shape (?, {self._nvar}), got {matrix.shape}"
            )
        self._add(matrix, compat, kernel, normalization)

    def inference(self, niter: int) -> NDArray[np.float32]:
        """Return the marginals (nlabels, nvar) after ``niter`` updates from softmax(−energies)."""
        count = int(niter)
        if self._nlabel == 1:
            return np.ones((1, self._nvar), np.float32, order="F")
        solver = self._ready()
        solver.load(self._unary()[np.newaxis])
        for _ in range(count):
            solver.step(watched=False)
        self._at = None
        return _marginals(solver)

    def map(self, niter: int) -> NDArray[np.int16]:
        """Return the most probable labels (nvar,) after ``niter`` updates."""
        return self.inference(niter).argmax(axis=0).astype(np.int16)

    def startInference(
        self,
    ) -> tuple[NDArray[np.float32], NDArray[np.float32], NDArray[np.float32]]:
        """Return the marginals to start at, and two arrays that ``stepInference`` asks for."""
        spare = np.zeros((0, 0), np.float32), np.zeros((0, 0), np.float32)
        if self._energies is None:
            return np.zeros((self._nlabel, self._nvar), np.float32, order="F"), *spare
        start = self.inference(0)
        self._at = start.copy(order="K")
        return start, *spare

    def stepInference(
        self,
        Q: NDArray[np.float32],
        tmp1: object = None,  # noqa: ARG002 - the other library wants them
        tmp2: object = None,  # noqa: ARG002
    ) -> None:
        """Update the marginals ``Q`` (nlabels, nvar) once, in place."""
        self._check_marginals(Q)
        if self._nlabel == 1:
            Q[...] = 1
            return
        solver = self._ready()
        if self._at is None or not np.array_equal(Q, self._at):
            solver.load(self._unary()[np.newaxis], Q[np.newaxis])
        solver.step(watched=False)
        self._at = _marginals(solver)
        Q[...] = self._at

    def klDivergence(self, Q: NDArray[np.float32]) -> float:
        """Return Σ Q log Q + Σ Q·energies + Σ Q·pairwise(Q): its pairwise term without the ½."""
        self._check_marginals(Q)
        wide = np.asarray(Q, dtype=np.float64)
        total = float((wide * np.log(np.maximum(wide, _SMALLEST))).sum())
        energies = self._unary()
        total += float((wide * energies).sum())
        if self._kernels and self._nlabel > 1:
            solver = self._ready()
            solver.load(energies[np.newaxis], Q[np.newaxis])
            total += float((wide * solver.pairwise()[0]).sum())
            if self._all_potts:
                # With all variables at label 0 the pairwise energy of label 1 is w·(K·1).
                first = np.zeros((1, self._nlabel, self._nvar), np.float32)
                first[0, 0] = 1
                solver.load(energies[np.newaxis], first)
                total -= float((wide.sum(axis=0) * solver.pairwise()[0][1]).sum())
            self._at = None
        return total

    def sample(self, n: int, seed: int = 0, niter: int = 10) -> Posterior:
        """Return ``n`` segmentations sampled by Perturb-and-MPM, counted: beyond pydensecrf.

        ``.labels``, ``.entropy`` in bits and ``.marginals`` have the shape (h, w) of a DenseCRF2D,
        (nvar,) of a DenseCRF. The same seed gives the same samples.
        """
        from perturb_mpm.sampling import sample

        crf = self._crf(self._unary())
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", AccuracyWarning)  # pydensecrf's own filter is wanted
            return sample(crf, n, seed, iterations=niter, engine="cpu", accuracy="plain")

    @property
    def _all_potts(self) -> bool:
        """Whether all kernels are w·(K·1 − K Q), w ≥ 0: what is quickest."""
        return all(kernel.compatibility is None for kernel in self._kernels)

    def _set_energies(self, energies: NDArray[np.float32]) -> None:
        wanted = (self._nlabel, self._nvar)
        if energies.shape != wanted:
            raise ValueError(f"unary energies must have the shape {wanted}, got {energies.shape}")
        self._energies = _without_infinity(energies)
        self._at = None

    def _unary(self) -> NDArray[np.float32]:
        if self._energies is None:
            return np.zeros((self._nlabel, self._nvar), np.float32)
        return self._energies

    def _add(
        self, features: NDArray[np.float32], compat: object, kernel: int, normalization: int
    ) -> None:
        KernelType(kernel)  # refuses what is none
        norm = _NORMALIZATIONS[NormalizationType(normalization)]
        checked = _compatibility(compat, self._nlabel)
        grid = features.reshape(len(features), *self._shape)
        if isinstance(checked, float) and checked >= 0:
            added = model.FeatureKernel(grid, weight=checked, normalization=norm)
        else:
            matrix = self._matrix(checked) if isinstance(checked, float) else checked
            added = model.FeatureKernel(grid, normalization=norm, compatibility=matrix)
        self._kernels.append(added)
        self._solver = self._at = None

    def _matrix(self, weight: float) -> NDArray[np.floating]:
        return -weight * np.eye(self._nlabel)

    def _crf(self, energies: NDArray[np.float32]) -> model.DenseCRF:
        kernels = self._kernels
        if not self._all_potts:
            kernels = [
                replace(each, weight=1.0, compatibility=self._matrix(each.weight))
                if each.compatibility is None
                else each
                for each in kernels
            ]
        unary = energies.reshape(self._nlabel, *self._shape)
        return model.DenseCRF(unary, kernels, self_term=True)

    def _ready(self) -> Solver:
        """Return the solver of the kernels; unaries are loaded into it, so that it is kept."""
        if self._solver is None:
            nothing = np.zeros((self._nlabel, self._nvar), np.float32)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", AccuracyWarning)
                self._solver = prepare(self._crf(nothing), "cpu", "plain", batch=1)
        return self._solver

    def _check_marginals(self, Q: object) -> None:
        if not isinstance(Q, np.ndarray) or Q.dtype != np.float32:
            raise TypeError(f"`Q` must be the array that startInference gives, got {type(Q)}")
        wanted = (self._nlabel, self._nvar)
        if Q.shape != wanted:
            raise ValueError(f"`Q` must have the shape {wanted}, got {Q.shape}")


class PyDenseCRF2D(PyDenseCRF):
    """``DenseCRF2D(w, h, nlabels)``: a CRF over the pixels of an image, y·w + x their index."""

    def __init__(self, w: int, h: int, nlabels: int) -> None:
        self._w, self._h = int(w), int(h)
        self._start(self._w * self._h, int(nlabels), (self._h, self._w))

    def addPairwiseGaussian(
        self,
        sxy: float | Sequence[float],
        compat: Any,  # noqa: ANN401
        kernel: int = DIAG_KERNEL,
        normalization: int = NORMALIZE_SYMMETRIC,
    ) -> None:
        """Add a kernel on positions; ``sxy`` is its sigma in pixels, or one for x and one for y."""
        self._add(self._positions(sxy), compat, kernel, normalization)

    def addPairwiseBilateral(
        self,
        sxy: float | Sequence[float],
        srgb: float | Sequence[float],
        rgbim: Any,  # noqa: ANN401
        compat: Any,  # noqa: ANN401
        kernel: int = DIAG_KERNEL,
        normalization: int = NORMALIZE_SYMMETRIC,
    ) -> None:
        """Add a kernel on positions and the colours of an image, uint8 (h, w, 3)."""
        if rgbim is None:
            raise TypeError("`rgbim` must be a uint8 image, got None")
        image = np.asarray(rgbim)
        if image.dtype != np.uint8 or image.shape != (self._h, self._w, 3):
            raise ValueError(
                f"`rgbim` must be uint8 of shape {(self._h, self._w, 3)}, got {image.dtype} of "
                f"shape {image.shape}; for other images make features by "
                "utils.create_pairwise_bilateral and add them by addPairwiseEnergy"
            )
        colours = image.reshape(-1, 3).T / _sigmas(srgb, 3, "srgb")[:, np.newaxis]  # (3, N)
        self._add(np.concatenate([self._positions(sxy), colours]), compat, kernel, normalization)

    def _positions(self, sxy: float | Sequence[float]) -> NDArray[np.float32]:
        """Return x / sx and y / sy of every pixel, (2, N)."""
        y, x = np.indices((self._h, self._w), dtype=np.float32)
        sx, sy = _sigmas(sxy, 2, "sxy")
        return np.stack([(x / sx).ravel(), (y / sy).ravel()])


DenseCRF = PyDenseCRF
DenseCRF2D = PyDenseCRF2D


def _marginals(solver: Solver) -> NDArray[np.float32]:
    """Return the solver's marginals (L, N) in column-major order, in which it writes them."""
    return np.asfortranarray(solver.marginals()[0], dtype=np.float32)


def _sigmas(value: float | Sequence[float], count: int, name: str) -> NDArray[np.float32]:
    """Return one sigma for each axis or channel; features are divided by them in float32."""
    each = np.full(count, value) if isinstance(value, Number) else np.asarray(value)
    sigmas = each[:count].astype(np.float32)
    if len(sigmas) < count or not (np.isfinite(sigmas) & (sigmas > 0)).all():
        raise ValueError(f"`{name}` must be one positive number or {count} of them, got {value}")
    return sigmas


def _compatibility(compat: object, labels: int) -> Compatibility:
    """Return a number as it is, and a vector (L,) or matrix (L, L) as a symmetric matrix."""
    if isinstance(compat, Number):
        return float(compat)  # type: ignore[arg-type]
    array = np.asarray(compat)
    if array.ndim not in (1, 2):
        raise ValueError(f"`compat` must be a number, a vector or a matrix, got {array.ndim} axes")
    array = float32_array(array, "compat", array.ndim)
    if array.shape != (labels,) * array.ndim:
        raise ValueError(f"`compat` must have {labels} entries on each axis, got {array.shape}")
    return np.diag(array) if array.ndim == 1 else (array + array.T) / 2


def _without_infinity(energies: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return energies (L, N) in which an infinite one is a ceiling above the voxel's lowest."""
    if np.isfinite(energies).all():
        return np.array(energies, order="C")
    infinite = np.isposinf(energies)
    if not (infinite | np.isfinite(energies)).all():
        raise ValueError("unary energies must not be NaN or −inf, got some that are")
    lowest = np.where(infinite.all(axis=0), 0, energies.min(axis=0))  # (N,)
    return np.where(infinite, lowest + _CEILING, energies).astype(np.float32)
