"""How far sampled volumes spread on real patients."""

from lab.volumes.measuring import VolumeRow, reproduce_volumes

__all__ = [
    "VolumeRow",
    "reproduce_volumes",
]
