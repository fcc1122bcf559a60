"""Several predictions of one case (folds, dropout samples): their mean, and where they disagree."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from perturb_mpm.posterior import marginal_entropy


@dataclass(frozen=True, eq=False)
class EnsembleMaps:
    """What M members say beside their mean, which is the case's probabilities."""

    count: int  # M
    mutual_information: NDArray[np.float32]  # (X, Y, Z) bits, 0 … log2 min(M, L)
    """The entropy of the mean less the mean of the entropies: what the members disagree about."""
    members: NDArray[np.float32] | None = None  # (M, L, X, Y, Z), where each is kept


def combined(
    distributions: Iterable[NDArray[np.float32]], *, keep: bool = False
) -> tuple[NDArray[np.float32], EnsembleMaps | None]:
    """Return the mean of distributions (L, X, Y, Z), and how they differ where there are several.

    They are taken one by one; ``keep`` keeps each of them.
    """
    kept: list[NDArray[np.float32]] = []
    count = 0
    for distribution in distributions:
        if count == 0:
            first, total = distribution, distribution.astype(np.float64)
            entropy = np.zeros(distribution.shape[1:])
        else:
            total += distribution
        entropy += _bits(distribution)
        kept += [distribution] if keep else []
        count += 1
    if count == 1:
        return first, None
    total /= count
    mean = total.astype(np.float32)
    information = np.maximum(_bits(total) - entropy / count, 0).astype(np.float32)
    return mean, EnsembleMaps(count, information, np.stack(kept) if keep else None)


def _bits(distribution: NDArray[np.floating]) -> NDArray[np.float64]:
    """Return the entropy (X, Y, Z) in bits of a distribution (L, X, Y, Z)."""
    flat = distribution.reshape(len(distribution), -1)
    return marginal_entropy(flat.astype(np.float64)).reshape(distribution.shape[1:])
