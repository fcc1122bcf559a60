"""Patients with a glioblastoma, made from a seed: images whose truth is known.

They stand on the MNI152 tissue maps; ``data/NOTICE.md`` holds their copyright notice.
"""

from __future__ import annotations

from perturb_mpm.phantom.classifier import LABEL_NAMES, POSTOPERATIVE_LABEL_NAMES
from perturb_mpm.phantom.patient import Phantom, glioblastoma, resect
from perturb_mpm.phantom.scanner import CHANNEL_NAMES
from perturb_mpm.phantom.space import PhantomGrid, RandomSource

__all__ = [
    "CHANNEL_NAMES",
    "glioblastoma",
    "LABEL_NAMES",
    "Phantom",
    "PhantomGrid",
    "POSTOPERATIVE_LABEL_NAMES",
    "RandomSource",
    "resect",
]
