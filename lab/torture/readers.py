"""Damaged files, given to every reader."""

from __future__ import annotations

import logging
import random
import shutil
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import numpy as np

import perturb_mpm as pm
from lab.torture.attack import Attack, Finding, Trial, judge
from lab.torture.damage import damage_bytes
from lab.torture.patient import (
    AFFINE,
    IMAGES,
    SERIES_SHAPE,
    patient_case,
    read_patient_images,
    write_model,
    write_patient,
    write_run,
    write_series,
    write_tables,
)
from perturb_mpm.assess import read_calibration, read_cohort, read_pairs
from perturb_mpm.cohort import read_cluster_file
from perturb_mpm.files import (
    LabelScheme,
    Source,
    check_dicom_series,
    find_labelled_cases,
    geometry_from_affine,
    read_case,
    read_dataset,
    read_images,
    read_volume,
    write_dicom,
)
from perturb_mpm.run import load_run, read_settings
from perturb_mpm.segmenter import SegmenterModel, case_from_model
from perturb_mpm.view import open_session

_LIBRARY = (TypeError, ValueError)  # what the library raises, with a message of its own


@dataclass(frozen=True)
class Reader:
    """A kind of file, and what reads it from the folder of a trial."""

    file: str  # relative to the folder
    read: Callable[[Path], object]
    around: tuple[str, ...] = ()  # what else must be there
    allowed: tuple[type[Exception], ...] = ()


def _image(folder: Path) -> object:
    return read_images(list(folder.glob("t1.*")))


def _npz_case(folder: Path) -> object:
    images = [folder / f"{name}.nii.gz" for name in IMAGES]
    return read_case(images, [folder / "P.npz"], dataset_json=folder / "dataset.json")


def _looked_at(folder: Path) -> object:
    run = load_run(folder / "run")
    return run.labels, run.entropy, run.uncertainty, run.sampled_labels, run.entropy_after


def _edits(folder: Path) -> object:
    with closing(open_session(folder / "run")) as session:
        return session.shown.edits


def _model(folder: Path) -> object:
    return case_from_model(folder / "model.npz", read_patient_images(folder))


def _posterior(folder: Path) -> object:
    posterior = pm.Posterior.load(folder / "run" / "state" / "posterior.npz")
    return posterior.labels, posterior.entropy


def _series(folder: Path) -> object:
    grid = geometry_from_affine(SERIES_SHAPE, AFFINE)
    check_dicom_series(folder / "series", grid)
    maps = np.zeros(SERIES_SHAPE, np.uint8), np.zeros(SERIES_SHAPE, np.float32)
    scheme = LabelScheme((0, 1), ("background", "tumour"))
    return write_dicom(folder, folder / "series", *maps, grid, scheme)


_PATIENT = ("t1.nii.gz", "flair.nii.gz", "P.nii.gz", "dataset.json")
READERS = (
    Reader("t1.nii", lambda f: read_images([f / "t1.nii"])),
    Reader("t1.nii.gz", lambda f: read_images([f / "t1.nii.gz"], mask=f / "t1.nii.gz")),
    *(Reader(f"t1.{ending}", _image) for ending in ("nrrd", "mha", "mgz", "png", "tif")),
    Reader("p.nii.gz", lambda f: read_volume(Source("probabilities", f / "p.nii.gz"))),
    Reader("p.nii.gz", patient_case, _PATIENT),
    Reader("P.npz", _npz_case, _PATIENT),
    Reader("dataset.json", lambda f: read_dataset(Source("dataset_json", f / "dataset.json"))),
    Reader("dataset.json", _npz_case, (*_PATIENT, "P.npz")),
    *(Reader(f"run/state/{name}", _looked_at, ("run",)) for name in (
        *("run.json", "case.npz", "samples.npz", "snapshots.npz", "posterior.npz"),
    )),
    Reader("run/edits.json", _edits, ("run",)),
    Reader("run/state/correction.npz", _edits, ("run",)),
    Reader("run/state/posterior.npz", _posterior, (), _LIBRARY),
    Reader("model.npz", lambda f: SegmenterModel.load(f / "model.npz")),
    Reader("model.npz", _model, ("t1.nii.gz",)),
    Reader("cases.csv", lambda f: find_labelled_cases(f / "cases.csv", "table")),
    Reader("cohort.csv", lambda f: list(read_cohort(f / "cohort.csv"))),
    Reader("pairs.csv", lambda f: read_pairs(f / "pairs.csv")),
    Reader("calibration.json", lambda f: read_calibration(f / "calibration.json")),
    *(Reader(f"series/{number}.dcm", _series, ("series",)) for number in (0, 1)),
    Reader("cluster.toml", lambda f: read_cluster_file(f / "cluster.toml")),
    Reader("cluster.yaml", lambda f: read_cluster_file(f / "cluster.yaml")),
    Reader("settings.toml", lambda f: read_settings(f / "settings.toml"), (), _LIBRARY),
)  # fmt: skip


class _Loud(logging.Handler):
    """Fails where something is printed beside our one line."""

    def emit(self, record: logging.LogRecord) -> None:
        """Raise what would be printed."""
        raise AssertionError(f"printed: {record.getMessage()}")


def prepare_readers(folder: Path) -> Trial:
    """Write one file of every kind; a trial damages one and reads it."""
    for name in ("nibabel.global", "pydicom", "highdicom"):
        logging.getLogger(name).addHandler(_Loud())
    whole = folder / "whole"
    whole.mkdir()
    write_patient(whole)
    write_tables(whole)
    write_series(whole / "series")
    write_model(whole, whole / "model.npz")
    write_run(whole, whole / "run")
    _correct(whole / "run")
    contents = {reader.file: (whole / reader.file).read_bytes() for reader in READERS}

    def trial(rng: random.Random, trial_folder: Path) -> Finding:
        reader = rng.choice(READERS)
        for name in reader.around:
            _put(whole / name, trial_folder / name)
        path = trial_folder / reader.file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(damage_bytes(contents[reader.file], rng, list(contents.values())))
        return judge(lambda: reader.read(trial_folder), reader.allowed)

    return trial


def _correct(run: Path) -> None:
    """Correct two voxels by hand, so that there are edits and a correction."""
    with closing(open_session(run)) as session:
        first, second = (int(voxel) for voxel in np.flatnonzero(session.run.case.mask)[[20, 90]])
        session.update({first: 1, second: 2}, session.shown.number)
        session.wait()


def _put(source: Path, target: Path) -> None:
    """Copy a file, or a run without what nobody damages here."""
    if source.is_dir():
        shutil.copytree(source, target, ignore=shutil.ignore_patterns("*.html", "*.nii.gz"))
    else:
        shutil.copy(source, target)


READING = Attack("readers", "damaged files", prepare_readers, share=4.0)
