"""Made-up scans for questions about lesions and growth, and a classifier that sees their images.

A scan is a smooth background with bright lesions, one large and some small, and with spots that
are no lesions and mostly fainter. Noise hides both. A classifier learns from other scans what a
voxel is, by its smoothed neighbourhood; nothing else knows the truth.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache

import nibabel as nib
import numpy as np
from numpy.typing import NDArray

from perturb_mpm.files import Case, Geometry, LabelScheme

SHAPE = (48, 48, 40)
SPACING = (2.0, 2.0, 2.0)
TRAINING = 24
_SMOOTHING = (1.0, 2.0, 4.0)  # voxels
_NEARBY = (5, 11)  # voxels
_NOISE, _BACKGROUND = 0.4, 0.15
_PER_SCAN = 6000  # voxels that the classifier learns from


@dataclass(frozen=True, eq=False)
class HeadScan:
    """One image and its truth."""

    image: NDArray[np.float32]  # (X, Y, Z)
    truth: NDArray[np.bool_]  # (X, Y, Z)

    def crop(self, centre_mm: Sequence[float], reach_mm: float) -> HeadScan:
        """Return the cube of so many mm to either side of a point, as far as the scan has it."""
        box = tuple(
            slice(max(round((c - reach_mm) / step), 0), round((c + reach_mm) / step) + 1)
            for c, step in zip(centre_mm, SPACING)
        )
        return HeadScan(self.image[box], self.truth[box])


@dataclass(frozen=True)
class Ball:
    """A lesion or a spot, with an uneven border."""

    centre_mm: tuple[float, float, float]
    radius_mm: float
    contrast: float
    lesion: bool
    bumps: int  # seed of the border


@dataclass(frozen=True)
class Head:
    """What is scanned: it may be scanned again with other noise, or after growth."""

    seed: int
    balls: tuple[Ball, ...]

    def with_growth(self, factor: float) -> Head:
        """Return the head with lesions of ``factor`` times the volume."""
        grown = [
            replace(ball, radius_mm=ball.radius_mm * math.cbrt(factor)) if ball.lesion else ball
            for ball in self.balls
        ]
        return replace(self, balls=tuple(grown))

    def scan(self, occasion: int = 0) -> HeadScan:
        """Return one scan; another occasion has other noise."""
        from scipy.ndimage import gaussian_filter

        middle = np.indices(SHAPE).astype(np.float64) * np.reshape(SPACING, (3, 1, 1, 1))
        image = np.zeros(SHAPE)
        truth = np.zeros(SHAPE, dtype=np.bool_)
        for ball in self.balls:
            away = np.sqrt(np.square(middle - np.reshape(ball.centre_mm, (3, 1, 1, 1))).sum(axis=0))
            border = np.random.default_rng(ball.bumps).normal(size=SHAPE)
            smooth = gaussian_filter(border, 3.0)
            depth = ball.radius_mm - away + 0.12 * ball.radius_mm * smooth / smooth.std()
            image = np.maximum(image, ball.contrast / (1 + np.exp(-2 * depth)))
            truth |= (depth > 0) & ball.lesion
        generator = np.random.default_rng([self.seed, occasion])
        noise = gaussian_filter(generator.normal(size=SHAPE), 0.6)
        field = gaussian_filter(np.random.default_rng(self.seed).normal(size=SHAPE), 8.0)
        image += _NOISE * noise / noise.std() + _BACKGROUND * field / field.std()
        return HeadScan(image.astype(np.float32), truth)


def make_head(seed: int, satellites: tuple[int, int] = (2, 6)) -> Head:
    """Return a head with one large lesion, some small ones and as many spots that are none."""
    generator = np.random.default_rng([seed, 7])
    size = np.array(SHAPE) * SPACING
    balls: list[Ball] = []

    def add(radius_mm: float, contrast: float, *, lesion: bool) -> None:
        for _ in range(200):
            margin = 8.0 + min(radius_mm, 10.0)
            centre = generator.uniform(margin, size - margin)
            apart = [
                math.dist(centre, each.centre_mm) > radius_mm + each.radius_mm + 4.0
                for each in balls
            ]
            if all(apart):
                x, y, z = centre.tolist()
                bumps = int(generator.integers(2**31))
                balls.append(Ball((x, y, z), radius_mm, contrast, lesion, bumps))
                return

    add(float(generator.uniform(11, 16)), float(generator.uniform(0.9, 1.4)), lesion=True)
    for _ in range(int(generator.integers(satellites[0], satellites[1] + 1))):
        add(float(generator.uniform(3, 7)), float(generator.uniform(0.3, 1.2)), lesion=True)
        add(float(generator.uniform(3, 7)), float(generator.uniform(0.1, 0.8)), lesion=False)
    return Head(seed, tuple(balls))


def features(image: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return what the classifier sees, voxels × features.

    The brightest point nearby tells the border of a bright lesion from the middle of a faint spot,
    as a network does that sees more than a voxel.
    """
    from scipy.ndimage import gaussian_filter, maximum_filter

    maps = [gaussian_filter(image, sigma) for sigma in _SMOOTHING]
    maps += [maximum_filter(gaussian_filter(image, 1.5), size) for size in _NEARBY]
    return np.stack(maps, axis=-1).reshape(-1, len(maps))


@cache
def _classifier() -> object:
    from sklearn.ensemble import HistGradientBoostingClassifier

    generator = np.random.default_rng(0)
    x, y = [], []
    for seed in range(TRAINING):
        scan = make_head(10_000 + seed).scan()
        chosen = generator.choice(scan.truth.size, _PER_SCAN, replace=False)
        x.append(features(scan.image)[chosen])
        y.append(scan.truth.ravel()[chosen])
    model = HistGradientBoostingClassifier(
        max_iter=80, max_leaf_nodes=12, min_samples_leaf=200, l2_regularization=1.0, random_state=0
    )
    return model.fit(np.concatenate(x), np.concatenate(y))


def lesion_probability(image: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return what the classifier says, (X, Y, Z); it learned from other heads."""
    model = _classifier()
    found = model.predict_proba(features(image))[:, 1]  # type: ignore[attr-defined]
    return np.asarray(found, dtype=np.float32).reshape(image.shape)


def make_case(scan: HeadScan, names: Sequence[str] = ("background", "lesion")) -> Case:
    """Return a scan as a case with the classifier's probabilities."""
    p = lesion_probability(scan.image)
    affine = np.diag([*SPACING, 1.0])
    header = nib.Nifti1Image(scan.truth.astype(np.uint8), affine).header  # type: ignore[no-untyped-call]
    return Case(
        images={"scan": scan.image},
        probabilities=np.stack([1 - p, p]),
        mask=np.ones(p.shape, dtype=np.bool_),
        mask_origin="the whole image",
        labels=LabelScheme((0, 1), tuple(names)),
        geometry=Geometry(p.shape, affine, SPACING, header),
        hashes={},
        truth=scan.truth.astype(np.uint8),
    )
