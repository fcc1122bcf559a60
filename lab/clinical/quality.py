"""The first clinical experiment: whether uncertainty finds the errors of a segmentation.

Meier et al. 2017 measured sensitivity and specificity of "entropy above a threshold" for wrong
voxels in 14 patients, and left open over which voxels. Here it is measured over three domains, for
three estimators of the marginals of one and the same segmentation: the unperturbed mean field's.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lab.clinical.patients import sample_patient
from lab.patients import Patient
from perturb_mpm.biomarkers import hodges_lehmann, holm, wilcoxon_exact
from perturb_mpm.evaluation import (
    Domain,
    Measurement,
    Prediction,
    binary_entropy_percent,
    detection_curve,
    domain_mask,
    evaluate_case,
    from_posterior,
)
from perturb_mpm.posterior import MarginalKind
from perturb_mpm.progress import Silent, StagedProgress
from perturb_mpm.run import RunSettings

ESTIMATORS: tuple[MarginalKind, ...] = ("votes", "conditional", "mean_field")
DOMAINS: tuple[Domain, ...] = ("union", "dilated", "brain")
SPECIFICITIES = np.linspace(0, 1, 101)
Regions = Mapping[str, tuple[int, ...]]


@dataclass(frozen=True)
class Published:
    """What the paper printed, mean and standard deviation over 14 patients."""

    region: str
    threshold_bits: float
    sensitivity: tuple[float, float]
    specificity: tuple[float, float]


PAPER = (
    Published("tumour core", 0.0, (0.45, 0.23), (0.76, 0.13)),
    Published("enhancing tumour", 0.0, (0.53, 0.10), (0.88, 0.14)),
    Published("tumour core", 0.1, (0.39, 0.21), (0.81, 0.12)),
    Published("enhancing tumour", 0.1, (0.44, 0.09), (0.93, 0.11)),
)


@dataclass(frozen=True, eq=False)
class Quality:
    """What was measured of all patients."""

    rows: list[Measurement]
    curves: dict[tuple[str, str, str], NDArray[np.float64]]
    """(estimator, region, domain) → (patients, 101) sensitivity at the specificities 0 … 1."""
    patients: int


@dataclass(frozen=True)
class Comparison:
    """Two estimators on the same patients."""

    region: str
    metric: str
    first: str
    second: str
    shift: float
    """Hodges–Lehmann estimate of first − second."""
    pairs: int
    pvalue: float
    adjusted: float
    """By Holm, over all comparisons of the table."""


def measure_quality(
    patients: Iterable[Patient],
    regions: Regions,
    settings: RunSettings,
    progress: StagedProgress | None = None,
) -> Quality:
    """Sample every patient twice, by votes and conditionally, and measure three estimators."""
    rows: list[Measurement] = []
    curves: dict[tuple[str, str, str], list[NDArray[np.float64]]] = {}
    progress = progress or Silent()
    done = 0
    for patient in patients:
        progress.stage(f"sampling {patient.name}")
        for prediction in _predictions(patient, settings):
            rows += evaluate_case(
                prediction, patient.truth, regions, case=patient.name, domains=DOMAINS
            )
            for key, curve in _curves(prediction, patient, regions).items():
                curves.setdefault(key, []).append(curve)
        done += 1
    stacked = {key: np.array(values) for key, values in curves.items()}
    return Quality(rows, stacked, done)


def compare_estimators(quality: Quality, regions: Iterable[str]) -> list[Comparison]:
    """Test each pair of estimators on each measure, paired by patient, around the tumour."""
    pairs = [("votes", "mean_field"), ("conditional", "votes"), ("conditional", "mean_field")]
    found: list[tuple[str, str, str, str, NDArray[np.float64], NDArray[np.float64]]] = [
        (region, metric, first, second, *_pair_values(quality, region, metric, first, second))
        for region in regions
        for metric in ("auroc", "auprc", "ece_region")
        for first, second in pairs
    ]
    tests = [wilcoxon_exact(a, b) for *_, a, b in found]
    adjusted = holm([test.pvalue for test in tests])
    return [
        Comparison(
            region,
            metric,
            first,
            second,
            hodges_lehmann(a, b).estimate if (~np.isnan(a - b)).any() else float("nan"),
            test.pairs,
            test.pvalue,
            float(p),
        )
        for (region, metric, first, second, a, b), test, p in zip(found, tests, adjusted)
    ]


def _pair_values(
    quality: Quality, region: str, metric: str, first: str, second: str
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    by_case: dict[str, dict[str, float]] = {}
    for row in quality.rows:
        if (row.region, row.metric, row.domain) == (region, metric, "dilated"):
            by_case.setdefault(row.case, {})[row.method] = row.value
    cases = sorted(by_case)
    return (
        np.array([by_case[case][first] for case in cases]),
        np.array([by_case[case][second] for case in cases]),
    )


def _predictions(patient: Patient, settings: RunSettings) -> list[Prediction]:
    by_votes = sample_patient(patient, settings, "votes")
    conditional = sample_patient(patient, settings, "conditional")
    return [
        from_posterior(by_votes, "votes", labels_from="mean_field"),
        from_posterior(conditional, "conditional", labels_from="mean_field"),
        from_posterior(by_votes, "mean_field"),
    ]


def _curves(
    prediction: Prediction, patient: Patient, regions: Regions
) -> dict[tuple[str, str, str], NDArray[np.float64]]:
    grid = prediction.grid
    labels = grid.scatter(prediction.labels, 0)
    brain = patient.case.mask
    curves: dict[tuple[str, str, str], NDArray[np.float64]] = {}
    for region, members in regions.items():
        predicted, true = np.isin(labels, members), np.isin(patient.truth, members)
        wrong = grid.gather(predicted != true)
        bits = binary_entropy_percent(prediction.share(members))
        for domain in DOMAINS:
            where = grid.gather(domain_mask(domain, predicted, true, brain, grid.spacing))
            curve = detection_curve(bits[where], wrong[where])
            curves[prediction.name, region, domain] = np.array(
                [curve.sensitivity_at(float(s)) for s in SPECIFICITIES]
            )
    return curves
