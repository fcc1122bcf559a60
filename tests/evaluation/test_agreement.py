"""The Dice of a label map with samples, counted while these are drawn."""

from __future__ import annotations

import numpy as np
import pytest

import perturb_mpm as pm
from perturb_mpm.evaluation import SampleDice, dice

REGIONS = {"one": (1,), "two": (2,), "both": (1, 2), "none": (3,)}


def test_it_is_the_dice_of_each_kept_sample() -> None:
    rng = np.random.default_rng(0)
    labels, samples = rng.integers(0, 3, 50), rng.integers(0, 3, (7, 50)).astype(np.uint8)
    agreement = SampleDice(labels, REGIONS)
    agreement.add(range(4), samples[:4])
    agreement.add(range(4, 7), samples[4:])
    for name, members in REGIONS.items():
        wanted = [dice(np.isin(labels, members), np.isin(each, members)) for each in samples]
        np.testing.assert_allclose(agreement.dice()[name], wanted)


def test_parts_of_a_mask_add_up() -> None:
    rng = np.random.default_rng(1)
    labels, samples = rng.integers(0, 3, 40), rng.integers(0, 3, (5, 40))
    whole, left, right = (
        SampleDice(labels[part], REGIONS) for part in (slice(40), slice(13), slice(13, 40))
    )
    whole.add(range(5), samples)
    left.add(range(5), samples[:, :13])
    right.add(range(5), samples[:, 13:])
    for name, found in (left + right).dice().items():
        np.testing.assert_array_equal(found, whole.dice()[name])
    with pytest.raises(ValueError, match="same regions"):
        left + SampleDice(labels, {"one": (1,)})


def test_it_is_counted_while_samples_are_drawn() -> None:
    # One voxel is certain, one is a coin: Dice is 1 or 2/3, each half of the time.
    crf = pm.DenseCRF(pm.unary_from_probabilities([[1e-6, 0.5], [1 - 1e-6, 0.5]]))
    sampler = pm.Sampler(crf, pm.Sampling(samples=400, seed=3), pm.Compute(engine="reference"))
    agreement = SampleDice([1, 1], {"object": (1,)})
    sampler.draw(keep=agreement.add)
    found = agreement.dice()["object"]
    assert set(found.round(6)) == {1.0, round(2 / 3, 6)}
    assert (found == 1).mean() == pytest.approx(0.5, abs=0.08)


def test_samples_of_other_voxels_are_refused() -> None:
    agreement = SampleDice([0, 1], {"object": (1,)})
    with pytest.raises(ValueError, match=r"samples must be \(1, 2\), got shape \(1, 3\)"):
        agreement.add(range(1), [[0, 1, 1]])
    with pytest.raises(ValueError, match="labels must be"):
        SampleDice([[0, 1]], {"object": (1,)})
