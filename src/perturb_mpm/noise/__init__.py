"""Noise that is a pure function of seed, sample, voxel and label."""
