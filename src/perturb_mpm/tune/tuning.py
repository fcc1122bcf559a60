"""Tuning the settings of ``run`` on labelled cases, and what it gains on cases left out."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from perturb_mpm import checks
from perturb_mpm.engines import Compute
from perturb_mpm.files import Case
from perturb_mpm.inference import ConvergenceWarning, mean_field
from perturb_mpm.learning import (
    ALL_PHASES,
    KernelChange,
    Learned,
    ObjectiveName,
    Parameters,
    Phase,
    Problem,
    Regions,
    Step,
    filter_maker,
    hard_iou,
    learn_fields,
    learn_from,
    make_problem,
)
from perturb_mpm.model import DenseCRF
from perturb_mpm.progress import Silent, StagedProgress
from perturb_mpm.run import KernelSettings, Numbers, RunSettings, SettingsError, build_crf
from perturb_mpm.sampling import MOST_SAMPLES
from perturb_mpm.storage import atomic_open

_DIGITS = 6  # of a tuned number: more than any run can tell apart, and few enough to read
MOST_STEPS = 10_000
MOST_FOLDS = 1000

WORDS = {
    "iou": "expected intersection over union",
    "mean_iou": "mean over cases of the expected intersection over union",
    "log_likelihood": "log-likelihood per voxel (nats)",
    "both": "overlap + log-likelihood per voxel (nats)",
    "hamming": "expected accuracy",
}
_COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7")


@dataclass(frozen=True)
class TuningOptions:
    """What is learned and how; see ``perturb_mpm.learn``."""

    objective: ObjectiveName = "iou"
    phases: tuple[Phase, ...] = ALL_PHASES
    steps: int = 15
    strength: float = 1e-3
    crop_mm: float | None = 10.0
    folds: int = 5
    fields: int = 0  # samples to learn random fields from; 0: none are learned

    def __post_init__(self) -> None:
        checks.integer(self.steps, "`steps`", minimum=1, maximum=MOST_STEPS)
        checks.number(self.strength, "`strength`", minimum=0)
        if self.crop_mm is not None:
            checks.number(self.crop_mm, "`crop_mm`", minimum=0)
        checks.integer(self.folds, "`folds`", minimum=2, maximum=MOST_FOLDS)
        fewest = 2 if self.fields else 0
        checks.integer(self.fields, "`fields`", minimum=fewest, maximum=MOST_SAMPLES)


@dataclass(frozen=True)
class LabelGain:
    """A label's IoU in cases that were left out, pooled, before and after; NaN where it is absent.

    Hard label maps of the mean field are compared, not marginals.
    """

    label: str
    untuned_iou: float
    tuned_iou: float


@dataclass(frozen=True, eq=False)
class Tuned:
    """Settings learned on all cases, and what learning gained on cases that it did not see."""

    settings: RunSettings
    learned: Learned
    gains: tuple[LabelGain, ...]
    folds: tuple[tuple[str, ...], ...]


def tune(
    cases: Mapping[str, Case],
    start: RunSettings,
    options: TuningOptions,
    regions: Regions,
    progress: StagedProgress | None = None,
) -> Tuned:
    """Tune settings on all cases, which have their truth, after cross-validating over folds.

    Everything is computed as ``start`` says: engine and accuracy, iterations, and for random
    fields the whole law of sampling.
    """
    progress = progress or Silent()
    names, truths = list(cases), [_truth(name, case) for name, case in cases.items()]
    folds = deal(len(names), options.folds)
    if start.sampling.iterations < 1:
        raise SettingsError("`iterations` must be at least 1 to learn anything, got 0")
    progress.stage("preparing the kernels")
    crfs = [build_crf(case, start) for case in cases.values()]
    compute = start.compute
    try:
        maker = filter_maker(crfs, compute.engine, compute.accuracy, compute.threads)
    except ValueError as error:
        raise SettingsError(f"`settings`: {error}") from error
    problems = []
    for crf, truth in zip(crfs, truths):
        problems.append(make_problem(crf, truth, maker, options.crop_mm))
        progress(len(problems), len(crfs))
    before, after = [], []
    for number, fold in enumerate(folds):
        progress.stage(f"cross-validating, fold {number + 1} of {len(folds)}")
        others = [problem for place, problem in enumerate(problems) if place not in fold]
        found = tuned_settings(start, _learned(others, start, options).parameters)
        for place in fold:
            tuned = build_crf(cases[names[place]], found)
            before.append(hard_labels(crfs[place], start.sampling.iterations, compute))
            after.append(hard_labels(tuned, start.sampling.iterations, compute))
    order = [place for fold in folds for place in fold]
    true = [crfs[place].grid.gather(truths[place]).astype(np.int64) for place in order]
    progress.stage("learning on all cases")
    learned = _learned(problems, start, options)
    settings = tuned_settings(start, learned.parameters)
    if options.fields > 0:
        progress.stage("learning the random fields")
        found_fields = learn_fields(
            (build_crf(case, settings) for case in cases.values()),
            truths,
            regions,
            sampling=replace(settings.sampling, samples=options.fields, until=None),
            compute=compute,
            progress=progress,
        )
        settings = settings.changed(fields=found_fields.fields, learned_cases=len(cases))
    return Tuned(
        settings=settings,
        learned=learned,
        gains=tuple(_gains(next(iter(cases.values())).labels.names, before, after, true)),
        folds=tuple(tuple(names[place] for place in fold) for fold in folds),
    )


def _truth(name: str, case: Case) -> NDArray[np.uint8]:
    if case.truth is None:
        raise ValueError(f"cases must have a truth to tune on, got {name} without")
    return case.truth


def deal(cases: int, folds: int) -> list[list[int]]:
    """Return the numbers of the cases in as many folds, in turn: 0, 3, 6 … in the first of 3."""
    folds = checks.integer(folds, "folds", minimum=2)
    if cases < folds:
        raise SettingsError(f"`folds` must be at most the number of cases, {cases}, got {folds}")
    return [list(range(fold, cases, folds)) for fold in range(folds)]


def hard_labels(crf: DenseCRF, iterations: int, compute: Compute) -> NDArray[np.int64]:
    """Return the most probable labels inside the mask after so many updates, (N,)."""
    with warnings.catch_warnings():
        # So many updates were learned for, converged or not.
        warnings.simplefilter("ignore", ConvergenceWarning)
        found = mean_field(
            crf,
            iterations,
            engine=compute.engine,
            accuracy=compute.accuracy,
            threads=compute.threads,
            memory=compute.memory,
        )
    inside: NDArray[np.int64] = crf.grid.gather(found.labels).astype(np.int64)
    return inside


def _learned(problems: Sequence[Problem], start: RunSettings, options: TuningOptions) -> Learned:
    return learn_from(
        problems,
        objective=options.objective,
        iterations=start.sampling.iterations,
        phases=options.phases,
        steps=options.steps,
        strength=options.strength,
    )


def _gains(
    names: Sequence[str],
    before: list[NDArray[np.int64]],
    after: list[NDArray[np.int64]],
    truths: list[NDArray[np.int64]],
) -> list[LabelGain]:
    untuned = hard_iou(before, truths, len(names)).tolist()
    tuned = hard_iou(after, truths, len(names)).tolist()
    return [LabelGain(*row) for row in zip(names, untuned, tuned, strict=True)]


def tuned_settings(start: RunSettings, parameters: Parameters) -> RunSettings:
    """Return the settings that were learned, starting from ``start``.

    A CRF of ``start`` has the energies U = −log p / T − bias; learning makes them U / T' − bias',
    which is −log p / (T T') − (bias / T' + bias').
    """
    before = np.zeros(len(parameters.bias)) if start.bias is None else np.asarray(start.bias)
    bias = before / parameters.temperature + parameters.bias
    changes = iter(parameters.kernels)
    return replace(
        start,
        temperature=_rounded(start.temperature * parameters.temperature),
        bias=tuple(_rounded(each) for each in bias.tolist()),
        kernels=tuple(_tuned_kernels(start.kernels, changes, len(bias))),
    )


def _tuned_kernels(
    kernels: tuple[KernelSettings, ...], changes: Iterator[KernelChange], n_labels: int
) -> Iterator[KernelSettings]:
    """Yield the kernels as they were learned; those of weight 0 are in no CRF and stay."""
    for kernel in kernels:
        yield kernel if kernel.weight == 0 else _tuned(kernel, next(changes), n_labels)


def _tuned(kernel: KernelSettings, change: KernelChange, n_labels: int) -> KernelSettings:
    factors = change.bandwidth_factors
    intensity = kernel.sigma_intensity_sd
    matrix = kernel.compatibility
    if change.compatibility_change.any():
        start = 1.0 - np.eye(n_labels) if matrix is None else np.asarray(matrix)
        found = (start + change.compatibility_change).tolist()
        matrix = tuple(tuple(_rounded(each) for each in row) for row in found)
    return replace(
        kernel,
        sigma_space=_times(kernel.sigma_space, factors["space"]),
        sigma_intensity_sd=None if intensity is None else _times(intensity, factors["intensity"]),
        weight=_rounded(kernel.weight * change.weight_factor),
        compatibility=matrix,
    )


def _times(numbers: Numbers, factor: float) -> Numbers:
    if isinstance(numbers, tuple):
        return tuple(_rounded(each * factor) for each in numbers)
    return _rounded(numbers * factor)


def _rounded(value: float) -> float:
    return float(f"{value:.{_DIGITS}g}")


def write_convergence(path: Path, trace: Sequence[Step], objective: str) -> None:
    """Write a PNG or SVG, by the ending of its name, of the course of the objective."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.0, 3.6), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    values = np.array([step.objective for step in trace])
    best = np.maximum.accumulate(values)
    axes.plot(range(1, len(best) + 1), best, color="black", linewidth=1.2, label="best so far")
    phases = list(dict.fromkeys(step.phase for step in trace))
    for phase, colour in zip(phases, _COLOURS):
        at = [place for place, step in enumerate(trace) if step.phase == phase]
        axes.plot(
            np.add(at, 1), values[at], "o", markersize=3.5, color=colour, label=f"phase: {phase}"
        )
    # A first long step may fall far below the start; the eye is for what is gained.
    low, high = float(values[0]), float(best[-1])
    margin = max(high - low, 1e-6)
    axes.set_ylim(low - 0.5 * margin, high + 0.1 * margin)
    axes.set_xlabel("evaluation")
    axes.set_ylabel(WORDS[objective])
    axes.legend(frameon=False, loc="lower right")
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    kind = path.suffix.removeprefix(".")
    metadata = {"Software": None} if kind == "png" else {"Date": None}
    with atomic_open(path) as file:
        figure.savefig(file, format=kind, dpi=150, metadata=metadata)
