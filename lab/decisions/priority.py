"""The list of places to correct beside entropy and chance: which narrows a volume fastest.

A simulated user is shown one cube after another and says how much of the structure is in it. The
samples choose the order by one half of them; the other half is moved by the regression of the
volume on the cubes, fitted on the first half, to what the user said, and its 95 % is the interval.

Samples that were wrong about the k cubes seen are as wrong about the others. With d² the squared
Mahalanobis distance of what the user said from the samples, the interval is √((ν + d²)/(ν + k))
times as wide, as the conditional law of a multivariate Student's t with ν degrees of freedom has
it: 1 where the samples were right.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from lab.words import markdown_table, paragraph
from perturb_mpm.files import Case, region_members
from perturb_mpm.measures import (
    MeasuredPatient,
    Priority,
    PriorityFinder,
    find_measures,
    greedy_order,
)
from perturb_mpm.progress import Progress
from perturb_mpm.run import RunSettings, build_crf, build_sampler, decide_settings, find_evidence

if TYPE_CHECKING:
    from matplotlib.figure import Figure

STEPS = (0, 1, 2, 3, 4, 6, 8)
CHANCES = 10  # random orders of each case
_FREEDOM = 4.0  # ν
WAYS = ("priority", "entropy", "chance")
OPENING = """{cases} cases of {name}, {structure}, {samples} samples each by the settings that
`run` decides itself, cubes of {side:g} mm. A simulated user tells the true volume
inside one cube after another. Half of the samples choose the order and fit how the
volume follows from the cubes; the other half, moved to what the user said, gives the
interval. It is too narrow where the samples were wrong about the cubes: the second
table has it widened by how unlikely by the samples that was. Entropy takes the cubes
with the largest sum of entropy first, chance any that is uncertain ({chances} orders
a case)."""


@dataclass(frozen=True)
class Narrowing:
    """The interval of one case after so many cubes, by one way to choose them."""

    case: str
    way: str
    cubes: int
    width: float
    """Of the 95 % interval of the moved samples, over that before any."""
    inside: bool
    careful_width: float
    """The same, widened where what was told is unlikely by the samples."""
    careful_inside: bool


def measure_priority(
    cases: Mapping[str, Case],
    start: RunSettings,
    structure: str,
    *,
    samples: int,
    side_mm: float,
    progress: Progress | None = None,
) -> list[Narrowing]:
    """Return the width of the interval of every case, step by step."""
    rows: list[Narrowing] = []
    for number, (name, case) in enumerate(cases.items(), start=1):
        rows += _narrow(name, case, start.changed(samples=samples), structure, side_mm)
        if progress is not None:
            progress(number, len(cases))
    return rows


def _narrow(
    name: str, case: Case, settings: RunSettings, structure: str, side_mm: float
) -> list[Narrowing]:
    found, true_volumes, entropy = _sample(case, settings, structure, side_mm)
    half = np.arange(len(found.values)) % 2 == 0
    x, y = found.volumes, found.volumes.sum(axis=1)  # voxels
    truth = float(true_volumes[0])
    told = true_volumes[1]
    varies = np.flatnonzero(x[half].std(axis=0) > 0)
    if len(varies) < max(STEPS):
        return []
    generator = np.random.default_rng(0)
    orders: list[tuple[str, Sequence[int]]] = [
        ("priority", greedy_order(y[half], x[half], max(STEPS))),
        ("entropy", varies[np.argsort(-entropy[varies], kind="stable")].tolist()),
        *(("chance", generator.permutation(varies).tolist()) for _ in range(CHANCES)),
    ]
    rows = []
    for way, order in orders:
        first = None
        for step in STEPS:
            chosen = list(order[:step])
            moved = _move(x, y, chosen, told, half)
            low, middle, high = np.quantile(moved, [0.025, 0.5, 0.975])
            first = first or float(high - low)
            surprise = _surprise(x[half][:, chosen], told[chosen])
            found_ends = []
            for factor in (1.0, surprise):
                ends = [middle + factor * (each - middle) for each in (low, high)]
                found_ends += [(ends[1] - ends[0]) / first, bool(ends[0] <= truth <= ends[1])]
            rows.append(Narrowing(name, way, step, *found_ends))
    return rows


def _surprise(x: NDArray[np.float64], told: NDArray[np.float64]) -> float:
    """Return how many times wider the interval is for what was told of some cubes (S, k)."""
    if not x.shape[1]:
        return 1.0
    away = np.linalg.lstsq(np.cov(x.T).reshape(len(told), -1), told - x.mean(axis=0), 1e-6)[0]
    distance = float((told - x.mean(axis=0)) @ away)
    return math.sqrt((_FREEDOM + distance) / (_FREEDOM + len(told)))


def _move(
    x: NDArray[np.float64],
    y: NDArray[np.float64],
    chosen: list[int],
    told: NDArray[np.float64],
    fitted: NDArray[np.bool_],
) -> NDArray[np.float64]:
    """Return the volumes of the samples not fitted, moved to what was told of the chosen cubes."""
    if not chosen:
        return y[~fitted]
    middle = x[fitted][:, chosen].mean(axis=0)
    weights = np.linalg.lstsq(x[fitted][:, chosen] - middle, y[fitted] - y[fitted].mean(), 1e-6)[0]
    moved: NDArray[np.float64] = y[~fitted] + (told[chosen] - x[~fitted][:, chosen]) @ weights
    return moved


def _sample(
    case: Case, settings: RunSettings, structure: str, side_mm: float
) -> tuple[Priority, tuple[float, NDArray[np.float64]], NDArray[np.float64]]:
    """Return cubes of samples; the true volume, whole and in each cube; the entropy of each."""
    decided = decide_settings(settings, case, find_evidence(case))
    sampler = build_sampler(build_crf(case, decided), decided)
    kept: list[tuple[range, NDArray[np.uint8]]] = []
    posterior = sampler.draw(keep=lambda part, labels: kept.append((part, labels.copy())))
    regions = region_members(decided.regions, case.labels)
    members = regions.get(structure, tuple(range(1, len(case.labels))))
    truth = case.truth
    if truth is None:
        raise ValueError("case must have a truth")
    patient = MeasuredPatient(posterior.grid, {structure: tuple(members)}, truth.astype(np.uint8))
    votes = posterior.voxel_counts
    finder = PriorityFinder(
        patient.with_votes(votes), structure, find_measures(["volume"], patient)[0], side_mm
    )
    for part, labels in kept:
        finder.add(part, labels)
    found = finder.priority
    share = posterior.grid.scatter(votes[list(members)].sum(axis=0) / posterior.samples, 0)
    here = np.clip(share[tuple(found.voxels.T)], 1e-9, 1 - 1e-9)
    bits = -(here * np.log2(here) + (1 - here) * np.log2(1 - here))
    cubes = found.volumes.shape[1]
    entropy = np.bincount(found.patches, weights=bits, minlength=cubes).astype(np.float64)
    true = np.isin(truth, members) & case.mask
    told = finder.cube_volumes(true).astype(np.float64)
    return found, (float(true.sum()), told), entropy


def means(
    rows: Sequence[Narrowing], way: str, *, careful: bool = False
) -> dict[int, tuple[float, float]]:
    """Return by number of cubes the mean width and the share of truths inside."""
    found = {}
    for step in STEPS:
        mine = [row for row in rows if (row.way, row.cubes) == (way, step)]
        width = float(np.mean([row.careful_width if careful else row.width for row in mine]))
        inside = [row.careful_inside if careful else row.inside for row in mine]
        found[step] = (width, float(np.mean(inside)))
    return found


def verdict(name: str, rows: Sequence[Narrowing]) -> str:
    """Return in a sentence how far each way narrowed the interval."""
    words = [f"{way} {100 * means(rows, way)[4][0]:.0f} %" for way in WAYS]
    return f"{name}: after four cubes the interval has this part of its width: {', '.join(words)}."


def section(name: str, structure: str, rows: Sequence[Narrowing], samples: int, side: float) -> str:
    """Return a set's part of the page."""
    words = OPENING.format(
        cases=len({row.case for row in rows}),
        name=name,
        structure=structure,
        samples=samples,
        side=side,
        chances=CHANCES,
    )
    parts = [f"## {name}", paragraph(words), paragraph(verdict(name, rows))]
    for careful in (False, True):
        table = [
            [way, *(f"{width:.2f} ({100 * inside:.0f} %)" for width, inside in curve.values())]
            for way in WAYS
            for curve in [means(rows, way, careful=careful)]
        ]
        heading = "widened: width (truths inside)" if careful else "width over that before (inside)"
        parts.append(markdown_table([heading, *(f"{step} cubes" for step in STEPS)], table))
    return "\n\n".join(parts)


def draw(sets: Mapping[str, Sequence[Narrowing]]) -> Figure:
    """Return the curves of all sets."""
    from lab.figures import BLUE, GREEN, ORANGE, new_figure

    figure = new_figure(3.6 * len(sets), 3.2)
    for number, (name, rows) in enumerate(sets.items(), start=1):
        axes = figure.add_subplot(1, len(sets), number)
        for way, colour, dash in zip(WAYS, (BLUE, ORANGE, GREEN), ("-", "--", ":")):
            curve = means(rows, way)
            axes.plot(
                list(curve),
                [w for w, _ in curve.values()],
                dash,
                marker="o",
                color=colour,
                label=way,
            )
        axes.set(title=name, xlabel="cubes that the user has seen", ylim=(0, 1.05))
        axes.set_ylabel("width of the 95 % interval, share")
        axes.legend(frameon=False)
    return figure
