"""The segmentation experiment: classifier, default CRF and tuned CRF, side by side."""

from lab.segmentation.patients import (
    PROBABILITIES,
    LeaveOneOut,
    LeftOut,
    glioma_patients,
)
from lab.segmentation.run import SegmentationOutcome, reproduce_segmentation

__all__ = [
    "PROBABILITIES",
    "LeaveOneOut",
    "LeftOut",
    "SegmentationOutcome",
    "glioma_patients",
    "reproduce_segmentation",
]
