"""A sampler that is made ready once: ranges drawn one after the other, and what it refuses."""

from __future__ import annotations

from unittest import mock

import numpy as np
import pytest

import perturb_mpm as pm
from perturb_mpm.engines import Compute
from perturb_mpm.sampling import Sampler, Sampling
from perturb_mpm.sampling import sampler as module


def coupled() -> pm.DenseCRF:
    rng = np.random.default_rng(8)
    shape = (8, 7, 6)
    return pm.DenseCRF(
        unary=rng.normal(size=(3, *shape)),
        kernels=[pm.SpatialKernel(sigma=2.0, weight=1.0)],
        spacing=(1.0, 1.0, 2.0),
        mask=rng.random(shape) < 0.8,
    )


@pytest.mark.parametrize("estimator", ["votes", "conditional"])
@pytest.mark.parametrize("cuts", [(7, 20), (1, 2, 3, 20), (20,)], ids=str)
def test_going_on_gives_what_one_call_gives(estimator: str, cuts: tuple[int, ...]) -> None:
    crf = coupled()
    options = {"seed": 4, "iterations": 3, "estimator": estimator}
    whole = pm.sample(crf, 20, **options)
    sampler = Sampler(crf, Sampling(**options))
    posterior = None
    for cut in cuts:
        posterior = sampler.draw(cut, after=posterior)
    assert posterior == whole
    assert posterior.parameters == whole.parameters


def test_the_engine_is_prepared_once() -> None:
    with mock.patch.object(module, "prepare_with", wraps=module.prepare_with) as prepare:
        sampler = Sampler(coupled(), Sampling(iterations=1))
        assert prepare.call_count == 0
        sampler.draw(9, after=sampler.draw(4))
    assert prepare.call_count == 1


@pytest.mark.parametrize("cuts", [(10, 25, 50, 90, 2000), (32, 64, 2000), (96, 2000)], ids=str)
def test_where_it_stops_does_not_depend_on_the_cuts(cuts: tuple[int, ...]) -> None:
    crf = pm.DenseCRF(unary=np.array([[0.0] * 6, [9.0] * 6]))
    options = {"until": pm.Precision(epsilon=0.1), "iterations": 1}
    whole = pm.sample(crf, 2000, **options)
    assert 50 < whole.samples < 96
    sampler = Sampler(crf, Sampling(**options))
    posterior = None
    for cut in cuts:
        posterior = sampler.draw(cut, after=posterior)
    assert posterior == whole
    assert sampler.draw(2000, after=posterior) is posterior


def test_labels_and_progress_come_batch_by_batch() -> None:
    crf = coupled()
    kept: dict[int, np.ndarray] = {}
    told: list[tuple[int, int]] = []
    sampler = Sampler(crf, Sampling(iterations=2), Compute(batch=3))
    options = {
        "progress": lambda done, of: told.append((done, of)),
        "keep": lambda part, labels: kept.update(zip(part, labels)),
    }
    first = sampler.draw(4, **options)
    posterior = sampler.draw(8, after=first, **options)
    assert told == [(3, 4), (4, 4), (7, 8), (8, 8)]
    assert list(kept) == list(range(8))
    maps = np.stack(list(kept.values()))  # (S, N)
    votes = np.stack([(maps == l).sum(axis=0) for l in range(3)])
    np.testing.assert_array_equal(posterior.voxel_counts, votes)


def test_samples_of_something_else_are_refused() -> None:
    sampler = Sampler(coupled(), Sampling(iterations=1))
    other_seed = Sampler(coupled(), Sampling(seed=1, iterations=1)).draw(3)
    with pytest.raises(ValueError, match="after must be of the same problem and parameters"):
        sampler.draw(5, after=other_seed)
    with pytest.raises(ValueError, match=r"after must hold the first of range\(0, 5\), got"):
        sampler.draw(5, after=sampler.draw(range(1, 3)))
    with pytest.raises(ValueError, match=r"after must hold the first of range\(0, 2\), got"):
        sampler.draw(2, after=sampler.draw(3))
