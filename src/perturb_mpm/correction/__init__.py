"""Voxels that a person has set, and what the CRF makes of them."""
