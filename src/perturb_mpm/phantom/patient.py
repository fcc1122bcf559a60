"""One patient: images, truth, and what an imperfect classifier says."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from perturb_mpm.checks import integer
from perturb_mpm.phantom.anatomy import Anatomy
from perturb_mpm.phantom.classifier import classify
from perturb_mpm.phantom.contrast import CHANNEL_NAMES
from perturb_mpm.phantom.disease import Disease
from perturb_mpm.phantom.labels import (
    ENHANCING,
    LABEL_NAMES,
    LABEL_OF,
    POSTOPERATIVE_LABEL_NAMES,
)
from perturb_mpm.phantom.scanner import scan
from perturb_mpm.phantom.space import Array, Grid, Source

Stage = Literal["pre-operative", "post-operative"]


@dataclass(frozen=True)
class Phantom:
    """A patient whose truth is known."""

    seed: int
    stage: Stage
    grid: Grid
    disease: Disease
    images: NDArray[np.float32]  # (4, X, Y, Z): T1, T1c, T2, FLAIR; 0 outside the mask
    tissue: dict[str, Array]  # name -> (X, Y, Z), the share of each tissue in every voxel
    memberships: NDArray[np.float32]  # (L, X, Y, Z), the share of each label; sum to 1
    truth: NDArray[np.uint8]  # (X, Y, Z)
    mask: NDArray[np.bool_]  # (X, Y, Z): the brain
    label_names: tuple[str, ...]
    channel_names: tuple[str, ...] = CHANNEL_NAMES

    @property
    def spacing(self) -> tuple[float, float, float]:
        """The size of a voxel in mm."""
        return self.grid.spacing

    @property
    def affine(self) -> NDArray[np.float64]:
        """The (4, 4) matrix from voxel indices to mm: left to right, back to front, down to up."""
        return self.grid.affine

    @cached_property
    def probabilities(self) -> NDArray[np.float32]:
        """What an imperfect classifier says, (L, X, Y, Z); made when first asked for."""
        return classify(
            Source(self.seed), self.grid, self.images, self.mask, self.tissue, self.memberships
        )

    def volume_ml(self, label: int) -> float:
        """Return the true volume of one label inside the brain."""
        label = integer(label, "label", minimum=0, maximum=len(self.label_names) - 1)
        return float((self.truth[self.mask] == label).sum()) * self.grid.voxel_ml


def phantom(
    source: Source,
    grid: Grid,
    disease: Disease,
    around: Anatomy,
    lesions: dict[str, Array],
    stage: Stage,
) -> Phantom:
    """Put ``lesions``, name -> share, into the healthy head ``around`` and scan it."""
    left = np.ones(grid.shape, dtype=np.float32)
    for share in lesions.values():
        left -= share
    left = np.maximum(left, 0.0)  # rounding
    healthy = {"white": around.white, "grey": around.grey, "fluid": around.fluid}
    tissue = {name: share * left for name, share in healthy.items()} | lesions
    names = LABEL_NAMES if stage == "pre-operative" else POSTOPERATIVE_LABEL_NAMES
    memberships = np.zeros((len(names), *grid.shape), dtype=np.float32)
    memberships[0] = 1.0
    memberships[0, around.mask] = left[around.mask]
    for name, share in lesions.items():
        memberships[LABEL_OF[name], around.mask] += share[around.mask]
    return Phantom(
        seed=source.seed,
        stage=stage,
        grid=grid,
        disease=disease,
        images=scan(source, grid, around, tissue, stage),
        tissue=tissue,
        memberships=memberships,
        truth=_truth(memberships),
        mask=around.mask,
        label_names=names,
    )


def _truth(memberships: NDArray[np.float32]) -> NDArray[np.uint8]:
    """Return enhancing tumour where it fills half a voxel, elsewhere the largest other share.

    The volume of a thin rim is thereby as intended: the largest share alone would favour it where
    three others meet.
    """
    others = memberships.copy()
    others[ENHANCING] = 0.0
    truth: NDArray[np.uint8] = others.argmax(axis=0).astype(np.uint8)
    truth[memberships[ENHANCING] > 0.5] = ENHANCING
    return truth
