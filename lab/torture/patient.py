"""A tiny made-up patient in files of every kind that is read, and a run of it."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perturb_mpm.assess import ResectionCalibration
from perturb_mpm.files import Case, ImageSet, LabelScheme, read_case, read_images, save_nifti
from perturb_mpm.run import RunSettings, run_case, write_settings
from perturb_mpm.segmenter import (
    Boosting,
    Calibration,
    Ensemble,
    SegmenterModel,
    feature_table,
    prepare_images,
)

SHAPE = (9, 8, 7)
SERIES_SHAPE = (9, 8, 3)
AFFINE = np.diag([-2.0, 2.0, 3.0, 1.0])
IMAGES = ("t1", "flair")
SAMPLES = 12
SAME_BYTES = (
    *("labels.nii.gz", "marginals.nii.gz", "entropy.nii.gz", "uncertainty.nii.gz"),
    "volumes.csv",
)
"""What a run writes without a time in it."""

SETTINGS = RunSettings().changed(samples=SAMPLES, iterations=3, engine="reference")


def write_patient(folder: Path) -> None:
    """Write images, probabilities as NIfTI and as nnU-Net does, dataset.json and a label map."""
    rng = np.random.default_rng(1)
    p = probabilities()
    for name in IMAGES:
        bright = (100 + 30 * p.argmax(axis=0) + 5 * rng.normal(size=SHAPE)).astype(np.float32)
        save_nifti(folder / f"{name}.nii.gz", bright, AFFINE)
        save_nifti(folder / f"{name}.nii", bright, AFFINE)
    _write_other_formats(folder, bright)
    save_nifti(folder / "p.nii.gz", np.moveaxis(p, 0, -1), AFFINE)
    np.savez_compressed(folder / "P.npz", probabilities=p.transpose(0, 3, 2, 1))
    save_nifti(folder / "P.nii.gz", p.argmax(axis=0).astype(np.uint8), AFFINE)
    dataset = {
        "channel_names": {"0": "t1", "1": "flair"},
        "labels": {"background": 0, "oedema": 1, "core": 2},
        "file_ending": ".nii.gz",
    }
    (folder / "dataset.json").write_text(json.dumps(dataset, indent=1), encoding="utf-8")


def _write_other_formats(folder: Path, bright: NDArray[np.float32]) -> None:
    """Write the image as NRRD, MetaImage, MGH and as pictures."""
    import nibabel as nib
    from PIL import Image

    sizes = " ".join(map(str, SHAPE))
    nrrd = (
        f"NRRD0004\ntype: float\ndimension: 3\nspace: left-posterior-superior\nsizes: {sizes}\n"
        "space directions: (2,0,0) (0,-2,0) (0,0,3)\nkinds: domain domain domain\n"
        "endian: little\nencoding: raw\nspace origin: (0,0,0)\n\n"
    )
    meta = (
        f"ObjectType = Image\nNDims = 3\nBinaryData = True\nBinaryDataByteOrderMSB = False\n"
        f"CompressedData = False\nTransformMatrix = 1 0 0 0 1 0 0 0 1\nOffset = 0 0 0\n"
        f"ElementSpacing = 2 2 3\nDimSize = {sizes}\nElementType = MET_FLOAT\n"
        "ElementDataFile = LOCAL\n"
    )
    (folder / "t1.nrrd").write_bytes(nrrd.encode() + bright.tobytes(order="F"))
    (folder / "t1.mha").write_bytes(meta.encode() + bright.tobytes(order="F"))
    nib.save(nib.MGHImage(bright, AFFINE), folder / "t1.mgz")  # type: ignore[no-untyped-call]
    picture = Image.fromarray(bright[:, :, 3].astype(np.uint8))
    picture.save(folder / "t1.png")
    picture.save(folder / "t1.tif")


def write_series(folder: Path) -> None:
    """Write the grid of the patient as a DICOM series of three slices, one of them deflated."""
    import pydicom
    from pydicom.uid import DeflatedExplicitVRLittleEndian, ExplicitVRLittleEndian, MRImageStorage

    folder.mkdir()
    numbers = [f"1.2.826.0.1.3680043.8.498.{n}" for n in (1, 2, 3)]
    for k in range(SERIES_SHAPE[2]):
        one: Any = pydicom.Dataset()
        one.SOPClassUID, one.SOPInstanceUID = MRImageStorage, f"{numbers[1]}.{k + 1}"
        one.StudyInstanceUID, one.SeriesInstanceUID, one.FrameOfReferenceUID = numbers
        one.PatientName, one.PatientID, one.Modality, one.InstanceNumber = "A^B", "P", "MR", k + 1
        one.Rows, one.Columns, one.PixelSpacing = SHAPE[1], SHAPE[0], [2, 2]
        one.SliceThickness, one.ImagePositionPatient = 3, [0, 0, 3 * k]
        one.ImageOrientationPatient = [1, 0, 0, 0, -1, 0]
        one.SamplesPerPixel, one.PhotometricInterpretation = 1, "MONOCHROME2"
        one.BitsAllocated, one.BitsStored, one.HighBit, one.PixelRepresentation = 16, 16, 15, 0
        one.PixelData = bytes(2 * SHAPE[0] * SHAPE[1])
        one.file_meta = pydicom.dataset.FileMetaDataset()
        packed = DeflatedExplicitVRLittleEndian if k == 1 else ExplicitVRLittleEndian
        one.file_meta.TransferSyntaxUID = packed
        one.save_as(folder / f"{k}.dcm", enforce_file_format=True)


def probabilities() -> NDArray[np.float32]:
    """Return (L, X, Y, Z) of a ball in a ball."""
    offsets = np.indices(SHAPE) - (np.array(SHAPE).reshape(3, 1, 1, 1) - 1) / 2
    distance = np.sqrt((offsets**2).sum(axis=0))
    truth = np.where(distance < 1.5, 2, np.where(distance < 3, 1, 0))
    noise = np.random.default_rng(2).normal(size=(3, *SHAPE))
    p = np.exp(2.0 * (truth == np.arange(3).reshape(-1, 1, 1, 1)) + noise)
    return np.asarray(p / p.sum(axis=0), dtype=np.float32)


def patient_case(folder: Path) -> Case:
    """Read the patient."""
    return read_case([folder / f"{name}.nii.gz" for name in IMAGES], [folder / "p.nii.gz"])


def write_run(folder: Path, output: Path) -> None:
    """Write a finished run of the patient."""
    run_case(patient_case(folder), SETTINGS, output, title="patient")


def write_model(folder: Path, path: Path) -> None:
    """Write a segmenter of a few small trees that were shown noise."""
    found = read_patient_images(folder)
    features = feature_table(prepare_images(found).scene).shape[1]
    rng = np.random.default_rng(3)
    shown = rng.normal(size=(200, features)).astype(np.float32)
    labels = rng.integers(0, 2, 200)
    forest = Boosting(rounds=3, leaves=4, least_leaf=5).grow(shown, labels, seed=1)
    scheme = LabelScheme((0, 1), ("background", "tumour"))
    ensemble = Ensemble(2, (("a",), ("b",)), (forest, forest), (0.5, 0.5))
    SegmenterModel(("t1",), scheme, ensemble, Calibration((1.0, 1.0))).save(path)


def read_patient_images(folder: Path) -> ImageSet:
    """Return the first image alone, as the model wants it."""
    return read_images([folder / "t1.nii.gz"])


def write_tables(folder: Path) -> None:
    """Write a table of cases, one of pairs, a calibration and a settings file."""
    (folder / "cases.csv").write_text(
        "case,labels,mask,t1,flair\nP01,P.nii.gz,,t1.nii.gz,flair.nii.gz\n"
        "P02,P.nii.gz,P.nii.gz,t1.nii.gz,flair.nii.gz\n",
        encoding="utf-8",
    )
    (folder / "cohort.csv").write_text("case,prediction,truth\nP01,run,P.nii.gz\n", "utf-8")
    (folder / "pairs.csv").write_text("case,before,after\nP01,run,run\n", encoding="utf-8")
    calibration = ResectionCalibration(
        *("none", {"a": 1}, ["a", "b"], 0.1, 9, 0.9, 0.5, 0.2, 0.7, 0.1, 1.0)
    )
    (folder / "calibration.json").write_text(json.dumps(asdict(calibration)), encoding="utf-8")
    cluster = {"class": "dask_jobqueue.SLURMCluster", "workers": 3}
    arguments = 'cores = 8\nmemory = "16 GB"\njob_extra_directives = ["--exclusive"]\n'
    lines = f'class = "{cluster["class"]}"\nworkers = 3\n[arguments]\n{arguments}'
    (folder / "cluster.toml").write_text(lines, encoding="utf-8")
    words = {**cluster, "arguments": {"cores": 8, "memory": "16 GB"}}
    (folder / "cluster.yaml").write_text(json.dumps(words, indent=1), encoding="utf-8")
    write_settings(folder / "settings.toml", SETTINGS, "settings of an attack")
