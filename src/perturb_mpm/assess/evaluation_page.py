"""The page of an evaluation: one HTML file that opens from disk, with its plots as SVG."""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from perturb_mpm.assess.measure import SPECIFICITIES, Measured
from perturb_mpm.evaluation import ALL, Summary, summarise
from perturb_mpm.storage import atomic_open

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


STYLES = ("-", "--", ":", "-.", (0, (5, 1)), (0, (1, 1)))
MARKERS = ("o", "s", "^", "D", "v", "x")
GREYS = ("#000000", "#444444", "#777777", "#999999", "#222222", "#555555")


def svg_of(draw: Callable[[Figure], object], width: float = 5.0, height: float = 4.0) -> str:
    """Return a figure as SVG text without a date, for a page."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    with mpl.rc_context({"svg.hashsalt": "perturb-mpm", "svg.fonttype": "none", "font.size": 10}):
        figure = Figure(figsize=(width, height), layout="constrained")
        draw(figure)
        stream = io.StringIO()
        figure.savefig(
            stream, format="svg", metadata=dict.fromkeys(("Date", "Creator", "Format", "Type"))
        )
    text = stream.getvalue()
    return text[text.index("<svg") :]


def reliability_plot(measured: Sequence[Measured]) -> str:
    """Return how often the most probable label is right, against its probability."""
    pooled = measured[0].reliability
    for each in measured[1:]:
        pooled = pooled.pooled(each.reliability)

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        axes.plot([0, 1], [0, 1], color="#bbbbbb", linewidth=1)
        if len(measured) > 1:
            for each in measured:
                axes.plot(
                    each.reliability.confidence, each.reliability.accuracy, color="#cccccc", lw=0.8
                )
        filled = pooled.voxels > 0
        axes.plot(pooled.confidence[filled], pooled.accuracy[filled], "ko-", markersize=4)
        axes.set(
            xlabel="probability of the most probable label",
            ylabel="how often it is right",
            xlim=(0, 1.02),
            ylim=(0, 1.02),
            title=f"calibration error {pooled.expected_error:.3f}, all cases pooled",
        )

    return svg_of(draw)


def detection_plot(measured: Sequence[Measured]) -> str:
    """Return the mean share of errors found against the share of correct voxels left alone."""

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        for place, region in enumerate(measured[0].sensitivity):
            curves = np.array([each.sensitivity[region] for each in measured])
            defined = curves[~np.isnan(curves).any(axis=1)]
            if len(defined):
                axes.plot(
                    SPECIFICITIES,
                    defined.mean(axis=0),
                    color=GREYS[place % len(GREYS)],
                    linestyle=STYLES[place % len(STYLES)],
                    marker=MARKERS[place % len(MARKERS)],
                    markevery=(2 * place, 20),
                    markersize=4,
                    label=region,
                )
        axes.plot([0, 1], [1, 0], color="#bbbbbb", linewidth=1)
        axes.set(
            xlabel="specificity: correct voxels called certain",
            ylabel="sensitivity: errors called uncertain",
            xlim=(-0.02, 1.02),
            ylim=(-0.02, 1.02),
        )
        if axes.lines[:-1]:
            axes.legend(loc="lower left", fontsize=9)

    return svg_of(draw)


def side_by_side(measured: Measured) -> str:
    """Return the slice with most errors: where it is wrong, and where it is uncertain."""

    def draw(figure: Figure) -> None:
        left, right = figure.subplots(1, 2)
        # Shown with the first axis to the right and the second upwards.
        left.imshow(measured.error.T, origin="lower", cmap="gray_r", vmin=0, vmax=1)
        left.set_title("wrong labels (black)", fontsize=10)
        picture = right.imshow(
            measured.entropy_bits.T,
            origin="lower",
            cmap="gray_r",
            vmin=0,
            vmax=measured.most_bits,
        )
        right.set_title("entropy", fontsize=10)
        figure.colorbar(picture, ax=right, label="bits", shrink=0.8)
        for axes in (left, right):
            _bare(axes)

    return svg_of(draw, 7.0, 3.2)


def _bare(axes: Axes) -> None:
    axes.set_xticks([])
    axes.set_yticks([])


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
        loader=PackageLoader("perturb_mpm.assess"),
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
