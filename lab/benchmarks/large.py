"""Sample an image of 134 million voxels: ``python -m lab.benchmarks.large --help``.

Crops of a real network's cases, side by side and mirrored until they fill 512 × 512 × 512 voxels,
with the labels of every second crop numbered on: five labels, a spatial and a bilateral kernel, the
defaults of ``run``. ``doubtful`` leaves out what is settled; the table says what that takes.

With ``--size`` small enough for full sampling, the same is sampled in full too, with the same
noise, and compared.
"""

from __future__ import annotations

import argparse
import time
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lab.benchmarks import machine
from lab.benchmarks.problems import data_folder
from lab.benchmarks.worker import peak_bytes
from lab.network import case_names, read_network_case

CLIP = 1e-6
SIGMA_MM, WEIGHT = 3.0, 0.35  # the kernels of ``run``, times its strength
WIDE_MM, WIDE_SD, WIDE_WEIGHT = 20.0, 0.5, 1.05
FULL_VOXELS = 4_000_000


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="Sample an image far beyond one brain.",
        epilog="example: python -m lab.benchmarks.large --size 512 --samples 20",
    )
    parser.add_argument("--hippocampi", type=Path, help="the folder of the network's cases")
    parser.add_argument("--size", type=int, default=512, help="voxels along each axis")
    parser.add_argument("--samples", type=int, default=20)
    parser.add_argument("--epsilon", type=float, default=0.01, help="settled below this")
    parser.add_argument("--length", type=float, default=8.0, help="of the noise, mm")
    parser.add_argument("--json", type=Path, default=machine.RESULTS / "large.json")
    return parser.parse_args()


def filled(folder: Path, size: int) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Return the energies (5, size, size, size) of crops side by side, and their image."""
    from perturb_mpm import unary_from_probabilities

    cases = [read_network_case(folder, name).case for name in case_names(folder)]
    least = [min(case.mask.shape[axis] for case in cases) for axis in range(3)]
    energies = np.empty((5, size, size, size), dtype=np.float32)
    image = np.empty((size, size, size), dtype=np.float32)
    starts = [range(0, size, step) for step in least]
    for number, corner in enumerate(product(*starts)):
        case = cases[number % len(cases)]
        turned = tuple(slice(None, None, -1 if (c // n) % 2 else 1) for c, n in zip(corner, least))
        cut = tuple(slice(0, n) for n in least)
        p = np.full((5, *least), CLIP, dtype=np.float64)
        first = 2 * (number % 2)
        for label, share in enumerate(np.asarray(case.probabilities)):
            p[label + first if label else 0] = share[cut][turned]
        channel = np.asarray(next(iter(case.images.values())))[cut][turned]
        here = tuple(slice(c, min(c + n, size)) for c, n in zip(corner, least))
        kept = tuple(slice(0, s.stop - s.start) for s in here)
        p /= p.sum(axis=0)
        energies[:, *here] = unary_from_probabilities(p, clip=CLIP)[:, *kept]
        image[here] = ((channel - channel.mean()) / channel.std())[kept]
    return energies, image


def measure(options: argparse.Namespace) -> dict[str, Any]:
    import perturb_mpm as pm

    folder = options.hippocampi or data_folder() / "hippocampus_network"
    energies, image = filled(folder, options.size)
    kernels = [
        pm.SpatialKernel(SIGMA_MM, weight=WEIGHT),
        pm.BilateralKernel(image[np.newaxis], WIDE_MM, WIDE_SD, weight=WIDE_WEIGHT),
    ]
    crf = pm.DenseCRF(energies, kernels, centring=1.0)
    del energies, image, kernels
    began, busy = time.perf_counter(), time.process_time()
    part = pm.doubtful(crf, options.epsilon)
    left_out = time.perf_counter() - began
    sampling = {
        "samples": options.samples,
        "noise_length": options.length,
        "iterations": 40,
        "tolerance": 5e-5,
    }
    whole_crf = crf if crf.grid.voxels <= FULL_VOXELS else None
    del crf
    whole = part.complete(pm.sample(part.crf, **sampling, progress=True))
    sampled, cpu = time.perf_counter() - began, time.process_time() - busy
    peak = peak_bytes() / 1e9
    full = None if whole_crf is None else pm.sample(whole_crf, **sampling)
    row: dict[str, Any] = {
        "voxels": whole.grid.voxels,
        "labels": whole.n_labels,
        "samples": whole.samples,
        "epsilon": options.epsilon,
        "doubtful_share": part.share,
        "missed_voxels": part.missed,
        "leave_out_s": left_out,
        "all_s": sampled,
        "cpu_s": cpu,
        "peak_gb": peak,
        "volumes_ml": (whole.volumes.mean(axis=0) / 1000).tolist(),
        "volumes_sd_ml": (whole.volumes.std(axis=0) / 1000).tolist(),
    }
    if full is not None:
        moved = np.abs(full.voxel_counts.astype(int) - whole.voxel_counts).sum() / 2
        away = whole.volumes.mean(axis=0) - full.volumes.mean(axis=0)
        row["wrong_votes"] = float(moved / full.voxel_counts.sum())
        row["modal_differs"] = float((full.labels != whole.labels).mean())
        row["volume_off_sd"] = float(np.abs(away / full.volumes.std(axis=0)).max())
    return row


def main() -> None:
    options = arguments()
    row = measure(options)
    for name, value in row.items():
        print(f"{name}: {value}")
    kept = options.json.exists()
    results = machine.read_results(options.json) if kept else {"rows": {}}
    results["machine"] = machine.describe()
    results["rows"][str(options.size)] = row
    machine.write_results(options.json, results)


if __name__ == "__main__":
    main()
