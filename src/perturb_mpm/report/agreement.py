"""How a segmentation and its uncertainty compare with a known truth."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from perturb_mpm.report.data import ReportData
from perturb_mpm.report.regions import uncertain_voxels


@dataclass(frozen=True)
class Agreement:
    """Overlap of each label, and what being called uncertain says about errors."""

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
            (name, _dice(labels == label, known == label))
            for label, name in enumerate(data.label_names)
            if label > 0
        ),
        wrong=int(wrong.sum()),
        wrong_ml=float(wrong.sum()) * voxel_ml,
        wrong_share=_share(wrong) or 0.0,
        flagged_of_wrong=_share(flagged[wrong]),
        flagged_of_right=_share(flagged[~wrong]),
        wrong_of_flagged=_share(wrong[flagged]),
        rule=rule,
    )


def _dice(one: NDArray[np.bool_], other: NDArray[np.bool_]) -> float | None:
    total = int(one.sum()) + int(other.sum())
    return 2.0 * int((one & other).sum()) / total if total else None


def _share(flags: NDArray[np.bool_]) -> float | None:
    return float(flags.mean()) if len(flags) else None
