"""Perturb-and-MPM: segmentations sampled from a dense CRF, and counted."""

from perturb_mpm.sampling.editing import (
    Edit,
    EditedVotes,
    Editor,
    SolvedPart,
    edited_crf,
    sample_edited,
)
from perturb_mpm.sampling.sampler import Keep, Sampler, sample, sample_range
from perturb_mpm.sampling.settings import (
    MOST_SAMPLES,
    Sampling,
    SharedPerturbation,
    share_noise,
)

__all__ = [
    "Edit",
    "edited_crf",
    "EditedVotes",
    "Editor",
    "Keep",
    "MOST_SAMPLES",
    "sample",
    "sample_edited",
    "SolvedPart",
    "sample_range",
    "Sampler",
    "Sampling",
    "share_noise",
    "SharedPerturbation",
]
