"""Resampling and the correction of bias fields, where SimpleITK is installed."""

from __future__ import annotations

import numpy as np
import pytest

from perturb_mpm.segmenter.preprocessing import correct_bias, resample

pytest.importorskip("SimpleITK")


def test_a_ramp_is_resampled_to_where_it_belongs() -> None:
    # The value of a voxel is its place along the first world axis, on a grid turned about.
    affine = np.array([[0, -2.0, 0, 30], [3.0, 0, 0, -5], [0, 0, 1.0, 2], [0, 0, 0, 1]])
    index = np.indices((8, 10, 6)).reshape(3, -1)
    place = (affine[:3, :3] @ index + affine[:3, 3:])[0].reshape(8, 10, 6)
    onto = np.diag([1.0, 1.0, 1.0, 1.0])
    onto[:3, 3] = (16, 0, 3)
    found = resample(place, affine, (5, 4, 3), onto)
    wanted = np.broadcast_to((16 + np.arange(5)).reshape(5, 1, 1), (5, 4, 3))
    assert np.allclose(found, wanted, atol=1e-4)


def test_labels_are_not_interpolated_and_outside_is_0() -> None:
    labels = np.zeros((4, 4, 4))
    labels[1:3, 1:3, 1:3] = 4
    fine = np.diag([0.5, 0.5, 0.5, 1.0])
    found = resample(labels, np.eye(4), (12, 8, 8), fine, labels=True)
    assert set(np.unique(found)) == {0, 4}
    assert (found[9:] == 0).all()


def test_a_smooth_field_is_taken_out() -> None:
    shape = (24, 24, 24)
    rng = np.random.default_rng(0)
    x = np.indices(shape)[0] / 23
    tissue = np.where(rng.random(shape) < 0.5, 100.0, 150.0) + rng.normal(size=shape)
    field = np.exp(0.6 * (x - 0.5))
    found = correct_bias(tissue * field, np.ones(shape), np.eye(4), shrink=2, iterations=(20, 20))

    def tilt(image: np.ndarray) -> float:
        return abs(float(np.log(image[-4:].mean() / image[:4].mean())))

    assert tilt(found) < 0.6 * tilt(tissue * field)


def test_bad_input_is_refused() -> None:
    with pytest.raises(ValueError, match=r"image must be \(X, Y, Z\)"):
        resample(np.zeros((3, 3)), np.eye(4), (2, 2, 2), np.eye(4))
    with pytest.raises(ValueError, match="shrink must be at least 1"):
        correct_bias(np.ones((4, 4, 4)), np.ones((4, 4, 4)), np.eye(4), shrink=0)
