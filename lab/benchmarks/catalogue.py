"""Which problems are measured, by name."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from lab.benchmarks import brats, synthetic
from lab.benchmarks.problems import Problem

Catalogue = dict[str, Callable[[], Problem]]

BRAIN_VOXELS = (100_000, 400_000, 1_490_000)


def synthetic_problems() -> Catalogue:
    boxes = {
        "64": partial(synthetic.box, (64, 64, 64)),
        "96": partial(synthetic.box, (96, 96, 64)),
    }
    brains = {f"brain-{n / 1e6:.1f}": partial(synthetic.brain, n) for n in BRAIN_VOXELS}
    return {**boxes, **brains}


def real_problems() -> Catalogue:
    """Return the real case at each setting, or nothing where its data is not there."""
    if not brats.case_folder().is_dir():
        return {}
    return {
        f"real-{setting.sigma_space:g}": partial(brats.real, setting) for setting in brats.SETTINGS
    }


SAMPLED = ("brain-1.5", "real-20")
"""Where a whole sampling run is measured too."""

QUICK = ("64", "96", "brain-0.1")
