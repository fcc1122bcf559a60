"""One labelled volume as learning sees it: energies, features and truth of its voxels in play."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from perturb_mpm import checks
from perturb_mpm.engines import softmax
from perturb_mpm.engines.lattice import morton_order
from perturb_mpm.learning.kernel_filters import FilterMaker, KernelFilter
from perturb_mpm.learning.parameters import KernelShape, ParameterLayout, Parameters
from perturb_mpm.model import BilateralKernel, DenseCRF, FeatureKernel, Normalization, PairwiseTerm


@dataclass(eq=False)
class LearnedKernel:
    """One kernel of a volume: its features at the start, and its filter at the present bandwidths.

    The filter is made again only when the bandwidths change.
    """

    features: NDArray[np.float64]  # (N, d), in units of the start's sigma
    shape: KernelShape
    normalization: Normalization
    compatibility: NDArray[np.float64]  # (L, L), with the start's weight
    weight: float
    scale: float
    _made: tuple[dict[str, float], KernelFilter] | None = field(default=None, repr=False)

    def at(self, factors: dict[str, float], maker: FilterMaker) -> KernelFilter:
        """Return the filter with every group's sigma multiplied by its factor."""
        if self._made is None or self._made[0] != factors:
            self._made = None  # the old one is given back first
            made = maker.make(self.scaled_features(factors), self.normalization, self.scale)
            self._made = (dict(factors), made)
        return self._made[1]

    def scaled_features(self, factors: dict[str, float]) -> NDArray[np.float64]:
        """Return the features in units of the present sigma, (N, d)."""
        scaled = self.features.copy()
        for name, columns in self.shape.groups.items():
            scaled[:, columns] /= factors[name]
        return scaled

    def matrix(self, parameters: Parameters, place: int) -> NDArray[np.float64]:
        """Return μ of the kernel, which is the CRF's ``place``-th, (L, L)."""
        change = parameters.kernels[place]
        start = self.compatibility + self.weight * change.compatibility_change
        return change.weight_factor * start


@dataclass(eq=False)
class Problem:
    """The voxels of one volume, in an order that keeps neighbours close."""

    energies: NDArray[Any]  # (N, L)
    truth: NDArray[np.int64]  # (N,)
    kernels: list[LearnedKernel]
    maker: FilterMaker
    self_term: bool
    centring: float = 0.0

    @property
    def n_labels(self) -> int:
        """L, the number of labels."""
        return int(self.energies.shape[1])

    @property
    def layout(self) -> ParameterLayout:
        """Where its parameters stand in a vector."""
        return ParameterLayout(self.n_labels, tuple(kernel.shape for kernel in self.kernels))


def make_problem(
    crf: DenseCRF, truth: ArrayLike, maker: FilterMaker, crop_mm: float | None
) -> Problem:
    """Return the problem of a CRF and its true labels (*spatial).

    With ``crop_mm`` only the voxels within so many mm of foreground are in play, be it true or the
    most probable by the unaries; of a volume without any the whole is.
    """
    if crf.centring > 0 and crf.prior is not crf.energies:
        raise ValueError("crf must be centred on its own energies to be learned, got others")
    x = true_labels(crf, truth)  # (N,)
    order = morton_order(crf.grid)
    if crop_mm is not None:
        order = order[_near_foreground(crf, x, crop_mm)[order]]
    dtype = np.float64 if maker.accuracy is None else np.float32
    energies: NDArray[np.floating] = np.ascontiguousarray(crf.energies.T[order], dtype=dtype)
    marginals = softmax(-energies)
    kernels = [_learned_kernel(term, order, maker, marginals) for term in crf.terms]
    return Problem(energies, x[order], kernels, maker, crf.self_term, crf.centring)


def true_labels(crf: DenseCRF, truth: ArrayLike) -> NDArray[np.int64]:
    """Return the true labels inside the mask, (N,), after checking them."""
    whole = checks.whole(truth, "truths")
    if whole.shape != crf.shape:
        raise ValueError(f"truths must have their image's shape {crf.shape}, got {whole.shape}")
    inside: NDArray[np.int64] = crf.grid.gather(whole)
    checks.in_range(inside, "truths", crf.n_labels)
    return inside


def feature_groups(term: PairwiseTerm) -> dict[str, slice]:
    """Return the groups of features that share a bandwidth."""
    if isinstance(term.kernel, BilateralKernel):
        ndim = term.grid.ndim
        return {"space": slice(0, ndim), "intensity": slice(ndim, None)}
    return {"features" if isinstance(term.kernel, FeatureKernel) else "space": slice(None)}


def same_layout(problems: Sequence[Problem]) -> ParameterLayout:
    """Return the layout that all problems share."""
    layout = problems[0].layout
    for place, problem in enumerate(problems):
        if problem.layout != layout:
            raise ValueError(
                "crfs must all have the same labels and kinds of kernels, "
                f"got others for number {place} than for number 0"
            )
    return layout


def _learned_kernel(
    term: PairwiseTerm, order: NDArray[np.int64], maker: FilterMaker, marginals: NDArray[Any]
) -> LearnedKernel:
    features = term.features()[order]
    return LearnedKernel(
        features=features,
        shape=KernelShape(feature_groups(term)),
        normalization=term.normalization,
        compatibility=np.array(term.compatibility),
        weight=term.kernel.weight,
        scale=maker.scale(features, marginals),
    )


def _near_foreground(crf: DenseCRF, x: NDArray[np.int64], margin_mm: float) -> NDArray[np.bool_]:
    """Return which voxels inside the mask are near true or likely foreground, (N,)."""
    from scipy.ndimage import distance_transform_edt

    foreground = (x != 0) | (crf.energies.argmin(axis=0) != 0)
    if not foreground.any():
        return np.ones(len(x), dtype=bool)
    outside = crf.grid.scatter(~foreground, outside=True)  # (*spatial)
    away = crf.grid.gather(distance_transform_edt(outside, sampling=crf.grid.spacing))
    near: NDArray[np.bool_] = away <= margin_mm
    return near
