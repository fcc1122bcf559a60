"""Tuning on labelled cases, and what it gains on cases that it did not see."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from perturb_mpm import checks
from perturb_mpm.convergence import ConvergenceWarning
from perturb_mpm.crf import DenseCRF
from perturb_mpm.fields import Field
from perturb_mpm.inference import mean_field
from perturb_mpm.learning.fields import Regions, learn_fields
from perturb_mpm.learning.learn import ALL_PHASES, Learned, filter_maker, learn_from
from perturb_mpm.learning.objectives import ObjectiveName, hard_iou
from perturb_mpm.learning.parameters import Phase
from perturb_mpm.learning.problem import Problem, make_problem
from perturb_mpm.pipeline.settings import RunSettings
from perturb_mpm.tuning.cases import TuningCase
from perturb_mpm.tuning.settings import tuned_settings

Stage = Callable[[str], object]


@dataclass(frozen=True)
class TuningOptions:
    """What is learned and how; see ``perturb_mpm.learn``."""

    objective: ObjectiveName = "iou"
    phases: tuple[Phase, ...] = ALL_PHASES
    steps: int = 15
    strength: float = 1e-3
    crop_mm: float | None = 10.0
    folds: int = 5
    field_samples: int = 0  # 0: no fields are learned
    threads: int | None = None


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
    cases: Sequence[TuningCase],
    start: RunSettings,
    options: TuningOptions,
    regions: Regions,
    said: Stage,
) -> Tuned:
    """Tune settings on all cases, after cross-validating over folds of them."""
    folds = deal(len(cases), options.folds)
    crfs = [case.crf(start) for case in cases]
    maker = filter_maker(crfs, start.engine, start.accuracy, options.threads)
    said("preparing the kernels")
    problems = [
        make_problem(crf, case.truth, maker, options.crop_mm) for crf, case in zip(crfs, cases)
    ]
    before, after = [], []
    for number, fold in enumerate(folds):
        said(f"cross-validating, fold {number + 1} of {len(folds)}")
        others = [problem for place, problem in enumerate(problems) if place not in fold]
        found = _learned(others, start, options)
        for place in fold:
            tuned = cases[place].crf(tuned_settings(start, found.parameters))
            before.append(hard_labels(crfs[place], start.iterations, options.threads))
            after.append(hard_labels(tuned, start.iterations, options.threads))
    order = [place for fold in folds for place in fold]
    truths = [crfs[i].grid.gather(cases[i].truth).astype(np.int64) for i in order]
    said("learning on all cases")
    learned = _learned(problems, start, options)
    settings = tuned_settings(start, learned.parameters)
    if options.field_samples > 0:
        said("learning the random fields")
        settings = replace(settings, fields=_fields(cases, settings, options, regions))
    return Tuned(
        settings=settings,
        learned=learned,
        gains=tuple(_gains(cases[0].case.labels.names, before, after, truths)),
        folds=tuple(tuple(cases[place].name for place in fold) for fold in folds),
    )


def deal(cases: int, folds: int) -> list[list[int]]:
    """Return the numbers of the cases in as many folds, in turn: 0, 3, 6 … in the first of 3."""
    folds = checks.integer(folds, "folds", minimum=2)
    if cases < folds:
        raise ValueError(f"folds must be at most the number of cases, {cases}, got {folds}")
    return [list(range(fold, cases, folds)) for fold in range(folds)]


def hard_labels(crf: DenseCRF, iterations: int, threads: int | None) -> NDArray[np.int64]:
    """Return the most probable labels inside the mask after so many updates, (N,)."""
    with warnings.catch_warnings():
        # So many updates were learned for, converged or not.
        warnings.simplefilter("ignore", ConvergenceWarning)
        labels = mean_field(crf, iterations, threads=threads).labels
    inside: NDArray[np.int64] = crf.grid.gather(labels).astype(np.int64)
    return inside


def _learned(problems: Sequence[Problem], start: RunSettings, options: TuningOptions) -> Learned:
    return learn_from(
        problems,
        objective=options.objective,
        iterations=start.iterations,
        phases=options.phases,
        steps=options.steps,
        strength=options.strength,
    )


def _fields(
    cases: Sequence[TuningCase], settings: RunSettings, options: TuningOptions, regions: Regions
) -> tuple[Field, ...]:
    found = learn_fields(
        (case.crf(settings) for case in cases),
        [case.truth for case in cases],
        regions,
        samples=options.field_samples,
        iterations=settings.iterations,
        threads=options.threads,
    )
    return found.fields


def _gains(
    names: Sequence[str],
    before: list[NDArray[np.int64]],
    after: list[NDArray[np.int64]],
    truths: list[NDArray[np.int64]],
) -> list[LabelGain]:
    untuned = hard_iou(before, truths, len(names)).tolist()
    tuned = hard_iou(after, truths, len(names)).tolist()
    return [LabelGain(*row) for row in zip(names, untuned, tuned, strict=True)]
