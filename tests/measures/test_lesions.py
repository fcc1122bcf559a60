"""Lesions: candidates apart, their law equal to enumeration, joined ones, bad input."""

from __future__ import annotations

from itertools import groupby

import numpy as np
import pytest

import perturb_mpm as pm
from helpers.shapes import every_labelling
from perturb_mpm.measures import LesionCandidates, LesionFinder, MeasuredPatient

P = np.array([0.2, 0.9, 0.8, 0.3, 0.15, 0.4, 0.7, 0.1, 0.1, 0.25])
SHAPE = (10, 1, 1)


def make_patient(labels: np.ndarray | None = None) -> MeasuredPatient:
    given = np.zeros(SHAPE, dtype=np.uint8) if labels is None else labels.reshape(SHAPE)
    return MeasuredPatient(pm.Grid(SHAPE, (10.0, 10.0, 10.0)), {"lesion": (1,)}, given)


def runs(sample: np.ndarray) -> list[set[int]]:
    """Return the connected pieces of a line."""
    inside = [index for index, label in enumerate(sample) if label]
    grouped = groupby(enumerate(inside), lambda pair: pair[1] - pair[0])
    return [{index for _, index in group} for _, group in grouped]


def test_the_law_of_lesions_is_that_of_enumeration() -> None:
    """Pieces found by hand in every labelling, weighted, against the finder on samples."""
    finder = LesionFinder(make_patient(), "lesion", P.reshape(SHAPE), least_ml=2.0)
    basins, cores = finder.candidates.basins.ravel(), finder.candidates.cores.ravel()
    assert len(finder.candidates) == 2
    np.testing.assert_array_equal(cores, [0, 1, 1, 0, 0, 2, 2, 0, 0, 0])
    everything = every_labelling(10)
    weights = np.where(everything == 1, P, 1 - P).prod(axis=1)
    exists, joined = np.zeros((len(everything), 2)), np.zeros(len(everything))
    ml, count = np.zeros_like(exists), np.zeros(len(everything), dtype=int)
    for number, sample in enumerate(everything):
        pieces = [piece for piece in runs(sample) if len(piece) >= 2]
        count[number] = len(pieces)
        for lesion in (1, 2):
            touching = [piece for piece in pieces if any(cores[i] == lesion for i in piece)]
            exists[number, lesion - 1] = bool(touching)
            ml[number, lesion - 1] = sum(basins[i] == lesion for each in touching for i in each)
        joined[number] = any({1, 2} <= {cores[i] for i in piece} for piece in pieces)
    finder.add(range(len(everything)), everything)
    found = finder.lesions
    np.testing.assert_array_equal(found.ml > 0, exists)
    np.testing.assert_array_equal(found.ml, ml)
    np.testing.assert_array_equal(found.counts, count)
    assert found.joined[0, 1] == joined.mean()

    crf = pm.DenseCRF(pm.unary_from_probabilities(np.stack([1 - P, P]).reshape(2, *SHAPE)))
    sampled = LesionFinder(make_patient(), "lesion", P.reshape(SHAPE), least_ml=2.0)
    samples = 600
    pm.Sampler(crf, pm.Sampling(samples=samples, seed=1), pm.Compute(engine="reference")).draw(
        keep=sampled.add
    )
    truly = weights @ exists
    error = np.sqrt(truly * (1 - truly) / samples)
    assert np.all(np.abs(sampled.lesions.probability - truly) < 4 * error)
    assert np.any(np.abs(exists.mean(axis=0) - truly) > 8 * error)  # control: equal weights
    distribution = sampled.lesions.number_distribution
    for number in range(4):
        expected = float(weights[count == number].sum())
        assert distribution.get(number, 0.0) == pytest.approx(expected, abs=0.07)


def test_two_peaks_are_apart_only_where_the_saddle_is_deep() -> None:
    deep = np.array([0, 0.9, 0.9, 0.3, 0.8, 0.8, 0]).reshape(-1, 1, 1)
    shallow = np.array([0, 0.9, 0.9, 0.78, 0.8, 0.8, 0]).reshape(-1, 1, 1)
    assert len(LesionCandidates.from_share(deep, 1.0)) == 2
    assert len(LesionCandidates.from_share(shallow, 1.0)) == 1


def test_a_candidate_is_large_and_probable_enough() -> None:
    share = np.zeros((9, 1, 1))
    share[1] = 0.9  # one voxel
    share[4:6] = 0.04
    share[7:9] = 0.06
    found = LesionCandidates.from_share(share, 1.0, least_ml=2.0)
    assert len(found) == 1
    assert found.peaks[0] == pytest.approx(0.06)
    assert len(LesionCandidates.from_share(share, 1.0)) == 2
    assert len(LesionCandidates.from_share(np.zeros((4, 4, 4)), 1.0)) == 0


def test_a_truth_outside_of_all_candidates_is_unmatched() -> None:
    share = np.zeros((12, 1, 1))
    share[1:4] = 0.5
    found = LesionCandidates.from_share(share, 1.0)
    truth = np.zeros((12, 1, 1), dtype=bool)
    truth[3:5] = truth[8:10] = True
    match = found.match(truth)
    assert (match.pieces, match.unmatched) == (2, 1)
    np.testing.assert_array_equal(match.ml, [1.0])  # of both its voxels one is in the basin


def test_lesions_are_told_with_their_place_and_the_by_doubt() -> None:
    labels = np.array([[0, 1, 1, 0, 0, 0, 1, 1, 0, 0]] * 4, dtype=np.uint8)
    labels[2:, 6:8] = 0  # the second is in half of the samples
    labels[0, 3:6] = 1  # and once both are one
    finder = LesionFinder(make_patient(labels[1]), "lesion", labels.mean(axis=0).reshape(SHAPE))
    finder.add(range(4), labels)
    found = finder.lesions
    first, second = found
    assert (first.probability, second.probability) == (1.0, 0.5)
    assert first.centre_voxel == (1.5, 0.0, 0.0)
    assert first.joined == ((2, 0.25),)
    assert (first.label_map_ml, second.label_map_ml) == (2.0, 2.0)
    assert found.number_distribution == {1: 0.75, 2: 0.25}
    assert [each.number for each in found.by_doubt()] == [2, 1]
    image = found.candidates.paint(np.array([1, 2], dtype=np.uint8), 0.3)
    np.testing.assert_array_equal(image.ravel(), [0, 1, 1, 0, 0, 0, 2, 2, 0, 0])


def test_a_negative_floor_is_refused() -> None:
    with pytest.raises(ValueError, match="least_ml must be at least 0, got -1"):
        LesionCandidates.from_share(np.ones((2, 2, 2)), 1.0, least_ml=-1)
