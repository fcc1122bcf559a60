"""Predictions as nnU-Net itself writes them, where it is installed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import nibabel as nib
import numpy as np
import pytest

from helpers.patient_files import AFFINE, write
from perturb_mpm.files import Source, read_case, read_dataset, read_volume
from perturb_mpm.files.nnunet import decide_labels

pytest.importorskip("nnunetv2", reason="nnU-Net is not installed")
pytestmark = pytest.mark.filterwarnings("ignore")  # what its own dependencies have to say

SHAPE = (12, 10, 8)
LABELS = {"background": 0, "core": 1, "oedema": 2, "enhancing": 3}
WHOLE_FIRST = {"background": 0, "whole": [1, 2, 3], "core": [1, 3], "enhancing": [3]}
CORE_FIRST = {"background": 0, "core": [1, 3], "whole": [1, 2, 3], "enhancing": [3]}
DATASETS = {
    "labels": {"labels": LABELS},
    "regions": {"labels": WHOLE_FIRST, "regions_class_order": [2, 1, 3]},
    "regions, core first": {"labels": CORE_FIRST, "regions_class_order": [1, 2, 3]},
}
GRIDS = {
    "oblique": AFFINE,
    "permuted": AFFINE @ np.array([[0, 0, -1, 5], [1, 0, 0, 0], [0, 1, 0, 2], [0, 0, 0, 1.0]]),
}


def logits(dataset: dict[str, Any]) -> np.ndarray:
    """Return scores (C, X, Y, Z) of boxes one in the other, unsure at their borders."""
    from scipy.ndimage import gaussian_filter

    edges = {"whole": 1, "core": 2, "enhancing": 3, "oedema": 1}
    channels = [name for name in dataset["labels"] if name != "background"]
    boxes = np.zeros((len(channels), *SHAPE))
    for box, name in zip(boxes, channels):
        edge = edges[name]
        box[edge:-edge, edge:-edge, edge:-edge] = 1
    noise = gaussian_filter(np.random.default_rng(1).normal(size=boxes.shape), (0, 1, 1, 1))
    scores = 8 * (gaussian_filter(boxes, (0, 0.5, 0.5, 0.5)) - 0.5) + noise
    if "regions_class_order" in dataset:
        return scores
    order = [dataset["labels"][name] for name in channels]
    scores = scores[np.argsort(order)] + np.arange(3)[:, None, None, None]
    return np.concatenate([np.zeros((1, *SHAPE)), scores])


@pytest.mark.parametrize("grid", GRIDS)
@pytest.mark.parametrize("kind", DATASETS)
def test_its_predictions_are_read_as_it_means_them(tmp_path: Path, kind: str, grid: str) -> None:
    import torch
    from nnunetv2.imageio.simpleitk_reader_writer import SimpleITKIO
    from nnunetv2.utilities.label_handling.label_handling import LabelManager

    dataset = DATASETS[kind]
    rng = np.random.default_rng(2)
    image = write(
        tmp_path / "P_0000.nii.gz", rng.uniform(1, 2, SHAPE).astype(np.float32), GRIDS[grid]
    )
    _, properties = SimpleITKIO().read_images([str(image)])
    manager = LabelManager(dataset["labels"], dataset.get("regions_class_order"))
    scores = torch.from_numpy(logits(dataset).transpose(0, 3, 2, 1).astype(np.float32))
    probabilities = manager.apply_inference_nonlin(scores)  # (C, Z, Y, X)
    segmentation = manager.convert_probabilities_to_segmentation(probabilities)
    SimpleITKIO().write_seg(np.asarray(segmentation), str(tmp_path / "P.nii.gz"), properties)
    np.savez_compressed(tmp_path / "P.npz", probabilities=np.asarray(probabilities))
    (tmp_path / "dataset.json").write_text(json.dumps(dataset))

    case = read_case([image], [tmp_path / "P.npz"])
    assert case.warnings == ()
    its_own = read_volume(Source("labels", tmp_path / "P.nii.gz"))
    np.testing.assert_allclose(its_own.geometry.affine, nib.load(image).affine, atol=1e-4)
    maps = np.asarray(probabilities).transpose(0, 3, 2, 1)
    read = read_dataset(Source("dataset_json", tmp_path / "dataset.json"))
    np.testing.assert_array_equal(decide_labels(maps, read), its_own.voxels)
    ours = case.labels.to_values(case.probabilities.argmax(axis=0))
    if kind == "labels":
        np.testing.assert_array_equal(ours, its_own.voxels)
    else:  # the other rule, and none of the regions hidden by another
        assert (ours == 1).any()
        assert (ours == 2).any()
        assert (ours == 3).any()
