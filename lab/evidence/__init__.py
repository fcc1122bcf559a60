"""What the CRF, its noise and ``tune`` make of real probabilities, beside what one does instead."""

from lab.evidence.sets import GLIOMA_REGIONS, case_names, read_hippocampus, read_set

__all__ = ["case_names", "GLIOMA_REGIONS", "read_hippocampus", "read_set"]
