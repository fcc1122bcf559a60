"""Structures beside masks, doses, images and their label map: hand-computed, or all pairs."""

from __future__ import annotations

import math

import numpy as np
import pytest

import perturb_mpm as pm
from helpers.shapes import cut_out
from perturb_mpm.measures import LabelMap, MeasuredPatient, Structure, find_measures, relations

SPACING = (1.0, 2.0, 3.0)


def bar(first: int, stop: int, length: int = 8) -> np.ndarray:
    mask = np.zeros((length, 1, 1), dtype=np.bool_)
    mask[first:stop] = True
    return mask


def sampled(label_map: np.ndarray, sample: np.ndarray, **patient: object) -> Structure:
    """A structure whose label map differs from the sample."""
    grid = pm.Grid(label_map.shape, SPACING)
    found = MeasuredPatient(grid, {"a": (1,)}, label_map.astype(np.uint8), **patient)  # type: ignore[arg-type]
    return LabelMap(found, sample.astype(np.uint8).ravel()).structure("a")


@pytest.mark.parametrize("seed", range(4))
def test_distance_contact_and_overlap_are_those_of_all_pairs(seed: int) -> None:
    generator = np.random.default_rng(seed)
    mask, other = generator.random((2, 5, 4, 3)) < (0.1 if seed else 0.4)
    mask[0, 0, 0], other[4, 3, 2] = True, True
    structure = cut_out(mask, SPACING, masks={"vessel": other})
    gaps = (np.argwhere(mask)[:, None] - np.argwhere(other)) * SPACING  # (A, B, 3)
    lengths = np.linalg.norm(gaps, axis=2)
    assert relations.distance_mm(structure, "vessel") == pytest.approx(lengths.min(), rel=1e-6)
    assert relations.overlap_ml(structure, "vessel") == pytest.approx((mask & other).sum() * 6e-3)
    only = np.argwhere(mask & ~other)
    steps = np.abs(only[:, None] - np.argwhere(other))
    faces = [(steps == step).all(axis=2).sum() for step in np.eye(3, dtype=int)]
    assert relations.contact_mm2(structure, "vessel") == pytest.approx(faces @ np.array([6, 3, 2]))


def test_a_structure_of_the_same_sample_is_as_good_as_a_mask() -> None:
    labels = np.zeros((9, 4, 1), dtype=np.uint8)
    labels[1:3], labels[5:8, 1] = 1, 2
    patient = MeasuredPatient(pm.Grid(labels.shape, SPACING), {"a": (1,), "b": (2,)}, labels)
    one = patient.label_map.structure("a")
    given = cut_out(labels == 1, SPACING, masks={"b": labels == 2})
    for function in (relations.distance_mm, relations.overlap_ml, relations.contact_mm2):
        assert function(one, "b") == function(given, "b")
    assert relations.distance_mm(one, "b") == 3.0


def test_the_margin_covers_the_sample_and_no_more() -> None:
    structure = sampled(bar(2, 4), bar(1, 7))
    assert relations.margin_mm(structure) == 3.0
    assert relations.margin_mm(sampled(bar(2, 4), bar(3, 4))) == 0.0
    assert math.isnan(relations.margin_mm(sampled(bar(0, 0), bar(3, 4))))
    assert relations.margin_mm(sampled(bar(2, 4), bar(0, 0))) == 0.0


def test_agreement_with_the_label_map() -> None:
    structure = sampled(bar(1, 5), bar(3, 7))
    assert relations.dice_with_label_map(structure) == 0.5
    assert relations.hausdorff95_mm(structure) == pytest.approx(np.percentile([0, 0, 1, 2], 95))
    assert relations.surface_dice(structure) == 6 / 8
    same = sampled(bar(1, 5), bar(1, 5))
    assert relations.dice_with_label_map(same) == relations.surface_dice(same) == 1
    assert math.isnan(relations.hausdorff95_mm(sampled(bar(1, 5), bar(0, 0))))


def test_intensities_inside() -> None:
    image = np.arange(8.0).reshape(8, 1, 1)
    patient = cut_out(bar(2, 6), SPACING, images={"T1": image})
    chosen = find_measures(
        ["mean:T1", "sd:T1", "median:T1", "p10:T1", "entropy:T1"], patient.patient
    )
    found = [measure(patient) for measure in chosen]
    inside = np.array([2.0, 3.0, 4.0, 5.0])
    assert found == pytest.approx([3.5, inside.std(), 3.5, np.percentile(inside, 10), 2.0])


def test_dose_and_volume() -> None:
    dose = np.arange(8.0).reshape(8, 1, 1) * 10
    structure = cut_out(bar(0, 8), SPACING, dose_gy=dose)
    d50, v20, mean = find_measures(["d50", "v20", "mean_dose"], structure.patient)
    beyond = cut_out(bar(0, 8), SPACING, dose_gy=np.where(dose < 70, dose, np.nan))
    assert all(math.isnan(each(beyond)) for each in (d50, v20, mean))
    assert (d50(structure), v20(structure), mean(structure)) == (35.0, 0.75, 35.0)
    assert (d50.unit, v20.unit) == ("gy", "")


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("d95", "needs a `dose`"),
        ("distance:vein", "must name a mask or structure after the colon, one of a, got vein"),
        ("mean:T9", "must name an image"),
        ("wide", "must be one of volume"),
        ("no_such_module:f", "cannot be imported"),
        ("math:pi", "must be a function"),
    ],
)
def test_a_measure_that_cannot_be_had_is_refused(word: str, message: str) -> None:
    patient = cut_out(bar(1, 2), SPACING).patient
    with pytest.raises(ValueError, match=message):
        find_measures([word], patient)
