"""Real patients at two dates, for the experiment over a segmenter's bias, as far as they go.

Brain-Tumor-Progression (TCIA): glioblastomas after surgery, T1 after contrast and one expert's mask
of enhancing tumour at two dates, cropped. There is no scan before surgery, no second rater, and the
voxel size is lost: lengths are in voxels and volumes in thousands of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np

from lab.clinical.biomarkers import OperatedPatient
from lab.patients import Patient, labelled_case
from perturb_mpm.files import InputError, LabelScheme, Source, read_volume
from perturb_mpm.segmenter import (
    EnsembleSettings,
    Prepared,
    RandomForest,
    SegmenterModel,
    prepare,
    train_segmenter,
)

SCHEME = LabelScheme((0, 1), ("background", "enhancing tumour"))
REGION = (1,)
DATES = ("Pre", "Post")
SEQUENCES = ("t1c",)
SETTINGS = EnsembleSettings(folds=3, trees=RandomForest(24))


def progression_patients(
    data: Path, seed: int, most: int | None = None
) -> Iterator[OperatedPatient]:
    """Yield each patient's two dates, segmented by a forest trained on the other half of them."""
    folders = sorted(path.parent for path in data.glob("*/Pre_mask.nii.gz"))[:most]
    if len(folders) < 4:
        raise InputError(
            "`data` must hold four folders or more with Pre_mask.nii.gz, Post_mask.nii.gz and "
            f"T1 after contrast beside them, got {data} with {len(folders)}"
        )
    scans = {folder.name: [_read(folder, date) for date in DATES] for folder in folders}
    halves = [list(scans)[0::2], list(scans)[1::2]]
    for half, others in zip(halves, halves[::-1]):
        model = _train([scan for name in others for scan in scans[name]], seed)
        for name in half:
            yield OperatedPatient(*(_segment(model, scan) for scan in scans[name]))


def _read(folder: Path, date: str) -> Patient:
    image, drawn = (
        read_volume(Source("data", folder / f"{date}_{what}.nii.gz")) for what in ("T1post", "mask")
    )
    truth = (drawn.voxels > 0).astype(np.uint8)
    mask = image.voxels > 0
    images = {SEQUENCES[0]: image.voxels.astype(np.float32)}
    case = labelled_case(images, mask, truth * mask, SCHEME, np.eye(4))
    return Patient(folder.name, case, truth[np.newaxis])


def _prepare(patient: Patient) -> Prepared:
    case = patient.case
    return prepare(case.images, case.geometry.affine, case.mask, patient.truth)


def _train(scans: Sequence[Patient], seed: int) -> SegmenterModel:
    cases = {
        f"{n}": partial(lambda scan: _prepare(scan).scene, scan) for n, scan in enumerate(scans)
    }
    model, _ = train_segmenter(cases, SEQUENCES, SCHEME, seed=seed, settings=SETTINGS)
    return model


def _segment(model: SegmenterModel, patient: Patient) -> Patient:
    p = model.probabilities(_prepare(patient))
    return replace(patient, case=replace(patient.case, probabilities=p))
