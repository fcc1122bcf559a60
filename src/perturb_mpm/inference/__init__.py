"""Mean field of one problem, and the loop of updates that samples and edits make too."""

from perturb_mpm.inference.solving import (
    ConvergenceWarning,
    MeanField,
    Schedule,
    in_turn,
    mean_field,
    run_updates,
)

__all__ = [
    "ConvergenceWarning",
    "in_turn",
    "mean_field",
    "MeanField",
    "run_updates",
    "Schedule",
]
