"""The segmentation experiment: forest, default CRF and tuned CRF, side by side."""
