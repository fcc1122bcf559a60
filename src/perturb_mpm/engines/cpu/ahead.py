"""Compile kernels in a process of its own, while another one reads its files.

``python -m perturb_mpm.engines.cpu.ahead white|correlated`` takes a tiny problem without kernels
through the steps of sampling, the last ones first: the other process begins with the first ones.
Both leave what they compile in the same folder, and neither compiles what the other one does.
"""

from __future__ import annotations

import sys

import numpy as np

from perturb_mpm.engines.cpu.solver import CpuSolver
from perturb_mpm.engines.protocol import FrozenVoxels
from perturb_mpm.model import DenseCRF
from perturb_mpm.noise import WHITE, Perturbation

SHAPE, LABELS, ACTIVE, SAMPLES = (12, 12, 12), 3, 16, 2
LENGTH_MM = 40.0


def compile_sampling(*, white: bool) -> None:
    """Use every kernel that sampling needs after preparation, but those that count on labels."""
    crf = DenseCRF(np.zeros((LABELS, *SHAPE), dtype=np.float32), [])
    solver = CpuSolver(crf, "plain", SAMPLES, 1, 1 << 30, compact=True)
    lengths = WHITE if white else ((LENGTH_MM, 1.0),)
    perturbation, samples = Perturbation(lengths=lengths), np.arange(SAMPLES)
    everywhere = np.zeros(crf.energies.shape, dtype=np.float32)
    path = np.zeros((1, LABELS, ACTIVE), dtype=np.float32)
    solver.freeze(FrozenVoxels(np.arange(ACTIVE), path, path, everywhere))
    solver.count_dissent(perturbation, samples)
    solver.freeze(None)
    solver.perturb(perturbation, samples)
    solver.count_votes(np.zeros(crf.energies.shape, dtype=np.uint32))
    solver.drop_converged(np.array([True, False]))
    solver.pairwise()
    solver.load(crf.energies[np.newaxis], everywhere[np.newaxis])
    solver.step()
    solver.marginals()


if __name__ == "__main__":
    compile_sampling(white=sys.argv[1] == "white")
