"""How much the segmentation experiment does: in full, and quickly."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from perturb_mpm.learning import ObjectiveName, Phase

DEFAULT_ITERATIONS = 10


class Tuning(NamedTuple):
    """What a CRF is tuned for, and how strongly it is pulled towards the start."""

    name: str
    objective: ObjectiveName
    strength: float


# Overlap alone does not know when to stop, with ten patients to learn from: it is pulled harder.
TUNINGS = (
    Tuning("tuned for overlap", "mean_iou", 0.03),
    Tuning("tuned for both", "both", 0.01),
    Tuning("tuned for likelihood", "log_likelihood", 0.01),
)


@dataclass(frozen=True)
class SegmentationPlan:
    """Settings of tuning and sampling; those of a made-up cohort beside them."""

    mode: str
    iterations: int  # of the tuned CRF, in tuning and in testing
    phases: tuple[Phase, ...]
    steps: int
    crop_mm: float
    samples: int
    phantoms: int
    phantom_mm: float


FULL = SegmentationPlan(
    mode="full",
    iterations=5,
    phases=("weights", "compatibility"),
    steps=8,
    crop_mm=10.0,
    samples=32,
    phantoms=6,
    phantom_mm=4.0,
)
QUICK = SegmentationPlan(
    mode="quick",
    iterations=3,
    phases=("weights",),
    steps=2,
    crop_mm=10.0,
    samples=4,
    phantoms=3,
    phantom_mm=8.0,
)
