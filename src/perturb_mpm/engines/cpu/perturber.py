"""Perturbed energies in the engine's tiles: Philox and Gumbel noise, compiled.

For sample s, voxel i and label l, with γ the pure function of (seed, s, i, l) that ``noise``
defines,

    Ũ_l = U_l − scale·γ,    energies = min(Ũ_l − lowest, ceiling) − min(Ũ_0 − lowest, ceiling).

White noise takes γ from Philox's words directly. Correlated noise takes γ = −log(−log Φ(g)) of
normals g, which are interpolated from nodes.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import combinations_with_replacement
from typing import Any, NamedTuple

import numpy as np
from numba import int32, types, uint32, uint64
from numba.extending import intrinsic
from numpy.typing import NDArray

from perturb_mpm import checks
from perturb_mpm.engines.cpu.compile import (
    announce_compilation,
    bits_to_float,
    fma,
    kernel,
    kernel_part,
    narrow,
)
from perturb_mpm.engines.cpu.threads import Threads
from perturb_mpm.model import Grid
from perturb_mpm.noise import (
    FARTHEST,
    PHILOX_FACTORS,
    PHILOX_KEY_STEPS,
    PHILOX_ROUNDS,
    NodeTables,
    Perturbation,
    key_words,
    length_lattices,
    polynomials,
    white_share,
)

PLANES = 4  # sums over two axes that are stored: those of a block of voxels
FIRST_FACTOR, SECOND_FACTOR = (np.uint64(each) for each in PHILOX_FACTORS)
FIRST_KEY_STEP, SECOND_KEY_STEP = (np.uint64(each) for each in PHILOX_KEY_STEPS)
LOW = np.uint64(0xFFFFFFFF)
WORD = np.uint64(32)
EVEN = np.uint64(0xFFFFFFFFFFFFFFFE)

LN2 = np.float32(0.6931471805599453)
FARTHEST_32 = np.float32(FARTHEST)
PER_FARTHEST = np.float32(2) / FARTHEST_32
# ``noise/polynomials.py`` says what they approximate.
LOG2 = tuple(np.float32(each) for each in polynomials.LOG2)
NORMAL_NEAR = tuple(np.float32(each) for each in polynomials.NORMAL_NEAR)
NORMAL_FAR = tuple(np.float32(each) for each in polynomials.NORMAL_FAR)
GUMBEL_BELOW = tuple(np.float32(each) for each in polynomials.GUMBEL_BELOW)
GUMBEL_ABOVE = tuple(np.float32(each) for each in polynomials.GUMBEL_ABOVE)
PARTS_PER_THREAD = 4
BLOCK_VOXELS = 256  # voxels whose noise is bounded together
LEAST_VOXELS_PER_NODE = 4
UNIFORM_STEP = np.float32(2.0**-24)
ZERO, ONE = np.float32(0), np.float32(1)
ROOT_HALF = np.int32(0x3F3504F3)  # the bits of √½
ROOT_HALF_24 = np.int32(0x4B3504F3)  # the bits of √½·2^24
MANTISSA = np.int32(0x7FFFFF)


class TiledUnaries(NamedTuple):
    """What is perturbed, in the order of the mask, and the engine's order."""

    base: NDArray[np.float32]  # (L, N)
    order: NDArray[np.int64]  # (V,)
    voxels: NDArray[np.int64]  # (N,): where each voxel lies in the whole image


class NoiseDraw(NamedTuple):
    """Which noise is drawn; ``ceiling`` is that of ``load_problem``."""

    samples: NDArray[np.uint64]  # (B,)
    key: NDArray[np.uint64]  # (2,)
    scale: np.float32
    antithetic: bool
    ceiling: np.float32


