"""pydensecrf2 on a problem, in its own interpreter.

This file runs at both ends: ``start`` in the benchmark, the rest in the peer's environment, which
has NumPy and pydensecrf2 and nothing of ours.
"""

from __future__ import annotations

import os
import time
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lab.benchmarks.machine import read_results, write_results
from lab.benchmarks.worker import ROOT, Answer, Worker, peak_bytes, serve

NAME = "pydensecrf2"
NORMALIZE_AFTER, NORMALIZE_SYMMETRIC = 2, 3  # not every version of Cython builds their names


def interpreter() -> str | None:
    """Return the peer's Python, or None where there is none."""
    path = os.environ.get("PERTURB_MPM_PEER_PYTHON") or str(ROOT / ".venv-peer/bin/python")
    return path if Path(path).exists() else None


def start(python: str) -> Worker:
    return Worker(python, "lab.benchmarks.peer")


def save(
    folder: Path,
    energies: NDArray[np.float32],
    kernels: list[tuple[float, NDArray[np.float32]]],
) -> None:
    """Write (L, N) energies and, for each kernel, its weight and its (d, N) scaled features."""
    np.save(folder / "energies.npy", energies, allow_pickle=False)
    for index, (_, features) in enumerate(kernels):
        np.save(folder / f"features{index}.npy", features, allow_pickle=False)
    write_results(folder / "peer.json", {"weights": [weight for weight, _ in kernels]})


class Peer:
    """What the worker keeps between commands."""

    crf: Any
    state: tuple[Any, Any, Any]

    def prepare(self, folder: str) -> Answer:
        """Build the lattices of all kernels, normalised symmetrically."""
        dcrf = import_module("pydensecrf.densecrf")
        home = Path(folder)
        energies = np.load(home / "energies.npy", allow_pickle=False)
        labels, voxels = energies.shape
        seconds = 0.0
        began = time.perf_counter()
        self.crf = dcrf.DenseCRF(voxels, labels)
        self.crf.setUnaryEnergy(energies)
        seconds += time.perf_counter() - began
        for index, weight in enumerate(read_results(home / "peer.json")["weights"]):
            features = np.load(home / f"features{index}.npy", allow_pickle=False)
            began = time.perf_counter()
            self.crf.addPairwiseEnergy(features, compat=weight, normalization=NORMALIZE_SYMMETRIC)
            seconds += time.perf_counter() - began
        self.state = self.crf.startInference()
        return {"setup_s": seconds, "version": version("pydensecrf2")}

    def step(self, count: int) -> Answer:
        times = []
        for _ in range(count):
            began = time.perf_counter()
            self.crf.stepInference(*self.state)
            times.append(time.perf_counter() - began)
        return {"seconds": times}

    def marginals(self, path: str, iterations: int) -> Answer:
        """Write the (L, N) marginals after so many iterations from the start."""
        state = self.crf.startInference()
        for _ in range(iterations):
            self.crf.stepInference(*state)
        np.save(path, np.array(state[0]), allow_pickle=False)
        return {}

    def filtered(self, folder: str, kernel: int, rows: str, path: str) -> Answer:
        """Write (K·Q/K·1) of one kernel at the voxels in the file ``rows``, (R, L).

        One update with weight 1, normalised after the filter, gives Q' ∝ exp(−U + K·Q/K·1), and
        the labels' shares of K·Q/K·1 add up to one: that leaves no constant to guess.
        """
        dcrf = import_module("pydensecrf.densecrf")
        home = Path(folder)
        energies = np.load(home / "energies.npy", allow_pickle=False)
        features = np.load(home / f"features{kernel}.npy", allow_pickle=False)
        labels, voxels = energies.shape
        crf = dcrf.DenseCRF(voxels, labels)
        crf.setUnaryEnergy(energies)
        crf.addPairwiseEnergy(features, compat=1.0, normalization=NORMALIZE_AFTER)
        chosen = np.load(rows, allow_pickle=False)
        updated = np.array(crf.inference(1))[:, chosen].astype(np.float64)
        share = np.log(updated) + energies[:, chosen]
        share += (1 - share.sum(axis=0)) / labels
        np.save(path, share.T, allow_pickle=False)
        return {}

    def sample(self, folder: str, samples: int, iterations: int) -> Answer:
        """Sample one perturbed problem after the other and count labels; return seconds of each.

        Noise is made as quickly as NumPy can: γ = −log e, e exponential, in float32.
        """
        energies = np.load(Path(folder) / "energies.npy", allow_pickle=False)
        counts = np.zeros(energies.shape, dtype=np.uint16)
        voxels = np.arange(energies.shape[1])
        rng = np.random.default_rng(0)
        times = []
        for _ in range(samples):
            began = time.perf_counter()
            perturbed = rng.standard_exponential(energies.shape, dtype=np.float32)
            np.maximum(perturbed, np.finfo(np.float32).tiny, out=perturbed)
            np.log(perturbed, out=perturbed)
            perturbed += energies
            self.crf.setUnaryEnergy(perturbed)
            counts[np.argmax(np.array(self.crf.inference(iterations)), axis=0), voxels] += 1
            times.append(time.perf_counter() - began)
        return {"seconds": times}

    def memory(self) -> Answer:
        return {"peak_bytes": peak_bytes()}


if __name__ == "__main__":
    peer = Peer()
    serve(
        {
            "prepare": peer.prepare,
            "step": peer.step,
            "marginals": peer.marginals,
            "filtered": peer.filtered,
            "sample": peer.sample,
            "memory": peer.memory,
        }
    )
