"""The patients of the clinical experiments, made-up and real, and their segmenter."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from lab.segmentation import TURNS, glioma_experiment, load_turn, save_turn
from perturb_mpm.files import SCHEMES, Case, LabelScheme, geometry_from_affine
from perturb_mpm.phantom import Phantom
from perturb_mpm.posterior import Estimator, Posterior
from perturb_mpm.run import RunSettings, build_crf, build_sampler
from perturb_mpm.segmenter import (
    DrawSettings,
    EnsembleSettings,
    FeatureStore,
    Labelled,
    Prepared,
    RandomForest,
    SegmenterModel,
    TrainingCase,
    held_out_answers,
    prepare,
    train_segmenter,
)


@dataclass(frozen=True, eq=False)
class Patient:
    """A case with its truth; labels are indices."""

    name: str
    case: Case
    truth: NDArray[np.uint8]  # (X, Y, Z)
    raters: NDArray[np.uint8] | None = None  # (R, X, Y, Z)


def phantom_patient(
    name: str,
    phantom: Phantom,
    probabilities: NDArray[np.float32],
    raters: NDArray[np.uint8] | None = None,
    label_names: Sequence[str] | None = None,
) -> Patient:
    """Return a made-up patient with the probabilities (L, X, Y, Z) of a classifier."""
    names = tuple(label_names or phantom.label_names)
    x, y, z = phantom.truth.shape
    case = Case(
        images=dict(zip(phantom.channel_names, phantom.images)),
        probabilities=probabilities,
        mask=phantom.mask,
        mask_origin="the phantom's brain",
        labels=LabelScheme(tuple(range(len(names))), names),
        geometry=geometry_from_affine((x, y, z), phantom.affine),
        hashes={},
    )
    return Patient(name, case, phantom.truth, raters)


def sampled(patient: Patient, settings: RunSettings, estimator: Estimator = "votes") -> Posterior:
    """Sample a patient's segmentations; the mean field comes along."""
    settings = settings.changed(estimator=estimator, noise_scale=None, until=None)
    sampler = build_sampler(build_crf(patient.case, settings), settings)
    return sampler.draw()


SEQUENCES = ("t1", "t1c", "t2", "flair")
# The paper's kind of forest, for its experiments.
QUICK = EnsembleSettings(folds=3, draw=DrawSettings(700, 2100), trees=RandomForest(6, 10))
FULL = EnsembleSettings(draw=DrawSettings(700, 2100), trees=RandomForest(12, 10))
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
        answers = held_out_answers(FeatureStore(cases, cache), model.ensemble)
    outside = np.eye(len(scheme), dtype=np.float32)[0]
    honest = [
        phantom_scene(phantom).restore(
            model.calibration.apply(answers[case.name].probabilities).T, outside
        )
        for case, phantom in zip(cases, phantoms)
    ]
    return model, honest


def left_out(data: Path, folder: Path, seed: int, *, quick: bool, tell: Tell) -> Iterator[Patient]:
    """Yield BraTS 2021 patients, each with the probabilities of a forest that never saw it.

    What the forests say is kept in ``folder`` as ``reproduce segmentation`` keeps it, and taken
    from there where it is.
    """
    experiment = glioma_experiment(data, folder, seed, lambda *_: None)
    (folder / TURNS).mkdir(exist_ok=True)
    scheme = SCHEMES["brats2021"]
    for name, patient in islice(experiment.patients.items(), 3 if quick else None):
        kept = folder / TURNS / f"{name}.npz"
        if not kept.exists():
            tell(0, f"growing the forests for {name}")
            (turn,) = experiment.turns([name])
            save_turn(kept, turn)
        said = load_turn(kept, name).probabilities  # (N, L)
        x, y, z = patient.mask.shape
        case = Case(
            images=dict(zip(SEQUENCES, patient.images)),
            probabilities=patient.grid.scatter(
                np.ascontiguousarray(said.T), np.eye(len(scheme), dtype=np.float32)[0]
            ),
            mask=patient.mask,
            mask_origin="voxels that are not 0",
            labels=scheme,
            geometry=geometry_from_affine((x, y, z), np.diag([*patient.spacing, 1.0])),
            hashes={},
        )
        yield Patient(name, case, patient.truth.astype(np.uint8))
