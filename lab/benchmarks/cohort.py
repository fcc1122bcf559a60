"""What a cohort costs beyond its cases, and what a second worker brings.

``python -m lab.benchmarks.cohort --cases 1000``: tiny cases, one after the other and on workers;
seconds a case beyond reading and running it, and the memory of this process (client and
scheduler) after each tenth of them. ``--patients FOLDER``: the patients of a folder in BraTS's
layout, on one worker of one thread and on two, in turns; cases a minute of two against one; with
``--alone N`` what each of N patients takes.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import statistics
import tempfile
import time
from pathlib import Path

import nibabel as nib
import numpy as np

from perturb_mpm.cohort import (
    CaseReading,
    CaseRecord,
    find_cohort,
    local_workers,
    run_cohort,
)
from perturb_mpm.files import CaseFolders
from perturb_mpm.run import RunSettings

SHAPE = (8, 8, 6)
BLUR_MM, FLOOR = 4.0, 1e-3  # how probabilities are made of a truth
LABELS = (0, 1, 2, 4)


def make(root: Path, cases: int) -> None:
    """Write tiny cases in nnU-Net's layout."""
    images, maps = root / "imagesTs", root / "predicted"
    images.mkdir(parents=True)
    maps.mkdir()
    for number in range(cases):
        rng = np.random.default_rng(number)
        image = rng.uniform(1, 9, SHAPE).astype(np.float32)
        p = rng.dirichlet((1, 1), SHAPE).astype(np.float32)
        nib.save(nib.Nifti1Image(image, np.eye(4)), images / f"P{number:05d}_0000.nii.gz")
        nib.save(nib.Nifti1Image(p, np.eye(4)), maps / f"P{number:05d}.nii.gz")


def resident_mb() -> float:
    found = re.search(r"^VmRSS:\s+(\d+) kB", Path("/proc/self/status").read_text(), re.MULTILINE)
    return int(found[1]) * 1024 / 1e6 if found else float("nan")


