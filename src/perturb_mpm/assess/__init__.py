"""From files to numbers: uncertainty against a truth, measures of a run, two scans compared."""

from perturb_mpm.assess.change import (
    ChangeQuestion,
    RunChange,
    change_as_json,
    check_change_folder,
    compare_runs,
    write_change,
    write_change_page,
)
from perturb_mpm.assess.evaluation import (
    CaseAssessment,
    assess_case,
    check_evaluation_folder,
    write_evaluation,
)
from perturb_mpm.assess.scan_pairs import (
    Line,
    ResectionCalibration,
    ScanPair,
    biomarker_lines,
    biomarkers_as_json,
    calibrate,
    check_biomarkers_folder,
    read_calibration,
    read_pairs,
    write_biomarkers,
)
from perturb_mpm.assess.scans import (
    Biomarkers,
    Scan,
    check_spacing,
    measure_scan,
    read_scan,
    resection,
)
from perturb_mpm.assess.sources import cases_done, check_measures_folder, read_cohort

__all__ = [
    "change_as_json",
    "ChangeQuestion",
    "check_change_folder",
    "compare_runs",
    "RunChange",
    "write_change",
    "write_change_page",
    "check_measures_folder",
    "assess_case",
    "biomarker_lines",
    "Biomarkers",
    "biomarkers_as_json",
    "calibrate",
    "CaseAssessment",
    "cases_done",
    "check_biomarkers_folder",
    "check_evaluation_folder",
    "check_spacing",
    "Line",
    "read_calibration",
    "read_cohort",
    "read_pairs",
    "read_scan",
    "resection",
    "ResectionCalibration",
    "Scan",
    "measure_scan",
    "ScanPair",
    "write_biomarkers",
    "write_evaluation",
]
