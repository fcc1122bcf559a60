"""Compile kernels in a process of its own, while another one reads its files.

``python -m perturb_mpm.engines.cpu.ahead white|correlated`` takes a tiny problem without kernels
through half of preparation and the steps of sampling, where the other process is later.
Both leave what they compile in the same folder, and neither compiles what the other one does. What
only later runs need comes at the end and gives way to all else.
"""

from __future__ import annotations

import os
import sys

import numpy as np

from perturb_mpm import checks
from perturb_mpm.engines.cpu import potts_rows
from perturb_mpm.engines.cpu.chain import factorize
from perturb_mpm.engines.cpu.compile import only_compiler
from perturb_mpm.engines.cpu.lattice import Lattice
from perturb_mpm.engines.cpu.layout import Taps
from perturb_mpm.engines.cpu.solver import CpuSolver
from perturb_mpm.engines.cpu.threads import Threads
from perturb_mpm.engines.lattice import Blur
from perturb_mpm.engines.protocol import FrozenVoxels
from perturb_mpm.model import DenseCRF
from perturb_mpm.noise import WHITE, Perturbation

SHAPE, LABELS, ACTIVE, SAMPLES = (12, 12, 12), 3, 16, 2
LENGTH_MM = 40.0


def make_solver() -> CpuSolver:
    """Return a solver of a tiny problem, as sampling has it."""
    crf = DenseCRF(np.zeros((LABELS, *SHAPE), dtype=np.float32), [])
    return CpuSolver(crf, "plain", SAMPLES, 1, 1 << 30, compact=True)


def compile_chain() -> None:
    """Use the kernels that make a filter of a lattice, while the other process finds one."""
    blur, columns = Blur(), np.zeros((ACTIVE, 4), dtype=np.int32)
    shares = np.full(columns.shape, 1 / columns.shape[1], dtype=np.float32)
    lattice = Lattice(blur, columns, shares, [Taps.of_table(columns[:1], shares[:1])])
    factorize(lattice, "symmetric", 1.0, Threads(1), wide_rows=True)


def compile_sampling(*, white: bool) -> None:
    """Use every kernel that sampling needs after preparation, but those that count on labels."""
    solver = make_solver()
    lengths = WHITE if white else ((LENGTH_MM, 1.0),)
    perturbation, samples = Perturbation(lengths=lengths), np.arange(SAMPLES)
    everywhere = checks.read_only(np.zeros((LABELS, solver.diagonal.size), dtype=np.float32))
    path = np.zeros((1, LABELS, ACTIVE), dtype=np.float32)
    solver.freeze(FrozenVoxels(np.arange(ACTIVE), path, path, everywhere))
    solver.find_near(perturbation, samples, everywhere, 1.0)
    solver.freeze(None)
    whole = solver._whole
    whole.perturb(perturbation, samples)
    solver.count_votes(np.zeros(everywhere.shape, dtype=np.uint32))
    solver.drop_converged(np.array([True, False]))
    whole.take(1)
    whole.load_energies(0, everywhere)
    whole.load_marginals(0, everywhere)
    solver.pairwise()
    solver.marginals()


def compile_few_problems() -> None:
    """Use the kernels that solve few problems of any labels: the quickest for one mean field."""
    most, potts_rows.MOST_LABELS = potts_rows.MOST_LABELS, 0  # which leaves all to the others
    try:
        solver = make_solver()
        solver.load(np.zeros((1, LABELS, solver.diagonal.size), dtype=np.float32))
        solver.step()
        solver.pairwise()
    finally:
        potts_rows.MOST_LABELS = most


if __name__ == "__main__":
    with only_compiler() as alone:
        if alone:
            compile_chain()
            compile_sampling(white=sys.argv[1] == "white")
            if hasattr(os, "nice"):
                os.nice(19)
            compile_few_problems()
