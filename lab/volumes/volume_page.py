"""The page that says what the volumes' table shows, written from its numbers."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from lab.volumes.measuring import ASSUMED, KERNELS, LENGTHS
from lab.volumes.patients import INDIFFERENCE, KINDS, REGIONS
from lab.words import join_words, markdown_table

if TYPE_CHECKING:
    from lab.volumes.measuring import MeasuredVolume


Rows = Sequence["MeasuredVolume"]

_HEAD = """\
# How far sampled volumes spread

The patients are real, their probabilities are made up. Written by `python -m lab volumes{quick}`;
every patient's numbers are in `volumes.csv` beside it.

The length of the noise decides how far sampled volumes spread. White noise, the paper's, has
length 0: every voxel errs by itself, errors cancel, and all samples have nearly the same volume.
Noise that is correlated over millimetres lets whole parts of a border err together. This page
shows what each length does where the probabilities are wrong in a known way.

{patients} glioma patients of BraTS 2021 at 2 mm (T1, T1ce, T2, FLAIR; the brain is where any of
them is not zero). The probabilities are the expert's label map made worse:

- **blurred**: every label's indicator blurred by a Gaussian of 2 mm, then
  p = {sure:g} · blurred + {unsure:g} / 4;
- **shifted**: the same after moving the map by 4 mm along the first axis;
- **eroded**: the same after taking 2 mm off whole tumour, core and enhancing part, each by itself.

The CRF is that of `run`: a spatial kernel of 3 mm, a bilateral kernel of 20 mm and 0.5 standard
deviations of each sequence, strength {strength:g}, centring {centring:g}. {samples} samples of
{iterations} iterations, seed {seed}. Length ∞ is one draw for the whole image. *Assumed* is the
length that `run` takes where nobody says one: the radius of a ball of the expected foreground, here
{shortest:.0f} to {longest:.0f} mm.

The noise keeps the probability of every voxel, so what p leaves to the tumour far from any tumour
is in every sample. That is why p has no more than {unsure:.1%} of indifference: with 2 %, in a
first trial on two patients, about 20 ml of the healthy brain became tumour.

## All probabilities together

{table}

The three numbers are whole tumour · core · enhancing; a patient without a region does not count for
it. CV: standard deviation over mean of the sampled volumes. Width: of the central 95 % interval of
the sampled volumes, over the true volume. Error: of the mean sampled volume, without its sign, over
the true volume. Each is the median over patients and kinds of probabilities. Inside: how often the
true volume lies in the interval; one drawn like the {samples} samples themselves would in
{ideal:.0%} of cases. CRPS: of log(V + 0.1 ml), the mean, lower is better.

{findings}

No length suits every error. Blurring and shifting hardly change the volume of a large tumour, and
erosion moves its whole border at once. What length suits one's own cases is learned from some of
them by `perturb-mpm tune`.

## Each kind of probabilities

{by_kind}

## Additive random fields, which are gone

