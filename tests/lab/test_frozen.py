"""The comparison of frozen and converged samples with full sampling, on samples known by heart."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from lab.frozen import FrozenRow, compared
from lab.frozen.measuring import Drawn, blurred_truth, findings, measure_case, page
from lab.patients import labelled_case
from perturb_mpm.files import Case, LabelScheme
from perturb_mpm.model import Grid
from perturb_mpm.posterior import Posterior


def drawn(labels: list[list[int]]) -> Drawn:
    maps = np.array(labels, dtype=np.uint8)  # (S, N)
    votes = np.stack([(maps == l).sum(axis=0) for l in range(2)])
    volumes = np.stack([(maps == l).sum(axis=1) for l in range(2)], axis=1).astype(float)
    posterior = Posterior(
        grid=Grid((maps.shape[1],), 1.0),
        counts=votes,
        sample_index=np.arange(len(maps)),
        volumes=volumes,
        problem="p",
        parameters={},
    )
    return Drawn(posterior, maps, 1.0)


def small_case() -> Case:
    rng = np.random.default_rng(0)
    truth = np.zeros((8, 8, 6), dtype=np.uint8)
    truth[2:6, 2:6, 2:4] = 1
    image = (truth + 0.2 * rng.normal(size=truth.shape)).astype(np.float32)
    mask = np.ones(truth.shape, dtype=np.bool_)
    return labelled_case(
        {"t1": image}, mask, truth, LabelScheme((0, 1), ("none", "some")), np.eye(4)
    )


def test_samples_are_compared_one_by_one() -> None:
    full = drawn([[0, 1, 1, 0], [0, 1, 0, 0], [0, 1, 1, 1]])
    other = drawn([[0, 1, 0, 0], [0, 1, 1, 0], [1, 1, 0, 1]])
    found = compared(other, full)
    assert found["wrong_votes"] == pytest.approx(4 / 12)
    assert found["wrong_modal"] == pytest.approx(1 / 4)
    assert found["volume"] == 0
    assert compared(full, full)["wrong_votes"] == 0
    more = compared(drawn([[0, 1, 1, 0], [0, 1, 1, 0], [0, 1, 1, 1]]), full)
    assert more["volume"] == pytest.approx((7 / 3) / 2 - 1)
    assert more["volume_sd"] == pytest.approx((1 / 3) / np.std([2, 1, 3]))


def test_the_blurred_truth_has_a_floor_and_keeps_its_labels() -> None:
    case = blurred_truth(small_case())
    assert case.probabilities.min() >= 1e-4 / 2
    np.testing.assert_allclose(case.probabilities.sum(axis=0), 1, atol=1e-6)
    assert case.probabilities[1, 4, 4, 3] > case.probabilities[1, 0, 0, 0]


def test_a_case_is_measured_and_the_page_has_its_rows() -> None:
    rows = list(measure_case("made up", "blurred truth", blurred_truth(small_case()), 3, "cpu"))
    assert {(row.kernels, row.noise_mm) for row in rows} == {
        (kernels, length) for kernels in ("full", "run") for length in (0.0, 6.0, 40.0)
    }
    assert {row.mode for row in rows if row.noise_mm > 0} == {"tolerance", "hold and tolerance"}
    assert all(row.wrong_votes < 0.02 for row in rows)
    text = page(rows, 3)
    assert text.count("made up") == len(rows)
    worst = replace(rows[0], mode="hold", wrong_votes=0.0123)
    assert isinstance(worst, FrozenRow)
    assert "1.2e-02" in findings([*rows, worst])
