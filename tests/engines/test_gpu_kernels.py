"""Every Triton kernel against its plain PyTorch twin, and its noise against NumPy's."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

pytest.importorskip("torch", reason="engine gpu needs torch")
pytest.importorskip("triton", reason="engine gpu needs triton")

import torch
import triton
import triton.language as tl

from helpers.gpu_twins import (
    all_pairs_twin,
    combine_twin,
    count_votes_twin,
    perturb_twin,
    set_labels,
    slice_group_twin,
    splat_twin,
    update_twin,
)
from helpers.interpreter import need_gpu_or_interpreter
from helpers.philox import PUBLISHED, words
from perturb_mpm.engines.gpu import device as devices
from perturb_mpm.engines.gpu import exact as pairs_kernel
from perturb_mpm.engines.gpu import perturb_kernel as noise_kernels
from perturb_mpm.engines.gpu.chain import SKIPPED, Sparse, combine
from perturb_mpm.engines.gpu.device import LARGE_BYTES, on_device, on_host
from perturb_mpm.engines.gpu.exact import all_pairs, widen_features
from perturb_mpm.engines.gpu.memory import BatchLayout, BatchMemory
from perturb_mpm.engines.gpu.messages import morton_order
from perturb_mpm.engines.gpu.perturb_kernel import (
    NoiseDrawer,
    Unaries,
    perturb,
)
from perturb_mpm.engines.gpu.tiles import PIECE, STEP, TILE, Tiles, cut_lists, slice_group, splat
from perturb_mpm.engines.gpu.update_kernel import (
    MessageCoupling,
    count_votes,
    update,
)
from perturb_mpm.model.grid import Grid
from perturb_mpm.noise.gumbel import bits, gumbel, key_words, uniform
from perturb_mpm.noise.perturbation import Perturbation

DEVICE = need_gpu_or_interpreter()
KINDS = pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=["single", "half"])
# Kernel and twin add the same numbers in another order: up to 64 of them, each sum rounded to 2⁻²⁴
# of itself, so that they are at most 64·2⁻²⁴ = 4e-6 apart. A GPU's exponentials and quotients are
# good to 2⁻²², which is less. Halves are rounded to 2⁻¹¹ = 5e-4 where they are stored.
TOLERANCE = {torch.float32: 4e-6, torch.float16: 1e-3}


class Counts:
    """The rows that memory is taken for."""

    def __init__(self, rows: int = 1, entries: int = 1, groups: int = 0) -> None:
        self.rows, self.spare, self.partials, self.exact_rows = rows, 1, entries, groups


def rng(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def random(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.rand(shape, generator=rng(seed)).to(DEVICE, dtype)


def assert_close(one: torch.Tensor, other: torch.Tensor, tolerance: float) -> None:
    torch.testing.assert_close(one.double(), other.double(), rtol=tolerance, atol=tolerance)


@triton.jit
def draw(counters, keys, out, noise, COUNT: tl.constexpr):  # noqa: ANN001, ANN201
    lane = tl.arange(0, COUNT)
    c0, c1 = tl.load(counters + lane), tl.load(counters + COUNT + lane)
    c2, c3 = tl.load(counters + 2 * COUNT + lane), tl.load(counters + 3 * COUNT + lane)
    k0, k1 = tl.load(keys + lane), tl.load(keys + COUNT + lane)
    w0, w1, w2, w3 = noise_kernels.philox(
        c0.to(tl.uint32), c1.to(tl.uint32), c2.to(tl.uint32), c3.to(tl.uint32),
        k0.to(tl.uint32), k1.to(tl.uint32),
    )  # fmt: skip
    tl.store(out + lane, w0.to(tl.int64))
    tl.store(out + COUNT + lane, w1.to(tl.int64))
    tl.store(out + 2 * COUNT + lane, w2.to(tl.int64))
    tl.store(out + 3 * COUNT + lane, w3.to(tl.int64))
    tl.store(noise + lane, noise_kernels.log_exponential(w0))


def drawn(counters: np.ndarray, keys: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the words (4, M) and log2(−log2 u) of the first of counters (4, M), keys (2, M)."""
    count = counters.shape[1]
    out = torch.zeros((4, count), dtype=torch.int64, device=DEVICE)
    noise = torch.zeros(count, device=DEVICE)
    arguments = (
        torch.from_numpy(np.array(a, np.int64, order="C")).to(DEVICE) for a in (counters, keys)
    )
    draw[(1,)](*arguments, out, noise, COUNT=count)
    return out.cpu().numpy(), noise.cpu().numpy()


