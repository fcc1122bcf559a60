"""``perturb_mpm.compat.pydensecrf`` beside pydensecrf2: marginals, labels, seconds, memory.

    python -m lab.benchmarks.compat            195 random problems, wide kernels, an image, a volume
    python -m lab.benchmarks.compat --count 0  without the random problems

The same file runs at both ends: without a module name in the peer's Python, which has nothing of
ours. Every measurement is a process of its own, and both libraries take turns. Seconds are those of
one thread of the CPU. Set-up is what a new image costs beyond ten updates of the same one; the
first call is what the first image costs beyond a later one, with compiled kernels on the disk. The
same energies with noise in their last digits show how far rounding alone goes.

Where a kernel is wide, hundreds of thousands of voxels are summed into one vertex of its lattice.
Both libraries are compared there with the same lattice in float64.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

WIDTH, HEIGHT, IMAGE_LABELS = 320, 240, 21
SIDE, VOLUME_LABELS = 128, 5
REPEATS = {"image": 8, "volume": 2}
TURNS = 2
ULP = 6e-8
WIDE_SIDE, WIDE_SIGMA, WIDE_WEIGHT, WIDE_LABELS = 80, 60.0, 6.0, 3
KINDS = ("potts", "negative", "vector", "matrix", "asymmetric")


def problem(number: int) -> tuple[Any, int]:
    """Return one random CRF of every kind in turn, and how often to update it."""
    dcrf, utils = (import_module(f"pydensecrf.{name}") for name in ("densecrf", "utils"))
    rng = np.random.default_rng(1000 + number)
    labels = int(rng.integers(2, 22))
    normalization = number % 4
    strength = 1.0 if normalization else 0.01  # without normalisation a row of K sums to hundreds
    shape: tuple[int, ...] = (int(4 * rng.integers(4, 14)), int(rng.integers(16, 50)))
    if number % 3 == 2:
        shape = tuple(int(4 * n) for n in rng.integers(2, 5, 3))

    def compatibility() -> float | np.ndarray:
        kind = KINDS[number % 5]
        if kind == "potts":
            return float(rng.uniform(0.5, 8)) * strength
        if kind == "negative":
            return -float(rng.uniform(0.1, 1.5)) * strength
        if kind == "vector":
            return (-rng.uniform(0, 5, labels) * strength).astype(np.float32)
        matrix = rng.normal(0, 1.5, (labels, labels)) * strength
        return (matrix + matrix.T if kind == "matrix" else matrix).astype(np.float32)

    size = int(np.prod(shape))
    energies = rng.gamma(1.5, 1.0, (labels, size)).astype(np.float32)
    if len(shape) == 2 and number % 2 == 0:
        crf = dcrf.DenseCRF2D(shape[1], shape[0], labels)
        image = rng.normal(127 + 60 * np.sin(np.arange(shape[1]) / 5)[:, None], 20, (*shape, 3))
        pixels = np.clip(image, 0, 255).astype(np.uint8)
        sxy, reach = tuple(rng.uniform(1, 6, 2).tolist()), float(rng.uniform(5, 60))
        crf.addPairwiseGaussian(sxy, compatibility(), normalization=normalization)
        srgb = tuple(rng.uniform(5, 40, 3).tolist())
        crf.addPairwiseBilateral(reach, srgb, pixels, compatibility(), normalization=normalization)
    else:
        crf = dcrf.DenseCRF(size, labels)
        image = rng.normal(np.sin(np.arange(shape[-1]) / 3)[:, None], 1, (*shape, 2))
        near, far = (rng.uniform(*span, len(shape)).tolist() for span in ((1, 5), (3, 20)))
        features = utils.create_pairwise_gaussian(near, shape)
        crf.addPairwiseEnergy(features, compatibility(), normalization=normalization)
        features = utils.create_pairwise_bilateral(far, 0.7, image, chdim=len(shape))
        crf.addPairwiseEnergy(features, compatibility(), normalization=normalization)
    crf.setUnaryEnergy(energies)
    return crf, int(rng.integers(1, 6))


def image() -> tuple[Callable[[], Any], np.ndarray]:
    """Return what builds the CRF of an image without unaries, and its energies."""
    dcrf = import_module("pydensecrf.densecrf")
    rng = np.random.default_rng(0)
    y, x = np.mgrid[:HEIGHT, :WIDTH]
    waves = [100 + 50 * np.sin(x / 9 + k) + 40 * np.cos(y / 7 - k) for k in range(3)]
    pixels = np.stack(waves, axis=-1) + rng.normal(0, 8, (HEIGHT, WIDTH, 3))
    energies = rng.gamma(1.5, 1, (IMAGE_LABELS, HEIGHT * WIDTH)).astype(np.float32)
    colours = np.clip(pixels, 0, 255).astype(np.uint8)

    def build() -> Any:  # noqa: ANN401
        crf = dcrf.DenseCRF2D(WIDTH, HEIGHT, IMAGE_LABELS)
        crf.addPairwiseGaussian(3, 3)
        crf.addPairwiseBilateral(80, 13, colours, 10)
        return crf

    return build, energies


def volume() -> tuple[Callable[[], Any], np.ndarray]:
    """Return what builds the CRF of a volume with one channel, and its energies."""
    dcrf, utils = (import_module(f"pydensecrf.{name}") for name in ("densecrf", "utils"))
    rng = np.random.default_rng(0)
    at = np.stack(np.mgrid[:SIDE, :SIDE, :SIDE]) / SIDE  # (3, *shape)
    centres = rng.uniform(0.2, 0.8, (VOLUME_LABELS, 3))
    away = np.stack([sum((a - c) ** 2 for a, c in zip(at, centre)) for centre in centres])
    channel = away.argmin(axis=0) + rng.normal(0, 0.3, away.shape[1:])
    energies = 4 * np.sqrt(away - away.min(axis=0)) + rng.gumbel(0, 0.7, away.shape)
    near = utils.create_pairwise_gaussian((3,) * 3, channel.shape)
    wide = utils.create_pairwise_bilateral((10,) * 3, (0.5,), channel[..., np.newaxis], chdim=3)

    def build() -> Any:  # noqa: ANN401
        crf = dcrf.DenseCRF(SIDE**3, VOLUME_LABELS)
        crf.addPairwiseEnergy(near, 2.0)
        crf.addPairwiseEnergy(wide, 4.0)
        return crf

    return build, energies.reshape(VOLUME_LABELS, -1).astype(np.float32)


def wide() -> tuple[np.ndarray, np.ndarray]:
    """Return energies and features of a volume whose kernel is as wide as itself."""
    rng = np.random.default_rng(0)
    energies = rng.gumbel(0, 1, (WIDE_LABELS, WIDE_SIDE**3)).astype(np.float32)
    at = np.stack(np.mgrid[:WIDE_SIDE, :WIDE_SIDE, :WIDE_SIDE]).reshape(3, -1)
    return energies, (at / WIDE_SIGMA).astype(np.float32)


def solve_wide() -> np.ndarray:
    """Return one library's marginals of the volume with a wide kernel."""
    energies, features = wide()
    crf = import_module("pydensecrf.densecrf").DenseCRF(energies.shape[1], WIDE_LABELS)
    crf.setUnaryEnergy(energies)
    crf.addPairwiseEnergy(features, WIDE_WEIGHT)
    return np.array(crf.inference(10))


