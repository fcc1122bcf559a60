"""The volumes of sampled segmentations, with and without smooth random fields."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from perturb_mpm.crf import DenseCRF
from perturb_mpm.engines import Solver
from perturb_mpm.fields import Field
from perturb_mpm.kernels import BilateralKernel, SpatialKernel
from perturb_mpm.perturbation import Perturbation
from perturb_mpm.reproduce.volume_cases import REGIONS, Case
from perturb_mpm.tally import Tally

OWN_SHARE = 0.7


@dataclass(frozen=True)
class FieldSetting:
    """A field of ``scale`` shared by the tumour labels, and 0.7 of it for each of them."""

    scale: float
    length_mm: float

    def fields(self) -> tuple[Field, ...]:
        """Return the fields; none at scale 0, which is the paper's perturbation."""
        if self.scale == 0:
            return ()
        tumour = REGIONS["whole tumour"]
        own = (Field(self.length_mm, OWN_SHARE * self.scale, labels=[label]) for label in tumour)
        return (Field(self.length_mm, self.scale, labels=tumour), *own)


PAPER = FieldSetting(0.0, math.nan)
SETTINGS = (
    PAPER,
    FieldSetting(1.0, 20.0),
    FieldSetting(1.0, 60.0),
    FieldSetting(2.0, 20.0),
    FieldSetting(2.0, 60.0),
)


def glioma_crf(case: Case, unary: NDArray[np.float32]) -> DenseCRF:
    """Return the CRF of the experiment: near voxels agree, and those that look alike."""
    return DenseCRF(
        unary=unary,
        kernels=[
            SpatialKernel(sigma=3.0, weight=1.0),
            BilateralKernel(case.images, sigma_space=20.0, sigma_intensity=0.5, weight=3.0),
        ],
        spacing=case.spacing,
        mask=case.mask,
    )


def sampled_volumes_ml(
    crf: DenseCRF,
    solver: Solver,
    fields: Sequence[Field],
    *,
    samples: int,
    iterations: int,
    seed: int,
) -> NDArray[np.float64]:
    """Return the volume of each label in each sample in ml, (S, L): those of ``pm.sample``.

    A prepared solver is taken because it does not depend on the fields, and preparing costs as
    much as twenty samples.
    """
    perturbation = Perturbation(seed, fields=tuple(fields))
    tally = Tally(crf.grid, crf.n_labels, conditional=False)
    for first in range(0, samples, solver.batch):
        solver.perturb(perturbation, np.arange(first, min(first + solver.batch, samples)))
        for left in range(iterations - 1, -1, -1):
            solver.step(watched=left == 0)
        sizes = solver.count_votes(tally.counts)  # (B, L)
        tally.add_counted(sizes, np.zeros(len(sizes)))
    volumes: NDArray[np.float64] = tally.sizes.astype(np.float64)
    volumes *= math.prod(crf.grid.spacing) / 1000.0
    return volumes
