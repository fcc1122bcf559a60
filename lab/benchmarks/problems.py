"""The problems that are measured: one description that our engine and the peers read alike.

Synthetic brains of any size have five tissue classes, four channels and smooth borders. The real
case is one glioma patient of BraTS 2021 at 1 mm, where the data is at hand.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage

from lab.benchmarks.machine import read_results, write_results
from lab.benchmarks.worker import ROOT

if TYPE_CHECKING:
    from perturb_mpm import DenseCRF

BRAIN = "brain"

FULL_SHAPE = (160, 192, 144)
"""At 1 mm; the brain in it has 1.49 million voxels."""

MASK_RADIUS = 0.8635
"""Of the box's half width: the share of the box's volume that makes 1.49 million voxels."""

NOISE = 0.03
"""Standard deviation of the channels' noise, class means being between 0 and 1."""

SYNTHETIC_TUMOUR = 4

CORRELATED = ((20.0, 0.7), (60.0, 0.3))
"""Correlated noise, beside the paper's: lengths in mm and their weights."""

# One row a class: ventricle, white matter, grey matter, outer fluid, tumour.
CLASS_MEANS = np.array(
    [
        [0.05, 0.10, 1.00, 0.05],
        [0.90, 0.85, 0.25, 0.35],
        [0.55, 0.50, 0.50, 0.75],
        [0.10, 0.05, 0.95, 0.10],
        [0.35, 1.00, 0.75, 1.00],
    ],
    dtype=np.float32,
)  # (L, C)

CASE = "BraTS2021_01658"
SEQUENCES = ("t1", "t1ce", "t2", "flair")
REAL_LABELS = 5
REAL_TUMOUR = (1, 2, 3)

BRAIN_VOXELS = (100_000, 400_000, 1_490_000)

SAMPLED = ("brain-1.5", "real-20")
"""Where a whole sampling run is measured too."""

QUICK = ("64", "96", "brain-0.1")


