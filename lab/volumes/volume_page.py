"""The page that says what the volumes' table shows, written from its numbers."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from lab.volumes.measuring import PAPER, SETTINGS, TumourFields
from lab.volumes.patients import INDIFFERENCE, KINDS, REGIONS, SCHEME

if TYPE_CHECKING:
    from lab.volumes.measuring import MeasuredVolume


Rows = Sequence["MeasuredVolume"]

_HEAD = """\
# How far sampled volumes spread

Written by `python -m lab volumes{quick}`; every patient's numbers are in `volumes.csv`
beside it.

{patients} glioma patients of BraTS 2021 at 2 mm (T1, T1ce, T2, FLAIR; the brain is where any of
them is not zero). The unaries are the expert's label map made worse in a known way:

- **blurred**: every label's indicator blurred by a Gaussian of 2 mm, then
  p = {sure:g} · blurred + {unsure:g} / 4;
- **shifted**: the same after moving the map by 4 mm along the first axis;
- **eroded**: the same after taking 2 mm off whole tumour, core and enhancing part, each by itself.

CRF: spatial kernel of 3 mm and weight 1, bilateral kernel of 20 mm and 0.5 standard deviations of
each sequence and weight 3, engine `cpu`, accuracy `calibrated`. {samples} samples of {iterations}
iterations, seed {seed}. Fields: one of scale a and length ℓ shared by the three tumour labels, and
one of 0.7 a for each of them; a = 0 is the paper's perturbation. They are in nats: far from the
tumour the unaries prefer background to any tumour label by {preference:.1f}, and where the fields
exceed that whole parts of the brain become tumour. That is why p has no more than {unsure:.0%} of
indifference: with 15 %, in a first trial on two patients, tumours were 2 to 8 times too large on
average at a = 2.

## All unaries together

{table}

The three numbers are whole tumour · core · enhancing; a patient without a region does not count for
it. CV: standard deviation over mean of the sampled volumes. Width: of the central 95 % interval of
the sampled volumes, over the true volume. Error: of the mean sampled volume, without its sign, over
the true volume. Each is the median over patients and unaries. Inside: how often the true volume
lies in the interval; one drawn like the {samples} samples themselves would in {ideal:.0%} of cases.

{findings}

## Each kind of unaries

{by_kind}
"""


def page(rows: Rows, *, iterations: int, seed: int, quick: bool = False) -> str:
    """Return the page as Markdown."""
    samples = rows[0].samples
    return _HEAD.format(
        quick=" --quick" if quick else "",
        patients=len({row.patient for row in rows}),
        samples=samples,
        iterations=iterations,
        seed=seed,
        sure=1.0 - INDIFFERENCE,
        unsure=INDIFFERENCE,
        preference=math.log1p((1.0 - INDIFFERENCE) * len(SCHEME) / INDIFFERENCE),
        ideal=interval_coverage(samples),
        table=_table([("", rows)]),
        findings=findings(rows),
        by_kind=_table([(kind, [r for r in rows if r.unaries == kind]) for kind in KINDS]),
    )


def findings(rows: Rows) -> str:
    """Return a list of what the paper's perturbation and the fields do to whole tumours."""
    lines = ["For the whole tumour:", ""]
    for setting in SETTINGS:
        chosen = [row for row in _of(rows, setting) if row.region == "whole tumour"]
        made = f"with fields of a = {setting.scale:g} and {setting.length_mm:g} mm"
        if setting == PAPER:
            made = "without fields"
        cv = _median(row.coefficient_of_variation for row in chosen)
        inside, of = _inside(chosen)
        lines.append(
            f"- {made} the sampled volumes vary by {cv:.1%}, their mean is off by "
            f"{_error(chosen):.1%},\n  and the interval holds the truth in {inside} of {of} cases."
        )
    return "\n".join(lines)


def interval_coverage(samples: int, level: float = 0.95) -> float:
    """Return how often the interval of S samples holds one more draw of the same law.

    The ends are NumPy's quantiles, at place q (S − 1) of the sorted samples counted from 0; the
    share below the k-th smallest of S is k / (S + 1) on average.
    """
    place = (1.0 - level) / 2.0 * (samples - 1) + 1.0
    return 1.0 - 2.0 * place / (samples + 1)


def _table(groups: Sequence[tuple[str, Rows]]) -> str:
    """Return a Markdown table, a line for each group and setting; values WT / TC / ET."""
    named = any(name for name, _ in groups)
    first = "| unaries " if named else ""
    lines = [
        f"{first}| a | ℓ mm | CV | width | error | inside |",
        f"{'|---' if named else ''}|---|---|---|---|---|---|",
    ]
    for name, rows in groups:
        for setting in SETTINGS:
            start = f"| {name} " if named else ""
            lines.append(f"{start}{_line(_of(rows, setting), setting)}")
    return "\n".join(lines)


def _line(rows: Rows, setting: TumourFields) -> str:
    regions = [[row for row in rows if row.region == region] for region in REGIONS]
    cv = [f"{_median(r.coefficient_of_variation for r in each):.3f}" for each in regions]
    width = [f"{_median(r.width_over_truth for r in each):.2f}" for each in regions]
    error = [f"{_error(each):.2f}" for each in regions]
    inside = ["{}/{}".format(*_inside(each)) for each in regions]
    length = "–" if math.isnan(setting.length_mm) else f"{setting.length_mm:g}"
    cells = " | ".join(" · ".join(values) for values in (cv, width, error, inside))
    return f"| {setting.scale:g} | {length} | {cells} |"


def _of(rows: Rows, setting: TumourFields) -> list[MeasuredVolume]:
    return [
        row
        for row in rows
        if row.field_scale == setting.scale
        and (setting.scale == 0 or row.field_length_mm == setting.length_mm)
    ]


def _median(values: Iterable[float]) -> float:
    known = [value for value in values if not math.isnan(value)]
    return float(np.median(known)) if known else math.nan


def _error(rows: Rows) -> float:
    return _median(abs(row.error_over_truth) for row in rows)


def _inside(rows: Rows) -> tuple[int, int]:
    return sum(row.truth_inside for row in rows), len(rows)
