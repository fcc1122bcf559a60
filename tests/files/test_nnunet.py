"""nnU-Net's files: the same case as from NIfTI, regions as a distribution, no pickle opened."""

from __future__ import annotations

import itertools
import json
import pickle
import sys
from pathlib import Path
from typing import Any

import nibabel as nib
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.patient_files import AFFINE, SHAPE, image, probabilities, two_images, write
from perturb_mpm.files import (
    Case,
    InputError,
    LabelScheme,
    geometry_from_affine,
    read_case,
    save_like,
)
from perturb_mpm.files.nnunet import NestedRegions, Region

BRATS = {
    "channel_names": {"0": "T1c", "1": "FLAIR"},
    "labels": {
        "background": 0,
        "whole tumour": [1, 2, 3],
        "tumour core": [2, 3],
        "enhancing": 3,
        "ignore": 4,
    },
    "regions_class_order": [1, 2, 3],
}
PLAIN = {"labels": {"background": 0, "oedema": 2, "core": 1}}
PLAIN_TWO = {"labels": {"background": 0, "lesion": 1}}


def label_map(maps: np.ndarray, dataset: dict[str, Any] | None) -> np.ndarray:
    """Return nnU-Net's label map: the most probable label, or regions painted one over another."""
    if dataset is None or "regions_class_order" not in dataset:
        return maps.argmax(axis=-1).astype(np.uint8)
    labels = np.zeros(maps.shape[:3], np.uint8)
    for value, region in zip(dataset["regions_class_order"], np.moveaxis(maps, -1, 0)):
        labels[region > 0.5] = value
    return labels


def predict(
    folder: Path, maps: np.ndarray, dataset: dict[str, Any] | None = None, name: str = "P01"
) -> Path:
    """Write maps (X, Y, Z, C) as nnUNetv2_predict --save_probabilities does."""
    np.savez_compressed(folder / f"{name}.npz", probabilities=maps.transpose(3, 2, 1, 0))
    write(folder / f"{name}.nii.gz", label_map(maps, dataset))
    if dataset is not None:
        (folder / "dataset.json").write_text(json.dumps(dataset))
    return folder / f"{name}.npz"


def test_an_npz_is_the_same_case_as_the_nifti(tmp_path: Path) -> None:
    images = two_images(tmp_path)
    ours = read_case(images, [predict(tmp_path, probabilities())])
    nifti = read_case(images, [write(tmp_path / "p.nii.gz", probabilities())])
    np.testing.assert_array_equal(ours.probabilities, nifti.probabilities)
    assert ours.labels == nifti.labels
    assert ours.warnings == ()
    assert list(ours.hashes) == [*(i.name for i in images), "P01.npz", "P01.nii.gz"]


def test_the_axes_are_those_of_simpleitk(tmp_path: Path) -> None:
    sitk = pytest.importorskip("SimpleITK", reason="the extra itk is not installed")
    images = two_images(tmp_path)
    path = predict(tmp_path, probabilities())
    # What nnU-Net keeps: the arrays that SimpleITK makes of a file.
    files = [write(tmp_path / f"{l}.nii", probabilities()[..., l]) for l in range(3)]
    arrays = [sitk.GetArrayFromImage(sitk.ReadImage(str(file))) for file in files]
    np.savez(path, probabilities=np.stack(arrays))
    np.testing.assert_array_equal(
        read_case(images, [path]).probabilities, read_case(images, files).probabilities
    )


def test_a_reference_says_where_an_npz_is(tmp_path: Path) -> None:
    images = two_images(tmp_path)
    path = predict(tmp_path, probabilities())
    beside = read_case(images, [path])
    (tmp_path / "P01.nii.gz").unlink()
    given = read_case(images, [path], reference=images[1])
    np.testing.assert_array_equal(given.probabilities, beside.probabilities)
    elsewhere = write(tmp_path / "other.nii", np.zeros(SHAPE, np.uint8), AFFINE * 1.1)
    with pytest.raises(InputError, match=r"P01.npz: must lie on the grid of `images`"):
        read_case(images, [path], reference=elsewhere)


