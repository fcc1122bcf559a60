"""Widen: how far the ends of volume intervals move until they hold 95 of 100 true volumes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from perturb_mpm.biomarkers import OFFSET_ML, ConformalWidening, conformal_widening
from perturb_mpm.tune.scores import LEVEL, MANY_CASES, VolumePrediction
from perturb_mpm.tune.study import VolumeTable

Widenings = Mapping[str, ConformalWidening]  # by region; empty where cases are too few


@dataclass(frozen=True, eq=False)
class Widen:
    """The stage that learns conformal steps from intervals and true volumes of cases left out."""

    volumes: VolumeTable

    def fit(self, cases: Sequence[int], length_mm: float) -> Widenings:
        """Return the step of every region, from the intervals at one length of the noise."""
        if len(cases) < MANY_CASES:
            return {}
        found = [self.volumes.predictions[length_mm][case] for case in cases]
        return {name: _learn_step([each[name] for each in found]) for name in found[0]}

    def score(self, case: int, length_mm: float, learned: Widenings) -> dict[str, VolumePrediction]:
        """Return the volumes of a case with what was learned of its intervals."""
        return {
            name: found.widen(learned[name]) if name in learned else found
            for name, found in self.volumes.predictions[length_mm][case].items()
        }


def _learn_step(intervals: Sequence[VolumePrediction]) -> ConformalWidening:
    return conformal_widening(
        [each.lower_ml for each in intervals],
        [each.upper_ml for each in intervals],
        [each.true_ml for each in intervals],
        LEVEL,
        OFFSET_ML,
    )
