"""The kernels of a CRF made ready once: filters, stacked slices and compatibilities.

With the chain of sparse matrices C_m of kernel m (``chain.py``) and its slice S_m, K̂_m = S_m·C_m.
The chains end in rows of vertices, which are stacked: one array of R rows serves all kernels. The
slices of kernels that share a compatibility (``engines/lattice.py``) are one group, with the
kernels' weights multiplied into them. A lattice's scale and gain are chosen by comparing it with
rows of the exact kernel: ``engines/lattice.py`` says why, and on which part of the image.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perturb_mpm.engines.compute import REMEDY, require
from perturb_mpm.engines.cpu import row_kernels, transfer
from perturb_mpm.engines.cpu.chain import Filter, factorize, row_sums, slice_rows
from perturb_mpm.engines.cpu.compile import announce_compilation, kernel
from perturb_mpm.engines.cpu.exact import ExactFilter, exact_rows
from perturb_mpm.engines.cpu.lattice import Lattice, build
from perturb_mpm.engines.cpu.layout import Compatibilities, NumberFormat, Slices
from perturb_mpm.engines.cpu.store import NO_STORE, KernelStore
from perturb_mpm.engines.cpu.threads import Threads
from perturb_mpm.engines.lattice import (
    BLURS,
    CALIBRATION_SCALES,
    CALIBRATION_VOXELS,
    Blur,
    KernelGroup,
    against_first_label,
    calibration_rows,
    group_kernels,
    morton_order,
    published_gain,
)
from perturb_mpm.engines.protocol import Accuracy
from perturb_mpm.engines.reference import softmax
from perturb_mpm.model import DenseCRF, PairwiseTerm

# The part of the image that calibration looks at, (P,) voxels, and their marginals, (P, L).
Calibration = tuple[slice, NDArray[np.float32]]

WHOLE_FORMATS: dict[bool, tuple[np.dtype[Any], NumberFormat]] = {
    False: (np.dtype(np.float32), NumberFormat(np.float32(1), np.float32(0), signed=False)),
    True: (np.dtype(np.uint16), NumberFormat(np.float32(65535), np.float32(0.5), signed=False)),
}
"""How marginals are stored, by whether they are compact: type and format."""

DIFFERENCE_FORMATS: dict[bool, tuple[np.dtype[Any], NumberFormat]] = {
    False: WHOLE_FORMATS[False],
    True: (np.dtype(np.int16), NumberFormat(np.float32(32767), np.float32(0), signed=True)),
}
"""The same for differences of marginals, from −1 to 1."""


@dataclass(frozen=True, eq=False)
class PreparedKernels:
    """All kernels of a CRF among V of its voxels, in the engine's order."""

    order: NDArray[np.int64]  # (V,): where each voxel stands in the order of the mask
    filters: Sequence[Filter | ExactFilter]
    slices: Slices
    compatibilities: Compatibilities
    dtype: np.dtype[Any]
    form: NumberFormat
    threads: Threads

    @cached_property
    def starts(self) -> NDArray[np.int64]:
        """Where each kernel's rows start, and where the last one's end."""
        return np.cumsum([0, *(f.rows for f in self.filters)], dtype=np.int64)

    @property
    def rows(self) -> int:
        """How many rows all kernels have, and one more that stays 0: nothing reaches it."""
        return int(self.starts[-1]) + 1

    @cached_property
    def most_rows(self) -> int:
        """The most rows of one kernel."""
        return max((f.rows for f in self.filters), default=0)

    @property
    def compact(self) -> bool:
        """Whether values are in 16 bits."""
        return self.dtype.itemsize == 2

    @property
    def nbytes(self) -> int:
        """The memory that all problems share."""
        arrays: list[NDArray[Any]] = [*self.slices, self.order]
        for f in self.filters:
            if isinstance(f, Filter):
                arrays += [part for stage in f.stages for part in stage]
        return sum(array.nbytes for array in arrays)

    def blur(self, marginals: NDArray[Any], rows: NDArray[Any], spare: NDArray[Any]) -> None:
        """Run stored marginals (V, L−1, B) through every kernel's chain into ``rows``."""
        values = marginals.reshape(len(marginals), rows.shape[1])
        for f, start, stop in zip(self.filters, self.starts[:-1], self.starts[1:], strict=True):
            f.apply(values, rows[start:stop], spare, self.threads)

    def diagonal(self, crf: DenseCRF) -> NDArray[np.float32]:
        """Return what each voxel would send to itself, (N,), in the order of the mask."""
        total = np.zeros(len(self.order), dtype=np.float32)
        for term, f in zip(crf.terms, self.filters, strict=True):
            total[self.order] += np.float32(np.abs(term.compatibility).max()) * f.diagonal
        return total

    def strongest_message(self, crf: DenseCRF) -> float:
        """Return a bound on how far the kernels can move the log-odds of two labels, nats."""
        spans = [np.ptp(term.compatibility) for term in crf.terms]
        return float(sum(s * f.total.max() for s, f in zip(spans, self.filters, strict=True)))


