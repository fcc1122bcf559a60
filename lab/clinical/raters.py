"""Measures of several raters on real label maps: how alike independent drawings spread.

Four radiologists outlined each of eight lung nodules (LIDC-IDRI): two of them are compared with the
other two, in all three ways. Five algorithms segmented one glioma (TCGA-LGG): each is left out in
turn and compared with the other four.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from perturb_mpm.evaluation import (
    binary_entropy_percent,
    generalized_energy_distance,
    level_dice,
    matched_iou,
    pairwise_overlap,
    rater_correlation,
)
from perturb_mpm.files import InputError, Source, read_volume

LIDC, TCGA = "lidc_multirater_masks", "tcga_fg6692_5algorithms"
REGIONS = {"whole tumour": (1, 2, 4), "tumour core": (1, 4), "enhancing tumour": (4,)}


@dataclass(frozen=True)
class RaterRow:
    """The mean over all splits of one structure's drawings."""

    case: str
    structure: str
    drawings: int
    mean_pairwise_dice: float
    energy_distance_iou: float
    matched_iou: float
    level_dice: float
    rater_correlation: float


def compare_raters(data: Path) -> list[RaterRow]:
    """Measure whatever of the two data sets lies in a folder."""
    rows = [*_nodules(data / LIDC), *_glioma(data / TCGA)]
    if not rows:
        raise InputError(f"`data` must hold {LIDC} or {TCGA}, got {data}")
    return rows


def rater_row(case: str, structure: str, drawings: NDArray[np.bool_], held_out: int) -> RaterRow:
    """Compare every choice of ``held_out`` drawings (D, X, Y, Z) with the others."""
    count = len(drawings)
    overlap = pairwise_overlap(drawings, drawings, "dice")
    splits = []
    for chosen in combinations(range(count), held_out):
        others = [each for each in range(count) if each not in chosen]
        if held_out == len(others) and 0 in others:
            continue  # the same two halves, the other way round
        first, second = drawings[others], drawings[list(chosen)]
        share = first.mean(axis=0)
        splits.append(
            (
                generalized_energy_distance(first, second),
                matched_iou(first, second),
                level_dice(share, second),
                rater_correlation(binary_entropy_percent(share) / 100, drawings),
            )
        )
    distance, matched, level, correlation = np.nanmean(splits, axis=0)
    return RaterRow(
        case,
        structure,
        count,
        float(overlap[np.triu_indices(count, 1)].mean()),
        float(distance),
        float(matched),
        float(level),
        float(correlation),
    )


def table(rows: Sequence[RaterRow]) -> str:
    """Return the rows as Markdown."""
    lines = [
        (
            "| case | structure | drawings | mean pairwise Dice | energy distance (1 − IoU) | "
            "matched IoU | level Dice | correlation with spread |"
        ),
        "|---|---|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {r.case} | {r.structure} | {r.drawings} | {r.mean_pairwise_dice:.3f} | "
        f"{r.energy_distance_iou:.3f} | {r.matched_iou:.3f} | {r.level_dice:.3f} | "
        f"{r.rater_correlation:.3f} |"
        for r in rows
    ]
    return "\n".join(lines) + "\n"


def _nodules(folder: Path) -> Iterator[RaterRow]:
    for path in sorted(folder.glob("*.nii.gz")):
        masks = read_volume(Source("data", path)).voxels  # (X, Y, Z, 4)
        drawings = np.moveaxis(masks, 3, 0) > 0
        yield rater_row(path.name.split("_")[0], "lung nodule", drawings, held_out=2)


def _glioma(folder: Path) -> Iterator[RaterRow]:
    paths = sorted((folder / "segmentation").glob("*.nii.gz"))
    if not paths:
        return
    labels = np.stack([read_volume(Source("data", path)).voxels for path in paths])
    inside = np.argwhere((labels > 0).any(axis=0))
    x, y, z = (slice(low, high + 1) for low, high in zip(inside.min(axis=0), inside.max(axis=0)))
    labels = labels[:, x, y, z]
    for structure, values in REGIONS.items():
        yield rater_row("glioma", structure, np.isin(labels, values), held_out=1)
