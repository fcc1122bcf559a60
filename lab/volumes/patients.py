"""Glioma patients of BraTS 2021, and unary energies that are wrong in a known way."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from perturb_mpm.model import unary_from_probabilities

DATASET = "brats2021_2mm"
SEQUENCES = ("t1", "t1ce", "t2", "flair")

# What a value of the file becomes: 0 background, 1 core, 2 oedema, 3 enhancing.
BRATS_2021 = {0: 0, 1: 1, 2: 2, 4: 3}
N_LABELS = 4

REGIONS = {"whole tumour": (1, 2, 3), "core": (1, 3), "enhancing": (3,)}


@dataclass(frozen=True, eq=False)
class Case:
    """One patient."""

    name: str
    images: NDArray[np.float32]  # (4, *spatial)
    labels: NDArray[np.uint8]  # (*spatial), 0 to 3
    mask: NDArray[np.bool_]  # (*spatial): the brain, where any sequence is not zero
    spacing: tuple[float, ...]  # mm

    @property
    def voxel_ml(self) -> float:
        """The volume of a voxel."""
        return float(np.prod(self.spacing)) / 1000.0


def patient_folders(data: str | Path) -> list[Path]:
    """Return the patients' folders in ``data``, or in its sub-folder of the data set's name."""
    root = Path(data)
    if (root / DATASET).is_dir():
        root = root / DATASET
    folders = sorted(path.parent for path in root.glob("*/*_seg.nii.gz"))
    if not folders:
        raise FileNotFoundError(
            f"data must hold folders PATIENT/PATIENT_seg.nii.gz, or a folder {DATASET} of them, "
            f"got {root}, which has none"
        )
    return folders


def read_case(folder: Path) -> Case:
    """Read a patient's sequences and labels."""
    name = folder.name
    images = np.stack(
        [_read(folder / f"{name}_{sequence}.nii.gz")[0] for sequence in SEQUENCES]
    ).astype(np.float32)
    values, spacing = _read(folder / f"{name}_seg.nii.gz")
    return Case(
        name=name,
        images=images,
        labels=from_brats_2021(values),
        mask=(images != 0).any(axis=0),
        spacing=spacing,
    )


def from_brats_2021(values: NDArray[np.generic]) -> NDArray[np.uint8]:
    """Return the labels 0 to 3 of a BraTS 2021 label map; a value it does not have is refused."""
    labels = np.zeros(values.shape, dtype=np.uint8)
    known = np.zeros(values.shape, dtype=bool)
    for value, label in BRATS_2021.items():
        here = values == value
        labels[here] = label
        known |= here
    if not known.all():
        raise ValueError(
            f"labels must be those of BraTS 2021, {list(BRATS_2021)}, got {values[~known][0]}: "
            "other years number them otherwise"
        )
    return labels


def region_ml(case: Case, region: str) -> float:
    """Return the volume of a region by the expert's labels, inside the brain."""
    inside = np.isin(case.labels, REGIONS[region]) & case.mask
    return float(np.count_nonzero(inside)) * case.voxel_ml


def _read(path: Path) -> tuple[NDArray[np.generic], tuple[float, ...]]:
    import nibabel as nib

    image = nib.Nifti1Image.from_filename(path)
    edges = np.linalg.norm(np.asarray(image.affine)[:3, :3], axis=0)  # (3,), mm
    return np.asarray(image.dataobj), tuple(float(edge) for edge in edges)


KINDS = ("blurred", "shifted", "eroded")
BLUR_MM = 2.0
SHIFT_MM = 4.0
EROSION_MM = 2.0
INDIFFERENCE = 0.02

# From the largest region to the smallest: the label of what lies in it and in none further on.
_OWN_LABEL = {"whole tumour": 2, "core": 1, "enhancing": 3}


def worsened_unary(case: Case, kind: str) -> NDArray[np.float32]:
    """Return the energies (L, *spatial) of one kind of unaries."""
    if kind == "shifted":
        labels = shifted(case.labels, case.spacing, SHIFT_MM)
    elif kind == "eroded":
        labels = eroded(case.labels, case.spacing, EROSION_MM)
    else:
        labels = case.labels
    energies: NDArray[np.float32] = unary_from_probabilities(blurred(labels, case.spacing))
    return energies


def blurred(labels: NDArray[np.uint8], spacing: Sequence[float]) -> NDArray[np.float32]:
    """Return the probabilities (L, *spatial) of a label map, blurred and mixed."""
    from scipy.ndimage import gaussian_filter

    sigma = [BLUR_MM / size for size in spacing]
    soft = np.empty((N_LABELS, *labels.shape), dtype=np.float32)
    for label, share in enumerate(soft):
        gaussian_filter((labels == label).astype(np.float32), sigma, output=share)
    soft *= (1.0 - INDIFFERENCE) / soft.sum(axis=0)
    soft += INDIFFERENCE / N_LABELS
    return soft


def shifted(
    labels: NDArray[np.uint8], spacing: Sequence[float], shift_mm: float
) -> NDArray[np.uint8]:
    """Return a label map moved along the first axis by the nearest number of voxels."""
    by = round(shift_mm / spacing[0])
    moved = np.zeros_like(labels)
    moved[by:] = labels[: len(labels) - by]
    return moved


def eroded(
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
