"""What learning maximises: how well the marginals Q of labelled volumes agree with their truth.

An objective is a function of sums over voxels, so that volumes can be pooled: the sums of all
volumes are added, and only then the value is taken. Where volumes count alike, whatever their
size, what is added is the value of each. Every objective is larger where it is better.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from perturb_mpm import checks

ObjectiveName = Literal["iou", "mean_iou", "log_likelihood", "both", "hamming"]

# A marginal below this counts as this in a logarithm.
SMALLEST_MARGINAL = 1e-12


class Objective(ABC):
    """A value made of sums over the voxels of all volumes.

    ``q`` is (N, L), ``truth`` is (N,) with values 0 … L − 1.
    """

    name: ObjectiveName

    @abstractmethod
    def sums(self, q: NDArray[Any], truth: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return the sums of one volume; those of several volumes are added."""

    @abstractmethod
    def value(self, sums: NDArray[np.float64]) -> float:
        """Return the objective of the sums of all volumes."""

    @abstractmethod
    def gradient(
        self, q: NDArray[Any], truth: NDArray[np.int64], sums: NDArray[np.float64]
    ) -> NDArray[Any]:
        """Return d value / d q of one volume, (N, L), given the sums of all volumes."""


class IntersectionOverUnion(Objective):
    """The mean over labels of the expected intersection over the expected union.

    I_l = Σ_{g_i = l} Q_i(l) and U_l = |{g_i = l}| + Σ_{g_i ≠ l} Q_i(l); labels that no volume has
    do not count.
    """

    name: ObjectiveName = "iou"

    def sums(self, q: NDArray[Any], truth: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return (3, L): voxels of the label, Σ Q over them, Σ Q over all voxels."""
        n_labels = q.shape[1]
        own = np.take_along_axis(q, truth[:, np.newaxis], axis=1)[:, 0]
        return np.stack(
            [
                np.bincount(truth, minlength=n_labels).astype(np.float64),
                np.bincount(truth, weights=own, minlength=n_labels),
                q.sum(axis=0, dtype=np.float64),
            ]
        )

    def value(self, sums: NDArray[np.float64]) -> float:
        """Return the mean over the labels that are present."""
        return float(np.nanmean(self.by_label(sums)))

    def by_label(self, sums: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return I_l / U_l, (L,); NaN for a label that no volume has."""
        size, inside, everywhere = sums
        with np.errstate(invalid="ignore"):
            ratio: NDArray[np.float64] = inside / (size + everywhere - inside)
        return np.where(size > 0, ratio, np.nan)

    def gradient(
        self, q: NDArray[Any], truth: NDArray[np.int64], sums: NDArray[np.float64]
    ) -> NDArray[Any]:
        """Return 1 / U_l where the truth is l and −I_l / U_l² elsewhere, over the labels' count."""
        size, inside, everywhere = sums
        present = size > 0
        union = np.where(present, size + everywhere - inside, 1.0)
        here = np.where(present, 1.0 / union, 0.0) / present.sum()  # (L,)
        there = np.where(present, -inside / union**2, 0.0) / present.sum()  # (L,)
        gradient = np.empty_like(q)
        gradient[:] = there
        gradient[np.arange(len(q)), truth] = here[truth]
        return gradient


class MeanObjective(Objective):
    """A mean: the sums are (2,), how many there are and their sum."""

    def value(self, sums: NDArray[np.float64]) -> float:
        """Return the mean."""
        return float(sums[1] / sums[0])


class MeanIntersectionOverUnion(MeanObjective):
    """The mean over volumes of the overlap of each: a small tumour counts like a large one."""

    name: ObjectiveName = "mean_iou"
    _single = IntersectionOverUnion()

    def sums(self, q: NDArray[Any], truth: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return (2,): volumes, Σ overlap."""
        return np.array([1.0, self._single.value(self._single.sums(q, truth))])

    def gradient(
        self, q: NDArray[Any], truth: NDArray[np.int64], sums: NDArray[np.float64]
    ) -> NDArray[Any]:
        """Return the gradient of the volume's own overlap, over the volumes' count."""
        own: NDArray[Any] = self._single.gradient(q, truth, self._single.sums(q, truth))
        own /= sums[0]
        return own


class Hamming(MeanObjective):
    """The mean of Q_i(g_i) over voxels: the expected share of voxels that are right."""

    name: ObjectiveName = "hamming"

    def transform(self, own: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any] | float]:
        """Return a function of the true label's marginals (N,), and 1 over its derivative."""
        return own, 1.0

    def sums(self, q: NDArray[Any], truth: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return (2,): voxels, and the function summed over them."""
        own = np.take_along_axis(q, truth[:, np.newaxis], axis=1)
        return np.array([float(len(truth)), self.transform(own)[0].sum(dtype=np.float64)])

    def gradient(
        self, q: NDArray[Any], truth: NDArray[np.int64], sums: NDArray[np.float64]
    ) -> NDArray[Any]:
        """Return the derivative over N at the true label, 0 elsewhere."""
        gradient = np.zeros_like(q)
        own = np.arange(len(q)), truth
        gradient[own] = 1.0 / (sums[0] * self.transform(q[own])[1])
        return gradient


class LogLikelihood(Hamming):
    """The mean of log Q_i(g_i) over voxels, in nats."""

    name: ObjectiveName = "log_likelihood"

    def transform(self, own: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any] | float]:
        """Return the logarithm of marginals (N,), and 1 over its derivative: themselves."""
        positive = np.maximum(own, SMALLEST_MARGINAL)
        return np.log(positive, dtype=np.float64), positive


class Both(Objective):
    """The mean overlap of volumes plus the log-likelihood: right labels, honest confidence."""

    name: ObjectiveName = "both"
    _overlap = MeanIntersectionOverUnion()
    _likelihood = LogLikelihood()

    def sums(self, q: NDArray[Any], truth: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return (2, 2): the sums of overlap, and those of likelihood."""
        return np.stack([self._overlap.sums(q, truth), self._likelihood.sums(q, truth)])

    def value(self, sums: NDArray[np.float64]) -> float:
        """Return the sum of the two."""
        return self._overlap.value(sums[0]) + self._likelihood.value(sums[1])

    def gradient(
        self, q: NDArray[Any], truth: NDArray[np.int64], sums: NDArray[np.float64]
    ) -> NDArray[Any]:
        """Return the sum of the two gradients."""
        gradient: NDArray[Any] = self._overlap.gradient(q, truth, sums[0])
        gradient += self._likelihood.gradient(q, truth, sums[1])
        return gradient


OBJECTIVES: dict[str, Objective] = {
    objective.name: objective
    for objective in (
        *(IntersectionOverUnion(), MeanIntersectionOverUnion(), LogLikelihood(), Both()),
        Hamming(),
    )
}


def find_objective(name: object) -> Objective:
    """Return the objective of a name."""
    checks.choice(name, "objective", list(OBJECTIVES))
    return OBJECTIVES[str(name)]