def solve_wide_in_float64() -> np.ndarray:
    """Return the marginals of that volume, summed in float64 on the same lattice."""
    from scipy.sparse import csr_array

    from perturb_mpm.engines import BLURS, published_gain, softmax
    from perturb_mpm.engines.cpu import Taps, Threads, build, factorize

    energies, features = wide()
    rows = np.ascontiguousarray(features.T)
    lattice, threads = build(rows, BLURS["plain"], Threads(1)), Threads(1)
    chain = factorize(lattice, "symmetric", published_gain(len(features)), threads)
    stages, columns = [], len(rows)
    for taps in (*chain.stages, Taps.of_table(chain.columns, chain.coefficients)):
        shares = taps.coefficients.astype(np.float64)
        stages.append(csr_array((shares, taps.columns, taps.pointers), (taps.rows, columns)))
        columns = taps.rows
    q = softmax(-energies.astype(np.float64), axis=0)
    for _ in range(10):
        filtered = q.T
        for stage in stages:
            filtered = stage @ filtered
        q = softmax(WIDE_WEIGHT * filtered.T - energies, axis=0)
    return q


def time_problem(name: str) -> dict[str, Any]:
    """Return CPU seconds of one problem, MB of memory, and its marginals."""
    build, energies = {"image": image, "volume": volume}[name]()
    whole, updates = [], []
    for _ in range(REPEATS[name]):
        began = time.process_time()
        crf = build()
        crf.setUnaryEnergy(energies)
        crf.inference(10)
        ready = time.process_time()
        found = np.array(crf.inference(10))
        updates.append(time.process_time() - ready)
        whole.append(ready - began)
    peak = peak_megabytes()
    noise = np.random.default_rng(1).standard_normal(energies.shape)
    crf.setUnaryEnergy((energies * (1 + ULP * noise)).astype(np.float32))
    return {
        "first_s": whole[0] - min(whole),
        "whole_s": min(whole),
        "updates_s": min(updates),
        "peak_mb": peak,
        "q": found,
        "rounded": np.array(crf.inference(10)),
    }


