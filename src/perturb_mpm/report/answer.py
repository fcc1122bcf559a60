"""What a reader wants to know first: what was found, how sure the model is, where the doubt is."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from perturb_mpm.posterior import UNCERTAIN
from perturb_mpm.report.data import ReportData, VolumeRow
from perturb_mpm.report.places import UncertainPlace
from perturb_mpm.report.words import about_ml, capitalised

SURE, FAIRLY_SURE = 0.9, 0.75
"""The expected Dice from which on the model is called sure, and fairly sure."""

_MOST_ROWS = 5
_COUNTED_BELOW = 10  # a volume of fewer voxels is said in voxels too
_NEARLY_NOTHING = 0.005  # of the upper end: a lower end below this is 0


@dataclass(frozen=True)
class PageAnswer:
    """The sentences at the top of a page; one may be empty."""

    found: str  # volumes, with intervals where there are any
    basis: str  # what the intervals rest on
    sure: str
    doubt: str

    def __str__(self) -> str:
        """Return all sentences as one text."""
        return " ".join(filter(None, (self.found, self.basis, self.sure, self.doubt)))


def answer(data: ReportData, places: Sequence[UncertainPlace]) -> PageAnswer:
    """Return the answer that the numbers give; ``places`` are ranked, the main doubt first."""
    rows = _rows(data)
    nothing = not (data.labels[data.mask] > 0).any()
    return PageAnswer(
        _nothing_found(rows, data) if nothing else _found(rows, data),
        _basis(data),
        "" if nothing else _sure(rows, data),
        _doubt(data, places),
    )


def _rows(data: ReportData) -> list[VolumeRow]:
    """Return the regions, or where there are none the labels, the largest first, and their sum."""
    regions = [row for row in data.volumes if row.kind == "region"]
    if regions:
        return regions
    labels = [row for row in data.volumes if row.kind == "label"]
    labels.sort(key=lambda row: -row.volume_ml)
    return labels[:_MOST_ROWS] + [row for row in data.volumes if row.kind == "together"]


def _name(row: VolumeRow) -> str:
    return "all labels" if row.kind == "together" else row.name


def _found(rows: Sequence[VolumeRow], data: ReportData) -> str:
    """Return "Whole 142 ml (126–230), core 54 ml (37–68), enhancing none (0–0.4)."."""
    return f"{capitalised(', '.join(_volume(row, data) for row in rows))}."


def _volume(row: VolumeRow, data: ReportData) -> str:
    words = f"{_name(row)} {about_ml(row.volume_ml)} ml" if row.volume_ml else f"{_name(row)} none"
    voxels = round(row.volume_ml * 1000.0 / math.prod(data.spacing))
    if 0 < voxels < _COUNTED_BELOW:
        words += f", {voxels} voxel{'s' if voxels > 1 else ''}"
    low, high = row.interval_ml
    if data.intervals == "none" or math.isnan(low) or row.volume_ml == high == 0:
        return words
    return f"{words} ({about_ml(0.0 if low < _NEARLY_NOTHING * high else low)}–{about_ml(high)})"


def _nothing_found(rows: Sequence[VolumeRow], data: ReportData) -> str:
    text = f"Nothing was found: {data.label_names[0]} is the most probable label everywhere."
    sampled = [row for row in rows if row.interval_ml[1] > 0]  # not where it is no number
    if data.intervals == "none" or not sampled:
        return text
    largest = max(sampled, key=lambda row: row.interval_ml[1])
    return f"{text} Up to {about_ml(largest.interval_ml[1])} ml of {_name(largest)} are possible."


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
    """Return "Sure of whole (expected Dice 0.92), unsure of core (0.58)."."""
    inside = data.labels[data.mask]  # (N,)
    words: list[tuple[str, str]] = []
    for row in rows:
        members = [data.label_values.index(value) for value in row.values]
        here = np.isin(inside, members)
        if here.any():
            share = data.marginals[members][:, data.mask].sum(axis=0, dtype=np.float64)  # (N,)
            dice = round(2.0 * float(share[here].sum()) / float(here.sum() + share.sum()), 2)
            level = "sure" if dice >= SURE else "fairly sure" if dice >= FAIRLY_SURE else "unsure"
            words.append((level, f"{_name(row)} ({'' if words else 'expected Dice '}{dice:.2f})"))
    text, before = "", ""
    for level, what in words:
        text += f"{', ' if text else ''}{'' if level == before else f'{level} of '}{what}"
        before = level
    return f"{capitalised(text)}."


def _doubt(data: ReportData, places: Sequence[UncertainPlace]) -> str:
    if not (data.uncertainty[data.mask] == UNCERTAIN).any():
        if places:
            return "No voxel is surely uncertain, but there are too few samples to be sure."
        return "No voxel is uncertain."
    if not places:
        return ""
    place = places[0]
    return (
        f"Main doubt: {place.where}, {place.labels[0]} or {place.labels[1]}, "
        f"{about_ml(place.volume_ml)} ml, about {about_ml(place.wrong_ml)} ml of it expected to be "
        "wrong."
    )
