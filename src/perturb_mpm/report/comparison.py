"""How much of each label there is, and how well it overlaps the truth."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

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


def dice(one: NDArray[np.bool_], other: NDArray[np.bool_]) -> float:
    """Return 2|A∩B| / (|A| + |B|), and 1 where both are empty."""
    total = int(one.sum()) + int(other.sum())
    return 2.0 * int((one & other).sum()) / total if total else 1.0