def test_the_dataset_names_labels_and_images(tmp_path: Path) -> None:
    images = [
        write(tmp_path / f"P01_000{i}.nii.gz", nib.load(path).get_fdata(dtype=np.float32))
        for i, path in enumerate(two_images(tmp_path))
    ]
    (tmp_path / "pred").mkdir()
    path = predict(tmp_path / "pred", probabilities(), PLAIN)
    case = read_case(images, [path])
    assert case.labels == LabelScheme((0, 1, 2), ("background", "core", "oedema"))
    assert list(case.images) == ["0000", "0001"]
    named = PLAIN | {"channel_names": {"0": "T1c", "1": "FLAIR"}}
    (tmp_path / "mine.json").write_text(json.dumps(named))
    case = read_case(images, [path], dataset_json=tmp_path / "mine.json", labels=[0, 1, 4])
    assert case.labels == LabelScheme((0, 1, 4), ("background", "core", "oedema"))
    assert list(case.images) == ["T1c", "FLAIR"]
    assert "mine.json" in case.hashes
    assert "dataset.json" not in case.hashes


def test_the_dataset_of_version_1_is_read_the_other_way_round(tmp_path: Path) -> None:
    old = {"labels": {"0": "background", "1": "core", "2": "oedema"}, "modality": {"0": "T1"}}
    case = read_case(two_images(tmp_path), [predict(tmp_path, probabilities(), old)])
    assert case.labels.names == ("background", "core", "oedema")


def sigmoids() -> np.ndarray:
    """Return three nested regions (X, Y, Z, R), sometimes against their nesting."""
    return np.random.default_rng(5).beta(0.5, 0.5, (*SHAPE, 3)).astype(np.float32)


def test_regions_become_a_distribution(tmp_path: Path) -> None:
    case = read_case(two_images(tmp_path), [predict(tmp_path, sigmoids(), BRATS)])
    whole, core, enhancing = np.moveaxis(sigmoids().astype(np.float64), -1, 0)
    expected = np.stack(
        [1 - whole, np.maximum(whole - core, 0), np.maximum(core - enhancing, 0), enhancing]
    )
    expected /= expected.sum(axis=0)
    np.testing.assert_allclose(case.probabilities, expected, atol=1e-6)
    np.testing.assert_allclose(case.probabilities.sum(axis=0), 1, atol=3e-7)
    assert case.labels == LabelScheme(
        (0, 1, 2, 3), ("background", "whole tumour (rest)", "tumour core (rest)", "enhancing")
    )


def test_regions_may_be_logits_or_a_nifti(tmp_path: Path) -> None:
    images = two_images(tmp_path)
    expected = read_case(images, [predict(tmp_path, sigmoids(), BRATS)])
    dataset = tmp_path / "dataset.json"
    safe = np.clip(sigmoids(), 1e-6, 1 - 1e-6).astype(np.float64)
    logits = np.log(safe / (1 - safe)).astype(np.float32)
    found = read_case(
        images, [write(tmp_path / "l.nii", logits)], kind="logits", dataset_json=dataset
    )
    np.testing.assert_allclose(found.probabilities, expected.probabilities, atol=1e-5)
    found = read_case(images, [write(tmp_path / "r.nii", sigmoids())], dataset_json=dataset)
    np.testing.assert_array_equal(found.probabilities, expected.probabilities)


def ball_regions() -> np.ndarray:
    """Return core, whole and enhancing (X, Y, Z, R): three boxes, one in the other."""
    maps = np.full((12, 12, 12, 3), 0.02, np.float32)
    for channel, edge in enumerate((3, 1, 5)):
        maps[edge:-edge, edge:-edge, edge:-edge, channel] = 0.95
    return maps


CORE_FIRST = {
    "labels": {"background": 0, "core": [1, 3], "whole": [1, 2, 3], "enhancing": [3]},
    "regions_class_order": [1, 2, 3],
}


def test_channels_may_come_core_first(tmp_path: Path) -> None:
    maps = ball_regions()
    image = write(tmp_path / "t1.nii", maps.sum(axis=-1) + 1)
    core, whole, enhancing = np.moveaxis(maps, -1, 0)
    npz = predict(tmp_path, maps, CORE_FIRST)  # nnU-Net paints the whole over the core
    (tmp_path / "plans.json").write_text('{"image_reader_writer": "SimpleITKIO"}')
    case = read_case([image], [npz])
    assert case.labels.values == (0, 1, 2, 3)
    assert case.labels.names == ("background", "core (rest)", "whole (rest)", "enhancing")
    labels = np.zeros(core.shape, np.uint8)  # as they are meant
    for value, one in zip((2, 1, 3), (whole, core, enhancing)):
        labels[one > 0.5] = value
    np.testing.assert_array_equal(case.probabilities.argmax(axis=0), labels)
    assert case.warnings == ()  # our labels are not nnU-Net's, but its own rule gives them
    assert case.regions == {"core": (1, 3), "whole": (1, 2, 3), "enhancing": (3,)}
    renumbered = read_case([image], [npz], labels=(0, 10, 20, 40))
    assert renumbered.regions == {"core": (10, 40), "whole": (10, 20, 40), "enhancing": (40,)}


