"""A DICOM series as a scanner writes it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import nibabel as nib
import numpy as np
import pytest

from perturb_mpm.files import LabelScheme

pydicom = pytest.importorskip("pydicom", reason="the extra dicom is not installed")

COLUMNS, ROWS, SLICES = 7, 5, 4
ACROSS, DOWN, STEP = 0.8, 1.2, 2.5  # mm
TURN = nib.eulerangles.euler2mat(0.3, -0.2, 0.1)  # columns: right to left, front to back, up
ORIGIN = np.array([-40.0, 25.0, 10.0])
SCHEME = LabelScheme((0, 1, 4), ("background", "necrosis", "enhancing tumour"))


def write_series(folder: Path, spoil: Callable[[Any, int], None] = lambda *_: None) -> Path:
    """Write an oblique MR series, its files in another order than its slices."""
    folder.mkdir()
    study, series, frame = (f"1.2.826.0.1.3680043.8.498.{n}" for n in (1, 2, 3))
    for k in range(SLICES):
        one = pydicom.Dataset()
        one.SOPClassUID = pydicom.uid.MRImageStorage
        one.SOPInstanceUID = f"{series}.{k + 1}"
        one.StudyInstanceUID, one.SeriesInstanceUID, one.FrameOfReferenceUID = study, series, frame
        one.PatientName, one.PatientID = "Doe^Jane", "P01"
        one.PatientBirthDate, one.PatientSex = "19600101", "F"
        one.StudyDate, one.StudyTime, one.StudyID = "20200102", "030405", "1"
        one.AccessionNumber, one.ReferringPhysicianName, one.Modality = "", "", "MR"
        one.SeriesNumber, one.InstanceNumber = 3, k + 1
        one.Manufacturer, one.PositionReferenceIndicator = "none", ""
        one.Rows, one.Columns = ROWS, COLUMNS
        one.PixelSpacing = [DOWN, ACROSS]
        one.SliceThickness = STEP
        one.ImageOrientationPatient = [round(float(v), 8) for v in (*TURN[:, 0], *TURN[:, 1])]
        place = ORIGIN + TURN[:, 2] * STEP * k
        one.ImagePositionPatient = [round(float(v), 6) for v in place]
        one.SamplesPerPixel, one.PhotometricInterpretation = 1, "MONOCHROME2"
        one.BitsAllocated, one.BitsStored, one.HighBit, one.PixelRepresentation = 16, 16, 15, 0
        one.PixelData = np.zeros((ROWS, COLUMNS), np.uint16).tobytes()
        spoil(one, k)
        one.file_meta = pydicom.dataset.FileMetaDataset()
        one.file_meta.TransferSyntaxUID = pydicom.uid.ExplicitVRLittleEndian
        name = folder / f"IM{SLICES - k:03d}.dcm"
        one.save_as(name, enforce_file_format=True)
    (folder / "notes.txt").write_text("not DICOM")
    return folder


def scanner_affine() -> np.ndarray:
    """Return (column, row, slice) to mm to the right, front and up: by hand, from the numbers."""
    affine = np.eye(4)
    affine[:3, :3] = TURN @ np.diag([ACROSS, DOWN, STEP])
    affine[:3, 3] = ORIGIN
    return np.diag([-1.0, -1.0, 1.0, 1.0]) @ affine
