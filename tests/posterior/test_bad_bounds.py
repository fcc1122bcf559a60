from __future__ import annotations

import numpy as np
import pytest

from helpers.bad import Bad
from perturb_mpm.posterior import (
    Precision,
    anytime_halfwidth,
    anytime_interval,
    clopper_pearson,
    entropy_bound,
    hoeffding,
    plug_in_bias,
    samples_needed,
    total_variation_bound,
)

COUNTS = np.array([[3, 1], [1, 3]])

CASES = [
    Bad(
        "epsilon_zero",
        ValueError,
        r"epsilon must be positive and below 1, got 0.0",
        lambda: samples_needed(0, 0.05, 4),
    ),
    Bad(
        "epsilon_text",
        TypeError,
        r"epsilon must be a number, got str 'small'",
        lambda: samples_needed("small", 0.05, 4),
    ),
    Bad(
        "delta_one",
        ValueError,
        r"delta must be positive and below 1, got 1.0",
        lambda: samples_needed(0.05, 1, 4),
    ),
    Bad(
        "labels_one",
        ValueError,
        r"labels must be at least 2, got 1",
        lambda: hoeffding(200, 0.05, 1),
    ),
    Bad(
        "voxels_zero",
        ValueError,
        r"voxels must be at least 1, got 0",
        lambda: hoeffding(200, 0.05, 4, 0),
    ),
    Bad(
        "samples_zero",
        ValueError,
        r"samples must be at least 1, got 0",
        lambda: hoeffding(0, 0.05, 4),
    ),
    Bad(
        "more_than_all",
        ValueError,
        r"k must lie between 0 and n, got values from 2 to 9",
        lambda: clopper_pearson([2, 9], 8),
    ),
    Bad(
        "negative",
        ValueError,
        r"k must lie between 0 and n, got values from -1 to 2",
        lambda: anytime_interval([2, -1], 8, 0.05),
    ),
    Bad(
        "fractional",
        ValueError,
        r"k must be whole numbers, got 1.5",
        lambda: clopper_pearson(1.5, 8),
    ),
    Bad("n_zero", ValueError, r"n must be at least 1, got 0", lambda: clopper_pearson(0, [0, 3])),
    Bad(
        "shapes",
        ValueError,
        r"k and n must fit together, got \(3,\) and \(2,\)",
        lambda: clopper_pearson([1, 2, 3], [4, 5]),
    ),
    Bad(
        "confidence_percent",
        ValueError,
        r"confidence must be positive and below 1, got 95.0",
        lambda: clopper_pearson(3, 8, 95),
    ),
    Bad(
        "anytime_delta",
        ValueError,
        r"delta must be positive and below 1, got 0.0",
        lambda: anytime_interval(3, 8, 0.0),
    ),
    Bad(
        "halfwidth_frequencies",
        TypeError,
        r"counts must be integers, got dtype float64",
        lambda: anytime_halfwidth(COUNTS / 4, 4, 0.05),
    ),
    Bad(
        "halfwidth_too_many",
        ValueError,
        r"counts must lie between 0 and the 2 samples, got values from 1 to 3",
        lambda: anytime_halfwidth(COUNTS, 2, 0.05),
    ),
    Bad(
        "halfwidth_empty",
        ValueError,
        r"counts must have at least one voxel, got shape \(2, 0\)",
        lambda: anytime_halfwidth(COUNTS[:, :0], 4, 0.05),
    ),
    Bad(
        "precision_epsilon",
        ValueError,
        r"epsilon of Precision must be positive and below 1, got -0.1",
        lambda: Precision(-0.1, 0.05),
    ),
    Bad(
        "precision_delta",
        ValueError,
        r"delta of Precision must be positive and below 1, got 0.0",
        lambda: Precision(0.1, 0),
    ),
    Bad(
        "precision_scope",
        ValueError,
        r"scope of Precision must be one of voxel, map, got str 'image'",
        lambda: Precision(0.1, 0.05, "image"),
    ),
    Bad(
        "precision_counts",
        ValueError,
        r"counts must be \(labels, voxels…\), got shape \(2,\)",
        lambda: Precision(0.1).is_reached(COUNTS[0], 4),
    ),
    Bad(
        "precision_mask",
        ValueError,
        r"mask must have the shape \(2,\), got \(3,\)",
        lambda: Precision(0.1).is_reached(COUNTS, 4, mask=np.ones(3)),
    ),
    Bad(
        "precision_mask_empty",
        ValueError,
        r"mask must contain at least one voxel, got an empty mask",
        lambda: Precision(0.1).is_reached(COUNTS, 4, mask=np.zeros(2)),
    ),
    Bad(
        "precision_share",
        ValueError,
        r"share must be at most 1, got 1.5",
        lambda: Precision(0.1).samples_to_reach(3, share=1.5),
    ),
    Bad(
        "precision_maximum",
        ValueError,
        r"maximum must be at least 1, got 0",
        lambda: Precision(0.1).check_reachable(0, 3),
    ),
    Bad(
        "losses_empty",
        ValueError,
        r"losses must have at least one sample, got shape \(0,\)",
        lambda: total_variation_bound([]),
    ),
    Bad(
        "losses_range",
        ValueError,
        r"losses must lie between 0 and 1, got values from 0.0 to 3.0",
        lambda: total_variation_bound([0, 3]),
    ),
    Bad(
        "losses_nan",
        ValueError,
        r"losses must be finite, got 1 NaN",
        lambda: total_variation_bound([0, np.nan]),
    ),
    Bad(
        "distance_negative",
        ValueError,
        r"distance must be at least 0, got -1.0",
        lambda: total_variation_bound([0.1], -1),
    ),
    Bad(
        "entropy_epsilon",
        ValueError,
        r"epsilon must lie between 0 and 1, got values from 1.5 to 1.5",
        lambda: entropy_bound(1.5, 4),
    ),
    Bad(
        "support_zero",
        ValueError,
        r"support must be at least 1, got 0",
        lambda: plug_in_bias([0, 2], 10),
    ),
]


@pytest.mark.parametrize("bad", CASES, ids=lambda bad: bad.name)
def test_it_is_refused_in_words(bad: Bad) -> None:
    with pytest.raises(bad.error, match=bad.message):
        bad.call()
