"""One patient from every format that holds the same: always the same case."""

from __future__ import annotations

import gzip
import hashlib
import os
from pathlib import Path

import nibabel as nib
import numpy as np
import pytest

from helpers.patient_files import AFFINE, SHAPE, SPACING, image, probabilities, two_images, write
from perturb_mpm.files import InputError, LabelScheme, read_case, read_images, save_like

ROOT = Path(__file__).resolve().parents[2]


def labels_first(maps: np.ndarray) -> np.ndarray:
    return np.moveaxis(maps, -1, 0)


def test_a_4d_nifti(tmp_path: Path) -> None:
    images = two_images(tmp_path)
    case = read_case(images, [write(tmp_path / "p.nii.gz", probabilities())])
    assert list(case.images) == ["t1ce", "flair"]
    for seed, found in enumerate(case.images.values(), start=1):
        np.testing.assert_array_equal(found, image(seed))
        assert found.dtype == np.float32
        assert found.flags.c_contiguous
    np.testing.assert_allclose(case.probabilities, labels_first(probabilities()), atol=1e-7)
    np.testing.assert_allclose(case.probabilities.sum(axis=0), 1, atol=3e-7)
    assert case.probabilities.dtype == np.float32
    assert case.probabilities.flags.c_contiguous
    assert case.labels == LabelScheme((0, 1, 2), ("background", "label_1", "label_2"))
    assert case.geometry.shape == SHAPE
    np.testing.assert_allclose(case.geometry.affine, AFFINE, atol=1e-5)
    np.testing.assert_allclose(case.geometry.spacing, SPACING, rtol=1e-6)
    assert case.mask_origin == "derived: the 72 of 120 voxels where any image is not 0"
    np.testing.assert_array_equal(case.mask, image(1) != 0)
    assert case.warnings == ()


def test_paths_may_be_text_and_one_needs_no_list(tmp_path: Path) -> None:
    images = two_images(tmp_path)
    maps = write(tmp_path / "p.nii", probabilities())
    case = read_case([str(path) for path in images], str(maps), mask=str(images[0]))
    np.testing.assert_array_equal(case.mask, read_case(images, [maps], mask=images[0]).mask)
    assert list(read_images(str(images[0])).images) == ["t1ce"]


def test_one_3d_nifti_for_each_label_is_the_same(tmp_path: Path) -> None:
    images = two_images(tmp_path)
    whole = read_case(images, [write(tmp_path / "p.nii.gz", probabilities())])
    files = [write(tmp_path / f"p{l}.nii", probabilities()[..., l]) for l in range(3)]
    parts = read_case(images, files)
    np.testing.assert_array_equal(parts.probabilities, whole.probabilities)
    # The order of the files is the order of the labels.
    turned = read_case(images, files[::-1])
    np.testing.assert_allclose(turned.probabilities, whole.probabilities[::-1], rtol=3e-7)


def test_maps_along_the_fifth_axis_are_the_same(tmp_path: Path) -> None:
    images = two_images(tmp_path)
    fourth = read_case(images, [write(tmp_path / "4.nii", probabilities())])
    fifth = read_case(images, [write(tmp_path / "5.nii", probabilities()[:, :, :, None, :])])
    np.testing.assert_array_equal(fifth.probabilities, fourth.probabilities)


def test_logits_go_through_the_softmax(tmp_path: Path) -> None:
    logits = np.log(probabilities()) + 500  # beyond what exp can hold
    case = read_case(two_images(tmp_path), [write(tmp_path / "l.nii", logits)], kind="logits")
    np.testing.assert_allclose(case.probabilities, labels_first(probabilities()), atol=1e-4)
    np.testing.assert_allclose(case.probabilities.sum(axis=0), 1, atol=3e-7)


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16])
def test_scaled_integers_are_probabilities(tmp_path: Path, dtype: type) -> None:
    steps = np.iinfo(dtype).max
    # nibabel's header sets the scale aside; saving with it needs the fields written by hand.
    path = write(tmp_path / "p.nii", np.round(probabilities() * steps).astype(dtype))
    content = bytearray(path.read_bytes())
    content[112:116] = np.float32(1 / steps).tobytes()
    path.write_bytes(content)
    assert nib.load(path).dataobj.slope == pytest.approx(1 / steps)
    case = read_case(two_images(tmp_path), [path])
    np.testing.assert_allclose(case.probabilities, labels_first(probabilities()), atol=2 / steps)


def test_sums_that_are_nearly_1_are_made_1(tmp_path: Path) -> None:
    path = write(tmp_path / "p.nii", probabilities() * np.float32(1.009))
    case = read_case(two_images(tmp_path), [path])
    np.testing.assert_allclose(case.probabilities, labels_first(probabilities()), atol=2e-7)


