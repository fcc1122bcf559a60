"""The problems that are measured: one description that our engine and the peers read alike."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from lab.benchmarks import files

if TYPE_CHECKING:
    from perturb_mpm import DenseCRF


@dataclass(frozen=True)
class Setting:
    """The two kernels: a spatial one and a bilateral one over all channels.

    Lengths are in mm, intensities in standard deviations of a channel inside the mask.
    """

    sigma_space: float = 20.0
    sigma_intensity: float = 0.5
    weight: float = 4.0
    spatial_sigma: float = 3.0
    spatial_weight: float = 2.0

    def __str__(self) -> str:
        return f"{self.sigma_space:g} mm / {self.sigma_intensity:g} sd"


@dataclass(frozen=True)
class Problem:
    """Unary energies, images, the mask and the true classes on one grid of 1 mm voxels."""

    name: str
    unary: NDArray[np.float32]  # (L, *shape), energies
    images: NDArray[np.float32]  # (C, *shape)
    mask: NDArray[np.bool_]  # shape
    classes: NDArray[np.uint8]  # shape
    tumour: tuple[int, ...]
    """The classes whose border is looked at closely."""
    setting: Setting

    @property
    def voxels(self) -> int:
        return int(self.mask.sum())

    @property
    def labels(self) -> int:
        return len(self.unary)

    def save(self, folder: Path) -> None:
        """Write what ``load`` reads, without pickling anything."""
        for name in ("unary", "images", "mask", "classes"):
            np.save(folder / f"{name}.npy", getattr(self, name), allow_pickle=False)
        about = {"name": self.name, "tumour": self.tumour, "setting": asdict(self.setting)}
        files.write_json(folder / "problem.json", about)

    @classmethod
    def load(cls, folder: Path) -> Problem:
        about = files.read_json(folder / "problem.json")
        arrays = {
            name: np.load(folder / f"{name}.npy", allow_pickle=False)
            for name in ("unary", "images", "mask", "classes")
        }
        return cls(
            name=about["name"],
            tumour=tuple(about["tumour"]),
            setting=Setting(**about["setting"]),
            **arrays,
        )


def in_fours(mask: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Return the mask without its last voxels, three at most, so that their number divides by four.

    pydensecrf works on four voxels at once and fills up the last four with voxels whose features
    are all zero. They add vertices to its lattice, through which the blur reaches further, and
    marginals change by up to 0.004. Without them both solve the same model.
    """
    inside = np.flatnonzero(mask)
    trimmed = mask.copy()
    trimmed.flat[inside[len(inside) - len(inside) % 4 :]] = False
    return trimmed


def crf_of(problem: Problem, *, bilateral_only: bool = False) -> DenseCRF:
    """Return the CRF as the peers have it: symmetric normalisation, self term kept.

    ``bilateral_only`` leaves the bilateral kernel alone, with weight 1 and normalised after the
    filter, so that its pairwise energy of label l is 1 − (K·Q/K·1)_l.
    """
    import perturb_mpm as pm

    setting = problem.setting
    bilateral = pm.BilateralKernel(
        problem.images,
        sigma_space=setting.sigma_space,
        sigma_intensity=setting.sigma_intensity,
        weight=1.0 if bilateral_only else setting.weight,
        normalization="after" if bilateral_only else "symmetric",
    )
    spatial = pm.SpatialKernel(sigma=setting.spatial_sigma, weight=setting.spatial_weight)
    return pm.DenseCRF(
        unary=problem.unary,
        kernels=[bilateral] if bilateral_only else [spatial, bilateral],
        spacing=(1.0,) * problem.mask.ndim,
        mask=problem.mask,
        self_term=True,
    )