def test_maps_under_the_wrong_regions_are_refused(tmp_path: Path) -> None:
    maps = ball_regions()
    image = write(tmp_path / "t1.nii", maps[..., 1] + 1)
    npz = predict(tmp_path, maps[..., [1, 0, 2]], CORE_FIRST)
    with pytest.raises(InputError, match=r"'core' .map 0. must lie inside 'whole' .map 1., got"):
        read_case([image], [npz])


def test_an_npz_alone_lies_where_the_first_image_does(tmp_path: Path) -> None:
    first = write(tmp_path / "P01_t1.nii.gz", image(1), np.diag([0.9, 1.1, 3, 1]))
    path = tmp_path / "P01.npz"
    np.savez(path, probabilities=probabilities().transpose(3, 2, 1, 0))
    alone = read_case(first, [path])
    np.testing.assert_allclose(alone.probabilities, np.moveaxis(probabilities(), -1, 0), rtol=1e-6)
    (warning,) = alone.warnings
    assert "are taken to be where those of P01_t1.nii.gz are" in warning
    np.savez(path, probabilities=np.zeros((3, 4, 6, 6), np.float32))
    with pytest.raises(InputError, match=r"must have the shape of `images` .*by `reference`"):
        read_case(first, [path])


@pytest.mark.parametrize(
    ("dataset", "message"),
    [
        ({"labels": [0, 1]}, "must be nnU-Net's dataset.json with an entry labels"),
        ({}, "must be nnU-Net's dataset.json with an entry labels"),
        ({"labels": {"background": 0, "a": "x"}}, "invalid literal"),
        (
            {"labels": {"background": 0, "a": [1, 2], "b": 2}},
            "regions_class_order must name one label for each of the 2 regions, got None",
        ),
        (
            BRATS | {"regions_class_order": [1, 2]},
            r"regions_class_order must name one label for each of the 3 regions, got \[1, 2\]",
        ),
        (
            {
                "labels": {"background": 0, "a": [1, 2], "b": [2, 3], "c": 4},
                "regions_class_order": [1, 2, 4],
            },
            r"'a' \(1, 2\) and 'b' \(2, 3\) overlap",
        ),
        ({"labels": {"background": 0, "a": 1}}, "one map for each of the 2 labels .*, got 3"),
        (
            {"labels": {"background": 0, "a": [1, 2], "b": 2}, "regions_class_order": [1, 2]},
            "one map for each of the 2 regions .*, got 3",
        ),
    ],
)
def test_a_dataset_that_does_not_fit(tmp_path: Path, dataset: dict[str, Any], message: str) -> None:
    path = predict(tmp_path, probabilities(), dataset)
    with pytest.raises(InputError, match=message) as caught:
        read_case(two_images(tmp_path), [path])
    assert "\n" not in str(caught.value)


def test_a_dataset_that_is_no_json(tmp_path: Path) -> None:
    path = predict(tmp_path, probabilities())
    (tmp_path / "dataset.json").write_text("{")
    with pytest.raises(InputError, match=r"dataset.json: is not JSON \(Expecting"):
        read_case(two_images(tmp_path), [path])


@pytest.mark.parametrize(("value", "message"), [(1.2, "at most 1, got 1.2"), (-0.1, "negative")])
def test_regions_that_are_no_probabilities(tmp_path: Path, value: float, message: str) -> None:
    maps = sigmoids()
    maps[1, 2, 3, 1] = value
    with pytest.raises(InputError, match=message):
        read_case(two_images(tmp_path), [predict(tmp_path, maps, BRATS)])


class Trap:
    """Raises when it is unpickled."""

    def __reduce__(self) -> tuple[Any, ...]:
        return exec, ("raise RuntimeError('a pickle was opened')",)


OPENED: list[str] = []


@pytest.fixture(scope="module")
def watched_files() -> list[str]:
    """Every path that is opened from now on; such a watch cannot be taken off again."""
    sys.addaudithook(lambda event, args: OPENED.append(str(args[0])) if event == "open" else None)
    return OPENED


