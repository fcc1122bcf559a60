"""Whole cohorts: many cases found, run one after the other or on workers, ranked on one page.

``find_cohort`` finds the cases, ``check_cohort`` reads them without running any, ``run_cohort``
runs them. A case that fails is one row, and the same call again goes on where it stopped.
"""

from perturb_mpm.cohort.bids_app import (
    BidsRequest,
    find_bids_cases,
    run_participants,
    write_group_results,
)
from perturb_mpm.cohort.cluster import (
    ClusterError,
    ClusterFile,
    connect_scheduler,
    local_workers,
    map_on_workers,
    read_cluster_file,
    share_machine,
    start_cluster,
)
from perturb_mpm.cohort.one_case import CaseReading
from perturb_mpm.cohort.records import CaseRecord, add_ratings
from perturb_mpm.cohort.running import (
    MOST_PARTS,
    CaseCheck,
    CohortPart,
    CohortResult,
    check_cohort,
    find_cohort,
    gather_cohort,
    run_cohort,
)

__all__ = [
    "find_cohort",
    "CaseReading",
    "check_cohort",
    "CaseCheck",
    "run_cohort",
    "CohortPart",
    "gather_cohort",
    "BidsRequest",
    "find_bids_cases",
    "run_participants",
    "write_group_results",
    "MOST_PARTS",
    "CohortResult",
    "CaseRecord",
    "add_ratings",
    "local_workers",
    "connect_scheduler",
    "read_cluster_file",
    "ClusterFile",
    "start_cluster",
    "share_machine",
    "map_on_workers",
    "ClusterError",
]
