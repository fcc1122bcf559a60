"""The lattice filters of the CPU engine: what they must share with the exact kernel."""

from __future__ import annotations

import math

import numpy as np
import pytest
from numpy.typing import NDArray

from perturb_mpm.engines import lattice as keys
from perturb_mpm.engines.cpu import chain, threads
from perturb_mpm.engines.cpu.chain import Filter, factorize, slice_rows
from perturb_mpm.engines.cpu.lattice import build
from perturb_mpm.engines.cpu.layout import Taps
from perturb_mpm.engines.cpu.threads import Threads
from perturb_mpm.engines.lattice import BLURS, Blur

THREADS = Threads(2)


def cloud(n: int, d: int, spread: float, seed: int = 0) -> NDArray[np.float32]:
    return np.random.default_rng(seed).normal(scale=spread, size=(n, d)).astype(np.float32)


def matrix(features: NDArray[np.float32], blur: Blur, normalization: str = "none") -> np.ndarray:
    """The whole filter, (N, N): its answer to every unit vector."""
    lattice_filter = factorize(build(features, blur, THREADS), normalization, 1.0, THREADS)
    return apply(lattice_filter, np.eye(len(features), dtype=np.float32))


def apply(lattice_filter: Filter, values: NDArray[np.float32]) -> NDArray[np.float32]:
    target, spare = np.empty((2, lattice_filter.rows, values.shape[1]), dtype=np.float32)
    lattice_filter.apply(values, target, spare, THREADS)
    return slice_rows(lattice_filter, target, THREADS)


@pytest.mark.parametrize("accuracy", BLURS)
@pytest.mark.parametrize("d", [1, 2, 3, 5, 7])
def test_row_sums_and_diagonal_are_those_of_the_filter(accuracy: str, d: int) -> None:
    features = cloud(300, d, 0.4)
    whole = matrix(features, BLURS[accuracy])
    lattice_filter = factorize(build(features, BLURS[accuracy], THREADS), "none", 1.0, THREADS)
    np.testing.assert_allclose(lattice_filter.total, whole.sum(axis=1), rtol=1e-5)
    # The diagonal is that of a lattice without holes: never too small, and exact where it is dense.
    ratio = lattice_filter.diagonal / np.diag(whole)
    assert ratio.min() > 0.999
    assert np.median(ratio) < (1.001 if d <= 2 else 1.07)


@pytest.mark.parametrize("d", [1, 2, 3])
def test_the_filter_is_a_gaussian(d: int) -> None:
    """Sums over a cloud equal the Gaussian kernel's, up to one factor, within a few percent."""
    features = cloud(400, d, 1.0)
    squares = ((features[:, np.newaxis] - features) ** 2).sum(axis=-1)
    wanted = np.exp(-squares / 2).sum(axis=1)
    spread = []
    for blur in BLURS.values():
        ratio = matrix(features, blur).sum(axis=1) / wanted
        spread.append(float(ratio.std() / ratio.mean()))
    plain, calibrated, accurate = spread
    assert accurate < 0.7 * plain
    assert calibrated < 1.01 * plain < 0.06


@pytest.mark.parametrize("normalization", ["symmetric", "before", "after", "none"])
def test_normalizations_divide_by_the_row_sums(normalization: str) -> None:
    features = cloud(200, 4, 0.7)
    raw = matrix(features, Blur())
    sums = raw.sum(axis=1)
    left = {"symmetric": sums**-0.5, "after": 1 / sums}.get(normalization, np.ones(200))
    right = {"symmetric": sums**-0.5, "before": 1 / sums}.get(normalization, np.ones(200))
    expected = left[:, np.newaxis] * raw * right
    got = matrix(features, Blur(), normalization)
    np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-7)


def test_a_lone_voxel_sends_nothing_but_to_itself() -> None:
    features = np.concatenate([cloud(50, 3, 0.1), np.full((1, 3), 40.0, dtype=np.float32)])
    for blur in BLURS.values():
        lattice_filter = factorize(build(features, blur, THREADS), "symmetric", 1.0, THREADS)
        assert lattice_filter.total[-1] == pytest.approx(1, rel=1e-6)
        assert lattice_filter.diagonal[-1] == pytest.approx(1, rel=1e-6)


