"""A run as layers of napari; napari's own classes take them where it is installed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from helpers.viewer_run import copy_run
from perturb_mpm.compat.napari import get_reader, read_layers
from perturb_mpm.run import load_run


def test_layers_lie_in_one_space_and_say_what_they_are(tmp_path: Path) -> None:
    folder = copy_run(tmp_path / "case")
    run = load_run(folder)
    assert get_reader(str(tmp_path)) is None
    assert get_reader([str(folder)]) is None
    reader = get_reader(str(folder))
    assert reader is not None
    layers = {layer[1]["name"]: layer for layer in reader(str(folder))}
    assert [kind for _, _, kind in layers.values()] == [
        "image",
        "image",
        "image",
        "labels",
        "points",
    ]
    assert list(layers) == ["T1", "FLAIR", "entropy, bits", "labels", "uncertain locations"]
    for data, arguments, kind in layers.values():
        np.testing.assert_array_equal(arguments["affine"], run.case.geometry.affine)
        assert data.shape == run.case.mask.shape or kind == "points"
    labels, about, _ = layers["labels"]
    assert set(np.unique(labels)) == {0, 2, 7}
    assert set(about["colormap"]) == {2, 7, None}
    assert about["metadata"]["names"] == {0: "healthy", 2: "oedema", 7: "core"}
    points, about, _ = layers["uncertain locations"]
    assert len(points) == len(about["features"]["words"]) > 0
    here = tuple(points[0].astype(int))
    assert layers["entropy, bits"][0][here] > 0


def test_napari_takes_them(tmp_path: Path) -> None:
    napari = pytest.importorskip("napari", reason="napari is not installed")
    for data, arguments, kind in read_layers(copy_run(tmp_path / "case")):
        layer = napari.layers.Layer.create(data, arguments, kind)
        assert layer.name == arguments["name"]
