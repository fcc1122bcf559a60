"""The quality of uncertainty as a page of tables, and a figure of operating curves."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from lab.clinical.quality import DOMAINS, ESTIMATORS, PAPER, SPECIFICITIES, Comparison, Quality
from lab.figures import new_figure
from perturb_mpm.evaluation import MetricSummary, summarise

if TYPE_CHECKING:
    from matplotlib.figure import Figure


WORDS = {
    "votes": "votes",
    "conditional": "conditional",
    "mean_field": "plain mean field",
    "union": "predicted or true region",
    "dilated": "within 10 mm of it",
    "brain": "brain",
    "auroc": "area under ROC",
    "auprc": "average precision",
    "ece_region": "calibration error",
}

Key = tuple[str, str, str, str]


def page(
    quality: Quality, comparisons: Sequence[Comparison], regions: Iterable[str], about: str
) -> str:
    """Return the page in Markdown."""
    names = list(regions)
    summaries = {(s.method, s.region, s.domain, s.metric): s for s in summarise(quality.rows)}
    return "\n".join(
        [
            "# Does the uncertainty find the errors?",
            "",
            about,
            "",
            (
                "The paper's patients are not public and these are others: its numbers stand "
                "beside ours to be looked at, not to be matched."
            ),
            "",
            "## Entropy of the region against the rest above a threshold, by votes",
            "",
            *_thresholds(summaries, names),
            "",
            (
                "The paper does not say over which voxels. Over the whole brain nearly every "
                "correct voxel is far from any tumour, and specificity is high whatever the "
                "map is worth."
            ),
            "",
            "## Sensitivity at the paper's specificity",
            "",
            *_at_the_papers_specificity(quality, names),
            "",
            "## Three estimators of the marginals of one segmentation",
            "",
            *_estimators(summaries, names),
            "",
            (
                "Mean ± standard deviation over patients, over voxels within 10 mm of the "
                "predicted or true region. A useless uncertainty has an area under ROC of 0.5 "
                "and an average precision of the share of errors."
            ),
            "",
            "## Which estimator is better?",
            "",
            *_comparisons(comparisons),
            "",
            *_verdicts(comparisons),
            "",
        ]
    )


def operating_curves(quality: Quality, regions: Sequence[str]) -> Figure:
    """Draw sensitivity against specificity, with the paper's points."""
    figure = new_figure(4.2 * len(regions), 4.0)
    styles = {"votes": "-", "conditional": "--", "mean_field": ":"}
    for axes, region in zip(np.atleast_1d(figure.subplots(1, len(regions))), regions):
        for estimator in ESTIMATORS:
            mean = _mean_curve(quality, estimator, region)
            if mean is not None:
                axes.plot(
                    SPECIFICITIES,
                    mean,
                    "k" + styles[estimator],
                    label=WORDS[estimator],
                )
        for published in PAPER:
            if published.region == region:
                axes.errorbar(
                    published.specificity[0],
                    published.sensitivity[0],
                    published.sensitivity[1],
                    published.specificity[1],
                    fmt="s" if published.threshold_bits == 0 else "D",
                    color="#888888",
                    mfc="white",
                    label=f"paper, above {published.threshold_bits:g} bits",
                )
        axes.plot([0, 1], [1, 0], color="#cccccc", linewidth=1)
        axes.set(
            title=region,
            xlabel="specificity",
            ylabel="sensitivity",
            xlim=(0, 1.02),
            ylim=(0, 1.02),
        )
        axes.legend(fontsize=8, loc="lower left")
    return figure


def _mean_curve(
    quality: Quality, estimator: str, region: str, domain: str = DOMAINS[0]
) -> np.ndarray | None:
    curves = quality.curves.get((estimator, region, domain))
    if curves is None:
        return None
    defined = curves[~np.isnan(curves).any(axis=1)]
    return defined.mean(axis=0) if len(defined) else None


