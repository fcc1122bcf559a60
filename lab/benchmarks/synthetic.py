"""Synthetic brains of any size: five tissue classes, four channels, smooth borders."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage

from lab.benchmarks.problems import Problem, Setting, in_fours

BRAIN = "brain"

FULL_SHAPE = (160, 192, 144)
"""At 1 mm; the brain in it has 1.49 million voxels."""

MASK_RADIUS = 0.8635
"""Of the box's half width: the share of the box's volume that makes 1.49 million voxels."""

NOISE = 0.03
"""Standard deviation of the channels' noise, class means being between 0 and 1."""

TUMOUR = 4

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


def brain(voxels: int, seed: int = 0) -> Problem:
    """Return a brain of about that many 1 mm voxels, in an ellipsoid mask."""
    scale = (voxels / 1.49e6) ** (1 / 3)
    shape = tuple(round(n * scale) for n in FULL_SHAPE)
    return synthetic(f"{BRAIN} {voxels / 1e6:.1f} M", shape, seed, masked=True)


def box(shape: tuple[int, ...], seed: int = 0) -> Problem:
    """Return a problem that fills its whole box."""
    return synthetic("×".join(map(str, shape)), shape, seed, masked=False)


def synthetic(name: str, shape: tuple[int, ...], seed: int, *, masked: bool) -> Problem:
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
    return Problem(
        name=name,
        unary=noisy_energies(rng, classes),
        images=images,
        mask=mask,
        classes=classes,
        tumour=(TUMOUR,),
        setting=Setting(sigma_space=20.0, sigma_intensity=0.7),
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
    classes[blob < 1] = TUMOUR
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
