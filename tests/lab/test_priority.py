"""The simulated user's interval: right where samples are, and where errors are local."""

from __future__ import annotations

import numpy as np
import pytest

from lab.decisions import priority
from perturb_mpm.measures import OWN_ERRORS

CUBES, COUNT, TRUTHS = 12, 400, 300


@pytest.mark.parametrize(("own", "covered"), [(0.0, (0.90, 1.0)), (1.0, (0.0, 0.75))])
def test_samples_alone_hold_truths_of_their_own_law(
    own: float, covered: tuple[float, float]
) -> None:
    """The control: truths whose cubes err by themselves too are left outside."""
    assert covered[0] <= _coverage(priority.ALONE, own) <= covered[1]


@pytest.mark.parametrize("own", [0.0, 1.0])
def test_errors_of_their_own_keep_truths_inside(own: float) -> None:
    assert _coverage(OWN_ERRORS, own) >= 0.90


def _coverage(shares: tuple[float, ...], own: float) -> float:
    """Cubes share one error and have little of their own in samples; truths have more."""
    generator = np.random.default_rng(0)

    def draw(count: int, own: float) -> np.ndarray:
        shared = generator.normal(size=(count, 1))
        return 100 + shared + np.sqrt(0.05 + 1.05 * own) * generator.normal(size=(count, CUBES))

    chosen, inside = [0, 3, 7, 9], []
    fitted, moved = draw(COUNT, 0.0), draw(COUNT, 0.0)
    for truth in draw(TRUTHS, own):
        low, high = priority._interval(fitted, moved, chosen, truth[chosen], shares)
        inside.append(low <= truth.sum() <= high)
    return float(np.mean(inside))
