"""Frozen voxels and converged samples beside full sampling with the same noise, real patients."""

from lab.frozen.measuring import FrozenRow, compared, measure_frozen, warm_up

__all__ = ["compared", "FrozenRow", "measure_frozen", "warm_up"]
