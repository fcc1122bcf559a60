from __future__ import annotations

import numpy as np
import pytest

import perturb_mpm as pm
from helpers.bad import IMAGES, UNARY, Bad, bilateral, broken, mean_field, model, spatial
from perturb_mpm.model import Inside, fingerprint
from perturb_mpm.model.grid import Grid

GRID = Grid((2, 3), spacing=(1.0, 2.0))


def test_spatial_features_are_millimetres_over_sigma() -> None:
    expected = [[0, 0], [0, 1], [0, 2], [0.5, 0], [0.5, 1], [0.5, 2]]
    np.testing.assert_allclose(pm.SpatialKernel(sigma=2.0).features_on(GRID), expected)


def test_sigma_may_differ_by_axis() -> None:
    features = pm.SpatialKernel(sigma=np.array([1.0, 4.0])).features_on(GRID)
    np.testing.assert_allclose(features[-1], [1.0, 1.0])


def test_bilateral_features_are_positions_then_intensities() -> None:
    images = np.array([[[0, 1, 2], [3, 4, 5]], [[0, 10, 20], [30, 40, 50]]])
    kernel = pm.BilateralKernel(
        images, sigma_space=2.0, sigma_intensity=(0.5, 10.0), standardize=False
    )
    features = kernel.features_on(GRID)
    assert features.shape == (6, 4)
    assert features.dtype == np.float64
    np.testing.assert_allclose(features[:, :2], pm.SpatialKernel(sigma=2.0).features_on(GRID))
    np.testing.assert_allclose(features[:, 2], np.arange(6) / 0.5)
    np.testing.assert_allclose(features[:, 3], np.arange(6))


def test_intensities_are_standardised_inside_the_mask_alone() -> None:
    rng = np.random.default_rng(0)
    images = rng.normal(5.0, 3.0, size=(2, 4, 5))
    mask = rng.random((4, 5)) < 0.5
    images[:, ~mask] = 1e6
    features = pm.BilateralKernel(images, sigma_space=1.0, sigma_intensity=0.5).features_on(
        Grid((4, 5), mask=mask)
    )
    intensities = features[:, 2:] * 0.5
    np.testing.assert_allclose(intensities.mean(axis=0), 0, atol=1e-12)
    np.testing.assert_allclose(intensities.std(axis=0), 1)


def test_constant_channels_standardise_to_zero() -> None:
    images = np.full((1, 2, 3), 0.1)
    features = pm.BilateralKernel(images, sigma_space=1.0, sigma_intensity=0.1).features_on(GRID)
    np.testing.assert_array_equal(features[:, 2], 0)


def test_features_of_any_kind_are_divided_by_sigma() -> None:
    features = np.arange(12.0).reshape(2, 2, 3)
    kernel = pm.FeatureKernel(features, sigma=(1.0, 2.0))
    np.testing.assert_allclose(kernel.features_on(GRID), features.reshape(2, 6).T / (1.0, 2.0))


def test_a_spatial_kernel_is_a_feature_kernel_of_positions() -> None:
    positions = GRID.positions().T.reshape(2, 2, 3)
    np.testing.assert_allclose(
        pm.FeatureKernel(positions, sigma=3.0).features_on(GRID),
        pm.SpatialKernel(sigma=3.0).features_on(GRID),
    )


@pytest.mark.parametrize("dtype", ["float32", "int16"])
def test_images_are_copied_and_kept_in_single_precision_where_nothing_is_lost(dtype: str) -> None:
    images = np.ones((1, 2, 3), dtype=dtype)
    kernel = pm.BilateralKernel(images, sigma_space=1.0, sigma_intensity=1.0, standardize=False)
    images[...] = 9
    np.testing.assert_array_equal(kernel.features_on(GRID)[:, 2], 1.0)
    assert np.asarray(kernel.images).dtype == np.float32
    assert not np.asarray(kernel.images).flags.writeable


def test_kernels_cannot_be_changed() -> None:
    with pytest.raises(AttributeError):
        pm.SpatialKernel(sigma=1.0).weight = 2.0  # type: ignore[misc]


