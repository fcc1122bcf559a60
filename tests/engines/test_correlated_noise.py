"""Correlated noise on every engine: what the reference makes of it, whatever the batch."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import perturb_mpm as pm
from helpers.interpreter import need_gpu_or_interpreter
from helpers.problems import four_axes, masked_volume
from perturb_mpm.engines import prepare
from perturb_mpm.noise import Perturbation, checked_lengths

LENGTHS: dict[str, Any] = {
    "white": 0.0,
    "short": 0.7,
    "medium": 5.0,
    "infinite": math.inf,
    "mixture": ((30.0, 0.5), (4.0, 0.3), (0.0, 0.2)),
}


@pytest.fixture(params=["cpu", "gpu"])
def engine(request: pytest.FixtureRequest) -> str:
    if request.param == "gpu":
        need_gpu_or_interpreter()
    return str(request.param)


@pytest.fixture
def options(engine: str) -> dict[str, Any]:
    """What is quick: Triton's interpreter takes seconds to build a lattice."""
    accuracy = "plain" if engine == "cpu" else "exact"
    return {"seed": 3, "iterations": 2, "engine": engine, "accuracy": accuracy}


@pytest.mark.parametrize("antithetic", [False, True], ids=["independent", "antithetic"])
@pytest.mark.parametrize("name", LENGTHS)
def test_engines_draw_what_the_reference_draws(engine: str, name: str, antithetic: bool) -> None:
    crf = masked_volume()
    perturbation = Perturbation(7, 0.9, antithetic, checked_lengths(LENGTHS[name]))
    found = []
    for solver in (prepare(crf, "reference", batch=4), prepare(crf, engine, "exact", batch=4)):
        solver.perturb(perturbation, np.array([3, 0, 8, 5]))
        start = solver.marginals()
        solver.step()
        found.append((start, solver.marginals(), solver.conditional() / 2.0**30))
    for theirs, ours in zip(*found):
        np.testing.assert_allclose(ours, theirs, atol=4e-6)


@pytest.mark.parametrize("far_apart", [0, 10**9], ids=["last axis first", "all axes at once"])
def test_the_gpu_interpolates_either_way(monkeypatch: pytest.MonkeyPatch, far_apart: int) -> None:
    need_gpu_or_interpreter()
    monkeypatch.setattr("perturb_mpm.engines.gpu.perturb_kernel.FAR_APART", far_apart)
    for crf in (masked_volume(), four_axes()):
        perturbation = Perturbation(2, lengths=checked_lengths(LENGTHS["mixture"]))
        found = []
        for engine in ("reference", "gpu"):
            solver = prepare(crf, engine, "exact", batch=2)
            solver.perturb(perturbation, np.array([0, 1]))
            found.append(solver.marginals())
        np.testing.assert_allclose(found[1], found[0], atol=4e-6)


def test_on_four_axes_too(engine: str) -> None:
    crf = four_axes()
    perturbation = Perturbation(2, lengths=checked_lengths(3.0))
    found = []
    for solver in (prepare(crf, "reference", batch=2), prepare(crf, engine, "exact", batch=2)):
        solver.perturb(perturbation, np.array([0, 1]))
        found.append(solver.marginals())
    np.testing.assert_allclose(found[1], found[0], atol=4e-6)


def test_a_batch_and_a_range_change_no_bit(options: dict[str, Any]) -> None:
    crf = masked_volume()
    options["noise_length"] = "6:0.8,0:0.2"
    whole = pm.sample(crf, 9, **options)
    parts = [pm.sample(crf, part, batch=2, **options) for part in (range(4), range(4, 9))]
    assert parts[0].merge(parts[1]) == whole


def test_length_0_is_the_papers_noise_to_the_bit(options: dict[str, Any]) -> None:
    crf = masked_volume()
    paper = pm.sample(crf, 6, **options)
    assert pm.sample(crf, 6, **options, noise_length=0) == paper
    other = pm.sample(crf, 6, **options, noise_length=5.0)
    assert other.problem == paper.problem
    with pytest.raises(ValueError, match="parameters"):
        paper.merge(other)


@pytest.mark.parametrize("length", [0.0, 2.0, 20.0, math.inf])
def test_volumes_spread_as_far_as_voxels_go_together(engine: str, length: float) -> None:
    crf = pm.DenseCRF(unary=np.zeros((2, 12, 12)))
    options = {"iterations": 0, "noise_length": length, "engine": engine}
    spread = pm.sample(crf, 400, **options).volumes.std(axis=0, ddof=1)
    # Label 1 wins where its normal is the larger one: two voxels whose normals correlate by ρ both
    # do with probability ¼ + asin(ρ)/2π (Sheppard 1899).
    places = np.stack(np.indices((12, 12)), axis=-1).reshape(-1, 2)
    squared = ((places[:, np.newaxis] - places) ** 2).sum(axis=-1)
    rho = np.exp(-squared / (2 * length**2)) if length > 0 else (squared == 0).astype(float)
    expected = math.sqrt(float(np.arcsin(rho).sum()) / (2 * math.pi))
    np.testing.assert_allclose(spread, expected, rtol=4 / math.sqrt(2 * 400))
