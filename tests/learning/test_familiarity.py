"""Whether a case is like those that settings were learned from."""

from __future__ import annotations

import numpy as np
import pytest

from perturb_mpm.learning import case_properties, familiar_ranges, find_unfamiliar


def test_properties_are_as_by_hand() -> None:
    p = np.array([[0.75, 0.25, 0.5], [0.25, 0.75, 0.5]])
    found = case_properties({"t1": [0.0, 2.0, 1.0]}, p, spacing=[10.0], skill=0.3, temperature=1.4)
    assert found["foreground, ml"] == pytest.approx(1.5 * 10 / 1000)
    assert found["entropy of the foreground, bits"] == pytest.approx(0.8112781)
    sd = np.std([0.0, 2.0, 1.0])
    assert found["contrast of t1, sd"] == pytest.approx(1.5 / sd)
    # In standard deviations, √(2/3), the image is −1, 1, 0: (−1·1 + 1·0) / 2 / (2/3).
    assert found["smoothness of t1"] == pytest.approx(-0.75)
    assert found["image evidence"] == 0.3
    assert found["grid temperature"] == 1.4


def test_what_a_case_does_not_have_is_left_out() -> None:
    found = case_properties({"flat": np.ones(4)}, np.array([[0.9] * 4, [0.1] * 4]))
    assert set(found) == {"foreground, ml"}


def test_about_one_in_a_hundred_familiar_cases_is_marked() -> None:
    rng = np.random.default_rng(0)
    marked = []
    for _ in range(150):
        values = np.exp(rng.normal(1.0, 0.3, 30))
        cases = [{"foreground, ml": float(each), "x": float(each)} for each in values]
        ranges = familiar_ranges(cases[:10])
        marked += [
            "foreground, ml" in {each.name for each in find_unfamiliar(case, ranges)}
            for case in cases[10:]
        ]
    assert np.mean(marked) == pytest.approx(0.01, abs=0.006)
    other = find_unfamiliar({"foreground, ml": float(np.exp(3.5))}, ranges)
    assert [each.name for each in other] == ["foreground, ml"]
    assert "foreground, ml 33" in str(other[0])


def test_properties_that_not_all_cases_have_do_not_count() -> None:
    ranges = familiar_ranges([{"a": 1.0, "b": 1.0}, {"a": 1.1}, {"a": 0.9}])
    assert set(ranges) == {"a"}
    assert find_unfamiliar({"b": 99.0}, ranges) == ()
    with pytest.raises(ValueError, match="at least 2, got 1"):
        familiar_ranges([{"a": 1.0}])
