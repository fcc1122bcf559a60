"""How far each filter's mean field is from that of all pairs, on crops of made-up patients.

    python -m lab.benchmarks.accuracy

A crop has 16³ voxels of 3 mm around enhancing tumour, our kernels at full strength, 10 iterations.
On one crop a dozen labels are off, and which filter has fewer is chance; 20 crops tell.
"""

from __future__ import annotations

import argparse
import warnings
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lab.benchmarks import machine
from lab.benchmarks.figures import PAGE, with_figures
from lab.compare import crop_box, crop_case
from lab.patients import PHANTOM_REGIONS, phantom_patient
from lab.phantoms import cohort
from lab.words import markdown_table, paragraph
from perturb_mpm.biomarkers import wilcoxon_exact
from perturb_mpm.engines import Accuracy
from perturb_mpm.files import Case
from perturb_mpm.inference import ConvergenceWarning, mean_field
from perturb_mpm.run import RunSettings, build_crf

CROPS, SIDE, SPACING_MM, ITERATIONS = 20, 16, 3.0, 10
FILTERS: tuple[Accuracy, ...] = ("plain", "calibrated", "accurate")
RESULTS = machine.RESULTS / "accuracy.json"
BEGIN, END = "<!-- accuracy figures -->", "<!-- end of accuracy figures -->"


def measure(crops: int, side: int = SIDE) -> list[dict[str, Any]]:
    """Return, for each crop and filter, the total variation to all pairs and the labels off."""
    rows = []
    for number, scan in enumerate(cohort(crops, spacing_mm=SPACING_MM)):
        case = phantom_patient(f"phantom {number}", scan, scan.probabilities).case
        small = crop_case(case, crop_box(case, PHANTOM_REGIONS["enhancing"], side))
        exact = _marginals(small, "exact")
        for name in FILTERS:
            q = _marginals(small, name)
            off = q.argmax(axis=0) != exact.argmax(axis=0)  # (N,)
            distance = np.abs(q - exact).sum(axis=0) / 2  # (N,)
            rows.append(
                {
                    "crop": number,
                    "filter": name,
                    "voxels": off.size,
                    "total_variation": float(distance.mean()),
                    "labels_off": int(off.sum()),
                }
            )
    return rows


def _marginals(case: Case, accuracy: Accuracy) -> NDArray[np.floating]:
    """Return the mean field inside the mask, (L, N)."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        crf = build_crf(case, RunSettings.of_paper())
        found = mean_field(crf, ITERATIONS, engine="cpu", accuracy=accuracy)
    return found.marginals[:, case.mask]


def _column(rows: list[dict[str, Any]], name: str, key: str) -> NDArray[np.float64]:
    return np.array([row[key] for row in rows if row["filter"] == name], dtype=np.float64)


def render(results: dict[str, Any]) -> str:
    """Return the Markdown of the figures."""
    rows = results["rows"]
    voxels = _column(rows, FILTERS[0], "voxels")
    lines = []
    for name in FILTERS:
        distance, off = (_column(rows, name, key) for key in ("total_variation", "labels_off"))
        lines.append(
            [
                f"`{name}`",
                f"{distance.mean():.5f}",
                f"{100 * off.sum() / voxels.sum():.3f}",
                f"{100 * (off / voxels).min():.2f} to {100 * (off / voxels).max():.2f}",
            ]
        )
    head = ["filter", "total variation", "labels off, %", "of one crop, %"]
    tests = {
        key: wilcoxon_exact(*(_column(rows, name, key) for name in FILTERS[1:])).pvalue
        for key in ("total_variation", "labels_off")
    }
    fewer = _column(rows, "calibrated", "labels_off") < _column(rows, "accurate", "labels_off")
    measured = (
        f"Mean field by each filter beside all pairs: {len(voxels)} crops of made-up patients, "
        f"{voxels.mean():.0f} voxels of {SPACING_MM:g} mm each in the mean. `accurate` against "
        f"`calibrated`, exact Wilcoxon over crops: p = {tests['total_variation']:.1g} for the "
        f"total variation, {tests['labels_off']:.1g} for the labels; `calibrated` has fewer labels "
        f"off in {int(fewer.sum())} of the crops. `python -m lab.benchmarks.accuracy` measures it "
        "again."
    )
    return f"{markdown_table(head, lines)}\n\n{paragraph(measured)}"


def main() -> None:
    parser = argparse.ArgumentParser(description="The filters beside all pairs, on crops.")
    parser.add_argument("--crops", type=int, default=CROPS)
    options = parser.parse_args()
    rows = measure(options.crops)
    machine.write_results(RESULTS, {"machine": machine.describe(), "rows": rows})
    text = render(machine.read_results(RESULTS))
    print(text)
    page = with_figures(PAGE.read_text(encoding="utf-8"), text, BEGIN, END)
    PAGE.write_text(page, encoding="utf-8")


if __name__ == "__main__":
    main()
