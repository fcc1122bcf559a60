"""TorchIO's transform: a Subject in and out, the same result as the arrays' own."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from perturb_mpm.run import RunSettings

torch = pytest.importorskip("torch", reason="the extra torchio is not installed")
tio = pytest.importorskip("torchio", reason="the extra torchio is not installed")

SHAPE = (8, 9, 6)
AFFINE = np.array([[-2.0, 0, 0, 9], [0, 1.5, 0, -4], [0, 0, 3.0, 1], [0, 0, 0, 1]])


@pytest.fixture(scope="module")
def transform() -> Any:
    from perturb_mpm.compat.torchio import PerturbMPM

    return PerturbMPM


def arrays(shape: tuple[int, ...] = SHAPE) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(1)
    p = np.moveaxis(rng.dirichlet(np.ones(3), size=shape), -1, 0).astype(np.float32)
    mask = np.ones((1, *shape), np.uint8)
    mask[:, :2] = 0
    return p, rng.normal(size=(2, *shape)).astype(np.float32), mask


def subject(shape: tuple[int, ...] = SHAPE, affine: np.ndarray = AFFINE) -> Any:
    p, images, mask = arrays(shape)
    return tio.Subject(
        pred=tio.ScalarImage(tensor=torch.from_numpy(p), affine=affine),
        t1=tio.ScalarImage(tensor=torch.from_numpy(images[:1]), affine=affine),
        t2=tio.ScalarImage(tensor=torch.from_numpy(images[1:]), affine=affine),
        brain=tio.LabelMap(tensor=torch.from_numpy(mask), affine=affine),
        age=57,
    )


def test_a_subject_gets_maps_in_their_place(transform: Any) -> None:
    from perturb_mpm.compat.maps import uncertainty_maps

    given = subject()
    found = tio.Compose([transform("pred", ["t1", "t2"], "brain", samples=5, seed=3)])(given)
    new = {f"pred_{name}" for name in ("labels", "marginals", "entropy", "volumes")}
    assert set(given) | new == set(found)
    assert found["age"] == 57
    assert isinstance(found["pred_labels"], tio.LabelMap)
    assert isinstance(found["pred_marginals"], tio.ScalarImage)
    p, images, mask = arrays()
    settings = RunSettings().changed(samples=5, seed=3)
    maps = uncertainty_maps(p, images, mask, np.array([2.0, 1.5, 3.0]), settings)
    np.testing.assert_array_equal(found["pred_volumes"], maps.pop("volumes"))
    for name, expected in maps.items():
        image = found[f"pred_{name}"]
        np.testing.assert_array_equal(image.affine, AFFINE)
        np.testing.assert_array_equal(image.data.numpy(), expected)
    assert found["pred_entropy"].data[:, :2].max() == 0
    assert found["pred_entropy"].data.max() > 0


def test_what_was_done_can_be_done_again(transform: Any) -> None:
    votes = RunSettings().changed(marginals="votes")
    found = transform("pred", "t1", samples=4, seed=2, settings=votes)(subject())
    (step,) = found.get_applied_transforms()
    again = step(subject())
    assert torch.equal(found["pred_marginals"].data, again["pred_marginals"].data)
    other = transform("pred", "t1", samples=4, seed=5, settings=votes)(subject())
    assert not torch.equal(found["pred_marginals"].data, other["pred_marginals"].data)


def test_one_slice_is_enough(transform: Any) -> None:
    found = transform("pred", "t1", samples=4)(subject((8, 9, 1)))
    assert found["pred_marginals"].shape == (3, 8, 9, 1)


def test_images_must_be_there_and_lie_on_one_grid(transform: Any) -> None:
    with pytest.raises(ValueError, match="must have an image `flair`, got"):
        transform("pred", "flair", samples=4)(subject())
    with pytest.raises(ValueError, match="must have an image `age`, got"):
        transform("pred", "age", samples=4)(subject())
    moved = subject()
    moved["t1"] = subject(affine=np.diag([2.0, 1.5, 2.0, 1.0]))["t1"]
    with pytest.raises(ValueError, match="`t1` must lie on the grid of `pred`"):
        transform("pred", "t1", samples=4)(moved)
