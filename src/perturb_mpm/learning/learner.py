"""``perturb_mpm.learn``: the parameters of a CRF from labelled volumes, by L-BFGS-B in phases."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from perturb_mpm import checks
from perturb_mpm.engines import Accuracy, Engine
from perturb_mpm.learning.kernel_filters import FilterMaker
from perturb_mpm.learning.objectives import Objective, ObjectiveName, find_objective
from perturb_mpm.learning.unrolled import (
    KernelChange,
    ParameterLayout,
    Parameters,
    Phase,
    Problem,
    check_truth,
    make_problem,
    run_backwards,
    run_forwards,
    shared_layout,
)
from perturb_mpm.model import EXACT_VOXELS, BilateralKernel, DenseCRF, Kernel, Sigma

ALL_PHASES: tuple[Phase, ...] = ("unary", "weights", "compatibility", "bandwidths")

Trace = Callable[[str, int, float], object]
"""What is called with (phase, evaluations so far, objective) after each evaluation."""


@dataclass(frozen=True)
class Step:
    """One evaluation during the search: its phase, the objective and what the penalty takes off."""

    phase: str
    objective: float
    penalty: float


@dataclass(eq=False)
class Search:
    """The loss −objective + λ/2·|θ|² over labelled volumes, and the steps of its minimisation."""

    problems: Sequence[Problem]
    objective: Objective
    iterations: int
    strength: float  # λ
    trace: Trace | None = None
    evaluations: list[Step] = field(default_factory=list)

    @property
    def layout(self) -> ParameterLayout:
        """Where each parameter stands in θ."""
        return shared_layout(self.problems)

    def value(self, parameters: Parameters) -> float:
        """Return the objective of all volumes."""
        sums = [
            self.objective.sums(
                run_forwards(problem, parameters, self.iterations).marginals[-1], problem.truth
            )
            for problem in self.problems
        ]
        return self.objective.value(np.sum(sums, axis=0))

    def minimise(self, theta: NDArray[np.float64], phase: Phase, steps: int) -> NDArray[np.float64]:
        """Move what the phase moves, by at most so many steps, and return the best θ seen.

        A lattice is not quite smooth in its bandwidths, and the last θ need not be the best.
        """
        from scipy.optimize import minimize

        layout = self.layout
        moved = layout.free_entries(phase)
        best = (np.inf, theta)

        def loss(free: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
            nonlocal best
            candidate = theta.copy()
            candidate[moved] = free
            value, gradient = self._loss(candidate, phase)
            if value < best[0]:
                best = (value, candidate)
            return value, gradient[moved]

        bounds = [bound for bound, free in zip(layout.bounds(), moved, strict=True) if free]
        minimize(
            loss,
            theta[moved],
            jac=True,
            method="L-BFGS-B",
            bounds=bounds,
            options={"maxiter": steps, "maxfun": 2 * steps, "ftol": 1e-7, "gtol": 1e-6},
        )
        return best[1]

    def _loss(self, theta: NDArray[np.float64], phase: Phase) -> tuple[float, NDArray[np.float64]]:
        """Return the loss and its gradient.

        The objective adds up over volumes: its gradient in one needs the sums of all, so every
        volume's iterations stay in memory until these are known.
        """
        layout = self.layout
        parameters = layout.unpack(theta)
        unrolled = [run_forwards(problem, parameters, self.iterations) for problem in self.problems]
        pairs = list(zip(self.problems, unrolled, strict=True))
        last = [(problem, run.marginals[-1]) for problem, run in pairs]
        sums: NDArray[np.float64] = np.sum(
            [self.objective.sums(q, problem.truth) for problem, q in last], axis=0
        )
        value = self.objective.value(sums)
        gradient = np.zeros(layout.size)
        for problem, run in pairs:
            slope = self.objective.gradient(run.marginals[-1], problem.truth, sums)
            found = run_backwards(problem, run, slope, bandwidths=phase == "bandwidths")
            gradient += layout.pack(found)
        penalty = 0.5 * self.strength * float(theta @ theta)
        self.evaluations.append(Step(phase, value, penalty))
        if self.trace is not None:
            self.trace(phase, len(self.evaluations), value)
        return penalty - value, self.strength * theta - gradient


@dataclass(frozen=True, eq=False)
class Learned:
    """What ``learn`` found; ``apply`` makes a CRF of it.

    ``objective_before`` and ``objective_after`` are those of the volumes it was learned on.

    Examples
    --------
    >>> truth = np.array([0, 0, 1, 1])
    >>> crf = pm.DenseCRF(pm.unary_from_logits([[0.2] * 4, [-1, 0, 1, 1]]))
    >>> learned = pm.learn([crf], [truth], steps=2, phases=["unary"], engine="reference")
    >>> learned.apply(crf).n_labels
    2
    """

    parameters: Parameters
    objective: str
    iterations: int
    objective_before: float
    objective_after: float
    trace: tuple[Step, ...] = field(repr=False)

    def apply(self, crf: DenseCRF) -> DenseCRF:
        """Return a CRF like those it was learned on, with the learned parameters.

        Mean field must then make as many ``iterations`` as in learning.
        """
        _check_crfs([crf])
        if len(crf.kernels) != len(self.parameters.kernels):
            raise ValueError(
                f"crf must have the {len(self.parameters.kernels)} kernels that were learned, "
                f"got {len(crf.kernels)}"
            )
        if crf.n_labels != len(self.parameters.bias):
            raise ValueError(
                f"crf must have the {len(self.parameters.bias)} labels that were learned, "
                f"got {crf.n_labels}"
            )
        bias = self.parameters.bias[:, np.newaxis]
        energies = crf.energies / self.parameters.temperature - bias  # (L, N)
        kernels = [
            change_kernel(term.kernel, change, term.compatibility)
            for term, change in zip(crf.terms, self.parameters.kernels, strict=True)
        ]
        return DenseCRF(
            crf.grid.scatter(energies, 0.0),
            kernels,
            spacing=crf.grid.spacing,
            mask=crf.grid.mask,
            self_term=crf.self_term,
            centring=crf.centring,
        )


def learn(
    crfs: Iterable[DenseCRF],
    truths: Iterable[ArrayLike],
    *,
    objective: ObjectiveName = "iou",
    iterations: int = 10,
    phases: Sequence[Phase] = ALL_PHASES,
    steps: int = 15,
    strength: float = 1e-3,
    crop_mm: float | None = None,
    engine: Engine = "auto",
    accuracy: Accuracy = "calibrated",
    threads: int | None = None,
    trace: Trace | None = None,
) -> Learned:
    """Learn the parameters of a CRF from volumes whose labels are known.

    The marginals after so many mean-field iterations are differentiated through the iterations
    (Krähenbühl & Koltun 2013), and the objective, pooled over all volumes, is maximised.

    Parameters
    ----------
    crfs
        One CRF for each volume, with the parameters to start from: the same kernels in all.
    truths
        The true labels of each, (*spatial) with values 0 … L − 1.
    objective
        "iou", the mean over labels of the expected intersection over union, all volumes pooled;
        "mean_iou", the mean over volumes of the same; "log_likelihood" of the true labels, which
        gives calibrated marginals; "both", the sum of these two; or "hamming", the expected
        accuracy.
    iterations
        Mean-field updates. What is learned is valid for this many.
    phases
        What is learned, in this order: "unary" (a temperature and a bias for each label),
        "weights" (also one weight a kernel), "compatibility" (also a full symmetric matrix for
        each kernel), "bandwidths" (also the kernels' widths).
    steps
        The most steps of the optimiser in each phase.
    strength
        λ of the penalty λ/2·|θ|², which keeps θ near the start.
    crop_mm
        Learn on the voxels within so many mm of foreground, be it true or the most probable by
        the unaries, instead of on whole volumes.
    engine, accuracy, threads
        "reference" computes all pairs in float64; "cpu" filters by a lattice, see
        ``perturb_mpm.engines.prepare``; "auto" takes the first up to 4096 voxels.
    trace
        Called with (phase, evaluations so far, objective) after each evaluation.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> truth = (np.hypot(*(np.indices((12, 12)) - 5.5)) < 4).astype(int)
    >>> logits = np.stack([0.0 * truth, 2.0 * truth - 1.5]) + rng.normal(0, 1, (2, 12, 12))
    >>> crf = pm.DenseCRF(pm.unary_from_logits(logits), [pm.SpatialKernel(sigma=1.5, weight=0.5)])
    >>> learned = pm.learn([crf], [truth], steps=3, phases=["unary"], engine="reference")
    >>> learned.objective_after > learned.objective_before
    True
    """
    volumes = _check_crfs(crfs)
    labels = list(truths)
    if len(labels) != len(volumes):
        raise ValueError(
            f"truths must be one for each of the {len(volumes)} crfs, got {len(labels)}"
        )
    goal = find_objective(objective)
    iterations = checks.integer(iterations, "iterations", minimum=0)
    steps = checks.integer(steps, "steps", minimum=1)
    strength = checks.number(strength, "strength", minimum=0)
    if crop_mm is not None:
        crop_mm = checks.number(crop_mm, "crop_mm", minimum=0)
    for phase in phases:
        checks.choice(phase, "phases", get_args(Phase))
    for crf, truth in zip(volumes, labels, strict=True):
        check_truth(crf, truth)
    maker = filter_maker(volumes, engine, accuracy, threads)

    problems = [
        make_problem(crf, truth, maker, crop_mm) for crf, truth in zip(volumes, labels, strict=True)
    ]
    return learn_from(
        problems,
        objective=goal.name,
        iterations=iterations,
        phases=phases,
        steps=steps,
        strength=strength,
        trace=trace,
    )


def learn_from(
    problems: Sequence[Problem],
    *,
    objective: ObjectiveName,
    iterations: int,
    phases: Sequence[Phase] = ALL_PHASES,
    steps: int = 15,
    strength: float = 1e-3,
    trace: Trace | None = None,
) -> Learned:
    """Learn from volumes that are ready, as ``learn`` does: for several objectives on the same."""
    goal = find_objective(objective)
    search = Search(problems, goal, iterations, strength, trace)
    layout = shared_layout(problems)
    theta = np.zeros(layout.size)
    before = search.value(layout.unpack(theta))
    for phase in phases:
        theta = search.minimise(theta, phase, steps)
    parameters = layout.unpack(theta)
    return Learned(
        parameters=parameters,
        objective=goal.name,
        iterations=iterations,
        objective_before=before,
        objective_after=search.value(parameters),
        trace=tuple(search.evaluations),
    )


def change_kernel(
    kernel: Kernel, change: KernelChange, compatibility: NDArray[np.float64]
) -> Kernel:
    """Return a kernel as it was learned; ``compatibility`` (L, L) is its own, times its weight."""
    matrix = compatibility / kernel.weight if kernel.weight > 0 else compatibility
    changes: dict[str, Any] = {
        "weight": kernel.weight * change.weight_factor,
        "compatibility": matrix + change.compatibility_change,
    }
    factors = change.bandwidth_factors
    if isinstance(kernel, BilateralKernel):
        changes["sigma_space"] = _scale(kernel.sigma_space, factors["space"])
        changes["sigma_intensity"] = _scale(kernel.sigma_intensity, factors["intensity"])
    else:
        factor = next(iter(factors.values()))
        changes["sigma"] = _scale(kernel.sigma, factor)  # type: ignore[attr-defined]
    return replace(copy.copy(kernel), **changes)  # type: ignore[type-var]


def _scale(sigma: Sigma, factor: float) -> Sigma:
    if isinstance(sigma, Sequence):
        return tuple(each * factor for each in sigma)
    return sigma * factor


def _check_crfs(crfs: object) -> list[DenseCRF]:
    if isinstance(crfs, DenseCRF) or not isinstance(crfs, Iterable):
        raise TypeError(
            f"crfs must be a sequence of DenseCRF, got {type(crfs).__name__}: write crfs=[crf]"
        )
    volumes = list(crfs)
    for crf in volumes:
        if not isinstance(crf, DenseCRF):
            raise TypeError(f"crfs must hold DenseCRF, got {type(crf).__name__}")
    if not volumes:
        raise ValueError("crfs must hold at least one CRF, got none")
    return volumes


def filter_maker(
    crfs: Sequence[DenseCRF], engine: Engine, accuracy: Accuracy, threads: int | None
) -> FilterMaker:
    """Return how the filters of these CRFs are made."""
    checks.choice(engine, "engine", get_args(Engine))
    checks.choice(accuracy, "accuracy", get_args(Accuracy))
    if engine == "gpu" or accuracy == "exact":
        what = 'engine "gpu"' if engine == "gpu" else 'accuracy "exact"'
        raise ValueError(f'{what} cannot be learned with: use engine "cpu" or "reference"')
    if threads is not None:
        threads = checks.integer(threads, "threads", minimum=1)
    small = max(crf.grid.voxels for crf in crfs) <= EXACT_VOXELS
    if engine == "reference" or (engine == "auto" and small):
        return FilterMaker(None, None)
    from perturb_mpm.engines.cpu import Threads

    return FilterMaker(accuracy, Threads(threads))
