"""The patients of the clinical experiments, made-up and real, and their segmenter."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from lab.patients import Patient
from lab.segmentation import PROBABILITIES, glioma_patients
from lab.store import PartStore
from perturb_mpm.files import LabelScheme
from perturb_mpm.phantom import Phantom
from perturb_mpm.posterior import Estimator, Posterior
from perturb_mpm.progress import StagedProgress
from perturb_mpm.run import RunSettings, build_crf, build_sampler
from perturb_mpm.segmenter import (
    EnsembleSettings,
    Prepared,
    RandomForest,
    ReadScene,
    SegmenterModel,
    prepare,
    train_segmenter,
)

QUICK_PATIENTS = 3

SEQUENCES = ("t1", "t1c", "t2", "flair")

# The paper's kind of forest, for its experiments.
QUICK = EnsembleSettings(folds=3, background_voxels=2100, trees=RandomForest(6, 10))
FULL = EnsembleSettings(background_voxels=2100, trees=RandomForest(12, 10))


def sample_patient(
    patient: Patient, settings: RunSettings, estimator: Estimator = "votes"
) -> Posterior:
    """Sample a patient's segmentations; the mean field comes along."""
    settings = settings.changed(estimator=estimator, noise_scale=None, until=None)
    sampler = build_sampler(build_crf(patient.case, settings), settings)
    return sampler.draw()


def phantom_scene(phantom: Phantom) -> Prepared:
    """Return a made-up patient as the features see it."""
    images = {name.lower(): image for name, image in zip(phantom.channel_names, phantom.images)}
    chosen = {name: images[name] for name in SEQUENCES}
    return prepare(chosen, phantom.affine, phantom.mask, phantom.truth)


def phantom_case(phantom: Phantom) -> ReadScene:
    """Return a made-up patient to learn from."""
    return lambda: phantom_scene(phantom).scene


def train_on(
    phantoms: Sequence[Phantom], label_names: Sequence[str], seed: int, *, quick: bool
) -> tuple[SegmenterModel, list[NDArray[np.float32]]]:
    """Train a segmenter; return it, and what trees that never saw a phantom say of each.

    The latter are probabilities (L, X, Y, Z).
    """
    scheme = LabelScheme(tuple(range(len(label_names))), tuple(label_names))
    cases = {f"training {number}": phantom_case(each) for number, each in enumerate(phantoms)}
    with tempfile.TemporaryDirectory() as folder:
        settings = QUICK if quick else FULL
        model, _ = train_segmenter(
            cases, SEQUENCES, scheme, seed=seed, settings=settings, cache=Path(folder)
        )
    return model, [
        model.honest_probabilities(name, phantom_scene(phantom))
        for name, phantom in zip(cases, phantoms)
    ]


def left_out_patients(
    data: Path,
    folder: Path,
    seed: int,
    *,
    quick: bool,
    forest: bool,
    progress: StagedProgress,
    argument: str = "output",
) -> Iterator[Patient]:
    """Yield BraTS 2021 patients, each with the probabilities of trees that never saw it.

    What the trees say is kept in ``folder`` as the segmentation experiment keeps it, and taken
    from there where it is; ``argument`` is what errors call the folder.
    """
    experiment = glioma_patients(data, folder, seed, progress, forest=forest)
    store = PartStore(folder / PROBABILITIES, experiment.identity, argument)
    names = list(islice(experiment.patients, QUICK_PATIENTS if quick else None))
    for turn in experiment.stored_turns(names, store):
        yield experiment.patients[turn.test].with_probabilities(turn.probabilities)
