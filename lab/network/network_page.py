"""The page of the network experiment, written from its numbers."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from lab.network.measuring import (
    DEFAULT,
    DISPLACED,
    FIXED,
    FORCED,
    FORCED_STRENGTH,
    LEARNED,
    MARGIN_MM,
    NETWORK,
    REGIONS,
    RESIDUAL,
    WHITE,
    CaseScore,
)
from lab.words import markdown_table, paragraph

Numbers = NDArray[np.float64]

PAGE_NAME = "reproduce-network.md"
MAP_MEASURES = ("calibration_error", "log_score_nats", "auroc")
RIVALS = ("ensemble of 5", "20 dropout samples", "8 flips")


OPENING = """{cases} MRI crops of the hippocampus (Medical Segmentation Decathlon, Task04, CC BY-SA
4.0) with the probabilities of a 3-D U-Net that never saw them. Written by `python -m lab network
--data FOLDER`; {samples} samples a case. Means over cases; the measures of the maps are over all
voxels within {margin:g} mm of the network's or the true foreground. The row with
temperature is learned by likelihood on the other four fifths of the cases; so is the row learned by
`perturb-mpm tune`, all of it. The last two rows move the network's own volume by what it missed in
the cases of the other folds: by Student's law with the mean and spread of these errors (fixed
width), and by the errors themselves. In the defaults of `run`
the image decides whether kernels act and how strongly, the grid decides the temperature of the
maps; where no kernels act, samples are drawn at temperature 1. The row above it has kernels at
{forced:g} of their weight whatever the image says; the row grid temperature has no kernels, and
its samples have the temperature of its maps. Noise is correlated over the radius of a ball of the
volume that the probabilities expect; displaced borders are the probabilities moved by a smooth
random field, one voxel's size in standard deviation, correlated over the same length."""
LABELS = """Dice of the anterior and posterior part; the bias of the volume of both; the calibration
error of the most probable label; the log score (nats, lower is better); the area under the ROC
curve of entropy against errors. Maps of `run` are half mean field, half the probabilities at
their temperature; those of full strength and white noise are votes. Of dropout
and flips only label maps are stored: shares of 20 or 8 of them are mostly 0 or 1, which
says nothing of the mean softmax, so their maps are not scored."""
VOLUMES = """Anterior / posterior / both: the share of cases whose true volume lies inside the
central 95 % of the samples, the CRPS of the logarithm of the volume (lower is better), and the
share whose own label map's volume lies inside its interval."""


def page(
    means: Mapping[str, Mapping[str, float]],
    cases: int,
    samples: int,
    scores: Sequence[CaseScore] = (),
) -> str:
    """Return the page in Markdown."""
    parts = [
        "# What the CRF and its noise make of a network",
        paragraph(
            OPENING.format(cases=cases, samples=samples, margin=MARGIN_MM, forced=FORCED_STRENGTH)
        ),
        "## Labels and maps",
        paragraph(LABELS),
        _labels(means),
        "## Volumes",
        paragraph(VOLUMES),
        _volumes(means),
        "## What to make of it",
        paragraph(findings(means)),
        *([paragraph(comparison(scores))] if scores else []),
    ]
    return "\n\n".join(parts) + "\n"


def findings(means: Mapping[str, Mapping[str, float]]) -> str:
    """Return in words how the defaults stand beside the network alone, and where they lose."""
    ours, alone = means[DEFAULT], means[NETWORK]
    forced, white, moved = means[FORCED], means[WHITE], means[DISPLACED]

    def change(row: Mapping[str, float], key: str) -> str:
        return f"{row[key] - alone[key]:+.4f}"

    best = min(
        (each for each in means if not math.isnan(means[each]["crps_log both"])),
        key=lambda each: means[each]["crps_log both"],
    )
    return (
        f"The defaults of `run` change the Dice of both parts by {change(ours, 'dice both')}, the "
        f"log score from {alone['log_score_nats']:.4f} to {ours['log_score_nats']:.4f} nats, the "
        f"calibration error from {alone['calibration_error']:.4f} to "
        f"{ours['calibration_error']:.4f} and the ROC area by {change(ours, 'auroc')}, without a "
        f"label. Kernels whatever the image says change the Dice by {change(forced, 'dice both')}, "
        f"at full strength with white noise by {change(white, 'dice both')}: on these images look "
        "says little of the label, and leaving kernels out is right. Intervals of the defaults "
        f"hold {_shares(ours)} % of the true volumes (anterior / posterior / both), those of "
        f"displaced borders {_shares(moved)} %, of white noise {_shares(white)} %. The lowest CRPS "
        f"of the volume of both parts is that of: {best}. The rules by which image and grid decide "
        "were made with these cases and gliomas in view, so their figures are optimistic."
    )


def _shares(row: Mapping[str, float]) -> str:
    return " / ".join(f"{100 * row[f'inside {region}']:.0f}" for region in REGIONS)


def comparison(scores: Sequence[CaseScore], draws: int = 10_000) -> str:
    """Return how often a paired bootstrap over cases finds the learned volumes better."""
    by_method: dict[str, dict[str, CaseScore]] = {}
    for each in scores:
        by_method.setdefault(each.method, {})[each.case] = each
    cases = sorted(by_method[LEARNED])
    picks = np.random.default_rng(0).integers(len(cases), size=(draws, len(cases)))
    parts = []
    for rival in (*RIVALS, FIXED, RESIDUAL):
        shares = []
        for region in REGIONS:
            ours, theirs = (_crps(by_method[m], cases, region) for m in (LEARNED, rival))
            shares.append(f"{100 * float(((ours - theirs)[picks].mean(axis=1) < 0).mean()):.1f}")
        parts.append(f"{rival} {' / '.join(shares)} %")
    return (
        f"Of {draws:,} paired bootstrap draws of the cases, the CRPS of the volumes learned by "
        "`tune` is the lower one (anterior / posterior / both) against: " + "; ".join(parts) + ". "
        "Each case is scored with what the other folds say; but the rules by which `tune` chooses "
        "were decided with these cases and gliomas in view, so these figures are optimistic too."
    )


def _crps(scores: Mapping[str, CaseScore], cases: Sequence[str], region: str) -> Numbers:
    return np.array([(scores[case].crps_log or {})[region] for case in cases])


def _labels(means: Mapping[str, Mapping[str, float]]) -> str:
    header = ["method", "Dice", "bias of volume, %", "calibration error", "log score", "ROC area"]
    rows = [
        [
            method,
            f"{m['dice anterior']:.4f} / {m['dice posterior']:.4f}",
            f"{100 * (math.exp(m['volume_error_log both']) - 1):+.1f}",
            *("–" if math.isnan(m[key]) else f"{m[key]:.4f}" for key in MAP_MEASURES),
        ]
        for method, m in means.items()
        if method not in (FIXED, RESIDUAL)  # their labels and maps are the network's
    ]
    return markdown_table(header, rows)


def _volumes(means: Mapping[str, Mapping[str, float]]) -> str:
    header = ["method", "inside, %", "CRPS of log volume", "own volume inside, %"]
    rows = [
        [
            method,
            " / ".join(f"{100 * m[f'inside {region}']:.0f}" for region in REGIONS),
            " / ".join(f"{m[f'crps_log {region}']:.4f}" for region in REGIONS),
            " / ".join(f"{100 * m[f'own_volume_inside {region}']:.0f}" for region in REGIONS),
        ]
        for method, m in means.items()
        if not math.isnan(m["inside both"])
    ]
    return markdown_table(header, rows)
