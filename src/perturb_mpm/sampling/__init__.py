"""Perturb-and-MPM: segmentations sampled from a dense CRF, and counted."""
