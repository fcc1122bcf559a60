"""The files that ``evaluate`` and ``biomarkers`` write, and those that they never overwrite."""

from __future__ import annotations

import csv
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from perturb_mpm.assess.evaluation_page import GENERATOR, render_evaluation
from perturb_mpm.assess.measure import CaseAssessment
from perturb_mpm.assess.scan_pairs import (
    COLUMNS,
    Line,
    ResectionCalibration,
    biomarker_rows,
    read_calibration,
)
from perturb_mpm.assess.scans import Biomarkers
from perturb_mpm.assess.sources import is_run
from perturb_mpm.evaluation import summarise
from perturb_mpm.files import write_table
from perturb_mpm.run import OutputError
from perturb_mpm.storage import atomic_open, read_json, write_json

EVALUATION_COLUMNS = ("case", "method", "against", "region", "domain", "metric", "value")


def check_evaluation_folder(folder: Path) -> None:
    """Refuse a folder that holds a run, or files of the names to be written that are others'."""
    _refuse_others(
        folder,
        {
            "metrics.csv": lambda path: _heading(path) == list(EVALUATION_COLUMNS),
            "summary.json": _is_evaluation_summary,
            "evaluation.html": lambda path: GENERATOR in path.read_text("utf-8")[:2000],
        },
    )


def write_evaluation(
    folder: Path, title: str, assessments: Sequence[CaseAssessment]
) -> dict[str, Path]:
    """Write metrics.csv, summary.json and evaluation.html; the same measures give the same bytes.

    The folder must be there, and pass ``check_evaluation_folder``.
    """
    check_evaluation_folder(folder)
    rows = [row for each in assessments for row in each.rows]
    files = {
        name: folder / file
        for name, file in (
            ("metrics", "metrics.csv"),
            ("summary", "summary.json"),
            ("page", "evaluation.html"),
        )
    }
    page = render_evaluation(title, assessments).encode()
    lines = [(r.case, r.method, r.against, r.region, r.domain, r.metric, r.value) for r in rows]
    write_table(files["metrics"], EVALUATION_COLUMNS, lines)
    write_json(files["summary"], summarise(rows))
    with atomic_open(files["page"]) as file:
        file.write(page)
    return files


def check_biomarkers_folder(folder: Path) -> None:
    """Refuse a folder that holds a run, or files of the names to be written that are others'."""
    _refuse_others(
        folder,
        {
            "biomarkers.csv": lambda path: _heading(path) == list(COLUMNS),
            "biomarkers.json": _are_biomarkers,
            "calibration.json": lambda path: bool(read_calibration(path)),
        },
    )


def write_biomarkers(
    folder: Path,
    found: Mapping[str, Biomarkers],
    calibration: ResectionCalibration | None = None,
    learnt: ResectionCalibration | None = None,
) -> dict[str, Path]:
    """Write biomarkers.csv and biomarkers.json, and calibration.json where one was learnt.

    ``calibration`` is one that was learnt before, and allows probabilities of classes. The folder
    must be there, and pass ``check_biomarkers_folder``.
    """
    check_biomarkers_folder(folder)
    files = {"table": folder / "biomarkers.csv", "numbers": folder / "biomarkers.json"}
    write_table(files["table"], COLUMNS, biomarker_lines(found, calibration))
    write_json(files["numbers"], biomarkers_as_json(found, calibration))
    if learnt is not None:
        files["calibration"] = folder / "calibration.json"
        write_json(files["calibration"], asdict(learnt))
    return files


def biomarker_lines(
    found: Mapping[str, Biomarkers], calibration: ResectionCalibration | None
) -> list[Line]:
    """Return the rows of all patients."""
    return [
        line for case, each in found.items() for line in biomarker_rows(case, each, calibration)
    ]


def biomarkers_as_json(
    found: Mapping[str, Biomarkers], calibration: ResectionCalibration | None
) -> dict[str, dict[str, object]]:
    """Return biomarkers as JSON holds them: None where a value is not defined."""
    return {case: _one_as_json(each, calibration) for case, each in found.items()}


def _one_as_json(found: Biomarkers, calibration: ResectionCalibration | None) -> dict[str, object]:
    sampled = found.sampled
    result: dict[str, object] = {
        "before_ml": found.before_ml,
        "rtv_ml": found.residual_ml,
        "eor_frac": found.extent,
        "resection_class": found.resection_class,
        "corrected": {
            "before_ml": found.corrected_before_ml,
            "rtv_ml": found.corrected_residual_ml,
            "eor_frac": found.corrected_extent,
        },
        "samples": list(found.samples),
        "perturbation": found.perturbation,
        "warnings": list(found.warnings),
    }
    if sampled is None:
        return result
    result["sampled"] = {
        "rtv_median_ml": sampled.residual_ml.median,
        "rtv_interval_ml": [sampled.residual_ml.lower, sampled.residual_ml.upper],
        "eor_median_frac": sampled.extent.median,
        "eor_interval_frac": [sampled.extent.lower, sampled.extent.upper],
        "eor_undefined_samples": sampled.extent.undefined,
    }
    if calibration is not None:
        result["class_probabilities"] = sampled.classes
        result["residual_present_probability"] = sampled.residual_present
        result["calibration"] = {
            "cases": calibration.cases,
            "class_brier": calibration.class_brier,
            "true_class_probability": calibration.true_class_probability,
            "residual_coverage": calibration.residual_coverage,
        }
    return result


def _refuse_others(folder: Path, own: Mapping[str, Callable[[Path], bool]]) -> None:
    if is_run(folder):
        raise OutputError(f"`output` must not be the folder of a run, got {folder}: name another")
    for name, is_own in own.items():
        if not (folder / name).exists():
            continue
        try:
            known = is_own(folder / name)
        except (OSError, ValueError, csv.Error, RecursionError):
            known = False
        if not known:
            raise OutputError(
                f"`output` must be a folder whose files may be replaced, got {folder / name}, "
                "which this command did not write: name another folder"
            )


def _heading(path: Path) -> list[str]:
    with path.open(encoding="utf-8", newline="") as file:
        return next(csv.reader(file), [])


def _is_evaluation_summary(path: Path) -> bool:
    content = read_json(path)
    return isinstance(content, list) and all(
        isinstance(each, dict) and "metric" in each for each in content
    )


def _are_biomarkers(path: Path) -> bool:
    content = read_json(path)
    return isinstance(content, dict) and all(
        isinstance(each, dict) and "rtv_ml" in each for each in content.values()
    )
