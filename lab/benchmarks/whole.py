"""Time the whole command: ``python -m lab.benchmarks.whole --help``.

``perturb-mpm run`` on one real patient at 1 mm, from starting Python to the last file: first with
an empty folder of compiled kernels, then with a full one. The probabilities are a real network's
at 2 mm, interpolated, as networks' own exports do. Stages are those of ``summary.json``.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lab.benchmarks import machine
from lab.benchmarks.figures import PAGE, with_figures
from lab.benchmarks.problems import CASE, case_folder
from lab.benchmarks.worker import ROOT
from lab.words import markdown_table, paragraph

SEQUENCES = ("t1", "t1ce", "t2", "flair")
RESULTS = machine.RESULTS / "whole.json"
BEGIN, END = "<!-- whole figures -->", "<!-- end of whole figures -->"


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="The whole command on one patient, first and later.",
        epilog="example: python -m lab.benchmarks.whole --cores 2 --beside /tmp/older",
    )
    parser.add_argument("--case", type=Path, default=case_folder(), help="a folder of BraTS, 1 mm")
    parser.add_argument(
        "--probabilities",
        type=Path,
        default=case_folder().parents[1] / "glioma_network" / "probabilities" / f"{CASE}.npz",
        help="a network's .npz, at 2 mm or 1 mm",
    )
    parser.add_argument("--engine", choices=("cpu", "gpu"), nargs="+", default=["cpu"])
    parser.add_argument("--cores", type=int, nargs="+", default=[machine.cores()])
    parser.add_argument("--repeats", type=int, default=3, help="runs after the first")
    parser.add_argument("--beside", type=Path, help="the checkout of another version, timed too")
    parser.add_argument("--keep", action="store_true", help="keep what other machines measured")
    parser.add_argument("--json", type=Path, default=RESULTS)
    parser.add_argument("--render", action="store_true", help="only write the page's table anew")
    return parser.parse_args()


def interpolate(probabilities: NDArray[Any], shape: tuple[int, ...]) -> NDArray[np.float32]:
    """Return (L, z, y, x) probabilities on a finer grid whose voxels share their corners."""
    from scipy.ndimage import map_coordinates

    ratios = [round(n / m) for n, m in zip(shape, probabilities.shape[1:], strict=True)]
    axes = [(np.arange(n) + 0.5) / r - 0.5 for n, r in zip(shape, ratios, strict=True)]
    at = np.meshgrid(*axes, indexing="ij")
    maps = [map_coordinates(each, at, order=1, mode="nearest") for each in probabilities]
    found = np.stack(maps).astype(np.float32)
    found /= found.sum(axis=0)
    return found


def make_case(folder: Path, source: Path, image: Path) -> Path:
    """Write the probabilities on the grid of the image, as nnU-Net does."""
    import nibabel

    with np.load(source) as archive:
        given = archive["probabilities"].astype(np.float32)
    shape = nibabel.load(image).shape[::-1]  # type: ignore[attr-defined]
    path = folder / "case.npz"
    np.savez_compressed(path, probabilities=interpolate(given, shape))
    return path


def time_run(
    command: list[str], environment: dict[str, str], cores: int, output: Path
) -> dict[str, Any]:
    """Return clock, CPU seconds, memory and stages of one run in a process of its own."""
    chosen = set(sorted(os.sched_getaffinity(0))[:cores])
    began = time.monotonic()
    child = os.fork()
    if child == 0:
        os.sched_setaffinity(0, chosen)
        os.execvpe(command[0], command, environment)  # noqa: S606 - this program and no other
    _, status, used = os.wait4(child, 0)
    clock = time.monotonic() - began
    if status != 0:
        raise SystemExit(f"{' '.join(command)} ended with {status}")
    timings = json.loads((output / "summary.json").read_text())["timings_s"]
    inside = timings.pop("total")
    return {
        "clock_s": round(clock, 2),
        "cpu_s": round(used.ru_utime + used.ru_stime, 2),
        "peak_gb": round(used.ru_maxrss / 1e6, 2),
        "stages_s": {"starting and reading the files": round(clock - inside, 2), **timings},
    }


def measure(args: argparse.Namespace) -> list[dict[str, Any]]:
    rows = []
    images = [args.case / f"{args.case.name}_{each}.nii.gz" for each in SEQUENCES]
    versions = {"this version": ROOT, **({"before": args.beside} if args.beside else {})}
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        probabilities = make_case(folder, args.probabilities, images[0])
        for name, tree in versions.items():
            for engine in args.engine:
                for cores in args.cores:
                    kernels = folder / f"kernels-{name}-{engine}-{cores}"
                    environment = {
                        **os.environ,
                        "PYTHONPATH": f"{tree / 'src'}",
                        "PERTURB_MPM_CACHE": str(kernels),
                        "TRITON_CACHE_DIR": str(kernels / "triton"),
                    }
                    for number in range(args.repeats + 1):
                        output = folder / f"out-{len(rows)}"
                        command = [sys.executable, "-c", "from perturb_mpm.cli import main; main()"]
                        command += ["run", "--image", *map(str, images), "--reference"]
                        command += [str(images[0]), "--probabilities", str(probabilities)]
                        command += ["--labels", "0", "1", "2", "4", "--samples", "200", "--quiet"]
                        command += ["--seed", "7", "--engine", engine, "--output", str(output)]
                        found = time_run(command, environment, cores, output)
                        about = {"version": name, "engine": engine, "cores": cores}
                        rows.append({**about, "first": number == 0, **found})
                        print(json.dumps(rows[-1]), flush=True)
    return rows


def rows_of_others(results: dict[str, Any], here: dict[str, Any]) -> list[dict[str, Any]]:
    """Return what other machines than this one measured, named by the machine and the day."""
    about = results["machine"]
    kept = [row for row in results["rows"] if row["version"] not in ("this version", "before")]
    if about["cpu"] == here["cpu"]:
        return kept
    name = f"{about['date'][:10]} on {about.get('gpu') or about['cpu']}"
    own = [row for row in results["rows"] if row["version"] == "this version"]
    return kept + [{**row, "version": name} for row in own]


def render(results: dict[str, Any]) -> str:
    """Return the Markdown of the figures."""
    about, rows = results["machine"], results["rows"]
    groups: dict[tuple[str, str, int], list[dict[str, Any]]] = {}
    for row in rows:
        groups.setdefault((row["version"], row["engine"], row["cores"]), []).append(row)
    table, stages = [], {}
    for (name, engine, cores), found in groups.items():
        later = [row for row in found if not row["first"]]
        middle = {
            key: statistics.median(row[key] for row in later)
            for key in ("clock_s", "cpu_s", "peak_gb")
        }
        first = next(row["clock_s"] for row in found if row["first"])
        words = f"{name}, {engine}, {cores} cores"
        figures = (first, middle["clock_s"], middle["cpu_s"], middle["peak_gb"])
        table.append([words, *(f"{each:.3g}" for each in figures)])
        if name == "this version":
            stages[words] = sorted(later, key=lambda row: row["clock_s"])[len(later) // 2]
    names = list(dict.fromkeys(s for row in stages.values() for s in row["stages_s"]))
    profile = [
        [name, *(f"{row['stages_s'].get(name, 0.0):.2f}" for row in stages.values())]
        for name in names
    ]
    gpu = f" and {about['gpu']}" if about.get("gpu") else ""
    about_run = (
        f"{CASE} at 1 mm, four sequences, 200 samples with the defaults of `run`, from starting "
        f"Python to the last file; {about['cpu']}{gpu}, {about['date'][:10]}. A first run also "
        "compiles kernels. `python -m lab.benchmarks.whole` does it again."
    )
    header = ["", "first run, s", "later, s by the clock", "CPU s", "peak GB"]
    parts = [
        paragraph(about_run),
        markdown_table(header, table),
        "Where the time of a later run goes, seconds by the clock:",
        markdown_table(["stage", *stages], profile),
    ]
    return "\n\n".join(parts)


def main() -> None:
    args = arguments()
    if not args.render:
        missing = [str(path) for path in (args.case, args.probabilities) if not path.exists()]
        if missing:
            print(f"left out, the patient is not here: {', '.join(missing)}")
            return
        here = machine.describe()
        others = rows_of_others(machine.read_results(args.json), here) if args.keep else []
        machine.write_results(args.json, {"machine": here, "rows": [*measure(args), *others]})
    text = render(machine.read_results(args.json))
    print(text)
    if args.json == RESULTS:
        page = with_figures(PAGE.read_text(encoding="utf-8"), text, BEGIN, END)
        PAGE.write_text(page, encoding="utf-8")


if __name__ == "__main__":
    main()
