"""Patients whose images say much, or nothing, about the labels."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from helpers import small_case
from perturb_mpm.files import Case


@pytest.fixture(scope="module")
def speaking(tmp_path_factory: pytest.TempPathFactory) -> Case:
    """A patient whose images show the labels."""
    folder = tmp_path_factory.mktemp("patient")
    small_case.write_files(folder)
    return small_case.read(folder)


@pytest.fixture(scope="module")
def silent(speaking: Case) -> Case:
    """The same with images of noise."""
    rng = np.random.default_rng(8)
    noise = {
        name: rng.normal(size=image.shape).astype(np.float32)
        for name, image in speaking.images.items()
    }
    return replace(speaking, images=noise)
