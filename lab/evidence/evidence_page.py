"""The pages of the evidence: every method beside ours, and verdicts that follow the numbers."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from lab.evidence.measuring import (
    BARE,
    DEFAULT,
    DISPLACED,
    DISPLACEMENTS,
    FORCED,
    FORCED_STRENGTH,
    GivenScore,
    MeasuredSet,
    RunEvidence,
)
from lab.words import markdown_table, paragraph
from perturb_mpm.tune import (
    ALONE,
    FIXED,
    GRID,
    LEARNED,
    NEAR_MM,
    RESIDUAL,
    SAMPLED,
    TEMPERED,
    means,
    nan_mean,
)

Rows = Mapping[str, Mapping[str, float]]
MAP_MEASURES = ("calibration_error", "log_score_nats", "roc_area")
BY_LABELS = (TEMPERED, LEARNED, FIXED, RESIDUAL)
OURS = (DEFAULT, BARE, FORCED, SAMPLED)

METHODS = f"""Means over cases, {{samples}} samples each. Maps are scored within {NEAR_MM:g} mm of
true or predicted foreground: the calibration error of the most probable label, the log score
(nats, lower is better) and the area under the ROC curve of entropy against errors; the Dice of a
region is the mean over cases that have it. Of volumes: how many truths lie inside the 95 %
interval, among cases that have the region; the width of the interval and the CRPS of log(V + 0.1
ml), lower is better, over all cases."""
ROWS = f"""Rows: *{TEMPERED}*, *{LEARNED}* (by `perturb-mpm tune`), *{FIXED}* (Student's law with
the mean and spread of the errors of other cases' label maps) and *{RESIDUAL}* (these errors
themselves) use the labels of cases outside the fold; all others use none. *{DEFAULT}*: the image
decides whether kernels act and how strongly, the grid decides the temperature of the maps, and the
check of volumes may weaken the kernels; where kernels act, maps are softened until they are no
surer than at the *{GRID}*, and settings that were learned leave them as they are; *{BARE}* leaves
them out and draws at the grid's temperature; *{FORCED}*, where it asks for none, has
{FORCED_STRENGTH:g} of their weight. Noise is correlated over the radius of a ball of the volume
that the probabilities expect, but for *white noise*, whose labels and maps are votes.
*{DISPLACED}*: {DISPLACEMENTS} times the probabilities moved by a smooth random field, one voxel's
size in standard deviation, correlated over the same length."""
CAUTION = """The rules by which image, grid and `tune` decide were made with these cases in view, so
that their figures are optimistic: cases kept aside decide."""
VERDICTS = """Each row of verdicts compares two methods region by region, to the digits shown.
Coverage is called right where that many of so many cases are in the central 95 % of what intervals
of exactly 95 % would give by chance."""
GIVEN = """Other classifiers of the same images, without a label: labels and maps as they were given
→ as `run` returns them. The atlas is the share of each label in all other cases, their crops
stretched to this one; the trees are `perturb-mpm train`'s, of one case in four, each answered by
trees that never saw it."""


def evidence_page(
    title: str,
    opening: str,
    sets: Sequence[MeasuredSet],
    given: Mapping[str, Sequence[GivenScore]],
) -> str:
    """Return the page in Markdown."""
    texts = (opening, METHODS.format(samples=sets[0].samples), ROWS, CAUTION)
    parts = [f"# {title}", *map(paragraph, texts)]
    for each in sets:
        rows = means(each.scores, each.regions)
        parts += [
            f"## {each.name}: {', '.join(each.regions)}",
            paragraph(describe_evidence(each.evidence)),
            _maps(rows, each.regions),
            _volumes(rows, each),
            paragraph(VERDICTS),
            markdown_table(["", "ours", "beside it", "verdict"], verdicts(each)),
            paragraph(
                f"{each.verdict} Five cases, ranks and every fold: [{each.page}]({each.page}.md)."
            ),
        ]
    if given:
        parts += ["## Other classifiers", paragraph(GIVEN), _given(given)]
    return "\n\n".join(parts) + "\n"


def describe_evidence(found: Sequence[RunEvidence]) -> str:
    """Return in words what image and grid said, what was made of it, and how Dice intervals did."""
    skills = [each.skill for each in found if each.skill is not None]
    used = [each.used_strength for each in found if each.used_strength > 0]
    weakened = sum(each.used_strength < each.asked_strength for each in found)
    words = (
        f"Voxels that look alike predict {100 * nan_mean(skills):.0f} % of what the probabilities "
        f"say ({100 * min(skills):.0f}–{100 * max(skills):.0f} %). Kernels act in {len(used)} of "
        f"{len(found)} cases"
        if skills
        else f"No image says anything about the probabilities; kernels act in none of {len(found)}"
    )
    if used:
        words += (
            f", at {min(used):.2f}–{max(used):.2f} of their weight; the check of volumes weakened "
            f"them in {weakened}"
        )
    warm = [each.temperature for each in found]
    words += f". The grid's temperature is {min(warm):.2f}–{max(warm):.2f}."
    names = dict.fromkeys(name for each in found for name in each.dice)
    counts = []
    for name in names:
        mine = [each.dice[name] for each in found if name in each.dice]
        inside = sum(low <= true <= high for low, high, true in mine)
        counts.append(f"{name} {inside}/{len(mine)}")
    if counts:
        words += (
            f" 95 % intervals of the Dice of the label map hold the true Dice: {', '.join(counts)}."
        )
    return words


def verdicts(found: MeasuredSet) -> list[list[str]]:
    """Return rows of a table: where ours is better, the same, or worse."""
    rows, regions = means(found.scores, found.regions), found.regions
    rivals = [m for m in rows if m not in (*BY_LABELS, *OURS) and f"crps {regions[0]}" in rows[m]]
    best = min(rivals, key=lambda m: sum(rows[m][f"crps {name}"] for name in regions))
    table = [_compare(rows, "Dice", DEFAULT, ALONE, [f"dice {name}" for name in regions], -1)]
    if any(each.used_strength > 0 for each in found.evidence):
        table.append(
            _compare(rows, "Dice", DEFAULT, BARE, [f"dice {name}" for name in regions], -1)
        )
    table += [
        _compare(rows, "log score", DEFAULT, ALONE, ["log_score_nats"]),
        _compare(rows, "log score", DEFAULT, GRID, ["log_score_nats"]),
        _compare(rows, "calibration error", DEFAULT, ALONE, ["calibration_error"]),
        _compare(rows, "ROC area", DEFAULT, ALONE, ["roc_area"], -1),
        _coverage(found, DEFAULT),
        _compare(rows, "CRPS of volumes", DEFAULT, best, [f"crps {name}" for name in regions]),
        _coverage(found, LEARNED),
        _compare(rows, "CRPS of volumes", LEARNED, FIXED, [f"crps {name}" for name in regions]),
        _compare(rows, "CRPS of volumes", LEARNED, RESIDUAL, [f"crps {name}" for name in regions]),
        _compare(rows, "log score", LEARNED, TEMPERED, ["log_score_nats"]),
    ]
    return table


def _compare(
    rows: Rows, what: str, ours: str, other: str, keys: Sequence[str], sign: int = 1
) -> list[str]:
    """Return a row of the verdicts; ``sign`` is −1 where more is better."""
    pairs = [(round(rows[ours][key], 4), round(rows[other][key], 4)) for key in keys]
    words = [
        "the same" if a == b else "better" if sign * a < sign * b else "worse" for a, b in pairs
    ]
    cells = [" / ".join(f"{pair[side]:.4f}" for pair in pairs) for side in (0, 1)]
    return [f"{what}: {ours} beside {other}", *cells, " / ".join(words)]


def _coverage(found: MeasuredSet, method: str) -> list[str]:
    from scipy.stats import binom

    counts = count_inside(found, method)
    words = []
    for inside, cases in counts:
        low, high = binom.ppf([0.025, 0.975], cases, 0.95)
        words.append(
            "right" if low <= inside <= high else "too few" if inside < low else "too many"
        )
    shown = " / ".join(f"{inside} of {cases}" for inside, cases in counts)
    return [f"volumes inside: {method}", shown, "95 %", " / ".join(words)]


def count_inside(found: MeasuredSet, method: str) -> list[tuple[int, int]]:
    """Return for each region how many truths lie inside, and of how many cases that have it."""
    mine = [each.volumes for each in found.scores if each.method == method and each.volumes]
    counts = []
    for name in found.regions:
        present = [each[name] for each in mine if each[name].truth > 0]
        counts.append((sum(each.inside for each in present), len(present)))
    return counts


def _order(rows: Rows) -> list[str]:
    """Return the methods: what is given, rivals, ours without a label, what labels teach."""
    first, last = (ALONE, GRID), (FORCED, BARE, DEFAULT, *BY_LABELS)
    rivals = [each for each in rows if each not in (*first, *last, SAMPLED)]
    return [each for each in (*first, *rivals, *last) if each in rows]


def _maps(rows: Rows, regions: Sequence[str]) -> str:
    header = ["labels and maps", "Dice", "calibration error", "log score", "ROC area"]
    cells = [
        [
            method,
            " / ".join(f"{rows[method][f'dice {name}']:.4f}" for name in regions),
            *("–" if math.isnan(v := rows[method][key]) else f"{v:.4f}" for key in MAP_MEASURES),
        ]
        for method in _order(rows)
        if "log_score_nats" in rows[method]
    ]
    return markdown_table(header, cells)


def _volumes(rows: Rows, found: MeasuredSet) -> str:
    header = ["volumes", "inside", "width, log", "CRPS, log"]
    cells = []
    for method in _order(rows):
        row = rows[method]
        if f"crps {found.regions[0]}" not in row:
            continue
        counts = count_inside(found, method)
        cells.append(
            [
                method,
                " · ".join(f"{inside}/{cases}" for inside, cases in counts),
                " / ".join(f"{row[f'width {name}']:.2f}" for name in found.regions),
                " / ".join(f"{row[f'crps {name}']:.4f}" for name in found.regions),
            ]
        )
    return markdown_table(header, cells)


def _given(given: Mapping[str, Sequence[GivenScore]]) -> str:
    cells = []
    for name, found in given.items():
        skills = [each.evidence.skill for each in found if each.evidence.skill is not None]
        acting = sum(each.evidence.used_strength > 0 for each in found)
        pairs = [(each.given, each.returned) for each in found]
        dice = []
        for region in found[0].given.dice:
            both = (nan_mean([pair[side].dice[region] for pair in pairs]) for side in (0, 1))
            dice.append(" → ".join(f"{each:.4f}" for each in both))
        logs = (nan_mean([pair[side].log_score_nats for pair in pairs]) for side in (0, 1))
        areas = (nan_mean([pair[side].roc_area for pair in pairs]) for side in (0, 1))
        cells.append(
            [
                f"{name}, {len(found)} cases",
                f"{nan_mean(skills):.2f} ({min(skills):.2f} to {max(skills):.2f})",
                str(acting),
                ", ".join(dice),
                *(" → ".join(f"{each:.4f}" for each in of) for of in (logs, areas)),
            ]
        )
    header = ["", "skill of the image", "kernels act in", "Dice", "log score", "ROC area"]
    return markdown_table(header, cells)