def test_a_pickle_in_the_folder_is_never_opened(tmp_path: Path, watched_files: list[str]) -> None:
    images = two_images(tmp_path)
    path = predict(tmp_path, probabilities(), PLAIN)
    trap = tmp_path / "P01.pkl"
    trap.write_bytes(pickle.dumps(Trap()))
    with pytest.raises(RuntimeError, match="a pickle was opened"):
        pickle.loads(trap.read_bytes())  # noqa: S301  # the trap works
    watched_files.clear()
    case = read_case(images, [path])
    assert isinstance(case, Case)
    assert str(path) in watched_files
    assert [name for name in watched_files if name.endswith(".pkl")] == []


def test_a_pickle_inside_the_npz_is_refused(tmp_path: Path) -> None:
    path = predict(tmp_path, probabilities())
    np.savez(path, probabilities=np.array([Trap()], dtype=object))
    with pytest.raises(InputError, match="must hold numbers or text, got object"):
        read_case(two_images(tmp_path), [path])


LPS = np.diag([-0.9, -1.1, 3.0, 1.0])
SAGITTAL = np.array([[0, 0, -3.0, 9], [-0.9, 0, 0, 4], [0, 1.1, 0, 2], [0, 0, 0, 1]])


def lesion(shape: tuple[int, int, int] = (8, 9, 7)) -> np.ndarray:
    """Return the probabilities (X, Y, Z, 3) of a lesion with a core, unlike itself in a mirror."""
    maps = np.full((*shape, 3), 0.1, np.float32)
    maps[..., 0] = 0.8
    maps[1:4, 1:3, 1:6] = 0.1, 0.7, 0.2
    maps[1:3, 1:2, 3:6] = 0.1, 0.1, 0.8
    return maps


def turn_as(reader: str, maps: np.ndarray, affine: np.ndarray) -> np.ndarray:
    """Return maps (C, Z, Y, X) as a reader of nnU-Net holds them for a file of this affine."""
    if reader == "NibabelIOWithReorient":
        turned = nib.as_closest_canonical(nib.Nifti1Image(maps, affine)).get_fdata(dtype="f4")
        return turned.transpose(3, 2, 1, 0)
    sitk = pytest.importorskip("SimpleITK", reason="the extra itk is not installed")
    arrays = []
    for one in np.moveaxis(maps, -1, 0):
        image = sitk.GetImageFromArray(np.ascontiguousarray(one.T))
        space = np.diag([-1.0, -1.0, 1.0]) @ affine[:3, :3]
        image.SetDirection((space / np.linalg.norm(space, axis=0)).ravel().tolist())
        arrays.append(sitk.GetArrayFromImage(sitk.DICOMOrient(image, "RAS")))
    return np.stack(arrays)


def turned_prediction(
    folder: Path, reader: str, maps: np.ndarray, affine: np.ndarray
) -> tuple[Path, Path]:
    """Write an image, and a prediction whose .npz is turned to RAS; no plans.json."""
    values = np.random.default_rng(3).uniform(1, 2, maps.shape[:3]).astype(np.float32)
    first = write(folder / "P01_t1.nii.gz", values, affine)
    np.savez(folder / "P01.npz", probabilities=turn_as(reader, maps, affine))
    write(folder / "P01.nii.gz", label_map(maps, None), affine)
    return first, folder / "P01.npz"


READERS = ("NibabelIOWithReorient", "SimpleITKIOWithReorient")


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("affine", [AFFINE, LPS, SAGITTAL], ids=["oblique", "LPS", "sagittal"])
def test_the_label_map_shows_that_the_axes_were_turned(
    tmp_path: Path, affine: np.ndarray, reader: str
) -> None:
    maps = lesion()
    first, npz = turned_prediction(tmp_path, reader, maps, affine)
    case = read_case(first, npz)
    np.testing.assert_allclose(case.probabilities, np.moveaxis(maps, -1, 0), atol=1e-6)
    assert case.warnings == ()
    again = read_case(first, npz, reference=first)  # a reference does not undo what is certain
    np.testing.assert_array_equal(again.probabilities, case.probabilities)


@pytest.mark.parametrize("ending", [".nii", ".nrrd", ".mha"])
def test_the_label_map_may_have_any_format(tmp_path: Path, ending: str) -> None:
    maps = lesion()
    first, npz = turned_prediction(tmp_path, "NibabelIOWithReorient", maps, LPS)
    (tmp_path / "P01.nii.gz").unlink()
    grid = geometry_from_affine(maps.shape[:3], LPS)
    save_like(tmp_path / f"P01{ending}", label_map(maps, None), grid)
    case = read_case(first, npz)
    np.testing.assert_allclose(case.probabilities, np.moveaxis(maps, -1, 0), atol=1e-6)
    assert case.warnings == ()
    assert f"P01{ending}" in case.hashes


