"""Pairs of scans as a table of paths, and their biomarkers as a table of numbers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from perturb_mpm.assessment.cohort_table import read_lines
from perturb_mpm.assessment.pairs import Biomarkers
from perturb_mpm.assessment.resection_calibration import ResectionCalibration
from perturb_mpm.io.errors import Source

COLUMNS = (
    "case",
    "method",
    "before_ml",
    "rtv_ml",
    "rtv_lower_ml",
    "rtv_upper_ml",
    "eor_frac",
    "eor_lower_frac",
    "eor_upper_frac",
    "rule",
    "samples_before",
    "samples_after",
)
Line = tuple[object, ...]


@dataclass(frozen=True)
class Pair:
    """The files of one patient before and after surgery."""

    case: str
    before: Path
    after: Path
    truth_before: Path | None = None
    truth_after: Path | None = None


def read_pairs(path: Path) -> list[Pair]:
    """Read the columns case, before, after and, where volumes are known, truth_before and after."""
    source = Source("--table", path)
    known = ("truth_before", "truth_after")
    lines = read_lines(source, required=("case", "before", "after"), known=known)
    pairs = []
    for number, line in enumerate(lines, start=2):
        paths = {name: path.parent / text for name, text in line.items() if text and name != "case"}
        if not line["case"] or not {"before", "after"} <= set(paths):
            raise source.error(
                f"line {number} must name a case, its scan before and its scan after"
            )
        if ("truth_before" in paths) != ("truth_after" in paths):
            raise source.error(f"line {number} must name both truths or none")
        pairs.append(
            Pair(
                line["case"], paths["before"], paths["after"], *(paths.get(name) for name in known)
            )
        )
    if len({pair.case for pair in pairs}) < len(pairs):
        raise source.error("must name every case once")
    return pairs


def lines_of(
    case: str, found: Biomarkers, calibration: ResectionCalibration | None = None
) -> list[Line]:
    """Return the rows of one patient: original, corrected, sampled and calibrated."""
    from perturb_mpm.assessment.scans import PAPER_RULE

    lines: list[Line] = [
        _line(case, "original", found.before_ml, found.residual_ml, extent=(found.extent,))
    ]
    if found.corrected_residual_ml is not None and found.corrected_extent is not None:
        lines.append(
            _line(
                case,
                "corrected",
                found.corrected_before_ml,
                found.corrected_residual_ml,
                extent=(found.corrected_extent,),
                rule=PAPER_RULE,
                samples=found.samples,
            )
        )
    if found.sampled is None:
        return lines
    left, extent = found.sampled.residual_ml, found.sampled.extent
    before = found.sampled.before_ml.median
    lines.append(
        _line(
            case,
            "samples, median",
            before,
            left.median,
            (left.lower, left.upper),
            (extent.median, extent.lower, extent.upper),
            found.perturbation,
            found.samples,
        )
    )
    if calibration is not None and calibration.widening is not None:
        low, high = calibration.widening.widen([left.lower], [left.upper])
        rule = f"conformal, learned on {calibration.cases} cases"
        interval = (float(low[0]), float(high[0]))
        lines.append(
            _line(
                case, "conformal", before, left.median, interval, rule=rule, samples=found.samples
            )
        )
    return lines


def _line(
    case: str,
    method: str,
    before: float | None,
    residual: float,
    interval: tuple[float, float] | None = None,
    extent: Sequence[float] = (),
    rule: str | None = None,
    samples: tuple[int | None, int | None] = (None, None),
) -> Line:
    numbers = [*extent, None, None, None][:3]
    values = [before, residual, *(interval or (None, None)), *numbers]
    plain = [None if isinstance(v, float) and math.isnan(v) else v for v in values]
    return (case, method, *plain, rule, *samples)
