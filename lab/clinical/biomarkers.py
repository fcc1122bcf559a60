"""The second clinical experiment: extent of resection and residual volume against four raters.

Meier et al. 2017 compared automatic EOR and RTV of 19 patients with four raters, before and after
uncertain voxels were dropped. Here the sample median and intervals stand beside these, with the
paper's noise and with correlated noise, as ``tune`` learns it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lab.clinical.patients import sample_patient
from lab.patients import Patient
from perturb_mpm.assess import (
    Biomarkers,
    ResectionCalibration,
    Scan,
    calibrate,
    measure_scan,
    resection,
)
from perturb_mpm.biomarkers import bonferroni, coverage, extent_of_resection, holm, wilcoxon_exact
from perturb_mpm.files import region_members
from perturb_mpm.posterior import decide_labels
from perturb_mpm.progress import Silent, StagedProgress
from perturb_mpm.run import RunSettings, decide_settings, map_marginals

METHODS = ("original", "corrected", "median")
QUANTITIES = ("rtv_ml", "eor_frac")
TRUTH = "truth"

MeasureScan = Callable[[Patient], Scan]
"""Segments and samples one scan, and says what that means for one region."""


@dataclass(frozen=True, eq=False)
class OperatedPatient:
    """The same patient before and after surgery."""

    before: Patient
    after: Patient


@dataclass(frozen=True)
class Estimate:
    """One automatic value of one patient beside a reference: the truth or a rater."""

    patient: str
    perturbation: str
    quantity: str
    method: str
    reference: str
    value: float
    reference_value: float

    @property
    def error(self) -> float:
        """The value minus the reference's; NaN where either is undefined."""
        return self.value - self.reference_value


@dataclass(frozen=True)
class ErrorTest:
    """Whether a correction changes the absolute error against one rater."""

    perturbation: str
    quantity: str
    method: str
    reference: str
    median_before: float
    """Of the absolute error of the original values."""
    median_after: float
    bias_before: float
    """The mean signed error."""
    bias_after: float
    pairs: int
    pvalue: float
    bonferroni: float
    holm: float


@dataclass(frozen=True)
class Coverage:
    """How often 95 % sample intervals hold a reference."""

    perturbation: str
    quantity: str
    reference: str
    share: float
    median_width: float
    cases: int


@dataclass(frozen=True, eq=False)
class BiomarkerResults:
    """Everything that was measured."""

    estimates: list[Estimate]
    found: dict[str, dict[str, Biomarkers]]  # perturbation -> patient -> biomarkers
    references: dict[str, dict[str, tuple[float, float]]]
    """Reference → patient → its volumes before and after, ml."""
    calibration: dict[str, ResectionCalibration]  # perturbation -> against the truth


def measure_biomarkers(
    patients: Iterable[OperatedPatient],
    region: Sequence[int],
    scanners: Mapping[str, MeasureScan],
    progress: StagedProgress | None = None,
) -> BiomarkerResults:
    """Segment every patient before and after surgery in each way, by its name."""
    found: dict[str, dict[str, Biomarkers]] = {name: {} for name in scanners}
    references: dict[str, dict[str, tuple[float, float]]] = {}
    progress = progress or Silent()
    for patient in patients:
        name = patient.after.name
        progress.stage(f"sampling {name} before and after surgery")
        for words, measure in scanners.items():
            found[words][name] = resection(measure(patient.before), measure(patient.after))
        for reference, volumes in _reference_volumes(patient, region).items():
            references.setdefault(reference, {})[name] = volumes
    truth = references[TRUTH]
    learnt = {words: calibrate(each, truth) for words, each in found.items()}
    calibration = {words: each for words, each in learnt.items() if each is not None}
    return BiomarkerResults(list(_estimates(found, references)), found, references, calibration)


def settings_scanner(settings: RunSettings, region: Sequence[int], words: str) -> MeasureScan:
    """Return what measures the region in the label map that ``run`` shows under the settings."""

    def measure(patient: Patient) -> Scan:
        decided = decide_settings(settings, patient.case)
        posterior = sample_patient(patient, decided)
        regions = region_members(decided.regions, patient.case.labels)
        labels = decide_labels(map_marginals(patient.case, decided, posterior), regions)
        return measure_scan(posterior, region, words, labels)

    return measure


def error_tests(results: BiomarkerResults) -> list[ErrorTest]:
    """Test, rater by rater, whether the corrected value or the median has another error.

    Bonferroni's m is the number of tests of one perturbation and method: two quantities, each
    against all raters.
    """
    tests: list[ErrorTest] = []
    for perturbation in results.found:
        for method in METHODS[1:]:
            group = [
                _test(results, perturbation, quantity, method, rater)
                for quantity in QUANTITIES
                for rater in results.references
                if rater != TRUTH
            ]
            if not group:
                continue
            p = [each.pvalue for each in group]
            tests += [
                ErrorTest(**{**vars(each), "bonferroni": float(b), "holm": float(h)})
                for each, b, h in zip(group, bonferroni(p), holm(p))
            ]
    return tests


