"""Noise that is a pure function of seed, sample, voxel and label."""

from perturb_mpm.noise.correlated import (
    FARTHEST,
    WHITE,
    Lengths,
    NoiseLength,
    checked_lengths,
    length_lattices,
    simplest,
    white_share,
)
from perturb_mpm.noise.gumbel import INDEX_BITS, SAMPLES, checked_seed, gumbel, key_words
from perturb_mpm.noise.nodes import SUPPORT, NodeLattice
from perturb_mpm.noise.perturbation import Perturbation

__all__ = [
    "NoiseLength",
    "Lengths",
    "WHITE",
    "FARTHEST",
    "checked_lengths",
    "length_lattices",
    "simplest",
    "white_share",
    "checked_seed",
    "gumbel",
    "INDEX_BITS",
    "key_words",
    "NodeLattice",
    "Perturbation",
    "SAMPLES",
    "SUPPORT",
]
