"""Temperature and bias by the likelihood of true labels near foreground, with kernels or without.

With the messages m of a mean field held fixed, log q = log p / T + bias + m up to a constant, and
the likelihood of 1/T and the biases has one maximum. Messages are then computed again under what
was found: a few rounds agree to three digits.

Of a handful of cases only half of what is found near foreground is taken, √T and half of the bias:
it has most of the gain of likelihood, half of the harm where the cases were odd, and half of the
inflation that a temperature chosen near foreground brings to what lies far from it. Of many cases
all voxels count, with a bias for each label: volumes that are expected over all cases are then the
true ones.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from perturb_mpm.engines import softmax
from perturb_mpm.progress import Progress
from perturb_mpm.run import RunSettings
from perturb_mpm.tune.problem import LabelledProblem

ROUNDS = 3
# A pull of bias and log temperature towards 0, in nats a case near foreground: it decides only
# where a label has next to no voxels.
PULL = 1e-3
_COLDEST, _HOTTEST = math.log(0.25), math.log(8.0)
_MOST_BIAS = 6.0
_DIGITS = 4


@dataclass(frozen=True, eq=False)
class Observed:
    """What the likelihood of one case is made of; it is divided by ``near``, a number of voxels."""

    scores: NDArray[np.float32]  # (L, n): log p where 1/T multiplies it, 0 where it does not
    offsets: NDArray[np.float32]  # (L, n): the messages, and log p where 1/T does not
    truth: NDArray[np.int64]  # (n,)
    near: float


_SURE = 1e-5
# Of a large case every few voxels are enough for a handful of numbers.
_MOST_VOXELS = 20_000


def observe(
    problem: LabelledProblem,
    settings: RunSettings,
    messages: NDArray[np.float64] | None = None,
    *,
    everywhere: bool,
) -> Observed:
    """Return what is seen of a case near foreground or everywhere, given a mean field's messages.

    ``messages`` are (L, N). Everywhere, voxels that no one doubts are left out.
    """
    p = problem.probabilities
    doubted = (p[0] < 1 - _SURE) if everywhere else False
    used = np.flatnonzero(problem.near | doubted)
    step = -(-len(used) // _MOST_VOXELS)
    used = used[::step]
    p = p[:, used]
    low = p <= settings.unary.clip  # the clip stays what it is at any temperature
    logarithms = np.log(np.maximum(p, settings.unary.clip))
    offsets = np.where(low, logarithms, 0.0)
    if messages is not None:
        offsets = offsets + messages[:, used]
    return Observed(
        np.where(low, 0.0, logarithms).astype(np.float32),
        offsets.astype(np.float32),
        problem.truth[used],
        int(problem.near.sum()) / step,
    )


def fitted(cases: Sequence[Observed], start: RunSettings, *, with_bias: bool = True) -> RunSettings:
    """Return the settings with the temperature and biases of the greatest likelihood.

    The search begins at those of ``start``.
    """
    from scipy.optimize import minimize

    n_labels = len(cases[0].scores)
    free = n_labels if with_bias else 1
    bounds = [(_COLDEST, _HOTTEST), *[(-_MOST_BIAS, _MOST_BIAS)] * (n_labels - 1)][:free]

    def loss(theta: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
        whole = np.zeros(n_labels)
        whole[:free] = theta
        found = [_loss(case, whole) for case in cases]
        value = float(np.mean([each[0] for each in found])) + PULL / 2 * float(theta @ theta)
        slope = np.mean([each[1] for each in found], axis=0)[:free] + PULL * theta
        return value, slope

    first = start.unary
    before = np.array([math.log(first.temperature), *(first.bias or (0.0,) * n_labels)[1:]])
    found = minimize(
        loss, before[:free], jac=True, method="L-BFGS-B", bounds=bounds, options={"ftol": 1e-7}
    )
    best = found.x
    bias = tuple(_rounded(each) for each in (0.0, *best[1:])) if with_bias else None
    return start.changed(temperature=_rounded(math.exp(best[0])), bias=bias)


def half(settings: RunSettings) -> RunSettings:
    """Return the settings with √T and half of the bias."""
    unary = settings.unary
    bias = None if unary.bias is None else tuple(_rounded(each / 2) for each in unary.bias)
    return settings.changed(temperature=_rounded(math.sqrt(unary.temperature)), bias=bias)


def calibrated(
    problems: Sequence[LabelledProblem],
    settings: RunSettings,
    progress: Progress,
    *,
    many: bool,
) -> tuple[RunSettings, list[Observed]]:
    """Return settings with their temperature and bias, and what the last round saw of each case.

    Strength and centring are those of ``settings``, and the search begins at its temperature.
    """
    found = settings
    for turn in range(ROUNDS):
        seen = []
        for each in problems:
            seen.append(observe(each, found, each.solve(found)[1], everywhere=many))
            progress(turn * len(problems) + len(seen), ROUNDS * len(problems))
        found = fitted(seen, found, with_bias=many)
    return found, seen


def _loss(case: Observed, theta: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
    """Return the mean of −log likelihood, and its slope by log T and bias."""
    inverse = math.exp(-theta[0])
    bias = theta.copy()
    bias[0] = 0.0
    scaled = inverse * case.scores  # (L, n)
    q = softmax(scaled + case.offsets + bias[:, np.newaxis].astype(np.float32), axis=0)
    voxels = np.arange(case.truth.size)
    own = q[case.truth, voxels]
    value = -float(np.log(np.maximum(own, 1e-12)).sum(dtype=np.float64)) / case.near
    q[case.truth, voxels] -= 1
    slope = np.empty(len(theta))
    slope[0] = -float((q * scaled).sum(dtype=np.float64)) / case.near
    slope[1:] = q[1:].sum(axis=1, dtype=np.float64) / case.near
    return value, slope


def _rounded(value: float) -> float:
    return float(f"{value:.{_DIGITS}g}")
