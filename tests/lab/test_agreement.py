"""Agreement of raters, against published and hand-computed values."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from lab.clinical.agreement import icc, kendalls_w

# Shrout & Fleiss 1979, table 2: ICC(2,1) = 0.29, 95 % interval 0.019 to 0.761.
SHROUT_FLEISS = [
    [9, 2, 5, 8],
    [6, 1, 3, 2],
    [8, 4, 6, 8],
    [7, 1, 2, 6],
    [10, 5, 6, 9],
    [6, 2, 4, 7],
]


def test_the_published_icc() -> None:
    result = icc(SHROUT_FLEISS)
    assert result.estimate == pytest.approx(0.2897638)
    assert (result.lower, result.upper) == pytest.approx((0.0188, 0.7611), abs=1e-4)


def test_icc_of_equal_raters_and_of_a_constant_table() -> None:
    assert icc([[1, 1], [2, 2], [5, 5]]).estimate == pytest.approx(1)
    assert math.isnan(icc(np.ones((4, 3))).estimate)
    # A constant offset between raters is disagreement: ICC(A,1) counts it.
    assert icc([[1, 2], [2, 3], [5, 6]]).estimate < 1


def test_kendalls_w() -> None:
    assert kendalls_w([[1, 10], [2, 20], [3, 30]]).w == pytest.approx(1)
    opposite = kendalls_w([[1, 3], [2, 2], [3, 1]])
    assert opposite.w == pytest.approx(0)
    generator = np.random.default_rng(0)
    table = np.round(generator.normal(size=(12, 4)), 0)
    friedman = stats.friedmanchisquare(*table)  # subjects as treatments: χ² = m(n − 1)W, ties too
    result = kendalls_w(table)
    assert result.statistic == pytest.approx(friedman.statistic)
    assert result.pvalue == pytest.approx(friedman.pvalue)
    assert math.isnan(kendalls_w(np.ones((4, 2))).w)


def test_two_raters_w_and_spearman() -> None:
    generator = np.random.default_rng(1)
    table = generator.normal(size=(9, 2))
    rho = stats.spearmanr(*table.T).statistic
    assert kendalls_w(table).w == pytest.approx((rho + 1) / 2)


def test_bad_tables() -> None:
    with pytest.raises(ValueError, match="at least two raters"):
        icc([[1], [2], [3]])
    with pytest.raises(ValueError, match="three complete subjects, got 2"):
        kendalls_w([[1, 2], [math.nan, 3], [2, 2]])
    with pytest.raises(ValueError, match="must not be infinite"):
        icc([[1, math.inf], [1, 2], [2, 3]])
