from __future__ import annotations

import numpy as np
import pytest

from perturb_mpm.phantom import Phantom, glioma_phantom
from perturb_mpm.report.comparison import dice

SMALL = (32, 38, 28)


@pytest.fixture(scope="module")
def phantom() -> Phantom:
    return glioma_phantom(SMALL, seed=0)


def test_the_same_seed_is_the_same_patient(phantom: Phantom) -> None:
    again = glioma_phantom(SMALL, seed=0)
    for name in ("images", "truth", "probabilities", "mask"):
        np.testing.assert_array_equal(getattr(phantom, name), getattr(again, name))


def test_another_seed_is_another_patient(phantom: Phantom) -> None:
    other = glioma_phantom(SMALL, seed=1)
    assert dice(phantom.truth > 0, other.truth > 0) < 0.9


def test_arrays_have_the_stated_shapes_and_types(phantom: Phantom) -> None:
    assert phantom.images.shape == (4, *SMALL)
    assert phantom.images.dtype == np.float32
    assert phantom.probabilities.shape == (4, *SMALL)
    assert phantom.probabilities.dtype == np.float32
    assert phantom.truth.dtype == np.uint8
    assert phantom.mask.dtype == np.bool_
    assert len(phantom.label_names) == len(phantom.channel_names) == 4


def test_everything_is_finite_and_probabilities_sum_to_one(phantom: Phantom) -> None:
    assert np.isfinite(phantom.images).all()
    assert (phantom.images >= 0.0).all()
    np.testing.assert_allclose(phantom.probabilities.sum(axis=0), 1.0, atol=1e-6)


def test_outside_the_brain_there_is_nothing(phantom: Phantom) -> None:
    outside = ~phantom.mask
    assert (phantom.images[:, outside] == 0.0).all()
    assert (phantom.truth[outside] == 0).all()
    assert (phantom.probabilities[0, outside] == 1.0).all()


@pytest.mark.parametrize("seed", range(6))
def test_volumes_are_those_of_a_patient(seed: int) -> None:
    phantom = glioma_phantom(SMALL, seed=seed)
    voxel_ml = np.prod(phantom.spacing) / 1000.0
    brain_ml = phantom.mask.sum() * voxel_ml
    necrosis_ml, oedema_ml, rim_ml = (
        (phantom.truth == label).sum() * voxel_ml for label in (1, 2, 3)
    )
    assert 1100.0 < brain_ml < 1600.0
    assert 3.0 < necrosis_ml < 40.0
    assert 20.0 < oedema_ml < 200.0
    assert 3.0 < rim_ml < 40.0


def test_sequences_show_what_they_are_made_for(phantom: Phantom) -> None:
    regions = [phantom.mask & (phantom.truth == label) for label in range(4)]
    t1, t1ce, t2, flair = (
        np.array([np.median(image[region]) for region in regions]) for image in phantom.images
    )
    assert t1ce.argmax() == 3
    assert flair.argmax() == 2
    assert t2.argmax() == 1
    assert t1.argmax() == 0


def test_the_classifier_is_good_but_not_perfect(phantom: Phantom) -> None:
    labels = phantom.probabilities.argmax(axis=0)
    for label in (1, 2, 3):
        assert 0.3 < dice(phantom.truth == label, labels == label) < 0.95
    tumour_side = 0 if (phantom.truth[:16] > 0).any() else 1
    healthy_half = np.array_split(labels, 2)[1 - tumour_side]
    assert (healthy_half > 0).any()


def test_resolution_does_not_change_the_patient() -> None:
    coarse, fine = glioma_phantom((20, 24, 18), seed=2), glioma_phantom((40, 48, 36), seed=2)
    for label in (1, 2):
        volumes = [(case.truth == label).sum() * np.prod(case.spacing) for case in (coarse, fine)]
        assert volumes[0] == pytest.approx(volumes[1], rel=0.25)


def test_an_explicit_spacing_keeps_the_brain_at_its_size() -> None:
    wide = glioma_phantom((32, 38, 28), spacing=(6.0, 6.0, 6.0), seed=0)
    fitted = glioma_phantom((32, 38, 28), seed=0)
    volumes = [case.mask.sum() * np.prod(case.spacing) for case in (wide, fitted)]
    assert volumes[0] == pytest.approx(volumes[1], rel=0.05)


@pytest.mark.parametrize(
    ("shape", "spacing", "message"),
    [
        ((64, 64), None, "shape must be three sizes"),
        ((64, 64, 4), None, "at least 8 voxels"),
        ((64, 64, 48), (1.0, 1.0), "spacing must be three positive numbers"),
        ((64, 64, 48), (3.0, 3.0, 0.0), "spacing must be three positive numbers"),
        ((64, 64, 48), (1.0, 1.0, 1.0), "must cover the brain"),
    ],
)
def test_a_grid_that_cannot_hold_the_brain_is_refused(
    shape: tuple[int, ...], spacing: tuple[float, ...] | None, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        glioma_phantom(shape, spacing)
