"""Held voxels on the GPU: the same samples as the CPU engine's, and as full sampling's."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("torch", reason="engine gpu needs torch")
pytest.importorskip("triton", reason="engine gpu needs triton")

import torch

import perturb_mpm as pm
from helpers.interpreter import need_gpu_or_interpreter
from perturb_mpm.engines import HoldRule, averaged_marginals, averaged_variance, prepare
from perturb_mpm.engines.gpu import averaged
from perturb_mpm.noise import Perturbation
from perturb_mpm.sampling import Sampling
from perturb_mpm.sampling.held import hold_certain, prepare_hold

need_gpu_or_interpreter()

RULE = HoldRule(0.02, scale=1.0, sharpness=1.0, iterations=4)


def ball(centring: float = 0.0, *, potts: bool = True) -> pm.DenseCRF:
    """A ball whose border is in doubt, with a core; images show it."""
    rng = np.random.default_rng(1)
    shape = (8, 7, 6)
    axes = np.meshgrid(*(np.linspace(-1.6, 1.6, n) for n in shape), indexing="ij")
    depth = 1.0 - np.sqrt(sum(axis**2 for axis in axes))
    logits = np.stack([np.zeros(shape), 14 * depth, 26 * depth - 5.4])
    logits += 0.3 * rng.normal(size=logits.shape)
    images = depth[np.newaxis] + 0.1 * rng.normal(size=(1, *shape))
    matrix = np.array([[0.0, 1.0, 1.5], [1.0, 0.0, 0.5], [1.5, 0.5, 0.0]])
    return pm.DenseCRF(
        -logits,
        [
            pm.SpatialKernel(sigma=1.5, weight=0.6),
            pm.BilateralKernel(images, sigma_space=3.0, sigma_intensity=0.6, weight=1.2),
        ],
        compatibility=1 - np.eye(3) if potts else matrix,
        centring=centring,
    )


@pytest.mark.parametrize("potts", [True, False])
@pytest.mark.parametrize("centring", [0.0, 1.0])
def test_samples_are_those_of_the_cpu_engine(centring: float, *, potts: bool) -> None:
    crf = ball(centring, potts=potts)
    ours, theirs = (prepare(crf, engine, batch=5) for engine in ("gpu", "cpu"))
    held = prepare_hold(crf, theirs, Sampling(iterations=4, hold=0.02)).hold
    assert held is not None
    assert 0.05 < len(held.active) / crf.grid.voxels < 0.45
    changes = []
    for solver in (ours, theirs):
        solver.hold(held)
        solver.perturb(Perturbation(3), np.arange(5))
        changes.append([solver.step().switched for _ in range(5)])
    np.testing.assert_allclose(*changes)
    assert np.any(changes[0][0])
    np.testing.assert_allclose(ours.marginals(), theirs.marginals(), rtol=0, atol=2e-5)
    np.testing.assert_allclose(
        ours.conditional() / 2**30, theirs.conditional() / 2**30, rtol=0, atol=5e-5
    )
    np.testing.assert_array_equal(ours.labels(), theirs.labels())
    counts = [np.zeros(crf.energies.shape, dtype=np.uint32) for _ in range(2)]
    sizes = [s.count_votes(each) for s, each in zip((ours, theirs), counts, strict=True)]
    np.testing.assert_array_equal(*counts)
    np.testing.assert_array_equal(*sizes)
    ours.hold(None)
    ours.perturb(Perturbation(3), np.arange(2))
    assert ours.marginals().shape == (2, *crf.energies.shape)


def test_it_finds_by_itself_what_the_host_finds() -> None:
    crf = ball(1.0)
    sampling = Sampling(iterations=4, hold=0.02)
    found = hold_certain(crf, prepare(crf, "gpu", batch=2), sampling)
    wanted = prepare_hold(crf, prepare(crf, "cpu", batch=2), sampling)
    assert found.active_share == pytest.approx(wanted.active_share, abs=0.01)
    assert found.bound_nats == pytest.approx(wanted.bound_nats, rel=0.02)
    assert not found.reason


@pytest.mark.parametrize("estimator", ["votes", "conditional"])
def test_neither_batch_nor_range_changes_a_bit_and_full_sampling_agrees(estimator: str) -> None:
    crf = ball()
    options = {"seed": 3, "iterations": 4, "engine": "gpu", "estimator": estimator}
    whole = pm.sample(crf, 12, hold=0.01, **options)
    assert whole.active_share < 0.45
    assert pm.sample(crf, 12, hold=0.01, batch=5, **options) == whole
    parts = [pm.sample(crf, part, hold=0.01, **options) for part in (range(7, 12), range(7))]
    assert parts[0].merge(parts[1]) == whole
    full = pm.sample(crf, 12, **options)
    wrong = np.abs(whole.counts.astype(int) - full.counts.astype(int)).sum() / 2
    other = pm.sample(crf, 12, **{**options, "seed": 4})
    noise = np.abs(other.counts.astype(int) - full.counts.astype(int)).sum() / 2
    assert wrong <= 0.05 * noise


def test_too_many_active_voxels_are_sampled_in_full() -> None:
    doubtful = pm.DenseCRF(np.zeros((2, 6, 6)), [pm.SpatialKernel(sigma=1.0, weight=0.1)])
    held = pm.sample(doubtful, 4, iterations=2, engine="gpu", hold=0.01)
    assert held.active_share == 1.0
    assert "active" in held.parameters["hold"]["every_voxel"]


@pytest.mark.parametrize("estimator", ["votes", "conditional"])
def test_where_nothing_is_active_every_voxel_votes_by_itself(estimator: str) -> None:
    unaries = np.stack([np.zeros((6, 6)), np.full((6, 6), 4.0)])
    crf = pm.DenseCRF(unaries, [pm.SpatialKernel(sigma=1.0, weight=0.01)])
    options = {"seed": 2, "iterations": 3, "hold": 0.2, "estimator": estimator}
    ours, theirs = (pm.sample(crf, 32, engine=engine, **options) for engine in ("gpu", "cpu"))
    assert ours.active_share == theirs.active_share == 0
    assert ours.counts[1].any() == (estimator == "votes")  # whose noise is wider
    np.testing.assert_array_equal(ours.counts, theirs.counts)
    np.testing.assert_allclose(ours.marginals, theirs.marginals, atol=1e-5)


def test_averages_on_the_device_are_those_of_the_host() -> None:
    rng = np.random.default_rng(0)
    logits = (8 * rng.normal(size=(4, 500))).astype(np.float32)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    table = torch.from_numpy(RULE.table.copy()).to(device)
    wanted = averaged_marginals(logits, RULE.table)
    found = averaged.averaged_marginals(torch.from_numpy(logits).to(device), table)
    np.testing.assert_allclose(found.cpu().numpy(), wanted, rtol=2e-3, atol=1e-7)
    spread = averaged.averaged_variance(torch.from_numpy(wanted).to(device), RULE.spread)
    np.testing.assert_allclose(spread.cpu().numpy(), averaged_variance(wanted, RULE), atol=1e-5)


def test_tables_of_every_voxel_come_back_when_they_are_asked_for() -> None:
    crf = ball()
    solver, other = (prepare(crf, "gpu", batch=2) for _ in range(2))
    solver.hold_by(RULE)
    solver.perturb(Perturbation(3), np.arange(2))
    with pytest.raises(ValueError, match="pairwise needs every voxel"):
        solver.pairwise()
    for each in (solver, other):
        each.load([crf.energies])
        each.step()
    np.testing.assert_array_equal(solver.marginals(), other.marginals())
    np.testing.assert_array_equal(solver.pairwise(), other.pairwise())
