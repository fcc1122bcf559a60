"""From labelled cases to a calibrated model, and a report of what it does on unseen patients.

Patients are dealt into folds, and a forest is grown without each fold, on voxels drawn from all
other patients: features (n, F) and labels (n,). So the model itself gives honest probabilities of
every patient it was trained on, by trees that never saw it: for calibration, for CRF parameters,
for the report. A new patient is judged by all trees.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from perturb_mpm import checks
from perturb_mpm.files import CaseFiles, InputError, LabelScheme
from perturb_mpm.progress import SILENT, StagedProgress
from perturb_mpm.segmenter.calibration import (
    Calibration,
    HeldOut,
    calibration_error,
    fit_calibration,
    label_dice,
    log_loss,
)
from perturb_mpm.segmenter.features import feature_names, feature_table
from perturb_mpm.segmenter.model import MOST_FOLDS, Ensemble, SegmenterModel
from perturb_mpm.segmenter.preprocessing import read_scene
from perturb_mpm.segmenter.scene import Scene, available_threads, limit_threads
from perturb_mpm.segmenter.trees import Boosting, RandomForest, Trees
from perturb_mpm.storage import atomic_open

MOST_VOXELS = 10**7
_SCENES_IN_MEMORY = 12  # some 60 MB each at 1 mm
_TREES = 2  # which of the streams of a seed grows trees
_RAREST = 1e-5  # the share of a label that no case has

ReadScene = Callable[[], Scene]
"""Reads a case with its truth. Cases are read one by one: a large cohort exceeds the memory."""


@dataclass(frozen=True)
class EnsembleSettings:
    """Into how many folds patients are dealt, which voxels are shown, and how trees are grown.

    Trees are shown ``label_voxels`` of each label and ``background_voxels`` of each patient, or
    all where there are fewer.
    """

    folds: int = 10
    label_voxels: int = 700
    background_voxels: int = 3500
    trees: Boosting | RandomForest = field(default_factory=Boosting)

    def __post_init__(self) -> None:
        checks.integer(self.folds, "folds", minimum=3, maximum=MOST_FOLDS)
        for name in ("label_voxels", "background_voxels"):
            checks.integer(getattr(self, name), name, minimum=1, maximum=MOST_VOXELS)

    def draw_voxels(
        self, labels: NDArray[np.uint8], n_labels: int, rng: np.random.Generator
    ) -> NDArray[np.intp]:
        """Return the indices of the drawn voxels in ``labels`` (N,), in ascending order."""
        drawn = []
        for label in range(n_labels):
            found = np.flatnonzero(labels == label)
            wanted = self.label_voxels if label else self.background_voxels
            drawn.append(rng.choice(found, min(wanted, len(found)), replace=False))
        return np.sort(np.concatenate(drawn))


@dataclass(frozen=True, eq=False)
class FeatureStore:
    """The features of cases; with a ``folder`` they are computed once and read from there."""

    cases: Mapping[str, ReadScene]  # by name
    folder: Path | None = None
    _scenes: dict[str, Scene] = field(default_factory=dict, repr=False)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the cases, in order."""
        return tuple(self.cases)

    def without(self, name: str) -> FeatureStore:
        """Return the store of all other cases, which shares the scenes in memory."""
        others = {other: read for other, read in self.cases.items() if other != name}
        return FeatureStore(others, self.folder, self._scenes)

    def scene(self, name: str) -> Scene:
        """Return a case; the last ones read stay in memory."""
        if name not in self._scenes:
            scene = self.cases[name]()
            if len(self._scenes) >= _SCENES_IN_MEMORY:
                self._scenes.pop(next(iter(self._scenes)))
            self._scenes[name] = scene
        return self._scenes[name]

    def truth(self, name: str) -> NDArray[np.uint8]:
        """Return the true labels (N,) of a case."""
        truth = self.scene(name).truth
        if truth is None:
            raise ValueError(f"cases must have a truth to learn from, got {name} without")
        return truth

    def features(self, name: str) -> NDArray[np.float16]:
        """Return the features (N, F) of a case."""
        if self.folder is None:
            return feature_table(self.scene(name))
        path = self.folder / f"{name}.npy"
        if not path.exists():
            table = feature_table(self.scene(name))
            with atomic_open(path) as file:
                np.save(file, table, allow_pickle=False)
        return np.load(path, mmap_mode="r", allow_pickle=False)


