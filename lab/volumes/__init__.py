"""How far sampled volumes spread on real patients."""

from lab.volumes.measuring import MeasuredVolume, reproduce_volumes

__all__ = [
    "MeasuredVolume",
    "reproduce_volumes",
]
