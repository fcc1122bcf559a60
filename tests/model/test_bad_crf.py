from __future__ import annotations

import numpy as np
import pytest

import perturb_mpm as pm
from helpers.bad import SHAPE, UNARY, Bad, broken, model, spatial

CASES = [
    Bad(
        "unary_nan",
        ValueError,
        r"unary must be finite, got 1 NaN or infinite values, the first at index \(1, 2, 3\)",
        lambda: model(broken(UNARY, np.nan, 1, 2, 3)),
    ),
    Bad(
        "unary_infinite",
        ValueError,
        r"unary must be finite, got 4 .* the first at index \(0, 1, 0\)",
        lambda: model(broken(UNARY, np.inf, 0, 1)),
    ),
    Bad(
        "unary_overflows",
        ValueError,
        r"unary must be finite",
        lambda: model(np.full((2, 3), np.longdouble("1e400"))),
    ),
    Bad(
        "unary_without_space",
        ValueError,
        r"unary must be \(labels, \*spatial\) with 1 to 4 spatial axes, got shape \(2,\)",
        lambda: model([0.0, 1.0]),
    ),
    Bad(
        "unary_five_axes",
        ValueError,
        r"unary must be .* 1 to 4 spatial axes, got shape \(2, 1, 1, 1, 1, 1\)",
        lambda: model(np.zeros((2, 1, 1, 1, 1, 1))),
    ),
    Bad(
        "unary_no_voxels",
        ValueError,
        r"unary must have at least one voxel, got shape \(2, 0\)",
        lambda: model(np.zeros((2, 0))),
    ),
    Bad(
        "unary_ragged",
        ValueError,
        r"unary must be an array, got rows of different lengths",
        lambda: model([[0.0], [0.0, 1.0]]),
    ),
    Bad(
        "unary_text",
        TypeError,
        r"unary must be a numeric array, got dtype <U1",
        lambda: model([["a"], ["b"]]),
    ),
    Bad(
        "unary_complex",
        TypeError,
        r"unary must be a numeric array, got dtype complex128",
        lambda: model(UNARY + 1j),
    ),
    Bad(
        "unary_objects",
        TypeError,
        r"unary must be a numeric array, got dtype object",
        lambda: model(UNARY.astype(object)),
    ),
    Bad(
        "labels_0",
        ValueError,
        r"unary must have 2 to 255 labels .* got shape \(0, 3\)",
        lambda: model(np.zeros((0, 3))),
    ),
    Bad(
        "labels_1",
        ValueError,
        r"unary must have 2 to 255 labels .* got shape \(1, 3\)",
        lambda: model(np.zeros((1, 3))),
    ),
    Bad(
        "labels_256",
        ValueError,
        r"unary must have 2 to 255 labels .* got shape \(256, 3\)",
        lambda: model(np.zeros((256, 3))),
    ),
    Bad(
        "mask_empty",
        ValueError,
        r"mask must contain at least one voxel, got an empty mask",
        lambda: model(mask=np.zeros(SHAPE)),
    ),
    Bad(
        "mask_shape",
        ValueError,
        r"mask must have the image's shape \(3, 4\), got \(4, 3\)",
        lambda: model(mask=np.ones((4, 3))),
    ),
    Bad(
        "mask_nan",
        ValueError,
        r"mask must be finite, got 1",
        lambda: model(mask=broken(np.ones(SHAPE), np.nan, 0, 0)),
    ),
    Bad(
        "mask_text",
        TypeError,
        r"mask must be a numeric array",
        lambda: model(mask=np.full(SHAPE, "x")),
    ),
    Bad(
        "spacing_length",
        ValueError,
        r"spacing must be one number or one for each axis \(2\), got 3: \(1.0, 1.0, 3.0\)",
        lambda: model(spacing=(1, 1, 3)),
    ),
    Bad(
        "spacing_zero",
        ValueError,
        r"spacing must be positive, got 0.0",
        lambda: model(spacing=(1.0, 0.0)),
    ),
    Bad(
        "spacing_nan",
        ValueError,
        r"spacing must be finite and positive, got nan",
        lambda: model(spacing=np.nan),
    ),
    Bad(
        "spacing_text",
        TypeError,
        r"spacing must be a number, got str '1mm'",
        lambda: model(spacing="1mm"),
    ),
    Bad(
        "self_term",
        TypeError,
        r"self_term must be True or False, got str 'no'",
        lambda: model(self_term="no"),
    ),
    Bad(
        "kernels_not_listed",
        TypeError,
        r"kernels must be a sequence of kernels, got SpatialKernel: write kernels=\[kernel\]",
        lambda: pm.DenseCRF(unary=UNARY, kernels=spatial()),
    ),
    Bad(
        "kernels_of_another_kind",
        TypeError,
        r"kernels must hold SpatialKernel, .* got float",
        lambda: model(UNARY, 3.0),
    ),
    Bad(
        "compatibility_not_symmetric",
        ValueError,
        r"compatibility must be symmetric, got 1.0 at \(0, 1\) but 2.0 at \(1, 0\)",
        lambda: model(compatibility=[[0, 1], [2, 0]]),
    ),
    Bad(
        "compatibility_shape",
        ValueError,
        r'compatibility must be "potts" or a symmetric \(2, 2\) matrix, got shape \(3, 3\)',
        lambda: model(compatibility=np.zeros((3, 3))),
    ),
    Bad(
        "compatibility_nan",
        ValueError,
        r"compatibility must be finite",
        lambda: model(compatibility=[[0, np.nan], [np.nan, 0]]),
    ),
    Bad(
        "compatibility_name",
        ValueError,
        r'compatibility must be "potts" or a symmetric \(2, 2\) matrix, got "ising"',
        lambda: model(compatibility="ising"),
    ),
    Bad(
        "kernel_compatibility",
        ValueError,
        r"compatibility of SpatialKernel must be symmetric",
        lambda: model(UNARY, spatial(compatibility=[[0, 1], [2, 0]])),
    ),
    Bad(
        "kernel_compatibility_nan",
        ValueError,
        r"compatibility of SpatialKernel must be finite",
        lambda: spatial(compatibility=[[0, np.inf], [1, 0]]),
    ),
]


@pytest.mark.parametrize("bad", CASES, ids=lambda bad: bad.name)
def test_it_is_refused_in_words(bad: Bad) -> None:
    with pytest.raises(bad.error, match=bad.message):
        bad.call()