class VoxelBlocks(NamedTuple):
    """K blocks of V voxels with constant logits, each between the same nodes of one lattice."""

    rows: NDArray[np.int64]  # (V,): which of all voxels each one is
    voxels: NDArray[np.int64]  # (V,): where it lies in the whole image
    logits: NDArray[np.float32]  # (L, V)
    edges: NDArray[np.int64]  # (K + 1,): where blocks begin and end among the voxels
    labels: NDArray[np.int64]  # (K,): the most probable label of all voxels of a block
    margins: NDArray[np.float32]  # (L, K): how far every label is at least below it, in nats
    cells: NDArray[np.int64]  # (K,): the row of the first node
    controls: NDArray[np.float32]  # (K, 3, 3, 3): of each axis, three combinations of three nodes
    sums: NDArray[np.float32]  # (2,): the least and most that the weights of a voxel add up to


@intrinsic
def float_bits(typing_context, value):
    """Read the bits of a float32 as an integer."""

    def generate(context, builder, signature, arguments):
        return builder.bitcast(arguments[0], context.get_value_type(types.int32))

    return types.int32(types.float32), generate


@kernel_part
def log2_from_bits(bits, root):
    """Compute log2 of the float with these bits against root·√2, to 3e-7 of itself.

    The relative accuracy holds next to 1 too: there it is the logarithm of 1 plus a small exact
    number.
    """
    offset = int32(bits - root)
    small = bits_to_float(int32(int32(offset & MANTISSA) + ROOT_HALF)) - ONE  # from √½ to √2, − 1
    p = fma(LOG2[0], small, LOG2[1])
    p = fma(p, small, LOG2[2])
    p = fma(p, small, LOG2[3])
    p = fma(p, small, LOG2[4])
    p = fma(p, small, LOG2[5])
    p = fma(p, small, LOG2[6])
    p = fma(p, small, LOG2[7])
    return fma(p, small, np.float32(int32(offset >> int32(23))))


@kernel_part
def log_exponential(word):
    """Turn 32 random bits into log2(−log2 u), u = (⌊word / 2^9⌋ + ½)·2^-23."""
    odd = np.float32(int32(uint32(uint32(word >> uint32(8)) | uint32(1))))  # u·2^24, exact
    exponential = -log2_from_bits(float_bits(odd), ROOT_HALF_24)
    return log2_from_bits(float_bits(exponential), ROOT_HALF)


@kernel_part
def philox(index, samples, high, block, key, words, count):
    """Philox 4×32-10 of the counters (index, samples, block, high) of all values: words (4, T·B).

    Words live in the low halves of 64 bits, and what is above them is never cleared: only the low
    half of a factor counts.
    """
    first_key, second_key = key[0], key[1]
    for k in range(count):
        c0, c1, c2, c3 = index[k], samples[k], block, high[k]
        k0, k1 = first_key, second_key
        for _ in range(PHILOX_ROUNDS):
            first, second = (c0 & LOW) * FIRST_FACTOR, (c2 & LOW) * SECOND_FACTOR
            c0, c1 = (second >> WORD) ^ c1 ^ k0, second
            c2, c3 = (first >> WORD) ^ c3 ^ k1, first
            k0 += FIRST_KEY_STEP
            k1 += SECOND_KEY_STEP
        words[0, k] = uint32(c0)
        words[1, k] = uint32(c1)
        words[2, k] = uint32(c2)
        words[3, k] = uint32(c3)


