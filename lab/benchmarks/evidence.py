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

import numpy as np

from lab.benchmarks import machine
from lab.words import markdown_table
from perturb_mpm.files import (
    SCHEMES,
    Case,
    common_sequences,
    find_labelled_cases,
    read_images,
)
from perturb_mpm.run import find_evidence

TIMES = 5


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


def main() -> None:
    parser = argparse.ArgumentParser(description="CPU seconds and memory of image evidence.")
    parser.add_argument("--data", type=Path, required=True, help="the folder of brats2021_1mm")
    options = parser.parse_args()
    rows = {name: (case, *measure(case)) for name, case in read_cases(options.data).items()}
    found = [
        {"case": name, "voxels": int(case.mask.sum()), "cpu_s": cpu, "peak_mb": peak}
        for name, (case, cpu, peak) in rows.items()
    ]
    machine.write_results(
        machine.RESULTS / "evidence.json", {"machine": machine.describe(), "rows": found}
    )
    cells = [
        [str(each["case"]), f"{each['voxels']:,}", f"{each['cpu_s']:.2f}", f"{each['peak_mb']:.0f}"]
        for each in found
    ]
    print(markdown_table(["", "voxels", "CPU s", "memory, MB"], cells))


if __name__ == "__main__":
    main()
