"""Noise that is a pure function of seed, sample, voxel and label."""

from perturb_mpm.noise import polynomials
from perturb_mpm.noise.gumbel import (
    INDEX_BITS,
    PHILOX_FACTORS,
    PHILOX_KEY_STEPS,
    PHILOX_ROUNDS,
    SAMPLES,
    checked_seed,
    gumbel,
    key_words,
)
from perturb_mpm.noise.nodes import SUPPORT, Axis, NodeLattice, NodeTables
from perturb_mpm.noise.perturbation import (
    FARTHEST,
    WHITE,
    Lengths,
    NoiseLength,
    Perturbation,
    checked_lengths,
    length_lattices,
    simplest,
    white_share,
)

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
    "Axis",
    "NodeLattice",
    "NodeTables",
    "Perturbation",
    "PHILOX_FACTORS",
    "PHILOX_KEY_STEPS",
    "PHILOX_ROUNDS",
    "polynomials",
    "SAMPLES",
    "SUPPORT",
]