@kernel_part
def _sum_parts(i0, size, unaries, smooth, planes, lines, total):
    """Set each row of ``total``, (T, L·B), to the sum of the smooth parts at a voxel of a tile.

    Along each axis a voxel sees three nodes, the first of them and their weights looked up by its
    coordinate. Images of fewer than four axes have axes of length 1 before their own. Nodes are
    summed axis by axis, and the voxels of a tile, which lie side by side, share what they can:
    ``planes`` (PLANES, 9, L·B) are the sums over the first two axes, ``lines`` (3, L·B) over three.
    """
    shape, nodes, firsts, weights, _ = smooth
    _, order, voxels = unaries
    width = nodes.shape[1]
    owners = np.empty((PLANES, 3), np.int64)
    for f in range(firsts.shape[0]):
        owners[:] = -1
        plane, along = -1, -1  # whose lines there are
        for t in range(size):
            rest = voxels[order[i0 + t]]
            rest, x3 = rest // shape[3], rest % shape[3]
            rest, x2 = rest // shape[2], rest % shape[2]
            x0, x1 = rest // shape[1], rest % shape[1]
            corner = firsts[f, 2, x2] + firsts[f, 3, x3]
            slot = x1 % PLANES
            if owners[slot, 0] != x0 or owners[slot, 1] != x1 or owners[slot, 2] != corner:
                owners[slot, 0], owners[slot, 1], owners[slot, 2] = x0, x1, corner
                _sum_plane(f, x0, x1, corner, smooth, planes, slot)
                plane = -1
            if slot != plane or x2 != along:
                plane, along = slot, x2
                y0, y1, y2 = weights[f, 2, x2, 0], weights[f, 2, x2, 1], weights[f, 2, x2, 2]
                for d in range(3):
                    for k in range(width):
                        near = fma(y1, planes[slot, 3 + d, k], y0 * planes[slot, d, k])
                        lines[d, k] = fma(y2, planes[slot, 6 + d, k], near)
            z0, z1, z2 = weights[f, 3, x3, 0], weights[f, 3, x3, 1], weights[f, 3, x3, 2]
            if f == 0:
                for k in range(width):
                    total[t, k] = 0
            for k in range(width):
                near = fma(z1, lines[1, k], fma(z0, lines[0, k], total[t, k]))
                total[t, k] = fma(z2, lines[2, k], near)


@kernel_part
def _sum_plane(f, x0, x1, corner, smooth, planes, slot):
    """Sum nodes over the first two axes, for three nodes along each of the other two."""
    _, nodes, firsts, weights, steps = smooth
    width = nodes.shape[1]
    first = corner + firsts[f, 0, x0] + firsts[f, 1, x1]
    for c in range(3):
        for d in range(3):
            row = 3 * c + d
            for k in range(width):
                planes[slot, row, k] = 0
            for a in range(3):
                outer = weights[f, 0, x0, a]
                if outer == 0:
                    continue
                j0 = first + a * steps[f, 0] + c * steps[f, 2] + d * steps[f, 3]
                j1 = j0 + steps[f, 1]
                j2 = j1 + steps[f, 1]
                w0, w1, w2 = weights[f, 1, x1, 0], weights[f, 1, x1, 1], weights[f, 1, x1, 2]
                w0, w1, w2 = outer * w0, outer * w1, outer * w2
                for k in range(width):
                    near = fma(w1, nodes[j1, k], fma(w0, nodes[j0, k], planes[slot, row, k]))
                    planes[slot, row, k] = fma(w2, nodes[j2, k], near)


@kernel_part
def _count_samples(noise, tile):
    """Return the sample of each value of a tile, (T·B,), and which of its random bits are flipped.

    The words of an antithetic sample 2t + 1 are those of 2t with every bit flipped.
    """
    samples, _, _, antithetic, _ = noise
    problems = samples.size
    sample, flip = np.empty(tile * problems, np.uint64), np.empty(tile * problems, np.uint32)
    for k in range(tile * problems):
        sample[k] = samples[k % problems] & (EVEN if antithetic else LOW)
        flip[k] = LOW if antithetic and samples[k % problems] & uint64(1) else uint64(0)
    return sample, flip


