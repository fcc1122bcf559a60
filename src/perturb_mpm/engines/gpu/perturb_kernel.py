"""Perturbed energies and their starting marginals, all samples in one pass.

    Ũ_i(l) = U_i(l) − scale·γ_i(l),   Q_i = softmax(−sharpness·Ũ_i)

for B samples, stored as Ũ(l) − Ũ(0), (N, B·P). An energy more than ``ceiling`` above the voxel's
lowest counts as that: a forbidden label must not use up the digits that tell the others apart.
Correlated noise is interpolated between the nodes of ``noise/nodes.py``, which are drawn for many
samples at once. A sample depends neither on its position in a batch nor on the batch's size.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
import triton
import triton.language as tl
from numpy.typing import NDArray

from perturb_mpm.engines.gpu.device import is_interpreted
from perturb_mpm.engines.gpu.memory import BatchLayout
from perturb_mpm.engines.gpu.tiles import TILE
from perturb_mpm.model import Grid
from perturb_mpm.noise import (
    FARTHEST,
    PHILOX_FACTORS,
    PHILOX_KEY_STEPS,
    PHILOX_ROUNDS,
    SUPPORT,
    Axis,
    NodeLattice,
    NodeTables,
    Perturbation,
    key_words,
    length_lattices,
    polynomials,
    white_share,
)

ROUNDS = tl.constexpr(PHILOX_ROUNDS)
FIRST_FACTOR, SECOND_FACTOR = (tl.constexpr(each) for each in PHILOX_FACTORS)
FIRST_KEY_STEP, SECOND_KEY_STEP = (tl.constexpr(each) for each in PHILOX_KEY_STEPS)
LOG2 = tl.constexpr(polynomials.LOG2)
NORMAL_NEAR = tl.constexpr(polynomials.NORMAL_NEAR)
NORMAL_FAR = tl.constexpr(polynomials.NORMAL_FAR)
GUMBEL_BELOW = tl.constexpr(polynomials.GUMBEL_BELOW)
GUMBEL_ABOVE = tl.constexpr(polynomials.GUMBEL_ABOVE)
ROOT_HALF = tl.constexpr(0x3F3504F3)  # the bits of √½
ROOT_HALF_24 = tl.constexpr(0x4B3504F3)  # the bits of √½·2^24
MANTISSA = tl.constexpr(0x7FFFFF)
LN2 = tl.constexpr(math.log(2))
FARTHEST_NORMAL = tl.constexpr(FARTHEST)
UNIT = tl.constexpr(2.0**-24)
VOXELS = 64 if is_interpreted() else 32
ELEMENTS = 2**14 if is_interpreted() else 2**11
NUMBERS_AT_ONCE = 2**26  # of nodes
FAR_APART = 4  # voxels from a node to the next
NO_LABEL = tl.constexpr(1e30)

_LOW = 0xFFFFFFFF


@triton.jit
def philox(c0, c1, c2, c3, first_key, second_key):
    """Encrypt counters into four random words, Philox 4×32-10; everything is uint32."""
    k0, k1 = first_key, second_key
    for _ in tl.static_range(ROUNDS):
        high_first, low_first = tl.umulhi(c0, FIRST_FACTOR), c0 * FIRST_FACTOR
        high_second, low_second = tl.umulhi(c2, SECOND_FACTOR), c2 * SECOND_FACTOR
        c0, c1 = high_second ^ c1 ^ k0, low_second
        c2, c3 = high_first ^ c3 ^ k1, low_first
        k0 += FIRST_KEY_STEP
        k1 += SECOND_KEY_STEP
    return c0, c1, c2, c3


@triton.jit
def _polynomial(x, COEFFICIENTS: tl.constexpr, DEGREE: tl.constexpr):
    """Evaluate a polynomial by Horner's rule, the highest power's coefficient first."""
    p = tl.fma(x, COEFFICIENTS[0], COEFFICIENTS[1])
    for k in tl.static_range(2, DEGREE + 1):
        p = tl.fma(p, x, COEFFICIENTS[k])
    return p


@triton.jit
def _log2(bits, root):
    """Compute log2 of the float with these bits against root·√2, to 3e-7 of itself."""
    offset = bits - root
    small = ((offset & MANTISSA) + ROOT_HALF).to(tl.float32, bitcast=True) - 1.0
    p = _polynomial(small, LOG2, 7)
    return tl.fma(p, small, (offset >> 23).to(tl.float32))


@triton.jit
def log_exponential(word):
    """Turn 32 random bits into log2(−log2 u), u = (⌊word / 2^9⌋ + ½)·2^-23."""
    odd = ((word >> 8) | 1).to(tl.int32).to(tl.float32)  # u·2^24, exact
    exponential = -_log2(odd.to(tl.int32, bitcast=True), ROOT_HALF_24)
    return _log2(exponential.to(tl.int32, bitcast=True), ROOT_HALF)


@triton.jit
def normal_from_bits(word):
    """Turn 32 random bits into Φ⁻¹(u), as the CPU engine's function of this name does."""
    odd = ((word >> 8) | 1).to(tl.int32).to(tl.float32)
    u = odd * UNIT
    w = -LN2 * _log2((4 * u * (1 - u)).to(tl.int32, bitcast=True), ROOT_HALF)
    near = _polynomial(w - 2.5, NORMAL_NEAR, 7)
    far = _polynomial(tl.sqrt(w) - 3, NORMAL_FAR, 6)
    return tl.where(w < 5, near, far) * (u + u - 1)


