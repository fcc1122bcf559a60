"""The cohorts of the experiments: made-up patients like the paper's, and real ones in a folder."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from lab.clinical.biomarkers import OperatedPatient
from lab.clinical.patients import QUICK_PATIENTS, left_out_patients, phantom_scene, train_on
from lab.patients import Patient, phantom_patient
from lab.phantoms import cohort, draw_rater_maps, preoperative_cohort, resection_cohort
from perturb_mpm.phantom import LABEL_NAMES, POSTOPERATIVE_LABEL_NAMES, Phantom, resect
from perturb_mpm.progress import StagedProgress
from perturb_mpm.run import RunSettings, assumed_length_mm
from perturb_mpm.segmenter import SegmenterModel
from perturb_mpm.tune import TuningOptions, tune

TRAINING_PATIENTS = 12
QUICK_SPACING_MM = 5.0
TRAINING_SEED = 10_000
"""What is added to the seed for patients to train on: no test patient is among them."""
RESIDUALS_ML = (0.0, 0.5, 2.0, 5.0)
PAPER, CORRELATED = "independent noise (the paper)", "correlated noise, learned"


@dataclass(frozen=True, eq=False)
class Cohort:
    """Patients for the quality of uncertainty, made one by one."""

    patients: Iterable[Patient]
    regions: Mapping[str, tuple[int, ...]]
    about: str


@dataclass(frozen=True, eq=False)
class OperatedCohort:
    """Patients before and after surgery, and other scans after surgery to tune on."""

    patients: Iterable[OperatedPatient]
    region: tuple[int, ...]
    about: str
    training: Sequence[Patient]


def real_cohort(
    data: Path,
    folder: Path,
    seed: int,
    *,
    quick: bool,
    forest: bool,
    progress: StagedProgress,
    argument: str = "output",
) -> Cohort:
    """Return real patients, each segmented by trees that were trained on all others."""
    return Cohort(
        left_out_patients(
            data, folder, seed, quick=quick, forest=forest, progress=progress, argument=argument
        ),
        {"tumour core": (1, 3), "enhancing tumour": (3,)},
        (
            "Real patients with a glioma before surgery (BraTS 2021), each segmented by "
            f"{'a decision forest' if forest else 'boosted trees'} trained on the others, and a "
            "dense CRF."
        ),
    )


def preoperative_patients(
    seed: int, spacing_mm: float, *, quick: bool, progress: StagedProgress
) -> Cohort:
    """Return 14 made-up patients, segmented by a forest trained on others."""
    spacing = QUICK_SPACING_MM if quick else spacing_mm
    number = QUICK_PATIENTS if quick else TRAINING_PATIENTS
    learned_from = list(cohort(number, seed + TRAINING_SEED, spacing_mm=spacing))
    progress.stage(f"growing a forest on {len(learned_from)} patients")
    model, _ = train_on(learned_from, LABEL_NAMES, seed, quick=quick)

    def patients() -> Iterator[Patient]:
        scans = preoperative_cohort(seed, spacing_mm=spacing)
        for number, scan in enumerate(islice(scans, QUICK_PATIENTS if quick else None), 1):
            yield phantom_patient(f"phantom {number}", scan, _segment(model, scan))

    return Cohort(
        patients(),
        {"tumour core": (1, 3, 4), "enhancing tumour": (4,)},
        (
            f"Made-up patients with a glioblastoma before surgery, {spacing:g} mm, segmented by a "
            f"decision forest that was trained on {number} others, and a dense CRF."
        ),
    )


def operated_cohort(
    seed: int, spacing_mm: float, *, quick: bool, progress: StagedProgress
) -> OperatedCohort:
    """Return 19 made-up patients before and after surgery, nine with residual tumour."""
    spacing = QUICK_SPACING_MM if quick else spacing_mm
    names = POSTOPERATIVE_LABEL_NAMES
    number = QUICK_PATIENTS if quick else TRAINING_PATIENTS // 2
    before = list(cohort(number, seed + TRAINING_SEED, spacing_mm=spacing))
    after = [
        resect(each, RESIDUALS_ML[number % len(RESIDUALS_ML)]) for number, each in enumerate(before)
    ]
    progress.stage(f"growing a forest on {len(before) + len(after)} scans")
    model, honest = train_on([*before, *after], names, seed, quick=quick)
    training = [
        phantom_patient(f"training {index}", scan, probabilities, label_names=names)
        for index, (scan, probabilities) in enumerate(zip(after, honest[len(before) :]))
    ]

    def patients() -> Iterator[OperatedPatient]:
        pairs = resection_cohort(seed, spacing_mm=spacing)
        for number, pair in enumerate(islice(pairs, QUICK_PATIENTS if quick else None), 1):
            scans = (
                phantom_patient(
                    f"phantom {number}",
                    scan,
                    _segment(model, scan),
                    draw_rater_maps(scan, seed),
                    names,
                )
                for scan in (pair.before, pair.after)
            )
            yield OperatedPatient(*scans)

    return OperatedCohort(
        patients(),
        (4,),
        (
            "Made-up patients with a glioblastoma, before and right after surgery, some with "
            f"residual enhancing tumour, {spacing:g} mm, each outlined by four simulated raters; "
            f"segmented by a decision forest that was trained on {2 * number} scans of others, and "
            "a dense CRF. The paper's patients are not public: these are not they."
        ),
        training,
    )


def perturbations(
    cohort: OperatedCohort, settings: RunSettings, *, quick: bool, progress: StagedProgress
) -> dict[str, RunSettings]:
    """Return independent noise, and what ``tune`` learns on the training scans.

    Each of these comes with the probabilities of trees that never saw it.
    """
    start = RunSettings(compute=settings.compute, regions={"enhancing tumour": cohort.region})
    drawn = settings.sampling
    tuned = tune(
        {each.name: each.case for each in cohort.training},
        start.changed(samples=drawn.samples, seed=drawn.seed, iterations=drawn.iterations),
        TuningOptions(folds=len(cohort.training), samples=8 if quick else 128),
        progress,
    )
    # One law for all scans, so that they can be calibrated together: the middle of their radii.
    radius = float(np.median([assumed_length_mm(each.case) for each in cohort.training]))
    correlated = tuned.settings.changed(noise_length=radius)
    return {PAPER: settings.changed(noise_length=0.0), CORRELATED: correlated}


def _segment(model: SegmenterModel, scan: Phantom) -> NDArray[np.float32]:
    return model.probabilities(phantom_scene(scan))
