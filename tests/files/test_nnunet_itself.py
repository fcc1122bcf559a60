"""24 predictions as nnU-Net's own exporters write them, where it is installed."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any, NamedTuple

import nibabel as nib
import numpy as np
import pytest

from helpers.patient_files import AFFINE, write
from perturb_mpm.files import Source, read_case, read_dataset, read_volume
from perturb_mpm.files.nnunet import KnownGrid, decide_labels, read_prediction
from perturb_mpm.files.source import Digests

pytest.importorskip("nnunetv2", reason="nnU-Net is not installed")
pytestmark = pytest.mark.filterwarnings("ignore")  # what its own dependencies have to say

SHAPE = (13, 11, 9)
LABELS = {"background": 0, "core": 1, "oedema": 2, "enhancing": 3}
WHOLE_FIRST = {"background": 0, "whole": [1, 2, 3], "core": [1, 3], "enhancing": [3]}
CORE_FIRST = {"background": 0, "core": [1, 3], "whole": [1, 2, 3], "enhancing": [3]}
DATASETS: dict[str, dict[str, Any]] = {
    "labels": {"labels": LABELS},
    "regions": {"labels": WHOLE_FIRST, "regions_class_order": [2, 1, 3]},
    "core first": {"labels": CORE_FIRST, "regions_class_order": [1, 2, 3]},
}
LEVELS = {"background": 0.0, "oedema": 1.0, "core": 2.0, "enhancing": 3.0}  # of the image
EDGES = {"whole": 0.5, "core": 1.5, "enhancing": 2.5}
AXES = {
    "RAS": np.diag([1.0, 1.5, 2.0, 1.0]),
    "LPS": np.diag([-1.0, -1.5, 2.0, 1.0]),
    "permuted": np.array([[0, 0, -2, 5], [1, 0, 0, 0], [0, -1.5, 0, 2], [0, 0, 0, 1.0]]),
    "oblique": AFFINE,
}
SITK, SITK_RAS = "SimpleITKIO", "SimpleITKIOWithReorient"
NIB, NIB_RAS = "NibabelIO", "NibabelIOWithReorient"


class Export(NamedTuple):
    """What differs between two exports."""

    reader: str
    axes: str
    kind: str = "labels"
    ending: str = ".nii.gz"
    way: str = "folder"  # "ensemble" of two folders, "fold": a validation set in its model's folder
    turned: bool = False  # whether the network sees its axes in another order
    coarse: bool = False  # whether it sees fewer voxels


EXPORTS = (
    *(Export(reader, "RAS") for reader in (SITK, SITK_RAS, NIB, NIB_RAS)),
    *(Export(reader, "LPS", "regions", turned=True) for reader in (SITK, SITK_RAS, NIB, NIB_RAS)),
    *(Export(reader, "permuted", "core first") for reader in (SITK, SITK_RAS, NIB, NIB_RAS)),
    *(Export(reader, "oblique", coarse=True) for reader in (SITK, SITK_RAS, NIB, NIB_RAS)),
    Export(SITK, "permuted", "regions", ".nrrd", turned=True),
    Export(SITK_RAS, "permuted", "labels", ".mha"),
    Export(NIB_RAS, "permuted", "labels", way="ensemble"),
    Export(SITK_RAS, "LPS", "regions", ".nrrd", way="ensemble"),
    Export(NIB_RAS, "oblique", "core first", way="fold"),
    Export(SITK, "permuted", "labels", ".mha", way="fold"),
    Export("Tiff3DIO", "RAS", "labels", ".tif"),
    Export("NaturalImage2DIO", "RAS", "labels", ".png"),
)


def test_there_are_24_of_them() -> None:
    assert len(set(EXPORTS)) == 24


@pytest.mark.parametrize("export", EXPORTS, ids=lambda each: "-".join(map(str, each)))
def test_its_exports_are_read_voxel_for_voxel(tmp_path: Path, export: Export) -> None:
    image = write_image(tmp_path / "images", export)
    npz = write_prediction(tmp_path, export, image)
    its_own = npz.with_suffix(export.ending)
    case = read_case([image], [npz])
    assert not [words for words in case.warnings if npz.name in words]
    source = Source("probabilities", npz)
    dataset = read_dataset(Source("dataset_json", dataset_file(npz)))
    placed = read_prediction(source, dataset, KnownGrid(), None, Digests())  # (X, Y, Z, C)
    ours = decide_labels(np.moveaxis(placed.voxels, -1, 0), dataset)
    expected = read_with_another(its_own)
    np.testing.assert_array_equal(ours.squeeze(), expected.squeeze())
    assert len(np.unique(expected)) > 2
    if not export.coarse:  # and where the image itself says
        intensities = read_volume(Source("images", image)).voxels
        np.testing.assert_array_equal(ours, decide_by_image(intensities, export.kind))
    if export.kind == "labels":
        labels = case.labels.to_values(case.probabilities.argmax(axis=0))
        np.testing.assert_array_equal(labels.squeeze(), expected.squeeze())


def write_image(folder: Path, export: Export) -> Path:
    """Write an image without any symmetry, whose intensities say what a network must find."""
    from scipy.ndimage import gaussian_filter

    folder.mkdir()
    shape = (13, 11, 1) if export.ending == ".png" else SHAPE
    image = np.zeros(shape)
    for depth in (1, 2, 3):
        box = tuple(slice(depth, max(n - 2 * depth + 1, depth + 1)) for n in shape[:2])
        image[(*box, slice(None) if shape[2] == 1 else slice(depth, 8 - depth))] = depth
    noise = np.random.default_rng(3).normal(size=shape)
    image = gaussian_filter(image, 0.5) + 0.2 * noise * (image > 0)
    path = folder / f"P_0000{export.ending}"
    if export.ending == ".png":
        from PIL import Image

        picture = np.clip(np.round(image[..., 0] * 59 + 1), 0, 255).astype(np.uint8)
        Image.fromarray(picture.T).save(path)
    elif export.ending == ".tif":
        import tifffile

        tifffile.imwrite(path, image.astype(np.float32).transpose(2, 1, 0))
        (folder / "P.json").write_text(json.dumps({"spacing": [2.0, 1.5, 1.0]}))
    elif export.ending == ".nii.gz":
        write(path, image.astype(np.float32), AXES[export.axes])
    else:
        import SimpleITK

        plain = write(folder / "plain.nii.gz", image.astype(np.float32), AXES[export.axes])
        SimpleITK.WriteImage(SimpleITK.ReadImage(str(plain)), str(path))
        plain.unlink()
    return path


def write_prediction(folder: Path, export: Export, image: Path) -> Path:
    """Let nnU-Net read an image, and export what a network makes of it; return the .npz."""
    from nnunetv2.ensembling.ensemble import ensemble_folders

    if export.way == "ensemble":
        folders = [folder / "one", folder / "other"]
        for number, each in enumerate(folders):
            export_logits(each, each, export, image, sharpness=4.0 + number)
        merged = folder / "merged"
        ensemble_folders(list(map(str, folders)), str(merged), True, num_processes=1)
        for each in folders:
            shutil.rmtree(each)
        return merged / "P.npz"
    model = folder / "model"
    output = model / "fold_0" / "validation" if export.way == "fold" else model
    export_logits(model, output, export, image)
    return output / "P.npz"


def export_logits(
    model: Path, output: Path, export: Export, image: Path, sharpness: float = 4.0
) -> None:
    import torch
    from nnunetv2.inference.export_prediction import export_prediction_from_logits
    from nnunetv2.preprocessing.preprocessors.default_preprocessor import DefaultPreprocessor
    from nnunetv2.utilities.plans_handling.plans_handler import PlansManager

    output.mkdir(parents=True)
    dataset = {**DATASETS[export.kind], "file_ending": export.ending, "channel_names": {"0": "T1"}}
    manager = PlansManager(plans(export, image))
    configuration = manager.get_configuration("3d_fullres")
    preprocessor = DefaultPreprocessor(verbose=False)
    data, _, properties = preprocessor.run_case([str(image)], None, manager, configuration, dataset)
    scores = score(np.asarray(data[0]), export, sharpness)
    export_prediction_from_logits(
        torch.from_numpy(scores),
        *(properties, configuration, manager, dataset, str(output / "P")),
        save_probabilities=True,
        num_threads_torch=1,
    )
    (model / "dataset.json").write_text(json.dumps(dataset))
    (model / "plans.json").write_text(json.dumps(manager.plans))


def score(image: np.ndarray, export: Export, sharpness: float) -> np.ndarray:
    """Return logits (C, …) of an image (…) as a network would, in the order of its maps."""
    names = [name for name in DATASETS[export.kind]["labels"] if name != "background"]
    scale = 59.0 if export.ending == ".png" else 1.0
    intensities = (image - (scale > 1)) / scale
    if export.kind == "labels":
        ordered = ["background", *sorted(names, key=lambda name: LABELS[name])]
        maps = [-sharpness * (intensities - LEVELS[name]) ** 2 for name in ordered]
    else:
        maps = [sharpness * (intensities - EDGES[name]) for name in names]
    return np.stack(maps).astype(np.float32)


def decide_by_image(image: np.ndarray, kind: str) -> np.ndarray:
    """Return the label values that an image itself says, painted in nnU-Net's order."""
    if kind == "labels":
        scale = 59.0 if image.max() > 30 else 1.0
        intensities = (image - (scale > 1)) / scale
        values = np.array([0, 2, 1, 3])
        return values[np.searchsorted([0.5, 1.5, 2.5], intensities)]
    labels = np.zeros(image.shape, int)
    dataset = DATASETS[kind]
    names = [name for name in dataset["labels"] if name != "background"]
    for name, painted in zip(names, dataset["regions_class_order"]):
        labels[image > EDGES[name]] = painted
    return labels


