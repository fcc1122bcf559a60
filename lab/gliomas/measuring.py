"""What is learned on all patients but one, on that one; beside the defaults and the paper's CRF."""

from __future__ import annotations

import warnings
from collections.abc import Mapping

from perturb_mpm.files import Case, region_members
from perturb_mpm.inference import ConvergenceWarning
from perturb_mpm.posterior import Regions
from perturb_mpm.progress import StagedProgress
from perturb_mpm.run import (
    RunSettings,
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
DEFAULT, PAPER = "defaults of run", "CRF and noise of the paper"


def measure_gliomas(
    cases: Mapping[str, Case], samples: int, progress: StagedProgress
) -> tuple[Tuned, list[CaseScores]]:
    """Tune with one patient left out at a time; score run's defaults and the paper beside it."""
    start = RunSettings(regions=REGIONS)
    tuned = tune(cases, start, TuningOptions(folds=len(cases), samples=samples), progress)
    regions = region_members(REGIONS, next(iter(cases.values())).labels)
    others = []
    for name, settings in ((DEFAULT, start), (PAPER, RunSettings.of_paper())):
        progress.stage(f"scoring: {name}")
        for seed, (patient, case) in enumerate(cases.items()):
            problem = LabelledProblem(patient, case)
            drawn = settings.changed(samples=samples, seed=seed)
            others.append(_score_case(problem, name, drawn, regions))
            progress(seed + 1, len(cases))
    return tuned, [*tuned.scores, *others]


def _score_case(
    problem: LabelledProblem, name: str, settings: RunSettings, regions: Regions
) -> CaseScores:
    """Sample a patient as ``run`` does; the paper's maps are votes, and its labels their modes."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        settings = decide_settings(settings, problem.case)
        posterior = build_sampler(build_crf(problem.case, settings), settings).draw()
    marginals = map_marginals(problem.case, settings, posterior)
    decisions = regions if name == DEFAULT else None
    return CaseScores(
        problem.name,
        name,
        score_maps(problem, marginals, regions, decisions),
        score_volumes(problem, posterior.volumes / 1000, regions),
    )
