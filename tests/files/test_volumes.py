"""What is written lies where the input lies, to the last bit of its header."""

from __future__ import annotations

import gzip
import os
from pathlib import Path

import nibabel as nib
import numpy as np
import pytest

from helpers.patient_files import AFFINE, SHAPE, image, write
from perturb_mpm.files import (
    Geometry,
    InputError,
    geometry_from_affine,
    read_images,
    save_like,
    save_nifti,
)

PLACE = (
    *("srow_x", "srow_y", "srow_z", "quatern_b", "quatern_c", "quatern_d"),
    *("qoffset_x", "qoffset_y", "qoffset_z", "qform_code", "sform_code", "xyzt_units"),
)
SHEARLESS = np.array(
    [[-0.9, 0.1, 0.0, 12.0], [0.1, 0.9, 0.0, -7.0], [0.0, 0.0, 3.0, 5.5], [0.0, 0.0, 0.0, 1.0]]
)
OTHER = np.array([[0, 0, 2.2, -9], [1.3, 0, 0, 4], [0, -0.7, 0, 1], [0, 0, 0, 1.0]])


def scanner() -> nib.Nifti1Image:
    source = nib.Nifti1Image(image(1), AFFINE)
    source.set_sform(AFFINE, code=1)
    source.set_qform(AFFINE, code=1)
    return source


def two_places() -> nib.Nifti1Image:
    source = nib.Nifti1Image(image(1), None)
    source.set_sform(AFFINE, code=4)
    source.set_qform(OTHER, code=2)
    return source


NO_CODE_AT = {"sform only": (252,), "qform only": (254,), "neither": (252, 254)}
# What is unusual about an input's header.
INPUTS = {
    "sform only": scanner,
    "qform only": scanner,
    "neither": scanner,
    "both, in different places": two_places,
    "turned": lambda: nib.Nifti1Image(image(1), OTHER),
    "nifti 2": lambda: nib.Nifti2Image(image(1), AFFINE),
    "big-endian": lambda: nib.Nifti1Image(
        image(1).astype(">f4"), AFFINE, nib.Nifti1Header(endianness=">")
    ),
}


def input_file(folder: Path, kind: str) -> Path:
    path = folder / f"{kind}.nii"
    source = INPUTS[kind]()
    content = bytearray(source.to_bytes())
    # nibabel fills in codes that are 0 when it saves: take them out of the bytes.
    for place in NO_CODE_AT.get(kind, ()):
        content[place : place + 2] = bytes(2)
    path.write_bytes(content)
    return path


@pytest.mark.parametrize("kind", INPUTS)
@pytest.mark.parametrize("maps", [(), (3,)])
def test_the_place_is_the_inputs_own_to_the_last_bit(
    tmp_path: Path, kind: str, maps: tuple[int, ...]
) -> None:
    source = nib.load(input_file(tmp_path, kind))
    geometry = read_images([tmp_path / f"{kind}.nii"]).geometry
    volume = np.random.default_rng(0).random((*SHAPE, *maps)).astype(np.float32)
    save_like(tmp_path / "out.nii.gz", volume, geometry, "entropy, bits")

    written = nib.load(tmp_path / "out.nii.gz")
    for field in PLACE:
        assert written.header[field].tobytes() == native(source.header[field]).tobytes(), field
    axes = 4 if maps else 8  # a fourth axis of maps has no place in space
    own = native(source.header["pixdim"])[:axes]
    assert written.header["pixdim"][:axes].tobytes() == own.tobytes()
    assert written.affine.tobytes() == source.affine.tobytes()
    np.testing.assert_array_equal(np.asanyarray(written.dataobj), volume)
    assert written.get_data_dtype() == np.float32
    assert written.header["descrip"].item() == b"entropy, bits"
    assert type(written) is (nib.Nifti2Image if kind == "nifti 2" else nib.Nifti1Image)


def native(field: np.ndarray) -> np.ndarray:
    return field.astype(field.dtype.newbyteorder("="))


def test_plain_saving_by_the_affine_would_not_do(tmp_path: Path) -> None:
    # The negative control: nibabel's own way fills in what the input left open.
    source = nib.load(input_file(tmp_path, "neither"))
    nib.save(nib.Nifti1Image(image(1), source.affine), tmp_path / "plain.nii")
    plain = nib.load(tmp_path / "plain.nii")
    assert plain.header["sform_code"] != source.header["sform_code"]
    assert plain.header["srow_x"].tobytes() != source.header["srow_x"].tobytes()


