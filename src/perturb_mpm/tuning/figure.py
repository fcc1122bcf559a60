"""The picture of a search: the objective at every evaluation, phase by phase."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from perturb_mpm.io.atomic import atomic_open
from perturb_mpm.learning.optimise import Step

WORDS = {
    "iou": "expected intersection over union",
    "mean_iou": "mean over cases of the expected intersection over union",
    "log_likelihood": "log-likelihood per voxel (nats)",
    "both": "overlap + log-likelihood per voxel (nats)",
    "hamming": "expected accuracy",
}
_COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7")


def write_convergence(path: Path, trace: Sequence[Step], objective: str) -> None:
    """Write a PNG or SVG, by the ending of its name, of the course of the objective."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.0, 3.6), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    values = np.array([step.objective for step in trace])
    best = np.maximum.accumulate(values)
    axes.plot(range(1, len(best) + 1), best, color="black", linewidth=1.2, label="best so far")
    phases = list(dict.fromkeys(step.phase for step in trace))
    for phase, colour in zip(phases, _COLOURS):
        at = [place for place, step in enumerate(trace) if step.phase == phase]
        axes.plot(
            np.add(at, 1), values[at], "o", markersize=3.5, color=colour, label=f"phase: {phase}"
        )
    # A first long step may fall far below the start; the eye is for what is gained.
    low, high = float(values[0]), float(best[-1])
    margin = max(high - low, 1e-6)
    axes.set_ylim(low - 0.5 * margin, high + 0.1 * margin)
    axes.set_xlabel("evaluation")
    axes.set_ylabel(WORDS[objective])
    axes.legend(frameon=False, loc="lower right")
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    kind = path.suffix.removeprefix(".")
    metadata = {"Software": None} if kind == "png" else {"Date": None}
    with atomic_open(path) as file:
        figure.savefig(file, format=kind, dpi=150, metadata=metadata)
