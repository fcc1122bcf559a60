"""Whole cohorts: many cases found, run one after the other or on workers, and told in one page.

``find_cohort`` finds the cases, ``check_cohort`` reads them without running any, ``run_cohort``
runs them. What fails is one case's row, and the same call again goes on where it stopped.
"""

from perturb_mpm.cohort.cases import find_cohort
from perturb_mpm.cohort.checking import CaseCheck, check_cohort
from perturb_mpm.cohort.cluster import (
    ClusterError,
    connected,
    each_on_workers,
    local_workers,
    shared_out,
)
from perturb_mpm.cohort.cluster_file import ClusterFile, read_cluster_file, started_cluster
from perturb_mpm.cohort.one_case import CaseReading, Record
from perturb_mpm.cohort.running import CohortResult, run_cohort

__all__ = [
    "find_cohort",
    "CaseReading",
    "check_cohort",
    "CaseCheck",
    "run_cohort",
    "CohortResult",
    "Record",
    "local_workers",
    "connected",
    "read_cluster_file",
    "ClusterFile",
    "started_cluster",
    "shared_out",
    "each_on_workers",
    "ClusterError",
]
