"""From the trees' answers to probabilities: the prior put right, confidence put right.

The trees are shown about as many voxels of each label, so they think that rare ones are common.
Taking that back in full, p · (true share / shown share), is right where the trees know all there
is to know; they do not, and a third of each tumour then goes to background. So the ratio is taken
to a power between 0 and 1, chosen for the overlap on patients that the trees were not shown, and
the temperature for the likelihood of their labels.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perturb_mpm import checks
from perturb_mpm.evaluation import dice, top_label

POWERS = tuple(round(0.05 * step, 2) for step in range(21))
_LEAST = 1e-4  # of a probability, before its logarithm
_TEMPERATURES = (0.2, 5.0)
_TEMPERATURE_VOXELS = 20_000


@dataclass(frozen=True)
class Calibration:
    """q(l) ∝ p(l)^(1/temperature) · ratio(l)^exponent.

    ``ratio`` (L,) is each label's share in patients over its share in what the trees were shown.
    """

    ratio: tuple[float, ...]
    exponent: float = 0.0
    temperature: float = 1.0

    def __post_init__(self) -> None:
        checks.number(self.temperature, "temperature", positive=True)
        checks.number(self.exponent, "exponent", minimum=0)
        for each in self.ratio:
            checks.number(each, "ratio", positive=True)

    @property
    def prior_power(self) -> float:
        """The power of the ratio before the temperature: 0 none of the prior, 1 all of it."""
        return round(self.exponent * self.temperature, 6)

    def without_temperature(self) -> Calibration:
        """Return the same prior without the temperature."""
        return Calibration(self.ratio, self.prior_power)

    def apply(self, probabilities: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return calibrated probabilities (n, L) of the trees' (n, L)."""
        tilt = self.exponent * np.log(np.asarray(self.ratio, dtype=np.float64))
        scores = np.log(np.maximum(probabilities, _LEAST)) / self.temperature + tilt
        scores -= scores.max(axis=1, keepdims=True)
        np.exp(scores, out=scores)
        scores /= scores.sum(axis=1, keepdims=True)
        return scores.astype(np.float32)


@dataclass(frozen=True, eq=False)
class HeldOut:
    """A patient as trees answered that were not shown it."""

    probabilities: NDArray[np.float32]  # (N, L)
    labels: NDArray[np.uint8]  # (N,)


def fit_calibration(patients: Sequence[HeldOut], ratio: Sequence[float]) -> Calibration:
    """Return the prior's power with the best overlap, then the temperature of best likelihood.

    Overlap is the mean over patients of the Dice coefficients of all labels but background, and
    of all of them together; a label that a patient does not have is left out. Patients count
    alike, whatever their size.
    """
    values = tuple(float(each) for each in ratio)
    overlaps = np.mean([_overlaps(patient, values) for patient in patients], axis=0)
    power = POWERS[int(np.argmax(overlaps))]
    few = [_thin(patient) for patient in patients]
    return calibration_at(values, power, _best_temperature(few, values, power))


def calibration_at(ratio: tuple[float, ...], power: float, temperature: float) -> Calibration:
    """Return q(l) ∝ (p(l) · ratio(l)^power)^(1/temperature), which has the same best labels."""
    return Calibration(ratio, power / temperature, temperature)


def log_loss(patients: Sequence[HeldOut], calibration: Calibration) -> float:
    """Return the mean negative log-likelihood of the labels, in nats, patients counting alike."""
    losses = []
    for patient in patients:
        probabilities = calibration.apply(patient.probabilities)
        own = np.take_along_axis(probabilities, patient.labels[:, np.newaxis].astype(np.intp), 1)
        losses.append(-np.log(np.maximum(own, _LEAST)).mean())
    return float(np.mean(losses))


def calibration_error(patient: HeldOut, calibration: Calibration) -> float:
    """Return the mean gap between the top label's probability and how often it is right."""
    return top_label(calibration.apply(patient.probabilities).T, patient.labels).expected_error


def _best_temperature(patients: Sequence[HeldOut], ratio: tuple[float, ...], power: float) -> float:
    from scipy.optimize import minimize_scalar

    found = minimize_scalar(
        lambda log: log_loss(patients, calibration_at(ratio, power, float(np.exp(log)))),
        bounds=np.log(_TEMPERATURES),
        method="bounded",
        options={"xatol": 1e-3},
    )
    return float(np.exp(found.x))


def _thin(patient: HeldOut) -> HeldOut:
    """Return every few voxels of a patient: enough for one number."""
    step = max(1, patient.labels.size // _TEMPERATURE_VOXELS)
    return HeldOut(patient.probabilities[::step], patient.labels[::step])


def _overlaps(patient: HeldOut, ratio: tuple[float, ...]) -> list[float]:
    """Return the overlap for each of the powers."""
    scores = np.log(np.maximum(patient.probabilities, _LEAST))
    tilt = np.log(np.asarray(ratio, dtype=np.float32))
    overlaps = []
    for power in POWERS:
        found = (scores + np.float32(power) * tilt).argmax(axis=1)
        known = [each for each in label_dice(found, patient.labels, len(ratio)) if each is not None]
        # Without any label to find, 1 if none is found, else 0.
        overlaps.append(float(np.mean(known)) if known else 1.0 - float((found > 0).any()))
    return overlaps


def label_dice(
    found: NDArray[np.integer[Any]], truth: NDArray[np.integer[Any]], n_labels: int
) -> list[float | None]:
    """Return the Dice coefficients of all labels but background together, and of each, L values.

    None stands for a label that the truth does not have.
    """
    pairs = [(found > 0, truth > 0)]
    pairs += [(found == label, truth == label) for label in range(1, n_labels)]
    return [dice(ours, theirs) if theirs.any() else None for ours, theirs in pairs]
