"""Choosing the lattice's scale and gain by comparing it with rows of the exact kernel.

``engines/lattice/blur.py`` says why, and on which part of the image.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from perturb_mpm.engines.cpu.chain import Filter, factorize, row_sums, slice_rows
from perturb_mpm.engines.cpu.exact import exact_rows
from perturb_mpm.engines.cpu.lattice import Lattice, build
from perturb_mpm.engines.cpu.store import NO_STORE, KernelStore
from perturb_mpm.engines.cpu.threads import Threads
from perturb_mpm.engines.lattice import (
    CALIBRATION_SCALES,
    CALIBRATION_VOXELS,
    Blur,
    calibration_rows,
)


def calibrated_scale(
    features: NDArray[np.float32],
    marginals: NDArray[np.float32],
    blur: Blur,
    threads: Threads,
    store: KernelStore = NO_STORE,
) -> Blur:
    """Return the blur with the scale that filters (N, L) marginals best.

    The error is that of K·Q / K·1 at random voxels of the part.
    """
    part = calibration_part(1 - marginals[:, 0])
    features, values = features[part], np.ascontiguousarray(marginals[part])
    candidates = [replace(blur, scale=scale) for scale in CALIBRATION_SCALES]

    def best() -> int:
        queries = calibration_rows(len(features))
        with_ones = np.concatenate([values, np.ones((len(values), 1), dtype=np.float32)], axis=1)
        exact = exact_rows(features, queries, with_ones, threads)
        wanted = exact[:, :-1] / exact[:, -1:]
        one = Threads(1)  # small lattices are sooner done side by side than each by all threads

        def error(candidate: Blur) -> float:
            lattice_filter = _filter_at(queries, features, candidate, one, store)
            found = _apply_filter(values, lattice_filter, one)
            return float(np.mean((found - wanted) ** 2))

        return int(np.argmin(threads.each(error, candidates)))

    return candidates[store.choice(best, len(candidates), features, values, blur)]


def calibrated_gain(features: NDArray[np.float32], lattice: Lattice, threads: Threads) -> float:
    """Return the factor that makes the lattice's row sums those of the exact kernel on average."""
    queries = calibration_rows(len(features))
    ones = np.ones((len(features), 1), dtype=np.float32)
    exact = exact_rows(features, queries, ones, threads)
    return float(exact.sum() / row_sums(lattice, threads)[queries].sum())


def calibration_part(foreground: NDArray[np.float32]) -> slice:
    """Return the run of voxels, consecutive in the engine's order, with most foreground."""
    size = min(CALIBRATION_VOXELS, len(foreground))
    sums = np.concatenate([[0.0], np.cumsum(foreground, dtype=np.float64)])
    start = int(np.argmax(sums[size:] - sums[: len(sums) - size]))
    return slice(start, start + size)


def _filter_at(
    queries: NDArray[np.int64],
    features: NDArray[np.float32],
    blur: Blur,
    threads: Threads,
    store: KernelStore,
) -> Filter:
    """Return the lattice's K / K·1, read at the queries alone."""

    def make() -> Filter:
        whole = factorize(build(features, blur, threads), "after", 1.0, threads)
        read = ("columns", "coefficients", "total", "diagonal")
        return replace(whole, **{part: getattr(whole, part)[queries] for part in read})

    return store.filter(make, len(features), len(queries), "calibration", features, blur)


def _apply_filter(
    values: NDArray[np.float32], lattice_filter: Filter, threads: Threads
) -> NDArray[np.float32]:
    """Return what (N, L) values become where the filter is read."""
    target, spare = np.empty((2, lattice_filter.rows, values.shape[1]), dtype=np.float32)
    lattice_filter.apply(values, target, spare, threads)
    return slice_rows(lattice_filter, target, threads)
