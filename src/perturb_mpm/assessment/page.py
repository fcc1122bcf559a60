"""The page of an evaluation: one HTML file that opens from disk and needs no network."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from perturb_mpm.assessment.figures import detection_plot, reliability_plot, side_by_side
from perturb_mpm.assessment.measure import Measured
from perturb_mpm.evaluation.rows import ALL, Summary, summarise
from perturb_mpm.io.atomic import atomic_open

MOST_SLICES = 6
# What a reader asks first, and over which voxels; everything else is in the table on disk.
SHOWN = {
    "dice": ("Dice", "brain"),
    "hausdorff95_mm": ("95 % Hausdorff distance, mm", "brain"),
    "volume_true_ml": ("true volume, ml", "brain"),
    "volume_ml": ("found volume, ml", "brain"),
    "volume_covered": ("truth within the 95 % sample interval", "brain"),
    "volume_crps_ml": ("volume score (CRPS), ml", "brain"),
    "sensitivity_above_0_bits": ("sensitivity, entropy above 0", "dilated"),
    "specificity_above_0_bits": ("specificity, entropy above 0", "dilated"),
    "auroc": ("area under ROC", "dilated"),
    "auprc": ("average precision", "dilated"),
    "error_prevalence": ("share of errors", "dilated"),
    "error_overlap_best": ("uncertainty–error overlap", "dilated"),
    "qu_brats_score": ("QU-BraTS score", "brain"),
    "ece_top_label": ("calibration error, top label", "dilated"),
    "ece_region": ("calibration error", "dilated"),
    "negative_log_likelihood_nats": ("log score, nats", "dilated"),
    "generalized_energy_distance_iou": ("energy distance to raters", "image"),
    "matched_iou": ("matched IoU with raters", "image"),
    "rater_correlation": ("correlation with the raters' spread", "image"),
}


@dataclass(frozen=True)
class Table:
    """The measures of one region."""

    region: str
    against: list[str]
    rows: list[tuple[str, list[Summary | None]]]


def write_evaluation(path: Path, title: str, measured: Sequence[Measured]) -> None:
    """Write the page of one case or a cohort; the same measurements give the same bytes."""
    with atomic_open(path) as file:
        file.write(render_evaluation(title, measured).encode())


def render_evaluation(title: str, measured: Sequence[Measured]) -> str:
    """Return the page as HTML."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("perturb_mpm.assessment"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["number"] = number
    summaries = summarise(row for each in measured for row in each.rows)
    style = (
        resources.files("perturb_mpm.report").joinpath("templates/report.css").read_text("utf-8")
    )
    return environment.get_template("evaluation.html").render(
        title=title,
        style=style,
        cases=len({each.case for each in measured}),
        tables=_tables(summaries),
        reliability=reliability_plot(measured),
        detection=detection_plot(measured),
        slices=[(each, side_by_side(each)) for each in measured[:MOST_SLICES]],
        left_out=max(0, len(measured) - MOST_SLICES),
    )


def _tables(summaries: Sequence[Summary]) -> list[Table]:
    """Return one table a region: a row a measure, a column a truth."""
    found = {(s.region, s.metric, s.against, s.domain): s for s in summaries}
    against = list(dict.fromkeys(s.against for s in summaries))
    regions = list(dict.fromkeys(s.region for s in summaries))
    tables = []
    for region in sorted(regions, key=lambda name: name != ALL):
        rows = []
        for metric, (name, domain) in SHOWN.items():
            cells = [found.get((region, metric, each, domain)) for each in against]
            if any(cells):
                rows.append((name, cells))
        used = [any(cells[place] for _, cells in rows) for place in range(len(against))]
        columns = [name for name, shown in zip(against, used) if shown]
        kept = [(name, [c for c, shown in zip(cells, used) if shown]) for name, cells in rows]
        tables.append(Table(region, columns, kept))
    return tables


def number(value: float) -> str:
    """Return a value with three digits, or a dash where it is not defined."""
    if math.isnan(value):
        return "–"
    return f"{value:.3f}" if abs(value) < 10 else f"{value:.1f}"
