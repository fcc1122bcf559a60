"""From labelled cases to a calibrated model, and a report of what it does on unseen patients."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from perturb_mpm.evaluation import dice
from perturb_mpm.files import CaseFiles, LabelScheme
from perturb_mpm.progress import Silent, StagedProgress
from perturb_mpm.segmenter.calibration import (
    Calibration,
    HeldOut,
    expected_calibration_error,
    fit_calibration,
    log_loss,
)
from perturb_mpm.segmenter.ensemble import Ensemble, EnsembleSettings, train_ensemble
from perturb_mpm.segmenter.feature_store import FeatureStore, ReadScene, label_shares
from perturb_mpm.segmenter.features import feature_names
from perturb_mpm.segmenter.masked_filters import limited_threads
from perturb_mpm.segmenter.model import SegmenterModel
from perturb_mpm.segmenter.preprocessing import read_scene

_RAREST = 1e-5  # the share of a label that no case has


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
    progress: StagedProgress | None = None,
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
        Told each stage, and how many of its cases or folds are done.
    """
    settings = settings or EnsembleSettings()
    progress = progress or Silent()
    store = FeatureStore(cases, cache)
    with limited_threads(threads):
        ensemble = train_ensemble(store, len(labels), seed, settings, progress)
        held_out = held_out_answers(store, ensemble, progress)
    progress.stage("calibrating")
    calibration = fit_calibration(list(held_out.values()), prior_ratio(store, ensemble).tolist())
    model = SegmenterModel(tuple(sequences), labels, ensemble, calibration)
    return model, _report(model, held_out)


def held_out_answers(
    store: FeatureStore, ensemble: Ensemble, progress: StagedProgress | None = None
) -> dict[str, HeldOut]:
    """Return what trees that were not shown a patient say of it, for every patient."""
    progress = progress or Silent()
    progress.stage("classifying patients left out")
    answers = {}
    for number, name in enumerate(store.names):
        said = ensemble.predict(store.features(name), ensemble.fold_of(name))
        answers[name] = HeldOut(said, store.truth(name))
        progress(number + 1, len(store.names))
    return answers


def prior_ratio(store: FeatureStore, ensemble: Ensemble) -> NDArray[np.float64]:
    """Return each label's mean share in the cases over its share of the drawn voxels, (L,)."""
    n_labels = ensemble.n_labels
    shares = [label_shares(store.truth(name), n_labels) for name in store.names]
    true = np.maximum(np.mean(shares, axis=0), _RAREST)
    shown = np.maximum(np.asarray(ensemble.shown), _RAREST)
    ratio: NDArray[np.float64] = true / shown
    return ratio


def region_dice(
    found: NDArray[np.integer], truth: NDArray[np.integer], labels: LabelScheme
) -> dict[str, float | None]:
    """Return the Dice coefficient of every label but background, and of all of them together.

    None stands for a label that the truth does not have.
    """
    pairs = {"all labels": (found > 0, truth > 0)}
    for label, name in enumerate(labels.names[1:], start=1):
        pairs[name] = (found == label, truth == label)
    return {
        name: dice(ours, theirs) if theirs.any() else None for name, (ours, theirs) in pairs.items()
    }


def _report(model: SegmenterModel, held_out: Mapping[str, HeldOut]) -> TrainingReport:
    calibration = model.calibration
    # Both with the same prior: only the temperature is between them.
    settings = {"before": calibration.untempered(), "after": calibration}
    patients = list(held_out.values())
    overlaps = {
        name: region_dice(
            calibration.apply(patient.probabilities).argmax(axis=1), patient.labels, model.labels
        )
        for name, patient in held_out.items()
    }
    names = feature_names(model.sequences)
    shares = np.mean([forest.importances for forest in model.ensemble.forests], axis=0)
    order = np.argsort(-shares, kind="stable")
    return TrainingReport(
        cases=tuple(held_out),
        folds=model.ensemble.folds,
        dice=overlaps,
        mean_dice=_means(overlaps),
        prior_power=calibration.prior_power,
        temperature=calibration.temperature,
        calibration_error={when: _mean_error(patients, each) for when, each in settings.items()},
        log_loss_nats={when: log_loss(patients, each) for when, each in settings.items()},
        importances={names[i]: float(shares[i]) for i in order},
    )


def _mean_error(patients: Sequence[HeldOut], calibration: Calibration) -> float:
    errors = [
        expected_calibration_error(calibration.apply(patient.probabilities), patient.labels)
        for patient in patients
    ]
    return float(np.mean(errors))


def _means(overlaps: Mapping[str, dict[str, float | None]]) -> dict[str, float | None]:
    """Return the mean over the cases that have a label."""
    means: dict[str, float | None] = {}
    for key in next(iter(overlaps.values())):
        known = [value for each in overlaps.values() if (value := each[key]) is not None]
        means[key] = float(np.mean(known)) if known else None
    return means
