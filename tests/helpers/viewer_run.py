"""A small run to look at: a made-up patient, in a voxel order that is not the browser's."""

from __future__ import annotations

import atexit
import shutil
from functools import cache
from pathlib import Path
from tempfile import mkdtemp

import nibabel as nib
import numpy as np

from perturb_mpm.files import Case, Geometry, LabelScheme
from perturb_mpm.run.running import run_case
from perturb_mpm.run.settings import KernelSettings, RunSettings

SHAPE = (30, 34, 26)
SPACING = (4.0, 4.0, 4.0)
NAMES = ("healthy", "oedema", "core")
VALUES = (0, 2, 7)
SETTINGS = RunSettings.of_paper().changed(
    samples=24,
    seed=5,
    iterations=5,
    kernels=(
        KernelSettings("spatial", sigma_space=4.0, weight=1.0),
        KernelSettings("bilateral", sigma_space=8.0, sigma_intensity_sd=0.6, weight=2.0),
    ),
    accuracy="plain",
)


def make_case() -> Case:
    """Return a ball in a ball in a ball, blurred into probabilities; x runs to the left."""
    from scipy.ndimage import gaussian_filter

    places = np.stack(np.indices(SHAPE), axis=-1) * SPACING  # (X, Y, Z, 3) mm
    middle = (np.array(SHAPE) - 1) / 2 * SPACING
    from_middle = np.linalg.norm((places - middle) / (0.45 * np.array(SHAPE) * SPACING), axis=-1)
    from_tumour = np.linalg.norm(places - middle - (14.0, 6.0, 4.0), axis=-1)
    mask = from_middle < 1
    truth = np.where(from_tumour < 12, 2, np.where(from_tumour < 26, 1, 0)) * mask
    generator = np.random.default_rng(3)
    bright = np.array([[1.0, 0.7, 0.4], [0.8, 1.4, 1.0]])[:, truth]  # (2, X, Y, Z)
    images = (bright + 0.12 * generator.standard_normal(bright.shape)) * mask
    soft = np.stack([gaussian_filter((truth == label) * 1.0, 1.2) for label in range(3)])
    soft += 0.08
    affine = np.diag([-4.0, 4.0, 4.0, 1.0])
    affine[:3, 3] = [60.0, -70.0, -40.0]
    header = nib.Nifti1Image(np.zeros(SHAPE, np.uint8), affine).header
    return Case(
        images={"T1": images[0].astype(np.float32), "FLAIR": images[1].astype(np.float32)},
        probabilities=(soft / soft.sum(axis=0)).astype(np.float32),
        mask=mask,
        mask_origin="given",
        labels=LabelScheme(VALUES, NAMES),
        geometry=Geometry(SHAPE, affine, SPACING, header),
        hashes={},
    )


@cache
def _finished(settings: RunSettings) -> Path:
    parent = Path(mkdtemp(prefix="perturb-mpm-view-"))
    atexit.register(shutil.rmtree, parent)
    folder = parent / "case"
    run_case(make_case(), settings, folder, title="Made-up patient")
    return folder


def copy_run(folder: Path, settings: RunSettings = SETTINGS) -> Path:
    """Put a finished run into ``folder``; it is computed once for all tests."""
    shutil.copytree(_finished(settings), folder)
    return folder
