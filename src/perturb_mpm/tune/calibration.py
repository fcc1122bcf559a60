"""Calibrate: temperature and bias by the likelihood of true labels, with kernels or without.

With the messages m of a mean field fixed, log q = log p / T + bias + m up to a constant, and
the likelihood of 1/T and the biases has one maximum. Messages are then computed again under what
was found: a few rounds agree to three digits.

Few cases are believed half-way. Voxels near foreground count, and of what they say half is taken,
√T: it has most of the gain of likelihood, half of the harm where the cases were odd, and half of
the inflation that a temperature chosen near foreground brings to what lies far from it. Of many
cases all voxels count, with a bias for each label: volumes that are expected over all cases are
then the true ones.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from perturb_mpm.engines import softmax
from perturb_mpm.progress import Progress
from perturb_mpm.run import RunSettings
from perturb_mpm.tune.problem import LabelledProblem
from perturb_mpm.tune.study import CrossFit, Folds

ROUNDS = 3
# A pull of bias and log temperature towards 0, in nats a case near foreground: it decides only
# where a label has next to no voxels.
PULL = 1e-3
_COLDEST, _HOTTEST = math.log(0.25), math.log(8.0)
_MOST_BIAS = 6.0
_DIGITS = 4
# Far from foreground, voxels whose background is at least this probable say nothing.
_CERTAIN = 1 - 1e-5
# Of a large case every few voxels are enough for a handful of numbers.
_MOST_VOXELS = 20_000


@dataclass(frozen=True, eq=False)
class Observation:
    """What the likelihood of one case is made of; it is divided by ``near``, a number of voxels."""

    scores: NDArray[np.float32]  # (L, n): log p where 1/T multiplies it, 0 where it does not
    offsets: NDArray[np.float32]  # (L, n): the messages, and log p where 1/T does not
    truth: NDArray[np.int64]  # (n,)
    near: float


def observe(
    problem: LabelledProblem,
    settings: RunSettings,
    messages: NDArray[np.float64] | None = None,  # (L, N), of a mean field
    *,
    everywhere: bool,
) -> Observation:
    """Return what a case says of temperature and bias, near foreground or everywhere."""
    p = problem.probabilities
    uncertain = (p[0] < _CERTAIN) if everywhere else False
    used = np.flatnonzero(problem.near | uncertain)
    step = -(-len(used) // _MOST_VOXELS)
    used = used[::step]
    p = p[:, used]
    low = p <= settings.unary.clip  # the clip stays what it is at any temperature
    logarithms = np.log(np.maximum(p, settings.unary.clip))
    offsets = np.where(low, logarithms, 0.0)
    if messages is not None:
        offsets = offsets + messages[:, used]
    return Observation(
        np.where(low, 0.0, logarithms).astype(np.float32),
        offsets.astype(np.float32),
        problem.truth[used],
        int(problem.near.sum()) / step,
    )


@dataclass(frozen=True, eq=False)
class Calibrate:
    """The stage that learns the temperature, and the bias of each label if ``with_bias``."""

    observations: Mapping[int, Observation]  # by case; cases without one do not count
    start: RunSettings  # the search begins at its temperature and bias
    with_bias: bool = True

    def fit(self, cases: Sequence[int]) -> RunSettings:
        """Return ``start`` with the temperature and biases of the greatest likelihood."""
        from scipy.optimize import minimize

        seen = [self.observations[case] for case in cases if case in self.observations]
        n_labels = len(seen[0].scores)
        free = n_labels if self.with_bias else 1
        bounds = [(_COLDEST, _HOTTEST), *[(-_MOST_BIAS, _MOST_BIAS)] * (n_labels - 1)][:free]

        # θ = (log T, bias of label 1, …): the bias of the background is 0.
        def loss(theta: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
            whole = np.zeros(n_labels)
            whole[:free] = theta
            found = [_negative_log_likelihood(each, whole) for each in seen]
            value = float(np.mean([each[0] for each in found])) + PULL / 2 * float(theta @ theta)
            slope = np.mean([each[1] for each in found], axis=0)[:free] + PULL * theta
            return value, slope

        first = self.start.unary
        before = np.array(
            [math.log(first.temperature or 1.0), *(first.bias or (0.0,) * n_labels)[1:]]
        )
        found = minimize(
            loss, before[:free], jac=True, method="L-BFGS-B", bounds=bounds, options={"ftol": 1e-7}
        )
        log_temperature, *biases = found.x
        bias = tuple(map(_round, (0.0, *biases))) if self.with_bias else None
        return self.start.changed(temperature=_round(math.exp(log_temperature)), bias=bias)

    def cross_fit(self, folds: Folds) -> CrossFit[RunSettings]:
        """Fit all cases, and without each fold; these begin where the search of all ended."""
        overall = self.fit(folds.everyone)
        return CrossFit(overall, folds.leave_out(replace(self, start=overall).fit))


def calibrate_with_kernels(
    problems: Mapping[int, LabelledProblem],
    settings: RunSettings,
    progress: Progress,
    *,
    many: bool,
) -> Calibrate:
    """Return the stage under the kernels of ``settings``, begun at what all cases say.

    Messages are computed once for all folds, under the temperature and bias of all cases.
    """
    for turn in range(ROUNDS):
        seen = {}
        for case, problem in problems.items():
            seen[case] = observe(problem, settings, problem.solve(settings)[1], everywhere=many)
            progress(turn * len(problems) + len(seen), ROUNDS * len(problems))
        settings = Calibrate(seen, settings, with_bias=many).fit(list(seen))
    return Calibrate(seen, settings, with_bias=many)


def halve(settings: RunSettings) -> RunSettings:
    """Return the settings with √T and half of the bias."""
    unary = settings.unary
    bias = None if unary.bias is None else tuple(_round(each / 2) for each in unary.bias)
    return settings.changed(temperature=_round(math.sqrt(unary.temperature or 1.0)), bias=bias)


def _negative_log_likelihood(
    case: Observation, theta: NDArray[np.float64]
) -> tuple[float, NDArray[np.float64]]:
    """Return the mean over voxels, and its slope by log T and bias."""
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


def _round(value: float) -> float:
    return float(f"{value:.{_DIGITS}g}")
