"""What a run says of how far its samples have come."""

from __future__ import annotations

import numpy as np
import pytest

import perturb_mpm as pm
from perturb_mpm.run.outputs import convergence_in_words


@pytest.fixture(scope="module")
def crf() -> pm.DenseCRF:
    rng = np.random.default_rng(0)
    unary = rng.normal(size=(2, 40))
    unary[0, :30] -= 12  # nearly certain
    return pm.DenseCRF(unary, [pm.SpatialKernel(2.0, weight=1.0)])


def test_the_last_iteration_is_told(crf: pm.DenseCRF) -> None:
    posterior = pm.sample(crf, 20, iterations=3, engine="reference")
    assert posterior.label_changes is not None
    most = 100 * posterior.label_changes.max()
    words = f"The last iteration changed the label of {most:.2g} % of the voxels at most."
    assert convergence_in_words(posterior) == words
    assert convergence_in_words(pm.sample(crf, 20, iterations=1, engine="reference")) == ""


def test_held_voxels_are_told_with_their_bound(crf: pm.DenseCRF) -> None:
    posterior = pm.sample(crf, 20, iterations=3, hold=0.01, engine="reference")
    words = convergence_in_words(posterior)
    assert 0 < posterior.active_share < 0.5
    assert f"Each sample updated {100 * posterior.active_share:.2g} % of the voxels" in words
    assert "hardly ever change their label" in words
    assert f"by {posterior.hold_bound_nats:.2g} nats at most" in words