def test_philox_gives_the_published_vectors() -> None:
    counters = np.array([words(counter) for counter, _, _ in PUBLISHED]).T
    keys = np.array([words(key) for _, key, _ in PUBLISHED]).T
    padding = 4 - counters.shape[1]  # a power of two
    out, _ = drawn(*(np.pad(a, ((0, 0), (0, padding))) for a in (counters, keys)))
    for k, (_, _, result) in enumerate(PUBLISHED):
        np.testing.assert_array_equal(out[:, k], words(result))


def test_words_and_noise_are_those_of_numpy() -> None:
    generator = np.random.default_rng(0)
    voxels, samples = generator.integers(0, 2**48, 64), generator.integers(0, 2**32, 64)
    seed = 2**64 - 12345
    counters = np.stack([voxels & 0xFFFFFFFF, samples, np.zeros(64, dtype=int), voxels >> 32])
    keys = np.repeat(key_words(seed).astype(np.int64)[:, np.newaxis], 64, axis=1)
    out, noise = drawn(counters, keys)
    twin = noise_kernels.philox_twin(
        tuple(torch.from_numpy(c) for c in counters), tuple(int(k) for k in key_words(seed))
    )
    for k in range(64):
        every = bits(seed, samples[k : k + 1], voxels[k : k + 1], 4)[0, :, 0]
        np.testing.assert_array_equal(out[:, k], every)
        assert [int(word[k]) for word in twin] == every.tolist()
    exact = np.log2(-np.log2(uniform(out[0].astype(np.uint32))))
    np.testing.assert_allclose(noise, exact, rtol=1e-6, atol=1e-6)


@KINDS
def test_combine(dtype: torch.dtype) -> None:
    generator = np.random.default_rng(1)
    lengths = generator.integers(0, 12, 37)
    entries = int(lengths.sum())
    stops = lengths.cumsum()
    starts = stops - lengths
    stops[::9] = SKIPPED
    matrix = Sparse(
        *(
            torch.from_numpy(each.astype(np.int32)).to(DEVICE)
            for each in (
                generator.permutation(50)[:37],
                starts,
                stops,
                generator.integers(0, 40, entries),
            )
        ),
        random(entries, seed=2) / 8,
    )
    source = random(40, 128, seed=3, dtype=dtype)
    ours, twins = (torch.full((50, 128), 7.0, dtype=dtype, device=DEVICE) for _ in range(2))
    combine(matrix, source, ours, 100)
    combine_twin(matrix, source, twins, 100)
    assert_close(ours, twins, TOLERANCE[dtype])
    assert (ours[:, 100:] == 7).all()
    assert (ours[matrix.targets[::9].long()] == 7).all()


def test_long_lists_are_summed_up_in_pieces() -> None:
    """Two lattices of 20 and 15 rows, the first with lists of several pieces."""
    generator = np.random.default_rng(2)
    lengths = generator.integers(0, 8, 35)
    lengths[[3, 11]] = 2 * PIECE + 5, PIECE + 1
    bounds = np.concatenate([[4], 4 + lengths.cumsum()])  # what comes before belongs to no row
    entries = int(bounds[-1])
    columns = torch.from_numpy(generator.integers(0, 50, entries).astype(np.int32)).to(DEVICE)
    shares = random(entries, seed=3) / 8
    cut = cut_lists(torch.from_numpy(bounds).to(DEVICE), [20, 15], columns, shares)
    assert [len(matrices) for matrices in cut] == [2, 1]
    source = random(50, 16, seed=4)
    for first, count, matrices in ((0, 20, cut[0]), (20, 15, cut[1])):
        rows = torch.full((count + 5, 16), 7.0, device=DEVICE)
        combine(matrices[0], source, rows, 16)
        for sums in matrices[1:]:
            combine(sums, rows, rows, 16)
        for row in range(count):
            part = slice(*bounds[first + row : first + row + 2].tolist())
            wanted = (shares[part, None] * source[columns[part].long()]).sum(0)
            if part.start < part.stop:
                assert_close(rows[row], wanted, TOLERANCE[torch.float32])
            else:
                assert (rows[row] == 7).all()