def plans(export: Export, image: Path) -> dict[str, Any]:
    """Return a plans.json of a network that sees the voxels of an image, or fewer."""
    from nnunetv2.imageio.reader_writer_registry import recursive_find_reader_writer_by_name

    reader = recursive_find_reader_writer_by_name(export.reader)()
    _, properties = reader.read_images([str(image)])
    forward = [2, 0, 1] if export.turned else [0, 1, 2]
    spacing = [float(properties["spacing"][axis]) for axis in forward]
    if export.coarse:
        spacing = [1.4 * each for each in spacing]
    fn, options = (
        "resample_data_or_seg_to_shape",
        {"order": 1, "order_z": 0, "force_separate_z": None},
    )
    kinds = ("data", "seg", "probabilities")
    configuration = {
        **{f"resampling_fn_{each}": fn for each in kinds},
        **{f"resampling_fn_{each}_kwargs": {"is_seg": each == "seg", **options} for each in kinds},
        "data_identifier": "x",
        "preprocessor_name": "DefaultPreprocessor",
        "batch_size": 2,
        "patch_size": [8, 8, 8],
        "median_image_size_in_voxels": list(SHAPE),
        "normalization_schemes": ["NoNormalization"],
        "use_mask_for_norm": [False],
        "spacing": spacing,
        "batch_dice": False,
        "architecture": {},
    }
    return {
        "dataset_name": "Dataset001_Boxes",
        "plans_name": "nnUNetPlans",
        "original_median_spacing_after_transp": spacing,
        "original_median_shape_after_transp": list(SHAPE),
        "image_reader_writer": export.reader,
        "transpose_forward": forward,
        "transpose_backward": [int(axis) for axis in np.argsort(forward)],
        "experiment_planner_used": "ExperimentPlanner",
        "label_manager": "LabelManager",
        "foreground_intensity_properties_per_channel": {"0": {}},
        "configurations": {"3d_fullres": configuration},
    }


def dataset_file(npz: Path) -> Path:
    return next(
        folder / "dataset.json" for folder in npz.parents if (folder / "dataset.json").exists()
    )


def read_with_another(path: Path) -> np.ndarray:
    """Return label values (X, Y, Z) by a reader that is not ours."""
    if path.name.endswith(".nii.gz"):
        return np.asarray(nib.load(path).dataobj)
    if path.suffix == ".png":
        from PIL import Image

        return np.asarray(Image.open(path)).T[..., np.newaxis]
    import SimpleITK

    array = SimpleITK.GetArrayFromImage(SimpleITK.ReadImage(str(path)))
    return array.transpose(2, 1, 0)