@dataclass(frozen=True)
class BenchmarkSetting:
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
class BenchmarkProblem:
    """Unary energies, images, the mask and the true classes on one grid of 1 mm voxels."""

    name: str
    unary: NDArray[np.float32]  # (L, *shape), energies
    images: NDArray[np.float32]  # (C, *shape)
    mask: NDArray[np.bool_]  # shape
    classes: NDArray[np.uint8]  # shape
    tumour: tuple[int, ...]
    """The classes whose border is looked at closely."""
    setting: BenchmarkSetting

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
        write_results(folder / "problem.json", about)

    @classmethod
    def load(cls, folder: Path) -> BenchmarkProblem:
        about = read_results(folder / "problem.json")
        arrays = {
            name: np.load(folder / f"{name}.npy", allow_pickle=False)
            for name in ("unary", "images", "mask", "classes")
        }
        return cls(
            name=about["name"],
            tumour=tuple(about["tumour"]),
            setting=BenchmarkSetting(**about["setting"]),
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


def crf_of(problem: BenchmarkProblem, *, bilateral_only: bool = False) -> DenseCRF:
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


def brain(voxels: int, seed: int = 0) -> BenchmarkProblem:
    """Return a brain of about that many 1 mm voxels, in an ellipsoid mask."""
    scale = (voxels / 1.49e6) ** (1 / 3)
    shape = tuple(round(n * scale) for n in FULL_SHAPE)
    return synthetic(f"{BRAIN} {voxels / 1e6:.1f} M", shape, seed, masked=True)


def box(shape: tuple[int, ...], seed: int = 0) -> BenchmarkProblem:
    """Return a problem that fills its whole box."""
    return synthetic("×".join(map(str, shape)), shape, seed, masked=False)


def synthetic(name: str, shape: tuple[int, ...], seed: int, *, masked: bool) -> BenchmarkProblem:
    """Return five nested classes with wavy borders, a tumour among them, and four noisy channels.

    The engines' prototype was measured at 20 mm and 0.2 in raw intensity. The channels here have a
    standard deviation of 0.25–0.29 inside the mask, so 0.2 is about 0.7 sd: that is the setting.
    The noise is such that the 7-D lattice of 1.49 million voxels has 32 thousand vertices then, and
    345 thousand at 10 mm and 0.1, where the prototype's volume had 275 thousand.
    """
    rng = np.random.default_rng(seed)
    radius = radius_of(shape)
    mask = in_fours(radius < MASK_RADIUS if masked else np.ones(shape, dtype=bool))
    classes = nested_classes(rng, radius / MASK_RADIUS)
    images = np.empty((CLASS_MEANS.shape[1], *shape), dtype=np.float32)
    for channel, means in enumerate(CLASS_MEANS.T):
        ndimage.gaussian_filter(means[classes], 0.7, output=images[channel], truncate=3.0)
        images[channel] += np.float32(NOISE) * rng.standard_normal(shape, dtype=np.float32)
    return BenchmarkProblem(
        name=name,
        unary=noisy_energies(rng, classes),
        images=images,
        mask=mask,
        classes=classes,
        tumour=(SYNTHETIC_TUMOUR,),
        setting=BenchmarkSetting(sigma_space=20.0, sigma_intensity=0.7),
    )


def radius_of(shape: tuple[int, ...]) -> NDArray[np.float32]:
    """Return the distance from the box's centre, 1 at the middle of every face."""
    axes = [((2 * np.arange(n, dtype=np.float32) + 1) / n - 1) ** 2 for n in shape]
    square = sum(np.ix_(*axes), start=np.float32(0))
    return np.sqrt(square)


def nested_classes(rng: np.random.Generator, radius: NDArray[np.float32]) -> NDArray[np.uint8]:
    """Return shells of classes 0–3 from the centre outwards, with a tumour off the centre."""
    wavy = radius + 0.12 * smooth_field(rng, radius.shape, cell=16)
    classes = np.digitize(wavy, [0.25, 0.72, 0.95]).astype(np.uint8)
    centre = [0.62 * n for n in radius.shape]
    width = 0.14 * np.mean(radius.shape)
    axes = [((np.arange(n) - c) / width) ** 2 for n, c in zip(radius.shape, centre, strict=True)]
    blob = np.sqrt(sum(np.ix_(*axes))) + 0.25 * smooth_field(rng, radius.shape, cell=10)
    classes[blob < 1] = SYNTHETIC_TUMOUR
    return classes


def smooth_field(
    rng: np.random.Generator, shape: tuple[int, ...], cell: float
) -> NDArray[np.float32]:
    """Return a random field of about unit variance that varies over about ``cell`` voxels."""
    coarse = [round(n / cell) + 3 for n in shape]
    white = rng.standard_normal(coarse, dtype=np.float32)
    zoom = [n / c for n, c in zip(shape, coarse, strict=True)]
    field = np.empty(shape, dtype=np.float32)
    ndimage.zoom(white, zoom, output=field, order=3, mode="nearest", grid_mode=True)
    return field


def noisy_energies(rng: np.random.Generator, classes: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Return −log p of probabilities that favour the true class by 2 nats, with noise of 1 nat."""
    logits = rng.standard_normal((len(CLASS_MEANS), *classes.shape), dtype=np.float32)
    for label in range(len(logits)):
        logits[label] += np.float32(2) * (classes == label)
    largest = logits.max(axis=0)
    logits -= np.log(np.exp(logits - largest).sum(axis=0)) + largest
    return np.negative(logits, out=logits)


REAL_SETTINGS = (
    BenchmarkSetting(sigma_space=20.0, sigma_intensity=0.5),
    BenchmarkSetting(sigma_space=10.0, sigma_intensity=0.5),
    BenchmarkSetting(sigma_space=30.0, sigma_intensity=1.0),
)


def data_folder() -> Path:
    """Return where real cases are, or would be, on this machine."""
    return Path(os.environ.get("PERTURB_MPM_DATA") or ROOT.parent / "shared" / "data")


def case_folder() -> Path:
    """Return where the case is, or would be."""
    return data_folder() / "brats2021_1mm" / CASE


def real_case(setting: BenchmarkSetting) -> BenchmarkProblem:
    """Return the patient's brain, where any sequence is not zero, cut to its box."""
    images = np.stack([read_sequence(sequence) for sequence in SEQUENCES]).astype(np.float32)
    expert = read_sequence("seg").astype(np.uint8)
    mask = in_fours((images != 0).any(axis=0))
    cut = ndimage.find_objects(mask.astype(np.uint8))[0]
    images = np.ascontiguousarray(images[:, *cut])
    mask = np.ascontiguousarray(mask[cut])
    classes = five_classes(expert[cut], images, mask)
    return BenchmarkProblem(
        name=CASE,
        unary=blurred_energies(classes),
        images=images,
        mask=mask,
        classes=classes,
        tumour=REAL_TUMOUR,
        setting=setting,
    )


def read_sequence(kind: str) -> NDArray[np.generic]:
    import nibabel

    path = case_folder() / f"{CASE}_{kind}.nii.gz"
    return np.asarray(nibabel.Nifti1Image.from_filename(path).dataobj)


def five_classes(
    expert: NDArray[np.uint8], images: NDArray[np.float32], mask: NDArray[np.bool_]
) -> NDArray[np.uint8]:
    """Return 0 healthy, 1 core, 2 oedema, 3 enhancing and 4, healthy voxels that look like fluid.

    Fluid is darker than the darkest fifth of the brain in T1 and brighter than its middle in T2:
    there is no expert label for it, and it is here to make five labels of a realistic shape.
    """
    classes = expert.copy()
    classes[expert == 4] = 3
    t1, t2 = images[SEQUENCES.index("t1")], images[SEQUENCES.index("t2")]
    dark = t1 < np.quantile(t1[mask], 0.2)
    bright = t2 > np.quantile(t2[mask], 0.5)
    classes[(expert == 0) & mask & dark & bright] = 4
    return classes


def blurred_energies(classes: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Return −log p of the class map blurred by 1.5 mm and mixed with 15 % of indifference."""
    energies = np.empty((REAL_LABELS, *classes.shape), dtype=np.float32)
    for label, energy in enumerate(energies):
        ndimage.gaussian_filter((classes == label).astype(np.float32), 1.5, output=energy)
    energies *= 0.85
    energies += 0.15 / REAL_LABELS
    energies /= energies.sum(axis=0)
    np.log(energies, out=energies)
    return np.negative(energies, out=energies)


Catalogue = dict[str, Callable[[], BenchmarkProblem]]


def synthetic_problems() -> Catalogue:
    boxes = {
        "64": partial(box, (64, 64, 64)),
        "96": partial(box, (96, 96, 64)),
    }
    brains = {f"brain-{n / 1e6:.1f}": partial(brain, n) for n in BRAIN_VOXELS}
    return {**boxes, **brains}


def real_problems() -> Catalogue:
    """Return the real case at each setting, or nothing where its data is not there."""
    if not case_folder().is_dir():
        return {}
    return {
        f"real-{setting.sigma_space:g}": partial(real_case, setting) for setting in REAL_SETTINGS
    }