def test_large_arrays_come_and_go_unchanged(monkeypatch: pytest.MonkeyPatch) -> None:
    array = np.random.default_rng(5).random((3, LARGE_BYTES // 8 + 1)).astype(np.float32)
    there = on_device(array, DEVICE)
    np.testing.assert_array_equal(there.cpu().numpy(), array)
    monkeypatch.setattr(devices, "PINNED_BYTES", LARGE_BYTES // 2 + 7)  # in several windows
    np.testing.assert_array_equal(on_device(array[::-1], DEVICE).cpu().numpy(), array[::-1])
    np.testing.assert_array_equal(on_host(there), array)
    np.testing.assert_array_equal(on_host(there.T), array.T)


def tiles(dtype: torch.dtype, groups: int = 1, rows: int = 30) -> Tiles:
    """Two tiles with some entries in each group, the last of each group empty."""
    counts = [[STEP, 0], [2 * STEP, STEP]] if groups == 2 else [[STEP], [2 * STEP]]
    starts = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
    chosen = np.random.default_rng(4).integers(0, rows, starts[-1]).astype(np.int32)
    vertices = torch.from_numpy(chosen).to(DEVICE)
    for stop in starts[1:]:
        vertices[max(0, int(stop) - 3) : int(stop)] = -1
    shares = random(int(starts[-1]), TILE, seed=5) / STEP
    shares[vertices < 0] = 0
    return Tiles(
        groups,
        vertices,
        shares.to(dtype),
        shares.flip(1).to(dtype),
        torch.from_numpy(starts).to(DEVICE),
    )


@KINDS
def test_splat(dtype: torch.dtype) -> None:
    lattice = tiles(dtype)
    marginals = random(2 * TILE, 64, seed=6, dtype=dtype)
    ours, twins = (torch.full((lattice.entries, 64), 7.0, dtype=dtype, device=DEVICE) for _ in "ab")
    splat(lattice, marginals, ours, 60)
    splat_twin(lattice, marginals, twins, 60)
    assert_close(ours, twins, TOLERANCE[dtype])
    assert (ours[lattice.vertices < 0] == 7).all()


@KINDS
def test_slice(dtype: torch.dtype) -> None:
    lattice = tiles(dtype, groups=2)
    layout = BatchLayout(2 * TILE - 5, 4, 20)
    rows = random(30, layout.stride, seed=7, dtype=dtype)
    for group in range(2):
        ours = slice_group(lattice, rows, group, layout, 8, 40)
        assert_close(ours, slice_group_twin(lattice, rows, group, layout, 8, 40), TOLERANCE[dtype])


@KINDS
@pytest.mark.parametrize("n_labels", [2, 4, 5])
@pytest.mark.parametrize(
    ("groups", "exact", "damping", "sharpness", "self_term"),
    [
        (1, False, 0.0, 1.0, False),
        (1, False, 0.3, 1.2, True),
        (2, False, 0.0, 1.0, False),
        (2, True, 0.3, 1.2, False),
    ],
)
def test_update(
    dtype: torch.dtype,
    n_labels: int,
    groups: int,
    exact: bool,
    damping: float,
    sharpness: float,
    self_term: bool,
) -> None:
    lattice = tiles(dtype, groups)
    layout = BatchLayout(2 * TILE - 5, n_labels, 3)
    coupling = coupling_of(layout, groups, self_term=self_term)
    results = []
    for work in (update, update_twin):
        buffers = BatchMemory(layout, Counts(30, 1, groups), dtype, DEVICE).buffers(layout)
        start = torch.softmax(random(layout.rows, 3, n_labels, seed=8) * 4, 2)
        # Channels that belong to no label are 0 everywhere.
        used = torch.arange(layout.stride, device=DEVICE) % layout.padded < n_labels - 1
        buffers.rows.copy_(random(30, layout.stride, seed=9) * used)
        buffers.exact.copy_(random(groups, layout.rows, layout.stride, seed=10) * used)
        for b in range(3):
            buffers.problem(buffers.marginals, b).copy_(start[: layout.voxels, b, 1:])
            noise = random(layout.voxels, n_labels - 1, seed=11 + b) * 3 - 1
            buffers.problem(buffers.energies, b).copy_(noise)
        set_labels(buffers, start.argmax(2)[: layout.voxels])
        options = {"damping": damping, "sharpness": sharpness, "watched": True}
        changes = work(buffers, None if exact else lattice, coupling, **options)
        every = torch.stack([buffers.problem(buffers.marginals, b) for b in range(3)])
        results.append((every, buffers.labels_by_problem, changes))
    (ours, labels, changes), (twins, twin_labels, twin_changes) = results
    assert_close(ours, twins, 4 * TOLERANCE[dtype])
    assert (labels == twin_labels).float().mean() > 0.99
    assert_close(changes[:2], twin_changes[:2], 4 * TOLERANCE[dtype])
    assert_close(changes[2], twin_changes[2], 0.05)


def coupling_of(layout: BatchLayout, groups: int, *, self_term: bool) -> MessageCoupling:
    size, padded = layout.n_labels, layout.padded
    mu = random(groups, size, size, seed=12)
    mu = (mu + mu.mT) / 2
    if groups == 1:
        mu[0] = 1 - torch.eye(size, device=DEVICE)
    offsets = torch.zeros((groups, padded), device=DEVICE)
    matrices = torch.zeros((groups, padded, padded), device=DEVICE)
    offsets[:, : size - 1] = mu[:, 1:, 0] - mu[:, :1, 0]
    differences = mu[:, 1:, 1:] - mu[:, :1, 1:] - offsets[:, : size - 1, None]
    matrices[:, : size - 1, : size - 1] = differences
    totals = 1 + random(groups, layout.rows, seed=13)
    return MessageCoupling(
        self_term,
        groups == 1,
        matrices,
        offsets,
        mu,
        totals,
        torch.zeros_like(totals) if self_term else totals / 5,
    )


GRID = Grid((7, 6, 5), mask=np.random.default_rng(3).random((7, 6, 5)) < 0.6)


def perturbed(
    dtype: torch.dtype, n_labels: int, samples: list[int], *, antithetic: bool, ceiling: float = 6e4
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return the kernel's energies, its twin's and the starting marginals, (B, L − 1, N)."""
    index = torch.from_numpy(np.array(GRID.index)).to(DEVICE)
    index = index[morton_order(GRID, index)]
    layout = BatchLayout(GRID.voxels, n_labels, len(samples))
    unaries = torch.zeros((n_labels, layout.rows), device=DEVICE)
    unaries[:, : layout.voxels] = random(n_labels, layout.voxels, seed=14) * 4
    seed = 2**63 + 5
    buffers = BatchMemory(layout, Counts(), dtype, DEVICE).buffers(layout)
    white = Perturbation(seed, 0.8, antithetic)
    noise = NoiseDrawer(white, GRID, n_labels, DEVICE).draw(np.array(samples))
    start = (buffers.marginals, buffers.labels)
    problem = Unaries(unaries, index, ceiling)
    perturb(problem, noise, layout, buffers.energies, start, sharpness=1.0)
    twin = perturb_twin(problem, noise, layout)
    energies = torch.stack([buffers.problem(buffers.energies, b).T for b in range(len(samples))])
    marginals = torch.stack([buffers.problem(buffers.marginals, b).T for b in range(len(samples))])
    return energies.float(), twin, marginals.float()


@KINDS
@pytest.mark.parametrize("antithetic", [False, True])
@pytest.mark.parametrize("n_labels", [2, 5, 9, 18])
def test_perturb(dtype: torch.dtype, antithetic: bool, n_labels: int) -> None:
    samples = [0, 1, 7, 2**32 - 2, 2**32 - 1]
    energies, twin, marginals = perturbed(dtype, n_labels, samples, antithetic=antithetic)
    assert_close(energies, twin, max(1e-5, TOLERANCE[dtype]))
    whole = torch.cat([torch.zeros_like(energies[:, :1]), -energies], 1)
    assert_close(marginals, torch.softmax(whole, 1)[:, 1:], TOLERANCE[dtype])


def test_a_forbidden_label_stops_at_the_ceiling() -> None:
    energies, twin, _ = perturbed(torch.float32, 5, [3], antithetic=False, ceiling=1.5)
    assert_close(energies, twin, 1e-5)
    assert float(energies.abs().max()) == pytest.approx(1.5, abs=1e-6)


def test_the_wrong_sign_of_the_noise_is_far_from_the_kernel_s() -> None:
    """A negative control: energies are lowered by Gumbel noise."""
    energies, _, _ = perturbed(torch.float32, 5, [3], antithetic=False)
    index = torch.from_numpy(np.array(GRID.index)).to(DEVICE)
    index = index[morton_order(GRID, index)].cpu().numpy()
    noise = 0.8 * gumbel(2**63 + 5, [3], index, 5)[0]
    unaries = (random(5, GRID.voxels, seed=14) * 4).cpu().numpy()
    right, wrong = unaries - noise, unaries + noise
    found = energies[0].cpu().numpy()
    np.testing.assert_allclose(found, right[1:] - right[0], atol=1e-4)
    assert np.abs(found - (wrong[1:] - wrong[0])).mean() > 1


@KINDS
@pytest.mark.parametrize("d", [3, 7])
def test_all_pairs(dtype: torch.dtype, d: int) -> None:
    features = random(150, d, seed=15).double() * 6 + 3
    queries, sources = widen_features(features, dtype)
    values = torch.zeros((len(sources), 64), dtype=dtype, device=DEVICE)
    values[:150, :40] = random(150, 40, seed=16)
    ours = all_pairs(queries, sources, values, 40, 150)
    truth = all_pairs_twin(features, torch.arange(150, device=DEVICE), values[:150, :40])
    error = (ours.double() - truth).norm() / truth.norm()
    # The exponent is a difference of numbers up to 45, each rounded to 2⁻²⁴ of itself, in an order
    # that is the device's; halves are split into pieces, and the kernel is rounded to 2⁻¹¹.
    assert error < {torch.float32: 45 * 2**-23, torch.float16: 5e-4}[dtype]


def test_features_too_large_for_halves_are_singles() -> None:
    near, far = random(20, 3).double(), random(20, 3).double() * 1e4
    assert widen_features(near, torch.float16)[0].dtype == torch.float16
    assert widen_features(far, torch.float16)[0].dtype == torch.float32


@pytest.mark.parametrize("problems", [3, 70, 300])
def test_votes(problems: int) -> None:
    layout = BatchLayout(100, 3, problems)
    buffers = BatchMemory(layout, Counts(), torch.float32, DEVICE).buffers(layout)
    buffers.labels.copy_(torch.randint(0, 3, buffers.labels.shape, generator=rng()))
    chosen = torch.arange(buffers.layout.problems, device=buffers.labels.device) % 3 != 1
    votes, sizes = count_votes(buffers.labels, buffers.layout, chosen)
    twin_votes, twin_sizes = count_votes_twin(buffers.labels, buffers.layout, chosen)
    torch.testing.assert_close(votes.long(), twin_votes)
    torch.testing.assert_close(sizes, twin_sizes)
    assert int(votes.long().sum()) == 100 * int(chosen.sum())


def test_padded_labels_are_a_power_of_two() -> None:
    assert [BatchLayout(1, n, 1).padded for n in (2, 3, 4, 5, 6, 255)] == [1, 2, 4, 4, 8, 256]
    assert [BatchLayout(65, 5, problems).stride for problems in (1, 3, 200)] == [16, 32, 800]


def test_columns_are_cut_into_blocks_that_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    assert pairs_kernel._columns(800, 256) == [(0, 768, 256), (768, 800, 32)]
    assert pairs_kernel._columns(4, 256) == [(0, 16, 16)]
    assert pairs_kernel._columns(512, 256) == [(0, 512, 256)]

    class OnDevice:
        dtype, device = torch.float16, torch.device("cuda", 0)

    for buffers, lanes in ((233_472, 256), (102_400, 128)):
        device = SimpleNamespace(shared_memory_per_multiprocessor=buffers)
        monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _, device=device: device)
        assert pairs_kernel._widest(OnDevice) == lanes
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: SimpleNamespace())
    assert pairs_kernel._widest(OnDevice) == 128
    assert pairs_kernel._widest(torch.zeros(1)) == pairs_kernel.SINGLE_LANES
