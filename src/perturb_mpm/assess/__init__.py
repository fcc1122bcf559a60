"""From files to measured uncertainty and biomarkers: one case, a cohort, a pair of scans."""

from perturb_mpm.assess.evaluation_page import number, write_evaluation
from perturb_mpm.assess.measure import measure_entry
from perturb_mpm.assess.pair_table import (
    COLUMNS,
    Line,
    Pair,
    ResectionCalibration,
    calibrate,
    lines_of,
    read_calibration,
    read_pairs,
    write_calibration,
)
from perturb_mpm.assess.scans import Biomarkers, Scan, read_scan, resection, scan_of
from perturb_mpm.assess.sources import Entry, read_cohort

__all__ = [
    "Biomarkers",
    "calibrate",
    "COLUMNS",
    "Entry",
    "Line",
    "lines_of",
    "measure_entry",
    "number",
    "Pair",
    "read_calibration",
    "read_cohort",
    "read_pairs",
    "read_scan",
    "resection",
    "ResectionCalibration",
    "Scan",
    "scan_of",
    "write_calibration",
    "write_evaluation",
]