def prepare_kernels(
    crf: DenseCRF,
    accuracy: Accuracy,
    threads: Threads,
    budget: int,
    store: KernelStore,
    *,
    compact: bool,
) -> PreparedKernels:
    """Build the filters of all terms, after checking that there is memory for it."""
    _require_for_build(crf, budget, exact=accuracy == "exact")
    dtype, form = WHOLE_FORMATS[compact]
    maker = _FilterMaker(crf, accuracy, morton_order(crf.grid), threads, store, compact)
    with announce_compilation():
        filters = maker.filters()
        slices, compatibilities = _stack_slices(crf, filters, float(form.unit), threads)
    return PreparedKernels(maker.order, filters, slices, compatibilities, dtype, form, threads)


def _require_for_build(crf: DenseCRF, budget: int, *, exact: bool) -> None:
    """Raise MemoryError where a kernel could not even be built.

    Features are there in float64 and float32; of each corner in a lattice key, weight, number and
    splat.
    """
    n = crf.grid.voxels
    corner = 0 if exact else 8 + 4 + 4 + 4 + 4 + 4
    for term in crf.terms:
        d = term.kernel.dimensions_on(term.grid)
        needed = n * (12 * d + corner * (d + 1)) + n * crf.n_labels * 8
        require(needed, budget, f"building a kernel of {d} features on {n} voxels", REMEDY)


@dataclass(frozen=True)
class _FilterMaker:
    """Makes the filters of one CRF in the engine's order."""

    crf: DenseCRF
    accuracy: Accuracy
    order: NDArray[np.int64]
    threads: Threads
    store: KernelStore
    compact: bool

    def filters(self) -> list[Filter | ExactFilter]:
        """Make the filter of every term."""
        terms = self.crf.terms
        if self.accuracy == "exact":
            return [
                ExactFilter(term.features()[self.order], term.normalization, self.threads)
                for term in terms
            ]
        calibrated = self.accuracy != "plain" and len(terms) > 0
        calibration = self._calibration() if calibrated else None
        # Much of it is done by one core: two kernels side by side leave the other none to wait for.
        with ThreadPoolExecutor(min(2, self.threads.count)) as pool:
            return list(pool.map(lambda term: self._filter(term, calibration), terms))

    def _filter(self, term: PairwiseTerm, calibration: Calibration | None) -> Filter:
        threads, features = self.threads, self._sort_features(term)
        blur = BLURS[self.accuracy]
        if calibration is not None:
            part, values = calibration
            blur = calibrated_scale(features[part], values, blur, threads, self.store)

        def make() -> Filter:
            lattice = build(features, blur, threads)
            gain = published_gain(features.shape[1])
            # It cancels in normalised kernels.
            if self.accuracy != "plain" and term.normalization == "none":
                gain = calibrated_gain(features, lattice, threads)
            return factorize(lattice, term.normalization, gain, threads, wide_rows=self.compact)

        plain = (self.accuracy, blur, term.normalization, self.compact)
        return self.store.filter(make, len(features), len(features), features, plain)

    def _sort_features(self, term: PairwiseTerm) -> NDArray[np.float32]:
        """Return the features of a term in the engine's order, (N, d)."""
        given = term.features()
        features: NDArray[np.float32] = np.empty(given.shape, dtype=np.float32)
        self.threads.run(transfer.sort_features, len(features), given, self.order, features)
        return features

    def _calibration(self) -> Calibration:
        """Return which part of the image calibration looks at, and softmax(−U) there."""
        foreground = np.empty(len(self.order), dtype=np.float32)
        arguments = (self.crf.energies, self.order, foreground)
        self.threads.run(row_kernels.foreground, len(foreground), *arguments)
        part = calibration_part(foreground)
        marginals = softmax(-self.crf.energies[:, self.order[part]], axis=0)  # (L, P)
        return part, marginals.T.astype(np.float32)


