"""The compiled noise against NumPy's, and against the loading of finished problems."""

from __future__ import annotations

import math

import numpy as np
import pytest

pytest.importorskip("numba", reason="engine cpu needs numba")

import numba

from helpers.philox import PUBLISHED, words
from perturb_mpm import checks
from perturb_mpm.engines.cpu import perturber as kernels
from perturb_mpm.engines.cpu.perturber import Perturber
from perturb_mpm.engines.cpu.threads import Threads
from perturb_mpm.engines.cpu.transfer import load_problem
from perturb_mpm.engines.lattice import morton_order
from perturb_mpm.model.grid import Grid
from perturb_mpm.noise.gumbel import bits, gumbel, key_words, uniform
from perturb_mpm.noise.perturbation import WHITE, Lengths, Perturbation

RNG = np.random.default_rng(0)
GRID = Grid((12, 11, 9), spacing=(1.0, 1.0, 2.5), mask=RNG.random((12, 11, 9)) < 0.6)
LABELS = 6  # more than one block of four, and not a whole number of them
BASE = RNG.normal(size=(LABELS, GRID.voxels)).astype(np.float32)
LENGTHS = ((math.inf, 0.2), (5.0, 0.5), (0.9, 0.2), (0.0, 0.1))
CEILING = np.float32(6e4)
SINGLE, HALF = np.float32, np.uint16


