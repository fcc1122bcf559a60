"""The real case: one glioma patient of BraTS 2021 at 1 mm, where the data is at hand."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage

from lab.benchmarks.problems import Problem, Setting, in_fours

CASE = "BraTS2021_01658"
SEQUENCES = ("t1", "t1ce", "t2", "flair")
LABELS = 5
TUMOUR = (1, 2, 3)

SETTINGS = (
    Setting(sigma_space=20.0, sigma_intensity=0.5),
    Setting(sigma_space=10.0, sigma_intensity=0.5),
    Setting(sigma_space=30.0, sigma_intensity=1.0),
)


def case_folder() -> Path:
    """Return where the case is, or would be, on this machine."""
    root = Path(__file__).resolve().parents[2]
    data = os.environ.get("PERTURB_MPM_DATA") or root.parent / "shared" / "data"
    return Path(data) / "brats2021_1mm" / CASE


def real(setting: Setting) -> Problem:
    """Return the patient's brain, where any sequence is not zero, cut to its box."""
    images = np.stack([read(sequence) for sequence in SEQUENCES]).astype(np.float32)
    expert = read("seg").astype(np.uint8)
    mask = in_fours((images != 0).any(axis=0))
    cut = ndimage.find_objects(mask.astype(np.uint8))[0]
    images = np.ascontiguousarray(images[:, *cut])
    mask = np.ascontiguousarray(mask[cut])
    classes = five_classes(expert[cut], images, mask)
    return Problem(
        name=CASE,
        unary=blurred_energies(classes),
        images=images,
        mask=mask,
        classes=classes,
        tumour=TUMOUR,
        setting=setting,
    )


def read(kind: str) -> NDArray[np.generic]:
    import nibabel

    path = case_folder() / f"{CASE}_{kind}.nii.gz"
    return np.asarray(nibabel.Nifti1Image.from_filename(path).dataobj)


def five_classes(
    expert: NDArray[np.uint8], images: NDArray[np.float32], mask: NDArray[np.bool_]
) -> NDArray[np.uint8]:
    """Return 0 healthy, 1 core, 2 oedema, 3 enhancing and 4, healthy voxels that look like fluid.

    Fluid is darker than the darkest fifth of the brain in T1 and brighter than its middle in T2:
    there is no expert label for it, and it is here to make five labels of a realistic shape.
    """
    classes = expert.copy()
    classes[expert == 4] = 3
    t1, t2 = images[SEQUENCES.index("t1")], images[SEQUENCES.index("t2")]
    dark = t1 < np.quantile(t1[mask], 0.2)
    bright = t2 > np.quantile(t2[mask], 0.5)
    classes[(expert == 0) & mask & dark & bright] = 4
    return classes


def blurred_energies(classes: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Return −log p of the class map blurred by 1.5 mm and mixed with 15 % of indifference."""
    energies = np.empty((LABELS, *classes.shape), dtype=np.float32)
    for label, energy in enumerate(energies):
        ndimage.gaussian_filter((classes == label).astype(np.float32), 1.5, output=energy)
    energies *= 0.85
    energies += 0.15 / LABELS
    energies /= energies.sum(axis=0)
    np.log(energies, out=energies)
    return np.negative(energies, out=energies)