The first edition spread volumes otherwise: it added smooth random fields to white noise, with a
length, an amplitude shared by the foreground and one for each label. Fields need more parameters
and change the probability of every voxel. They were measured beside correlated noise before
they were removed, without kernels and at temperature 1, by the CRPS of volumes. On 20 hippocampi
(anterior, posterior, both) the noise scored 0.080, 0.060 and 0.042, the best fields 0.079, 0.060
and 0.041. On 11 gliomas (whole tumour, core, enhancing) the noise scored 0.185, 0.506 and 0.271,
the best fields 0.222, 0.551 and 0.438, or 0.229, 0.513 and 0.390. Fields won nowhere that matters,
so one mechanism is left. No command measures this any more.
"""


def page(rows: Rows, *, iterations: int, seed: int, quick: bool = False) -> str:
    """Return the page as Markdown."""
    samples = rows[0].samples
    assumed = [row.noise_length_mm for row in _of(rows, ASSUMED)]
    settings = KERNELS
    return _HEAD.format(
        quick=" --quick" if quick else "",
        patients=len({row.patient for row in rows}),
        strength=settings.coupling.strength,
        centring=settings.coupling.centring,
        samples=samples,
        iterations=iterations,
        seed=seed,
        shortest=min(assumed),
        longest=max(assumed),
        sure=1.0 - INDIFFERENCE,
        unsure=INDIFFERENCE,
        ideal=interval_coverage(samples),
        table=_table([("", rows)]),
        findings=findings(rows),
        by_kind=_table([(kind, [r for r in rows if r.unaries == kind]) for kind in KINDS]),
    )


def findings(rows: Rows) -> str:
    """Return what each length does to whole tumours, and which scores best in each region."""
    lines = ["For the whole tumour:", ""]
    for noise in LENGTHS:
        chosen = [row for row in _of(rows, noise) if row.region == "whole tumour"]
        cv = _median(row.coefficient_of_variation for row in chosen)
        inside, of = _inside(chosen)
        lines.append(
            f"- {_words(noise)} the sampled volumes vary by {cv:.1%}, their mean is off by "
            f"{_error(chosen):.1%},\n  and the interval holds the truth in {inside} of {of} cases."
        )
    best = [f"{_best(_only(rows, region))} for {region}" for region in REGIONS]
    whole = _only(rows, "whole tumour")
    kinds = [f"{_best([r for r in whole if r.unaries == kind])} where {kind}" for kind in KINDS]
    return "\n".join(
        [
            *lines,
            "",
            f"The CRPS is lowest with a length of {join_words(best)};",
            f"of the whole tumour alone, with {join_words(kinds)}.",
        ]
    )


def interval_coverage(samples: int, level: float = 0.95) -> float:
    """Return how often the interval of S samples holds one more draw of the same law.

    The ends are NumPy's quantiles, at index q (S − 1) of the sorted samples counted from 0; the
    share below the k-th smallest of S is k / (S + 1) on average.
    """
    index = (1.0 - level) / 2.0 * (samples - 1) + 1.0
    return 1.0 - 2.0 * index / (samples + 1)


def _best(rows: Rows) -> str:
    """Return the length with the lowest CRPS."""
    return _length(min(LENGTHS, key=lambda noise: _crps(_of(rows, noise))))


def _table(groups: Sequence[tuple[str, Rows]]) -> str:
    """Return a Markdown table, a line for each group and length; values WT · TC · ET."""
    named = any(name for name, _ in groups)
    header = ["length", "CV", "width", "error", "inside", "CRPS"]
    lines = [
        [*([name] if named else []), _length(noise), *_cells(_of(rows, noise))]
        for name, rows in groups
        for noise in LENGTHS
    ]
    return markdown_table([*(["probabilities"] if named else []), *header], lines)


def _cells(rows: Rows) -> list[str]:
    regions = [_only(rows, region) for region in REGIONS]
    cells = [
        [f"{_median(r.coefficient_of_variation for r in each):.3f}" for each in regions],
        [f"{_median(r.width_over_truth for r in each):.2f}" for each in regions],
        [f"{_error(each):.2f}" for each in regions],
        ["{}/{}".format(*_inside(each)) for each in regions],
        [f"{_crps(each):.3f}" for each in regions],
    ]
    return [" · ".join(values) for values in cells]


def _length(noise: str) -> str:
    length = LENGTHS[noise]
    if length is None:
        return noise
    return "∞" if math.isinf(length) else f"{length:g} mm"


def _words(noise: str) -> str:
    length = LENGTHS[noise]
    if length is None:
        return "at the assumed length"
    if length == 0:
        return "under the paper's noise"
    return "with one draw for the whole image" if math.isinf(length) else f"at {length:g} mm"


def _of(rows: Rows, noise: str) -> list[MeasuredVolume]:
    return [row for row in rows if row.noise == noise]


def _only(rows: Rows, region: str) -> list[MeasuredVolume]:
    return [row for row in rows if row.region == region]


def _median(values: Iterable[float]) -> float:
    known = [value for value in values if not math.isnan(value)]
    return float(np.median(known)) if known else math.nan


def _error(rows: Rows) -> float:
    return _median(abs(row.error_over_truth) for row in rows)


def _crps(rows: Rows) -> float:
    return float(np.mean([row.crps_log for row in rows])) if rows else math.nan


def _inside(rows: Rows) -> tuple[int, int]:
    return sum(row.truth_inside for row in rows), len(rows)
