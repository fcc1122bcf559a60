"""What is learned on all patients but one, on that one; beside the defaults and rivals."""

from __future__ import annotations

import warnings
from collections.abc import Mapping

import numpy as np

from lab.comparators import displace_borders
from perturb_mpm.files import Case, region_members
from perturb_mpm.inference import ConvergenceWarning
from perturb_mpm.posterior import Regions
from perturb_mpm.progress import StagedProgress
from perturb_mpm.run import (
    RunSettings,
    assumed_length_mm,
    build_crf,
    build_sampler,
    decide_settings,
    map_marginals,
)
from perturb_mpm.tune import (
    CaseScores,
    LabelledProblem,
    Tuned,
    TuningOptions,
    score_maps,
    score_volumes,
    tune,
)

REGIONS = {"whole": (1, 2, 4), "core": (1, 4), "enhancing": (4,)}
DEFAULT, BARE = "defaults of run", "without kernels, same noise"
WHITE = "our kernels at full strength, white noise"
DISPLACED = "displaced borders"


def measure_gliomas(
    cases: Mapping[str, Case], samples: int, progress: StagedProgress
) -> tuple[Tuned, list[CaseScores]]:
    """Tune with one patient left out at a time; score what needs no label beside it."""
    start = RunSettings(regions=REGIONS)
    bare = start.changed(strength=0.0)
    tuned = tune(cases, start, TuningOptions(folds=len(cases), samples=samples), progress)
    regions = region_members(REGIONS, next(iter(cases.values())).labels)
    others = []
    rows = {BARE: bare, DEFAULT: start, WHITE: RunSettings.of_paper()}
    for name, settings in rows.items():
        progress.stage(f"scoring: {name}")
        for seed, (patient, case) in enumerate(cases.items()):
            problem = LabelledProblem(patient, case)
            drawn = settings.changed(samples=samples, seed=seed)
            others.append(_score_case(problem, name, drawn, regions))
            progress(seed + 1, len(cases))
    progress.stage(f"scoring: {DISPLACED}")
    for seed, (patient, case) in enumerate(cases.items()):
        others.append(_score_displaced(LabelledProblem(patient, case), samples, seed, regions))
        progress(seed + 1, len(cases))
    return tuned, [*tuned.scores, *others]


def _score_case(
    problem: LabelledProblem, name: str, settings: RunSettings, regions: Regions
) -> CaseScores:
    """Sample a patient as ``run`` does; with white noise maps are votes, labels their modes."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        settings = decide_settings(settings, problem.case)
        if name == BARE:  # at the temperature that kernels would have been sampled at
            settings = settings.changed(sampling_temperature=None)
        posterior = build_sampler(build_crf(problem.case, settings), settings).draw()
    marginals = map_marginals(problem.case, settings, posterior)
    return CaseScores(
        problem.name,
        name,
        score_maps(problem, marginals, regions, None if name == WHITE else regions),
        score_volumes(problem, posterior.volumes / 1000, regions),
    )


def _score_displaced(
    problem: LabelledProblem, samples: int, seed: int, regions: Regions
) -> CaseScores:
    case = problem.case
    size = float(np.mean(case.geometry.spacing))
    mean, volumes_ml = displace_borders(case, assumed_length_mm(case), size, samples, seed)
    return CaseScores(
        problem.name,
        DISPLACED,
        score_maps(problem, mean[:, case.mask], regions, regions),
        score_volumes(problem, volumes_ml, regions),
    )
