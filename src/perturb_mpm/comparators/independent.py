"""Samples in which every voxel is drawn by itself: from mean field, or from the unary energies."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from perturb_mpm.comparators.common import Collector, Samples, batches
from perturb_mpm.comparators.couplings import Model, check_model, problem
from perturb_mpm.crf import DenseCRF
from perturb_mpm.engines import Accuracy, Engine
from perturb_mpm.inference import mean_field
from perturb_mpm.noise import gumbel
from perturb_mpm.posterior import Posterior

# How many numbers of noise are drawn at once.
_CHUNK = 2**22


def independent(
    crf: DenseCRF,
    samples: Samples,
    seed: int,
    *,
    iterations: int = 10,
    engine: Engine = "auto",
    accuracy: Accuracy = "calibrated",
) -> Posterior:
    """Draw each voxel's label from its mean-field marginal Q_i, by itself.

    The marginals of the samples are Q's; that voxels go together is lost, so the volumes of these
    samples hardly vary. The noise is that of ``pm.sample``. Any size of problem.
    """
    options = {"iterations": iterations, "engine": engine, "accuracy": accuracy}
    run = Collector("independent", samples, seed, **options)
    q = mean_field(crf, iterations, engine=engine, accuracy=accuracy).marginals
    inside = crf.grid.gather(q).astype(np.float64)  # (L, N)
    tiny = np.finfo(np.float64).tiny
    draws = _gumbel_max(crf, np.log(np.maximum(inside, tiny)), run.samples, run.seed)
    return run.collect(crf.grid, crf.n_labels, draws, problem(crf))


def unary_only(crf: Model, samples: Samples, seed: int) -> Posterior:
    """Draw each voxel's label from softmax(−U_i), by itself: what is left without coupling.

    The noise is that of ``pm.sample``. Any size of problem.
    """
    run = Collector("unary_only", samples, seed)
    check_model(crf)
    draws = _gumbel_max(crf, -crf.energies.astype(np.float64), run.samples, run.seed)
    return run.collect(crf.grid, crf.n_labels, draws, problem(crf))


def _gumbel_max(
    crf: Model, logits: NDArray[np.float64], samples: range, seed: int
) -> Iterator[NDArray[np.uint8]]:
    """Draw from softmax(logits), (L, N), as the label of the largest logit + noise."""
    for batch in batches(samples, logits.size, _CHUNK):
        noise = gumbel(seed, batch, crf.grid.index, crf.n_labels)  # (B, L, N)
        yield (logits + noise).argmax(axis=1).astype(np.uint8)
