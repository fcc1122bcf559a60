"""One turn of the segmentation experiment: tune without a patient, then measure on it."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lab.patients import Patient
from lab.segmentation.patients import LeaveOneOut, LeftOut
from lab.segmentation.plan import DEFAULT_ITERATIONS, TUNINGS, SegmentationPlan, Tuning
from perturb_mpm.evaluation import (
    Regions,
    Reliability,
    domain_mask,
    negative_log_likelihood,
    region_dice,
    top_label,
)
from perturb_mpm.learning import (
    Learned,
    Problem,
    filter_maker,
    learn_from,
    make_problem,
)
from perturb_mpm.model import DenseCRF
from perturb_mpm.sampling import Sampler, Sampling
from perturb_mpm.storage import json_ready

# Calibration is measured over the voxels near tumour, true or by the classifier.
MARGIN_MM = 10.0
# A probability below this counts as this in the log score: marginals have 16 bits.
LEAST = 1e-5
SEED = 0


def measure_turn(experiment: LeaveOneOut, turn: LeftOut, plan: SegmentationPlan) -> dict[str, Any]:
    """Return everything that is measured on the test patient of a turn, as JSON can hold it."""
    patient, regions = experiment.patients[turn.test], experiment.regions
    problems = _problems(experiment, turn, plan)
    learned = {tuning.name: _learn(problems, plan, tuning) for tuning in TUNINGS}
    del problems
    default = patient.with_probabilities(turn.probabilities).crf()
    crfs = {"default": _solve(default, DEFAULT_ITERATIONS, plan.samples)}
    for name, found in learned.items():
        crfs[name] = _solve(found.apply(default), plan.iterations, plan.samples)
    maps: dict[str, NDArray[np.floating]] = {
        "classifier, raw": turn.raw.T,
        "classifier": turn.probabilities.T,
    }
    maps |= {f"CRF, {name}": mean_field for name, (mean_field, _) in crfs.items()}
    votes = {f"votes, {name}": shares for name, (_, shares) in crfs.items()}
    labels = {name: q.argmax(axis=0) for name, q in (maps | votes).items()}  # (N,) each
    domain = _domain(patient, turn)
    truth = patient.labels[domain]
    return {
        "patient": turn.test,
        "truth_ml": _volumes_ml(patient, patient.labels, regions),
        "volume_ml": {name: _volumes_ml(patient, x, regions) for name, x in labels.items()},
        "dice": {name: _dice(patient, x, regions) for name, x in labels.items()},
        "iou": {
            name: json_ready(label_iou(x, patient.labels, default.n_labels))
            for name, x in labels.items()
        },
        "reliability": {
            name: _bins(top_label(q[:, domain], truth)) for name, q in (maps | votes).items()
        },
        "brain_reliability": {
            name: _bins(top_label(maps[name], patient.labels))
            for name in ("classifier, raw", "classifier")
        },
        "log_score_nats": {
            **{
                name: negative_log_likelihood(np.maximum(q[:, domain], LEAST), truth, None)
                for name, q in maps.items()
            },
            **{
                name: negative_log_likelihood(q[:, domain], truth, plan.samples)
                for name, q in votes.items()
            },
        },
        "parameters": {name: _parameters(found) for name, found in learned.items()},
    }


def _problems(experiment: LeaveOneOut, turn: LeftOut, plan: SegmentationPlan) -> list[Problem]:
    problems = []
    for name, probabilities in turn.tuning.items():
        patient = experiment.patients[name]
        crf = patient.with_probabilities(probabilities).crf()
        maker = filter_maker([crf], "cpu", "calibrated", None)
        problems.append(make_problem(crf, patient.truth, maker, plan.crop_mm))
    return problems


def _learn(problems: list[Problem], plan: SegmentationPlan, tuning: Tuning) -> Learned:
    return learn_from(
        problems,
        objective=tuning.objective,
        iterations=plan.iterations,
        phases=plan.phases,
        steps=plan.steps,
        strength=tuning.strength,
    )


def _solve(
    crf: DenseCRF, iterations: int, samples: int
) -> tuple[NDArray[np.floating], NDArray[np.float64]]:
    """Return the mean field and the shares of votes inside the mask, both (L, N)."""
    sampler = Sampler(crf, Sampling(samples=samples, iterations=iterations, seed=SEED))
    votes: NDArray[np.float64] = sampler.draw().voxel_counts / samples
    return sampler.mean_field(), votes


def _domain(patient: Patient, turn: LeftOut) -> NDArray[np.bool_]:
    """Return the voxels near tumour, true or by the classifier, (N,): the same for all maps."""
    predicted = patient.grid.scatter(turn.probabilities.argmax(axis=1) != 0, outside=False)
    true = patient.grid.scatter(patient.labels != 0, outside=False)
    mask, spacing = patient.case.mask, patient.grid.spacing
    near = domain_mask("dilated", predicted, true, mask, spacing, MARGIN_MM)
    inside: NDArray[np.bool_] = patient.grid.gather(near)
    return inside


def _volumes_ml(patient: Patient, labels: NDArray[np.int64], regions: Regions) -> dict[str, float]:
    return {name: patient.volume_ml(labels, members) for name, members in regions.items()}


def _dice(patient: Patient, labels: NDArray[np.int64], regions: Regions) -> dict[str, float | None]:
    """Return the overlap of each region; None where the patient does not have it."""
    found: dict[str, float | None] = {}
    for name, members in regions.items():
        value = region_dice(labels, patient.labels, members)
        found[name] = None if math.isnan(value) else value
    return found


def label_iou(labels: NDArray[np.int64], truth: NDArray[np.int64], n_labels: int) -> list[float]:
    """Return the intersection over union of each label, (L,); NaN for one the truth lacks."""
    pairs = ((labels == label, truth == label) for label in range(n_labels))
    return [float((a & b).sum() / (a | b).sum()) if b.any() else np.nan for a, b in pairs]


def _bins(curve: Reliability) -> dict[str, list[float | None]]:
    return {
        "confidence": json_ready(curve.confidence.tolist()),
        "accuracy": json_ready(curve.accuracy.tolist()),
        "voxels": curve.voxels.tolist(),
    }


def _parameters(learned: Learned) -> dict[str, Any]:
    found = learned.parameters
    return {
        "objective_before": learned.objective_before,
        "objective_after": learned.objective_after,
        "temperature": found.temperature,
        "bias": found.bias.tolist(),
        "weights": [change.weight_factor for change in found.kernels],
        "compatibility_changes": [change.compatibility_change.tolist() for change in found.kernels],
        "trace": [step.objective for step in learned.trace],
    }