@kernel
def perturb(unaries, energies, noise, start, stop):
    """Set the energies of some tiles to U − scale·γ, each against label 0's."""
    base, order, voxels = unaries
    samples, key, scale, _, ceiling = noise
    _, count, values = energies.shape
    problems = samples.size
    tile = values // problems
    index, high = np.empty(values, np.uint64), np.empty(values, np.uint64)
    shaped_index, shaped_high = index.reshape(tile, problems), high.reshape(tile, problems)
    sample, flip = _count_samples(noise, tile)
    words = np.empty((4, values), np.uint32)
    all_energies = np.empty((count + 1, values), np.float32)
    shaped_energies = all_energies.reshape(count + 1, tile, problems)
    lowest, zero = np.empty(values, np.float32), np.empty(values, np.float32)
    per_log = scale * LN2
    for block in range(start, stop):
        i0 = block * tile
        size = min(tile, order.size - i0)
        used = size * problems
        for t in range(size):
            i = order[i0 + t]
            voxel = uint64(voxels[i])
            for b in range(problems):
                shaped_index[t, b] = voxel & LOW
                shaped_high[t, b] = voxel >> WORD
            for l in range(count + 1):
                unary = base[l, i]
                for b in range(problems):
                    shaped_energies[l, t, b] = unary
        for first in range(0, count + 1, 4):
            philox(index, sample, high, uint64(first // 4), key, words, used)
            for w in range(min(4, count + 1 - first)):
                l = first + w
                for k in range(used):
                    drawn = log_exponential(uint32(words[w, k] ^ flip[k]))
                    all_energies[l, k] = fma(per_log, drawn, all_energies[l, k])
        _against_first(all_energies, lowest, zero, energies, block, used, ceiling)


@kernel_part
def _against_first(all_energies, lowest, zero, energies, block, used, ceiling):
    """Set a tile to energies (L, T·B), cut at ``ceiling`` above the lowest, minus label 0's."""
    count = all_energies.shape[0] - 1
    for k in range(used):
        lowest[k] = all_energies[0, k]
    for l in range(count):
        for k in range(used):
            lowest[k] = min(lowest[k], all_energies[l + 1, k])
    for k in range(used):
        zero[k] = min(all_energies[0, k] - lowest[k], ceiling)
    for l in range(count):
        for k in range(used):
            away = min(all_energies[l + 1, k] - lowest[k], ceiling) - zero[k]
            energies[block, l, k] = narrow(away, energies[block, l, k])


@kernel_part
def normal_from_bits(word):
    """Turn 32 random bits into Φ⁻¹(u), u = (⌊word / 2^9⌋ + ½)·2^-23, to 1e-6 of itself."""
    odd = int32(uint32(uint32(word >> uint32(8)) | uint32(1)))
    u = np.float32(odd) * UNIFORM_STEP  # exact, and so is 1 − u
    w = -LN2 * log2_from_bits(float_bits(np.float32(4) * u * (ONE - u)), ROOT_HALF)
    near = w - np.float32(2.5)
    p = fma(NORMAL_NEAR[0], near, NORMAL_NEAR[1])
    p = fma(p, near, NORMAL_NEAR[2])
    p = fma(p, near, NORMAL_NEAR[3])
    p = fma(p, near, NORMAL_NEAR[4])
    p = fma(p, near, NORMAL_NEAR[5])
    p = fma(p, near, NORMAL_NEAR[6])
    p = fma(p, near, NORMAL_NEAR[7])
    far = np.sqrt(w) - np.float32(3)
    r = fma(NORMAL_FAR[0], far, NORMAL_FAR[1])
    r = fma(r, far, NORMAL_FAR[2])
    r = fma(r, far, NORMAL_FAR[3])
    r = fma(r, far, NORMAL_FAR[4])
    r = fma(r, far, NORMAL_FAR[5])
    r = fma(r, far, NORMAL_FAR[6])
    return (p if w < np.float32(5) else r) * (u + u - ONE)


@kernel_part
def minus_gumbel(g):
    """Compute −γ = log(−log Φ(g)) to 2e-6; g is clipped where Φ is 1e-7 and 1 − 1e-7."""
    g = g if g < FARTHEST_32 else FARTHEST_32
    g = g if g > -FARTHEST_32 else -FARTHEST_32
    x = fma(g, PER_FARTHEST, ONE)
    p = fma(GUMBEL_BELOW[0], x, GUMBEL_BELOW[1])
    p = fma(p, x, GUMBEL_BELOW[2])
    p = fma(p, x, GUMBEL_BELOW[3])
    p = fma(p, x, GUMBEL_BELOW[4])
    p = fma(p, x, GUMBEL_BELOW[5])
    p = fma(p, x, GUMBEL_BELOW[6])
    p = fma(p, x, GUMBEL_BELOW[7])
    p = fma(p, x, GUMBEL_BELOW[8])
    p = fma(p, x, GUMBEL_BELOW[9])
    below = p
    x = fma(g, PER_FARTHEST, -ONE)
    p = fma(GUMBEL_ABOVE[0], x, GUMBEL_ABOVE[1])
    p = fma(p, x, GUMBEL_ABOVE[2])
    p = fma(p, x, GUMBEL_ABOVE[3])
    p = fma(p, x, GUMBEL_ABOVE[4])
    p = fma(p, x, GUMBEL_ABOVE[5])
    p = fma(p, x, GUMBEL_ABOVE[6])
    p = fma(p, x, GUMBEL_ABOVE[7])
    p = fma(p, x, GUMBEL_ABOVE[8])
    p = fma(p, x, GUMBEL_ABOVE[9])
    p = fma(p, x, GUMBEL_ABOVE[10])
    p = fma(p, x, GUMBEL_ABOVE[11])
    p = fma(p, x, GUMBEL_ABOVE[12])
    return below if g < ZERO else p  # both are made: a branch would cost vectors


@kernel
def perturb_correlated(unaries, energies, noise, smooth, white, start, stop):
    """Do what ``perturb`` does with Gumbel noise made of normals correlated between voxels.

    A normal is the sum of smooth parts, and of ``white`` times a normal of each voxel's own.
    """
    base, order, voxels = unaries
    samples, key, scale, _, ceiling = noise
    _, count, values = energies.shape
    problems = samples.size
    tile = values // problems
    index, high = np.empty(values, np.uint64), np.empty(values, np.uint64)
    shaped_index, shaped_high = index.reshape(tile, problems), high.reshape(tile, problems)
    sample, flip = _count_samples(noise, tile)
    words = np.empty((4, values), np.uint32)
    normals = np.empty((count + 1, values), np.float32)
    shaped_normals = normals.reshape(count + 1, tile, problems)
    perturbed = np.empty((count + 1, values), np.float32)
    shaped_perturbed = perturbed.reshape(count + 1, tile, problems)
    lowest, zero = np.empty(values, np.float32), np.empty(values, np.float32)
    summed = np.zeros((tile, (count + 1) * problems), np.float32)
    planes = np.empty((PLANES, 9, summed.shape[1]), np.float32)
    lines = np.empty((3, summed.shape[1]), np.float32)
    shaped_sums = summed.reshape(tile, count + 1, problems)
    for block in range(start, stop):
        i0 = block * tile
        size = min(tile, order.size - i0)
        used = size * problems
        _sum_parts(i0, size, unaries, smooth, planes, lines, summed)
        for t in range(size):
            i = order[i0 + t]
            voxel = uint64(voxels[i])
            for b in range(problems):
                shaped_index[t, b] = voxel & LOW
                shaped_high[t, b] = voxel >> WORD
            for l in range(count + 1):
                unary = base[l, i]
                for b in range(problems):
                    shaped_normals[l, t, b] = shaped_sums[t, l, b]
                    shaped_perturbed[l, t, b] = unary
        if white > np.float32(0):
            for first in range(0, count + 1, 4):
                philox(index, sample, high, uint64(first // 4), key, words, used)
                for w in range(min(4, count + 1 - first)):
                    l = first + w
                    for k in range(used):
                        own = normal_from_bits(uint32(words[w, k] ^ flip[k]))
                        normals[l, k] = fma(white, own, normals[l, k])
        for l in range(count + 1):
            for k in range(used):
                perturbed[l, k] = fma(scale, minus_gumbel(normals[l, k]), perturbed[l, k])
        _against_first(perturbed, lowest, zero, energies, block, used, ceiling)


@kernel
def mark_near(blocks, smooth, scale, nats, near, start, stop):
    """Mark voxels (V,) of some blocks that noise brings within so many nats of another label.

    A voxel is looked at in those samples alone whose noise may be large enough in its block.
    """
    nodes, labels = smooth[1], blocks.margins.shape[0]
    width = nodes.shape[1]
    problems = width // labels
    low, high = np.empty(width, np.float32), np.empty(width, np.float32)
    buffers = np.empty((2, 27, width), np.float32)
    leads = np.empty((problems, labels), np.float32)  # what noise may take off a margin
    numbers = np.empty(problems, np.int64)
    for k in range(start, stop):
        _bound_normals(k, blocks, nodes, smooth[4], buffers, low, high)
        mine = blocks.labels[k]
        unsafe = 0  # samples in which the block may have a voxel that is near
        for b in range(problems):
            most = minus_gumbel(low[mine * problems + b])
            safe = True
            for l in range(labels):
                lead = scale * (most - minus_gumbel(high[l * problems + b])) + nats
                leads[unsafe, l] = lead
                safe = safe and (l == mine or lead < blocks.margins[l, k])
            numbers[unsafe] = b
            unsafe += 0 if safe else 1
        if unsafe == 0:
            continue
        for v in range(blocks.edges[k], blocks.edges[k + 1]):
            found = near[blocks.rows[v]]
            for u in range(unsafe):
                if found:
                    break
                safe = True
                for l in range(labels):
                    margin = blocks.logits[mine, v] - blocks.logits[l, v]
                    safe = safe and (l == mine or leads[u, l] < margin)
                if not safe:
                    b = numbers[u]
                    found = _is_near(v, b, mine, blocks, smooth, scale, nats)
            near[blocks.rows[v]] = found


@kernel_part
def _bound_normals(k, blocks, nodes, steps, buffers, low, high):
    """Bound the normals of a block, (L·B,): they lie in the hull of its 27 control points.

    The control points of a quadratic spline between two ends of an axis are three combinations of
    the three nodes there; those of three axes are made axis by axis.
    """
    width = low.size
    for c in range(3):
        for d in range(3):
            j = blocks.cells[k] + c * steps[0, 1] + d * steps[0, 2]
            for p in range(3):
                w = blocks.controls[k, 2, p]
                for i in range(width):
                    near = fma(w[1], nodes[j + steps[0, 3], i], w[0] * nodes[j, i])
                    far = nodes[j + 2 * steps[0, 3], i]
                    buffers[0, 9 * c + 3 * d + p, i] = fma(w[2], far, near)
    _combine_controls(blocks.controls[k, 1], buffers[0], buffers[1], np.int64(3))
    _combine_controls(blocks.controls[k, 0], buffers[1], buffers[0], np.int64(9))
    for i in range(width):
        low[i] = high[i] = buffers[0, 0, i]
    for q in range(1, 27):
        for i in range(width):
            low[i] = min(low[i], buffers[0, q, i])
            high[i] = max(high[i], buffers[0, q, i])
    smallest, largest = blocks.sums[0], blocks.sums[1]
    for i in range(width):
        low[i] *= largest if low[i] < ZERO else smallest
        high[i] *= largest if high[i] > ZERO else smallest


@kernel_part
def _combine_controls(weights, source, target, step):
    """Combine rows (27, L·B) along the axis whose rows are ``step`` apart."""
    for row in range(27):
        if row // step % 3:
            continue
        for p in range(3):
            for i in range(source.shape[1]):
                near = fma(weights[p, 1], source[row + step, i], weights[p, 0] * source[row, i])
                target[row + p * step, i] = fma(weights[p, 2], source[row + 2 * step, i], near)


@kernel_part
def _is_near(v, b, mine, blocks, smooth, scale, nats):
    """Tell whether another label of one voxel comes near to its own in one sample."""
    shape, nodes, firsts, weights, steps = smooth
    labels = blocks.logits.shape[0]
    problems = nodes.shape[1] // labels
    rest, x3 = blocks.voxels[v] // shape[3], blocks.voxels[v] % shape[3]
    x1, x2 = rest // shape[2], rest % shape[2]
    first = firsts[0, 0, 0] + firsts[0, 1, x1] + firsts[0, 2, x2] + firsts[0, 3, x3]
    own, highest = ZERO, np.float32(-np.inf)
    for l in range(labels):
        normal = ZERO
        for c in range(3):
            for d in range(3):
                plane = weights[0, 1, x1, c] * weights[0, 2, x2, d]
                j = first + c * steps[0, 1] + d * steps[0, 2]
                for e in range(3):
                    node = nodes[j + e * steps[0, 3], l * problems + b]
                    normal = fma(plane * weights[0, 3, x3, e], node, normal)
        logit = blocks.logits[l, v] - scale * minus_gumbel(normal)
        if l == mine:
            own = logit
        else:
            highest = max(highest, logit)
    return own - highest < nats


class Perturber:
    """One perturbation of one set of unaries (L, N), in the order of the engine.

    Correlated noise reaches the kernel as normals on nodes, all samples side by side, and the
    kernel interpolates: node rows (R, L·B) of all lengths one after the other, which a voxel finds
    by ``NodeTables``.
    """

    def __init__(
        self,
        perturbation: Perturbation,
        unaries: NDArray[np.floating],
        grid: Grid,
        order: NDArray[np.int64],
        threads: Threads,
    ) -> None:
        self.perturbation = perturbation
        # Read-only as the grid's index is, so that one compiled kernel serves every caller.
        base = checks.read_only(np.ascontiguousarray(unaries, dtype=np.float32).view())
        self._unaries = TiledUnaries(base, checks.read_only(order.view()), grid.index)
        self._threads = threads
        self._lattices = length_lattices(perturbation.lengths, grid, len(unaries))
        self._tables = NodeTables.build([each.axes for each in self._lattices], grid)
        self._drawn = ((), np.empty((0, 0), dtype=np.float32))  # the last samples, and their nodes

    def fill(
        self,
        energies: NDArray[Any],
        samples: NDArray[np.int64],
        ceiling: np.float32,
        order: NDArray[np.int64] | None = None,
    ) -> None:
        """Set the tiles ``energies`` (tiles, L − 1, T·B) to the perturbed unaries of B samples.

        The result is that of ``load_problem`` for each of them. ``order`` (V,) takes these voxels
        in place of the engine's.
        """
        chosen = self.perturbation
        noise = NoiseDraw(
            samples.astype(np.uint64),
            key_words(chosen.seed).astype(np.uint64),
            np.float32(chosen.scale),
            chosen.antithetic,
            ceiling,
        )
        smooth = self._smooth(samples) if chosen.correlated else ()
        unaries = self._unaries
        if order is not None:
            unaries = unaries._replace(order=checks.read_only(order.view()))
        with announce_compilation():
            self._threads.run(
                perturb_correlated if chosen.correlated else perturb,
                len(energies),
                *(unaries, energies, noise, *smooth),
            )

    @property
    def is_smooth(self) -> bool:
        """Whether noise is small in most blocks of voxels at once, so that bounds save time."""
        if not self.perturbation.correlated or len(self._lattices) != 1:
            return False
        one_length = white_share(self.perturbation.lengths) == 0 and self._tables.shape[0] == 1
        return one_length and self._lattices[0].voxels_per_node >= LEAST_VOXELS_PER_NODE

    def find_near(
        self,
        voxels: NDArray[np.int64],
        logits: NDArray[np.float32],
        batches: Sequence[NDArray[np.int64]],
        nats: float,
    ) -> NDArray[np.bool_]:
        """Return which of some voxels (V,) noise brings within so many nats of another label, (V,).

        Neighbours must be near each other. ``logits`` (L, V) are those without noise; samples come
        in batches.
        """
        near = np.zeros(len(voxels), dtype=np.bool_)
        smooth = [self._smooth(samples)[0] for samples in batches]
        scale = np.float32(self.perturbation.scale)

        def mark(part: slice) -> None:
            blocks = self._gather_blocks(voxels[part], logits[:, part])
            count = len(blocks.labels)
            for each in smooth:
                mark_near(blocks, each, scale, np.float32(nats), near[part], 0, count)

        size = max(1, -(-len(voxels) // (PARTS_PER_THREAD * self._threads.count)))
        parts = [slice(i, i + size) for i in range(0, len(voxels), size)]
        with announce_compilation():
            self._threads.each(mark, parts)
        return near

    def _gather_blocks(self, voxels: NDArray[np.int64], logits: NDArray[np.float32]) -> VoxelBlocks:
        """Return blocks of some voxels (V,) with logits (L, V)."""
        tables = self._tables
        index = self._unaries.voxels[voxels]
        coordinates = np.unravel_index(index, tables.shape)
        cells = sum(first[x] for first, x in zip(tables.firsts[0], coordinates))  # (F,)
        labels = logits.argmax(axis=0)
        keys = labels * tables.nodes + cells
        together = np.argsort(keys, kind="stable")
        new = np.flatnonzero(np.diff(keys[together], prepend=-1))
        within = np.arange(len(keys)) - np.repeat(new, np.diff(new, append=len(keys)))
        starts = np.flatnonzero(within % BLOCK_VOXELS == 0)
        logits = np.ascontiguousarray(logits[:, together])
        controls = np.empty((len(starts), 3, 3, 3), dtype=np.float32)
        for axis, x in enumerate(coordinates[1:]):
            weights = tables.weights[0, 1 + axis]  # (longest, 3)
            sums = np.maximum(weights.sum(axis=1), np.finfo(np.float32).tiny)
            offsets = ((weights[:, 2] - weights[:, 0]) / sums)[x[together]]  # from −½ to ½
            ends = np.minimum.reduceat(offsets, starts), np.maximum.reduceat(offsets, starts)
            for p, (u, v) in enumerate(combinations_with_replacement(ends, 2)):
                outer = (0.5 - u) * (0.5 - v) / 2, (0.5 + u) * (0.5 + v) / 2
                spline = np.stack([outer[0], 1 - outer[0] - outer[1], outer[1]], axis=1)
                controls[:, axis, p] = spline if tables.steps[0, 1 + axis] else (1, 0, 0)
        highest = logits.max(axis=0)
        sums = tables.weights[0].sum(axis=2)  # (axes, longest); 0 where there is no voxel
        least = np.where(sums > 0, sums, np.inf).min(axis=1).prod()
        return VoxelBlocks(
            together,
            index[together],
            logits,
            np.append(starts, len(keys)),
            labels[together][starts],
            np.minimum.reduceat(highest - logits, starts, axis=1),
            cells[together][starts],
            controls,
            np.array([least, sums.max(axis=1).prod()], dtype=np.float32),
        )

    def _smooth(self, samples: NDArray[np.int64]) -> tuple[Any, np.float32]:
        """Return the smooth part of the noise as the kernel takes it, and the white part's size."""
        tables = self._tables
        shape, nodes = np.array(tables.shape, dtype=np.int64), self._nodes(samples)
        white = np.float32(white_share(self.perturbation.lengths))
        return (shape, nodes, tables.firsts, tables.weights, tables.steps), white

    def _nodes(self, samples: NDArray[np.int64]) -> NDArray[np.float32]:
        """Draw the normals on their nodes, (R, L·B), unless these were the last that were drawn."""
        names = tuple(samples.tolist())
        if self._drawn[0] != names:
            self._drawn = names, self._draw_nodes(samples)
        return self._drawn[1]

    def _draw_nodes(self, samples: NDArray[np.int64]) -> NDArray[np.float32]:
        labels, problems = len(self._unaries.base), len(samples)
        nodes = np.empty((self._tables.nodes, labels, problems), dtype=np.float32)

        def draw(b: int) -> None:
            seed, antithetic = self.perturbation.seed, self.perturbation.antithetic
            for lattice, start in zip(self._lattices, self._tables.starts):
                drawn = lattice.draw(seed, int(samples[b]), antithetic=antithetic)
                rows = drawn.reshape(labels, -1).T
                nodes[start : start + len(rows), :, b] = rows

        with ThreadPoolExecutor(self._threads.count) as pool:
            list(pool.map(draw, range(problems)))
        return nodes.reshape(-1, labels * problems)
