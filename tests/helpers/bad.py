"""What the tests of bad input share: a case, and short ways to build a model around it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

import perturb_mpm as pm

SHAPE = (3, 4)
UNARY = np.zeros((2, *SHAPE))
IMAGES = np.random.default_rng(0).normal(size=(2, *SHAPE))


@dataclass(frozen=True)
class Bad:
    """A call that must fail, with the error's type and a pattern of its words."""

    name: str
    error: type[Exception]
    message: str
    call: Callable[[], object]


def broken(array: np.ndarray, value: float, *index: int) -> np.ndarray:
    copy = array.astype(float)
    copy[index] = value
    return copy


def model(unary: Any = UNARY, *kernels: Any, **options: Any) -> pm.DenseCRF:
    return pm.DenseCRF(unary=unary, kernels=kernels, **options)


def spatial(sigma: Any = 1.0, **options: Any) -> pm.SpatialKernel:
    return pm.SpatialKernel(sigma=sigma, **options)


def bilateral(
    images: Any = IMAGES, space: Any = 2.0, intensity: Any = 0.5, **options: Any
) -> pm.BilateralKernel:
    return pm.BilateralKernel(images, sigma_space=space, sigma_intensity=intensity, **options)


def mean_field(crf: pm.DenseCRF, **options: Any) -> pm.MeanField:
    return pm.mean_field(crf, engine="reference", **options)
