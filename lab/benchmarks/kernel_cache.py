"""Time kernels that are kept: ``python -m lab.benchmarks.kernel_cache --help``.

One thread, CPU seconds, the better of two: the kernels of a patient under the defaults of ``run``,
prepared anew, into an empty folder, and from what the folder keeps, with the same unaries and with
those of another temperature.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from lab.benchmarks import machine
from lab.benchmarks.problems import case_folder
from lab.words import markdown_table

if TYPE_CHECKING:
    from perturb_mpm.model import DenseCRF

TEMPERATURE = 1.2
REPEATS = 2


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="Preparing kernels anew, and reading those that a folder keeps.",
        epilog="example: python -m lab.benchmarks.kernel_cache --model model.npz",
    )
    parser.add_argument("--model", type=Path, required=True, help="a model that `train` wrote")
    parser.add_argument("--case", type=Path, default=case_folder(), help="a folder of BraTS")
    parser.add_argument("--json", type=Path, default=machine.RESULTS / "kernel_cache.json")
    return parser.parse_args()


def seconds(crf: DenseCRF, folder: Path | None) -> float:
    """Return the CPU seconds of making an engine ready to sample."""
    from perturb_mpm.engines import prepare

    began = time.process_time()
    prepare(crf, "cpu", batch=8, threads=1, kernel_cache=folder, compact=True)
    return time.process_time() - began


def measure(crf: DenseCRF, hotter: DenseCRF) -> dict[str, float]:
    """Return CPU seconds of each way to get the same kernels, and what is kept in MB."""
    rows: dict[str, list[float]] = {}
    for _ in range(REPEATS):
        with tempfile.TemporaryDirectory() as kept:
            folder = Path(kept)
            for name, problem, place in (
                ("anew", crf, None),
                ("into an empty folder", crf, folder),
                ("kept", crf, folder),
                ("kept, another temperature", hotter, folder),
            ):
                rows.setdefault(name, []).append(seconds(problem, place))
                if name == "into an empty folder":
                    size = sum(path.stat().st_size for path in folder.iterdir()) / 1e6
    return {**{name: min(each) for name, each in rows.items()}, "MB": size}


def main() -> None:
    options = arguments()
    from perturb_mpm.files import find_labelled_cases
    from perturb_mpm.run import RunSettings, build_crf
    from perturb_mpm.segmenter import SegmenterModel
    from perturb_mpm.tune import classify_cases

    files = next(
        f for f in find_labelled_cases(options.case.parent, "brats") if f.name == options.case.name
    )
    scheme = SegmenterModel.load(options.model).labels
    case = classify_cases([files], options.model, scheme)[files.name]
    settings = RunSettings()
    crf, hotter = (build_crf(case, settings.changed(temperature=t)) for t in (1.0, TEMPERATURE))
    seconds(crf, None)  # which compiles what is needed
    found = measure(crf, hotter)
    results = {"machine": machine.describe(), "case": str(options.case.name), "rows": found}
    machine.write_results(options.json, {**results, "voxels": crf.grid.voxels})
    cells = [[name, f"{value:.2f}"] for name, value in found.items() if name != "MB"]
    print(markdown_table(("kernels", "CPU s"), cells))
    print(f"{found['MB']:.0f} MB are kept of {crf.grid.voxels} voxels")


if __name__ == "__main__":
    main()