def peak_megabytes() -> float:
    """Return this process's largest resident size so far, Linux alone."""
    status = Path("/proc/self/status").read_text(encoding="ascii")
    line = next(line for line in status.splitlines() if line.startswith("VmHWM:"))
    return int(line.split()[1]) * 1024 / 1e6


def solve(path: str, who: str, what: str) -> None:
    """Write what one library makes of an image or a volume, or of so many random problems."""
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:1])  # as many threads
    if who == "ours":
        import_module("perturb_mpm.compat.pydensecrf").install()
    found: dict[str, Any] = {}
    if what == "wide":
        found = {"q": solve_wide()}
    elif not what.isdigit():
        found = time_problem(what)
    for number in range(int(what) if what.isdigit() else 0):
        crf, updates = problem(number)
        found[f"q{number}"] = q = crf.inference(updates)
        found[f"divergence{number}"] = crf.klDivergence(q)
    np.savez(path, **found)


def both(python: str, what: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return what pydensecrf2 and this library make of some problems, each in its own process."""
    results = []
    with tempfile.TemporaryDirectory() as folder:
        for who, program in (("theirs", python), ("ours", sys.executable)):
            path = str(Path(folder, f"{who}.npz"))
            subprocess.run([program, __file__, "--solve", path, who, what], check=True)
            with np.load(path) as file:
                results.append(dict(file))
    return results[0], results[1]


def compare(python: str, name: str) -> dict[str, Any]:
    """Return the figures of one problem: medians of turns, and of the ratios within each."""
    turns = [both(python, name) for _ in range(TURNS)]
    row: dict[str, Any] = {"problem": name}
    for k, who in enumerate(("theirs", "ours")):
        for key in ("first_s", "whole_s", "updates_s", "peak_mb"):
            row[f"{who}_{key}"] = float(np.median([turn[k][key] for turn in turns]))
    for key in ("whole_s", "updates_s", "peak_mb"):
        row[f"ratio_{key}"] = float(np.median([a[key] / b[key] for a, b in turns]))
    theirs, ours = turns[0]
    pairs = {
        "apart": (theirs["q"], ours["q"]),
        "their_rounding": (theirs["q"], theirs["rounded"]),
        "our_rounding": (ours["q"], ours["rounded"]),
    }
    for key, (a, b) in pairs.items():
        row[key] = float(np.abs(a - b).max())
        row[f"{key}_labels"] = int((a.argmax(axis=0) != b.argmax(axis=0)).sum())
    return row


def main(count: int) -> None:
    from lab.benchmarks import machine
    from lab.benchmarks.peer import interpreter

    python = interpreter()
    if python is None:
        sys.exit("PERTURB_MPM_PEER_PYTHON names no Python with pydensecrf2: make peer")
    if count:
        theirs, ours = both(python, str(count))
        pairs = [(theirs[f"q{n}"], ours[f"q{n}"]) for n in range(count)]
        apart = [float(np.abs(a - b).max()) for a, b in pairs]
        pixels = sum(int((a.argmax(axis=0) != b.argmax(axis=0)).sum()) for a, b in pairs)
        print(f"{count} problems: {pixels} pixels differ, |dQ| at most {max(apart):.2g}")
    exact = solve_wide_in_float64()
    for who, found in zip(("pydensecrf2", "perturb_mpm"), both(python, "wide"), strict=True):
        apart_labels = int((found["q"].argmax(axis=0) != exact.argmax(axis=0)).sum())
        away = np.abs(found["q"] - exact).max()
        print(f"wide kernel, {who} against float64: {apart_labels} pixels, |dQ| {away:.2g}")
    rows = [compare(python, name) for name in ("image", "volume")]
    print(json.dumps(rows, indent=2))
    results = {"machine": machine.describe(), "rows": rows}
    machine.write_results(machine.RESULTS / "compat.json", results)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--count", type=int, default=195)
    parser.add_argument("--solve", nargs=3, metavar=("FILE", "WHO", "WHAT"))
    arguments = parser.parse_args()
    if arguments.solve:
        solve(*arguments.solve)
    else:
        main(arguments.count)
