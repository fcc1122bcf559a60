"""Figures of docs/benchmarks.md and the README: ``python -m lab.benchmarks.figures``.

They come from the JSON files of full runs.
"""

from __future__ import annotations

from typing import Any

from lab.benchmarks import machine
from lab.benchmarks.machine import read_results
from lab.benchmarks.worker import ROOT

CPU_RESULTS = machine.RESULTS / "cpu.json"
GPU_RESULTS = machine.RESULTS / "gpu.json"
FROZEN_RESULTS = machine.RESULTS / "frozen.json"
PAGE = ROOT / "docs" / "benchmarks.md"
README = ROOT / "README.md"
COST_BEGIN, COST_END = "<!-- cost -->", "<!-- end of cost -->"
BEGIN, END = "<!-- figures -->", "<!-- end of figures -->"
FROZEN_BEGIN, FROZEN_END = "<!-- frozen figures -->", "<!-- end of frozen figures -->"
GPU_BEGIN, GPU_END = "<!-- gpu figures -->", "<!-- end of gpu figures -->"

WHOLE_BRAIN = 1_000_000  # voxels; smaller problems are in the JSON alone

HEADER = (
    "| problem | engine | one problem, ms / iteration | × faster | batch of {batch}, "
    "ms / problem and iteration | × faster | peak GB, batch | error of K·Q/K·1: anywhere, at the "
    "tumour's border |"
)

GPU_HEADER = (
    "| problem | filter | seconds | of these building | peak GB | voxels whose modal label differs "
    "from `exact`'s, %: brain, tumour | largest bias of a label's volume, % |"
)

FROZEN_HEADER = (
    "| kernels, noise, what is updated | CPU s, to prepare | CPU s, in all | s by the clock | "
    "× faster by the clock than every voxel | × faster than a loop through pydensecrf2 |"
)


def cpu_rendered(results: dict[str, Any]) -> str:
    """Return the Markdown of the figures."""
    batch, machine = results["plan"]["batch"], results["machine"]
    cpu = machine["cpu"]
    about = (
        f"Five labels, a spatial and a 7-D bilateral kernel; {cpu}, "
        f"{results['plan']['threads']} threads, {machine['date'][:10]}; pydensecrf2 has one thread "
        "and no batches. `make bench` does it again, on smaller problems too, and explains the "
        "columns."
    )
    lines = [
        about,
        "",
        HEADER.format(batch=batch),
        "|---|---|--:|--:|--:|--:|--:|--:|",
    ]
    lines += [_cpu_row(row) for row in results["rows"] if row["voxels"] >= WHOLE_BRAIN]
    lines += ["", *_sampling(results["rows"])]
    return "\n".join(lines)


def _cpu_row(row: dict[str, Any]) -> str:
    name = f"{row['problem']}, {row['voxels'] / 1e6:.2f} M voxels, {row['setting']}"
    error = row["error"]
    cells = [
        name,
        row["engine"],
        _number(row["one_s"], 1e3),
        _number(row["one_speedup"]),
        _number(row["batch_s"], 1e3),
        _number(row["batch_speedup"]),
        _number(row["batch_peak_gb"]),
        f"{error['rms']:.4f}, {error['rms_border']:.4f}" if error else "–",
    ]
    return "| " + " | ".join(cells) + " |"


def _sampling(rows: list[dict[str, Any]]) -> list[str]:
    sampled = [row for row in rows if row["sample_speedup"] is not None]
    return [
        f"200 samples of 10 iterations on {row['problem']} ({row['setting']}), from arrays to "
        f"posterior: {row['sample_s']:.0f} s{_correlated(row, 0)}, "
        f"{row['sample_peak_gb']:.1f} GB at most; {row['sample_speedup']:.1f} times faster than a "
        "loop through pydensecrf2."
        for row in sampled
    ]


def _correlated(row: dict[str, Any], digits: int) -> str:
    """Return the clause of correlated noise, empty where it was not measured."""
    seconds = row.get("sample_correlated_s")
    return "" if seconds is None else f", {seconds:.{digits}f} s with noise over 20 mm and 60 mm"


def _number(value: float | None, factor: float = 1.0) -> str:
    return "–" if value is None else f"{float(f'{value * factor:.3g}'):g}"


def cost_rendered(cpu: dict[str, Any], gpu: dict[str, Any]) -> str:
    """Return what sampling a whole brain costs, in two lines."""
    row = next(row for row in cpu["rows"] if row["sample_speedup"] is not None)
    fast = next(each for each in gpu["rows"] if each["problem"] == row["problem"])
    return (
        f"200 samples of a brain of {row['voxels'] / 1e6:.1f} million voxels take "
        f"{row['sample_s']:.0f} s and {row['sample_peak_gb']:.1f} GB on "
        f"{cpu['plan']['threads']} CPU threads,\n{fast['sample_s']:.1f} s on one "
        f"{gpu['machine']['gpu']}; a loop through pydensecrf2 takes {row['sample_speedup']:.0f} "
        "times as long on that CPU."
    )


def with_figures(page: str, figures: str, begin: str = BEGIN, end: str = END) -> str:
    """Return the page with its figures replaced."""
    before, rest = page.split(begin, 1)
    after = rest.split(end, 1)[1]
    return f"{before}{begin}\n{figures}\n{end}{after}"


