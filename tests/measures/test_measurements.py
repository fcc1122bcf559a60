"""Measures of all samples: equal to enumeration, ranges add up, rules, bad input."""

from __future__ import annotations

import gc
import weakref

import numpy as np
import pytest

import perturb_mpm as pm
from helpers.shapes import every_labelling
from perturb_mpm.checks import ExpectedError
from perturb_mpm.measures import (
    MEASURES,
    Measure,
    MeasuredPatient,
    Measurer,
    Rule,
    Structure,
    define_measure,
    find_measures,
)

SHAPE = (2, 2, 2)
NAMES = ("volume", "area", "diameter", "bidirectional", "components", "dice", "margin")
EVERY = (
    *(name.replace("MASK", "vein").replace("IMAGE", "T1") for name in MEASURES),
    *("d95", "v20"),
)


@define_measure(unit="mm")
def height(structure: Structure) -> float:
    return structure.mask.shape[2] * structure.spacing[2]


def make_patient(**options: object) -> MeasuredPatient:
    labels = np.zeros(SHAPE, dtype=np.uint8)
    labels[0] = 1
    grid = pm.Grid(SHAPE, (1.0, 2.0, 3.0))
    return MeasuredPatient(grid, {"core": (1,)}, labels, **options)  # type: ignore[arg-type]


def test_the_law_of_every_measure_is_that_of_enumeration() -> None:
    """Without coupling all labellings have known probabilities: expectations must agree."""
    generator = np.random.default_rng(0)
    p = generator.uniform(0.5, 0.9, size=8)
    unary = pm.unary_from_probabilities(np.stack([1 - p, p]).reshape(2, *SHAPE))
    crf = pm.DenseCRF(unary, spacing=(1.0, 2.0, 3.0))
    vein = np.zeros(SHAPE, dtype=np.bool_)
    vein[1, 1] = True
    image = generator.normal(size=SHAPE)
    patient = make_patient(images={"T1": image}, masks={"vein": vein}, dose_gy=20 + 9 * image)
    measures = [*find_measures(EVERY, patient), height]
    assert len(measures) == len(MEASURES) + 3

    exact = Measurer(patient, measures)
    everything = every_labelling(8)
    exact.add(range(len(everything)), everything)
    weights = np.where(everything == 1, p, 1 - p).prod(axis=1)  # (256,)
    values = np.nan_to_num(exact.measurements.values, nan=-1)  # most are undefined where all is 0
    expected = weights @ values
    spread = np.sqrt(weights @ (values - expected) ** 2)

    sampled = Measurer(patient, measures)
    count = 500
    sampling = pm.Sampling(samples=count, seed=3)
    pm.Sampler(crf, sampling, pm.Compute(engine="reference")).draw(keep=sampled.add)
    found = sampled.measurements
    means = np.nan_to_num(found.values, nan=-1).mean(axis=0)
    errors = (means - expected) / (spread / np.sqrt(count))
    assert np.abs(errors).max() < 4
    wrong = (means - values.mean(axis=0)) / (spread / np.sqrt(count))
    assert np.abs(wrong).max() > 10  # the control: equal weights are another law

    rule = "core.volume > 0.02 and core.components < 2"
    truly = float(weights @ exact.measurements.holds(rule))
    low, high = found.probability_interval(rule)
    assert low < truly < high
    assert low < found.probability(rule) < high


def test_ranges_add_up_to_all_samples() -> None:
    patient = make_patient()
    labels = every_labelling(8)[::16]  # (16, 8)
    measures = find_measures(NAMES, patient)
    whole, first, second = (Measurer(patient, measures) for _ in range(3))
    whole.add(range(16), labels)
    first.add(range(5), labels[:5])
    second.add(range(5, 16), labels[5:])
    merged = second.measurements.merge(first.measurements)
    np.testing.assert_array_equal(merged.values, whole.measurements.values)
    np.testing.assert_array_equal(merged.sample_index, np.arange(16))
    with pytest.raises(ValueError, match="some twice"):
        merged.merge(first.measurements)


def test_looking_only_where_votes_are_changes_nothing() -> None:
    patient = make_patient()
    labels = every_labelling(8)[[0, 3, 12, 15]]
    counts = np.stack([(labels == label).sum(axis=0) for label in range(2)])
    found = []
    for each in (patient, patient.with_votes(counts)):
        measurer = Measurer(each, find_measures(NAMES, each))
        measurer.add(range(4), labels)
        found.append(measurer.measurements)
    np.testing.assert_array_equal(found[0].values, found[1].values)
    np.testing.assert_array_equal(found[0].label_map, found[1].label_map)


def test_no_sample_outlives_its_measures() -> None:
    """Structures refer to their sample and it to them: it must not wait for the collector."""
    patient = make_patient()
    measurer = Measurer(patient, find_measures(NAMES, patient))
    samples = [labels.copy() for labels in every_labelling(8)[:3]]
    alive = [weakref.ref(each) for each in samples]
    gc.disable()
    try:
        while samples:
            measurer.add(range(1), [samples.pop()])  # type: ignore[arg-type]
        assert not any(each() is not None for each in alive)
    finally:
        gc.enable()


def test_a_mask_puts_voxels_where_they_belong() -> None:
    inside = np.zeros((3, 3, 3), dtype=np.bool_)
    inside[1:, 1:, 1:] = True
    labels = np.zeros((3, 3, 3), dtype=np.uint8)
    patient = MeasuredPatient(pm.Grid((3, 3, 3), 1.0, inside), {"a": (1,), "ab": (1, 2)}, labels)
    measurer = Measurer(patient, find_measures(["volume", "diameter"], patient))
    measurer.add(range(1), np.array([[1, 0, 0, 0, 0, 0, 0, 2]], dtype=np.uint8))
    found = measurer.measurements
    assert found["a.diameter"][0] == 0
    assert found["ab.diameter"][0] == pytest.approx(np.sqrt(3))
    assert found["ab.volume"][0] == 0.002
    assert found.label_map_value("ab.volume") == 0


@pytest.mark.parametrize(
    "text", ["volume > 3", "core.volume", "core.volume > x", "core.volume = 3", "", "a.b >> 3"]
)
def test_a_rule_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="`rule` must be STRUCTURE"):
        Rule.from_text(text)


def test_rules_take_names_with_blanks_and_colons() -> None:
    rule = Rule.from_text("enhancing tumour.distance:left vein >= -1.5e1")
    assert rule.parts == (("enhancing tumour.distance:left vein", ">=", -15.0),)


def test_an_undefined_value_holds_no_rule() -> None:
    rule = Rule.from_text("a.sphericity < 2")
    held = rule.holds({"a.sphericity": np.array([np.nan, 1.0])})
    assert held.tolist() == [False, True]


def test_bad_measures_are_refused() -> None:
    with pytest.raises(ValueError, match="one word without dots"):
        Measure("a.b", "", height.compute)
    with pytest.raises(TypeError, match="must be a function"):
        Measure("a", "", 3)  # type: ignore[arg-type]
    with pytest.raises(ExpectedError, match="`measure` a must return a number for core of 4"):
        Measurer(make_patient(), [Measure("a", "", lambda structure: structure.name[9])])
    with pytest.raises(ValueError, match="must have the shape"):
        make_patient(images={"T1": np.zeros((3, 3, 3))})
    with pytest.raises(ValueError, match="must be one of core"):
        make_patient().label_map.structure("tumour")
