"""The table and the picture of the methods on one case."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from lab.compare.methods import MethodResult, Subject
from lab.figures import new_figure
from lab.words import markdown_table

if TYPE_CHECKING:
    from matplotlib.figure import Figure


COLUMNS = (
    "method", "voxels", "samples", "seconds", "cpu_seconds", "entropy_bits", "volume_lower_ml",
    "volume_median_ml", "volume_upper_ml", "difference_to_votes", "note",
)  # fmt: skip


def table_rows(results: Sequence[MethodResult]) -> list[tuple[object, ...]]:
    """Return the rows of the CSV file; an empty cell does not apply."""
    rows = []
    for each in results:
        volume = each.volume_ml or ("", "", "")
        times = (each.seconds, each.cpu_seconds)
        cells = (each.samples, *times, each.entropy_bits, *volume, each.agreement)
        shown = ["" if cell is None else cell for cell in cells]
        rows.append((each.method, each.voxels, *shown, each.note))
    return rows


def table(results: Sequence[MethodResult]) -> str:
    """Return the table in Markdown."""
    head = [
        "method", "voxels", "samples", "s", "CPU s", "mean entropy, bits",
        "volume, ml (95 % of samples)", "difference to votes", "",
    ]  # fmt: skip
    rows = []
    for each in results:
        if each.entropy_bits is None:
            rows.append([each.method, *["–"] * 7, each.note])
            continue
        volume = "–"
        if each.volume_ml is not None:
            low, middle, high = each.volume_ml
            volume = f"{middle:.2f} ({low:.2f} to {high:.2f})"
        samples = "–" if each.samples is None else str(each.samples)
        numbers = [f"{each.entropy_bits:.4f}", volume, f"{each.agreement:.4f}"]
        times = [f"{each.seconds:.1f}", f"{each.cpu_seconds:.1f}"]
        rows.append([each.method, str(each.voxels), samples, *times, *numbers, each.note])
    return markdown_table(head, rows)


def draw_methods(results: Sequence[MethodResult], subject: Subject) -> Figure:
    """Draw the region's probability by every method that took the whole case, on one slice."""
    drawn = [each for each in results if each.share is not None]
    case = subject.case
    share = case.probabilities[list(subject.members)].sum(axis=0)
    z = int(share.sum(axis=(0, 1)).argmax())
    columns = 5
    rows = -(-(len(drawn) + 2) // columns)
    figure = new_figure(2.5 * columns, 2.7 * rows)
    panels = figure.subplots(rows, columns).ravel()
    image = next(iter(case.images.values()))[:, :, z]
    panels[0].imshow(image.T, origin="lower", cmap="gray")
    panels[0].set_title("image", fontsize=9)
    maps = [("probabilities given", share), *((each.method, each.share) for each in drawn)]
    for axes, (name, values) in zip(panels[1:], maps):
        shown = axes.imshow(np.asarray(values)[:, :, z].T, origin="lower", vmin=0, vmax=1)
        axes.set_title(name, fontsize=9)
    for axes in panels:
        axes.set_xticks([])
        axes.set_yticks([])
        axes.set_visible(bool(axes.images))
    figure.colorbar(shown, ax=panels, shrink=0.7).set_label("probability of the region")
    return figure
