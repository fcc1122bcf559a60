from __future__ import annotations

import numpy as np
import pytest

import perturb_mpm as pm
from helpers.bad import SHAPE, UNARY, Bad, broken

HALVES = np.full((2, *SHAPE), 0.5)

CASES = [
    Bad(
        "probabilities_sum",
        ValueError,
        r"probabilities must sum to 1 over the labels .* got 0.9 at voxel \(0, 0\)",
        lambda: pm.unary_from_probabilities(0.9 * HALVES),
    ),
    Bad(
        "probabilities_labels_last",
        ValueError,
        r"probabilities must sum to 1 over the labels \(the first axis\)",
        lambda: pm.unary_from_probabilities(np.moveaxis(HALVES, 0, -1)),
    ),
    Bad(
        "probabilities_negative",
        ValueError,
        r"probabilities must not be negative, got -0.5 at index \(0, 1, 1\)",
        lambda: pm.unary_from_probabilities(broken(HALVES, -0.5, 0, 1, 1)),
    ),
    Bad(
        "probabilities_nan",
        ValueError,
        r"probabilities must be finite, got 1 NaN",
        lambda: pm.unary_from_probabilities(broken(HALVES, np.nan, 0, 1, 1)),
    ),
    Bad(
        "probabilities_one_label",
        ValueError,
        r"probabilities must have 2 to 255 labels .* got shape \(1, 3\)",
        lambda: pm.unary_from_probabilities(np.ones((1, 3))),
    ),
    Bad(
        "probabilities_no_label",
        ValueError,
        r"probabilities must have 2 to 255 labels .* got shape \(0, 3\)",
        lambda: pm.unary_from_probabilities(np.ones((0, 3))),
    ),
    Bad(
        "probabilities_text",
        TypeError,
        r"probabilities must be a numeric array",
        lambda: pm.unary_from_probabilities([["a"]]),
    ),
    Bad(
        "temperature_zero",
        ValueError,
        r"temperature must be positive, got 0.0",
        lambda: pm.unary_from_probabilities(HALVES, temperature=0),
    ),
    Bad(
        "clip_zero",
        ValueError,
        r"clip must be positive and below 1, got 0.0",
        lambda: pm.unary_from_probabilities(HALVES, clip=0),
    ),
    Bad(
        "clip_one",
        ValueError,
        r"clip must be positive and below 1, got 1.0",
        lambda: pm.unary_from_logits(HALVES, clip=1),
    ),
    Bad(
        "logits_infinite",
        ValueError,
        r"logits must be finite",
        lambda: pm.unary_from_logits(broken(UNARY, np.inf, 0)),
    ),
    Bad(
        "logits_shape",
        ValueError,
        r"logits must be \(labels, \*spatial\)",
        lambda: pm.unary_from_logits([1.0, 2.0]),
    ),
    Bad(
        "label_map_out_of_range",
        ValueError,
        r"labels must lie between 0 and 2, got values from 0 to 3",
        lambda: pm.unary_from_labels([0, 3], n_labels=3),
    ),
    Bad(
        "label_map_negative",
        ValueError,
        r"labels must lie between 0 and 2, got values from -1 to 1",
        lambda: pm.unary_from_labels([-1, 1], n_labels=3),
    ),
    Bad(
        "label_map_fractional",
        ValueError,
        r"labels must be whole numbers, got 0.5",
        lambda: pm.unary_from_labels([0.5, 1.0], n_labels=3),
    ),
    Bad(
        "label_map_empty",
        ValueError,
        r"labels must be \(\*spatial\) with 1 to 4 axes, none empty, got shape \(0,\)",
        lambda: pm.unary_from_labels(np.zeros(0, dtype=int), n_labels=3),
    ),
    Bad(
        "n_labels_1",
        ValueError,
        r"n_labels must be at least 2, got 1",
        lambda: pm.unary_from_labels([0], n_labels=1),
    ),
    Bad(
        "n_labels_256",
        ValueError,
        r"n_labels must be at most 255, got 256",
        lambda: pm.unary_from_labels([0], n_labels=256),
    ),
    Bad(
        "n_labels_float",
        TypeError,
        r"n_labels must be an integer, got float 3.0",
        lambda: pm.unary_from_labels([0], n_labels=3.0),
    ),
    Bad(
        "confidence",
        ValueError,
        r"confidence must be positive and below 1, got 1.0",
        lambda: pm.unary_from_labels([0], n_labels=3, confidence=1),
    ),
]


@pytest.mark.parametrize("bad", CASES, ids=lambda bad: bad.name)
def test_it_is_refused_in_words(bad: Bad) -> None:
    with pytest.raises(bad.error, match=bad.message):
        bad.call()
