"""nnU-Net's files: the same case as from NIfTI, regions as a distribution, no pickle opened."""

from __future__ import annotations

import json
import pickle
import re
import sys
from pathlib import Path
from typing import Any

import nibabel as nib
import numpy as np
import pytest

from helpers.patient_files import AFFINE, SHAPE, probabilities, two_images, write
from perturb_mpm.files import Case, InputError, LabelScheme, read_case

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


def predict(
    folder: Path, maps: np.ndarray, dataset: dict[str, Any] | None = None, name: str = "P01"
) -> Path:
    """Write maps (X, Y, Z, C) as nnUNetv2_predict --save_probabilities does."""
    np.savez_compressed(folder / f"{name}.npz", probabilities=maps.transpose(3, 2, 1, 0))
    write(folder / f"{name}.nii.gz", maps.argmax(axis=-1).astype(np.uint8))
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
    npz = predict(tmp_path, maps, CORE_FIRST)
    painted = np.zeros(core.shape, np.uint8)  # as nnU-Net paints: the whole over the core
    for value, one in zip((1, 2, 3), (core, whole, enhancing)):
        painted[one > 0.5] = value
    write(tmp_path / "P01.nii.gz", painted)
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
    elsewhere = np.zeros_like(painted)
    elsewhere[:5, :5, :5] = 2
    write(tmp_path / "P01.nii.gz", elsewhere)
    (warning,) = read_case([image], [npz]).warnings
    assert "are both of one patient, and in one voxel order?" in warning


def test_maps_under_the_wrong_regions_are_refused(tmp_path: Path) -> None:
    maps = ball_regions()
    image = write(tmp_path / "t1.nii", maps[..., 1] + 1)
    npz = predict(tmp_path, maps[..., [1, 0, 2]], CORE_FIRST)
    with pytest.raises(InputError, match=r"'core' .map 0. must lie inside 'whole' .map 1., got"):
        read_case([image], [npz])


def test_an_npz_alone_lies_where_the_first_image_does(tmp_path: Path) -> None:
    images = two_images(tmp_path)
    path = predict(tmp_path, probabilities())
    beside = read_case(images, [path])
    (tmp_path / "P01.nii.gz").unlink()
    alone = read_case(images, [path])
    np.testing.assert_array_equal(alone.probabilities, beside.probabilities)
    (warning,) = alone.warnings
    assert "are taken to be where those of P01_t1ce.nii.gz are" in warning
    np.savez(path, probabilities=np.zeros((3, 4, 6, 6), np.float32))
    with pytest.raises(InputError, match=r"must have the shape of `images` .*by `reference`"):
        read_case(images, [path])


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


def test_probabilities_that_were_turned_are_turned_back(tmp_path: Path) -> None:
    images = two_images(tmp_path)
    expected = read_case(images, [predict(tmp_path, probabilities())])
    # What NibabelIOWithReorient does: axes to right, anterior, superior, then reversed.
    turned = nib.as_closest_canonical(nib.Nifti1Image(probabilities(), AFFINE))
    assert nib.aff2axcodes(AFFINE) != ("R", "A", "S")
    np.savez(tmp_path / "P01.npz", probabilities=turned.get_fdata(dtype="f4").transpose(3, 2, 1, 0))
    (words,) = read_case(images, [tmp_path / "P01.npz"]).warnings
    assert re.match("the most probable labels are those of nnU-Net's label map .* only", words)
    (tmp_path / "plans.json").write_text('{"image_reader_writer": "NibabelIOWithReorient"}')
    case = read_case(images, [tmp_path / "P01.npz"])
    assert case.warnings == ()
    np.testing.assert_array_equal(case.probabilities, expected.probabilities)


def test_plans_that_are_no_json(tmp_path: Path) -> None:
    path = predict(tmp_path, probabilities())
    (tmp_path / "plans.json").write_text("{")
    with pytest.raises(InputError, match=r"plans.json: is not JSON"):
        read_case(two_images(tmp_path), [path])


def test_a_label_map_without_foreground_says_nothing(tmp_path: Path) -> None:
    path = predict(tmp_path, probabilities())
    write(tmp_path / "P01.nii.gz", np.zeros(SHAPE, np.uint8))
    assert read_case(two_images(tmp_path), [path]).warnings == ()


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
