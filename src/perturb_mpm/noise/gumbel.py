"""Gumbel noise as a pure function of (seed, sample, voxel, label), by a counter-based generator.

Nothing is drawn in sequence: the number of a voxel is found by encrypting its name. So it does not
depend on the batch, the order of voxels, the mask, the threads or what was drawn before.

The generator is Philox 4×32-10 (Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as
1, 2, 3", SC 2011): 128 bits of counter and 64 of key become four words of 32 bits. Here

    counter 0   the low 32 bits of the index (of a voxel in the image, of a cell of smooth noise)
    counter 1   the sample
    counter 2   label // 4; the label takes word label % 4 of what comes out
    counter 3   the next 16 bits of the index, and above them the stream: 0 for voxels
    key         the low and the high 32 bits of the seed
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from perturb_mpm import checks

LARGEST_SEED = 2**64 - 1
SAMPLES = 2**32
INDEX_BITS = 48
STREAMS = 2**16

PHILOX_ROUNDS = 10
PHILOX_FACTORS = 0xD2511F53, 0xCD9E8D57
PHILOX_KEY_STEPS = 0x9E3779B9, 0xBB67AE85

_AT_ONCE = 2**15  # numbers, so that their 64-bit words stay in the cache
_LOW = np.uint64(0xFFFFFFFF)
_WORD = np.uint64(32)
_FACTORS = tuple(np.uint64(each) for each in PHILOX_FACTORS)
_KEY_STEPS = tuple(np.uint64(each) for each in PHILOX_KEY_STEPS)


def philox(counter: NDArray[np.uint32], key: NDArray[np.uint32]) -> NDArray[np.uint32]:
    """Encrypt counters (…, 4) by keys (…, 2) into random words (…, 4), Philox 4×32-10."""
    c0, c1, c2, c3 = (counter[..., w].astype(np.uint64) for w in range(4))
    k0, k1 = (key[..., w].astype(np.uint64) for w in range(2))
    return np.stack(_encrypt(c0, c1, c2, c3, k0, k1), axis=-1)


def bits(
    seed: int,
    samples: NDArray[np.int64],
    indices: NDArray[np.int64],
    count: int,
    stream: int = 0,
) -> NDArray[np.uint32]:
    """Return 32 random bits for B samples, ``count`` labels and N indices, (B, count, N)."""
    blocks = -(-count // 4)
    low, high = (indices & 0xFFFFFFFF), (indices >> 32) | (stream << 16)  # (N,)
    words = _encrypt(
        low.astype(np.uint64),
        samples.astype(np.uint64)[:, np.newaxis, np.newaxis],
        np.arange(blocks, dtype=np.uint64)[:, np.newaxis],
        high.astype(np.uint64),
        *key_words(seed).astype(np.uint64),
    )  # four of (B, blocks, N)
    return np.stack(words, axis=2).reshape(len(samples), 4 * blocks, indices.size)[:, :count]


def key_words(seed: int) -> NDArray[np.uint32]:
    """Return the low and the high 32 bits of a seed, (2,)."""
    return np.array([seed & 0xFFFFFFFF, seed >> 32], dtype=np.uint32)


def gumbel(
    seed: int, samples: ArrayLike, voxels: ArrayLike, n_labels: int, *, antithetic: bool = False
) -> NDArray[np.float32]:
    """Return γ = −log(−log u), (B, L, N), for B samples and the N voxels of these flat indices.

    u = (k + ½)·2⁻²³ with k the upper 23 of 32 random bits: exact in float32 and never 0 or 1, so
    that γ lies between −2.82 and 16.64. With ``antithetic`` samples 2t and 2t + 1 share their bits,
    and the odd one takes 1 − u.
    """
    seed = checked_seed(seed)
    chosen = checked_samples(samples)
    indices = _checked_indices(voxels, "voxels", 2**INDEX_BITS)
    n_labels = checks.integer(
        n_labels, "n_labels", minimum=checks.FEWEST_LABELS, maximum=checks.MOST_LABELS
    )
    antithetic = checks.flag(antithetic, "antithetic")
    noise = np.empty((chosen.size, n_labels, indices.size), dtype=np.float32)
    step = max(1, _AT_ONCE // max(1, n_labels * indices.size))
    for start in range(0, chosen.size, step):
        part = chosen[start : start + step]
        if antithetic:
            words = bits(seed, part & ~1, indices, n_labels)  # (b, L, N)
            words = np.where(part[:, np.newaxis, np.newaxis] & 1, ~words, words)
        else:
            words = bits(seed, part, indices, n_labels)
        noise[start : start + step] = -np.log(-np.log(uniform(words)))
    return noise


def uniform(words: NDArray[np.uint32]) -> NDArray[np.float64]:
    """Return (k + ½)·2⁻²³, k the upper 23 bits of each word; of ~word it is 1 − u."""
    return ((words >> 9).astype(np.float64) + 0.5) * 2.0**-23


def checked_seed(seed: object) -> int:
    """Return the seed after checking that it has at most 64 bits."""
    return checks.integer(seed, "seed", minimum=0, maximum=LARGEST_SEED)


def checked_samples(samples: ArrayLike) -> NDArray[np.int64]:
    """Return the numbers of samples, (B,), after checking that each has at most 32 bits."""
    return _checked_indices(samples, "samples", SAMPLES)


def _checked_indices(values: ArrayLike, name: str, limit: int) -> NDArray[np.int64]:
    indices = checks.whole(values, name)
    if indices.ndim != 1:
        raise ValueError(f"{name} must have one axis, got shape {indices.shape}")
    checks.in_range(indices, name, limit)
    return indices


def _encrypt(
    c0: NDArray[np.uint64],
    c1: NDArray[np.uint64],
    c2: NDArray[np.uint64],
    c3: NDArray[np.uint64],
    k0: NDArray[np.uint64],
    k1: NDArray[np.uint64],
) -> list[NDArray[np.uint32]]:
    """Do the ten rounds on words in the low halves of 64 bits, broadcast against each other."""
    for _ in range(PHILOX_ROUNDS):
        first, second = _FACTORS[0] * c0, _FACTORS[1] * c2
        c0, c1 = (second >> _WORD) ^ c1 ^ k0, second & _LOW
        c2, c3 = (first >> _WORD) ^ c3 ^ k1, first & _LOW
        k0, k1 = (k0 + _KEY_STEPS[0]) & _LOW, (k1 + _KEY_STEPS[1]) & _LOW
    return [word.astype(np.uint32) for word in np.broadcast_arrays(c0, c1, c2, c3)]