def test_a_label_map_without_its_small_pieces_still_shows_the_axes(tmp_path: Path) -> None:
    maps = lesion()
    maps[6, 7, 5] = 0.1, 0.7, 0.2
    first, npz = turned_prediction(tmp_path, "NibabelIOWithReorient", maps, LPS)
    labels = label_map(maps, None)
    labels[6, 7, 5] = 0
    write(tmp_path / "P01.nii.gz", labels, LPS)
    case = read_case(first, npz)
    np.testing.assert_allclose(case.probabilities, np.moveaxis(maps, -1, 0), atol=1e-6)


@pytest.mark.parametrize("kind", ["symmetric", "empty"])
@pytest.mark.parametrize("level", ["", "fold_0/validation"])
def test_plans_decide_where_the_label_map_shows_nothing(
    tmp_path: Path, kind: str, level: str
) -> None:
    maps = np.full((8, 9, 7, 2), 0.2, np.float32)
    maps[..., 0] = 0.8
    maps[2:-2, 3:-3, 2:-2] = (0.1, 0.9) if kind == "symmetric" else (0.6, 0.4)
    maps[2, 3, 2] = (0.3, 0.7) if kind == "symmetric" else (0.9, 0.1)  # which a mirror moves
    (tmp_path / level).mkdir(parents=True, exist_ok=True)
    first, npz = turned_prediction(tmp_path / level, "NibabelIOWithReorient", maps, LPS)
    stored = np.load(npz)["probabilities"].transpose(0, 3, 2, 1)
    with pytest.raises(InputError, match=r"symmetric, empty .* put its plans.json there"):
        read_case(first, npz)
    expected = {"image": stored, "ras": np.moveaxis(maps, -1, 0)}
    for axes in ("image", "ras"):
        case = read_case(first, npz, npz_axes=axes)
        np.testing.assert_allclose(case.probabilities, expected[axes], atol=1e-6)
    case = read_case(first, npz, reference=first)
    np.testing.assert_allclose(case.probabilities, stored, atol=1e-6)
    plans = tmp_path / "plans.json"
    plans.write_text('{"image_reader_writer": "SimpleITKIOWithReorient"}')
    case = read_case(first, npz)
    np.testing.assert_allclose(case.probabilities, np.moveaxis(maps, -1, 0), atol=1e-6)
    assert case.warnings == ()
    plans.write_text('{"image_reader_writer": "SimpleITKIO"}')
    case = read_case(first, npz)
    np.testing.assert_allclose(case.probabilities, stored, atol=1e-6)
    assert case.warnings == ()


def test_axes_that_nothing_shows_are_refused_unless_a_reference_is_given(tmp_path: Path) -> None:
    maps = lesion()
    first, npz = turned_prediction(tmp_path, "NibabelIOWithReorient", maps, LPS)
    (tmp_path / "P01.nii.gz").unlink()
    with pytest.raises(InputError, match=r"may have turned P01_t1.nii.gz \(LPS\) to RAS; put one"):
        read_case(first, npz)
    stored = np.load(npz)["probabilities"].transpose(0, 3, 2, 1)
    case = read_case(first, npz, reference=first)
    np.testing.assert_allclose(case.probabilities, stored, atol=1e-6)
    (tmp_path / "plans.json").write_text('{"image_reader_writer": "NibabelIOWithReorient"}')
    case = read_case(first, npz)
    np.testing.assert_allclose(case.probabilities, np.moveaxis(maps, -1, 0), atol=1e-6)


@pytest.mark.parametrize("turned", [True, False])
def test_the_caller_or_the_truth_may_show_the_axes(tmp_path: Path, turned: bool) -> None:
    maps = lesion()
    first, npz = turned_prediction(tmp_path, "NibabelIOWithReorient", maps, LPS)
    truth = (tmp_path / "P01.nii.gz").rename(tmp_path / "truth.nii.gz")
    if not turned:
        np.savez(npz, probabilities=maps.transpose(3, 2, 1, 0))
    expected = np.moveaxis(maps, -1, 0)
    told = read_case(first, npz, npz_axes="ras" if turned else "image")
    shown = read_case(first, npz, truth=truth)
    np.testing.assert_allclose(told.probabilities, expected, atol=1e-6)
    np.testing.assert_allclose(shown.probabilities, expected, atol=1e-6)
    with pytest.raises(InputError, match="`npz_axes` must be image or ras, got lps"):
        read_case(first, npz, npz_axes="lps")  # type: ignore[arg-type]


