"""The law of a truth given its samples: location, scale and floor, learned from cases."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.stats import norm
from scipy.stats import t as student

from perturb_mpm.biomarkers import LearnedLaw, fit_law, to_scale
from perturb_mpm.biomarkers.intervals import from_scale, summarize_samples

Numbers = NDArray[np.float64]


def cohort(
    rng: np.random.Generator, cases: int, *, floor: float, trust: float, shift: float = 0.0
) -> tuple[list[Numbers], Numbers]:
    """Samples of each case, and truths that lie where a law of these numbers says."""
    middle, spread = rng.uniform(1, 4, cases), rng.uniform(0.05, 0.4, cases)
    samples = [np.exp(m + s * norm.ppf((np.arange(99) + 0.5) / 99)) for m, s in zip(middle, spread)]
    found = np.array([summarize_samples(each, "volume") for each in samples])
    scale = np.hypot(floor, trust * found[:, 1])
    return samples, from_scale(found[:, 0] + shift + scale * rng.normal(size=cases), "volume")


def share_inside(law: LearnedLaw, samples: list[Numbers], truth: Numbers) -> float:
    ends = np.array([law.widen(each) for each in samples])
    return float(((ends[:, 0] <= truth) & (truth <= ends[:, 1])).mean())


def test_many_cases_teach_the_numbers_that_made_them() -> None:
    samples, truth = cohort(np.random.default_rng(0), 600, floor=0.2, trust=2.0, shift=-0.3)
    from perturb_mpm.biomarkers import intervals

    found = np.array([summarize_samples(each, "volume") for each in samples])
    shift, floor, trust = intervals._most_probable(
        to_scale(truth, "volume") - found[:, 0], found[:, 1]
    )
    assert (shift, floor, trust) == pytest.approx((-0.3, 0.2, 2.0), rel=0.12)


def test_the_most_probable_numbers_are_those_of_a_grid() -> None:
    from perturb_mpm.biomarkers import intervals

    missed, spread = np.array([0.3, -0.1, 0.5, 0.2]), np.array([0.1, 0.2, 0.4, 0.1])
    shifts = np.linspace(-1.5, 1.5, 301)
    b, a, c = np.meshgrid(
        shifts, np.geomspace(0.02, 1, 41), np.geomspace(0.2, 4, 41), indexing="ij"
    )
    density = norm.logpdf(b, 0, 0.3) + norm.logpdf(np.log(a), math.log(0.2), 2)
    density += norm.logpdf(np.log(c), 0, 1)
    for r, s in zip(missed, spread, strict=True):
        density += norm.logpdf(r, b, np.hypot(a, c * s))
    together = np.exp(density).sum(axis=0)  # over β
    best = np.unravel_index(together.argmax(), together.shape)
    shift, floor, trust = intervals._most_probable(missed, spread)
    assert floor == pytest.approx(a[0][best], rel=0.1)
    assert trust == pytest.approx(c[0][best], rel=0.08)
    there = np.exp(density[:, best[0], best[1]])
    assert shift == pytest.approx(float((shifts * there).sum() / there.sum()), abs=0.01)


@pytest.mark.parametrize("cases", [3, 5, 11, 40])
def test_intervals_hold_the_truth_of_new_cases(cases: int) -> None:
    rng = np.random.default_rng(cases)
    inside, alone = [], []
    for _ in range(40 if cases < 19 else 12):
        samples, truth = cohort(rng, cases + 15, floor=0.3, trust=1.5, shift=0.2)
        law = fit_law(samples[:cases], truth[:cases])
        inside.append(share_inside(law, samples[cases:], truth[cases:]))
        low, high = np.quantile(samples[cases:], [0.025, 0.975], axis=1)
        alone.append(((low <= truth[cases:]) & (truth[cases:] <= high)).mean())
    assert 0.92 <= np.mean(inside) <= 0.99
    assert np.mean(alone) < 0.7  # the control: samples alone do not


def test_from_19_cases_on_the_interval_is_conformal() -> None:
    samples, truth = cohort(np.random.default_rng(2), 19, floor=0.2, trust=1.0)
    assert fit_law(samples[:18], truth[:18]).reach is None
    law = fit_law(samples, truth)
    assert law.reach is not None
    # Of 19 cases the 19th distance counts: every case lies inside, the farthest about at the end.
    assert share_inside(law, samples, truth) == 1
    # A truth far off moves the end: whatever the law of errors is, the promise is kept.
    truth[0] *= 50
    far = fit_law(samples, truth)
    assert (far.reach or 0) > 1.5 * law.reach
    assert far.floor > 2 * law.floor
    assert share_inside(far, samples, truth) == 1


def test_a_law_without_floor_and_shift_is_that_of_its_samples() -> None:
    samples = np.exp(2 + 0.3 * norm.ppf((np.arange(999) + 0.5) / 999))
    law = LearnedLaw("volume", 0.0, 0.0, 1.0, cases=10_000)
    np.testing.assert_allclose(law.widen(samples), np.quantile(samples, [0.025, 0.975]), rtol=0.02)
    fixed = LearnedLaw("volume", 0.0, 0.3, 0.0, cases=10_000)
    low, high = fixed.widen(samples)
    wide = fixed.widen(np.exp(2 + 0.0 * samples))
    assert (low, high) == pytest.approx(wide, rel=0.01)  # whatever their spread


def test_quantiles_are_students() -> None:
    law = LearnedLaw("volume", 0.1, 0.2, 0.0, cases=5)
    wanted = math.log(10.1) + 0.1 + 0.2 * math.sqrt(1.2) * student.ppf([0.025, 0.5, 0.8], 3)
    found = law.quantiles([10.0, 10.0], [0.025, 0.5, 0.8])
    np.testing.assert_allclose(found, np.exp(wanted) - 0.1)
    conformal = LearnedLaw("volume", 0.1, 0.2, 0.0, cases=30, reach=3.0)
    assert conformal.widen([10.0])[1] == pytest.approx(10.1 * math.exp(0.1 + 0.6) - 0.1)
    assert len(law.draws([10.0])) == 200
    assert np.median(law.draws([10.0])) == pytest.approx(found[1], rel=0.01)


def test_a_structure_that_some_cases_lack_may_be_absent() -> None:
    samples, truth = cohort(np.random.default_rng(4), 18, floor=0.1, trust=1.0)
    assert fit_law(samples, truth).absent == 0
    truth[3] = 0.0
    law = fit_law(samples, truth)
    assert law.absent == 1
    low, high = law.widen(samples[0])
    assert low == 0
    ends = replace(law, absent=0).widen(samples[0])
    assert ends[0] > 0
    assert high == ends[1]
    assert replace(law, cases=60).widen(samples[0])[0] > 0  # 1 of 60 is less than 2.5 %


@pytest.mark.parametrize("scale", ["volume", "share"])
def test_the_scale_and_back(scale: str) -> None:
    values = np.array([0.0, 0.2, 0.9, 1.0])
    np.testing.assert_allclose(from_scale(to_scale(values, scale), scale), values, atol=1e-12)  # type: ignore[arg-type]
    np.testing.assert_array_equal(from_scale([-900.0], scale), [0.0])  # type: ignore[arg-type]
    assert np.isfinite(from_scale([900.0], scale)).all()  # type: ignore[arg-type]


def test_a_share_stays_one() -> None:
    law = LearnedLaw("share", 0.0, 3.0, 1.0, cases=4)
    low, high = law.widen([0.9, 0.95, 0.97])
    assert 0 <= low < 0.5
    assert 0.97 < high <= 1


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"scale": "length"}, "scale must be"),
        ({"floor": -1.0}, "floor must be at least 0"),
        ({"trust": math.nan}, "trust must be"),
        ({"cases": 1}, "cases must be at least 2"),
        ({"absent": 6}, "absent must be"),
    ],
)
def test_impossible_laws_are_refused(change: dict[str, object], words: str) -> None:
    numbers = {"scale": "volume", "shift": 0.0, "floor": 0.1, "trust": 1.0, "cases": 5} | change
    with pytest.raises(ValueError, match=words):
        LearnedLaw(**numbers)  # type: ignore[arg-type]


def test_bad_samples_are_named() -> None:
    with pytest.raises(ValueError, match="one number for each of at least 2 cases, got 1 for 2"):
        fit_law([[1.0], [2.0]], [1.0])
    with pytest.raises(ValueError, match="not empty"):
        fit_law([[], []], [1.0, 2.0])
    with pytest.raises(ValueError, match="a share must be at least 0 and at most 1"):
        fit_law([[0.5], [1.5]], [0.5, 0.5], "share")
