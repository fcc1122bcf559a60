"""Noise that two scans share: its law at a voxel, and how it correlates between scans."""

from __future__ import annotations

import numpy as np
import pytest

import perturb_mpm as pm
from perturb_mpm.noise import Perturbation
from perturb_mpm.sampling import SharedPerturbation, share_noise

GRID = pm.Grid((4, 4, 3), 1.0)
EULER = 0.5772156649


def draw(correlation: float, lengths: tuple = ((2.0, 1.0),), samples: int = 150) -> np.ndarray:
    """The Gumbel noise of two scans, (2, S, L, N)."""
    plain = Perturbation(seed=5, lengths=lengths)
    base = np.zeros((2, GRID.voxels))
    scans = [share_noise(plain, number, 77, correlation) for number in (1, 2)]
    return np.stack([-scan.energies(base, GRID, np.arange(samples)) for scan in scans])


@pytest.mark.parametrize("correlation", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("lengths", [((0.0, 1.0),), ((2.0, 0.7), (0.0, 0.3))])
def test_the_law_at_a_voxel_stays_gumbels(correlation: float, lengths: tuple) -> None:
    noise = draw(correlation, lengths)[0]
    few = noise[:, :, ::7]
    error = np.pi / np.sqrt(6 * few[:, 0, 0].size * 4)
    assert abs(few.mean() - EULER) < 4 * error
    assert few.std() == pytest.approx(np.pi / np.sqrt(6), rel=0.12)


@pytest.mark.parametrize("correlation", [0.0, 0.3, 0.8, 1.0])
def test_scans_correlate_as_asked(correlation: float) -> None:
    gumbel = draw(correlation)
    g = -np.log(np.exp(-gumbel))  # monotone: ranks are those of the Gaussian fields
    ranks = g[..., 0].reshape(2, -1).argsort(axis=1).argsort(axis=1)
    spearman = np.corrcoef(ranks)[0, 1]
    expected = 6 / np.pi * np.arcsin(correlation / 2)
    assert spearman == pytest.approx(expected, abs=4 / np.sqrt(ranks.shape[1]))


def test_fully_shared_noise_is_the_same_noise_and_none_is_the_own() -> None:
    one = draw(1.0, samples=3)
    np.testing.assert_allclose(one[0], one[1], rtol=1e-6)
    shared = -Perturbation(77, lengths=((2.0, 1.0),)).energies(
        np.zeros((2, GRID.voxels)), GRID, [0, 1, 2]
    )
    np.testing.assert_allclose(one[0], shared, atol=2e-4)


def test_bad_sharing_is_refused() -> None:
    with pytest.raises(ValueError, match="correlation must be"):
        SharedPerturbation(seed=1, shared_seed=2, correlation=1.5)
    with pytest.raises(ValueError, match="shared_seed must differ"):
        SharedPerturbation(seed=1, shared_seed=1)


def test_a_sampler_draws_with_other_noise() -> None:
    crf = pm.DenseCRF(
        pm.unary_from_logits(np.zeros((2, 4, 4, 3))), [pm.SpatialKernel(sigma=1.0, weight=0.5)]
    )
    sampler = pm.Sampler(crf, pm.Sampling(samples=6, seed=3), pm.Compute(engine="reference"))
    plain = sampler.draw()
    same = sampler.with_perturbation(share_noise(sampler.sampling.perturbation, 1, 3, 1.0)).draw()
    np.testing.assert_array_equal(plain.volumes, same.volumes)
    other = sampler.with_perturbation(share_noise(sampler.sampling.perturbation, 1, 3, 0.0)).draw()
    assert not np.array_equal(plain.volumes, other.volumes)