def test_another_program_finds_it_in_the_same_place(tmp_path: Path) -> None:
    sitk = pytest.importorskip("SimpleITK", reason="the extra itk is not installed")
    path = input_file(tmp_path, "sform only")
    save_like(tmp_path / "out.nii.gz", image(2), read_images([path]).geometry)
    theirs, ours = (sitk.ReadImage(str(p)) for p in (path, tmp_path / "out.nii.gz"))
    assert ours.GetOrigin() == theirs.GetOrigin()
    assert ours.GetDirection() == theirs.GetDirection()
    assert ours.GetSpacing() == theirs.GetSpacing()
    np.testing.assert_array_equal(sitk.GetArrayFromImage(ours), image(2).T)


def test_two_writes_give_the_same_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    geometry = geometry_from_affine(SHAPE, AFFINE)
    save_like(tmp_path / "one.nii.gz", image(3), geometry)
    monkeypatch.setattr("time.time", lambda: 2e9)
    save_like(tmp_path / "two.nii.gz", image(3), geometry)
    assert (tmp_path / "one.nii.gz").read_bytes() == (tmp_path / "two.nii.gz").read_bytes()


def test_a_grid_from_no_file_gets_a_header_of_its_own(tmp_path: Path) -> None:
    affine = np.diag([1.0, 2.0, 3.0, 1.0])
    geometry = geometry_from_affine(SHAPE, affine)
    assert geometry.spacing == (1.0, 2.0, 3.0)
    save_like(tmp_path / "a.nii.gz", np.zeros(SHAPE, np.uint8), geometry)
    written = nib.load(tmp_path / "a.nii.gz")
    np.testing.assert_array_equal(written.affine, affine)
    assert written.header.get_xyzt_units()[0] == "mm"


def test_the_spacing_is_in_mm_whatever_the_units(tmp_path: Path) -> None:
    scaled = np.diag([0.001, 0.002, 0.003, 1.0])
    geometry = read_images([write(tmp_path / "a.nii", image(1), scaled, xyzt_units=1)]).geometry
    np.testing.assert_allclose(geometry.spacing, [1.0, 2.0, 3.0])
    np.testing.assert_allclose(np.diag(geometry.affine), [1.0, 2.0, 3.0, 1.0])


@pytest.mark.parametrize(
    ("name", "shape", "description", "message"),
    [
        ("a.nii", (5, 6, 3), "", r"shape \(5, 6, 4\) of the geometry, got \(5, 6, 3\)"),
        ("a.img", SHAPE, "", "path must end in .nii"),
        ("a.nii", SHAPE, "x" * 80, "at most 79 bytes"),
        ("a.nii", SHAPE[:2], "", "3 or 4 axes"),
    ],
)
def test_what_cannot_be_stored_is_refused_before_a_file_is_made(
    tmp_path: Path, name: str, shape: tuple[int, ...], description: str, message: str
) -> None:
    geometry: Geometry = geometry_from_affine(SHAPE, AFFINE)
    with pytest.raises(ValueError, match=message):
        save_like(tmp_path / name, np.zeros(shape, np.float32), geometry, description)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("name", ["v.nii", "v.nii.gz"])
def test_volume_and_geometry_come_back(tmp_path: Path, name: str) -> None:
    volume = np.arange(60, dtype=np.float32).reshape(3, 4, 5)
    save_nifti(tmp_path / name, volume, SHEARLESS, "entropy, bits")
    image = nib.load(tmp_path / name)
    np.testing.assert_array_equal(np.asanyarray(image.dataobj), volume)
    assert image.get_data_dtype() == np.float32
    np.testing.assert_allclose(image.affine, SHEARLESS, atol=1e-6)
    np.testing.assert_allclose(image.get_qform(), SHEARLESS, atol=1e-5)
    assert image.header.get_xyzt_units()[0] == "mm"
    assert image.header["descrip"].item() == b"entropy, bits"


def test_a_volume_without_a_file_gives_the_same_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    volume = np.random.default_rng(0).random((4, 5, 6)).astype(np.float32)
    save_nifti(tmp_path / "one.nii.gz", volume, SHEARLESS)
    monkeypatch.setattr("time.time", lambda: 2e9)
    save_nifti(tmp_path / "two.nii.gz", volume, SHEARLESS)
    assert (tmp_path / "one.nii.gz").read_bytes() == (tmp_path / "two.nii.gz").read_bytes()


