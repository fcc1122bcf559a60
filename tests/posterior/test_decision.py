"""Labels decided region by region, against cases worked out by hand and a rule voxel by voxel."""

from __future__ import annotations

import numpy as np
import pytest

from perturb_mpm.posterior import check_nested, choose_regions, decide_labels

BRATS = {"whole": (1, 2, 3), "core": (1, 3), "enhancing": (3,)}  # background, necrosis, oedema, ET


def decide(*marginals: float, regions: dict[str, tuple[int, ...]] | None = None) -> int:
    labels = decide_labels(np.array(marginals)[:, np.newaxis], regions)
    return int(labels[0])


def test_three_tumour_labels_together_are_tumour() -> None:
    assert decide(0.4, 0.2, 0.2, 0.2) == 0
    # In the whole tumour by .6; the core has .4: what is left to the whole is oedema.
    assert decide(0.4, 0.2, 0.2, 0.2, regions=BRATS) == 2


@pytest.mark.parametrize(
    ("marginals", "label"),
    [
        ((0.5, 0.2, 0.1, 0.2), 0),  # exactly one half is not more than half
        ((0.1, 0.35, 0.2, 0.35), 1),  # core by .7, enhancing .35: the rest of the core
        ((0.1, 0.2, 0.19, 0.51), 3),
        ((0.45, 0.0, 0.3, 0.25), 2),
        ((0.0, 0.0, 0.45, 0.55), 3),
        ((1.0, 0.0, 0.0, 0.0), 0),
    ],
)
def test_nested_regions(marginals: tuple[float, ...], label: int) -> None:
    assert decide(*marginals, regions=BRATS) == label
    backwards = dict(reversed(BRATS.items()))
    assert decide(*marginals, regions=backwards) == label  # the order of names says nothing


def test_labels_in_no_region_are_decided_beside_background() -> None:
    regions = {"tumour": (1, 2)}
    assert decide(0.3, 0.1, 0.1, 0.5, regions=regions) == 3
    assert decide(0.25, 0.3, 0.25, 0.2, regions=regions) == 1
    # A region of nothing but its parts falls back on all of its labels.
    assert decide(0.2, 0.3, 0.4, 0.1, regions={**regions, "a": (1,), "b": (2,)}) == 2


def test_apart_regions() -> None:
    regions = {"left": (1, 2), "right": (3, 4)}
    assert decide(0.3, 0.1, 0.05, 0.25, 0.3, regions=regions) == 4
    assert decide(0.34, 0.16, 0.17, 0.16, 0.17, regions=regions) == 0


def test_votes_are_compared_as_whole_numbers() -> None:
    votes = np.array([[35], [15], [10], [10]], dtype=np.uint16)  # exactly one half of 70
    assert decide_labels(votes, BRATS)[0] == 0
    votes[:2, 0] = 34, 16
    assert decide_labels(votes, BRATS)[0] == 2  # tumour by 36 of 70, and core by 26


def test_without_regions_it_is_the_most_probable_label() -> None:
    p = np.random.default_rng(0).dirichlet(np.ones(4), 500).T
    np.testing.assert_array_equal(decide_labels(p), p.argmax(axis=0))
    np.testing.assert_array_equal(decide_labels(p, {}), p.argmax(axis=0))


def test_many_voxels_by_a_rule_for_one() -> None:
    p = np.random.default_rng(1).dirichlet(np.ones(4), 4000).T  # (L, N)
    expected = []
    for background, necrosis, oedema, enhancing in p.T:
        if background >= 0.5:
            expected.append(0)
        elif necrosis + enhancing <= 0.5:
            expected.append(2)
        else:
            expected.append(3 if enhancing > 0.5 else 1)
        assert oedema >= 0
    found = decide_labels(p, BRATS)
    np.testing.assert_array_equal(found, expected)
    assert (found != p.argmax(axis=0)).mean() > 0.1  # the most probable label would not do


@pytest.mark.parametrize(
    ("regions", "message"),
    [
        ({"a": (1, 2), "b": (2, 3)}, "nested or apart to decide labels, got a and b"),
        ({"a": (1, 2), "b": (2, 1)}, "different sets of labels, got a and b with the same"),
    ],
)
def test_regions_that_decide_nothing(regions: dict[str, tuple[int, ...]], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        check_nested(regions)
    with pytest.raises(ValueError, match=message):
        decide_labels(np.ones((4, 1)), regions)


def mean_dice_by_hand(
    p: np.ndarray, labels: np.ndarray, regions: dict[str, tuple[int, ...]]
) -> float:
    found = []
    for members in regions.values():
        share = sum(p[label] for label in members)
        inside = sum(labels == label for label in members).astype(bool)
        found.append(2 * share[inside].sum() / (inside.sum() + share.sum()))
    return float(np.mean(found))


@pytest.mark.parametrize("seed", range(8))
def test_labels_are_decided_by_whatever_expects_more_dice(seed: int) -> None:
    rng = np.random.default_rng(seed)
    p = rng.dirichlet(rng.uniform(0.05, 2, 4), 200).T  # (L, N)
    by_regions, by_labels = (
        mean_dice_by_hand(p, decide_labels(p, how), BRATS) for how in (BRATS, None)
    )
    assert choose_regions(p, BRATS) == (BRATS if by_regions >= by_labels else {})


def test_the_most_probable_label_is_the_lowest_of_equals_on_any_axes() -> None:
    scores = np.random.default_rng(1).integers(0, 3, size=(5, 4, 3, 6))
    labels = decide_labels(scores)
    assert labels.dtype == np.uint8
    np.testing.assert_array_equal(labels, scores.argmax(axis=0))


def test_each_rule_wins_somewhere() -> None:
    tumour = np.array([[0.4], [0.2], [0.2], [0.2]])
    assert choose_regions(tumour, {"tumour": (1, 2, 3)}) == {"tumour": (1, 2, 3)}
    # Inside the core enhancing tumour never has half, and yet it is the likeliest label there.
    enhancing = np.tile([[0.0], [0.35], [0.25], [0.40]], 10)
    assert choose_regions(enhancing, {"enhancing": (3,)}) == {}
    assert choose_regions(enhancing, {}) == {}
