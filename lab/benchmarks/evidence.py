"""What a run pays to ask image and grid about probabilities: CPU seconds and memory at 1 mm.

    python -m lab.benchmarks.evidence --data brats2021_1mm

The probabilities are the expert's labels, blurred by a voxel: what is asked does not cost more or
less for better ones. The least of five times is shown, and the most memory that NumPy took.
"""

from __future__ import annotations

import argparse
import time
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np

from lab.benchmarks import machine
from lab.benchmarks.figures import PAGE, with_figures
from lab.words import markdown_table, paragraph
from perturb_mpm.files import (
    SCHEMES,
    Case,
    common_sequences,
    find_labelled_cases,
    read_images,
)
from perturb_mpm.run import find_evidence

TIMES = 5
RESULTS = machine.RESULTS / "evidence.json"
BEGIN, END = "<!-- evidence figures -->", "<!-- end of evidence figures -->"


def read_cases(data: Path) -> dict[str, Case]:
    """Read the patients of a folder with probabilities that know the truth."""
    from scipy.ndimage import gaussian_filter

    scheme = SCHEMES["brats2021"]
    found: dict[str, Case] = {}
    for files in find_labelled_cases(data, "brats"):
        chosen = files.select_images(common_sequences([files]))
        images = read_images(list(chosen.values()), image_names=list(chosen), named_by="data")
        truth = files.read_truth(images.geometry, scheme)
        shares = [gaussian_filter((truth == i).astype(np.float32), 1) for i in range(len(scheme))]
        p = np.maximum(shares, 1e-4)  # (L, X, Y, Z)
        found[files.name] = Case.from_images(images, p / p.sum(axis=0), scheme, truth)
    return found


def measure(case: Case) -> tuple[float, float]:
    """Return CPU seconds and MB of asking once."""
    seconds = []
    for _ in range(TIMES):
        before = time.process_time()
        find_evidence(case)
        seconds.append(time.process_time() - before)
    tracemalloc.start()
    find_evidence(case)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return min(seconds), peak / 1e6


def render(results: dict[str, Any]) -> str:
    """Return the Markdown of the figures."""
    about = results["machine"]
    rows = [
        [str(each["case"]), f"{each['voxels']:,}", f"{each['cpu_s']:.2f}", f"{each['peak_mb']:.0f}"]
        for each in results["rows"]
    ]
    measured = (
        f"Brains of four sequences at 1 mm, the least CPU seconds of {TIMES}; {about['cpu']}, "
        f"{about['date'][:10]}, load {about['load_average_at_start']:.0f} on {about['cores']} "
        "cores. `python -m lab.benchmarks.evidence --data brats2021_1mm` measures it again."
    )
    return f"{markdown_table(['', 'voxels', 'CPU s', 'MB'], rows)}\n\n{paragraph(measured)}"


def main() -> None:
    parser = argparse.ArgumentParser(description="CPU seconds and memory of image evidence.")
    parser.add_argument("--data", type=Path, required=True, help="the folder of brats2021_1mm")
    options = parser.parse_args()
    rows = []
    for name, case in read_cases(options.data).items():
        cpu, peak = measure(case)
        voxels = int(case.mask.sum())
        rows.append({"case": name, "voxels": voxels, "cpu_s": cpu, "peak_mb": peak})
    machine.write_results(RESULTS, {"machine": machine.describe(), "rows": rows})
    text = render(machine.read_results(RESULTS))
    print(text)
    page = with_figures(PAGE.read_text(encoding="utf-8"), text, BEGIN, END)
    PAGE.write_text(page, encoding="utf-8")


if __name__ == "__main__":
    main()