def test_a_truth_that_the_network_missed_leaves_the_axes_as_they_are(tmp_path: Path) -> None:
    maps = lesion()
    first, npz = turned_prediction(tmp_path, "NibabelIOWithReorient", maps, LPS)
    (tmp_path / "P01.nii.gz").unlink()
    missed = np.zeros(maps.shape[:3], np.uint8)
    missed[0, 4, 0] = 1
    stored = np.load(npz)["probabilities"].transpose(0, 3, 2, 1)
    case = read_case(first, npz, truth=write(tmp_path / "truth.nii.gz", missed, LPS))
    np.testing.assert_allclose(case.probabilities, stored, atol=1e-6)
    assert "nothing shows in which order the axes of P01.npz are" in " ".join(case.warnings)


def test_a_reference_may_have_its_axes_in_another_order_than_the_label_map(tmp_path: Path) -> None:
    maps = lesion()
    first, npz = turned_prediction(tmp_path, "NibabelIOWithReorient", maps, LPS)
    np.savez(npz, probabilities=maps.transpose(3, 2, 1, 0))
    turned = nib.as_closest_canonical(nib.load(first))
    nib.save(turned, tmp_path / "ras.nii.gz")
    case = read_case(first, npz, reference=tmp_path / "ras.nii.gz")
    np.testing.assert_allclose(case.probabilities, np.moveaxis(maps, -1, 0), atol=1e-6)
    moved = turned.affine.copy()
    moved[:3, 3] += 0.3
    nib.save(nib.Nifti1Image(turned.get_fdata(), moved), tmp_path / "moved.nii.gz")
    with pytest.raises(InputError, match=r"the axes of P01.nii.gz, .* got RAS against LPS"):
        read_case(first, npz, reference=tmp_path / "moved.nii.gz")


def test_several_label_maps_that_differ_are_refused(tmp_path: Path) -> None:
    maps = lesion()
    first, npz = turned_prediction(tmp_path, "NibabelIOWithReorient", maps, LPS)
    grid = geometry_from_affine(maps.shape[:3], LPS)
    save_like(tmp_path / "P01.mha", label_map(maps, None), grid)
    expected = np.moveaxis(maps, -1, 0)
    np.testing.assert_allclose(read_case(first, npz).probabilities, expected, atol=1e-6)
    mirrored = LPS @ np.diag([-1.0, 1.0, 1.0, 1.0])
    mirrored[0, 3] = LPS[0, 0] * (maps.shape[0] - 1)  # an older one: its voxels are elsewhere
    write(tmp_path / "P01.nii.gz", label_map(maps, None), mirrored)
    with pytest.raises(InputError, match=r"got P01.nii.gz and P01.mha, which differ: remove"):
        read_case(first, npz)
    named = read_case(first, npz, reference=tmp_path / "P01.mha")
    np.testing.assert_allclose(named.probabilities, expected, atol=1e-6)


def test_a_label_map_of_another_patient_is_refused(tmp_path: Path) -> None:
    maps = lesion()
    first, npz = turned_prediction(tmp_path, "NibabelIOWithReorient", maps, LPS)
    elsewhere = np.zeros(maps.shape[:3], np.uint8)
    for labels in (elsewhere, np.where(np.arange(7) < 3, 2, elsewhere).astype(np.uint8)):
        write(tmp_path / "P01.nii.gz", labels, LPS)
        with pytest.raises(InputError, match=r"are both of one patient\? If so, name P01.nii.gz"):
            read_case(first, npz)
        (words,) = read_case(first, npz, reference=tmp_path / "P01.nii.gz").warnings
        assert "however the axes are turned: are both of one patient?" in words


def test_regions_and_a_single_sigmoid_are_compared_by_their_own_rule(tmp_path: Path) -> None:
    core = np.full((8, 9, 7), 0.1, np.float32)
    core[1:3, 1:2, 3:6] = 0.8
    whole = core.copy()
    whole[1:4, 1:3, 1:6] = 0.9
    regions = {
        "labels": {"background": 0, "whole": [1, 2], "core": 2},
        "regions_class_order": [1, 2],
    }
    for maps, dataset in ((np.stack([whole, core], -1), regions), (whole[..., None], None)):
        for kind in ("probabilities", "logits"):
            stored = maps if kind == "probabilities" else np.log(maps / (1 - maps))
            first, npz = turned_prediction(tmp_path, "NibabelIOWithReorient", stored, LPS)
            expected = label_map(maps, dataset) if dataset else (whole > 0.5).astype(np.uint8)
            write(tmp_path / "P01.nii.gz", expected, LPS)
            (tmp_path / "dataset.json").write_text(json.dumps(dataset or PLAIN_TWO))
            case = read_case(first, npz, kind=kind)
            np.testing.assert_array_equal(case.probabilities.argmax(axis=0), expected)
            assert case.warnings == ()


