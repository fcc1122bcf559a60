"""Failure detection: whether confidence in an image tells where its segmentation is poor."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from perturb_mpm import checks


@dataclass(frozen=True)
class RiskCoverage:
    """The mean risk of the k most confident cases, for k = 1 … n."""

    coverage: NDArray[np.float64]  # (n,) k/n
    risk: NDArray[np.float64]  # (n,)
    best: float
    """The AURC that the true order of risks would reach."""

    @property
    def aurc(self) -> float:
        """The mean of the curve: lower is better."""
        return float(self.risk.mean())

    @property
    def excess(self) -> float:
        """e-AURC: how far it is from the best order."""
        return self.aurc - self.best


def risk_coverage(confidence: ArrayLike, risk: ArrayLike) -> RiskCoverage:
    """Return the risk–coverage curve; ``risk`` is 1 − Dice, say (Zenk et al. 2025).

    Cases of equal confidence count with their mean risk: the mean over all orders of them.
    """
    kappa = checks.floats(confidence, "confidence").astype(np.float64)
    loss = checks.floats(risk, "risk").astype(np.float64)
    if kappa.ndim != 1 or kappa.shape != loss.shape or len(loss) == 0:
        raise ValueError(
            "confidence and risk must be lists of the same length, at least 1, "
            f"got shapes {kappa.shape} and {loss.shape}"
        )
    number = np.arange(1, len(loss) + 1)
    _, group = np.unique(-kappa, return_inverse=True)
    shared = (np.bincount(group, weights=loss) / np.bincount(group))[group]
    ordered = shared[np.argsort(-kappa, kind="stable")]
    curve = np.cumsum(ordered) / number
    best = np.cumsum(np.sort(loss)) / number
    return RiskCoverage(number / len(loss), curve, float(best.mean()))
