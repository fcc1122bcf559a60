"""MONAI's transforms: MetaTensors in and out, the same result as the library's own."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from perturb_mpm.run import RunSettings

torch = pytest.importorskip("torch", reason="the extra monai is not installed")
monai = pytest.importorskip("monai", reason="the extra monai is not installed")

SHAPE = (8, 9, 6)
AFFINE = np.array([[-2.0, 0, 0, 9], [0, 1.5, 0, -4], [0, 0, 3.0, 1], [0, 0, 0, 1]])
SETTINGS = RunSettings()


@pytest.fixture(scope="module")
def transforms() -> Any:
    with pytest.MonkeyPatch.context():
        from perturb_mpm.compat import monai as ours

    return ours


def probabilities(shape: tuple[int, ...] = SHAPE) -> np.ndarray:
    p = np.random.default_rng(1).dirichlet(np.ones(3), size=shape)
    return np.moveaxis(p, -1, 0).astype(np.float32)


def images(shape: tuple[int, ...] = SHAPE) -> np.ndarray:
    return np.random.default_rng(2).normal(size=(2, *shape)).astype(np.float32)


def test_arrays_in_arrays_out(transforms: Any) -> None:
    found = transforms.PerturbMPM(samples=5)(probabilities(), images())
    assert found["labels"].shape == (1, *SHAPE)
    assert found["marginals"].shape == (3, *SHAPE)
    np.testing.assert_allclose(found["marginals"].sum(axis=0), 1, atol=1e-5)
    assert found["entropy"].max() <= np.log2(3) + 1e-6
    assert found["volumes"].shape == (5, 3)
    np.testing.assert_allclose(found["volumes"].sum(axis=1), np.prod(SHAPE))  # mm³
    assert np.ptp(found["volumes"], axis=0).all()


def test_metatensors_keep_their_affine(transforms: Any) -> None:
    from monai.data import MetaTensor

    meta = {"filename_or_obj": "case.nii.gz"}
    given = MetaTensor(torch.from_numpy(probabilities()), affine=torch.tensor(AFFINE), meta=meta)
    how = {"samples": 5, "seed": 3, "settings": RunSettings.of_paper()}  # whose kernels are strong
    found = transforms.PerturbMPM(**how)(given, torch.from_numpy(images()))
    volumes = found.pop("volumes")  # a tensor, in mm³, but no map
    assert not isinstance(volumes, MetaTensor)
    np.testing.assert_allclose(volumes.sum(dim=1), 9 * np.prod(SHAPE))
    for value in found.values():
        assert isinstance(value, MetaTensor)
        np.testing.assert_array_equal(value.affine.numpy(), AFFINE)
        assert value.meta["filename_or_obj"] == "case.nii.gz"
    # The spacing is that of the affine.
    same = transforms.PerturbMPM(**how, spacing=torch.tensor([2.0, 1.5, 3.0]))
    plain = same(probabilities(), images())
    np.testing.assert_array_equal(found["marginals"].numpy(), plain["marginals"])
    other = transforms.PerturbMPM(**how)(probabilities(), images())
    assert (other["entropy"] != plain["entropy"]).any()


def test_a_dictionary_gets_maps_beside_what_it_has(transforms: Any) -> None:
    from monai.transforms import Activationsd, Compose

    logits = torch.log(torch.from_numpy(probabilities()))
    mask = torch.ones((1, *SHAPE))
    mask[:, :2] = 0
    data = {
        "pred": logits,
        "t1": torch.from_numpy(images()[:1]),
        "t2": torch.from_numpy(images()[1:]),
        "mask": mask,
    }
    steps = Compose(
        [
            Activationsd("pred", softmax=True),
            transforms.PerturbMPMd("pred", ("t1", "t2"), "mask", samples=5, seed=1),
        ]
    )
    found = steps(data)
    assert {"pred", "pred_labels", "pred_marginals", "pred_entropy", "t1"} <= set(found)
    assert found["pred_entropy"][:, :2].max() == 0
    inside = mask.numpy()[0] > 0
    expected = transforms.PerturbMPM(samples=5, seed=1)(probabilities(), images(), inside)
    np.testing.assert_allclose(found["pred_marginals"], expected["marginals"], atol=1e-4)


def test_two_axes_are_one_slice(transforms: Any) -> None:
    found = transforms.PerturbMPM(samples=4)(probabilities((8, 9)), images((8, 9)))
    assert found["marginals"].shape == (3, 8, 9)
    with pytest.raises(ValueError, match="`images` must be"):
        transforms.PerturbMPM(samples=4)(probabilities((8, 9)), images((9, 8)))


def test_gradients_and_half_precision_are_taken(transforms: Any) -> None:
    exact = (np.rint(probabilities() * 16) / 16).astype(np.float32)
    exact[0] = 1 - exact[1:].sum(axis=0)
    exact = np.clip(exact, 0, 1)
    exact /= exact.sum(axis=0)
    plain = transforms.PerturbMPM(samples=4)(exact, images())
    graded = torch.from_numpy(exact).requires_grad_()
    found = transforms.PerturbMPM(samples=4)(graded, torch.from_numpy(images()))
    np.testing.assert_array_equal(found["labels"].numpy(), plain["labels"])
    half = torch.from_numpy(exact).to(torch.bfloat16)
    found = transforms.PerturbMPM(samples=4)(half / half.sum(dim=0), images())
    assert found["marginals"].dtype == torch.float32


def test_one_sigmoid_channel_is_background_and_foreground(transforms: Any) -> None:
    p = probabilities()[:1]
    one = transforms.PerturbMPM(samples=4)(p, images())
    both = transforms.PerturbMPM(samples=4)(np.concatenate([1 - p, p]), images())
    assert one["marginals"].shape == (2, *SHAPE)
    np.testing.assert_array_equal(one["marginals"], both["marginals"])


REGIONS = {"core": (1, 4), "whole": (1, 2, 4), "enhancing": (4,)}  # as MONAI has them for BraTS


def test_overlapping_sigmoid_regions_are_labels_of_what_each_has_more(transforms: Any) -> None:
    p = np.moveaxis(np.random.default_rng(4).dirichlet(np.ones(4), size=SHAPE), -1, 0)
    background, necrotic, _, enhancing = p.astype(np.float32)
    channels = np.stack([necrotic + enhancing, 1 - background, enhancing])
    found = transforms.PerturbMPM(samples=4, regions=REGIONS)(channels, images())
    plain = transforms.PerturbMPM(samples=4)(p.astype(np.float32), images())
    np.testing.assert_allclose(found["marginals"], plain["marginals"], atol=2e-3)
    assert set(np.unique(found["labels"])) <= {0, 1, 2, 4}
    assert (found["labels"] == 4).any()
    data = {"pred": channels, "image": images()}
    again = transforms.PerturbMPMd("pred", "image", samples=4, regions=REGIONS)(data)
    np.testing.assert_array_equal(again["pred_labels"], found["labels"])
    with pytest.raises(ValueError, match="a channel for each of the 3 regions, got 2"):
        transforms.PerturbMPM(samples=2, regions=REGIONS)(channels[:2], images())
    with pytest.raises(ValueError, match=r"`regions`: the region .* must lie inside"):
        transforms.PerturbMPM(samples=2, regions=REGIONS)(channels[[1, 2, 0]], images())
    with pytest.raises(ValueError, match=r"must sum to 1 .* are named by `regions`"):
        transforms.PerturbMPM(samples=2)(channels, images())
    with pytest.raises(ValueError, match="logits"):
        transforms.PerturbMPM(samples=2, regions=REGIONS)(9 * channels - 3, images())


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (np.log(probabilities()), "as the logits of a network do: apply its softmax"),
        (1.5 * probabilities(), "must lie between 0 and 1|must sum to 1"),
        (0.5 * probabilities(), "must sum to 1 over the 3 labels"),
    ],
)
def test_what_is_no_distribution_is_said_in_words(
    transforms: Any, wrong: np.ndarray, words: str
) -> None:
    with pytest.raises(ValueError, match=words):
        transforms.PerturbMPM(samples=2)(wrong, images())


def test_an_image_or_mask_elsewhere_is_refused(transforms: Any) -> None:
    from monai.data import MetaTensor

    def place(array: np.ndarray, affine: np.ndarray) -> Any:
        return MetaTensor(torch.from_numpy(array), affine=torch.tensor(affine))

    moved = AFFINE.copy()
    moved[0, 3] += 1.0
    mask = np.ones((1, *SHAPE), np.float32)
    data = {
        "pred": place(probabilities(), AFFINE),
        "image": place(images(), AFFINE),
        "mask": place(mask, AFFINE + 1e-5 * (AFFINE != 0)),
    }
    transform = transforms.PerturbMPMd("pred", "image", "mask", samples=2)
    assert "pred_labels" in transform(data)
    for name, array in (("images", images()), ("mask", mask)):  # and of the array transform
        elsewhere = {"images": data["image"], "mask": data["mask"], name: place(array, moved)}
        with pytest.raises(ValueError, match=f"`{name}` must have the affine of `probabilities`"):
            transforms.PerturbMPM(samples=2)(data["pred"], **elsewhere)
    for key, array in (("image", images()), ("mask", mask)):
        with pytest.raises(ValueError, match=f"`{key}` must have the affine of `pred`"):
            transform({**data, key: place(array, moved)})
    assert "pred_labels" in transform({**data, "image": images()})  # it says nothing of a place
