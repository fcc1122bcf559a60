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
    found = transforms.PerturbMPM(samples=5, seed=3)(given, torch.from_numpy(images()))
    volumes = found.pop("volumes")  # a tensor, in mm³, but no map
    assert not isinstance(volumes, MetaTensor)
    np.testing.assert_allclose(volumes.sum(dim=1), 9 * np.prod(SHAPE))
    for value in found.values():
        assert isinstance(value, MetaTensor)
        np.testing.assert_array_equal(value.affine.numpy(), AFFINE)
        assert value.meta["filename_or_obj"] == "case.nii.gz"
    # The spacing is that of the affine.
    same = transforms.PerturbMPM(samples=5, seed=3, spacing=torch.tensor([2.0, 1.5, 3.0]))
    plain = same(probabilities(), images())
    np.testing.assert_array_equal(found["marginals"].numpy(), plain["marginals"])
    other = transforms.PerturbMPM(samples=5, seed=3)(probabilities(), images())
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
