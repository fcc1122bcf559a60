"""The page of what tuning is worth, written from its numbers."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from lab.evidence.learning import FewScore, RankScore
from lab.words import markdown_table, paragraph
from perturb_mpm.tune import FIXED, LEARNED, SAMPLED, Tuned, intervals_table, maps_table

OPENING = """{cases} real labelled cases, {samples} samples each, {folds} folds. Written by
`{command}`. Every number is of cases left out: nothing that was learned or chosen for a case saw
the truth of its fold. Rows are the methods that `perturb-mpm tune` prints; fixed width is
Student's law with the mean and spread of the other cases' errors, residuals are these errors
themselves, and samples alone are those of `run`, which use no label at all: for Dice, those at the
temperature of the grid. Regions: {regions}."""
COUNTS = """How many truths lie inside their 95 % interval, among the cases that have the region."""
FIVE = """What five cases drawn at random teach, {draws} times, on all other cases: means over
draws, and over the first ten of them. CRPS is of log(V + 0.1 ml), and of log-odds for Dice.
Temperatures of the maps: {temperatures}."""
RANKS = """Which cases are worse? Spearman's rank correlation with the true Dice (higher is better),
and the area under the risk-coverage curve (AURC, lower is better), of cases that have the region.
No label is used."""
CAUTION = """The priors of the law, the list of temperatures and the gain that another way to sample
must show were chosen on prototypes with these cases in view, so these figures are optimistic:
cases kept aside decide."""
_FIRST = 10


def tuning_page(
    title: str,
    command: str,
    samples: int,
    tuned: Tuned,
    few: Sequence[FewScore],
    ranks: Sequence[RankScore],
) -> str:
    """Return the page in Markdown."""
    regions = tuned.regions
    opening = OPENING.format(
        cases=sum(map(len, tuned.folds)),
        samples=samples,
        folds=len(tuned.folds),
        command=command,
        regions=", ".join(regions),
    )
    parts = [
        f"# {title}",
        paragraph(opening),
        paragraph(CAUTION),
        "## What was learned",
        paragraph(tuned.verdict),
        *(paragraph(each) for each in tuned.reasons),
        "## Labels and maps",
        markdown_table(*maps_table(tuned)),
        "## Volumes",
        markdown_table(*intervals_table(tuned)),
        "## Dice of the label map",
        markdown_table(*intervals_table(tuned, "dice")),
        "## Truths inside",
        paragraph(COUNTS),
        _counts(tuned),
        *(_five(few, regions) if few else []),
        "## Ranking cases",
        paragraph(RANKS),
        _ranks(ranks, regions),
    ]
    return "\n\n".join(parts) + "\n"


def count_inside(tuned: Tuned, method: str, *, of_dice: bool) -> dict[str, tuple[int, int]]:
    """Return how many truths are inside, and of how many cases that have the region."""
    found = {}
    for name in tuned.regions:
        mine = [
            (each.volumes[name], (each.dice or each.volumes)[name])
            for each in tuned.scores
            if each.method == method and each.volumes is not None
        ]
        chosen = [dice if of_dice else volume for volume, dice in mine if volume.truth > 0]
        found[name] = (sum(each.inside for each in chosen), len(chosen))
    return found


def _counts(tuned: Tuned) -> str:
    rows = []
    volumes = [(method, False) for method in (LEARNED, SAMPLED, FIXED)]
    for method, of_dice in (*volumes, (LEARNED, True), (SAMPLED, True)):
        counts = count_inside(tuned, method, of_dice=of_dice)
        cells = [f"{inside}/{cases}" for inside, cases in counts.values()]
        rows.append(["Dice" if of_dice else "volume", method, *cells])
    return markdown_table(["", "", *tuned.regions], rows)


def _five(few: Sequence[FewScore], regions: Sequence[str]) -> list[str]:
    learned = [each.temperature for each in few if each.temperature is not None]
    temperatures = [f"{min(learned):.3g} to {max(learned):.3g}"] if learned else []
    if len(learned) < len(few):
        temperatures.append(f"that of each grid in {len(few) - len(learned)} draws")
    rows = []
    for words, key in (
        ("volume, learned", "volumes"),
        ("volume, fixed width", "fixed_width"),
        ("Dice, learned", "dice"),
    ):
        cells = [words]
        for draws in (few, few[:_FIRST]):
            values: Sequence[Mapping[str, tuple[float, float]]]
            values = [getattr(each, key) for each in draws]
            shares, scores = (
                [float(np.mean([of[name][k] for of in values])) for name in regions] for k in (0, 1)
            )
            cells.append(" / ".join(f"{100 * each:.0f}" for each in shares))
            cells.append(" / ".join(f"{each:.4f}" for each in scores))
        rows.append(cells)
    header = [" / ".join(regions), "inside, %", "CRPS", "first ten: inside, %", "CRPS"]
    opening = FIVE.format(draws=len(few), temperatures="; ".join(temperatures))
    return ["## Five cases", paragraph(opening), markdown_table(header, rows)]


def _ranks(ranks: Sequence[RankScore], regions: Sequence[str]) -> str:
    rows = []
    for confidence in dict.fromkeys(each.confidence for each in ranks):
        mine = {each.region: each for each in ranks if each.confidence == confidence}
        correlations = [mine[name].rank_correlation for name in regions]
        rows.append(
            [
                confidence,
                " / ".join("–" if math.isnan(each) else f"{each:.2f}" for each in correlations),
                " / ".join(f"{mine[name].aurc:.4f}" for name in regions),
            ]
        )
    return markdown_table(["confidence", "rank correlation", "AURC"], rows)
