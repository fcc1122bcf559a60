"""Each filter is closer to the exact mean field than the one before it, on crops of patients."""

from __future__ import annotations

import numpy as np
import pytest

import perturb_mpm as pm
from perturb_mpm.engines import AccuracyWarning
from perturb_mpm.phantom import glioblastoma


def crop(seed: int, normalization: str, weight: float) -> pm.DenseCRF:
    """Return a CRF of 16³ voxels around enhancing tumour, 3 mm."""
    scan = glioblastoma(seed, spacing_mm=3.0)
    centre = np.argwhere(scan.truth == 4).mean(axis=0).astype(int)
    box = tuple(slice(max(0, c - 8), max(0, c - 8) + 16) for c in centre)
    images = scan.images[(slice(None), *box)]
    kernels = [
        pm.SpatialKernel(sigma=3.0, weight=weight, normalization=normalization),
        pm.BilateralKernel(
            images,
            sigma_space=20.0,
            sigma_intensity=0.5,
            weight=3 * weight,
            normalization=normalization,
        ),
    ]
    unary = pm.unary_from_probabilities(scan.probabilities[(slice(None), *box)])
    return pm.DenseCRF(unary=unary, kernels=kernels, spacing=(3.0, 3.0, 3.0))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::perturb_mpm.inference.ConvergenceWarning")
def test_marginals_are_closer_the_more_accurate_the_filter() -> None:
    """On one crop the count of labels that differ, a dozen of 4096, goes either way."""
    for seed in range(3):
        crf = crop(seed, "symmetric", 1.0)
        exact = pm.mean_field(crf, 10, engine="cpu", accuracy="exact").marginals
        distances = []
        for accuracy in ("plain", "calibrated", "accurate"):
            q = pm.mean_field(crf, 10, engine="cpu", accuracy=accuracy).marginals
            distances.append(float(np.abs(q - exact).sum(axis=0).mean() / 2))
        plain, calibrated, accurate = distances
        assert accurate < calibrated < plain < 0.006


def test_only_plain_without_normalisation_warns(recwarn: pytest.WarningsRecorder) -> None:
    unary = pm.unary_from_probabilities(np.full((2, 4, 4, 4), 0.5))

    def prepare(normalization: str, accuracy: str, engine: str = "cpu") -> None:
        kernel = pm.SpatialKernel(sigma=2.0, weight=0.1, normalization=normalization)
        pm.prepare(pm.DenseCRF(unary=unary, kernels=[kernel]), engine, accuracy)

    with pytest.warns(AccuracyWarning, match="calibrated"):
        prepare("none", "plain")
    recwarn.clear()
    prepare("symmetric", "plain")
    prepare("none", "calibrated")
    prepare("none", "plain", "reference")
    assert not recwarn.list
