"""Every method that the paper names, on one patient."""

from lab.compare.methods import (
    METHODS,
    ComparePlan,
    MethodResult,
    Subject,
    crop_box,
    crop_case,
    run_methods,
)

__all__ = [
    "METHODS",
    "ComparePlan",
    "MethodResult",
    "Subject",
    "crop_box",
    "crop_case",
    "run_methods",
]
