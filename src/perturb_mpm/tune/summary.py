"""Tuning in words and tables: what was learned, what it is worth, what to make of it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from perturb_mpm.files import write_table
from perturb_mpm.run import RunSettings
from perturb_mpm.tune.calibration import SHARES, LearnedTemperature
from perturb_mpm.tune.coupling import Candidate
from perturb_mpm.tune.problem import (
    ALONE,
    FIXED,
    LEARNED,
    METHODS,
    RESIDUAL,
    CaseScores,
    PredictedMeasure,
    nan_mean,
)
from perturb_mpm.tune.study import Study

# How much of the way from the grid's temperature to that of the labels is gone, in words.
_WAYS = dict(zip(SHARES, ("the grid's", "one half-way between", "that of the labels"), strict=True))
MAP_COLUMNS = {
    "calibration_error": "calibration error",
    "log_score_nats": "log score, nats",
    "roc_area": "ROC area of errors",
}


@dataclass(frozen=True, eq=False)
class Tuned:
    """Settings learned on all cases, and every score of the cases left out."""

    settings: RunSettings
    scores: tuple[CaseScores, ...]
    regions: tuple[str, ...]
    """What the scores are printed for: the regions, or all labels where none were given."""
    folds: tuple[tuple[str, ...], ...]
    verdict: str = ""
    reasons: tuple[str, ...] = ()
    """Why each thing was chosen, a sentence each."""
    without: Mapping[str, RunSettings] = field(default_factory=dict)
    """What was learned without each case, by its name: these settings made its scores."""


def means(scores: Sequence[CaseScores], regions: Sequence[str]) -> dict[str, dict[str, float]]:
    """Return the means over cases of each method; what it does not say is left out."""
    rows: dict[str, dict[str, float]] = {}
    for method in dict.fromkeys(each.method for each in scores):
        mine = [each for each in scores if each.method == method]
        maps = [each.maps for each in mine if each.maps is not None]
        row: dict[str, float] = {}
        if maps:
            row |= {f"dice {name}": nan_mean([m.dice[name] for m in maps]) for name in regions}
            row |= {key: nan_mean([getattr(m, key) for m in maps]) for key in MAP_COLUMNS}
        for prefix in ("", "dice_"):
            found = [each.dice if prefix else each.volumes for each in mine]
            predicted = [each for each in found if each is not None]
            for name in regions if predicted else ():
                row |= _interval_means([each[name] for each in predicted], prefix, name)
        for key in dict.fromkeys(key for each in mine for key in each.measures):
            these = [each.measures[key] for each in mine if key in each.measures]
            row |= _interval_means(these, "measure_", key)
        rows[method] = row
    return rows


def _interval_means(found: Sequence[PredictedMeasure], prefix: str, name: str) -> dict[str, float]:
    return {
        f"{prefix}inside {name}": nan_mean([float(each.inside) for each in found]),
        f"{prefix}width {name}": nan_mean([each.width for each in found]),
        f"{prefix}crps {name}": nan_mean([each.crps for each in found]),
    }


def verdict(tuned: Tuned) -> str:
    """Return in plain words what was learned, from what, and whether it beats doing nothing."""
    rows = means(tuned.scores, tuned.regions)
    settings, cases = tuned.settings, sum(map(len, tuned.folds))
    alone, learned = rows[ALONE], rows[LEARNED]
    words = (
        f"Learned from {cases} labelled cases: {describe_settings(settings)}. On cases left out, "
        f"the log score near foreground is {learned['log_score_nats']:.4f} nats (probabilities "
        f"alone {alone['log_score_nats']:.4f}), the calibration error "
        f"{learned['calibration_error']:.4f} ({alone['calibration_error']:.4f})."
    )
    for what, prefix in (("volume", ""), ("Dice", "dice_")):
        shares = ", ".join(
            f"{name} {100 * learned[f'{prefix}inside {name}']:.0f} %" for name in tuned.regions
        )
        words += f" 95 % intervals contained the true {what} in cases left out: {shares}."
    plain = [min(rows[m][f"crps {n}"] for m in (FIXED, RESIDUAL)) for n in tuned.regions]
    worse = [
        name
        for name, best in zip(tuned.regions, plain, strict=True)
        if learned[f"crps {name}"] > best
    ]
    if worse:
        words += (
            f" For {', '.join(worse)}, the errors of other cases predict volumes at least as "
            "well: there the spread of samples says little about the single case."
        )
    return words


def describe_settings(settings: RunSettings) -> str:
    """Return the temperatures, the kernels and what the intervals are in a line."""
    mapped, sampled = settings.unary.temperature, settings.unary.sampling_temperature
    parts = [
        "maps at the grid's temperature" if mapped is None else f"maps at temperature {mapped:g}",
        f"samples at {sampled:g}" if sampled is not None else "samples at the same",
        f"kernels × {settings.coupling.strength:g}" if settings.has_kernels else "no kernels",
    ]
    length = settings.sampling.noise_length
    radius = "the radius of the structure"
    parts.append(f"noise correlated over {radius if length is None else f'{length} mm'}")
    names = {key.rpartition(".")[2]: None for key in settings.measure_laws}
    measures = ", ".join(["volumes", *names]) + " and Dice"
    parts.append(f"{measures} moved and widened region by region")
    return "; ".join(parts)


def explain(
    study: Study,
    candidates: Sequence[Candidate],
    chosen: Candidate,
    learned: LearnedTemperature,
    ahead: str | None,
) -> tuple[str, ...]:
    """Return why samples and temperature were chosen, a sentence each; scores are of all cases."""
    cases = study.folds.everyone
    skills = [each.skill for each in study.evidence]
    words = []
    if skills:
        share = 100 * max(sum(skills) / len(skills), 0.0)
        rest = "" if any(each.has_kernels for each in candidates) else ", too little for kernels"
        words.append(
            f"Voxels that look alike predict {share:.0f} % of what the probabilities say{rest}."
        )
    scores = "; ".join(
        f"{each.name} {log_score:.4f} and {crps:.4f}"
        for each in candidates
        for log_score, crps in [each.losses(study, cases)]
    )
    words.append(
        f"Samples: {chosen.name}. Log score of maps (nats) and CRPS of volumes on cases left out: "
        f"{scores}. The first is what run does by itself; another must be better by 2 % of both "
        "together, and kernels may not cost the mean Dice 0.002."
    )
    costs = "; ".join(
        f"{name} {chosen.maps.left_out_score(cases, study.folds, [share]):.4f}"
        for share, name in _WAYS.items()
    )
    words.append(
        f"Temperature of the maps: labels prefer {learned.by_labels:.3g}; maps take "
        f"{_WAYS[learned.share]}. Log score on cases left out: {costs} nats."
    )
    if ahead is not None:
        words.append(
            f"The simpler row '{ahead}' scored better on cases left out than what was learned "
            "from all choices together, so its temperature is written, and no kernels."
        )
    return tuple(words)


Table = tuple[list[str], list[list[str]]]
"""A header and rows of cells."""


def maps_table(tuned: Tuned) -> Table:
    """Return labels and maps of cases left out: a row for each method that has them.

    A region's Dice is the mean over cases whose truth has it; its heading says where some lack it.
    """
    rows = means(tuned.scores, tuned.regions)
    maps = [each.maps for each in tuned.scores if each.method == ALONE and each.maps is not None]
    header = [""]
    for name in tuned.regions:
        have = sum(not math.isnan(each.dice[name]) for each in maps)
        header.append(
            f"Dice {name}" + (f", {have} of {len(maps)} cases" if have < len(maps) else "")
        )
    header += MAP_COLUMNS.values()
    keys = [*(f"dice {name}" for name in tuned.regions), *MAP_COLUMNS]
    cells = [
        [method, *(_format(rows[method][key], ".4f") for key in keys)]
        for method in METHODS
        if "log_score_nats" in rows.get(method, {})
    ]
    return header, cells


def intervals_table(tuned: Tuned, of: Literal["volumes", "dice", "measures"] = "volumes") -> Table:
    """Return one kind of intervals of cases left out: a row for each region and method."""
    rows = means(tuned.scores, tuned.regions)
    scale, prefix = {
        "volumes": ("log", ""),
        "dice": ("log-odds", "dice_"),
        "measures": ("scale", "measure_"),
    }[of]
    names = list(tuned.regions)
    if of == "measures":
        names = list(dict.fromkeys(key for each in tuned.scores for key in each.measures))
    header = ["", "", "inside, %", f"width, {scale}", f"CRPS, {scale}"]
    cells = []
    for region in names:
        name = region
        for method in METHODS:
            row = rows.get(method, {})
            if f"{prefix}crps {region}" in row:
                share = _format(100 * row[f"{prefix}inside {region}"], ".0f")
                width, crps = (row[f"{prefix}{key} {region}"] for key in ("width", "crps"))
                cells.append([name, method, share, _format(width, ".2f"), _format(crps, ".4f")])
                name = ""
    return header, cells


def _format(value: float, how: str) -> str:
    return "–" if math.isnan(value) else format(value, how)


def write_scores(path: Path, tuned: Tuned) -> None:
    """Write every score of every case left out as CSV, one row a case, method and region."""
    ends = ("true", "lower", "upper")
    columns = ["case", "method", "region", "dice", *MAP_COLUMNS]
    columns += [f"volume_{end}_ml" for end in ends] + ["volume_inside", "volume_crps_log"]
    columns += [f"dice_{end}" for end in ends] + ["dice_inside", "dice_crps_logodds"]
    rows = []
    for each in tuned.scores:
        for name in tuned.regions:
            row: list[object] = [each.case, each.method, name]
            row += ["" if each.maps is None else _cell(each.maps.dice[name])]
            row += [
                "" if each.maps is None else _cell(getattr(each.maps, key)) for key in MAP_COLUMNS
            ]
            row += _interval_cells(each.volumes, name) + _interval_cells(each.dice, name)
            rows.append(row)
        for key in each.measures:
            blank: list[object] = [""] * (len(columns) - 3)
            cells = [each.case, each.method, key, *blank]
            rows.append([*cells, *_interval_cells(each.measures, key)])
    if any(each.measures for each in tuned.scores):
        columns += [f"measure_{end}" for end in ends] + ["measure_inside", "measure_crps"]
        rows = [row + [""] * (len(columns) - len(row)) for row in rows]
    write_table(path, columns, rows)


def _interval_cells(
    predictions: Mapping[str, PredictedMeasure] | None, region: str
) -> list[object]:
    if predictions is None:
        return [""] * 5
    found = predictions[region]
    numbers = (found.truth, found.lower, found.upper)
    return [*map(_cell, numbers), int(found.inside), _cell(found.crps)]


def _cell(value: float) -> str:
    return "" if math.isnan(value) else f"{value:.6g}"