def test_the_dataset_may_lie_in_the_folder_of_the_model(tmp_path: Path) -> None:
    folder = tmp_path / "fold_0" / "validation"
    folder.mkdir(parents=True)
    (tmp_path / "dataset.json").write_text(json.dumps(PLAIN))
    case = read_case(two_images(tmp_path), [predict(folder, probabilities())])
    assert case.labels.names == ("background", "core", "oedema")


def test_plans_that_are_no_json(tmp_path: Path) -> None:
    path = predict(tmp_path, probabilities())
    (tmp_path / "plans.json").write_text("{")
    with pytest.raises(InputError, match=r"plans.json: is not JSON"):
        read_case(two_images(tmp_path), [path])


def test_a_label_map_has_the_labels_of_its_dataset(tmp_path: Path) -> None:
    predict(tmp_path, probabilities(), BRATS)
    case = read_case(
        two_images(tmp_path),
        [tmp_path / "P01.nii.gz"],
        kind="labels",
        dataset_json=tmp_path / "dataset.json",
    )
    assert case.labels.values == (0, 1, 2, 3)
    assert case.labels.names[3] == "enhancing"


def test_probabilities_that_are_all_0_outside_a_box(tmp_path: Path) -> None:
    maps = probabilities()
    maps[0] = maps[-1] = 0
    case = read_case(two_images(tmp_path), [predict(tmp_path, maps)])
    np.testing.assert_array_equal(case.probabilities[0, 0], 1)
    np.testing.assert_array_equal(case.probabilities[1:, 0], 0)
    (words,) = case.warnings
    assert words.startswith("48 of 120 voxels have no probability at all")
    assert not case.mask[0].any()


def test_a_derived_mask_leaves_out_what_has_no_probability(tmp_path: Path) -> None:
    maps = probabilities()
    maps[1] = 0
    case = read_case(two_images(tmp_path), [write(tmp_path / "p.nii", maps)])
    assert case.mask.any(axis=(1, 2)).tolist() == [False, False, True, True, False]
    assert case.mask_origin.endswith("less 24 of 120 voxels without any probability")


def region(name: str, labels: set[int], painted: int) -> Region:
    return Region(name, frozenset(labels), painted)


# A liver with vessels and two kinds of tumour, one of them with a core; and a spleen beside it.
ORGANS = NestedRegions(
    [
        region("liver", {1, 2, 3, 4}, 1),
        region("spleen", {7}, 7),
        region("vessel", {2}, 2),
        region("tumour", {3, 4}, 3),
        region("core", {4}, 4),
    ]
)


def test_the_labels_are_what_is_painted() -> None:
    scheme = ORGANS.scheme()
    assert scheme.values == (0, 1, 2, 3, 4, 7)
    assert scheme.names == (
        "background",
        "liver (rest)",
        "vessel",
        "tumour (rest)",
        "core",
        "spleen",
    )


def test_one_voxel_by_hand() -> None:
    #                 liver spleen vessel tumour core
    maps = np.array([0.7, 0.2, 0.1, 0.5, 0.3], np.float32).reshape(5, 1, 1, 1)
    found = ORGANS.exclusive(maps).ravel()
    # background 1 − .7 − .2, liver .7 − .1 − .5, vessel, tumour .5 − .3, core, spleen
    np.testing.assert_allclose(found, [0.1, 0.1, 0.1, 0.2, 0.3, 0.2], atol=1e-6)


def test_contradictions_are_shared_out() -> None:
    maps = np.array([0.2, 0.9, 0.0, 0.6, 0.0], np.float32).reshape(5, 1, 1, 1)
    found = ORGANS.exclusive(maps).ravel()
    # background 1 − 1.1 < 0, liver .2 − .6 < 0, tumour .6, spleen .9, divided by 1.5
    np.testing.assert_allclose(found, [0, 0, 0, 0.4, 0, 0.6], atol=1e-6)


@given(st.integers(0, 10_000))
def test_regions_of_a_distribution_give_it_back(seed: int) -> None:
    labels = np.random.default_rng(seed).dirichlet(np.full(6, 0.4), size=(2, 3, 2))
    labels = np.moveaxis(labels, -1, 0)  # (L, X, Y, Z)
    values = ORGANS.scheme().values
    maps = np.stack(
        [sum(labels[values.index(l)] for l in each.labels) for each in ORGANS.regions]
    ).astype(np.float32)
    np.testing.assert_allclose(ORGANS.exclusive(maps), labels, atol=2e-6)


