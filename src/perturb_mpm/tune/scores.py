"""What labels, maps and volumes of a labelled case are worth, and what plain baselines give."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from perturb_mpm.biomarkers import OFFSET_ML, ConformalWidening, crps
from perturb_mpm.evaluation import auroc, region_dice, top_label
from perturb_mpm.posterior import Regions, decide_labels, marginal_entropy
from perturb_mpm.tune.problem import LabelledProblem

LEVEL = 0.95
# The fewest cases for a conformal interval of 95 %; so many are believed entirely, fewer half-way.
MANY_CASES = 19
_LEAST = 1e-7


@dataclass(frozen=True)
class MapScore:
    """Labels by overlap, maps within 5 mm of foreground; NaN where a case lacks the region."""

    dice: dict[str, float]
    calibration_error: float
    log_score_nats: float
    roc_area: float


@dataclass(frozen=True)
class VolumePrediction:
    """A predicted distribution of one region's volume; ``width`` and CRPS are of log(V + 0.1)."""

    lower_ml: float
    upper_ml: float
    true_ml: float
    crps: float

    @property
    def inside(self) -> bool:
        """Whether the interval holds the truth."""
        return self.lower_ml <= self.true_ml <= self.upper_ml

    @property
    def width(self) -> float:
        """How wide the interval is, as a difference of logarithms."""
        return float(log_ml(self.upper_ml) - log_ml(self.lower_ml))

    def widen(self, by: ConformalWidening) -> VolumePrediction:
        """Return the score with both ends of the interval moved."""
        lower, upper = by.widen([self.lower_ml], [self.upper_ml])
        return VolumePrediction(float(lower[0]), float(upper[0]), self.true_ml, self.crps)


@dataclass(frozen=True)
class CaseScores:
    """What one way gives on one case that it did not learn from."""

    case: str
    method: str
    maps: MapScore | None
    volumes: Mapping[str, VolumePrediction] | None


def log_ml(volume_ml: float | NDArray[np.float64]) -> NDArray[np.float64]:
    """Return log(V + 0.1 ml)."""
    logarithm: NDArray[np.float64] = np.log(np.asarray(volume_ml, dtype=np.float64) + OFFSET_ML)
    return logarithm


def region_ml(labels_ml: NDArray[np.float64], members: Sequence[int]) -> NDArray[np.float64]:
    """Return the volume of a region from those of the labels, (…, L) → (…)."""
    total: NDArray[np.float64] = labels_ml[..., list(members)].sum(axis=-1)
    return total


def score_maps(
    problem: LabelledProblem,
    marginals: NDArray[np.floating],
    regions: Regions,
    decisions: Regions | None,
) -> MapScore:
    """Score marginals (L, N); labels are decided by ``decisions``, or the most probable."""
    labels = decide_labels(marginals, decisions)
    near, truth = problem.near, problem.truth
    here = np.maximum(marginals[:, near].astype(np.float64), _LEAST)
    here /= here.sum(axis=0)
    true = truth[near]
    own = np.take_along_axis(here, true[np.newaxis], axis=0)[0]
    return MapScore(
        dice={name: region_dice(labels, truth, members) for name, members in regions.items()},
        calibration_error=top_label(here, true).expected_error,
        log_score_nats=float(-np.log(own).mean()),
        roc_area=auroc(marginal_entropy(here), labels[near] != true),
    )


def score_volumes(
    problem: LabelledProblem, sampled_ml: NDArray[np.float64], regions: Regions
) -> dict[str, VolumePrediction]:
    """Score sampled volumes of the labels (S, L), region by region."""
    return {
        name: score_volume(
            region_ml(sampled_ml, members), float(region_ml(problem.true_ml, members))
        )
        for name, members in regions.items()
    }


def score_volume(sampled_ml: NDArray[np.float64], true_ml: float) -> VolumePrediction:
    """Score sampled volumes (S,) of one region."""
    tail = (1 - LEVEL) / 2
    lower, upper = np.quantile(sampled_ml, [tail, 1 - tail])
    return VolumePrediction(
        float(lower), float(upper), true_ml, crps(log_ml(sampled_ml), float(log_ml(true_ml)))
    )


def nan_mean(values: Sequence[float]) -> float:
    """Return the mean of the values that are numbers; NaN where there are none."""
    known = [value for value in values if not math.isnan(value)]
    return float(np.mean(known)) if known else math.nan
