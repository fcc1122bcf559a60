"""How far sampled volumes spread, and whether the true volume is among them, on real patients."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from lab.console import write_text
from lab.patients import Patient
from lab.volumes.patients import (
    KINDS,
    REGIONS,
    patient_folders,
    read_patient,
    region_ml,
    worsen,
)
from perturb_mpm.biomarkers import OFFSET_ML, crps
from perturb_mpm.engines import Solver
from perturb_mpm.model import DenseCRF
from perturb_mpm.posterior import Tally
from perturb_mpm.progress import Progress
from perturb_mpm.run import RunSettings, assumed_length_mm, build_crf
from perturb_mpm.sampling import Sampling

ASSUMED = "assumed"  # the length that run takes where nobody says one
LENGTHS: dict[str, float | None] = {
    "0": 0.0,
    "10": 10.0,
    "20": 20.0,
    "40": 40.0,
    "80": 80.0,
    "inf": math.inf,
    ASSUMED: None,
}

# What `run` took when the rule of the radius was chosen: kernels that move no volume.
KERNELS = RunSettings().changed(temperature=1.0, strength=0.35, centring=1.0)
SEED = 0
ITERATIONS = 10
SAMPLES = 32
QUICK_SAMPLES = 8
QUICK_PATIENTS = 2
LEVEL = 0.95
ROUNDING_ML = 1e-6  # of volumes that are equal in voxels

CSV_NAME = "volumes.csv"
PAGE_NAME = "volumes.md"


def sampled_volumes_ml(crf: DenseCRF, solver: Solver, law: Sampling) -> NDArray[np.float64]:
    """Return the volume of each label in each sample in ml, (S, L): those of ``pm.sample``.

    A prepared solver is taken because it does not depend on the noise, and preparing costs as
    much as twenty samples.
    """
    tally = Tally(crf.grid, crf.n_labels, conditional=False)
    for first in range(0, law.samples, solver.batch):
        part = np.arange(first, min(first + solver.batch, law.samples))
        solver.perturb(law.perturbation, part)
        for left in range(law.iterations - 1, -1, -1):
            solver.step(watched=left == 0)
        sizes = solver.count_votes(tally.counts)  # (B, L)
        tally.add_sizes(sizes, np.zeros(len(sizes)))
    volumes: NDArray[np.float64] = tally.sizes.astype(np.float64)
    volumes *= math.prod(crf.grid.spacing) / 1000.0
    return volumes


@dataclass(frozen=True)
class MeasuredVolume:
    """One region of one patient under one kind of unaries and one length of the noise.

    Ratios are shares, not per cent. The coefficient of variation is empty in the file where no
    sample has the region. The CRPS is of log(V + 0.1 ml).
    """

    patient: str
    unaries: str
    region: str
    noise: str
    noise_length_mm: float
    samples: int
    truth_ml: float
    mean_ml: float
    sd_ml: float
    coefficient_of_variation: float
    lower_ml: float
    upper_ml: float
    width_over_truth: float
    error_over_truth: float
    truth_inside: int
    crps_log: float


def reproduce_volumes(
    data: str | Path,
    output: str | Path,
    *,
    quick: bool = False,
    progress: Progress | None = None,
) -> list[MeasuredVolume]:
    """Sample segmentations of every patient; write volumes.csv and volumes.md, return the rows.

    Parameters
    ----------
    data
        The folder of the patients, or one that has it as ``brats2021_2mm``.
    output
        The folder to write to, which must exist.
    quick
        Take two patients and 8 samples instead of all patients and 32.
    progress
        Called with (runs done, runs in all) after every patient, unaries and length.
    """
    from lab.volumes.volume_page import page

    folders = patient_folders(data)
    samples = SAMPLES
    if quick:
        folders, samples = folders[:QUICK_PATIENTS], QUICK_SAMPLES
    runs = len(folders) * len(KINDS) * len(LENGTHS)
    rows: list[MeasuredVolume] = []
    done = 0
    for folder in folders:
        for found in _measure_patient(read_patient(folder), samples):
            rows.extend(found)
            done += 1
            if progress is not None:
                progress(done, runs)
    write_text(Path(output) / CSV_NAME, volumes_csv(rows))
    write_text(Path(output) / PAGE_NAME, page(rows, iterations=ITERATIONS, seed=SEED, quick=quick))
    return rows


def volumes_csv(rows: list[MeasuredVolume]) -> str:
    """Return the rows as CSV, numbers with six digits; what is not a number is empty."""
    text = io.StringIO()
    names = [field.name for field in fields(MeasuredVolume)]
    writer = csv.DictWriter(text, names, lineterminator="\n")
    writer.writeheader()
    for row in rows:
        writer.writerow({name: _cell(value) for name, value in asdict(row).items()})
    return text.getvalue()


def _measure_patient(patient: Patient, samples: int) -> Iterator[list[MeasuredVolume]]:
    """Yield the rows of each kind of unaries and each length of the noise."""
    from perturb_mpm.engines import prepare

    for kind in KINDS:
        case = worsen(patient, kind).case
        crf = build_crf(case, KERNELS)
        solver = prepare(crf, compact=True)
        for name, length in LENGTHS.items():
            law = Sampling(
                samples=samples,
                iterations=ITERATIONS,
                seed=SEED,
                noise_length=assumed_length_mm(case) if length is None else length,
            )
            yield list(_rows(patient, kind, name, law, sampled_volumes_ml(crf, solver, law)))


def _rows(
    patient: Patient, kind: str, noise: str, law: Sampling, volumes: NDArray[np.float64]
) -> Iterator[MeasuredVolume]:
    """Yield a row for every region that the patient has; ``volumes`` is (S, L) in ml."""
    for region, labels in REGIONS.items():
        truth = region_ml(patient, region)
        if truth > 0:
            sampled = volumes[:, list(labels)].sum(axis=1)  # (S,)
            yield _row(patient.name, kind, region, noise, law, truth, sampled)


def _row(
    patient: str,
    kind: str,
    region: str,
    noise: str,
    law: Sampling,
    truth: float,
    sampled: NDArray[np.float64],
) -> MeasuredVolume:
    mean, sd = float(sampled.mean()), float(sampled.std(ddof=1))
    tail = (1.0 - LEVEL) / 2.0
    lower, upper = (float(end) for end in np.quantile(sampled, [tail, 1.0 - tail]))
    return MeasuredVolume(
        patient=patient,
        unaries=kind,
        region=region,
        noise=noise,
        noise_length_mm=law.lengths[0][0],
        samples=len(sampled),
        truth_ml=truth,
        mean_ml=mean,
        sd_ml=sd,
        coefficient_of_variation=sd / mean if mean > 0 else math.nan,
        lower_ml=lower,
        upper_ml=upper,
        width_over_truth=(upper - lower) / truth,
        error_over_truth=mean / truth - 1.0,
        truth_inside=int(lower - ROUNDING_ML <= truth <= upper + ROUNDING_ML),
        crps_log=crps(np.log(sampled + OFFSET_ML), math.log(truth + OFFSET_ML)),
    )


def _cell(value: object) -> str:
    if isinstance(value, float):
        return "" if math.isnan(value) else f"{value:.6g}"
    return str(value)
