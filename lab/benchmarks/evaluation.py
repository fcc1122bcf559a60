"""Time and memory of evaluating one whole patient with 200 counted samples.

python -m lab.benchmarks.evaluation
"""

from __future__ import annotations

import resource
import time

import numpy as np

from lab.benchmarks import machine
from perturb_mpm.evaluation import evaluate_case, from_posterior
from perturb_mpm.model import Grid
from perturb_mpm.posterior import Posterior

SHAPE = (240, 240, 155)
SAMPLES, LABELS = 200, 5
REGIONS = {"whole tumour": (1, 2, 3, 4), "tumour core": (1, 3, 4), "enhancing tumour": (4,)}
RESULTS = machine.RESULTS / "evaluation.json"


def made_up_posterior() -> tuple[Posterior, np.ndarray]:
    """Return votes that waver at every border of nested shells, and another truth."""
    rng = np.random.default_rng(0)
    x, y, z = np.ogrid[-1:1:240j, -1:1:240j, -1:1:155j]
    grid = Grid(SHAPE, (1.0, 1.0, 1.0), x**2 + y**2 + z**2 < 0.56)
    radius = grid.gather(np.sqrt((x - 0.2) ** 2 + (y - 0.1) ** 2 + z**2))
    limits = np.array([0.15, 0.18, 0.25, 0.4])
    shells = np.array([1, 4, 3, 2, 0])
    counts = np.zeros((LABELS, grid.voxels), dtype=np.uint16)
    volumes = np.empty((SAMPLES, LABELS))
    everyone = np.arange(grid.voxels)
    for sample in range(SAMPLES):
        moved = radius + 0.02 * rng.normal(size=grid.voxels, scale=0.5) + 0.01 * rng.normal()
        labels = shells[np.searchsorted(limits, moved)]
        counts[labels, everyone] += 1
        volumes[sample] = np.bincount(labels, minlength=LABELS)
    truth = grid.scatter(shells[np.searchsorted(limits, radius + 0.015)], 0)
    posterior = Posterior(
        grid=grid,
        counts=counts,
        sample_index=np.arange(SAMPLES),
        volumes=volumes,
        problem="shells",
        parameters={},
    )
    return posterior, truth


def main() -> None:
    posterior, truth = made_up_posterior()
    started, cpu = time.perf_counter(), time.process_time()
    rows = evaluate_case(from_posterior(posterior), truth, REGIONS)
    result = {
        "machine": machine.describe(),
        "voxels": posterior.grid.voxels,
        "samples": SAMPLES,
        "numbers": len(rows),
        "wall_s": time.perf_counter() - started,
        "cpu_s": time.process_time() - cpu,
        "peak_gb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6,
    }
    machine.write_results(RESULTS, result)
    print({name: value for name, value in result.items() if name != "machine"})


if __name__ == "__main__":
    main()
