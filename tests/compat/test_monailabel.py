"""MONAI Label's strategy and scoring method, with its own data store and infer task."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import nibabel as nib
import numpy as np
import pytest

from perturb_mpm.compat.maps import FIRST_VOXEL, uncertainty_maps
from perturb_mpm.run import RunSettings

torch = pytest.importorskip("torch", reason="the extra monailabel is not installed")
pytest.importorskip("monai", reason="the extra monailabel is not installed")
pytestmark = pytest.mark.filterwarnings("ignore")  # what its own dependencies have to say
EXAMPLE = Path(__file__).parents[2] / "examples" / "monai_bundle"
AFFINE = np.diag([-2.0, 1.5, 3.0, 1.0])
DOUBTFUL = 5  # the slice that the network is unsure of


class Contrast(torch.nn.Module):
    """Background and foreground by the intensity alone: 0 is a doubt, ±1 nearly none."""

    def forward(self, image: Any) -> Any:
        return torch.cat([-3 * image, 3 * image], dim=1)


@pytest.fixture
def monailabel() -> Any:
    pytest.importorskip("monailabel", reason="the extra monailabel is not installed")
    from perturb_mpm.compat import monailabel as ours

    return ours


def make_task() -> Any:
    from monai.transforms import Activationsd, EnsureChannelFirstd, LoadImaged
    from monailabel.interfaces.tasks.infer_v2 import InferType
    from monailabel.tasks.infer.basic_infer import BasicInferTask

    class Task(BasicInferTask):
        def pre_transforms(self, _data: Any = None) -> list[Any]:
            return [LoadImaged("image"), EnsureChannelFirstd("image")]

        def post_transforms(self, _data: Any = None) -> list[Any]:
            return [Activationsd("pred", softmax=True)]

    return Task(
        path=None,
        network=Contrast(),
        type=InferType.SEGMENTATION,
        labels={"ball": 1},
        dimension=3,
        description="by intensity",
        skip_writer=True,
    )


def write_images(folder: Path) -> None:
    """Write a sure case and one with a doubtful slice, a ball each."""
    places = np.stack(np.indices((12, 12, 10)), axis=-1) - (5.5, 5.5, 4.5)
    image = np.where(np.linalg.norm(places, axis=-1) < 3.5, 1.0, -1.0)
    nib.save(nib.Nifti1Image(image.astype(np.float32), AFFINE), folder / "sure.nii.gz")
    image[3:9, 3:9, DOUBTFUL] = 0.05
    nib.save(nib.Nifti1Image(image.astype(np.float32), AFFINE), folder / "unsure.nii.gz")


def test_the_worse_case_and_its_doubtful_slice_come_first(monailabel: Any, tmp_path: Path) -> None:
    from monailabel.datastore.local import LocalDatastore

    write_images(tmp_path)
    datastore = LocalDatastore(str(tmp_path), auto_reload=False)
    strategy, request = monailabel.PerturbMPMStrategy(), {"strategy": "perturb_mpm"}
    assert strategy(request, datastore)["id"] == "sure"  # neither has a score
    scoring = monailabel.PerturbMPMScoring(make_task(), samples=16)
    assert scoring({}, datastore) == {"total": 2, "executed": 2, "skipped": 0}
    assert scoring({}, datastore) == {"total": 2, "executed": 0, "skipped": 2}
    sure, unsure = (datastore.get_image_info(name) for name in ("sure", "unsure"))
    assert 0 <= sure["perturb_mpm_score"] < unsure["perturb_mpm_score"] <= 1
    assert sure["perturb_mpm_volume_sd"] < unsure["perturb_mpm_volume_sd"]
    found = strategy(request, datastore)
    assert found["id"] == "unsure"
    assert found["perturb_mpm_slice"] == DOUBTFUL
    assert found["perturb_mpm_position_mm"][2] == 3.0 * DOUBTFUL
    assert -16 <= found["perturb_mpm_position_mm"][0] <= -6  # x runs to the left
    import time

    served = {"strategy": {"perturb_mpm": {"ts": int(time.time())}}}
    datastore.update_image_info("unsure", served)
    assert strategy(request, datastore)["id"] == "sure"  # the other is in somebody's hands
    assert monailabel.PerturbMPMStrategy(reset_s=0)(request, datastore)["id"] == "unsure"


@pytest.mark.parametrize("axes", [2, 3])
@pytest.mark.parametrize("noise_length", [None, 0.0])
def test_the_first_voxel_is_where_the_volume_is_decided(
    axes: int, noise_length: float | None
) -> None:
    """A surely labelled ball, and a large doubtful one beside a voxel that is still less sure."""
    places = np.stack(np.indices((40, 20, 9)[:axes]), axis=-1).astype(float)
    middles = (8.5, 9.5, 4.0)[:axes], (30.5, 9.5, 4.0)[:axes]
    sure, doubtful = (np.linalg.norm(places - middle, axis=-1) < 4 for middle in middles)
    p = np.where(sure, 0.999, np.where(doubtful, 0.45, 0.001))
    least_sure = (8, 1, 0)[:axes]
    p[least_sure] = 0.5
    probabilities = np.stack([1 - p, p]).astype(np.float32)
    settings = RunSettings().changed(samples=24, temperature=1.0, noise_length=noise_length)
    images = np.random.default_rng(0).normal(size=(1, *p.shape))
    maps = uncertainty_maps(probabilities, images, None, None, settings, first_voxel=True)
    first = maps[FIRST_VOXEL]
    assert first.shape == (axes,)
    if noise_length == 0:  # white noise says nothing about volumes
        assert tuple(first) == least_sure
    else:
        assert doubtful[tuple(first)]
    assert FIRST_VOXEL not in uncertainty_maps(probabilities, images, None, None, settings)


def test_all_labelled_is_none(monailabel: Any) -> None:
    from unittest.mock import Mock

    empty = Mock(get_unlabeled_images=lambda *_: [])
    assert monailabel.PerturbMPMStrategy()({"strategy": "x"}, empty) is None


def test_the_bundle_writes_labels_and_entropy(tmp_path: Path) -> None:
    from monai.bundle import ConfigParser

    shutil.copytree(EXAMPLE, tmp_path / "bundle")
    image = np.random.default_rng(0).normal(size=(12, 10, 8)).astype(np.float32)
    nib.save(nib.Nifti1Image(image, AFFINE), tmp_path / "bundle" / "image.nii.gz")
    parser = ConfigParser()
    parser.read_config(tmp_path / "bundle" / "configs" / "inference.json")
    parser.read_meta(tmp_path / "bundle" / "configs" / "metadata.json")
    parser["bundle_root"] = str(tmp_path / "bundle")
    parser["postprocessing"]["transforms"][1]["samples"] = 4
    torch.manual_seed(0)
    parser.get_parsed_content("run")
    written = sorted((tmp_path / "bundle" / "eval").iterdir())
    assert [path.name for path in written] == ["image_entropy_bits.nii.gz", "image_labels.nii.gz"]
    entropy = nib.load(written[0])
    np.testing.assert_allclose(entropy.affine, AFFINE)
    assert 0 < entropy.get_fdata().max() <= np.log2(3) + 1e-6
    assert json.loads((EXAMPLE / "configs" / "metadata.json").read_text())["version"]
