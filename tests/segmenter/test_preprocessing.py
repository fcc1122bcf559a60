"""From images to a scene and back: orientation, mask, normalisation, and what is refused."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from perturb_mpm.segmenter.preprocessing import prepare, robust_scores

AFFINE = np.diag([1.0, 2.0, 3.0, 1.0])


def make_images(shape: tuple[int, int, int] = (6, 7, 8)) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    images = rng.uniform(1, 9, size=(2, *shape))
    images[:, 0] = images[:, -1] = images[:, :, 0] = 0
    return {"t1": images[0], "flair": images[1]}


def test_the_scene_is_the_brain_and_nothing_else() -> None:
    prepared = prepare(make_images(), AFFINE)
    assert prepared.scene.shape == (4, 6, 8)
    assert prepared.scene.spacing == (1.0, 2.0, 3.0)
    assert prepared.scene.sequences == ("t1", "flair")
    assert prepared.scene.mask.all()


def test_intensities_are_robust_standard_deviations() -> None:
    values = np.array([0.0, 1, 2, 3, 4, 5, 6, 7, 1000])
    scores = robust_scores(values, "t1")
    # The quartiles are 2 and 6, the median 4.
    assert scores[4] == 0
    assert scores[7] == pytest.approx(3 / (4 / 1.349))
    assert scores[8] == 10.0
    assert np.array_equal(robust_scores(values * 7 - 3, "t1"), scores)


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
@pytest.mark.parametrize("signs", [(1, 1, 1), (-1, 1, 1), (1, -1, -1)])
def test_orientation_does_not_matter_and_is_put_back(
    order: tuple[int, ...], signs: tuple[int, ...]
) -> None:
    straight = make_images()
    reference = prepare(straight, AFFINE)
    # The same patient, stored with other axes: own axis i is the world's order[i].
    flips = tuple(slice(None, None, sign) for sign in signs)
    stored = {name: image.transpose(order)[flips] for name, image in straight.items()}
    affine = np.eye(4)
    affine[:3, :3] = 0
    for own, (world, sign) in enumerate(zip(order, signs)):
        affine[world, own] = sign * AFFINE[world, world]
    inside = stored["t1"] != 0
    truth = np.random.default_rng(1).integers(0, 4, size=inside.shape, dtype=np.uint8)
    prepared = prepare(stored, affine, truth=truth)
    assert prepared.scene.spacing == reference.scene.spacing
    assert np.array_equal(prepared.scene.images, reference.scene.images)
    assert prepared.scene.truth is not None
    restored = prepared.restore(prepared.scene.truth[np.newaxis].astype(np.float32), [-1.0])[0]
    assert np.array_equal(restored[inside], truth[inside])
    assert (restored[~inside] == -1).all()


def test_a_given_mask_counts() -> None:
    images = make_images()
    mask = np.zeros((6, 7, 8), dtype=bool)
    mask[2:5, 2:6, 1:5] = True
    prepared = prepare(images, AFFINE, mask)
    assert prepared.scene.shape == (3, 4, 4)
    assert np.median(prepared.scene.images[0]) == pytest.approx(0, abs=0.05)


def test_bad_input_is_refused() -> None:
    images = make_images()
    with pytest.raises(ValueError, match="at least one sequence"):
        prepare({}, AFFINE)
    with pytest.raises(ValueError, match=r"on one grid, got t1 with .* and t2 with"):
        prepare({"t1": images["t1"], "t2": images["t1"][1:]}, AFFINE)
    with pytest.raises(ValueError, match=r"\(X, Y, Z\)"):
        prepare({"t1": images["t1"][0]}, AFFINE)
    with pytest.raises(ValueError, match="must be finite"):
        prepare({"t1": np.where(images["t1"] > 8, np.nan, images["t1"])}, AFFINE)
    with pytest.raises(ValueError, match="zeros only"):
        prepare({"t1": np.zeros((3, 3, 3))}, AFFINE)
    with pytest.raises(ValueError, match=r"affine must be \(4, 4\)"):
        prepare(images, np.eye(3))
    with pytest.raises(ValueError, match="affine must be invertible"):
        prepare(images, np.zeros((4, 4)))
    with pytest.raises(ValueError, match="mask must have the images' shape"):
        prepare(images, AFFINE, np.ones((2, 2, 2)))
    with pytest.raises(ValueError, match="empty mask"):
        prepare(images, AFFINE, np.zeros((6, 7, 8)))
    with pytest.raises(ValueError, match="must vary inside the mask, got t1"):
        prepare({"t1": np.ones((4, 4, 4))}, AFFINE)
