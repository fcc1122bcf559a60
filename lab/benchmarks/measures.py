"""Time measuring beside sampling: ``python -m lab.benchmarks.measures --help``.

CPU seconds of one thread, both in one pass: samples are drawn as ``measure`` draws them, and each
is measured and forgotten. Brains at 1 mm with the probabilities of a network at 2 mm, interpolated.
Peaks of memory are those of the process after a first pass that draws alone, and in the second,
which measures, when a quarter of the samples are done, and all.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from numpy.typing import NDArray

from lab.benchmarks import machine
from lab.benchmarks.figures import with_figures
from lab.benchmarks.problems import data_folder
from lab.benchmarks.worker import ROOT, peak_bytes
from lab.words import markdown_table, paragraph
from perturb_mpm.files import SCHEMES, Case, common_sequences, find_labelled_cases
from perturb_mpm.measures import DEFAULT_MEASURES, MeasuredPatient, Measurer, find_measures
from perturb_mpm.run import RunSettings, build_crf, build_sampler, decide_settings, find_evidence
from perturb_mpm.tune import read_labelled_cases

PAGE = ROOT / "docs" / "measure.md"
BEGIN, END = "<!-- cost figures -->", "<!-- end of cost figures -->"
ASKED = {"volume, diameter, area": ("volume", "diameter", "area"), "the default": DEFAULT_MEASURES}
STRUCTURES = {"whole": (1, 2, 3), "core": (1, 3), "enhancing": (3,), "necrosis": (1,)}
HEADER = ("patient", "voxels", "engine, s", "samples, s", *(f"{n}, s (share)" for n in ASKED),
          "peak GB, drawing alone", "measuring a quarter", "all")  # fmt: skip


def read_fine_case(data: Path, name: str) -> Case:
    """Return a patient at 1 mm with a network's probabilities at 2 mm, interpolated."""
    from scipy.ndimage import zoom

    files = [f for f in find_labelled_cases(data / "brats2021_1mm", "brats") if f.name == name]
    with np.load(data / "glioma_network" / "probabilities" / f"{name}.npz") as file:
        coarse = file["probabilities"].astype(np.float32)  # (L, Z, Y, X)
    factors = (155 / coarse.shape[1], 2, 2)
    p = np.stack([zoom(each, factors, order=1, mode="nearest", grid_mode=True) for each in coarse])
    p = np.maximum(p, 1e-6)
    with TemporaryDirectory() as folder:
        np.savez(Path(folder) / f"{name}.npz", probabilities=p / p.sum(axis=0))
        scheme = SCHEMES["brats2021"]
        return read_labelled_cases(files, Path(folder), common_sequences(files), scheme)[name]


def measure_cost(name: str, case: Case, samples: int) -> tuple[str, ...]:
    """Return a line of the table: sampling and measuring in one pass."""
    settings = RunSettings().changed(samples=samples, threads=1, engine="cpu")
    decided = decide_settings(settings, case, find_evidence(case))
    sampler = build_sampler(build_crf(case, decided), decided)
    began = time.process_time()
    sampler.prepare()
    prepared = time.process_time() - began
    first = sampler.draw(range(samples))  # compiles what is needed
    patient = MeasuredPatient(first.grid, STRUCTURES, first.labels.astype(np.uint8))
    patient = patient.with_votes(first.voxel_counts)
    seconds = dict.fromkeys(ASKED, 0.0)
    measurers = {
        words: Measurer(patient, find_measures(asked, patient)) for words, asked in ASKED.items()
    }
    peaks = [peak_bytes()]

    def keep(part: range, labels: NDArray[np.uint8]) -> None:
        for words, measurer in measurers.items():
            began = time.process_time()
            measurer.add(part, labels)
            seconds[words] += time.process_time() - began

    began = time.process_time()
    for start in range(0, samples, sampler.batch):
        stop = min(start + sampler.batch, samples)
        sampler.draw(range(start, stop), keep=keep)
        if len(peaks) == 1 and 4 * stop >= samples:
            peaks.append(peak_bytes())
    drawing = time.process_time() - began - sum(seconds.values())
    shares = (f"{each:.1f} ({each / drawing:.2f})" for each in seconds.values())
    ends = (f"{each / 1e9:.2f}" for each in (*peaks, peak_bytes()))
    return (name, f"{first.grid.voxels:,}", f"{prepared:.0f}", f"{drawing:.1f}", *shares, *ends)


def main() -> None:
    """Measure, print, and write the table where asked."""
    parser = argparse.ArgumentParser(
        description="Measuring beside sampling, on brains at 1 mm.",
        epilog="example: python -m lab.benchmarks.measures --page",
    )
    parser.add_argument("--data", type=Path, default=data_folder())
    parser.add_argument("--samples", type=int, default=200)
    parser.add_argument("--page", action="store_true", help="put the table into docs/measure.md")
    options = parser.parse_args()
    lines = []
    for folder in sorted((options.data / "brats2021_1mm").iterdir()):
        case = read_fine_case(options.data, folder.name)
        lines.append(measure_cost(folder.name, case, options.samples))
        print(*lines[-1], flush=True)
    about = (
        f"{options.samples} samples of brains at 1 mm, {len(STRUCTURES)} structures; CPU seconds "
        f"of one thread of {machine.cpu_model()} beside other work, measuring also as a share of "
        "drawing the samples; to prepare the engine comes on top. Written by "
        "`python -m lab.benchmarks.measures --page`."
    )
    text = f"{paragraph(about)}\n\n{markdown_table(HEADER, lines)}"
    print(text)
    if options.page:
        PAGE.write_text(with_figures(PAGE.read_text("utf-8"), text, BEGIN, END), "utf-8")


if __name__ == "__main__":
    main()
