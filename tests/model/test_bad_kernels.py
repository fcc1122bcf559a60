from __future__ import annotations

import numpy as np
import pytest

import perturb_mpm as pm
from helpers.bad import IMAGES, UNARY, Bad, bilateral, broken, mean_field, model, spatial

CASES = [
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


@pytest.mark.parametrize("bad", CASES, ids=lambda bad: bad.name)
def test_it_is_refused_in_words(bad: Bad) -> None:
    with pytest.raises(bad.error, match=bad.message):
        bad.call()
