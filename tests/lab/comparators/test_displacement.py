"""Displaced borders: a ball's volume spreads as its border moves, and only then."""

from __future__ import annotations

import math

import numpy as np
import pytest

from lab.comparators import displace_borders
from perturb_mpm.files import Case, LabelScheme, geometry_from_affine

SHAPE, SPACING, RADIUS_MM = (24, 24, 16), (1.0, 1.0, 1.5), 7.0


@pytest.fixture(scope="module")
def ball() -> Case:
    """A ball whose probability falls linearly over two mm at its border."""
    centre = np.array([11.5, 11.5, 7.5])
    steps = np.stack(np.indices(SHAPE), -1) - centre
    r = np.sqrt(((steps * SPACING) ** 2).sum(-1))
    inside = np.clip((RADIUS_MM - r) / 2 + 0.5, 0, 1).astype(np.float32)
    return Case(
        images={"t1": inside},
        probabilities=np.stack([1 - inside, inside]),
        mask=np.ones(SHAPE, dtype=bool),
        mask_origin="given",
        labels=LabelScheme((0, 1), ("background", "ball")),
        geometry=geometry_from_affine(SHAPE, np.diag([*SPACING, 1.0])),
        hashes={},
    )


def test_without_displacement_every_sample_is_the_label_map(ball: Case) -> None:
    mean, volumes = displace_borders(ball, 5.0, 1e-9, 3, seed=1)
    np.testing.assert_allclose(mean, ball.probabilities, atol=1e-6)
    own = (ball.probabilities.argmax(axis=0) == 1).sum() * math.prod(SPACING) / 1000
    np.testing.assert_allclose(volumes[:, 1], own)
    np.testing.assert_allclose(volumes.sum(axis=1), ball.mask.size * math.prod(SPACING) / 1000)


def test_a_field_that_is_long_moves_the_whole_ball_and_keeps_its_volume(ball: Case) -> None:
    """Its border comes and goes with a short field alone: the negative control of the spread."""
    spreads = [
        displace_borders(ball, length, 1.0, 40, seed=2)[1][:, 1].std() for length in (2.0, 200.0)
    ]
    assert spreads[0] > 3 * spreads[1] > 0


def test_the_same_seed_gives_the_same_samples(ball: Case) -> None:
    first, again, other = (displace_borders(ball, 4.0, 1.0, 4, seed=seed) for seed in (3, 3, 4))
    np.testing.assert_array_equal(first[1], again[1])
    assert not np.array_equal(first[1], other[1])