def test_many_channels_fall_back_to_hashed_keys_with_the_same_filter(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    features = cloud(300, 6, 0.5)
    exact_keys = matrix(features, BLURS["calibrated"])
    monkeypatch.setattr(keys, "MARGIN", 2**12)  # a box that does not fit into 62 bits
    bounds = features.min(axis=0).astype(float), features.max(axis=0).astype(float)
    code = keys.key_code(*bounds, np.ones((1, 6), dtype=np.float32))
    assert code.sizes is None
    np.testing.assert_allclose(matrix(features, BLURS["calibrated"]), exact_keys, atol=1e-6)


def test_twenty_four_channels_build() -> None:
    features = cloud(200, 24, 1.0)
    lattice_filter = factorize(build(features, Blur(), THREADS), "after", 1.0, THREADS)
    np.testing.assert_allclose(lattice_filter.total, 1, rtol=1e-5)


def test_dilation_adds_vertices_and_only_where_enough_neighbours_are() -> None:
    features = cloud(500, 3, 2.0)
    counts = [build(features, Blur(dilation=share), THREADS).vertices for share in (0, 0.5, 1 / 8)]
    assert counts[0] < counts[1] < counts[2]


def test_a_voxel_on_a_vertex_touches_no_phantom_mass() -> None:
    """At the origin every other corner of the simplex has weight 0, and nothing becomes NaN."""
    features = np.zeros((1, 7), dtype=np.float32)
    lattice_filter = factorize(build(features, BLURS["calibrated"], THREADS), "none", 1.0, THREADS)
    assert np.isfinite(lattice_filter.coefficients).all()
    for stage in lattice_filter.stages:
        assert np.isfinite(stage.coefficients).all()


def test_the_scale_narrows_the_kernel() -> None:
    features = np.linspace(0, 10, 200, dtype=np.float32)[:, np.newaxis]
    here = matrix(features, Blur())[100]
    narrow = matrix(features, Blur(scale=1.3))[100]
    positions = features[:, 0] - features[100, 0]

    def width(row: np.ndarray) -> float:
        return math.sqrt(float((row * positions**2).sum() / row.sum()))

    assert width(here) == pytest.approx(1, abs=0.05)
    assert width(narrow) == pytest.approx(1 / 1.3, abs=0.05)


def test_entries_of_a_transpose_rise() -> None:
    rng = np.random.default_rng(0)
    columns = rng.integers(0, 40, size=(101, 3)).astype(np.int32)
    weights = rng.random((101, 3)).astype(np.float32)
    found = chain.transpose(Taps.of_table(columns, weights), 41, THREADS)
    for v in range(41):
        entries = slice(found.pointers[v], found.pointers[v + 1])
        rows, places = np.nonzero(columns == v)
        np.testing.assert_array_equal(found.columns[entries], rows)
        np.testing.assert_array_equal(found.coefficients[entries], weights[rows, places])
    assert found.pointers[41] == columns.size


def test_pieces_change_no_bit_of_a_filter(monkeypatch: pytest.MonkeyPatch) -> None:
    features = np.random.default_rng(0).uniform(0, 4, size=(9000, 2)).astype(np.float32)
    filters = []
    for worth in (1 << 30, 1):
        monkeypatch.setattr(threads, "WORTH_PIECES", worth)
        lattice = build(features, BLURS["calibrated"], THREADS)
        filters.append(chain.factorize(lattice, "symmetric", 1.0, THREADS, wide_rows=True))
    for one, other in zip(filters[0].stages, filters[1].stages, strict=True):
        for part in one._fields:
            np.testing.assert_array_equal(getattr(one, part), getattr(other, part))
    assert filters[0].stages[0].rows != filters[0].stages[1].rows  # the splat is in two stages


def test_long_sums_keep_their_digits(monkeypatch: pytest.MonkeyPatch) -> None:
    from scipy.sparse import csr_array

    rng = np.random.default_rng(0)
    count = 100_000
    features = np.sort(rng.uniform(0, 3, (count, 1)).astype(np.float32), axis=0)
    values = rng.uniform(0, 1, (count, 2)).astype(np.float32)

    def error() -> float:
        threads = Threads(1)
        chain_filter = factorize(build(features, Blur(), threads), "after", 1.0, threads)
        target, spare = np.empty((2, chain_filter.rows, 2), dtype=np.float32)
        chain_filter.apply(values, target, spare, threads)
        exact = values.astype(np.float64)
        for stage in chain_filter.stages:
            shares = stage.coefficients.astype(np.float64)
            shape = (stage.rows, len(exact))
            exact = csr_array((shares, stage.columns, stage.pointers), shape=shape) @ exact
        return float(np.abs(target[: len(exact)] - exact).max())

    kept = error()
    assert kept < 5e-7
    monkeypatch.setattr(chain, "LONGEST_SUM", count)
    assert error() > 4 * kept
