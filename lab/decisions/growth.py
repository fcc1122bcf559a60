"""Whether it is growth: made-up heads scanned twice, unchanged and after a known growth."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from lab.decisions.phantoms import Head, make_case, make_head
from lab.words import markdown_table, paragraph
from perturb_mpm.biomarkers import ScanCorrelation, fit_correlation, sampled_change
from perturb_mpm.posterior import clopper_pearson
from perturb_mpm.progress import Progress
from perturb_mpm.run import RunSettings, build_crf, build_sampler, decide_settings, find_evidence
from perturb_mpm.sampling import share_noise

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Volumes = NDArray[np.float64]  # (S,) ml
GROWTH = (1.0, 1.1, 1.25, 1.5, 2.0)
SAMPLED, SHARED, WHITE, LABELS = (
    "samples",
    "samples, correlation learned",
    "samples of white noise (control)",
    "label maps alone",
)
_HEADS, _OTHERS = 2000, 2500  # seeds: heads that are judged, and those that teach a correlation
_WHITE_NOISE = {"noise_length": 0.0, "temperature": 1.0, "strength": 0.0}
_REACH_MM = 30.0
OPENING = """{heads} made-up heads with one lesion, scanned twice and cut to 30 mm around it: the
same head, other noise, a classifier that learned from other heads, {samples} samples of
each scan by the settings that `run` decides itself. Growth is called where the 95 %
interval of the difference of volumes lies above 0, with independent errors
(`--correlation 0`) or with a correlation of {correlation:.2f}, which {taught} other
heads taught that were scanned twice (`tune --pairs`; their estimate is {estimate:.2f},
and this is exceeded with 95 % confidence). Written by `python -m lab growth`. Heads
that grow are the first {grown}. By label maps alone, a larger volume is growth."""


@dataclass(frozen=True)
class Call:
    """Whether one pair of scans is said to have grown."""

    head: int
    growth: float
    method: str
    called: bool


class HeadSampling:
    """Scan 1, 2 … of a head, cut around its lesion, as `run` would sample it."""

    def __init__(self, head: Head, number: int, samples: int) -> None:
        """Make the scan, let the classifier see it, and decide the settings."""
        scan = head.scan(number - 1).crop(head.balls[0].centre_mm, _REACH_MM)
        self.number, self.case = number, make_case(scan)
        start = RunSettings().changed(samples=samples, seed=number)
        self.settings = decide_settings(start, self.case, find_evidence(self.case))
        voxel_ml = float(np.prod(self.case.geometry.spacing)) / 1000
        self.label_map_ml = float((self.case.probabilities[1] > 0.5).sum()) * voxel_ml

    def volumes(
        self,
        like: HeadSampling | None = None,
        correlation: float = 0.0,
        *,
        white: bool = False,
    ) -> Volumes:
        """Return sampled volumes (S,) in ml; their noise may be shared with another scan."""
        settings = self.settings.changed(**_WHITE_NOISE) if white else self.settings
        sampler = build_sampler(build_crf(self.case, settings), settings)
        if correlation > 0:
            noise = (like or self).settings.sampling.perturbation
            sampler = sampler.with_perturbation(share_noise(noise, self.number, 0, correlation))
        return sampler.draw().volumes[:, 1] / 1000


def learn_correlation(pairs: int, samples: int) -> ScanCorrelation:
    """Return the correlation of the errors of two scans of heads that did not change."""
    found: tuple[list[Volumes], list[Volumes]] = ([], [])
    for seed in range(pairs):
        head = make_head(_OTHERS + seed, satellites=(0, 0))
        for number, volumes in enumerate(found, start=1):
            volumes.append(HeadSampling(head, number, samples).volumes())
    learned = fit_correlation(*found)
    if learned is None:
        raise ValueError("the samples of no head vary")
    return learned


def measure_growth(
    heads: int,
    grown: int,
    samples: int,
    correlation: float,
    progress: Progress | None = None,
) -> list[Call]:
    """Return what each method says about each pair of scans."""
    calls: list[Call] = []
    for seed in range(heads):
        head = make_head(_HEADS + seed, satellites=(0, 0))
        first = HeadSampling(head, 1, samples)
        before, shared = first.volumes(), first.volumes(first, correlation)
        for factor in GROWTH if seed < grown else GROWTH[:1]:
            second = HeadSampling(head.with_growth(factor), 2, samples)
            changes = {
                SAMPLED: sampled_change(before, second.volumes()),
                SHARED: sampled_change(
                    shared, second.volumes(first, correlation), paired=correlation > 0
                ),
            }
            if factor == 1.0:
                both = [scan.volumes(white=True) for scan in (first, second)]
                changes[WHITE] = sampled_change(*both)
            verdicts = {name: each.verdict == "grew" for name, each in changes.items()}
            verdicts[LABELS] = second.label_map_ml > first.label_map_ml
            calls += [Call(seed, factor, name, called) for name, called in verdicts.items()]
        if progress is not None:
            progress(seed + 1, heads)
    return calls


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
    own, shared, white = (shares(calls, name) for name in (SAMPLED, SHARED, WHITE))
    power, better = (
        ", ".join(
            f"{called} of {pairs} at +{100 * (factor - 1):.0f} %"
            for factor, (called, pairs) in found.items()
            if factor > 1
        )
        for found in (own, shared)
    )
    return (
        f"Without growth, {own[1.0][0]} of {own[1.0][1]} pairs are called growth (2.5 % are "
        f"expected, 5 % allowed), by white noise {white[1.0][0]} of {white[1.0][1]}. With growth: "
        f"{power}. With the correlation learned, {shared[1.0][0]} of {shared[1.0][1]} without "
        f"growth, and {better}."
    )


def page(
    calls: list[Call], learned: ScanCorrelation, taught: int, samples: int, picture: str
) -> str:
    """Return the page in Markdown."""
    heads, grown = (len({c.head for c in calls if c.growth == each}) for each in (1.0, GROWTH[-1]))
    words = OPENING.format(
        heads=heads,
        samples=samples,
        grown=grown,
        taught=taught,
        correlation=learned.lower,
        estimate=learned.estimate,
    )
    rows = []
    for method in (SAMPLED, SHARED, LABELS, WHITE):
        found = shares(calls, method)
        cells = [f"{found[f][0]} of {found[f][1]}" if f in found else "" for f in GROWTH]
        rows.append([method, *cells])
    header = ["called growth", *(f"+{100 * (factor - 1):.0f} %" for factor in GROWTH)]
    parts = [
        "# Growth, or another segmentation of the same?",
        paragraph(words),
        paragraph(verdict(calls)),
        markdown_table(header, rows),
        f"![Share of pairs that are called growth over the true growth]({picture})",
        paragraph("Bars are the 95 % intervals of Clopper and Pearson."),
    ]
    return "\n\n".join(parts) + "\n"


def draw(calls: list[Call]) -> Figure:
    """Return the curve of power."""
    from lab.figures import BLUE, GREEN, ORANGE, RED, new_figure

    figure = new_figure(6, 3.6)
    axes = figure.add_subplot()
    for method, colour in ((SAMPLED, BLUE), (SHARED, GREEN), (LABELS, ORANGE), (WHITE, RED)):
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
    axes.legend(frameon=False, loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=2)
    return figure
