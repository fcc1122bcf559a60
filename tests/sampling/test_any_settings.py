"""Settings drawn at random: neither batch nor threads change a bit, whatever is put together."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

import perturb_mpm as pm

# Mostly samples that hold voxels and settle: what stands twice, or first, is drawn more often.
SETTINGS = st.fixed_dictionaries(
    {
        "iterations": st.sampled_from([2, 3, 4, 6, 1, 0]),
        "hold": st.sampled_from([0.05, 0.001, 0.5, 0.0]),
        "tolerance": st.sampled_from([0.05, 1e-4, 0.0]),
        "estimator": st.sampled_from(["conditional", "votes"]),
        "noise_length": st.sampled_from([0.0, 0.0, 0.0, 3.0]),
        "start": st.sampled_from(["cold", "cold", "cold", "warm"]),
    }
)


@st.composite
def problems(draw: st.DrawFn) -> pm.DenseCRF:
    """A small CRF, from one in doubt everywhere to one that is certain everywhere."""
    shape = tuple(draw(st.lists(st.integers(1, 8), min_size=2, max_size=3)))
    n_labels = draw(st.integers(2, 5))
    rng = np.random.default_rng(draw(st.integers(0, 999)))
    images = rng.normal(size=(2, *shape))
    return pm.DenseCRF(
        draw(st.sampled_from([30, 300, 5, 0])) * rng.random((n_labels, *shape)),
        [
            pm.SpatialKernel(sigma=1.5, weight=draw(st.sampled_from([0.01, 0.5, 3.0]))),
            pm.BilateralKernel(images, sigma_space=3.0, sigma_intensity=1.0, weight=0.5),
        ],
        mask=draw(st.sampled_from([None, np.indices(shape).sum(axis=0) % 3 < 2])),
        centring=draw(st.sampled_from([0.0, 1.0])),
    )


@settings(max_examples=max(60, settings().max_examples))  # more of them by `make torture`
@given(problems(), SETTINGS, st.sampled_from([1, 3, 8]))
def test_neither_batch_nor_threads_change_a_bit(
    crf: pm.DenseCRF, options: dict[str, Any], batch: int
) -> None:
    whole = pm.sample(crf, 18, seed=3, engine="cpu", threads=1, **options)
    assert pm.sample(crf, 18, seed=3, engine="cpu", threads=2, batch=batch, **options) == whole
