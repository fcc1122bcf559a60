from __future__ import annotations

import numpy as np
import pytest

from lab.comparators import GridCRF


@pytest.mark.parametrize(
    ("shape", "neighbours", "expected"),
    [
        ((5,), "faces", 4),
        ((3, 4), "faces", 17),
        ((3, 4), "all", 17 + 12),
        ((3, 3, 3), "faces", 54),
        ((3, 3, 3), "all", (27 * 26 - (8 * 19 + 12 * 15 + 6 * 9)) // 2),
    ],
)
def test_how_many_pairs_are_neighbours(
    shape: tuple[int, ...], neighbours: str, expected: int
) -> None:
    edges = GridCRF(np.zeros((2, *shape)), weight=1.0, neighbours=neighbours).edges
    assert len(edges.weight) == expected
    pairs = {frozenset(pair) for pair in zip(edges.first.tolist(), edges.second.tolist())}
    assert len(pairs) == expected


def test_weights_fall_with_distance_in_mm() -> None:
    crf = GridCRF(np.zeros((2, 2, 2)), weight=6.0, neighbours="all", spacing=(3.0, 4.0))
    expected = np.array([[0, 1.5, 2, 1.2], [1.5, 0, 1.2, 2], [2, 1.2, 0, 1.5], [1.2, 2, 1.5, 0]])
    np.testing.assert_allclose(crf.edges.matrix(4), expected)


def test_weights_fall_with_contrast() -> None:
    images = np.array([[0.0, 0.0, 1.0, 1.0], [5.0, 7.0, 7.0, 5.0]])
    crf = GridCRF(np.zeros((2, 4)), weight=2.0, images=images, sigma_intensity=(2.0, 0.5))
    # In standard deviations both channels jump by 2.
    jump = np.array([0 + (2 / 0.5) ** 2, (2 / 2) ** 2, (2 / 0.5) ** 2])
    np.testing.assert_allclose(crf.edges.weight, 2 * np.exp(-jump / 2))


def test_pairs_across_the_mask_do_not_count() -> None:
    mask = np.array([1, 1, 0, 1, 1])
    crf = GridCRF(np.zeros((2, 5)), weight=1.0, mask=mask)
    assert (crf.edges.first.tolist(), crf.edges.second.tolist()) == ([0, 2], [1, 3])


def test_energy_by_hand() -> None:
    unary = np.arange(8.0).reshape(2, 4)
    crf = GridCRF(unary, weight=10.0, mask=[1, 1, 1, 0])
    assert crf.energy([0, 0, 0, 1]) == 3
    assert crf.energy([1, 0, 1, 9]) == 4 + 1 + 6 + 20
    assert "labels=2, shape=(4,)" in repr(crf)
