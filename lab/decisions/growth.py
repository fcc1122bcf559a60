"""Whether it is growth: made-up heads scanned twice, unchanged and after a known growth."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from lab.decisions.phantoms import Head, make_case, make_head
from lab.words import markdown_table, paragraph
from perturb_mpm.biomarkers import sampled_change
from perturb_mpm.posterior import clopper_pearson
from perturb_mpm.progress import Progress
from perturb_mpm.run import RunSettings, build_crf, build_sampler, decide_settings, find_evidence

if TYPE_CHECKING:
    from matplotlib.figure import Figure

GROWTH = (1.0, 1.1, 1.25, 1.5, 2.0)
SAMPLED, WHITE, LABELS = "samples", "samples of white noise (control)", "label maps alone"
OPENING = """{heads} made-up heads with one lesion, scanned twice: the same head, other noise, a
classifier that learned from other heads, {samples} samples of each scan by the settings that `run`
decides itself. Growth is called where the 95 % interval of the difference of volumes lies above 0,
with independent errors (`--correlation 0`). Written by `python -m lab growth`. Heads that grow are
the first {grown}. By label maps alone, a larger volume is growth."""


@dataclass(frozen=True)
class Call:
    """Whether one pair of scans is said to have grown."""

    head: int
    growth: float
    method: str
    called: bool


def measure_growth(
    heads: int, grown: int, samples: int, progress: Progress | None = None
) -> list[Call]:
    """Return what each method says about each pair of scans."""
    calls: list[Call] = []
    for seed in range(heads):
        head = make_head(2000 + seed, satellites=(0, 0))
        settings = RunSettings().changed(samples=samples)
        white = settings.changed(noise_length=0.0, temperature=1.0, strength=0.0)
        before, first = _volumes_ml(head, 0, settings)
        white_before, _ = _volumes_ml(head, 0, white)
        for factor in GROWTH if seed < grown else GROWTH[:1]:
            after, second = _volumes_ml(head.with_growth(factor), 1, settings)
            verdicts = {
                SAMPLED: sampled_change(before, after).verdict == "grew",
                LABELS: second > first,
            }
            if factor == 1.0:
                white_after, _ = _volumes_ml(head, 1, white)
                verdicts[WHITE] = sampled_change(white_before, white_after).verdict == "grew"
            calls += [Call(seed, factor, name, called) for name, called in verdicts.items()]
        if progress is not None:
            progress(seed + 1, heads)
    return calls


def _volumes_ml(
    head: Head, occasion: int, settings: RunSettings
) -> tuple[NDArray[np.float64], float]:
    """Return the sampled volumes of a scan, (S,), and that of its label map."""
    case = make_case(head.scan(occasion))
    decided = decide_settings(settings, case, find_evidence(case))
    decided = replace(decided, sampling=replace(decided.sampling, seed=occasion))
    posterior = build_sampler(build_crf(case, decided), decided).draw()
    voxel_ml = float(np.prod(case.geometry.spacing)) / 1000
    mapped = float((case.probabilities[1] > 0.5).sum()) * voxel_ml
    return posterior.volumes[:, 1] / 1000, mapped


def shares(calls: list[Call], method: str) -> dict[float, tuple[int, int]]:
    """Return by growth how many pairs are called growth, of how many."""
    found = {}
    for factor in GROWTH:
        mine = [call.called for call in calls if (call.growth, call.method) == (factor, method)]
        if mine:
            found[factor] = (sum(mine), len(mine))
    return found


def verdict(calls: list[Call]) -> str:
    """Return in sentences what was found."""
    own, white = shares(calls, SAMPLED), shares(calls, WHITE)[1.0]
    power = ", ".join(
        f"{called} of {pairs} at +{100 * (factor - 1):.0f} %"
        for factor, (called, pairs) in own.items()
        if factor > 1
    )
    return (
        f"Without growth, {own[1.0][0]} of {own[1.0][1]} pairs are called growth (2.5 % are "
        f"expected, 5 % allowed), by white noise {white[0]} of {white[1]}. With growth: {power}."
    )


def page(calls: list[Call], heads: int, grown: int, samples: int, picture: str) -> str:
    """Return the page in Markdown."""
    rows = []
    for method in (SAMPLED, LABELS, WHITE):
        found = shares(calls, method)
        cells = [f"{found[f][0]} of {found[f][1]}" if f in found else "" for f in GROWTH]
        rows.append([method, *cells])
    header = ["called growth", *(f"+{100 * (factor - 1):.0f} %" for factor in GROWTH)]
    parts = [
        "# Growth, or another segmentation of the same?",
        paragraph(OPENING.format(heads=heads, samples=samples, grown=grown)),
        paragraph(verdict(calls)),
        markdown_table(header, rows),
        f"![Share of pairs that are called growth over the true growth]({picture})",
        paragraph("Bars are the 95 % intervals of Clopper and Pearson."),
    ]
    return "\n\n".join(parts) + "\n"


def draw(calls: list[Call]) -> Figure:
    """Return the curve of power."""
    from lab.figures import BLUE, ORANGE, RED, new_figure

    figure = new_figure(6, 3.6)
    axes = figure.add_subplot()
    for method, colour in ((SAMPLED, BLUE), (LABELS, ORANGE), (WHITE, RED)):
        found = shares(calls, method)
        x = np.array([100 * (factor - 1) for factor in found])
        y = np.array([called / pairs for called, pairs in found.values()])
        ends = np.array([clopper_pearson(k, n, 0.95) for k, n in found.values()], dtype=float)
        axes.errorbar(
            x, y, [y - ends[:, 0], ends[:, 1] - y], fmt="o-", color=colour, label=method, capsize=2
        )
    axes.axhline(0.05, color="grey", linestyle=":")
    axes.set(
        xlabel="true growth of the volume, %", ylabel="share called growth", ylim=(-0.02, 1.02)
    )
    axes.legend(frameon=False)
    return figure