def _thresholds(summaries: dict[Key, MetricSummary], regions: Sequence[str]) -> list[str]:
    lines = [
        (
            "| region | threshold, bits | voxels | sensitivity | specificity | "
            "paper's sensitivity | paper's specificity |"
        ),
        "|---|---|---|---|---|---|---|",
    ]
    for region in regions:
        for threshold in (0.0, 0.1):
            paper = next(
                (p for p in PAPER if (p.region, p.threshold_bits) == (region, threshold)), None
            )
            for domain in DOMAINS:
                values = [
                    _plus_minus(
                        summaries["votes", region, domain, f"{what}_above_{threshold:g}_bits"]
                    )
                    for what in ("sensitivity", "specificity")
                ]
                theirs = ["–", "–"]
                if paper is not None and domain == DOMAINS[0]:
                    theirs = [
                        f"{m:.2f} ± {sd:.2f}" for m, sd in (paper.sensitivity, paper.specificity)
                    ]
                lines.append(
                    f"| {region} | {threshold:g} | {WORDS[domain]} | {values[0]} | {values[1]} | "
                    f"{theirs[0]} | {theirs[1]} |"
                )
    return lines


def _at_the_papers_specificity(quality: Quality, regions: Sequence[str]) -> list[str]:
    heads = " | ".join(WORDS[e] for e in ESTIMATORS)
    lines = [
        f"| region | specificity | paper's sensitivity | voxels | {heads} |",
        "|---|---|---|---|" + "---|" * len(ESTIMATORS),
    ]
    for published in PAPER:
        if published.region not in regions:
            continue
        target = published.specificity[0]
        for domain in DOMAINS:
            means = [_mean_curve(quality, e, published.region, domain) for e in ESTIMATORS]
            cells = [
                "–" if mean is None else f"{float(np.interp(target, SPECIFICITIES, mean)):.2f}"
                for mean in means
            ]
            lines.append(
                f"| {published.region} | {target:.2f} | {published.sensitivity[0]:.2f} | "
                f"{WORDS[domain]} | {' | '.join(cells)} |"
            )
    return [*lines, "", "Means over patients; curves.png has the predicted or true region."]


def _estimators(summaries: dict[Key, MetricSummary], regions: Sequence[str]) -> list[str]:
    metrics = ("auroc", "auprc", "error_prevalence", "ece_region")
    heads = ("area under ROC", "average precision", "share of errors", "calibration error")
    lines = [
        "| region | estimator | " + " | ".join(heads) + " |",
        "|---|---|" + "---|" * len(heads),
    ]
    for region in regions:
        for estimator in ESTIMATORS:
            cells = [
                _plus_minus(summaries[estimator, region, "dilated", metric]) for metric in metrics
            ]
            lines.append(f"| {region} | {WORDS[estimator]} | " + " | ".join(cells) + " |")
    return lines


def _comparisons(comparisons: Sequence[Comparison]) -> list[str]:
    lines = [
        (
            "| region | measure | estimators | typical difference | patients that differ | p | "
            f"p, Holm over {len(comparisons)} |"
        ),
        "|---|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {c.region} | {WORDS[c.metric]} | {WORDS[c.first]} − {WORDS[c.second]} | {c.shift:+.4f} "
        f"| {c.pairs} | {c.pvalue:.2g} | {c.adjusted:.2g} |"
        for c in comparisons
    ]
    return [
        *lines,
        "",
        (
            "Exact Wilcoxon signed-rank tests, paired by patient, with the Hodges–Lehmann "
            "estimate of the difference."
        ),
    ]


def _verdicts(comparisons: Sequence[Comparison]) -> list[str]:
    """Say in words which differences stand, better named first."""
    lines = []
    for each in comparisons:
        if each.adjusted > 0.05 or math.isnan(each.shift) or each.shift == 0:
            continue
        lower_is_better = each.metric == "ece_region"
        first_wins = (each.shift < 0) == lower_is_better
        better, worse = (each.first, each.second) if first_wins else (each.second, each.first)
        lines.append(
            f"- {each.region}, {WORDS[each.metric]}: {WORDS[better]} is better than {WORDS[worse]}."
        )
    return lines or ["- No difference stands after Holm's correction."]


def _plus_minus(summary: MetricSummary) -> str:
    if math.isnan(summary.mean):
        return "–"
    return f"{summary.mean:.2f} ± {summary.sd:.2f}"
