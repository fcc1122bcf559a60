"""The README's figures, from the JSON of a full run: ``python -m lab.benchmarks.figures``."""

from __future__ import annotations

from typing import Any

from lab.benchmarks import gpu_figures
from lab.benchmarks.files import read_json
from lab.benchmarks.worker import ROOT

RESULTS = ROOT / "lab/benchmarks/results/cpu.json"
GPU_RESULTS = ROOT / "lab/benchmarks/results/gpu.json"
README = ROOT / "README.md"
BEGIN, END = "<!-- figures -->", "<!-- end of figures -->"
GPU_BEGIN, GPU_END = "<!-- gpu figures -->", "<!-- end of gpu figures -->"

WHOLE_BRAIN = 1_000_000  # voxels; smaller problems are in the JSON alone

HEADER = (
    "| problem | engine | one problem, ms / iteration | × faster | batch of {batch}, "
    "ms / problem and iteration | × faster | peak GB, batch | error of K·Q/K·1: anywhere, at the "
    "tumour's border |"
)


def rendered(results: dict[str, Any]) -> str:
    """Return the Markdown of the figures."""
    batch, machine = results["plan"]["batch"], results["machine"]
    cpu = machine["cpu"]
    about = (
        f"Five labels, a spatial and a 7-D bilateral kernel; {cpu}, "
        f"{results['plan']['threads']} threads, {machine['date'][:10]}; pydensecrf2 has one thread "
        "and no batches. `make bench` does it again, on smaller problems too, and explains the "
        "columns ([benchmarks](lab/benchmarks/README.md))."
    )
    lines = [
        about,
        "",
        HEADER.format(batch=batch),
        "|---|---|--:|--:|--:|--:|--:|--:|",
    ]
    lines += [_row(row) for row in results["rows"] if row["voxels"] >= WHOLE_BRAIN]
    lines += ["", *_sampling(results["rows"])]
    return "\n".join(lines)


def _row(row: dict[str, Any]) -> str:
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
        f"posterior: {row['sample_s']:.0f} s, {row['sample_fields_s']:.0f} s with two smooth "
        f"fields, {row['sample_peak_gb']:.1f} GB at most; {row['sample_speedup']:.1f} times faster "
        "than a loop through pydensecrf2."
        for row in sampled
    ]


def _number(value: float | None, factor: float = 1.0) -> str:
    return "–" if value is None else f"{float(f'{value * factor:.3g}'):g}"


def with_figures(readme: str, figures: str, begin: str = BEGIN, end: str = END) -> str:
    """Return the README with its figures replaced."""
    before, rest = readme.split(begin, 1)
    after = rest.split(end, 1)[1]
    return f"{before}{begin}\n{figures}\n{end}{after}"


if __name__ == "__main__":
    text = with_figures(README.read_text(encoding="utf-8"), rendered(read_json(RESULTS)))
    if GPU_BEGIN in text:
        text = with_figures(text, gpu_figures.rendered(read_json(GPU_RESULTS)), GPU_BEGIN, GPU_END)
    README.write_text(text, encoding="utf-8")
