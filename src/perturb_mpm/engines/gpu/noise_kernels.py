"""Random words and noise inside a kernel, bit for bit those of ``noise.py`` and of the CPU engine.

Noise is made in units of log 2: with u the uniform number and E = −log2 u, Gumbel noise is
γ = −log(−log u) = −log 2·log2 E − log(log 2), and the constant falls out against label 0.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

ROUNDS = tl.constexpr(10)
FIRST_FACTOR, SECOND_FACTOR = tl.constexpr(0xD2511F53), tl.constexpr(0xCD9E8D57)
FIRST_KEY_STEP, SECOND_KEY_STEP = tl.constexpr(0x9E3779B9), tl.constexpr(0xBB67AE85)
ROOT_HALF = tl.constexpr(0x3F3504F3)  # the bits of √½
ROOT_HALF_24 = tl.constexpr(0x4B3504F3)  # the bits of √½·2^24
MANTISSA = tl.constexpr(0x7FFFFF)

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
def _log2(bits, root):
    """Compute log2 of the float with these bits against root·√2, to 3e-7 of itself."""
    offset = bits - root
    small = ((offset & MANTISSA) + ROOT_HALF).to(tl.float32, bitcast=True) - 1.0
    p = tl.fma(small, -0.14581151, 0.2340423)
    p = tl.fma(p, small, -0.24887688)
    p = tl.fma(p, small, 0.2870987)
    p = tl.fma(p, small, -0.36023962)
    p = tl.fma(p, small, 0.48092324)
    p = tl.fma(p, small, -0.7213528)
    p = tl.fma(p, small, 1.4426949)
    return tl.fma(p, small, (offset >> 23).to(tl.float32))


@triton.jit
def log_exponential(word):
    """Turn 32 random bits into log2(−log2 u), u = (⌊word / 2^9⌋ + ½)·2^-23."""
    odd = ((word >> 8) | 1).to(tl.int32).to(tl.float32)  # u·2^24, exact
    exponential = -_log2(odd.to(tl.int32, bitcast=True), ROOT_HALF_24)
    return _log2(exponential.to(tl.int32, bitcast=True), ROOT_HALF)


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


def log_exponential_twin(words: torch.Tensor) -> torch.Tensor:
    """Return log2(−log2 u) of random words in the low halves of int64, in float64."""
    uniform = ((words >> 9).double() + 0.5) * 2.0**-23
    return torch.log2(-torch.log2(uniform))
