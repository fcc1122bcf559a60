"""The segmenter of the experiments: trained on made-up patients, or leaving one real one out."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from perturb_mpm.io.case import Case, LabelScheme
from perturb_mpm.io.errors import Source
from perturb_mpm.io.nifti_read import read_volume
from perturb_mpm.io.read_images import read_images
from perturb_mpm.phantom import Phantom
from perturb_mpm.reproduce.clinical.patient import Patient
from perturb_mpm.segmentation.cascade import CascadeSettings
from perturb_mpm.segmentation.cases import CaseFiles, find_cases
from perturb_mpm.segmentation.experiment import held_out_probabilities
from perturb_mpm.segmentation.model import SegmenterModel
from perturb_mpm.segmentation.preprocessing import Prepared, prepare
from perturb_mpm.segmentation.schemes import SCHEMES, label_indices
from perturb_mpm.segmentation.sequences import select_sequences
from perturb_mpm.segmentation.store import FeatureStore, Labelled, TrainingCase
from perturb_mpm.segmentation.training import held_out_answers, train_segmenter

SEQUENCES = ("t1", "t1c", "t2", "flair")
QUICK = CascadeSettings(folds=3, first_trees=2, second_trees=4)
FULL = CascadeSettings()
Tell = Callable[[int, str], object]


def phantom_scene(phantom: Phantom) -> Prepared:
    """Return a made-up patient as the features see it."""
    images = {name.lower(): image for name, image in zip(phantom.channel_names, phantom.images)}
    return prepare({name: images[name] for name in SEQUENCES}, phantom.affine, phantom.mask)


def phantom_case(name: str, phantom: Phantom) -> TrainingCase:
    """Return a made-up patient to learn from."""

    def read() -> Labelled:
        prepared = phantom_scene(phantom)
        return Labelled(prepared.scene, prepared.inside(phantom.truth))

    return TrainingCase(name, read)


def train_on(
    phantoms: Sequence[Phantom], label_names: Sequence[str], seed: int, *, quick: bool
) -> tuple[SegmenterModel, list[NDArray[np.float32]]]:
    """Train a segmenter; return it, and what trees that never saw a phantom say of each.

    The latter are probabilities (L, X, Y, Z).
    """
    scheme = LabelScheme(tuple(range(len(label_names))), tuple(label_names))
    cases = [phantom_case(f"training {number}", each) for number, each in enumerate(phantoms)]
    with tempfile.TemporaryDirectory() as folder:
        cache = Path(folder)
        settings = QUICK if quick else FULL
        model, _ = train_segmenter(
            cases, SEQUENCES, scheme, seed=seed, settings=settings, cache=cache
        )
        answers = held_out_answers(FeatureStore(cases, cache), model.cascade)
    outside = np.eye(len(scheme), dtype=np.float32)[0]
    honest = [
        phantom_scene(phantom).restore(
            model.calibration.apply(answers[case.name].probabilities).T, outside
        )
        for case, phantom in zip(cases, phantoms)
    ]
    return model, honest


def left_out(data: Path, seed: int, *, quick: bool, tell: Tell) -> Iterator[Patient]:
    """Yield BraTS 2021 patients, each with the probabilities of a forest that never saw it."""
    scheme = SCHEMES["brats2021"]
    files = find_cases(data, "brats")[: 4 if quick else None]
    read: dict[str, tuple[Case, Prepared, NDArray[np.uint8]]] = {}
    for each in files:
        read[each.name] = _read(each, scheme)
        tell(len(read), f"read {each.name}")
    cases = [
        TrainingCase(name, partial(_labelled, prepared, truth))
        for name, (_, prepared, truth) in read.items()
    ]
    outside = np.eye(len(scheme), dtype=np.float32)[0]
    with tempfile.TemporaryDirectory() as folder:
        found = held_out_probabilities(
            cases,
            len(scheme),
            cache=Path(folder),
            seed=seed,
            settings=QUICK if quick else FULL,
        )
        for held in found:
            case, prepared, truth = read[held.test]
            probabilities = prepared.restore(held.probabilities.T, outside)
            yield Patient(held.test, replace(case, probabilities=probabilities), truth)


def _labelled(prepared: Prepared, truth: NDArray[np.uint8]) -> Labelled:
    return Labelled(prepared.scene, prepared.inside(truth))


def _read(files: CaseFiles, scheme: LabelScheme) -> tuple[Case, Prepared, NDArray[np.uint8]]:
    wanted = select_sequences(files.images, SEQUENCES, f"--data: case {files.name}")
    images = read_images(list(wanted.values()), mask=files.mask, image_names=list(wanted))
    volume = read_volume(Source("--data", files.labels))
    truth = label_indices(volume.voxels, scheme, volume.source).astype(np.uint8)
    case = Case(
        images=images.images,
        probabilities=np.zeros((len(scheme), 1, 1, 1), dtype=np.float32),
        mask=images.mask,
        mask_origin=images.mask_origin,
        labels=scheme,
        geometry=images.geometry,
        hashes=images.hashes,
    )
    prepared = prepare(images.images, images.geometry.affine, images.mask)
    return case, prepared, np.where(images.mask, truth, 0).astype(np.uint8)
