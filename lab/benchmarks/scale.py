"""How cost grows with voxels, labels, channels and samples: ``python -m lab.benchmarks.scale``.

Every point is a process of its own with one thread: CPU seconds of preparing the kernels and of
drawing the samples, kernels being compiled, and the most memory. Images are made up: regions around
random centres, one mean a channel and region, noise, and energies of Gumbel noise around the truth.
Sampling is the library's by default: white noise, ten updates of every voxel.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import IO, Any

import numpy as np

from lab.benchmarks import machine
from lab.benchmarks.figures import PAGE, with_figures
from lab.benchmarks.worker import ROOT
from lab.figures import BLACK, BLUE, new_figure, save_png
from lab.words import count, markdown_table, paragraph

RESULTS = machine.RESULTS / "scale.json"
BEGIN, END = "<!-- scale figures -->", "<!-- end of scale figures -->"
PICTURE = "benchmarks-scale.png"
MEMORY = "8 GB"  # that the engine may take
CASES, MACHINES, CORES, SAMPLES = 10_000, 100, 8, 200
BRAINS = {"at 2 mm": 160_000, "at 1 mm": 1_500_000, "at 0.5 mm": 12_000_000}
NOISE = 0.3
BEYOND = 1e8  # voxels; the line is drawn so far


@dataclass(frozen=True)
class Point:
    """The size of one problem."""

    voxels: int = 100_000
    labels: int = 5
    channels: int = 2
    samples: int = 32


SWEEPS: dict[str, tuple[Point, list[int]]] = {
    "voxels": (Point(), [100_000, 300_000, 1_000_000, 3_000_000]),
    "labels": (Point(), [2, 5, 10, 20, 50]),
    "channels": (Point(), [1, 2, 4, 8]),
    "samples": (Point(voxels=30_000), [50, 200, 1_000, 5_000]),
}
QUICK = Point(voxels=1_000, labels=3, channels=1, samples=4)
QUICK_SWEEPS = {
    "voxels": (QUICK, [1_000, 4_000]),
    "labels": (QUICK, [2, 4]),
    "channels": (QUICK, [1, 2]),
    "samples": (QUICK, [2, 8]),
}


def measure(point: Point) -> dict[str, float]:
    """Return CPU seconds and memory of one problem, in this process and on one thread."""
    import perturb_mpm as pm

    def sampler(size: Point) -> pm.Sampler:
        rng = np.random.default_rng(0)
        side = round(size.voxels ** (1 / 3))
        at = np.stack(np.meshgrid(*[np.arange(side, dtype=np.float32) / side] * 3, indexing="ij"))
        nearest = np.full(at.shape[1:], np.inf, dtype=np.float32)
        region = np.zeros(at.shape[1:], dtype=np.uint8)
        for label, centre in enumerate(rng.uniform(0, 1, (size.labels, 3)).astype(np.float32)):
            away = sum((a - c) ** 2 for a, c in zip(at, centre, strict=True))
            region[away < nearest] = label
            np.minimum(nearest, away, out=nearest)
        means = rng.uniform(0, 1, (size.channels, size.labels)).astype(np.float32)
        images = np.stack([mean[region] for mean in means])
        images += np.float32(NOISE) * rng.standard_normal(images.shape, dtype=np.float32)
        unary = np.empty((size.labels, *region.shape), dtype=np.float32)
        for label, energies in enumerate(unary):
            energies[:] = 2 * (region != label) + rng.gumbel(0, 0.7, region.shape)
        spatial = pm.SpatialKernel(sigma=3.0, weight=2.0)
        bilateral = pm.BilateralKernel(images, sigma_space=20.0, sigma_intensity=0.5, weight=4.0)
        compute = pm.Compute(engine="cpu", threads=1, memory=MEMORY)
        return pm.Sampler(pm.DenseCRF(unary, [spatial, bilateral]), pm.Sampling(seed=7), compute)

    sampler(replace(point, voxels=1_000)).draw(range(min(point.samples, 32)))  # compiles
    sampled = sampler(point)
    began = time.process_time()
    sampled.prepare()
    prepared = time.process_time()
    sampled.draw(range(point.samples))
    drawn = time.process_time()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    return {"prepare_s": prepared - began, "sample_s": drawn - prepared, "peak_gb": peak}


def measure_apart(point: Point) -> dict[str, float]:
    """Return what ``measure`` finds in a process of its own, whose memory is its own too."""
    words = json.dumps(asdict(point))
    command = [sys.executable, "-m", "lab.benchmarks.scale", "--point", words]
    answer = subprocess.run(command, check=True, capture_output=True, text=True, cwd=ROOT)
    found: dict[str, float] = json.loads(answer.stdout)
    return found


def sweep(
    sweeps: dict[str, tuple[Point, list[int]]], measured: Callable[[Point], dict[str, float]]
) -> list[dict[str, Any]]:
    """Measure every point of all sweeps."""
    rows: list[dict[str, Any]] = []
    for name, (base, values) in sweeps.items():
        for value in values:
            point = replace(base, **{name: value})
            rows.append({"sweep": name, **asdict(point), **measured(point)})
            print(json.dumps(rows[-1]), flush=True)
    return rows


def of_sweep(rows: list[dict[str, Any]], name: str, key: str) -> tuple[np.ndarray, np.ndarray]:
    """Return what was varied in a sweep, and one figure of each point."""
    chosen = [row for row in rows if row["sweep"] == name]
    return np.array([row[name] for row in chosen]), np.array([row[key] for row in chosen])


def fit(x: np.ndarray, y: np.ndarray) -> tuple[float, float]:
    """Return slope and intercept of log y against log x."""
    slope, intercept = np.polyfit(np.log(x), np.log(y), 1)
    return float(slope), float(intercept)


def predict(rows: list[dict[str, Any]], key: str, voxels: int) -> float:
    """Return a figure of the sweep over voxels at a size that was not measured."""
    slope, intercept = fit(*of_sweep(rows, "voxels", key))
    return float(np.exp(intercept + slope * np.log(voxels)))


def draw(rows: list[dict[str, Any]], file: IO[bytes]) -> None:
    """Draw cost against each of the four, with slopes."""
    figure = new_figure(9.6, 6.8)
    for axes, name in zip(figure.subplots(2, 2).flat, SWEEPS, strict=True):
        for key, words, colour, marker, style in (
            ("sample_s", "drawing the samples", BLACK, "o", "-"),
            ("prepare_s", "preparing the kernels", BLUE, "s", "--"),
        ):
            x, y = of_sweep(rows, name, key)
            slope, intercept = fit(x, y)
            label = f"{words}, slope {slope:.2f}"
            axes.plot(x, y, color=colour, marker=marker, linestyle=style, label=label)
            if name == "voxels" and x[-1] < BEYOND:
                far = np.array([x[-1], BEYOND])
                line = np.exp(intercept + slope * np.log(far))
                axes.plot(far, line * y[-1] / line[0], color=colour, linestyle=":")
        axes.set(xscale="log", yscale="log", xlabel=name, ylabel="CPU seconds")
        if name != "voxels":  # whose decades are enough
            axes.set_xticks(x, [f"{each:,}" for each in x])
        axes.yaxis.set_major_formatter("{x:g}")
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_minor_formatter("")
        axes.grid(visible=True, which="major", color="0.9")
        axes.legend(frameon=False, fontsize="small")
    save_png(figure, file)


def render(results: dict[str, Any]) -> str:
    """Return the Markdown of the figures."""
    about, rows = results["machine"], results["rows"]
    base = Point(**results["base"])
    words = (
        f"One thread of an {about['cpu']}, {about['date'][:10]}. Where nothing else is varied: "
        f"{base.voxels:,} voxels, {count(base.labels, 'label')}, "
        f"{count(base.channels, 'channel')}, {count(base.samples, 'sample')} of 10 iterations; "
        f"samples are varied at {of_sweep(rows, 'samples', 'voxels')[1][0]:,} voxels. Dotted lines "
        "go on with the slope beyond what was measured, to 10⁸ voxels, which nobody ran. "
        "`python -m lab.benchmarks.scale` measures it again."
    )
    table = []
    for name in SWEEPS:
        x, prepare = of_sweep(rows, name, "prepare_s")
        _, sample = of_sweep(rows, name, "sample_s")
        _, peak = of_sweep(rows, name, "peak_gb")
        slopes = [f"{fit(x, y)[0]:.2f}" for y in (prepare, sample)]
        spans = [f"{y[0]:.3g} to {y[-1]:.3g}" for y in (prepare, sample, peak)]
        table.append([name, f"{x[0]:,} to {x[-1]:,}", spans[0], slopes[0], spans[1], slopes[1]])
        table[-1].append(spans[2])
    header = ["", "from … to", "CPU s to prepare", "slope", "CPU s to draw", "slope", "peak GB"]
    cohort = []
    for name, voxels in BRAINS.items():
        each = predict(rows, "prepare_s", voxels)
        each += predict(rows, "sample_s", voxels) * SAMPLES / base.samples
        peak = predict(rows, "peak_gb", voxels)
        hours = CASES * each / 3600
        at_once = MACHINES * CORES
        cohort.append(
            [f"{voxels / 1e6:.2g} million voxels, a brain {name}", f"{each:.0f}", f"{hours:.0f}"]
        )
        cohort[-1] += [f"{60 * hours / at_once:.0f}", f"{peak:.1f}", f"{CORES * peak:.0f}"]
    paper = (
        f"What follows for {CASES:,} cases of {SAMPLES} samples on {MACHINES} machines of {CORES} "
        f"cores, a case a core, by arithmetic and not by trial. It is the sampling of every voxel "
        f"with {count(base.channels, 'channel')} alone: `run` freezes most voxels, and reads and "
        "writes files."
    )
    wide = ["", "CPU s a case", "core-hours", "minutes in all", "GB a case", "GB a machine"]
    picture = (
        "![CPU seconds against voxels, labels, channels and samples, on logarithmic axes: "
        f"drawing grows with all four, preparing with voxels and channels]({PICTURE})"
    )
    parts = [paragraph(words), picture, markdown_table(header, table), paragraph(paper)]
    return "\n\n".join([*parts, markdown_table(wide, cohort)])


def main() -> None:
    parser = argparse.ArgumentParser(
        description="Cost against voxels, labels, channels and samples, on one thread.",
        epilog="example: python -m lab.benchmarks.scale --quick --json /tmp/scale.json",
    )
    parser.add_argument("--quick", action="store_true", help="tiny problems, which show no slopes")
    parser.add_argument("--json", type=Path, default=RESULTS, help="where the figures go")
    parser.add_argument("--render", action="store_true", help="only write page and picture anew")
    parser.add_argument("--point", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.point:
        print(json.dumps(measure(Point(**json.loads(options.point)))))
        return
    if options.quick and options.json == RESULTS:
        parser.error("--quick needs --json: the page shows full measurements")
    if not options.render:
        sweeps = QUICK_SWEEPS if options.quick else SWEEPS
        base = asdict(next(iter(sweeps.values()))[0])
        found = {"machine": machine.describe(), "base": base, "rows": sweep(sweeps, measure_apart)}
        machine.write_results(options.json, found)
    results = machine.read_results(options.json)
    text = render(results)
    print(text)
    folder = PAGE.parent if options.json == RESULTS else options.json.parent
    with (folder / PICTURE).open("wb") as file:
        draw(results["rows"], file)
    if options.json == RESULTS:
        page = with_figures(PAGE.read_text(encoding="utf-8"), text, BEGIN, END)
        PAGE.write_text(page, encoding="utf-8")


if __name__ == "__main__":
    main()
