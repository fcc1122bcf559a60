"""Tiny made-up patients on disk: a bright lump with a brighter core in a ball of noise."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from perturb_mpm.files import save_nifti

SHAPE = (18, 16, 14)
AFFINE = np.diag([-2.0, -2.0, 2.0, 1.0])
SEQUENCES = ("t1", "t1c", "t2", "flair")
VALUES = (0, 1, 2, 4)


def make_patient(
    seed: int, missing: tuple[int, ...] = ()
) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Return sequences and a label map with BraTS 2021 values; labels ``missing`` are left out."""
    rng = np.random.default_rng(seed)
    middle = (np.array(SHAPE) - 1) / 2
    place = np.indices(SHAPE).transpose(1, 2, 3, 0) - middle
    brain = (place**2 / (middle**2)).sum(axis=-1) < 1
    apart = np.linalg.norm(place - rng.uniform(-2.5, 2.5, size=3), axis=-1)
    labels = np.select([apart < 1.5, apart < 2.6, apart < 4], [1, 4, 2], 0) * brain
    for value in missing:
        labels[labels == value] = 0
    contrast = {
        "t1": {0: 100, 1: 60, 2: 80, 4: 90},
        "t1c": {0: 100, 1: 60, 2: 85, 4: 200},
        "t2": {0: 100, 1: 190, 2: 160, 4: 140},
        "flair": {0: 100, 1: 90, 2: 190, 4: 150},
    }
    images = {}
    for name, levels in contrast.items():
        clean = np.vectorize(levels.get)(labels)
        images[name] = np.where(brain, clean + rng.normal(scale=12, size=SHAPE), 0)
    return images, labels


def write_patient(root: Path, name: str, seed: int, missing: tuple[int, ...] = ()) -> Path:
    """Write a patient as BraTS does; return the folder."""
    folder = root / name
    folder.mkdir(parents=True)
    images, labels = make_patient(seed, missing)
    for sequence, image in images.items():
        written = "t1ce" if sequence == "t1c" else sequence
        save_nifti(folder / f"{name}_{written}.nii.gz", image.astype(np.float32), AFFINE)
    save_nifti(folder / f"{name}_seg.nii.gz", labels.astype(np.uint8), AFFINE)
    return folder


def write_cohort(root: Path) -> Path:
    """Write five patients: the fourth has no enhancing tumour, the fifth none at all."""
    for number in range(3):
        write_patient(root, f"P{number}", number)
    write_patient(root, "P3", 3, missing=(4,))
    write_patient(root, "P4", 4, missing=(1, 2, 4))
    return root
