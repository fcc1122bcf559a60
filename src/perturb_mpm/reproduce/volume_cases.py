"""Glioma patients of BraTS 2021: four sequences and an expert's label map.

The label scheme is that of BraTS 2021 and is never guessed from the values: 1 necrotic and
non-enhancing core, 2 oedema, 4 enhancing. Other years number them otherwise.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

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