def gpu_rendered(results: dict[str, Any]) -> str:
    """Return the Markdown of the figures."""
    machine, plan = results["machine"], results["plan"]
    about = (
        f"{plan['samples']} samples of {plan['iterations']} iterations, five labels, a spatial and "
        "a 7-D bilateral kernel, from the CRF's arrays on the host to its votes on the host, after "
        f"compilation; one {machine['gpu']}, {machine['date'][:10]}. "
        "`python -m lab.benchmarks.gpu` does it again."
    )
    lines = [about, "", GPU_HEADER, "|---|---|--:|--:|--:|--:|--:|"]
    for row in results["rows"]:
        lines += _gpu_rows(row)
    lines += ["", *(_gpu_sentence(row) for row in results["rows"]), "", results["peers"]]
    return "\n".join(lines)


def _gpu_rows(row: dict[str, Any]) -> list[str]:
    name = f"{row['problem']}, {row['voxels'] / 1e6:.2f} M voxels, {row['setting']}"
    lines = []
    for accuracy in ("plain", "calibrated", "accurate"):
        found, error = row[accuracy], row["against_exact"][accuracy]
        bias = max(error["volume_bias"], key=abs)
        cells = [
            name,
            accuracy,
            f"{found['job_s']:.2f}",
            f"{found['parts_s']['prepare']:.2f}",
            f"{found['peak_gb']:.0f}",
            f"{100 * error['share']:.3f}, {100 * error['share_in_tumour']:.2f}",
            f"{100 * bias:+.1f}",
        ]
        lines.append("| " + " | ".join(cells) + " |")
    exact, seeds = row["exact"], row["two_seeds"]
    useful = f"{exact['useful_tflop_per_s']:.0f} TFLOP/s"
    lines.append(f"| {name} | exact, {useful} | {exact['job_s']:.0f} | | | – | – |")
    differ = f"{100 * seeds['share']:.3f}, {100 * seeds['share_in_tumour']:.2f}"
    lines.append(f"| {name} | `calibrated`, two noise seeds | | | | {differ} | |")
    return lines


def _gpu_sentence(row: dict[str, Any]) -> str:
    cpu, small = row["plain_equals_cpu"], row["small_memory"]
    same = all([*row["bits"].values(), small["same_bits"]])
    bits = "the same bits" if same else "OTHER BITS"
    return (
        f"- {row['problem']}, {row['setting']}: `sample` as a whole, from the CRF to the "
        f"posterior, takes {row['sample_s']:.2f} s{_correlated(row, 2)}. In 8 GB of memory the "
        f"votes take {small['job_s']:.2f} s; in any chunks and on every run they are {bits}. "
        f"`plain` gives the CPU's modal labels in {100 * cpu['share']:.4f} % of the voxels. The "
        f"error of `exact` on rows summed in float64 is "
        f"{row['filter_error']['exact_maximum']:.1e} at most."
    )


def render_frozen(results: dict[str, Any]) -> str:
    """Return the Markdown of what frozen voxels and converged samples cost."""
    rows, machine = results["rows"], results["machine"]
    about = (
        f"BraTS2021_01658 at 1 mm with probabilities of trees, {results['samples']} samples from "
        f"arrays to posterior; {machine['cpu']}, {results['threads']} threads, "
        f"{machine['date'][:10]}. `python -m lab.benchmarks.frozen --model MODEL.npz` does it "
        "again."
    )
    lines = [about, "", FROZEN_HEADER, "|---|--:|--:|--:|--:|--:|"]
    peer, one = rows["pydensecrf2"], rows["one problem, an iteration"]["clock_s"]
    full = 0.0
    for name, row in rows.items():
        if "prepare_s" not in row:
            continue
        is_full = "every voxel" in name
        full = row["clock_s"] if is_full else full
        cells = [
            name,
            f"{row['prepare_s']:.1f}",
            f"{row['all_s']:.0f}",
            f"{row['clock_s']:.0f}",
            "–" if is_full else f"{full / row['clock_s']:.1f}",
            f"{peer['all_s'] / row['clock_s']:.0f}" if name.startswith("paper") else "",
        ]
        lines.append("| " + " | ".join(cells) + " |")
    alone = (
        f"One problem alone, an iteration: {1000 * one:.0f} ms, {peer['step_s'] / one:.1f} times "
        "as fast as pydensecrf2, which has one thread."
    )
    return "\n".join([*lines, "", alone])


if __name__ == "__main__":
    on_cpu, on_gpu = read_results(CPU_RESULTS), read_results(GPU_RESULTS)
    text = with_figures(PAGE.read_text(encoding="utf-8"), cpu_rendered(on_cpu))
    text = with_figures(text, gpu_rendered(on_gpu), GPU_BEGIN, GPU_END)
    frozen = read_results(FROZEN_RESULTS)
    text = with_figures(text, render_frozen(frozen), FROZEN_BEGIN, FROZEN_END)
    PAGE.write_text(text, encoding="utf-8")
    cost = cost_rendered(on_cpu, on_gpu)
    text = with_figures(README.read_text(encoding="utf-8"), cost, COST_BEGIN, COST_END)
    README.write_text(text, encoding="utf-8")