def interval_coverage(results: BiomarkerResults) -> list[Coverage]:
    """Return how often the 95 % sample intervals hold the truth, and each rater's value."""
    rows = []
    for perturbation, patients in results.found.items():
        for quantity in QUANTITIES:
            for reference, volumes in results.references.items():
                ends, values = [], []
                for name, each in patients.items():
                    if each.sampled is None:
                        continue
                    marker = (
                        each.sampled.residual_ml if quantity == "rtv_ml" else each.sampled.extent
                    )
                    ends.append((marker.lower, marker.upper))
                    values.append(_reference(quantity, volumes[name]))
                table = np.array(ends)
                defined = ~np.isnan(table).any(axis=1) & ~np.isnan(values)
                low, high = table[defined].T
                rows.append(
                    Coverage(
                        perturbation,
                        quantity,
                        reference,
                        coverage(low, high, np.array(values)[defined]),
                        float(np.median(high - low)),
                        int(defined.sum()),
                    )
                )
    return rows


def signed_errors(
    results: BiomarkerResults, perturbation: str, quantity: str, method: str, reference: str
) -> NDArray[np.float64]:
    """Return the signed errors of all patients, in their order."""
    return np.array(
        [
            each.error
            for each in results.estimates
            if (each.perturbation, each.quantity, each.method, each.reference)
            == (perturbation, quantity, method, reference)
        ]
    )


def typical(values: NDArray[np.float64]) -> float:
    """Return the median of what is defined; NaN where nothing is."""
    defined = values[~np.isnan(values)]
    return float(np.median(defined)) if len(defined) else math.nan


def mean(values: NDArray[np.float64]) -> float:
    """Return the mean of what is defined; NaN where nothing is."""
    defined = values[~np.isnan(values)]
    return float(defined.mean()) if len(defined) else math.nan


def _test(
    results: BiomarkerResults, perturbation: str, quantity: str, method: str, rater: str
) -> ErrorTest:
    before = signed_errors(results, perturbation, quantity, "original", rater)
    after = signed_errors(results, perturbation, quantity, method, rater)
    result = wilcoxon_exact(np.abs(before), np.abs(after))
    return ErrorTest(
        perturbation,
        quantity,
        method,
        rater,
        typical(np.abs(before)),
        typical(np.abs(after)),
        mean(before),
        mean(after),
        result.pairs,
        result.pvalue,
        result.pvalue,
        result.pvalue,
    )


def _estimates(
    found: Mapping[str, Mapping[str, Biomarkers]],
    references: Mapping[str, Mapping[str, tuple[float, float]]],
) -> Iterable[Estimate]:
    for perturbation, patients in found.items():
        for name, each in patients.items():
            for quantity in QUANTITIES:
                for method, value in _values(each, quantity).items():
                    for reference, volumes in references.items():
                        yield Estimate(
                            name,
                            perturbation,
                            quantity,
                            method,
                            reference,
                            value,
                            _reference(quantity, volumes[name]),
                        )


def _values(each: Biomarkers, quantity: str) -> dict[str, float]:
    sampled_values = each.sampled
    if sampled_values is None or each.certain_residual_ml is None or each.certain_extent is None:
        raise ValueError("each patient must have samples before and after surgery")
    if quantity == "rtv_ml":
        values = (each.residual_ml, each.certain_residual_ml, sampled_values.residual_ml.median)
    else:
        values = (each.extent, each.certain_extent, sampled_values.extent.median)
    return dict(zip(METHODS, values))


def _reference(quantity: str, volumes: tuple[float, float]) -> float:
    return volumes[1] if quantity == "rtv_ml" else float(extent_of_resection(*volumes))


def _reference_volumes(
    patient: OperatedPatient, region: Sequence[int]
) -> dict[str, tuple[float, float]]:
    """Return the volumes before and after that the truth and each rater give, in ml."""
    scans = (patient.before, patient.after)
    volumes = {TRUTH: tuple(scan.volume_ml(scan.truth, region) for scan in scans)}
    for number in range(0 if patient.after.raters is None else len(patient.after.raters)):
        volumes[f"rater {number + 1}"] = tuple(
            scan.volume_ml(scan.truth if scan.raters is None else scan.raters[number], region)
            for scan in scans
        )
    return {name: (pair[0], pair[1]) for name, pair in volumes.items()}
