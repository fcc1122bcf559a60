"""A tiny patient on disk: two images and the probabilities of three labels, oblique voxels."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import nibabel as nib
import numpy as np
import pytest

from perturb_mpm.cli import main
from perturb_mpm.files import Case, read_case

SHAPE = (12, 14, 10)
# Both have float32's digits, as a NIfTI file keeps them.
AFFINE = np.array(
    [[-2.0, 0.25, 0.0, 20.0], [0.25, 2.0, 0.0, -20.0], [0.0, 0.0, 3.0, 5.0], [0.0, 0.0, 0.0, 1.0]]
)
FILES = (
    "entropy.nii.gz",
    "labels.nii.gz",
    "marginals.nii.gz",
    "report.html",
    "summary.json",
    "uncertainty.nii.gz",
    "volumes.csv",
)
SAME_BYTES = [name for name in FILES if name.endswith((".nii.gz", ".csv"))]


def probabilities() -> np.ndarray:
    """(L, X, Y, Z) around a ball of label 2 in one of label 1."""
    rng = np.random.default_rng(3)
    noise = rng.normal(size=(3, *SHAPE))
    p = np.exp(3.0 * (truth() == np.arange(3).reshape(-1, 1, 1, 1)) + noise)
    return np.asarray(p / p.sum(axis=0), dtype=np.float32)


def truth() -> np.ndarray:
    distance = _distance()
    return np.where(distance < 2.0, 2, np.where(distance < 4.0, 1, 0))


def write_files(folder: Path) -> list[str]:
    """Write the patient; return the options that name it."""
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(4)
    inside = _distance() < 5.0
    for name in ("t1", "flair"):
        image = (100 + 40 * truth() + 10 * rng.normal(size=SHAPE)) * inside
        save(folder / f"{name}.nii.gz", image.astype(np.float32))
    save(folder / "p.nii.gz", np.moveaxis(probabilities(), 0, -1))
    return options(folder)


def options(folder: Path) -> list[str]:
    images = [str(folder / f"{name}.nii.gz") for name in ("t1", "flair")]
    return ["--image", *images, "--probabilities", str(folder / "p.nii.gz")]


def read(folder: Path, **arguments: Any) -> Case:
    images = [folder / f"{name}.nii.gz" for name in ("t1", "flair")]
    return read_case(images, [folder / "p.nii.gz"], **arguments)


def save(path: Path, volume: np.ndarray, affine: np.ndarray = AFFINE) -> None:
    nib.save(nib.Nifti1Image(volume, affine), path)


def call(*arguments: str) -> int:
    with pytest.raises(SystemExit) as ending:
        main(arguments)
    assert isinstance(ending.value.code, int)
    return ending.value.code


def content(folder: Path, names: Sequence[str] = SAME_BYTES) -> dict[str, bytes]:
    return {name: (folder / name).read_bytes() for name in names}


def _distance() -> np.ndarray:
    axes = np.meshgrid(*(np.arange(n) - (n - 1) / 2 for n in SHAPE), indexing="ij")
    return np.asarray(np.sqrt(sum(axis**2 for axis in axes)))
