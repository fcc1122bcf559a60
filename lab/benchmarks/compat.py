"""``perturb_mpm.compat.pydensecrf`` beside pydensecrf2: marginals, labels, seconds.

    python -m lab.benchmarks.compat            195 random problems, then one image of 320×240
    python -m lab.benchmarks.compat --count 20
    python -m lab.benchmarks.compat --count 1 --cores 2

The same file runs at both ends: without a module name in the peer's Python, which has nothing of
ours. Seconds are the best of several: of CPU on one core, on the clock with more. Set-up is what a
new image costs beyond ten updates of the same one.
"""

from __future__ import annotations

import argparse
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

WIDTH, HEIGHT, LABELS = 320, 240, 21
REPEATS = 30
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


def image() -> tuple[np.ndarray, np.ndarray]:
    """Return energies and colours of the image."""
    rng = np.random.default_rng(0)
    y, x = np.mgrid[:HEIGHT, :WIDTH]
    waves = [100 + 50 * np.sin(x / 9 + k) + 40 * np.cos(y / 7 - k) for k in range(3)]
    pixels = np.stack(waves, axis=-1) + rng.normal(0, 8, (HEIGHT, WIDTH, 3))
    energies = rng.gamma(1.5, 1, (LABELS, HEIGHT * WIDTH)).astype(np.float32)
    return energies, np.clip(pixels, 0, 255).astype(np.uint8)


def seconds_of_image(clock: Callable[[], float]) -> list[tuple[float, float]]:
    """Return what the image took from the beginning, and ten more updates from the start."""
    dcrf = import_module("pydensecrf.densecrf")
    energies, pixels = image()
    seconds = []
    for _ in range(REPEATS):
        began = clock()
        crf = dcrf.DenseCRF2D(WIDTH, HEIGHT, LABELS)
        crf.setUnaryEnergy(energies)
        crf.addPairwiseGaussian(3, 3)
        crf.addPairwiseBilateral(80, 13, pixels, 10)
        crf.inference(10)
        whole = clock()
        crf.inference(10)
        seconds.append((whole - began, clock() - whole))
    return seconds[1:]  # the first compiles


def solve(path: str, who: str, count: int, cores: int) -> None:
    """Write marginals and divergences of all problems, and the seconds of the image."""
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:cores])  # as many threads
    if who == "ours":
        import_module("perturb_mpm.compat.pydensecrf").install()
    found: dict[str, Any] = {}
    for number in range(count):
        crf, updates = problem(number)
        found[f"q{number}"] = q = crf.inference(updates)
        found[f"divergence{number}"] = crf.klDivergence(q)
    clock = time.process_time if cores == 1 else time.perf_counter
    found["seconds"] = np.array(seconds_of_image(clock))
    np.savez(path, **found)


def main(count: int, cores: int) -> None:
    from lab.benchmarks.peer import interpreter

    python = interpreter()
    if python is None:
        sys.exit("PERTURB_MPM_PEER_PYTHON names no Python with pydensecrf2: make peer")
    results = {}
    with tempfile.TemporaryDirectory() as folder:
        for who, program in (("theirs", python), ("ours", sys.executable)):
            path = str(Path(folder, f"{who}.npz"))
            options = ["--count", str(count), "--cores", str(cores)]
            subprocess.run([program, __file__, "--solve", path, who, *options], check=True)
            with np.load(path) as file:
                results[who] = dict(file)
    theirs, ours = results["theirs"], results["ours"]
    pairs = [(theirs[f"q{n}"], ours[f"q{n}"]) for n in range(count)]
    apart = [float(np.abs(a - b).max()) for a, b in pairs]
    pixels = sum(int((a.argmax(axis=0) != b.argmax(axis=0)).sum()) for a, b in pairs)
    print(f"{count} problems: {pixels} pixels differ, |dQ| at most {max(apart):.2g}")
    for who, found in results.items():
        whole, updates = found["seconds"].min(axis=0)
        setup = f"set-up {whole - updates:.3f} s, ten updates {updates:.3f} s"
        print(f"{who}: {setup}, together {whole:.3f} s")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--count", type=int, default=195)
    parser.add_argument("--cores", type=int, default=1)
    parser.add_argument("--solve", nargs=2, metavar=("FILE", "WHO"))
    arguments = parser.parse_args()
    if arguments.solve:
        solve(*arguments.solve, arguments.count, arguments.cores)
    else:
        main(arguments.count, arguments.cores)
