"""How much the segmentation experiment does: in full, and quickly."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

from perturb_mpm.learning import FieldSetting, ObjectiveName, Phase

DEFAULT_ITERATIONS = 10


class Amplitudes(NamedTuple):
    """Fields of one length: shared by the tumour's labels, of each label, of the last one.

    The last label is enhancing tumour, often small and then missed as a whole.
    """

    length_mm: float
    shared: float
    own: float
    last: float

    def setting(self, n_labels: int) -> FieldSetting:
        """Return the setting of a problem with so many labels."""
        own = (*[self.own] * (n_labels - 2), self.last)
        return FieldSetting(self.length_mm, self.shared, own)


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
    """Settings of tuning, sampling and fields; those of a made-up cohort beside them."""

    mode: str
    iterations: int  # of the tuned CRF, in tuning and in testing
    phases: tuple[Phase, ...]
    steps: int
    crop_mm: float
    samples: int
    amplitudes: tuple[Amplitudes, ...]
    phantoms: int
    phantom_mm: float


FULL = SegmentationPlan(
    mode="full",
    iterations=5,
    phases=("weights", "compatibility"),
    steps=8,
    crop_mm=10.0,
    samples=32,
    amplitudes=tuple(
        Amplitudes(length, *nats)
        for length in (60.0, 100.0, math.inf)
        for nats in ((1, 1, 1), (2, 1, 2), (2, 2, 3), (3, 1, 3), (3, 2, 3), (4, 2, 4))
    ),
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
    amplitudes=(Amplitudes(60.0, 2.0, 2.0, 1.0), Amplitudes(math.inf, 1.0, 1.0, 1.0)),
    phantoms=3,
    phantom_mm=8.0,
)
