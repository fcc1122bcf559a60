from __future__ import annotations

import numpy as np
import pytest

import perturb_mpm as pm
from helpers.bad import SHAPE, UNARY, Bad, mean_field, model

CASES = [
    Bad(
        "energy_shape",
        ValueError,
        r"labels must have the image's shape \(3, 4\), got \(12,\)",
        lambda: model().energy(np.zeros(12)),
    ),
    Bad(
        "energy_labels",
        ValueError,
        r"labels must lie between 0 and 1, got values from 5 to 5",
        lambda: model().energy(np.full(SHAPE, 5)),
    ),
    Bad(
        "energy_nan",
        ValueError,
        r"labels must be finite",
        lambda: model().energy(np.full(SHAPE, np.nan)),
    ),
    Bad(
        "not_a_crf", TypeError, r"crf must be a DenseCRF, got ndarray", lambda: pm.mean_field(UNARY)
    ),
    Bad(
        "iterations_negative",
        ValueError,
        r"iterations must be at least 0, got -1",
        lambda: mean_field(model(), iterations=-1),
    ),
    Bad(
        "iterations_float",
        TypeError,
        r"iterations must be an integer, got float 1.5",
        lambda: mean_field(model(), iterations=1.5),
    ),
    Bad(
        "tolerance",
        ValueError,
        r"tolerance must be at least 0, got -0.1",
        lambda: mean_field(model(), tolerance=-0.1),
    ),
    Bad(
        "damping_one",
        ValueError,
        r"damping must be at least 0 and below 1, got 1.0",
        lambda: mean_field(model(), damping=1),
    ),
    Bad(
        "update",
        ValueError,
        r"update must be one of parallel, convergent, got str 'serial'",
        lambda: mean_field(model(), update="serial"),
    ),
    Bad(
        "threads",
        ValueError,
        r"threads must be at least 1, got 0",
        lambda: mean_field(model(), threads=0),
    ),
    Bad(
        "memory_text",
        ValueError,
        r'memory must be .* such as "4 GB", got \'lots\'',
        lambda: mean_field(model(), memory="lots"),
    ),
    Bad(
        "memory_small",
        MemoryError,
        r"needs .* GB, memory allows 1e-07 GB: use",
        lambda: mean_field(model(), memory=100),
    ),
]


@pytest.mark.parametrize("bad", CASES, ids=lambda bad: bad.name)
def test_it_is_refused_in_words(bad: Bad) -> None:
    with pytest.raises(bad.error, match=bad.message):
        bad.call()
