"""What the turns of the segmentation experiment add up to: overlap, calibration, volumes."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perturb_mpm.evaluation import Reliability
from perturb_mpm.learning import FieldScore, FieldSetting, best_setting, interval, log_volume

TurnResult = Mapping[str, Any]

FOREST, DEFAULT = "forest", "CRF, default"
OVERLAP, TUNED = "CRF, tuned for overlap", "CRF, tuned for both"
LIKELY = "CRF, tuned for likelihood"
FIELDS = "votes, tuned for overlap, with fields"


@dataclass(frozen=True)
class OverlapRow:
    """The mean Dice coefficient of a region over the patients that have it."""

    method: str
    region: str
    mean_dice: float
    patients: int


@dataclass(frozen=True)
class CalibrationRow:
    """Calibration around the tumour: of all voxels pooled, and the mean over patients."""

    map: str
    pooled_ece: float
    mean_ece: float
    log_score_nats: float


@dataclass(frozen=True)
class VolumeScore:
    """Volumes of one patient's region by samples and by a fixed relative width.

    The setting, the width and the shift are those of all other patients.
    """

    patient: str
    region: str
    setting: FieldSetting
    truth_ml: float
    lower_ml: float
    upper_ml: float
    inside: bool
    inside_without_fields: bool
    crps: float
    crps_without_fields: float
    crps_fixed_width: float
    crps_fixed_width_shifted: float


def with_fields(turns: Sequence[TurnResult]) -> list[dict[str, Any]]:
    """Return the turns with the votes under the fields chosen for each patient beside the rest."""
    measured = []
    for turn, setting in zip(turns, chosen_settings(turns), strict=True):
        row = turn["fields"][[each.setting for each in field_scores(turn)].index(setting)]
        beside = {
            "dice": row["dice"],
            "reliability": row["reliability"],
            "log_score_nats": row["near_log_score_nats"],
        }
        more = {key: {**turn[key], FIELDS: value} for key, value in beside.items()}
        measured.append({**turn, **more})
    return measured


def overlap_rows(turns: Sequence[TurnResult]) -> list[OverlapRow]:
    """Return the mean overlap of every method and region."""
    rows = []
    for method in turns[0]["dice"]:
        for region in turns[0]["truth_ml"]:
            values = [turn["dice"][method][region] for turn in turns]
            known = [value for value in values if value is not None]
            rows.append(OverlapRow(method, region, _mean(known), len(known)))
    return rows


def mean_dice(rows: Iterable[OverlapRow], method: str) -> dict[str, float]:
    """Return the mean overlap of one method by region."""
    return {row.region: row.mean_dice for row in rows if row.method == method}


def label_iou(turns: Sequence[TurnResult], method: str) -> list[float]:
    """Return the mean IoU of every label over the patients that have it."""
    each = [turn["iou"][method] for turn in turns]
    return [_mean([value for value in column if value is not None]) for column in zip(*each)]


def calibration_rows(turns: Sequence[TurnResult]) -> list[CalibrationRow]:
    """Return the calibration error and log score of every map."""
    rows = []
    for name in turns[0]["reliability"]:
        curves = [curve_of(turn["reliability"][name]) for turn in turns]
        rows.append(
            CalibrationRow(
                name,
                pooled(curves).expected_error,
                _mean([curve.expected_error for curve in curves]),
                _mean([turn["log_score_nats"][name] for turn in turns]),
            )
        )
    return rows


def pooled_curve(
    turns: Sequence[TurnResult], name: str, domain: str = "reliability"
) -> Reliability:
    """Return the reliability curve of a map over the voxels of all patients."""
    return pooled([curve_of(turn[domain][name]) for turn in turns])


def pooled(curves: Sequence[Reliability]) -> Reliability:
    """Return the curve of the voxels of all."""
    total = curves[0]
    for curve in curves[1:]:
        total = total.pooled(curve)
    return total


def curve_of(bins: Mapping[str, Any]) -> Reliability:
    """Return a curve as it was kept."""
    numbers = [
        np.array([math.nan if value is None else value for value in bins[key]])
        for key in ("confidence", "accuracy")
    ]
    return Reliability(numbers[0], numbers[1], np.array(bins["voxels"], dtype=np.int64))


def field_scores(turn: TurnResult) -> list[FieldScore]:
    """Return the scores of every setting on one patient; without fields first."""
    return [
        FieldScore(
            FieldSetting(float(row["length_mm"]), row["shared"], _own(row["own"])),
            np.empty((0, 0)),
            row["crps"],
            {name: _held(row, name, truth) for name, truth in turn["truth_ml"].items()},
            row["log_score_nats"],
        )
        for row in turn["fields"]
    ]


def _held(row: Mapping[str, Any], region: str, truth_ml: float) -> bool | None:
    low, high = interval(row["volumes_ml"][region])
    return low <= truth_ml <= high if truth_ml > 0 else None


def _own(amplitudes: float | list[float]) -> float | tuple[float, ...]:
    return tuple(amplitudes) if isinstance(amplitudes, list) else amplitudes


def chosen_settings(turns: Sequence[TurnResult]) -> list[FieldSetting]:
    """Return for each patient the setting that scores best on all others."""
    table = [field_scores(turn) for turn in turns]
    return [
        best_setting([row for place, row in enumerate(table) if place != left_out])
        for left_out in range(len(table))
    ]


def log_scores(turns: Sequence[TurnResult]) -> tuple[float, float]:
    """Return the mean voxelwise log score over the mask without fields, and with those chosen."""
    chosen = chosen_settings(turns)
    table = [field_scores(turn) for turn in turns]
    without = _mean([row[0].log_score for row in table])
    with_fields = _mean([_of(row, setting).log_score for row, setting in zip(table, chosen)])
    return without, with_fields


def volume_scores(turns: Sequence[TurnResult]) -> list[VolumeScore]:
    """Return how well the volumes of every region that a patient has are predicted."""
    rows = []
    for left_out, (turn, setting) in enumerate(zip(turns, chosen_settings(turns), strict=True)):
        others = [other for place, other in enumerate(turns) if place != left_out]
        place = [score.setting for score in field_scores(turn)].index(setting)
        for region, truth in turn["truth_ml"].items():
            if truth == 0:
                continue
            plain, fields = turn["fields"][0], turn["fields"][place]
            lower, upper = interval(fields["volumes_ml"][region])
            bare = interval(plain["volumes_ml"][region])
            wanted = float(log_volume(truth))
            centre = float(log_volume(turn["volume_ml"][OVERLAP][region]))
            having = [other for other in others if other["truth_ml"][region] > 0]
            errors = np.array([_error(other, region) for other in having])
            width = _spread(errors, freedom=len(errors))
            shift = _mean(errors)
            spread = _spread(errors - shift, freedom=len(errors) - 1)
            rows.append(
                VolumeScore(
                    patient=turn["patient"],
                    region=region,
                    setting=setting,
                    truth_ml=truth,
                    lower_ml=lower,
                    upper_ml=upper,
                    inside=lower <= truth <= upper,
                    inside_without_fields=bare[0] <= truth <= bare[1],
                    crps=fields["crps"][region],
                    crps_without_fields=plain["crps"][region],
                    crps_fixed_width=normal_crps(centre, width, wanted),
                    crps_fixed_width_shifted=normal_crps(centre + shift, spread, wanted),
                )
            )
    return rows


def normal_crps(mean: float, sd: float, value: float) -> float:
    """Return the continuous ranked probability score of a normal distribution."""
    if sd == 0:
        return abs(value - mean)
    z = (value - mean) / sd
    density = math.exp(-z * z / 2) / math.sqrt(2 * math.pi)
    return sd * (z * math.erf(z / math.sqrt(2)) + 2 * density - 1 / math.sqrt(math.pi))


def _error(turn: TurnResult, region: str) -> float:
    """Return log true volume − log volume of the tuned CRF."""
    found = turn["volume_ml"][OVERLAP][region]
    return float(log_volume(turn["truth_ml"][region]) - log_volume(found))


def _spread(errors: NDArray[np.float64], freedom: int) -> float:
    """Return √(Σ error² / degrees of freedom), not a number where there are none."""
    return math.sqrt(float(np.sum(errors**2)) / freedom) if freedom > 0 else math.nan


def _of(scores: Sequence[FieldScore], setting: FieldSetting) -> FieldScore:
    return next(score for score in scores if score.setting == setting)


def _mean(values: Sequence[float] | NDArray[np.float64]) -> float:
    return float(np.mean(values)) if len(values) else math.nan