def test_a_label_map_with_a_confidence(tmp_path: Path) -> None:
    labels = np.array([0, 1, 4], np.uint8)[probabilities().argmax(axis=-1)]
    case = read_case(
        two_images(tmp_path),
        [write(tmp_path / "seg.nii.gz", labels)],
        kind="labels",
        confidence=0.8,
    )
    assert case.labels == LabelScheme((0, 1, 4), ("background", "label_1", "label_4"))
    for row, value in enumerate((0, 1, 4)):
        np.testing.assert_allclose(case.probabilities[row][labels == value], 0.8)
        np.testing.assert_allclose(case.probabilities[row][labels != value], 0.1)
    assert case.warnings[0].startswith("THE PROBABILITIES ARE MADE UP")
    assert "80%" in case.warnings[0]


def test_a_label_map_may_lack_a_label_that_is_named(tmp_path: Path) -> None:
    labels = np.zeros(SHAPE, np.uint8)
    labels[2] = 4
    case = read_case(
        two_images(tmp_path),
        [write(tmp_path / "seg.nii.gz", labels)],
        kind="labels",
        labels=LabelScheme((0, 1, 2, 4), ("rest", "necrosis", "oedema", "enhancing")),
    )
    assert case.labels.names[3] == "enhancing"
    np.testing.assert_array_equal(case.labels.to_values(case.probabilities.argmax(axis=0)), labels)


def test_tissues_without_background_leave_0_outside_the_mask(tmp_path: Path) -> None:
    files = two_images(tmp_path), [write(tmp_path / "p.nii", probabilities())]
    case = read_case(*files, labels=[1, 2, 3])
    assert case.labels.names == ("label_1", "label_2", "label_3")
    assert not case.labels.has_background
    everywhere = np.zeros(SHAPE, np.uint8)
    written = case.labels.to_values(everywhere, case.mask)
    assert set(np.unique(written[~case.mask])) == {0}
    assert set(np.unique(written[case.mask])) == {1}
    told = read_case(*files, labels=[1, 2, 3], background=9)
    assert set(np.unique(told.labels.to_values(everywhere, told.mask)[~told.mask])) == {9}
    first = read_case(*files, labels=[1, 2, 3], background=1)
    assert first.labels.has_background
    assert first.labels.names[0] == "background"
    with pytest.raises(InputError, match="background must lie between 0 and 65535, got -1"):
        read_case(*files, labels=[1, 2, 3], background=-1)


def test_the_users_own_labels(tmp_path: Path) -> None:
    files = two_images(tmp_path), [write(tmp_path / "p.nii", probabilities())]
    labels = LabelScheme((0, 4, 700), ("rest", "core", "halo"))
    case = read_case(*files, labels=labels)
    assert case.labels == labels
    assert case.labels.to_values(np.array([2, 0, 1])).tolist() == [700, 0, 4]
    assert case.labels.to_values(np.array([0])).dtype == np.uint16
    assert LabelScheme((0, 255), ("a", "b")).to_values(np.array([1])).dtype == np.uint8


def test_every_file_is_named_by_its_hash(tmp_path: Path) -> None:
    images = two_images(tmp_path)
    mask = write(tmp_path / "mask.nii", np.ones(SHAPE, np.uint8))
    path = write(tmp_path / "p.nii", probabilities())
    case = read_case(images, [path], mask=mask)
    assert case.hashes == {
        file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in [*images, path, mask]
    }


def test_files_of_one_name_keep_their_folders_in_the_hashes(tmp_path: Path) -> None:
    files = []
    for name in ("t1", "t2"):
        (tmp_path / name).mkdir()
        files.append(write(tmp_path / name / "brain.nii", image(len(files))))
    assert list(read_images(files).hashes) == [str(file) for file in files]


def test_names_may_be_given(tmp_path: Path) -> None:
    found = read_images(two_images(tmp_path), image_names=["contrast", "water"])
    assert list(found.images) == ["contrast", "water"]


def test_a_single_volume_along_a_fourth_axis_is_an_image(tmp_path: Path) -> None:
    found = read_images([write(tmp_path / "a.nii", image(1)[..., None])])
    np.testing.assert_array_equal(found.images["a"], image(1))


def test_the_name_does_not_decide_whether_a_file_is_compressed(tmp_path: Path) -> None:
    plain = write(tmp_path / "a.nii", image(1)).read_bytes()
    (tmp_path / "b.nii").write_bytes(gzip.compress(plain))
    (tmp_path / "c.nii.gz").write_bytes(plain)
    for name in ("b.nii", "c.nii.gz"):
        (found,) = read_images([tmp_path / name]).images.values()
        np.testing.assert_array_equal(found, image(1))


def test_slanted_axes_are_said(tmp_path: Path) -> None:
    slanted = np.diag([1.0, 1.0, 3.0, 1.0])
    slanted[0, 2] = 0.5
    (words,) = read_images([write(tmp_path / "a.nii", image(1), slanted, qform_code=0)]).warnings
    assert words.startswith("the axes are not at right angles")


