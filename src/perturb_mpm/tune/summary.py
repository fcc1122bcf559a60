"""Tuning in words and tables: what was learned, what it is worth, what to make of it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from perturb_mpm.files import write_table
from perturb_mpm.noise import simplest
from perturb_mpm.run import RunSettings
from perturb_mpm.tune.problem import ALONE, LEARNED, METHODS, RESIDUAL, CaseScores, nan_mean

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
    tried: Mapping[str, float] = field(default_factory=dict)
    """The mean log score of each candidate in cases left out, nats."""
    without: Mapping[str, RunSettings] = field(default_factory=dict)
    """What was learned without each case, by its name: these settings made its scores."""


def means(scores: Sequence[CaseScores], regions: Sequence[str]) -> dict[str, dict[str, float]]:
    """Return the means over cases of each method; what it does not say is left out."""
    rows: dict[str, dict[str, float]] = {}
    for method in dict.fromkeys(each.method for each in scores):
        mine = [each for each in scores if each.method == method]
        maps = [each.maps for each in mine if each.maps is not None]
        volumes = [each.volumes for each in mine if each.volumes is not None]
        row: dict[str, float] = {}
        if maps:
            row |= {f"dice {name}": nan_mean([m.dice[name] for m in maps]) for name in regions}
            row |= {key: nan_mean([getattr(m, key) for m in maps]) for key in MAP_COLUMNS}
        if volumes:
            for name in regions:
                predicted = [v[name] for v in volumes]
                row[f"inside {name}"] = nan_mean([float(v.inside) for v in predicted])
                row[f"width {name}"] = nan_mean([v.width for v in predicted])
                row[f"crps {name}"] = nan_mean([v.crps for v in predicted])
        rows[method] = row
    return rows


def verdict(tuned: Tuned) -> str:
    """Return in plain words what was learned, from what, and whether it beats doing nothing."""
    rows = means(tuned.scores, tuned.regions)
    settings, cases = tuned.settings, sum(map(len, tuned.folds))
    alone, learned = rows[ALONE], rows[LEARNED]
    words = f"Learned from {cases} labelled cases: {describe_settings(settings)}."
    unary, coupling = settings.unary, settings.coupling
    if unary.temperature == 1 and unary.bias is None and coupling.strength == 0:
        words += (
            " On cases left out, neither temperature, bias nor kernels improve on the "
            "probabilities alone, so labels and maps stay as they are."
        )
    else:
        words += (
            f" On cases left out, the log score near foreground is "
            f"{learned['log_score_nats']:.4f} nats (probabilities alone "
            f"{alone['log_score_nats']:.4f}), the calibration error "
            f"{learned['calibration_error']:.4f} ({alone['calibration_error']:.4f})."
        )
        if coupling.strength == 0:
            words += " Kernels did not improve these scores and are left out."
    shares = ", ".join(f"{name} {100 * learned[f'inside {name}']:.0f} %" for name in tuned.regions)
    words += f" 95 % intervals contained the true volume in cases left out: {shares}."
    worse = [n for n in tuned.regions if learned[f"crps {n}"] > rows[RESIDUAL][f"crps {n}"]]
    if worse:
        words += (
            f" For {', '.join(worse)}, the errors of other cases predict volumes at least as "
            "well: there the spread of samples says little about the single case."
        )
    return words


def describe_settings(settings: RunSettings) -> str:
    """Return temperature, bias, coupling and correlation length of the noise in a line."""
    parts = [f"temperature {settings.unary.temperature:g}"]
    if settings.unary.bias is not None and any(settings.unary.bias):
        parts.append(f"bias {', '.join(f'{each:g}' for each in settings.unary.bias)} nats")
    if settings.has_kernels:
        parts.append(
            f"kernels × {settings.coupling.strength:g}, centring {settings.coupling.centring:g}"
        )
    else:
        parts.append("no kernels")
    length = simplest(settings.sampling.lengths)
    parts.append(f"noise correlated over {length:g} mm")
    return "; ".join(parts)


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
        if "log_score_nats" in rows[method]
    ]
    return header, cells


def volumes_table(tuned: Tuned) -> Table:
    """Return volumes of cases left out: a row for each region and method that predicts them."""
    rows = means(tuned.scores, tuned.regions)
    header = ["", "", "inside, %", "width, log", "CRPS, log"]
    cells = []
    for region in tuned.regions:
        name = region
        for method in METHODS:
            row = rows[method]
            if f"crps {region}" in row:
                share = _format(100 * row[f"inside {region}"], ".0f")
                width, crps = _format(row[f"width {region}"], ".2f"), row[f"crps {region}"]
                cells.append([name, method, share, width, _format(crps, ".4f")])
                name = ""
    return header, cells


def _format(value: float, how: str) -> str:
    return "–" if math.isnan(value) else format(value, how)


def write_scores(path: Path, tuned: Tuned) -> None:
    """Write every score of every case left out as CSV, one row a case, method and region."""
    volumes = ("volume_true_ml", "interval_lower_ml", "interval_upper_ml", "inside", "crps_log")
    columns = ("case", "method", "region", "dice", *MAP_COLUMNS, *volumes)
    rows = []
    for each in tuned.scores:
        for name in tuned.regions:
            row: list[object] = [each.case, each.method, name]
            row += ["" if each.maps is None else _cell(each.maps.dice[name])]
            row += [
                "" if each.maps is None else _cell(getattr(each.maps, key)) for key in MAP_COLUMNS
            ]
            if each.volumes is None:
                row += [""] * len(volumes)
            else:
                found = each.volumes[name]
                ends = (found.true_ml, found.lower_ml, found.upper_ml)
                row += [*map(_cell, ends), int(found.inside), _cell(found.crps)]
            rows.append(row)
    write_table(path, columns, rows)


def _cell(value: float) -> str:
    return "" if math.isnan(value) else f"{value:.6g}"
