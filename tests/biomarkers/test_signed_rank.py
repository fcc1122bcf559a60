"""Exact tests and shifts, against published and hand-computed values."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from scipy import stats

from perturb_mpm.biomarkers import (
    bonferroni,
    hodges_lehmann,
    holm,
    wilcoxon_exact,
)


def differences_with_statistic(n: int, statistic: int) -> np.ndarray:
    """Return −1 … −n with the signs of some turned so that their ranks sum to ``statistic``."""
    values = -np.arange(1.0, n + 1)
    for rank in range(n, 0, -1):
        if statistic >= rank:
            values[rank - 1] = rank
            statistic -= rank
    assert statistic == 0
    return values


@pytest.mark.parametrize(
    ("statistic", "count", "printed"), [(6, 28, 5.34e-5), (16, 338, 6.45e-4), (10, 86, 1.64e-4)]
)
def test_the_papers_p_values(statistic: int, count: int, printed: float) -> None:
    result = wilcoxon_exact(differences_with_statistic(19, statistic), np.zeros(19))
    assert result.statistic == statistic
    assert result.pvalue == count / 2**19
    assert float(f"{result.pvalue:.2e}") == printed


def test_ties_and_zeros_as_r_does_it() -> None:
    x = [9, 14, 8, 11, 14, 10, 8, 14, 12, 14, 13, 9, 15, 12, 9]
    y = [13, 15, 9, 12, 16, 10, 8, 13, 12, 16, 9, 10, 16, 12, 9]
    result = wilcoxon_exact(x, y)
    assert (result.statistic, result.pvalue) == (13, 0.13671875)
    assert (result.pairs, result.zeros, result.exact) == (10, 5, True)


def test_ties_against_all_signs() -> None:
    differences = np.array([1.0, 1.0, -1.0, 2.0, 2.0, -3.0, 4.0])
    ranks = stats.rankdata(np.abs(differences))
    sums = [
        sum(r for r, s in zip(ranks, signs) if s) for signs in itertools.product((0, 1), repeat=7)
    ]
    v = ranks[differences > 0].sum()
    tail = min(np.mean(np.array(sums) <= v), np.mean(np.array(sums) >= v))
    assert wilcoxon_exact(differences, np.zeros(7)).pvalue == pytest.approx(min(1.0, 2 * tail))


@pytest.mark.parametrize("seed", range(5))
def test_without_ties_as_scipy(seed: int) -> None:
    generator = np.random.default_rng(seed)
    x, y = generator.normal(size=(2, 17))
    expected = stats.wilcoxon(x, y, method="exact")
    result = wilcoxon_exact(x, y)
    assert result.pvalue == pytest.approx(expected.pvalue, rel=1e-12)
    assert min(result.statistic, 17 * 18 / 2 - result.statistic) == pytest.approx(
        expected.statistic
    )


def test_many_pairs_use_the_normal_law() -> None:
    generator = np.random.default_rng(3)
    x = generator.normal(0.2, 1.0, size=80)
    result = wilcoxon_exact(x, np.zeros(80))
    assert not result.exact
    expected = stats.wilcoxon(x, correction=False).pvalue
    assert result.pvalue == pytest.approx(expected, rel=1e-9)


def test_rounding_does_not_break_ties() -> None:
    # 0.3 − 0.2 and 0.2 − 0.1 differ in their last bit.
    tied = wilcoxon_exact([0.3, 0.2, 0.1, 0.9], [0.2, 0.1, 0.2, 0.4])
    whole = wilcoxon_exact([3, 2, 1, 9], [2, 1, 2, 4])
    assert tied == whole


def test_missing_pairs_and_no_difference() -> None:
    result = wilcoxon_exact([1.0, math.nan, 3.0], [1.0, 2.0, 3.0])
    assert (result.pvalue, result.pairs, result.zeros, result.missing) == (1.0, 0, 2, 1)
    assert math.isnan(result.rank_biserial)


def test_rank_biserial_is_one_where_all_rise() -> None:
    assert wilcoxon_exact([2, 3, 5], [1, 1, 1]).rank_biserial == 1
    assert wilcoxon_exact([1, 1, 1], [2, 3, 5]).rank_biserial == -1


def test_bad_pairs() -> None:
    with pytest.raises(ValueError, match="same length, got 2 and 3"):
        wilcoxon_exact([1, 2], [1, 2, 3])
    with pytest.raises(ValueError, match="must not be infinite"):
        wilcoxon_exact([1, math.inf], [1, 2])
    with pytest.raises(ValueError, match="x must be a list"):
        wilcoxon_exact([[1, 2]], [[1, 2]])


# Hollander & Wolfe's depression scores; R gives 0.46 and (0.010, 0.786) at 95 %.
BEFORE = [1.83, 0.50, 1.62, 2.48, 1.68, 1.88, 1.55, 3.06, 1.30]
AFTER = [0.878, 0.647, 0.598, 2.05, 1.06, 1.29, 1.06, 3.14, 1.29]


def test_the_published_shift() -> None:
    shift = hodges_lehmann(BEFORE, AFTER)
    assert shift.estimate == pytest.approx(0.46)
    assert (shift.lower, shift.upper) == pytest.approx((0.010, 0.786))
    assert shift.confidence == pytest.approx(0.9609375)
    assert wilcoxon_exact(BEFORE, AFTER).pvalue == 0.0390625


def test_the_shift_interval_is_where_the_test_does_not_reject() -> None:
    shift = hodges_lehmann(BEFORE, AFTER)
    inside, outside = shift.lower + 1e-6, shift.lower - 1e-6
    assert wilcoxon_exact(BEFORE, np.array(AFTER) + inside).pvalue > 0.05
    assert wilcoxon_exact(BEFORE, np.array(AFTER) + outside).pvalue <= 0.05


def test_too_few_pairs_have_no_interval() -> None:
    shift = hodges_lehmann([1.0, 2.0, 4.0], [0.0, 0.0, 0.0])
    assert (shift.lower, shift.upper) == (-math.inf, math.inf)
    assert math.isnan(shift.confidence)
    with pytest.raises(ValueError, match="at least one complete pair"):
        hodges_lehmann([math.nan], [1.0])


def test_adjusted_p_values_by_hand() -> None:
    p = [0.01, 0.04, 0.03, 0.005]
    assert bonferroni(p) == pytest.approx([0.04, 0.16, 0.12, 0.02])
    assert bonferroni(p, m=8) == pytest.approx([0.08, 0.32, 0.24, 0.04])
    assert holm(p) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert (holm(p) <= bonferroni(p)).all()
    with pytest.raises(ValueError, match="between 0 and 1"):
        holm([0.5, 1.2])
    with pytest.raises(ValueError, match="at least 4"):
        bonferroni(p, m=3)
