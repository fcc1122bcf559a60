"""Held voxels and settled samples beside full sampling with the same noise, on real patients."""

from lab.held.measuring import HeldRow, compared, measure_held

__all__ = ["compared", "HeldRow", "measure_held"]