@triton.jit
def minus_gumbel(g):
    """Compute −γ = log(−log Φ(g)), as the CPU engine's function of this name does."""
    g = tl.minimum(tl.maximum(g, -FARTHEST_NORMAL), FARTHEST_NORMAL)
    below = _polynomial(tl.fma(g, 2 / FARTHEST_NORMAL, 1.0), GUMBEL_BELOW, 9)
    above = _polynomial(tl.fma(g, 2 / FARTHEST_NORMAL, -1.0), GUMBEL_ABOVE, 12)
    return tl.where(g < 0, below, above)


def philox_twin(
    counter: tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor], key: tuple[int, int]
) -> tuple[torch.Tensor, ...]:
    """Do what ``philox`` does in plain PyTorch, on words in the low halves of int64."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(ROUNDS.value):
        first, second = c0 * FIRST_FACTOR.value, c2 * SECOND_FACTOR.value
        c0, c1 = ((second >> 32) & _LOW) ^ c1 ^ k0, second & _LOW
        c2, c3 = ((first >> 32) & _LOW) ^ c3 ^ k1, first & _LOW
        k0, k1 = (k0 + FIRST_KEY_STEP.value) & _LOW, (k1 + SECOND_KEY_STEP.value) & _LOW
    return c0, c1, c2, c3


@dataclass(frozen=True)
class Unaries:
    """What is perturbed, in the engine's order."""

    energies: torch.Tensor  # (L, rows) float32
    index: torch.Tensor  # (N,) int64: each voxel's index in the whole image
    ceiling: float  # the most that an energy lies above the voxel's lowest


@dataclass(frozen=True)
class Noise:
    """The noise of B samples: normals on nodes, those of all lengths one after the other.

    For length f, axis a (images of fewer than four axes have axes of length 1 before their own) and
    coordinate x, ``firsts[f, a, x]`` is the first row (rows of several axes add up),
    ``weights[f, a, x]`` are those of three nodes, ``steps[f, a]`` the rows from a node to the next.
    """

    perturbation: Perturbation
    samples: torch.Tensor  # (B,) int64
    nodes: torch.Tensor  # (R, B·L) float32
    firsts: torch.Tensor  # (F, 4, longest) int64
    weights: torch.Tensor  # (F, 4, longest, 3) float32
    steps: torch.Tensor  # (F, 4) int64
    shape: tuple[int, ...]  # four numbers
    axes: int
    last: int  # how many of the three nodes along the last axis have a weight: 1 or 3

    @property
    def key(self) -> tuple[int, int]:
        """The low and the high word of the seed."""
        low, high = key_words(self.perturbation.seed)
        return int(low), int(high)

    @property
    def white(self) -> float | None:
        """√w of the white part; None: the noise is white, and there are no nodes."""
        given = self.perturbation
        return white_share(given.lengths) if given.correlated else None