def test_sform_and_qform_in_different_places_are_said(tmp_path: Path) -> None:
    source = nib.Nifti1Image(image(1), None)
    source.set_sform(np.diag([1.0, 1, 1, 1]), code=1)
    source.set_qform(np.diag([1.0, 1, 2, 1]), code=1)
    nib.save(source, tmp_path / "a.nii")
    (words,) = read_images([tmp_path / "a.nii"]).warnings
    assert words.startswith("sform and qform differ by up to 3 mm; the sform is used")


def real_folder() -> Path:
    data = Path(os.environ.get("PERTURB_MPM_DATA") or ROOT.parent / "shared" / "data")
    folder = data / "brats2021_1mm" / "BraTS2021_00006"
    if not folder.is_dir():
        pytest.skip(f"{folder} is not there: set PERTURB_MPM_DATA")
    return folder


def blurred(label: np.ndarray) -> np.ndarray:
    """Average (X, Y, Z) with its neighbours, axis by axis: the labels still sum to 1."""
    values = label.astype(np.float32)
    for axis in range(3):
        values = (np.roll(values, 1, axis) + 2 * values + np.roll(values, -1, axis)) / 4
    return values


def test_a_real_patient(tmp_path: Path) -> None:
    folder = real_folder()
    images = []
    for name in ("t1", "t1ce", "t2", "flair", "seg"):
        file = f"{folder.name}_{name}.nii.gz"
        nib.save(nib.load(folder / file).slicer[50:190, 50:200, 60:110], tmp_path / file)
        images.append(tmp_path / file)
    truth = nib.load(images.pop())
    labels = np.asanyarray(truth.dataobj)
    maps = [blurred(labels == value) for value in (0, 1, 2, 4)]
    nib.save(nib.Nifti1Image(np.stack(maps, axis=-1), truth.affine), tmp_path / "p.nii")

    case = read_case(images, [tmp_path / "p.nii"], labels=[0, 1, 2, 4])
    assert list(case.images) == ["t1", "t1ce", "t2", "flair"]
    assert case.probabilities.shape == (4, 140, 150, 50)
    assert case.warnings == ()
    assert case.geometry.spacing == (1.0, 1.0, 1.0)
    found = case.labels.to_values(case.probabilities.argmax(axis=0))
    assert (found == labels)[labels > 0].mean() > 0.9
    save_like(tmp_path / "labels.nii.gz", found, case.geometry)
    written = nib.load(tmp_path / "labels.nii.gz")
    for field in ("srow_x", "srow_y", "srow_z", "quatern_d", "qoffset_x", "qoffset_y", "pixdim"):
        assert written.header[field].tobytes() == truth.header[field].tobytes(), field
    assert written.affine.tobytes() == truth.affine.tobytes()
    np.testing.assert_array_equal(np.asanyarray(written.dataobj), found)


def test_a_case_of_arrays() -> None:
    rng = np.random.default_rng(0)
    shares = np.moveaxis(rng.dirichlet([1.0] * 10, (11, 12, 3)), -1, 0)  # (10, 11, 12, 3)
    image = rng.normal(size=(11, 12, 3))
    case = read_case({"t1": image}, shares, affine=np.diag([2.0, 2.0, 5.0, 1.0]))
    assert list(case.images) == ["t1"]
    assert case.geometry.spacing == (2.0, 2.0, 5.0)
    assert case.geometry.has_orientation
    np.testing.assert_allclose(case.probabilities, shares, atol=1e-6)
    assert "t1" in case._repr_html_()
    plain = read_case([image], shares, mask=image > 0)
    assert not plain.geometry.has_orientation
    assert (plain.mask == (image > 0)).all()
    with pytest.raises(InputError, match=r"\(labels, 11, 12, 3\), got \(11, 12, 3, 10\) .*move"):
        read_case([image], np.moveaxis(shares, 0, -1))
    with pytest.raises(InputError, match="`probabilities` must name a network's output, got None"):
        read_case([image], None)  # type: ignore[arg-type]
    flat = read_case([image], np.full((2, 11, 12, 3), 0.5))
    assert any("the same at every voxel" in words for words in flat.warnings)
    assert not any("the same at every voxel" in words for words in plain.warnings)
    with pytest.raises(InputError, match="`images` must be arrays"):
        read_case([image, image[:5]], shares)
    with pytest.raises(InputError, match="`mask` must have voxels"):
        read_case([image], shares, mask=np.zeros((11, 12, 3)))


def test_arrays_without_probability_somewhere_are_said_as_files_are() -> None:
    image = np.ones((4, 5, 6))
    shares = np.full((2, 4, 5, 6), 0.5)
    shares[:, 0] = 0
    case = read_case([image], shares)
    assert not case.mask[0].any()
    assert case.mask[1:].all()
    assert any("30 of 120 voxels have no probability" in words for words in case.warnings)
