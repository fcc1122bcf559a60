"""The sentences of a report: what was found, how sure it is, where the doubt is; the methods."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from perturb_mpm.evaluation import expected_dice
from perturb_mpm.posterior import UNCERTAIN
from perturb_mpm.report.data import ReportData, VolumeRow
from perturb_mpm.report.locations import UncertainLocation
from perturb_mpm.report.pages import about_ml, capitalise

SURE, FAIRLY_SURE = 0.9, 0.75
"""The expected Dice from which on the model is called sure, and fairly sure, where it was learned
from labelled cases: a network that knows nothing of its errors expects the same."""

PAPER = (
    "R. Meier, U. Knecht, A. Jungo, R. Wiest, M. Reyes. Perturb-and-MPM: Quantifying Segmentation "
    "Uncertainty in Dense Multi-Label CRFs. arXiv:1703.00312, 2017."
)

_MOST_ROWS = 5
_COUNTED_BELOW = 10  # a volume of fewer voxels is said in voxels too
_NEARLY_NOTHING = 0.005  # of the upper end: a lower end below this is 0


@dataclass(frozen=True)
class PageAnswer:
    """The sentences at the top of a page; one may be empty."""

    found: str  # volumes, with intervals where there are any
    basis: str  # what the intervals rest on
    evidence: str  # whether the image speaks for the probabilities
    sure: str
    doubt: str

    def __str__(self) -> str:
        """Return all sentences as one text."""
        sentences = (self.found, self.basis, self.sure, self.doubt, self.evidence)
        return " ".join(filter(None, sentences))


def answer(data: ReportData, locations: Sequence[UncertainLocation]) -> PageAnswer:
    """Return the answer that the numbers give; ``locations`` are ranked, the main doubt first."""
    rows = answer_rows(data)
    nothing = not ((data.labels > 0) & data.mask).any()
    return PageAnswer(
        _nothing_found(rows, data) if nothing else _found(rows, data),
        _basis(data),
        data.evidence,
        "" if nothing else _sure(rows, data),
        _doubt(data, locations),
    )


def answer_rows(data: ReportData) -> list[VolumeRow]:
    """Return the regions, or where there are none the labels, the largest first, and their sum."""
    regions = [row for row in data.volumes if row.kind == "region"]
    if regions:
        return regions
    labels = [row for row in data.volumes if row.kind == "label"]
    labels.sort(key=lambda row: -row.volume_ml)
    return labels[:_MOST_ROWS] + [row for row in data.volumes if row.kind == "together"]


def row_name(row: VolumeRow) -> str:
    """Return what a row is called in sentences."""
    return "all labels" if row.kind == "together" else row.name


def _found(rows: Sequence[VolumeRow], data: ReportData) -> str:
    """Return "Whole 142 ml (126–230), core 54 ml (37–68), enhancing none (0–0.4)."."""
    return f"{capitalise(', '.join(_volume(row, data) for row in rows))}."


def _volume(row: VolumeRow, data: ReportData) -> str:
    name = row_name(row)
    words = f"{name} {about_ml(row.volume_ml)} ml" if row.volume_ml else f"{name} none"
    voxels = round(row.volume_ml * 1000.0 / math.prod(data.spacing))
    if 0 < voxels < _COUNTED_BELOW:
        words += f", {voxels} voxel{'s' if voxels > 1 else ''}"
    low, high = row.interval_ml
    if data.intervals == "none" or math.isnan(low) or row.volume_ml == high == 0:
        return words
    interval = f"{about_ml(0.0 if low < _NEARLY_NOTHING * high else low)}–{about_ml(high)}"
    if voxels >= _COUNTED_BELOW and high - low > row.volume_ml:
        return f"{row_name(row)} not determined ({interval} ml)"
    quartiles = np.quantile(row.samples_ml, [0.25, 0.75])
    if voxels >= _COUNTED_BELOW and not quartiles[0] <= row.volume_ml <= quartiles[1]:
        # The label map takes each voxel by itself and may lie far from what samples expect.
        expected = f"{row_name(row)} about {about_ml(row.median_ml)} ml"
        if about_ml(row.median_ml) != about_ml(row.volume_ml):
            return f"{expected} ({interval}; label map {about_ml(row.volume_ml)})"
    return f"{words} ({interval})"


def _nothing_found(rows: Sequence[VolumeRow], data: ReportData) -> str:
    text = f"Nothing was found: {data.label_names[0]} is the most probable label everywhere."
    sampled = [row for row in rows if row.interval_ml[1] > 0]  # not where it is no number
    if data.intervals == "none" or not sampled:
        return text
    largest = max(sampled, key=lambda row: row.interval_ml[1])
    most = about_ml(largest.interval_ml[1])
    return f"{text} Up to {most} ml of {row_name(largest)} are possible."


def _basis(data: ReportData) -> str:
    if data.intervals == "none":
        return (
            "No intervals are given: noise that is independent at every voxel says nothing about "
            "volumes."
        )
    if data.intervals == "assumed":
        return "Intervals are 95 % and assumed: they were not learned from labelled cases."
    cases = f"{data.learned_cases} labelled case{'s' if data.learned_cases > 1 else ''}"
    return f"Intervals are 95 %, learned from {cases}."


def _sure(rows: Sequence[VolumeRow], data: ReportData) -> str:
    """Return "Expected Dice with the truth: whole 0.93 (0.88–0.96), core 0.71 (0.40–0.90).".

    Where settings were learned, words go with it: sure, fairly sure, unsure. Where there is no
    interval, it is the Dice that the probabilities expect.
    """
    inside = data.labels[data.mask]  # (N,)
    found: list[tuple[str, str]] = []
    for row in rows:
        members = [data.label_values.index(value) for value in row.values]
        here = np.isin(inside, members)
        if not here.any():
            continue
        if row.name in data.agreement:
            dice, low, high = data.agreement[row.name]
            words = f"{row_name(row)} {dice:.2f} ({low:.2f}–{high:.2f})"
        else:
            share = data.marginals[members][:, data.mask].sum(axis=0, dtype=np.float64)  # (N,)
            dice = expected_dice(here, share)
            words = f"{row_name(row)} {dice:.2f}"
        dice = round(dice, 2)
        level = "sure" if dice >= SURE else "fairly sure" if dice >= FAIRLY_SURE else "unsure"
        found.append((level, words))
    if not found:
        return ""
    start = "Expected Dice with the truth" if data.agreement else "Expected Dice"
    if data.intervals != "learned":
        assumed = "" if data.agreement else " if the probabilities are right"
        return f"{start}{assumed}: {', '.join(words for _, words in found)}."
    text, before = "", ""
    for level, words in found:
        text += f"{', ' if text else ''}{'' if level == before else f'{level} of '}{words}"
        before = level
    return f"{start}: {text}."


def _doubt(data: ReportData, locations: Sequence[UncertainLocation]) -> str:
    if not ((data.uncertainty == UNCERTAIN) & data.mask).any():
        if locations:
            return "No voxel is surely uncertain, but there are too few samples to be sure."
        return "No voxel is uncertain."
    if not locations:
        return ""
    main = locations[0]
    labels = f"{main.labels[0]} or {main.labels[1]}"
    if main.kind == "border":
        return (
            "No place stands out. The doubt is along borders, most at the "
            f"{main.where.removesuffix(', all around')} ({labels}): about "
            f"{about_ml(main.wrong_ml)} ml within {main.reach_mm:.0f} mm of it are expected to be "
            "wrong."
        )
    plain = sum(each.wrong_ml for each in locations if each.kind == "border")
    borders = f" Plain borders hold about {about_ml(plain)} ml of expected error." if plain else ""
    return (
        f"Check first: {main.where} ({labels}), {about_ml(main.volume_ml)} ml, about "
        f"{about_ml(main.wrong_ml)} ml of it expected to be wrong. "
        f"{capitalise(change_in_words(main))}.{borders}"
    )


def change_in_words(location: UncertainLocation) -> str:
    """Return what a location may change, such as "oedema could grow by 12 %"."""
    if math.isinf(location.change_share):
        return f"{location.changed} could appear"
    verb = "grow" if location.change_ml > 0 else "shrink"
    share = 100 * location.change_share
    words = f"{share:.0f} %" if share >= 1 else "less than 1 %"
    return f"{location.changed} could {verb} by {words}"


def methods(data: ReportData) -> str:
    """Return how it was done, as a paper's methods section would say it."""
    provenance = data.provenance
    version = f", version {provenance.version}" if provenance.version else ""
    kernels = f" with {provenance.kernels}" if provenance.kernels else ""
    text = (
        "The uncertainty of the segmentation was estimated with Perturb-and-MPM (Meier et al. "
        f"2017) as implemented in perturb-mpm{version}. {data.samples} segmentations were sampled "
        f"from a dense conditional random field{kernels}, perturbed by {data.perturbation}."
    )
    if provenance.convergence:
        text += f" {provenance.convergence}"
    if provenance.maps:
        text += f" Labels and entropy are those of {provenance.maps}."
    if data.intervals == "assumed":
        text += (
            " Volume intervals are the central 95 % of the sampled volumes; the "
            "correlation length of the noise was assumed, not learned."
        )
    elif data.intervals == "learned":
        text += (
            " Volume intervals are 95 % of the sampled volumes, moved and widened by what was "
            f"learned from {data.learned_cases} labelled cases."
        )
    return text
