"""What a dense CRF and its noise make of a real network, beside what one does instead."""

from lab.network.measuring import (
    FOLDS,
    CaseScore,
    case_names,
    measure_network,
    read_network_case,
    summarise,
)

__all__ = [
    "case_names",
    "CaseScore",
    "FOLDS",
    "measure_network",
    "read_network_case",
    "summarise",
]
