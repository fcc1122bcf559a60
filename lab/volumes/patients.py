"""Glioma patients of BraTS 2021, and unary energies that are wrong in a known way."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from lab.patients import GLIOMA_REGIONS, Patient, labelled_case
from perturb_mpm.files import SCHEMES, InputError, Source, label_indices, read_volume

DATASET = "brats2021_2mm"
SEQUENCES = ("t1", "t1ce", "t2", "flair")
SCHEME = SCHEMES["brats2021"]
REGIONS = GLIOMA_REGIONS

KINDS = ("blurred", "shifted", "eroded")
BLUR_MM = 2.0
SHIFT_MM = 4.0
EROSION_MM = 2.0
INDIFFERENCE = 0.001

# From the largest region to the smallest: the label of what lies in it and in none further on.
_OWN_LABEL = {"whole tumour": 2, "core": 1, "enhancing": 3}


def patient_folders(data: str | Path) -> list[Path]:
    """Return the patients' folders in ``data``, or in its sub-folder of the data set's name."""
    root = Path(data)
    if (root / DATASET).is_dir():
        root = root / DATASET
    folders = sorted(path.parent for path in root.glob("*/*_seg.nii.gz"))
    if not folders:
        raise InputError(
            f"`data` must hold folders PATIENT/PATIENT_seg.nii.gz, or a folder {DATASET} of them, "
            f"got {root}, which has none"
        )
    return folders


def read_patient(folder: Path) -> Patient:
    """Read a patient's sequences and labels; the brain is where any sequence is not zero."""
    name = folder.name
    images = {
        sequence: read_volume(Source("data", folder / f"{name}_{sequence}.nii.gz")).voxels
        for sequence in SEQUENCES
    }
    expert = read_volume(Source("data", folder / f"{name}_seg.nii.gz"))
    truth = label_indices(expert.voxels, SCHEME, expert.source, ": other years number them anew")
    mask = np.any([image != 0 for image in images.values()], axis=0)
    return Patient(name, labelled_case(images, mask, truth, SCHEME, expert.geometry.affine))


def region_ml(patient: Patient, region: str) -> float:
    """Return the volume of a region by the expert's labels, inside the brain."""
    return patient.volume_ml(patient.labels, REGIONS[region])


def worsen(patient: Patient, kind: str) -> Patient:
    """Return the patient with one kind of wrong probabilities."""
    labels, spacing = patient.truth, patient.grid.spacing
    if kind == "shifted":
        labels = shift(labels, spacing, SHIFT_MM)
    elif kind == "eroded":
        labels = erode(labels, spacing, EROSION_MM)
    return patient.with_probabilities(patient.grid.gather(blur(labels, spacing)).T)


def blur(labels: NDArray[np.uint8], spacing: Sequence[float]) -> NDArray[np.float32]:
    """Return the probabilities (L, *spatial) of a label map, blurred and mixed."""
    from scipy.ndimage import gaussian_filter

    sigma = [BLUR_MM / size for size in spacing]
    soft = np.empty((len(SCHEME), *labels.shape), dtype=np.float32)
    for label, share in enumerate(soft):
        gaussian_filter((labels == label).astype(np.float32), sigma, output=share)
    soft *= (1.0 - INDIFFERENCE) / soft.sum(axis=0)
    soft += INDIFFERENCE / len(SCHEME)
    return soft


def shift(
    labels: NDArray[np.uint8], spacing: Sequence[float], shift_mm: float
) -> NDArray[np.uint8]:
    """Return a label map moved along the first axis by the nearest number of voxels."""
    by = round(shift_mm / spacing[0])
    moved = np.zeros_like(labels)
    moved[by:] = labels[: len(labels) - by]
    return moved


def erode(
    labels: NDArray[np.uint8], spacing: Sequence[float], erosion_mm: float
) -> NDArray[np.uint8]:
    """Return a label map whose three nested regions have lost their outermost millimetres."""
    from scipy.ndimage import distance_transform_edt

    result = np.zeros_like(labels)
    for region, label in _OWN_LABEL.items():
        inside = np.isin(labels, REGIONS[region])
        # The distance of two voxels' centres: at 2 mm a voxel beside the outside is lost.
        away = distance_transform_edt(inside, sampling=spacing)
        result[away > erosion_mm] = label
    return result