def filled(
    perturbation: Perturbation,
    samples: list[int],
    dtype: type = SINGLE,
    *,
    grid: Grid = GRID,
    base: np.ndarray = BASE,
    tile: int = 16,
    threads: int = 1,
    ceiling: np.float32 = CEILING,
) -> np.ndarray:
    """Return what the kernel leaves in the tiles, in the order of the mask, (B, L − 1, N)."""
    order = morton_order(grid)
    tiles = np.zeros((-(-grid.voxels // tile), len(base) - 1, tile * len(samples)), dtype=dtype)
    perturber = Perturber(perturbation, base, grid, order, Threads(threads))
    perturber.fill(tiles, np.array(samples), ceiling)
    return unloaded(tiles, order, len(samples))


def unloaded(tiles: np.ndarray, order: np.ndarray, problems: int) -> np.ndarray:
    stored = tiles.view(np.float16) if tiles.dtype == HALF else tiles
    rows = stored.transpose(1, 0, 2).reshape(tiles.shape[1], -1)  # (L − 1, lanes)
    out = np.empty((problems, tiles.shape[1], order.size), dtype=stored.dtype)
    for b in range(problems):
        out[b][:, order] = rows[:, b::problems][:, : order.size]
        assert not rows[:, b::problems][:, order.size :].any()
    return out


def expected(perturbation: Perturbation, samples: list[int]) -> np.ndarray:
    energies = perturbation.energies(BASE, GRID, samples).astype(np.float64)
    return energies[:, 1:] - energies[:, :1]


def test_philox_gives_the_published_vectors() -> None:
    for counter, key, result in PUBLISHED:
        c0, c1, c2, c3 = words(counter).astype(np.uint64)
        out = np.empty((4, 1), dtype=np.uint32)
        lanes = [np.array([c]) for c in (c0, c1, c3)]
        kernels.philox(*lanes, c2, words(key).astype(np.uint64), out, 1)
        np.testing.assert_array_equal(out[:, 0], words(result))


def test_bits_are_those_of_numpy() -> None:
    lanes = 37
    voxels = RNG.integers(0, 2**48, lanes)
    samples = RNG.integers(0, 2**32, lanes)
    seed = 2**64 - 12345
    out = np.empty((4, lanes), dtype=np.uint32)
    for block in range(3):
        kernels.philox(
            (voxels & 0xFFFFFFFF).astype(np.uint64),
            samples.astype(np.uint64),
            (voxels >> 32).astype(np.uint64),
            np.uint64(block),
            key_words(seed).astype(np.uint64),
            out,
            lanes,
        )
        for k in range(lanes):
            every = bits(seed, samples[k : k + 1], voxels[k : k + 1], 12)[0, :, 0]
            np.testing.assert_array_equal(out[:, k], every[4 * block : 4 * block + 4])


def test_all_values_that_noise_can_take_are_exact_to_1e_6() -> None:
    @numba.njit
    def all_of(drawn: np.ndarray, out: np.ndarray) -> None:
        for k in range(drawn.size):
            out[k] = kernels.log_exponential(drawn[k])

    drawn = np.arange(2**23, dtype=np.uint32) << 9
    drawn[1::2] |= 511  # what is below the upper 23 bits does not count
    logs = np.empty(drawn.size, dtype=np.float32)
    all_of(drawn, logs)
    gamma = -math.log(2) * logs.astype(np.float64) - math.log(math.log(2))
    exact = -np.log(-np.log(uniform(drawn)))
    assert np.isfinite(gamma).all()
    assert np.abs((gamma - exact) / np.maximum(1, np.abs(exact))).max() < 1e-6


@pytest.mark.parametrize("dtype", [SINGLE, HALF])
@pytest.mark.parametrize("antithetic", [False, True])
@pytest.mark.parametrize("lengths", [WHITE, LENGTHS], ids=["white", "together"])
def test_energies_are_those_of_numpy(dtype: type, antithetic: bool, lengths: Lengths) -> None:
    perturbation = Perturbation(2**63 + 5, 0.8, antithetic, lengths)
    samples = [0, 1, 7, 2**32 - 2, 2**32 - 1]
    values, truth = filled(perturbation, samples, dtype), expected(perturbation, samples)
    tolerance = {SINGLE: 1e-5, HALF: 2.0**-11}[dtype]
    np.testing.assert_allclose(values, truth, rtol=tolerance, atol=1e-5)


@pytest.mark.parametrize("dtype", [SINGLE, HALF])
def test_a_sample_is_the_same_in_any_batch_tile_and_number_of_threads(dtype: type) -> None:
    perturbation = Perturbation(9, 1.0, antithetic=True, lengths=LENGTHS)
    samples = [4, 5, 0, 3, 11, 12, 13]
    whole = filled(perturbation, samples, dtype)
    for tile, threads in [(1, 1), (7, 3), (64, 2), (4096, 1)]:
        other = filled(perturbation, samples, dtype, tile=tile, threads=threads)
        np.testing.assert_array_equal(other, whole)
    for b in (0, 4, 6):
        np.testing.assert_array_equal(filled(perturbation, samples[b:], dtype), whole[b:])


@pytest.mark.parametrize("dtype", [SINGLE, HALF])
@pytest.mark.parametrize("ceiling", [6e4, 1.5])
def test_without_noise_the_tiles_are_those_of_loaded_unaries(dtype: type, ceiling: float) -> None:
    values = filled(Perturbation(scale=0), [3, 4], dtype, ceiling=np.float32(ceiling))
    order = morton_order(GRID)
    tiles = np.zeros((-(-GRID.voxels // 8), LABELS - 1, 16), dtype=dtype)
    for b in range(2):
        place = (np.int64(b), np.int64(2), np.float32(ceiling))
        load_problem(BASE, order, tiles, *place, 0, GRID.voxels)
    np.testing.assert_array_equal(values, unloaded(tiles, order, 2))


@pytest.mark.parametrize("shape", [(40,), (7, 8), (3, 5, 4), (3, 4, 2, 5)])
def test_smooth_noise_on_images_of_one_to_four_axes(shape: tuple[int, ...]) -> None:
    mask = np.random.default_rng(3).random(shape) < 0.5
    grid = Grid(shape, spacing=[1.0, 0.4, 3.0, 2.0][: len(shape)], mask=mask)
    base = np.zeros((3, grid.voxels), dtype=np.float32)
    perturbation = Perturbation(4, lengths=((math.inf, 0.5), (2.0, 0.5)))
    truth = perturbation.energies(base, grid, [0, 5])
    values = filled(perturbation, [0, 5], grid=grid, base=base)
    np.testing.assert_allclose(values, truth[:, 1:] - truth[:, :1], rtol=0, atol=1e-5)


def test_voxels_beyond_32_bits_have_noise_of_their_own() -> None:
    tiles = np.zeros((GRID.voxels, LABELS - 1, 2), dtype=SINGLE)
    order = np.arange(GRID.voxels)
    perturber = Perturber(Perturbation(1), np.zeros_like(BASE), GRID, order, Threads(1))
    far = GRID.index + 2**47
    perturber._unaries = perturber._unaries._replace(voxels=checks.read_only(far))
    perturber.fill(tiles, np.array([6, 7]), CEILING)
    noise = gumbel(1, [6, 7], far, LABELS)
    truth = noise[:, :1] - noise[:, 1:]
    np.testing.assert_allclose(unloaded(tiles, order, 2), truth, rtol=0, atol=1e-5)


def test_a_read_only_or_wider_array_serves_as_well() -> None:
    frozen, wide = BASE.copy(), BASE.astype(np.float64)
    frozen.flags.writeable = False
    plain = filled(Perturbation(1), [0])
    for base in (frozen, wide):
        np.testing.assert_array_equal(filled(Perturbation(1), [0], base=base), plain)
