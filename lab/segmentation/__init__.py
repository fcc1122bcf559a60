"""The segmentation experiment: forest, default CRF and tuned CRF, side by side."""

from lab.segmentation.patients import glioma_experiment, load_turn, save_turn
from lab.segmentation.run import TURNS

__all__ = [
    "glioma_experiment",
    "load_turn",
    "save_turn",
    "TURNS",
]