@kernel
def _put_columns(values, shift, columns, first, start, stop):
    """Write (N, p) column numbers, each plus ``shift``, into columns (N, P) from ``first`` on."""
    for i in range(start, stop):
        for r in range(values.shape[1]):
            columns[i, first + r] = values[i, r] + shift


@kernel
def _put_coefficients(values, factor, coefficients, first, start, stop):
    """Write (N, p) coefficients, each times ``factor``, as ``_put_columns`` does."""
    for i in range(start, stop):
        for r in range(values.shape[1]):
            coefficients[i, first + r] = values[i, r] * factor


def _stack_slices(
    crf: DenseCRF, filters: Sequence[Filter | ExactFilter], unit: float, threads: Threads
) -> tuple[Slices, Compatibilities]:
    """Stack the slices of all kernels, which forget theirs; rows are in units of 1/unit."""
    groups, voxels = group_kernels(crf.terms, crf.n_labels), crf.grid.voxels
    starts = np.concatenate([[0], np.cumsum([f.rows for f in filters])]).astype(np.int32)
    members = [m for each in groups for m in each.members]
    weights = [weight for each in groups for weight in each.weights]
    ends = np.cumsum([0, *(filters[m].columns.shape[1] for m in members)])
    # One kind after the other, so that no more than one of them is there twice.
    columns = np.empty((voxels, ends[-1]), dtype=np.int32)
    for m, first in zip(members, ends[:-1], strict=True):
        threads.run(_put_columns, voxels, filters[m].columns, starts[m], columns, first)
        filters[m].columns = columns[:0]
    coefficients = np.empty(columns.shape, dtype=np.float32)
    for m, first, weight in zip(members, ends[:-1], weights, strict=True):
        arguments = (filters[m].coefficients, np.float32(weight / unit), coefficients, first)
        threads.run(_put_coefficients, voxels, *arguments)
        filters[m].coefficients = coefficients[:0]
    totals, diagonals = np.zeros((2, len(groups), voxels), dtype=np.float32)
    for g, each in enumerate(groups):
        for m, weight in zip(each.members, each.weights, strict=True):
            totals[g] += np.float32(weight) * filters[m].total
            if not crf.self_term:
                diagonals[g] += np.float32(weight) * filters[m].diagonal
    last = np.cumsum([len(each.members) for each in groups], dtype=np.int64)
    slices = Slices(columns, coefficients, ends[last], totals, diagonals)
    return slices, _reduce_compatibilities(groups)


def _reduce_compatibilities(groups: Sequence[KernelGroup]) -> Compatibilities:
    matrices, offsets = against_first_label(groups)
    return Compatibilities(
        np.array([group.is_potts for group in groups], dtype=np.bool_),
        matrices.astype(np.float32),
        offsets.astype(np.float32),
        np.array([group.compatibility[0] for group in groups]).astype(np.float32),
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