@dataclass(frozen=True, eq=False)
class TrainingVoxels:
    """The voxels of every case that forests are shown."""

    n_labels: int
    seed: int
    settings: EnsembleSettings
    features: dict[str, NDArray[np.float32]]  # (n, F) by case
    labels: dict[str, NDArray[np.uint8]]  # (n,) by case

    @classmethod
    def draw(
        cls,
        store: FeatureStore,
        n_labels: int,
        seed: int,
        settings: EnsembleSettings,
        progress: StagedProgress = SILENT,
    ) -> TrainingVoxels:
        """Draw the voxels of every case in a store."""
        progress.stage("computing features")
        shown = cls(n_labels, seed, settings, {}, {})
        for number, name in enumerate(store.names):
            labels = store.truth(name)
            rng = np.random.default_rng([seed, number])
            voxels = settings.draw_voxels(labels, n_labels, rng)
            shown.features[name] = store.features(name)[voxels].astype(np.float32)
            shown.labels[name] = labels[voxels]
            progress(number + 1, len(store.names))
        return shown

    def grow_forests(
        self, left_out: Sequence[Sequence[str]], numbers: Sequence[Sequence[int]]
    ) -> Iterator[Trees]:
        """Yield forests, each of all cases but some; its numbers set its seed apart."""
        with ThreadPoolExecutor(available_threads()) as executor:
            yield from executor.map(self._grow_without, left_out, numbers)

    def _grow_without(self, left_out: Sequence[str], numbers: Sequence[int]) -> Trees:
        names = [name for name in self.labels if name not in left_out]
        labels = np.concatenate([self.labels[name] for name in names])
        if np.all(labels == labels[0]):
            raise InputError(
                "`data` must hold cases with two labels or more to tell apart, got one label "
                f"without {', '.join(left_out)}"
            )
        features = np.concatenate([self.features[name] for name in names])
        # A stream of its own: those of the drawn voxels have no such number.
        stream = np.random.SeedSequence([self.seed, _TREES, *numbers])
        return self.settings.trees.grow(features, labels, int(stream.generate_state(1)[0]))

    def label_shares(self, left_out: Sequence[str] = ()) -> tuple[float, ...]:
        """Return each label's share of the voxels of all other cases, (L,)."""
        labels = [each for name, each in self.labels.items() if name not in left_out]
        return tuple(label_shares(np.concatenate(labels), self.n_labels).tolist())


def label_shares(labels: NDArray[np.uint8], n_labels: int) -> NDArray[np.float64]:
    """Return each label's share of the voxels, (L,)."""
    return np.bincount(labels, minlength=n_labels) / labels.size


def deal_folds(names: Sequence[str], folds: int, seed: int) -> tuple[tuple[str, ...], ...]:
    """Return the names dealt at random into folds of nearly the same size."""
    if len(names) < 3:
        raise InputError(f"`data` must hold at least 3 cases to learn from, got {len(names)}")
    order = np.random.default_rng(seed).permutation(len(names))
    folds = min(folds, len(names))
    return tuple(tuple(sorted(names[i] for i in order[fold::folds])) for fold in range(folds))


def train_ensemble(
    store: FeatureStore,
    n_labels: int,
    seed: int,
    settings: EnsembleSettings,
    progress: StagedProgress = SILENT,
) -> Ensemble:
    """Return the forests of all cases in a store; the same cases and seed give the same ones."""
    folds = deal_folds(store.names, settings.folds, seed)
    shown = TrainingVoxels.draw(store, n_labels, seed, settings, progress)
    progress.stage("growing trees")
    forests = []
    for forest in shown.grow_forests(folds, [(fold,) for fold in range(len(folds))]):
        forests.append(forest)
        progress(len(forests), len(folds))
    return Ensemble(n_labels, folds, tuple(forests), shown.label_shares())