@pytest.mark.parametrize("kind", ["bilateral", "features"])
def test_a_crf_keeps_what_is_inside_its_mask_alone(kind: str) -> None:
    rng = np.random.default_rng(3)
    images = rng.normal(size=(2, 6, 5)).astype(np.float32)
    mask = rng.random((6, 5)) < 0.4

    def kernel(channels: np.ndarray) -> pm.BilateralKernel | pm.FeatureKernel:
        if kind == "features":
            return pm.FeatureKernel(channels, sigma=0.5)
        return pm.BilateralKernel(channels, sigma_space=2.0, sigma_intensity=0.5)

    def crf(channels: np.ndarray) -> pm.DenseCRF:
        return pm.DenseCRF(np.zeros((2, 6, 5)), [kernel(channels)], mask=mask)

    own = crf(images)
    whole = kernel(images).features_on(own.grid)
    np.testing.assert_array_equal(own.terms[0].features(), whole)
    kept = own.kernels[0]
    channels = kept.features if kind == "features" else kept.images
    assert isinstance(channels, Inside)
    assert channels.values.nbytes == 2 * mask.sum() * 4
    assert channels.values.flags.c_contiguous
    elsewhere = np.where(mask, images, images + 7)
    assert fingerprint(crf(elsewhere)) == fingerprint(own)
    inside = np.where(mask, images + rng.normal(size=images.shape).astype(np.float32), images)
    assert fingerprint(crf(inside)) != fingerprint(own)


def test_kernels_of_a_crf_serve_another_one_inside_its_mask_alone() -> None:
    rng = np.random.default_rng(5)
    images, mask = rng.normal(size=(1, 6, 5)), rng.random((6, 5)) < 0.6
    kernel = pm.FeatureKernel(images, sigma=0.5)
    crf = pm.DenseCRF(np.zeros((2, 6, 5)), [kernel], mask=mask)
    fewer = mask & (rng.random((6, 5)) < 0.5)
    other = pm.DenseCRF(np.zeros((2, 6, 5)), crf.kernels, mask=fewer)
    np.testing.assert_array_equal(other.terms[0].features()[:, 0], images[0][fewer] / 0.5)
    for wider in (None, ~mask):
        with pytest.raises(ValueError, match=r"kernels must know every voxel .* leaves out \d+"):
            pm.DenseCRF(np.zeros((2, 6, 5)), crf.kernels, mask=wider)


