"""Random problems, each as a CRF and as the oracle that knows its answers."""

from __future__ import annotations

import itertools

import numpy as np
from numpy.typing import NDArray

import perturb_mpm as pm
from helpers.oracle import Oracle, gaussian

NORMALIZATIONS = ("symmetric", "before", "after", "none")


def semimetric(rng: np.random.Generator, n_labels: int) -> NDArray[np.float64]:
    """A random compatibility that is negative semi-definite on vectors that sum to zero."""
    points = rng.normal(size=(n_labels, 2))
    return ((points[:, np.newaxis] - points) ** 2).sum(axis=-1)


def random_problem(
    seed: int,
    shape: tuple[int, ...],
    n_labels: int,
    *,
    weight: float = 1.0,
    normalization: str = "symmetric",
    matrix: bool = True,
    self_term: bool = False,
) -> tuple[pm.DenseCRF, Oracle]:
    """A spatial Potts kernel and a bilateral one, which has a matrix of its own where asked."""
    rng = np.random.default_rng(seed)
    voxels = int(np.prod(shape))
    unary = rng.normal(size=(n_labels, *shape))
    images = rng.normal(size=(2, *shape))
    spacing = tuple(rng.uniform(0.5, 2.0, size=len(shape)))
    potts = 1.0 - np.eye(n_labels)
    mu = semimetric(rng, n_labels) if matrix else potts
    crf = pm.DenseCRF(
        unary=unary,
        kernels=[
            pm.SpatialKernel(sigma=1.5, weight=weight, normalization=normalization),
            pm.BilateralKernel(
                images,
                sigma_space=2.0,
                sigma_intensity=(1.0, 0.7),
                weight=0.8 * weight,
                normalization=normalization,
                compatibility=mu if matrix else None,
            ),
        ],
        spacing=spacing,
        self_term=self_term,
    )
    positions = np.array(list(itertools.product(*map(range, shape)))) * spacing  # (N, ndim)
    channels = images.reshape(2, voxels)
    z = (channels - channels.mean(axis=1, keepdims=True)) / channels.std(axis=1, keepdims=True)
    bilateral = np.concatenate([positions / 2.0, z.T / (1.0, 0.7)], axis=1)
    oracle = Oracle(
        energies=unary.reshape(n_labels, voxels),
        kernels=[gaussian(positions / 1.5, normalization), gaussian(bilateral, normalization)],
        compatibilities=[weight * potts, 0.8 * weight * mu],
    )
    return crf, oracle


def smooth_problem(shape: tuple[int, ...] = (20, 24, 16), n_labels: int = 4) -> pm.DenseCRF:
    """Blobs with smooth images, as in a brain: here lattices are at home."""
    rng = np.random.default_rng(3)
    grid = np.stack(np.meshgrid(*(np.linspace(-2, 2, n) for n in shape), indexing="ij"))
    waves = [np.sin(grid.T @ rng.normal(size=len(shape)) + k).T for k in range(n_labels)]
    images = np.stack(waves[:2]) + 0.05 * rng.normal(size=(2, *shape))
    unary = -2 * np.stack(waves) + rng.normal(size=(n_labels, *shape))
    return pm.DenseCRF(
        unary=unary,
        kernels=[
            pm.SpatialKernel(sigma=2.0, weight=1.0),
            pm.BilateralKernel(images, sigma_space=6.0, sigma_intensity=0.5, weight=3.0),
        ],
        mask=(grid**2).sum(axis=0) < 6,
    )


def masked_volume() -> pm.DenseCRF:
    rng = np.random.default_rng(0)
    shape = (5, 6, 4)
    return pm.DenseCRF(
        unary=rng.normal(size=(3, *shape)),
        kernels=[
            pm.SpatialKernel(sigma=(2.0, 1.0, 3.0), weight=1.5),
            pm.BilateralKernel(
                rng.normal(size=(2, *shape)), sigma_space=4.0, sigma_intensity=0.7, weight=2.0
            ),
        ],
        spacing=(1.0, 0.8, 2.5),
        mask=rng.random(shape) < 0.6,
    )


def four_axes() -> pm.DenseCRF:
    rng = np.random.default_rng(2)
    kernel = pm.SpatialKernel(sigma=1.3, weight=2.0)
    return pm.DenseCRF(unary=rng.normal(size=(2, 3, 4, 3, 2)), kernels=[kernel], self_term=True)


def matrix_for_one_kernel() -> pm.DenseCRF:
    rng = np.random.default_rng(3)
    return pm.DenseCRF(
        unary=rng.normal(size=(4, 6, 7)),
        kernels=[
            pm.SpatialKernel(sigma=2.0, weight=1.0),
            pm.SpatialKernel(sigma=1.0, weight=0.5, compatibility=semimetric(rng, 4)),
        ],
    )
