"""Noise given labels set by hand, beside rejection sampling and limits known in closed form."""

from __future__ import annotations

import math

import numpy as np
import pytest
from numpy.typing import NDArray

from perturb_mpm.engines import FREE, softmax
from perturb_mpm.model import Grid
from perturb_mpm.view import PaintedNoise, conditioning
from perturb_mpm.view.conditioning import GUMBEL_VARIANCE, OWN

LINE = Grid((12, 1, 1), (1.0, 1.0, 1.0))


def logs(odds: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the scores of two labels with these log-odds for the second."""
    return np.log(softmax(np.stack([np.zeros_like(odds), odds]), axis=0))


def paint(**labels: int) -> NDArray[np.int16]:
    given = np.full(LINE.voxels, FREE, dtype=np.int16)
    for name, label in labels.items():
        given[int(name[1:])] = label
    return given


def reject(
    scores: NDArray[np.float64], given: NDArray[np.int16], length: float, samples: int
) -> NDArray[np.float64]:
    """Return the probability of each label given the painted ones, by noise drawn until it fits.

    The noise is Gaussian in its shared part and Gumbel in each voxel's own.
    """
    generator = np.random.default_rng(1)
    n = scores.shape[1]
    away = np.arange(n)[:, np.newaxis] - np.arange(n)
    shared = (1 - OWN) * GUMBEL_VARIANCE * np.exp(-(away**2) / (2 * length**2))
    root = np.linalg.cholesky(shared + 1e-9 * np.eye(n))
    g = generator.standard_normal((samples, len(scores), n)) @ root.T
    g += math.sqrt(OWN) * generator.gumbel(size=g.shape)
    labels = (scores + g).argmax(axis=1)  # (S, N)
    fits = (labels == given)[:, given != FREE].all(axis=1)
    assert fits.sum() > 2000
    kept = labels[fits]
    return np.stack([(kept == label).mean(axis=0) for label in range(len(scores))])


@pytest.mark.parametrize("odds", [0.0, -1.5, 1.0])
def test_neighbours_become_what_rejection_sampling_gives(
    odds: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(conditioning, "LENGTH_SHARES", (1.0,))
    monkeypatch.setattr(conditioning, "SEEN_VOXELS", 0)
    scores = logs(np.full(LINE.voxels, odds))
    given = paint(v5=1, v6=1)
    influence = PaintedNoise(scores, given, LINE, ((3.0, 1.0),)).influence()
    found = influence.apply(scores[:, influence.voxels])[1]
    exact = reject(scores, given, 3.0, 200_000)[1, influence.voxels]
    before = softmax(scores, axis=0)[1, influence.voxels]
    np.testing.assert_allclose(found, exact, atol=0.06)
    # A negative control: without conditioning, the same comparison fails.
    assert np.abs(before - exact).max() > 0.1


def test_samples_follow_the_law_that_the_maps_have(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conditioning, "LENGTH_SHARES", (1.0,))
    monkeypatch.setattr(conditioning, "SEEN_VOXELS", 0)
    scores = logs(np.full(LINE.voxels, -1.0))
    noise = PaintedNoise(scores, paint(v5=1, v6=1), LINE, ((3.0, 1.0),))
    influence = noise.influence()
    generator = np.random.default_rng(2)
    away = np.arange(12)[:, np.newaxis] - np.arange(12)
    drawn = GUMBEL_VARIANCE * np.exp(-(away**2) / (2 * 3.0**2))  # as a run draws: all correlated
    root = np.linalg.cholesky(drawn + 1e-9 * np.eye(12))
    n = np.einsum("lns,mn->lms", generator.standard_normal((2, 12, 4000)), root)
    shifts = noise.sample_shifts(influence.voxels, n[:, noise.painted], range(4000))
    after = n[:, influence.voxels] + shifts  # (L, V, S)
    differences = after[1] - after[0]
    mean = influence.shift[1] - influence.shift[0]
    np.testing.assert_allclose(differences.mean(axis=1), mean, atol=0.1)
    # Of two independent labels the difference has twice the variance.
    left = 2 * GUMBEL_VARIANCE * (1 - influence.explained)
    np.testing.assert_allclose(differences.var(axis=1), left, atol=0.15)
    # The control: what one voxel's own noise leaves in doubt is left next to the paint, too.
    assert left.min() > 2 * GUMBEL_VARIANCE * OWN


def test_the_nearer_the_more_and_far_away_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conditioning, "SEEN_VOXELS", 0)
    grid = Grid((60, 1, 1), (1.0, 1.0, 1.0))
    given = np.full(60, FREE, dtype=np.int16)
    given[:3] = 1
    scores = logs(np.full(60, -1.0))
    influence = PaintedNoise(scores, given, grid, ((4.0, 1.0),)).influence()
    gain = influence.shift[1] - influence.shift[0]
    assert (gain > 0).all()
    assert (np.diff(gain) < 0).all()
    assert (np.diff(influence.explained) < 0).all()
    assert influence.voxels.max() <= 2 + 2.5 * 4


def test_paint_that_agrees_makes_surer_and_paint_that_differs_makes_other() -> None:
    scores = logs(np.full(LINE.voxels, 1.0))
    before = softmax(scores, axis=0)[1, 4]
    for label, surer in ((1, True), (0, False)):
        influence = PaintedNoise(scores, paint(v5=label), LINE, ((3.0, 1.0),)).influence()
        after = influence.apply(scores[:, influence.voxels])[1, influence.voxels == 4]
        assert (after > before) == surer


def test_the_length_is_the_one_under_which_the_paint_is_most_probable() -> None:
    grid = Grid((80, 1, 1), (1.0, 1.0, 1.0))
    scores = logs(np.zeros(80))
    long, short = np.full(80, FREE, np.int16), np.full(80, FREE, np.int16)
    long[:60] = 1
    short[:60] = np.arange(60) // 8 % 2
    found = [PaintedNoise(scores, each, grid, ((16.0, 1.0),)).lengths_mm for each in (long, short)]
    assert found == [(16.0,), (4.0,)]


def test_more_paint_than_is_conditioned_on_says_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    grid = Grid((20, 20, 3), (1.0, 1.0, 1.0))
    scores = logs(np.random.default_rng(0).normal(size=grid.voxels))
    given = np.full(grid.voxels, FREE, dtype=np.int16)
    given.reshape(20, 20, 3)[4:16, 4:16, 1] = 1
    answers = []
    for most in (250, 50):
        monkeypatch.setattr(conditioning, "MOST_PAINTED", most)
        influence = PaintedNoise(scores, given, grid, ((8.0, 1.0),)).influence()
        answers.append(dict(zip(influence.voxels.tolist(), influence.shift[1])))
    both = answers[0].keys() & answers[1].keys()
    assert len(both) > 200
    one, other = (np.array([each[v] for v in sorted(both)]) for each in answers)
    assert np.corrcoef(one, other)[0, 1] > 0.95
    assert np.abs(one - other).mean() < 0.2


def test_one_label_painted_does_not_spread_past_what_was_seen_beside_it() -> None:
    grid = Grid((30, 30, 9), (1.0, 1.0, 1.0))
    scores = logs(np.full(grid.voxels, -1.0))
    given = np.full((30, 30, 9), FREE, dtype=np.int16)
    given[10:18, 10:18, 4] = 1
    noise = PaintedNoise(scores, given.ravel(), grid, ((12.0, 1.0),))
    influence = noise.influence()
    after = np.full(grid.voxels, softmax(scores, axis=0)[1, 0])
    after[influence.voxels] = influence.apply(scores[:, influence.voxels])[1]
    after = after.reshape(30, 30, 9)
    assert after[12:16, 12:16, 5].min() > 0.5  # the next slice follows
    assert ((after > 0.5).sum(axis=(0, 1)) <= 1.3 * 64).all()
    assert after[:, :, 4][8:20, 8][5] < 0.5  # what was seen beside the paint does not
    planes = np.unravel_index(noise.painted, grid.shape)[2]
    assert set(planes.tolist()) == {4}
