"""Time frozen voxels and converged samples: ``python -m lab.benchmarks.frozen --help``.

From arrays to posterior, in one process, beside full sampling of ten iterations and, where
pydensecrf2 is at hand, its loop over the same perturbed problems, which has one thread. Seconds of
the CPU, which the machine's other work changes least, and by the clock, the quicker of two rounds.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np

from lab.benchmarks import machine, peer
from lab.benchmarks.problems import case_folder
from lab.benchmarks.worker import peak_bytes

HOLD, TOLERANCE, MOST_ITERATIONS = 0.005, 5e-5, 40
PEER_SAMPLES = 2
ROUNDS = 2
"""How often every way is timed, one after the other each time; the quicker time counts."""


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="Frozen voxels and converged samples, beside full sampling and pydensecrf2.",
        epilog="example: python -m lab.benchmarks.frozen --model model.npz --samples 200",
    )
    parser.add_argument("--model", type=Path, required=True, help="a model that `train` wrote")
    parser.add_argument("--case", type=Path, default=case_folder(), help="a folder of BraTS")
    parser.add_argument("--samples", type=int, default=200)
    parser.add_argument("--threads", type=int, help="of ours; all cores where it is left out")
    parser.add_argument("--json", type=Path, default=machine.RESULTS / "frozen.json")
    return parser.parse_args()


def ways(samples: int) -> dict[str, tuple[Any, Any]]:
    """Return settings of the kernels and of sampling for each way, by name."""
    from perturb_mpm.run import RunSettings
    from perturb_mpm.sampling import Sampling

    paper, usual = RunSettings.of_paper(), RunSettings()
    white = Sampling(samples=samples, noise_length=0.0)
    correlated = Sampling(samples=samples, noise_length=40.0)
    converged = partial(replace, iterations=MOST_ITERATIONS, tolerance=TOLERANCE)
    return {
        "paper, every voxel, 10 iterations": (paper, white),
        f"paper, hold {HOLD:g}, 10 iterations": (paper, replace(white, hold=HOLD)),
        "run, 40 mm, every voxel, 10 iterations": (usual, correlated),
        f"run, 40 mm, tolerance {TOLERANCE:g}": (usual, converged(correlated)),
        "run, white, every voxel, 10 iterations": (usual, white),
        f"run, white, tolerance {TOLERANCE:g}": (usual, converged(white)),
    }


def peer_seconds(case: Any, samples: int) -> dict[str, float]:  # noqa: ANN401
    """Return the seconds of the peer's set-up and of so many samples, by two that were timed."""
    from perturb_mpm.run import RunSettings, build_crf

    python = peer.interpreter()
    if python is None:
        return {}
    crf = build_crf(case, RunSettings.of_paper())
    with tempfile.TemporaryDirectory() as folder:
        kernels = [
            (
                float(term.potts_weight or 0),
                np.ascontiguousarray(term.features().T, dtype=np.float32),
            )
            for term in crf.terms
        ]
        peer.save(Path(folder), np.ascontiguousarray(crf.energies, dtype=np.float32), kernels)
        with peer.start(python) as worker:
            setup = worker.ask("prepare", folder=folder)["setup_s"]
            one = worker.ask("step", count=3)["seconds"]
            drawn = worker.ask("sample", folder=folder, samples=PEER_SAMPLES, iterations=10)
    each = float(np.median(drawn["seconds"]))
    return {"setup_s": setup, "sample_s": each, "all_s": setup + samples * each, "step_s": min(one)}


def timed(work: Callable[[], object]) -> tuple[float, float]:
    """Return the seconds of the CPU and by the clock."""
    began, busy = time.perf_counter(), time.process_time()
    work()
    return time.process_time() - busy, time.perf_counter() - began


def main() -> None:
    options = arguments()
    from lab.frozen import warm_up
    from perturb_mpm.engines import Compute, prepare
    from perturb_mpm.files import find_labelled_cases
    from perturb_mpm.run import RunSettings, build_crf
    from perturb_mpm.sampling import Sampler
    from perturb_mpm.segmenter import SegmenterModel
    from perturb_mpm.tune import classify_cases

    files = next(
        f for f in find_labelled_cases(options.case.parent, "brats") if f.name == options.case.name
    )
    scheme = SegmenterModel.load(options.model).labels
    case = classify_cases([files], options.model, scheme)[files.name]
    rows: dict[str, dict[str, float]] = {}
    results = {
        "machine": machine.describe(),
        "samples": options.samples,
        "threads": options.threads or machine.cores(),
        "rows": rows,
    }
    for name, (settings, sampling) in ROUNDS * [*ways(options.samples).items()]:
        if name not in rows:
            warm_up(case, settings, sampling)
        crf = build_crf(case, settings)
        sampler = Sampler(crf, sampling, Compute(engine="cpu", threads=options.threads))
        parts = [timed(work) for work in (sampler.prepare, sampler.mean_field, sampler.draw)]
        (first, second, seconds), clock = zip(*parts, strict=True)
        ready, wall = first + second, sum(clock)
        row = {
            "prepare_s": ready,
            "draw_s": seconds,
            "all_s": ready + seconds,
            "clock_s": wall,
            "peak_gb": rows.get(name, {}).get("peak_gb", peak_bytes() / 1e9),  # so far
        }
        rows[name] = min(rows.get(name, row), row, key=itemgetter("clock_s"))
        print(
            f"{name}: {ready:.1f} + {seconds:.1f} CPU s, {wall:.1f} s by the clock, "
            f"peak {peak_bytes() / 1e9:.2f} GB",
            flush=True,
        )
    crf = build_crf(case, RunSettings.of_paper())
    solver = prepare(crf, "cpu", batch=1, threads=options.threads)
    solver.load(crf.energies[np.newaxis])
    solver.step(watched=False)
    one = min(timed(lambda: solver.step(watched=False))[1] for _ in range(5))
    rows["one problem, an iteration"] = {"clock_s": one}
    if theirs := peer_seconds(case, options.samples):
        rows["pydensecrf2"] = theirs
        frozen = rows[f"paper, hold {HOLD:g}, 10 iterations"]["clock_s"]
        print(
            f"pydensecrf2: {theirs['all_s']:.0f} s, {theirs['all_s'] / frozen:.1f} times hold's; "
            f"an iteration of one problem {theirs['step_s'] / one:.1f} times ours"
        )
    machine.write_results(options.json, results)


if __name__ == "__main__":
    main()