@pytest.mark.parametrize(
    ("given_type", "stored_type"),
    [("bool", "u1"), ("f2", "f4"), (">f8", "f8"), ("i2", "i2"), ("u4", "u4")],
)
def test_types_are_kept_where_nifti_has_them(
    tmp_path: Path, given_type: str, stored_type: str
) -> None:
    volume = (np.arange(24).reshape(2, 3, 4) % 2).astype(given_type)
    save_nifti(tmp_path / "v.nii", volume, SHEARLESS)
    image = nib.load(tmp_path / "v.nii")
    assert image.get_data_dtype() == np.dtype(stored_type)
    np.testing.assert_array_equal(np.asanyarray(image.dataobj), volume)


@pytest.mark.parametrize("kind", ["u1", "i2", ">f4", "f8"])
@pytest.mark.parametrize("shape", [(7, 5, 3), (4, 5, 6, 3), (4, 5, 1, 1)])
def test_the_bytes_are_those_that_nibabel_would_write(
    tmp_path: Path, kind: str, shape: tuple[int, ...]
) -> None:
    volume = (100 * np.random.default_rng(0).random(shape)).astype(kind)
    expected = nib.Nifti1Image(volume, SHEARLESS)
    expected.set_sform(SHEARLESS, code=1)
    expected.set_qform(SHEARLESS, code=1)
    expected.header.set_xyzt_units(xyz="mm")
    for given in (volume, np.asfortranarray(volume)):
        save_nifti(tmp_path / "v.nii", given, SHEARLESS)
        assert (tmp_path / "v.nii").read_bytes() == expected.to_bytes()
        save_nifti(tmp_path / "v.nii.gz", given, SHEARLESS)
        assert gzip.decompress((tmp_path / "v.nii.gz").read_bytes()) == expected.to_bytes()


def test_a_view_that_is_not_contiguous_is_written_in_order(tmp_path: Path) -> None:
    volume = np.arange(120).reshape(4, 5, 6).astype(np.int16)[::-2, :, 1:4]
    save_nifti(tmp_path / "v.nii", volume, SHEARLESS)
    np.testing.assert_array_equal(np.asanyarray(nib.load(tmp_path / "v.nii").dataobj), volume)


@pytest.mark.parametrize(
    ("name", "volume", "affine", "description", "error", "message"),
    [
        ("v.img", np.zeros((2, 2, 2)), SHEARLESS, "", ValueError, "path must end in .nii"),
        ("v.nii", np.zeros((2, 2)), SHEARLESS, "", ValueError, "volume must have 3 or 4 axes"),
        ("v.nii", np.zeros((2, 2, 2), "i8"), SHEARLESS, "", TypeError, "got int64; convert"),
        ("v.nii", np.zeros((2, 2, 2), "c8"), SHEARLESS, "", TypeError, "got complex64"),
        ("v.nii", np.zeros((2, 2, 2)), np.eye(3), "", ValueError, r"affine must be \(4, 4\)"),
        ("v.nii", np.zeros((2, 2, 2)), np.eye(4) * np.nan, "", ValueError, "must be finite"),
        ("v.nii", np.zeros((2, 2, 2)), np.zeros((4, 4)), "", ValueError, "must be invertible"),
        ("v.nii", np.zeros((2, 2, 2)), SHEARLESS, "x" * 80, ValueError, "at most 79 bytes, got 80"),
    ],
)
def test_bad_volumes_and_affines_are_refused_before_a_file_is_made(
    tmp_path: Path,
    name: str,
    volume: np.ndarray,
    affine: np.ndarray,
    description: str,
    error: type[Exception],
    message: str,
) -> None:
    with pytest.raises(error, match=message):
        save_nifti(tmp_path / name, volume, affine, description)
    assert os.listdir(tmp_path) == []


def test_nibabel_says_nothing_before_our_error(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    path = write(tmp_path / "t1.nii", image(1))
    with path.open("r+b") as file:
        file.seek(70)
        file.write(b"\xff\x7f")  # a data type that there is not
    with pytest.raises(InputError, match="is not a NIfTI file"):
        read_images([path])
    assert caplog.records == []
    assert capfd.readouterr().err == ""
