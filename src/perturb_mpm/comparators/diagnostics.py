"""Whether chains have mixed, and how many independent draws they are worth.

Split R-hat and effective sample size as in Gelman et al., Bayesian Data Analysis (3rd ed.,
11.4–11.5), without the rank normalisation of later work: the quantities watched here are bounded.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

FEWEST_DRAWS = 4


def split_r_hat(draws: NDArray[np.floating]) -> float:
    """Return R-hat of (chains, n) draws, each chain cut in two halves.

    1 where all halves agree, and where nothing ever changes; infinite where chains stand still at
    different values; NaN with fewer than 4 draws a chain.
    """
    if draws.shape[1] < FEWEST_DRAWS:
        return np.nan
    halves = _halves(draws)  # (2M, n)
    n = halves.shape[1]
    within = halves.var(axis=1, ddof=1).mean()
    between = halves.mean(axis=1).var(ddof=1)
    if within == 0:
        return 1.0 if between == 0 else np.inf
    return float(np.sqrt((n - 1) / n + between / within))


def effective_samples(draws: NDArray[np.floating]) -> float:
    """Return how many independent draws have the information of (chains, n) draws.

    n / (1 + 2 Σ ρ_t), with the autocorrelations ρ_t of all halves pooled and the sum cut where
    two in a row stop being positive (Geyer 1992). NaN with fewer than 4 draws a chain or where
    nothing ever changes.
    """
    if draws.shape[1] < FEWEST_DRAWS:
        return np.nan
    halves = _halves(draws)  # (2M, n)
    m, n = halves.shape
    covariance = _autocovariance(halves).mean(axis=0)  # (n,)
    within = covariance[0] * n / (n - 1)
    total = within * (n - 1) / n + halves.mean(axis=1).var(ddof=1)
    if total == 0:
        return np.nan
    correlation = 1 - (within - covariance) / total  # (n,)
    correlation[0] = 1.0
    pairs = correlation[: n - n % 2].reshape(-1, 2).sum(axis=1)  # ρ_0 + ρ_1, ρ_2 + ρ_3, …
    negative = np.flatnonzero(pairs < 0)
    kept = np.minimum.accumulate(pairs[: negative[0] if negative.size else None])
    time = max(2 * kept.sum() - 1, 1 / np.log10(m * n))
    return float(m * n / time)


def _halves(draws: NDArray[np.floating]) -> NDArray[np.float64]:
    half = draws.shape[1] // 2
    return np.concatenate([draws[:, :half], draws[:, -half:]]).astype(np.float64)


def _autocovariance(chains: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return Σ_s (x_s − x̄)(x_{s+t} − x̄) / n for every lag t, (M, n), by FFT."""
    n = chains.shape[1]
    centred = chains - chains.mean(axis=1, keepdims=True)
    spectrum = np.fft.rfft(centred, 2 * n, axis=1)
    sums = np.fft.irfft(np.abs(spectrum) ** 2, 2 * n, axis=1)[:, :n]
    means: NDArray[np.float64] = sums / n
    return means
