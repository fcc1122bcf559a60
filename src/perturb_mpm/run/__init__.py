"""From one patient's files to every output file, with a state that survives interruption.

``run_case`` samples a ``Case`` and writes everything to a folder; ``load_run`` reads the ``Run``
back: case, settings, posterior and maps.
"""

from perturb_mpm.run.coupling import check_coupling
from perturb_mpm.run.drawing import rebuild_sampler, redraw_samples
from perturb_mpm.run.evidence import (
    CaseEvidence,
    assumed_length_mm,
    decide_settings,
    find_evidence,
)
from perturb_mpm.run.findings import (
    FINDING_FILES,
    FoundSamples,
    check_questions,
    find_in_samples,
    findings_as_json,
    is_finding,
    sampled_share,
    write_findings,
)
from perturb_mpm.run.folder import (
    BidsNames,
    check_inputs,
    check_output,
    lock_run,
    plan_layout,
)
from perturb_mpm.run.manifest import list_files, register_files
from perturb_mpm.run.measuring import (
    Surroundings,
    basis_in_words,
    learned_law,
    measure,
    measure_rows,
    measured_patient,
    measurements_as_json,
    read_surroundings,
    write_measurements,
)
from perturb_mpm.run.model import build_crf, build_sampler, map_marginals, temper
from perturb_mpm.run.outputs import MapsInside, report_data, summarize_run, write_page
from perturb_mpm.run.running import begin_case, draw_part, run_case
from perturb_mpm.run.settings import (
    DEFAULT_BILATERAL,
    DEFAULT_SPATIAL,
    KernelSettings,
    Numbers,
    OutputError,
    RunSettings,
    SettingsError,
    UnusableRunError,
    read_settings,
    settings_from_text,
    settings_text,
    shipped_settings,
    write_settings,
)
from perturb_mpm.run.state import (
    CORRECTED_SUMMARY,
    MOST_SAMPLE_MAPS,
    STATE,
    Run,
    StateError,
    load_run,
    read_run_json,
)
from perturb_mpm.run.volumes import INTERVAL, measure_agreement, volume_rows, volume_sets

__all__ = [
    "assumed_length_mm",
    "CaseEvidence",
    "decide_settings",
    "find_evidence",
    "MapsInside",
    "report_data",
    "summarize_run",
    "write_page",
    "Run",
    "run_case",
    "check_output",
    "check_inputs",
    "plan_layout",
    "begin_case",
    "draw_part",
    "load_run",
    "read_run_json",
    "rebuild_sampler",
    "redraw_samples",
    "lock_run",
    "list_files",
    "register_files",
    "check_coupling",
    "measure_agreement",
    "CORRECTED_SUMMARY",
    "MOST_SAMPLE_MAPS",
    "INTERVAL",
    "volume_rows",
    "volume_sets",
    "FINDING_FILES",
    "FoundSamples",
    "check_questions",
    "find_in_samples",
    "findings_as_json",
    "is_finding",
    "sampled_share",
    "write_findings",
    "Surroundings",
    "basis_in_words",
    "learned_law",
    "measure",
    "measure_rows",
    "measured_patient",
    "measurements_as_json",
    "read_surroundings",
    "write_measurements",
    "BidsNames",
    "RunSettings",
    "KernelSettings",
    "DEFAULT_SPATIAL",
    "DEFAULT_BILATERAL",
    "Numbers",
    "read_settings",
    "shipped_settings",
    "settings_from_text",
    "settings_text",
    "write_settings",
    "build_crf",
    "build_sampler",
    "map_marginals",
    "temper",
    "STATE",
    "OutputError",
    "SettingsError",
    "UnusableRunError",
    "StateError",
]