def measure(root: Path, out: Path, workers: int) -> None:
    """Run all cases and print what they cost."""
    settings = RunSettings().changed(samples=4, iterations=2, threads=1)
    cases = find_cohort(CaseFolders(root / "imagesTs", (root / "predicted",)))
    inside: list[float] = []
    memory: list[float] = []

    def note(record: CaseRecord) -> None:
        assert record.outcome, record.error
        inside.append(record.seconds)
        if len(inside) % max(1, len(cases) // 10) == 0:
            memory.append(resident_mb())

    def go() -> tuple[float, float]:
        started, busy = time.monotonic(), time.process_time()
        if workers == 0:
            run_cohort(cases, settings, out, finished=note)
        else:
            with local_workers(workers) as client:
                client.wait_for_workers(workers)
                started, busy = time.monotonic(), time.process_time()
                run_cohort(cases, settings, out, client, finished=note)
        return time.monotonic() - started, time.process_time() - busy

    seconds, own = go()
    busy = sum(inside) / max(1, workers)
    name = "serial" if workers == 0 else f"{workers} workers"
    beyond = (seconds - busy) / len(cases)
    print(
        f"{name}: {len(cases)} cases in {seconds:.1f} s, {60 * len(cases) / seconds:.0f} a minute"
    )
    print(f"  {beyond:.3f} s a case beyond the {np.mean(inside):.3f} s of reading and running it")
    if workers:
        print(
            f"  {1000 * own / len(cases):.1f} ms of a core a case in client and scheduler together"
        )
    print("  memory here, MB, tenth by tenth:", *(f"{each:.0f}" for each in memory))
    again = time.monotonic()
    assert run_cohort(cases, settings, out).skipped == len(cases)
    print(
        f"  the same again, all skipped: {time.monotonic() - again:.1f} s, "
        f"page {(out / 'cohort.html').stat().st_size / 1e6:.1f} MB"
    )


def make_probabilities(patients: Path, folder: Path) -> None:
    """Write the blurred truth of every patient as its probabilities."""
    from scipy.ndimage import gaussian_filter

    folder.mkdir()
    for file in sorted(patients.glob("*/*_seg.nii.gz")):
        image = nib.load(file)
        truth = np.asarray(image.dataobj)
        sigma = [BLUR_MM / size for size in image.header.get_zooms()[:3]]
        soft = [gaussian_filter((truth == label).astype(np.float32), sigma) for label in LABELS]
        p = np.maximum(np.stack(soft, axis=-1), FLOOR)
        p /= p.sum(axis=-1, keepdims=True)
        name = file.name.replace("_seg", "")
        nib.save(nib.Nifti1Image(p.astype(np.float32), image.affine), folder / name)


def measure_cases(patients: Path, root: Path, samples: int, most: int) -> None:
    """Print what a case takes: seconds of one core, memory, files and their size."""
    make_probabilities(patients, root / "predicted")
    settings = RunSettings().changed(samples=samples, threads=1, memory="2 GB")
    cases = find_cohort(CaseFolders(patients, (root / "predicted",)), "brats")[:most]
    cores: list[float] = []
    before = time.process_time()

    def note(record: CaseRecord) -> None:
        nonlocal before
        assert record.outcome, record.error
        cores.append(time.process_time() - before)
        files = [each for each in (root / "out" / record.case).rglob("*") if each.is_file()]
        size = sum(each.stat().st_size for each in files)
        print(
            f"{record.case}: {record.outcome.mask_voxels} voxels, {cores[-1]:.1f} s of one core, "
            f"{record.seconds:.1f} s by the clock, {record.peak_memory_mb} MB of memory, "
            f"{len(files)} files of {size / 1e6:.1f} MB",
            flush=True,
        )
        before = time.process_time()

    reading = CaseReading(labels=LABELS)
    run_cohort(cases, settings, root / "out", reading=reading, finished=note)
    print(f"median: {statistics.median(cores):.1f} s of one core with {samples} samples")


def compare_workers(patients: Path, root: Path, samples: int, rounds: int) -> None:
    """Print cases a minute of one and of two workers of one thread each, in turns."""
    make_probabilities(patients, root / "predicted")
    reading = CaseReading(labels=LABELS)
    settings = RunSettings().changed(samples=samples, threads=1, memory="2 GB")
    cases = find_cohort(CaseFolders(patients, (root / "predicted",)), "brats")
    ratios = []
    for turn in range(rounds):
        rates = {}
        for workers in (1, 2):
            out = root / f"out{turn}-{workers}"
            records: list[CaseRecord] = []
            with local_workers(workers) as client:
                client.wait_for_workers(workers)
                started = time.monotonic()
                done = run_cohort(
                    cases, settings, out, client, reading=reading, finished=records.append
                )
                seconds = time.monotonic() - started
            assert done.failed == {}, done.failed
            rates[workers] = 60 * len(cases) / seconds
            each = [record.seconds for record in records]
            print(
                f"{workers} of one thread: {len(cases)} cases in {seconds:.1f} s, "
                f"{rates[workers]:.2f} a minute; {statistics.median(each):.1f} s a case in the "
                f"median, {max(record.peak_memory_mb for record in records)} MB at most; "
                f"load {os.getloadavg()[0]:.1f}",
                flush=True,
            )
            shutil.rmtree(out)
        ratios.append(rates[2] / rates[1])
        print(f"  two against one: {ratios[-1]:.2f} times the cases a minute", flush=True)
    print(f"median of {rounds}: {statistics.median(ratios):.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--patients", type=Path, help="a folder in BraTS's layout, with truths")
    parser.add_argument("--samples", type=int, default=200, help="of each patient")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--alone", type=int, help="only measure so many patients, one by one")
    parser.add_argument("--cases", type=int, default=200)
    parser.add_argument("--workers", type=int, nargs="*", default=[0, 1, 2], help="0: no Dask")
    options = parser.parse_args()
    root = Path(tempfile.mkdtemp(prefix="cohort-"))
    try:
        if options.patients is not None and options.alone is not None:
            measure_cases(options.patients.resolve(), root, options.samples, options.alone)
            return
        if options.patients is not None:
            compare_workers(options.patients.resolve(), root, options.samples, options.rounds)
            return
        make(root, options.cases)
        for workers in options.workers:
            measure(root, root / f"out{workers}", workers)
            shutil.rmtree(root / f"out{workers}")
    finally:
        shutil.rmtree(root)


if __name__ == "__main__":
    main()