@triton.jit(do_not_specialize=["first_key", "second_key"])
def _perturb(
    unaries, index, samples, energies, marginals, labels, nodes, firsts, weights, steps,
    first_key, second_key, per_log, scale, white, ceiling, sharpness,
    voxels, rows, problems, n_labels, stride, node_stride, n_lengths, longest,
    shape_1, shape_2, shape_3, padded,
    ANTITHETIC: tl.constexpr, NOISY: tl.constexpr, TOGETHER: tl.constexpr, START: tl.constexpr,
    AXES: tl.constexpr, LAST: tl.constexpr, VOXELS: tl.constexpr, PROBLEMS: tl.constexpr,
    BLOCKS: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    LABELS: tl.constexpr = 4 * BLOCKS
    TAPS: tl.constexpr = 3 ** (AXES - 1) * LAST
    voxel = tl.program_id(0) * VOXELS + tl.arange(0, VOXELS)
    problem = tl.program_id(1) * PROBLEMS + tl.arange(0, PROBLEMS)
    label = tl.arange(0, LABELS)
    known = (label < n_labels)[None, None, :]
    position = tl.load(index + voxel, mask=voxel < voxels, other=0)
    energy = tl.load(
        unaries + label[None, :] * rows + voxel[:, None],
        mask=(label < n_labels)[None, :],
        other=0.0,
    )[:, None, :]
    energy = tl.broadcast_to(energy, (VOXELS, PROBLEMS, LABELS))
    channel = (problem * padded)[None, :, None] + label[None, None, :] - 1
    real = (problem < problems)[None, :, None] & (label >= 1)[None, None, :] & known
    node_channel = (problem * n_labels)[None, :, None] + label[None, None, :]
    node_real = (problem < problems)[None, :, None] & known
    smooth = tl.zeros((VOXELS, PROBLEMS, LABELS), tl.float32)
    x3 = position % shape_3
    x2 = (position // shape_3) % shape_2
    x1 = (position // shape_3 // shape_2) % shape_1
    x0 = position // shape_3 // shape_2 // shape_1
    for f in range(n_lengths):
        table = f * 4 * longest
        corner = tl.load(firsts + table + x0) + tl.load(firsts + table + longest + x1)
        corner += tl.load(firsts + table + 2 * longest + x2)
        corner += tl.load(firsts + table + 3 * longest + x3)
        for tap in range(TAPS):
            digit = tap % LAST
            node = corner + tl.load(steps + f * 4 + 3) * digit
            share = tl.load(weights + (table + 3 * longest + x3) * 3 + digit)
            if AXES > 1:
                digit = tap // LAST % 3
                node += tl.load(steps + f * 4 + 2) * digit
                share *= tl.load(weights + (table + 2 * longest + x2) * 3 + digit)
            if AXES > 2:
                digit = tap // (3 * LAST) % 3
                node += tl.load(steps + f * 4 + 1) * digit
                share *= tl.load(weights + (table + longest + x1) * 3 + digit)
            if AXES > 3:
                digit = tap // (9 * LAST)
                node += tl.load(steps + f * 4) * digit
                share *= tl.load(weights + (table + x0) * 3 + digit)
            at_node = nodes + (node * node_stride)[:, None, None] + node_channel
            values = tl.load(at_node, mask=node_real, other=0.0)
            smooth += share[:, None, None] * values
    if NOISY:
        sample = tl.load(samples + problem, mask=problem < problems, other=0)
        flip = tl.zeros((PROBLEMS,), tl.uint32)
        if ANTITHETIC:
            flip = tl.where((sample & 1) != 0, 0xFFFFFFFF, 0).to(tl.uint32)
            sample -= sample & 1
        nothing = tl.zeros((VOXELS, PROBLEMS, BLOCKS), tl.uint32)
        c0 = nothing + position.to(tl.uint32)[:, None, None]
        c1 = nothing + sample.to(tl.uint32)[None, :, None]
        c2 = nothing + tl.arange(0, BLOCKS).to(tl.uint32)[None, None, :]
        c3 = nothing + (position >> 32).to(tl.uint32)[:, None, None]
        w0, w1, w2, w3 = philox(c0, c1, c2, c3, first_key.to(tl.uint32), second_key.to(tl.uint32))
        words = tl.join(tl.join(w0, w2), tl.join(w1, w3))  # (…, BLOCKS, 2, 2), rising
        words = tl.reshape(words, (VOXELS, PROBLEMS, LABELS)) ^ flip[None, :, None]
        if TOGETHER:
            smooth = tl.fma(normal_from_bits(words), white, smooth)
        else:
            energy = tl.fma(log_exponential(words), per_log, energy)
    if TOGETHER:
        energy = tl.fma(minus_gumbel(smooth), scale, energy)
    energy = tl.where(known, energy, NO_LABEL)
    lowest = tl.min(energy, axis=2)
    away = tl.minimum(energy - lowest[:, :, None], ceiling)
    zero = tl.sum(tl.where((label == 0)[None, None, :], away, 0.0), axis=2)
    stored = (away - zero[:, :, None]).to(energies.dtype.element_ty)
    at = (voxel.to(tl.int64) * stride)[:, None, None] + channel
    tl.store(energies + at, stored, mask=real)
    if START:
        logits = tl.where(known, -sharpness * stored.to(tl.float32), -NO_LABEL)
        highest = tl.max(logits, axis=2)
        shares = tl.exp(logits - highest[:, :, None])
        new = shares / tl.sum(shares, axis=2)[:, :, None]
        tl.store(marginals + at, new.to(marginals.dtype.element_ty), mask=real)
        best = tl.min(tl.where(logits == highest[:, :, None], label[None, None, :], LABELS), axis=2)
        # Written so that the compiler sees that voxels lie side by side.
        first = tl.program_id(0) * VOXELS
        row = ((first // TILE).to(tl.int64) * problems + problem) * TILE + first % TILE
        where = row[None, :] + tl.arange(0, VOXELS)[:, None]
        tl.store(labels + where, best.to(tl.uint8), mask=(problem < problems)[None, :])


def perturb(
    problem: Unaries,
    noise: Noise,
    layout: BatchLayout,
    energies: torch.Tensor,
    start: tuple[torch.Tensor, torch.Tensor] | None,
    *,
    sharpness: float,
) -> None:
    """Fill ``energies`` (rows, stride) and, where given, the marginals and labels to start at."""
    marginals, labels = (energies, noise.samples) if start is None else start
    scale, white = noise.perturbation.scale, noise.white
    blocks = 1 << (-(-layout.n_labels // 4) - 1).bit_length()
    problems = max(1, ELEMENTS // (VOXELS * 4 * blocks))
    _perturb[(layout.rows // VOXELS, triton.cdiv(layout.problems, problems))](
        problem.energies, problem.index, noise.samples, energies, marginals, labels,
        noise.nodes, noise.firsts, noise.weights, noise.steps,
        *noise.key, scale * math.log(2), scale, white or 0.0, problem.ceiling, sharpness,
        layout.voxels, layout.rows, layout.problems, layout.n_labels, energies.stride(0),
        noise.nodes.stride(0), len(noise.firsts), noise.firsts.shape[2],
        *noise.shape[1:], layout.padded,
        ANTITHETIC=noise.perturbation.antithetic, NOISY=(scale if white is None else white) > 0,
        TOGETHER=white is not None, START=start is not None, AXES=noise.axes, LAST=noise.last,
        VOXELS=VOXELS, PROBLEMS=problems, BLOCKS=blocks, TILE=TILE, num_warps=4,
    )  # fmt: skip


class NoiseDrawer:
    """The noise of one perturbation; see ``Noise`` for the tables."""

    def __init__(
        self, perturbation: Perturbation, grid: Grid, n_labels: int, device: torch.device
    ) -> None:
        self.perturbation = perturbation
        self._n_labels = n_labels
        self._device = device
        self._axes = grid.ndim
        self._lattices = length_lattices(perturbation.lengths, grid, n_labels)
        axes = [lattice.axes for lattice in self._lattices]
        # Nodes far apart are interpolated along the last axis first, once for all voxels: each then
        # reads a third of the rows. Nodes close together would take much memory at every voxel.
        along = [each[-1] for each in axes]
        self._interpolated = all(len(each.first) >= FAR_APART * each.nodes for each in along)
        if self._interpolated:
            axes = [[*each[:-1], each[-1].with_all_voxels] for each in axes]
        self._tables = tables = NodeTables.build(axes, grid)
        self._firsts = torch.from_numpy(tables.firsts).to(device)
        self._weights = torch.from_numpy(tables.weights).to(device)
        self._steps = torch.from_numpy(tables.steps).to(device)

    def draw(self, samples: NDArray[np.int64]) -> Noise:
        """Draw the normals of all labels of some samples on their nodes."""
        shape = (max(1, self._tables.nodes), len(samples), self._n_labels)
        nodes = torch.zeros(shape, dtype=torch.float32, device=self._device)  # (R, B, L)
        numbers = torch.from_numpy(np.asarray(samples, dtype=np.int64)).to(self._device)
        for lattice, start in zip(self._lattices, self._tables.starts):
            cells = torch.from_numpy(lattice.cells).to(self._device)
            step = max(1, NUMBERS_AT_ONCE // (cells.numel() * (self._n_labels + 4)))
            for first in range(0, len(samples), step):
                drawn = self._draw_nodes(lattice, cells, numbers[first : first + step])
                if self._interpolated:
                    drawn = _interpolate_last(drawn, lattice.axes[-1])
                drawn = drawn.flatten(2)
                stop = int(start) + drawn.shape[2]
                nodes[int(start) : stop, first : first + step].copy_(drawn.permute(2, 0, 1))
        tables = (self._firsts, self._weights, self._steps, self._tables.shape)
        last = 1 if self._interpolated else SUPPORT
        return Noise(self.perturbation, numbers, nodes.flatten(1), *tables, self._axes, last)

    def _draw_nodes(
        self, lattice: NodeLattice, cells: torch.Tensor, samples: torch.Tensor
    ) -> torch.Tensor:
        """Return the smooth noise of every label on the nodes, (b, L, *nodes)."""
        antithetic, count = self.perturbation.antithetic, self._n_labels
        drawn = samples & ~1 if antithetic else samples
        sign = (1 - 2 * (samples & 1)).double() if antithetic else torch.ones_like(drawn).double()
        words = self._bits(drawn, cells.reshape(-1), count + count % 2, lattice.stream)
        white = lattice.scale * sign[:, None, None] * _normal(words)[:, :count]
        nodes = white.reshape(len(samples), count, *cells.shape)
        for k, axis in enumerate(lattice.axes):
            taps = axis.taps.tolist()
            nodes = sum(
                (tap * nodes.narrow(2 + k, j, axis.nodes) for j, tap in enumerate(taps)),
                start=torch.zeros((), dtype=torch.float64, device=self._device),
            )
        return nodes

    def _bits(
        self, samples: torch.Tensor, cells: torch.Tensor, count: int, stream: int
    ) -> torch.Tensor:
        """Return 32 random bits each, (b, count, cells), as ``noise.gumbel.bits`` does."""
        low, high = (int(word) for word in key_words(self.perturbation.seed))
        blocks = torch.arange(-(-count // 4), device=cells.device)[:, None]
        counter = torch.broadcast_tensors(
            cells & 0xFFFFFFFF, samples[:, None, None], blocks, (cells >> 32) | (stream << 16)
        )
        words = torch.stack(philox_twin(counter, (low, high)), 2)  # (b, blocks, 4, cells)
        return words.flatten(1, 2)[:, :count]


def _interpolate_last(nodes: torch.Tensor, axis: Axis) -> torch.Tensor:
    """Return the nodes' values (…, nodes) at the voxels along their last axis, (…, n)."""
    first = torch.from_numpy(axis.first).to(nodes.device)
    weights = torch.from_numpy(axis.weights).to(nodes.device)
    total = nodes.index_select(-1, first) * weights[:, 0]
    for j in range(1, SUPPORT):
        total += nodes.index_select(-1, first + j) * weights[:, j]
    return total


def _normal(words: torch.Tensor) -> torch.Tensor:
    """Turn an even number of rows of random bits, (b, rows, cells), into normal ones."""
    u = (words.double() + 0.5) * 2.0**-32
    radius = torch.sqrt(-2 * torch.log(u[:, 0::2]))
    angle = 2 * math.pi * u[:, 1::2]
    return torch.stack([radius * torch.cos(angle), radius * torch.sin(angle)], 2).flatten(1, 2)