BAD = [
    Bad(
        "sigma_negative",
        ValueError,
        r"sigma of SpatialKernel must be positive, got -1.0",
        lambda: spatial(-1.0),
    ),
    Bad(
        "sigma_zero",
        ValueError,
        r"sigma of SpatialKernel must be positive, got 0.0",
        lambda: spatial((1.0, 0.0)),
    ),
    Bad(
        "sigma_infinite",
        ValueError,
        r"sigma of SpatialKernel must be finite and positive, got inf",
        lambda: spatial(np.inf),
    ),
    Bad(
        "sigma_none",
        TypeError,
        r"sigma of SpatialKernel must be a number, got NoneType None",
        lambda: spatial(None),
    ),
    Bad(
        "sigma_length",
        ValueError,
        r"sigma of SpatialKernel must be one number or one for each axis \(2\), got 3",
        lambda: model(UNARY, spatial((1.0, 1.0, 1.0))),
    ),
    Bad(
        "sigma_tiny",
        ValueError,
        r"sigma of SpatialKernel must be larger: .* 1e\+05 sigmas .* got one at 3.0e\+05",
        lambda: model(UNARY, spatial(1e-5)),
    ),
    Bad(
        "sigma_space_zero",
        ValueError,
        r"sigma_space of BilateralKernel must be positive, got 0.0",
        lambda: bilateral(space=0),
    ),
    Bad(
        "sigma_space_tiny",
        ValueError,
        r"sigma_space of BilateralKernel must be larger",
        lambda: model(UNARY, bilateral(space=1e-6)),
    ),
    Bad(
        "sigma_intensity_zero",
        ValueError,
        r"sigma_intensity of BilateralKernel must be positive, got 0.0",
        lambda: bilateral(intensity=0),
    ),
    Bad(
        "sigma_intensity_length",
        ValueError,
        r"sigma_intensity of BilateralKernel must be one .* or one for each channel \(2\), got 3",
        lambda: bilateral(intensity=(1.0, 1.0, 1.0)),
    ),
    Bad(
        "sigma_intensity_tiny",
        ValueError,
        r"sigma_intensity of BilateralKernel must be larger",
        lambda: mean_field(model(UNARY, bilateral(intensity=1e-6))),
    ),
    Bad(
        "feature_sigma_length",
        ValueError,
        r"sigma of FeatureKernel must be one number or one for each feature \(2\), got 1",
        lambda: pm.FeatureKernel(IMAGES, sigma=[1.0]),
    ),
    Bad(
        "feature_sigma_tiny",
        ValueError,
        r"sigma of FeatureKernel must be larger",
        lambda: mean_field(model(UNARY, pm.FeatureKernel(IMAGES, sigma=1e-9))),
    ),
    Bad(
        "weight_negative",
        ValueError,
        r"weight of SpatialKernel must be at least 0, got -2.0",
        lambda: spatial(weight=-2),
    ),
    Bad(
        "weight_nan",
        ValueError,
        r"weight of BilateralKernel must be finite and at least 0, got nan",
        lambda: bilateral(weight=np.nan),
    ),
    Bad(
        "weight_text",
        TypeError,
        r"weight of SpatialKernel must be a number, got str 'big'",
        lambda: spatial(weight="big"),
    ),
    Bad(
        "normalization",
        ValueError,
        r"normalization of SpatialKernel must be one of symmetric, before, after, none, got .*both",
        lambda: spatial(normalization="both"),
    ),
    Bad(
        "standardize",
        TypeError,
        r"standardize of BilateralKernel must be True or False, got int 1",
        lambda: bilateral(standardize=1),
    ),
    Bad(
        "images_nan",
        ValueError,
        r"images of BilateralKernel must be finite, got 1 .* index \(1, 0, 2\)",
        lambda: bilateral(broken(IMAGES, np.nan, 1, 0, 2)),
    ),
    Bad(
        "images_infinite",
        ValueError,
        r"images of BilateralKernel must be finite",
        lambda: bilateral(broken(IMAGES, -np.inf, 0, 0, 0)),
    ),
    Bad(
        "images_text",
        TypeError,
        r"images of BilateralKernel must be a numeric array, got dtype <U1",
        lambda: bilateral([["a"]]),
    ),
    Bad(
        "images_one_axis",
        ValueError,
        r"images of BilateralKernel must be \(channels, \*spatial\) .* got shape \(3,\)",
        lambda: bilateral([1.0, 2.0, 3.0]),
    ),
    Bad(
        "images_no_channel",
        ValueError,
        r"images of BilateralKernel must be \(channels, \*spatial\) .* got shape \(0, 3, 4\)",
        lambda: bilateral(IMAGES[:0]),
    ),
    Bad(
        "images_shape",
        ValueError,
        r"images of BilateralKernel must be \(channels, 3, 4\), got shape \(2, 4, 3\)$",
        lambda: model(UNARY, bilateral(np.zeros((2, 4, 3)))),
    ),
    Bad(
        "images_without_channel_axis",
        ValueError,
        r"got shape \(3, 4\): pass images\[np.newaxis\] for one channel",
        lambda: model(UNARY, bilateral(IMAGES[0])),
    ),
    Bad(
        "features_nan",
        ValueError,
        r"features of FeatureKernel must be finite",
        lambda: pm.FeatureKernel(broken(IMAGES, np.nan, 0, 0, 0)),
    ),
    Bad(
        "features_shape",
        ValueError,
        r"features of FeatureKernel must be \(channels, 3, 4\), got shape \(2, 12\)",
        lambda: model(UNARY, pm.FeatureKernel(np.zeros((2, 12)))),
    ),
]


@pytest.mark.parametrize("bad", BAD, ids=lambda bad: bad.name)
def test_bad_input_is_refused_in_words(bad: Bad) -> None:
    with pytest.raises(bad.error, match=bad.message):
        bad.call()
