"""Cases to tune on: with probabilities that were not learned from their truth."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from helpers.labelled_cases import layered_arrays, write_cases
from perturb_mpm.files import InputError, LabelScheme, find_labelled_cases
from perturb_mpm.segmenter import Calibration, Ensemble, SegmenterModel
from perturb_mpm.tune.cases import classify_cases


class Sure:
    """Trees that say the same label of every voxel."""

    count = 1
    importances = np.ones(1)

    def __init__(self, label: int) -> None:
        self.label = label

    def predict(self, features: NDArray[np.float32], n_labels: int) -> NDArray[np.float32]:
        return np.eye(n_labels, dtype=np.float32)[np.full(len(features), self.label)]


def test_a_model_answers_its_own_cases_by_trees_that_never_saw_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    labels = LabelScheme((0, 1, 2), ("background", "rim", "core"))
    ensemble = Ensemble(3, (("p0",), ("q",)), (Sure(1), Sure(2)), (0.3, 0.3, 0.4))
    model = SegmenterModel(("t1", "t2"), labels, ensemble, Calibration((1.0, 1.0, 1.0)))
    monkeypatch.setattr(SegmenterModel, "load", staticmethod(lambda _path: model))
    files = find_labelled_cases(write_cases(tmp_path, 2), "table")
    found = classify_cases(files, tmp_path / "model.npz", labels)
    assert list(found) == ["p0", "p1"]
    assert (found["p0"].probabilities[1] > 0.99).all()  # of the trees without fold 0
    assert (abs(found["p1"].probabilities[1:] - 0.5) < 0.01).all()  # a case it does not know
    assert found["p1"].truth is not None
    np.testing.assert_array_equal(found["p1"].truth, layered_arrays(1)[2])
    other = LabelScheme((0, 1, 4), ("background", "rim", "core"))
    with pytest.raises(InputError, match="must be trained on the label values 0, 1, 4"):
        classify_cases(files, tmp_path / "model.npz", other)