@given(st.integers(0, 10_000))
def test_any_maps_give_a_distribution(seed: int) -> None:
    maps = np.random.default_rng(seed).beta(0.3, 0.3, (5, 2, 2, 2)).astype(np.float32)
    found = ORGANS.exclusive(maps)
    assert found.min() >= 0
    np.testing.assert_allclose(found.sum(axis=0), 1, atol=5e-7)


def test_certain_maps_give_what_nnunet_paints() -> None:
    corners = np.array(list(itertools.product([0, 1], repeat=5)), np.float32)  # (32, 5)
    nested = [c for c in corners if c[0] >= max(c[2], c[3]) and c[3] >= c[4]]
    apart = [c for c in nested if c[2] * c[3] == 0 and c[0] * c[1] == 0]
    assert len(apart) == 6
    for corner in apart:
        painted = 0
        for each, inside in zip(ORGANS.regions, corner):
            painted = each.painted if inside > 0.5 else painted
        found = ORGANS.exclusive(corner.reshape(5, 1, 1, 1)).ravel()
        assert ORGANS.scheme().values[found.argmax()] == painted
        assert found.max() == 1


def test_a_region_that_its_parts_fill_up_goes_to_the_label_it_is_painted_with() -> None:
    regions = NestedRegions([region("both", {1, 2}, 2), region("a", {1}, 1), region("b", {2}, 2)])
    maps = np.array([0.9, 0.3, 0.4], np.float32).reshape(3, 1, 1, 1)
    np.testing.assert_allclose(regions.exclusive(maps).ravel(), [0.1, 0.3, 0.6], atol=1e-6)
    assert regions.scheme().names == ("background", "a", "b")


@given(st.permutations(range(5)))
def test_the_maps_may_come_in_any_order(order: list[int]) -> None:
    maps = np.random.default_rng(1).beta(0.3, 0.3, (5, 2, 2, 2)).astype(np.float32)
    other = NestedRegions([ORGANS.regions[i] for i in order])
    assert other.scheme() == ORGANS.scheme()
    np.testing.assert_allclose(other.exclusive(maps[order]), ORGANS.exclusive(maps), atol=1e-6)


def test_labels_are_painted_in_the_order_of_the_maps() -> None:
    core_first = NestedRegions([region("core", {2}, 2), region("whole", {1, 2}, 1)])
    maps = np.array([[0.9, 0.2, 0.6], [0.8, 0.7, 0.5]], np.float32).reshape(2, 3, 1, 1)
    # The whole hides the core wherever both are found, as in nnU-Net's own label map.
    assert core_first.paint(maps).ravel().tolist() == [1, 1, 2]
    # The distribution knows better.
    assert core_first.exclusive(maps).argmax(axis=0).ravel().tolist() == [2, 1, 2]


def test_swapped_maps_contradict_each_other() -> None:
    nested = NestedRegions([region("core", {2}, 2), region("whole", {1, 2}, 1)])
    whole = np.zeros((10, 10, 10), np.float32)
    whole[2:8, 2:8, 2:8] = 0.9
    core = np.zeros_like(whole)
    core[3:7, 3:7, 3:7] = 0.8
    assert nested.contradiction(np.stack([core, whole])) is None
    swapped = nested.contradiction(np.stack([whole, core]))
    assert swapped is not None
    assert "'core' (map 0) must lie inside 'whole' (map 1), got 152 of its 216" in swapped
    # A speck of one region outside the other is what networks do.
    core[0, 0, :9] = 0.9
    assert nested.contradiction(np.stack([core, whole])) is None


@pytest.mark.parametrize(
    ("regions", "message"),
    [
        ([region("a", {1, 2}, 1), region("b", {2, 3}, 3)], "must be nested or apart, but 'a'"),
        ([region("a", {1}, 1), region("b", {1}, 1)], "'a' and 'b' have the same labels"),
        ([region("a", {0, 1}, 1)], r"'a' must not contain background \(0\)"),
        ([region("a", {1, 2}, 3)], r"'a' must be painted with a label of its own \(1, 2\), got 3"),
        (
            [region("a", {1, 2, 3}, 3), region("b", {2, 3}, 2)],
            r"'a' must be painted with a label of its own \(1\), got 3",
        ),
    ],
)
def test_regions_that_cannot_be_told_apart(regions: list[Region], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        NestedRegions(regions)
