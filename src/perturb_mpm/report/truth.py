"""How a segmentation and its uncertainty compare with a known truth."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from perturb_mpm.evaluation import dice
from perturb_mpm.report.data import ReportData
from perturb_mpm.report.places import uncertain_voxels

Labels = NDArray[np.integer]


@dataclass(frozen=True)
class LabelComparison:
    """One label: its true volume, and each segmentation's volume and Dice coefficient."""

    label: str
    truth_ml: float
    volume_ml: dict[str, float]
    dice: dict[str, float]


def compare_labels(
    truth: Labels,
    segmentations: Mapping[str, Labels],
    label_names: Sequence[str],
    spacing: Sequence[float],
) -> list[LabelComparison]:
    """Compare named segmentations with the truth, label by label, leaving out label 0."""
    voxel_ml = math.prod(spacing) / 1000.0
    rows = []
    for label, name in enumerate(label_names[1:], start=1):
        true_region = truth == label
        regions = {key: labels == label for key, labels in segmentations.items()}
        rows.append(
            LabelComparison(
                label=name,
                truth_ml=float(true_region.sum() * voxel_ml),
                volume_ml={key: float(region.sum() * voxel_ml) for key, region in regions.items()},
                dice={key: dice(true_region, region) for key, region in regions.items()},
            )
        )
    return rows


@dataclass(frozen=True)
class Agreement:
    """Overlap of each region and label, and what being called uncertain says about errors."""

    dice: tuple[tuple[str, float | None], ...]  # None: the label is in neither
    wrong: int  # voxels inside the mask whose label is not the truth's
    wrong_ml: float
    wrong_share: float  # of the mask
    flagged_of_wrong: float | None  # share of the wrong voxels that are uncertain
    flagged_of_right: float | None
    wrong_of_flagged: float | None  # share of the uncertain voxels that are wrong
    rule: str  # which voxels were taken as uncertain


def compare_with_truth(data: ReportData, truth: NDArray[np.uint8]) -> Agreement:
    """Compare the labels and the uncertain voxels with the truth, inside the mask."""
    labels, known = data.labels[data.mask], truth[data.mask]  # (N,)
    uncertain, rule = uncertain_voxels(data)
    flagged = uncertain[data.mask]
    wrong = labels != known
    voxel_ml = float(np.prod(data.spacing)) / 1000.0
    return Agreement(
        dice=tuple(
            (name, _shown_dice(np.isin(labels, members), np.isin(known, members)))
            for name, members in [
                *data.regions.items(),
                *((name, (label,)) for label, name in enumerate(data.label_names) if label > 0),
            ]
        ),
        wrong=int(wrong.sum()),
        wrong_ml=float(wrong.sum()) * voxel_ml,
        wrong_share=_share(wrong) or 0.0,
        flagged_of_wrong=_share(flagged[wrong]),
        flagged_of_right=_share(flagged[~wrong]),
        wrong_of_flagged=_share(wrong[flagged]),
        rule=rule,
    )


def _shown_dice(one: NDArray[np.bool_], other: NDArray[np.bool_]) -> float | None:
    return dice(one, other) if one.any() or other.any() else None


def _share(flags: NDArray[np.bool_]) -> float | None:
    return float(flags.mean()) if len(flags) else None
