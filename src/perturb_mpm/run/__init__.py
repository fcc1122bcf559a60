"""From one patient's files to every output file, with a state that survives interruption."""

from perturb_mpm.run.folder import BidsNames
from perturb_mpm.run.model import build_crf, build_sampler
from perturb_mpm.run.running import RunResult, run_case
from perturb_mpm.run.settings import (
    DEFAULT_BILATERAL,
    DEFAULT_SPATIAL,
    KernelSettings,
    Numbers,
    OutputError,
    RunSettings,
    SettingsError,
    read_settings,
    write_settings,
)
from perturb_mpm.run.state import STATE, RunState, StateError, load_state

__all__ = [
    "BidsNames",
    "build_crf",
    "build_sampler",
    "DEFAULT_BILATERAL",
    "DEFAULT_SPATIAL",
    "KernelSettings",
    "load_state",
    "Numbers",
    "OutputError",
    "read_settings",
    "run_case",
    "RunResult",
    "RunSettings",
    "RunState",
    "SettingsError",
    "STATE",
    "StateError",
    "write_settings",
]
