"""Held voxels and settled samples beside full sampling with the same noise, on real patients."""

from lab.held.measuring import HeldRow, compared, measure_held, warm_up

__all__ = ["compared", "HeldRow", "measure_held", "warm_up"]
