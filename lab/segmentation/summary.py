"""What the turns of the segmentation experiment add up to: overlap and calibration."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from perturb_mpm.evaluation import Reliability

TurnResult = Mapping[str, Any]

CLASSIFIER, DEFAULT = "classifier", "CRF, default"
OVERLAP, TUNED = "CRF, tuned for overlap", "CRF, tuned for both"
LIKELY = "CRF, tuned for likelihood"


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
        curves = [read_curve(turn["reliability"][name]) for turn in turns]
        rows.append(
            CalibrationRow(
                name,
                pool_bins(curves).expected_error,
                _mean([curve.expected_error for curve in curves]),
                _mean([turn["log_score_nats"][name] for turn in turns]),
            )
        )
    return rows


def pooled_curve(
    turns: Sequence[TurnResult], name: str, domain: str = "reliability"
) -> Reliability:
    """Return the reliability curve of a map over the voxels of all patients."""
    return pool_bins([read_curve(turn[domain][name]) for turn in turns])


def pool_bins(curves: Sequence[Reliability]) -> Reliability:
    """Return the curve of the voxels of all."""
    total = curves[0]
    for curve in curves[1:]:
        total = total.merge(curve)
    return total


def read_curve(bins: Mapping[str, Any]) -> Reliability:
    """Return a curve as it was stored."""
    numbers = [
        np.array([math.nan if value is None else value for value in bins[key]])
        for key in ("confidence", "accuracy")
    ]
    return Reliability(numbers[0], numbers[1], np.array(bins["voxels"], dtype=np.int64))


def _mean(values: Sequence[float]) -> float:
    return float(np.mean(values)) if len(values) else math.nan