def calibrate_ensemble(
    store: FeatureStore, ensemble: Ensemble, progress: StagedProgress = SILENT
) -> tuple[Calibration, dict[str, HeldOut]]:
    """Return the calibration, and what trees that were not shown a patient say of each."""
    progress.stage("classifying patients left out")
    answers = {}
    for number, name in enumerate(store.names):
        probabilities = ensemble.predict(store.features(name), ensemble.find_fold(name))
        answers[name] = HeldOut(probabilities, store.truth(name))
        progress(number + 1, len(store.names))
    progress.stage("calibrating")
    shares = [label_shares(each.labels, ensemble.n_labels) for each in answers.values()]
    in_patients = np.maximum(np.mean(shares, axis=0), _RAREST)  # (L,)
    shown = np.maximum(np.asarray(ensemble.shown), _RAREST)  # (L,)
    return fit_calibration(list(answers.values()), (in_patients / shown).tolist()), answers


@dataclass(frozen=True)
class TrainingReport:
    """What training found; everything but importances is of patients that the trees never saw."""

    cases: tuple[str, ...]
    folds: tuple[tuple[str, ...], ...]
    dice: dict[str, dict[str, float | None]]  # case -> label or region -> Dice
    mean_dice: dict[str, float | None]
    prior_power: float  # of the shares of labels: 0 not at all, 1 in full
    temperature: float
    calibration_error: dict[str, float]  # of the top label, before and after the temperature
    log_loss_nats: dict[str, float]
    importances: dict[str, float]  # largest first

    @property
    def best_features(self) -> list[tuple[str, float]]:
        """The ten features that the forests use most."""
        return list(self.importances.items())[:10]


def training_cases(
    files: Sequence[CaseFiles], sequences: Sequence[str], scheme: LabelScheme
) -> dict[str, ReadScene]:
    """Return how to read each case, by name; a missing sequence is refused at once."""
    for case in files:
        case.select_images(sequences)
    return {case.name: partial(read_scene, case, sequences, scheme) for case in files}


def train_segmenter(
    cases: Mapping[str, ReadScene],
    sequences: Sequence[str],
    labels: LabelScheme,
    *,
    seed: int = 0,
    settings: EnsembleSettings | None = None,
    cache: Path | None = None,
    threads: int | None = None,
    progress: StagedProgress = SILENT,
) -> tuple[SegmenterModel, TrainingReport]:
    """Return a calibrated model of all cases, and its report.

    The same cases and seed give the same model, bit for bit.

    Parameters
    ----------
    cases
        How to read each, by name; at least three. They are read one by one.
    sequences
        The names of their images, in order.
    labels
        The scheme of their label maps.
    seed
        Of everything random: voxels, folds, trees.
    settings
        How many folds and voxels, and how trees are grown.
    cache
        A folder for features, which are then computed once for each case and not again and again.
    threads
        How many to use; one for each processor where it is None. They change no result.
    progress
        Called with each stage, and with how many of its cases or folds are done.
    """
    store = FeatureStore(cases, cache)
    with limit_threads(threads):
        ensemble = train_ensemble(
            store, len(labels), seed, settings or EnsembleSettings(), progress
        )
        calibration, held_out = calibrate_ensemble(store, ensemble, progress)
    model = SegmenterModel(tuple(sequences), labels, ensemble, calibration)
    return model, _report(model, held_out)


def _report(model: SegmenterModel, held_out: Mapping[str, HeldOut]) -> TrainingReport:
    calibration = model.calibration
    # Both with the same prior: only the temperature is between them.
    settings = {"before": calibration.without_temperature(), "after": calibration}
    patients = list(held_out.values())
    regions = ("all labels", *model.labels.names[1:])
    overlaps = {}
    for name, patient in held_out.items():
        found = calibration.apply(patient.probabilities).argmax(axis=1)
        overlaps[name] = dict(zip(regions, label_dice(found, patient.labels, len(regions))))
    names = feature_names(model.sequences)
    shares = np.mean([forest.importances for forest in model.ensemble.forests], axis=0)
    order = np.argsort(-shares, kind="stable")
    return TrainingReport(
        cases=tuple(held_out),
        folds=model.ensemble.folds,
        dice=overlaps,
        mean_dice={
            region: _mean_known([overlap[region] for overlap in overlaps.values()])
            for region in regions
        },
        prior_power=calibration.prior_power,
        temperature=calibration.temperature,
        calibration_error={
            when: float(np.mean([calibration_error(each, at) for each in patients]))
            for when, at in settings.items()
        },
        log_loss_nats={when: log_loss(patients, at) for when, at in settings.items()},
        importances={names[i]: float(shares[i]) for i in order},
    )


def _mean_known(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return float(np.mean(known)) if known else None
