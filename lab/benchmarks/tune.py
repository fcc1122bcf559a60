"""What ``perturb-mpm tune`` costs: CPU minutes and peak memory on two sets of labelled cases.

    python -m lab.benchmarks.tune --hippocampi FOLDER --gliomas FOLDER --model MODEL.npz

The model is made by ``perturb-mpm train`` of the gliomas. Each set is tuned in a process of its
own, as the pages of the network and the gliomas tune it. Kernels are kept in a folder meanwhile,
as the command does; ``--anew`` prepares them each time.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from lab.benchmarks import machine
from lab.evidence import GLIOMA_REGIONS, case_names, read_hippocampus
from lab.words import markdown_table
from perturb_mpm.files import SCHEMES, Case, find_labelled_cases
from perturb_mpm.progress import Silent
from perturb_mpm.run import RunSettings
from perturb_mpm.tune import TuningOptions, classify_cases, tune


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Tune one set here, and return what it took; reading the cases counts."""
    began = time.perf_counter()
    cases: dict[str, Case]
    if options.only == "hippocampi":
        names = case_names(options.hippocampi)[: options.cases]
        cases = {name: read_hippocampus(options.hippocampi, name) for name in names}
        start, folds = RunSettings(), min(5, len(cases))
    else:
        files = find_labelled_cases(options.gliomas, "brats")[: options.cases]
        cases = classify_cases(files, options.model, SCHEMES["brats2021"], Silent())
        start, folds = RunSettings(regions=GLIOMA_REGIONS), len(cases)
    with TemporaryDirectory() as folder:
        kept = start.changed(kernel_cache=None if options.anew else folder)
        tuned = tune(cases, kept, TuningOptions(folds=folds))
    used = resource.getrusage(resource.RUSAGE_SELF)
    return {
        "set": options.only,
        "cases": len(cases),
        "folds": folds,
        "cpu_minutes": (used.ru_utime + used.ru_stime) / 60,
        "minutes": (time.perf_counter() - began) / 60,
        "peak_gb": used.ru_maxrss * 1024 / 1e9,
        "learned": tuned.verdict,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description="CPU minutes and memory of perturb-mpm tune.")
    parser.add_argument("--hippocampi", type=Path, help="the folder of the network's cases")
    parser.add_argument("--gliomas", type=Path, help="the folder of the BraTS 2021 patients")
    parser.add_argument("--model", type=Path, help="a model that was trained on these patients")
    parser.add_argument("--cases", type=int, help="take so many cases of each set, not all")
    parser.add_argument("--anew", action="store_true", help="keep no prepared kernels meanwhile")
    parser.add_argument("--only", choices=("hippocampi", "gliomas"), help=argparse.SUPPRESS)
    parser.add_argument("--json", type=Path, default=machine.RESULTS / "tune.json")
    options = parser.parse_args()
    if options.only:
        print(json.dumps(measure(options)))
        return
    sets = [name for name in ("hippocampi", "gliomas") if getattr(options, name) is not None]
    if not sets or ("gliomas" in sets and options.model is None):
        sys.exit("give --hippocampi, or --gliomas with --model, or both")
    rows = []
    for name in sets:
        command = [sys.executable, "-m", "lab.benchmarks.tune", *sys.argv[1:], "--only", name]
        answer = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
        rows.append(json.loads(answer.splitlines()[-1]))
    machine.write_results(options.json, {"machine": machine.describe(), "rows": rows})
    columns = ("set", "cases", "CPU minutes", "minutes", "peak, GB")
    cells = [
        [
            row["set"],
            str(row["cases"]),
            f"{row['cpu_minutes']:.1f}",
            f"{row['minutes']:.1f}",
            f"{row['peak_gb']:.1f}",
        ]
        for row in rows
    ]
    print(markdown_table(columns, cells))


if __name__ == "__main__":
    main()
