"""Formats other than NIfTI: the same voxels in the same place, also as SimpleITK reads them."""

from __future__ import annotations

import gzip
import io
import os
from pathlib import Path
from typing import Any

import nibabel as nib
import numpy as np
import pytest

from helpers.patient_files import AFFINE, SHAPE, image, probabilities, two_images, write
from perturb_mpm.files import (
    InputError,
    Source,
    geometry_from_affine,
    read_case,
    read_volume,
    save_like,
)
from perturb_mpm.files.formats import GzipWriter

PLACED = (".nii.gz", ".nii", ".nrrd", ".mha", ".mgz", ".mgh")
FLAT = np.diag([-1.0, -1.0, 1.0, 1.0])


def voxels_of(kind: str) -> np.ndarray:
    rng = np.random.default_rng(3)
    if kind == "maps":
        return rng.normal(size=(*SHAPE, 3)).astype(np.float32)
    if kind == "float32":
        return rng.normal(size=SHAPE).astype(np.float32)
    return rng.integers(0, 200, SHAPE).astype(kind)


@pytest.mark.parametrize("kind", ["uint8", "uint16", "int16", "float32", "maps"])
@pytest.mark.parametrize("ending", PLACED)
def test_what_is_written_is_read_again(tmp_path: Path, ending: str, kind: str) -> None:
    voxels = voxels_of(kind)
    path = tmp_path / f"v{ending}"
    save_like(path, voxels, geometry_from_affine(SHAPE, AFFINE))
    found = read_volume(Source("image", path))
    np.testing.assert_array_equal(found.voxels, voxels)
    np.testing.assert_allclose(found.geometry.affine, AFFINE, atol=1e-5)
    before = path.read_bytes()
    save_like(path, voxels, geometry_from_affine(SHAPE, AFFINE))
    assert path.read_bytes() == before


@pytest.mark.parametrize("kind", ["uint8", "uint16", "int16", "float32", "maps"])
@pytest.mark.parametrize("ending", [e for e in PLACED if not e.startswith(".mg")])
def test_simpleitk_reads_the_same_voxels_in_the_same_place(
    tmp_path: Path, ending: str, kind: str
) -> None:
    sitk = pytest.importorskip("SimpleITK", reason="the extra itk is not installed")
    voxels = voxels_of(kind)
    path = tmp_path / f"v{ending}"
    save_like(path, voxels, geometry_from_affine(SHAPE, AFFINE))
    found = sitk.ReadImage(str(path))
    array = sitk.GetArrayFromImage(found)
    if kind == "maps":
        axes = (3, 2, 1, 0) if ending.startswith(".nii") else (2, 1, 0, 3)
        np.testing.assert_array_equal(array.transpose(axes), voxels)
    else:
        np.testing.assert_array_equal(array.transpose(2, 1, 0), voxels)
    for index in ((0, 0, 0), (4, 5, 3), (1, 0, 2)):
        whole = (*index, *[0] * (found.GetDimension() - 3))
        place = np.array(found.TransformIndexToPhysicalPoint(whole)[:3]) * (-1, -1, 1)
        np.testing.assert_allclose(place, nib.affines.apply_affine(AFFINE, index), atol=1e-4)


@pytest.mark.parametrize("ending", [".nrrd", ".nhdr", ".mha", ".mhd"])
@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize("maps", [1, 3])
def test_what_simpleitk_writes_is_read(
    tmp_path: Path, ending: str, packed: bool, maps: int
) -> None:
    sitk = pytest.importorskip("SimpleITK", reason="the extra itk is not installed")
    voxels = np.random.default_rng(1).normal(size=(*SHAPE, maps)).astype(np.float32)
    stored = voxels if maps > 1 else voxels[..., 0]
    axes = (2, 1, 0, 3) if maps > 1 else (2, 1, 0)
    theirs = sitk.GetImageFromArray(stored.transpose(axes), isVector=maps > 1)
    space = np.diag([-1.0, -1.0, 1.0, 1.0]) @ AFFINE
    spacing = np.linalg.norm(space[:3, :3], axis=0)
    theirs.SetSpacing(spacing.tolist())
    theirs.SetDirection((space[:3, :3] / spacing).ravel().tolist())
    theirs.SetOrigin(space[:3, 3].tolist())
    path = tmp_path / f"v{ending}"
    sitk.WriteImage(theirs, str(path), useCompression=packed)
    found = read_volume(Source("image", path))
    np.testing.assert_array_equal(found.voxels, stored)
    np.testing.assert_allclose(found.geometry.affine, AFFINE, atol=1e-4)
    assert found.geometry.ending == {".nhdr": ".nrrd", ".mhd": ".mha"}.get(ending, ending)


def test_an_nrrd_of_another_space_and_order(tmp_path: Path) -> None:
    values = np.arange(24, dtype=">i2").reshape(2, 3, 4, order="F")
    header = (
        "NRRD0004\n# a comment\ntype: short\ndimension: 3\nsizes: 2 3 4\nendian: big\n"
        "space: RAS\nspace directions: (2,0,0) (0,3,0) (0,0,4)\nspace origin: (1,2,3)\n"
        "encoding: raw\nowner:=somebody\n\n"
    )
    path = tmp_path / "v.nrrd"
    path.write_bytes(header.encode() + values.tobytes(order="F"))
    found = read_volume(Source("image", path))
    np.testing.assert_array_equal(found.voxels, values)
    expected = np.diag([2.0, 3.0, 4.0, 1.0])
    expected[:3, 3] = (1, 2, 3)
    np.testing.assert_array_equal(found.geometry.affine, expected)


VALUES = np.arange(24, dtype=np.int16).reshape(2, 3, 4, order="F")
META = "ObjectType = Image\nNDims = 3\n{fields}DimSize = 2 3 4\nElementType = MET_SHORT\n"
SHORTS = "NRRD0004\ntype: short\ndimension: 3\nsizes: 2 3 4\nencoding: raw\n{fields}\n"


@pytest.mark.parametrize("size", [-1, 16])
def test_bytes_before_the_voxels_of_a_metaimage_are_skipped(tmp_path: Path, size: int) -> None:
    path = tmp_path / "v.mhd"
    (tmp_path / "v.raw").write_bytes(bytes(range(16)) + VALUES.tobytes(order="F"))
    fields = f"BinaryData = True\nHeaderSize = {size}\n"
    path.write_text(META.format(fields=fields) + "ElementDataFile = v.raw\n")
    np.testing.assert_array_equal(read_volume(Source("image", path)).voxels, VALUES)


@pytest.mark.parametrize("field", ["BinaryDataByteOrderMSB = 1", "ElementByteOrderMSB : T"])
def test_fields_of_a_metaimage_are_read_as_itk_does(tmp_path: Path, field: str) -> None:
    path = tmp_path / "v.mha"
    header = META.format(fields=f"BinaryData = 1\n{field}\nOffset : 1 2 3\n")
    content = VALUES.astype(">i2").tobytes(order="F")
    path.write_bytes(f"{header}ElementDataFile = Local\n".encode() + content)
    found = read_volume(Source("image", path))
    np.testing.assert_array_equal(found.voxels, VALUES)
    np.testing.assert_array_equal(found.geometry.affine[:3, 3], [-1, -2, 3])


@pytest.mark.parametrize("endian", ["big", "Big", "BIG"])
def test_the_byte_order_of_an_nrrd_is_read_in_any_case(tmp_path: Path, endian: str) -> None:
    path = tmp_path / "v.nrrd"
    header = SHORTS.format(fields=f"endian: {endian}\n").encode()
    path.write_bytes(header + VALUES.astype(">i2").tobytes(order="F"))
    np.testing.assert_array_equal(read_volume(Source("image", path)).voxels, VALUES)


@pytest.mark.parametrize(
    ("name", "header", "message"),
    [
        ("v.nrrd", SHORTS.format(fields="endian: big\nendian: little\n"), "got endian twice"),
        ("v.nrrd", SHORTS.format(fields=""), "endian must be little or big, got missing"),
        ("v.nrrd", SHORTS.format(fields="endian: middle\n"), "must be little or big, got middle"),
        ("v.nrrd", SHORTS.format(fields="endain: big\n"), "has the field endain, not NRRD's"),
        ("v.nrrd", SHORTS.replace("n: 3", "n: 4").format(fields="endian: big\n"), "each of 4 axes"),
        ("v.nrrd", SHORTS.format(fields="endian: big\naxis mins: 1 2 3\n"), "by a space origin"),
        ("v.nrrd", SHORTS.format(fields='endian: big\nunits: "cm" "" ""\n'), "must be mm, got cm"),
        (
            "v.nrrd",
            SHORTS.format(fields="endian: big\nspace directions: (1,0,0) (0,1,0) (0,0,1)\n"),
            "need a space of three dimensions",
        ),
        (
            "v.nrrd",
            SHORTS.format(fields="endian: big\nspace: RAS\nspacings: 1 2 3\n"),
            "needs space directions, got spacings",
        ),
        (
            "v.mha",
            META.format(fields="Offset = 1 2 3\nOrigin = 4 5 6\n") + "ElementDataFile = LOCAL\n",
            "each field once, got Offset twice",
        ),
        (
            "v.mha",
            META.format(fields="HeaderSize = 16\n") + "ElementDataFile = LOCAL\n",
            "HeaderSize must be at least",
        ),
        (
            "v.mha",
            META.format(fields="HeaderSize = -2\n") + "ElementDataFile = LOCAL\n",
            "HeaderSize must be −1, 0 or more, got -2",
        ),
        (
            "v.mha",
            META.format(fields="HeaderSize = 9\nCompressedData = T\n")
            + "ElementDataFile = LOCAL\n",
            "must be 0 where its voxels are compressed",
        ),
    ],
)
def test_headers_that_could_be_read_in_two_ways_are_refused(
    tmp_path: Path, name: str, header: str, message: str
) -> None:
    path = tmp_path / name
    path.write_bytes(header.encode() + VALUES.tobytes(order="F"))
    with pytest.raises(InputError, match=message):
        read_volume(Source("image", path))


def test_an_mgh_without_directions_lies_as_freesurfer_has_it(tmp_path: Path) -> None:
    path = tmp_path / "v.mgh"
    header = np.array([1, 2, 3, 4, 1, 4, 0], ">i4").tobytes() + bytes(2)  # goodRASFlag is 0
    path.write_bytes(header.ljust(284, b"\0") + VALUES.astype(">i2").tobytes(order="F"))
    found = read_volume(Source("image", path))
    np.testing.assert_array_equal(found.voxels, VALUES)
    coronal = [[-1, 0, 0, 1], [0, 0, 1, -2], [0, -1, 0, 1.5], [0, 0, 0, 1]]
    np.testing.assert_array_equal(found.geometry.affine, coronal)


def saved(path: Path, array: np.ndarray) -> Path:
    picture = pytest.importorskip("PIL.Image")
    picture.fromarray(array).save(path)
    return path


@pytest.mark.parametrize("ending", [".png", ".tif", ".tiff"])
def test_pictures_have_one_slice(tmp_path: Path, ending: str) -> None:
    rows = np.random.default_rng(2).integers(0, 255, (5, 7)).astype(np.uint8)
    found = read_volume(Source("image", saved(tmp_path / f"p{ending}", rows)))
    assert found.voxels.shape == (7, 5, 1)
    np.testing.assert_array_equal(found.voxels[:, :, 0], rows.T)
    np.testing.assert_array_equal(found.geometry.affine, FLAT)
    assert found.geometry.ending == ".tif"


@pytest.mark.parametrize(
    ("ending", "kind"),
    [
        (".png", "uint8"),
        (".png", "uint16"),
        (".tif", "uint8"),
        (".tif", "float32"),
        (".tif", "maps"),
    ],
)
def test_pictures_are_written(tmp_path: Path, ending: str, kind: str) -> None:
    voxels = voxels_of(kind)[:, :, :1]
    path = tmp_path / f"p{ending}"
    save_like(path, voxels, geometry_from_affine(voxels.shape[:3], FLAT))
    found = read_volume(Source("image", path))
    np.testing.assert_array_equal(found.voxels, voxels)
    sitk = pytest.importorskip("SimpleITK", reason="the extra itk is not installed")
    if kind != "maps":
        theirs = sitk.GetArrayFromImage(sitk.ReadImage(str(path)))
        np.testing.assert_array_equal(theirs.T, voxels[:, :, 0])


def test_what_a_picture_cannot_hold(tmp_path: Path) -> None:
    grid = geometry_from_affine(SHAPE, FLAT)
    with pytest.raises(ValueError, match=r"a .tif must have one slice, got 4"):
        save_like(tmp_path / "p.tif", voxels_of("uint8"), grid)
    flat = geometry_from_affine((5, 6, 1), FLAT)
    with pytest.raises(ValueError, match=r"a .png must be one map of whole numbers"):
        save_like(tmp_path / "p.png", voxels_of("float32")[:, :, :1], flat)
    assert list(tmp_path.iterdir()) == []


def test_a_case_of_any_format_is_the_same_case(tmp_path: Path) -> None:
    expected = read_case(two_images(tmp_path), [write(tmp_path / "p.nii", probabilities())])
    grid = geometry_from_affine(SHAPE, AFFINE)
    for ending in (".nrrd", ".mha", ".mgz"):
        names = ("P01_t1ce", "P01_flair")
        for seed, name in enumerate(names, start=1):
            save_like(tmp_path / f"{name}{ending}", image(seed), grid)
        save_like(tmp_path / f"p{ending}", probabilities(), grid)
        images = [tmp_path / f"{name}{ending}" for name in names]
        case = read_case(images, [tmp_path / f"p{ending}"])
        assert list(case.images) == list(expected.images)
        np.testing.assert_array_equal(case.probabilities, expected.probabilities)
        np.testing.assert_array_equal(case.mask, expected.mask)
        assert case.geometry.ending == ending


def test_a_picture_in_colour_is_three_images(tmp_path: Path) -> None:
    colours = np.random.default_rng(4).integers(1, 255, (6, 5, 3)).astype(np.uint8)
    path = saved(tmp_path / "photo.png", colours)
    maps = probabilities()[:, :, 0].transpose(2, 1, 0)[:, np.newaxis]  # (C, 1, Y, X)
    np.savez(tmp_path / "photo.npz", probabilities=maps)
    case = read_case([path], [tmp_path / "photo.npz"])
    assert list(case.images) == ["photo_red", "photo_green", "photo_blue"]
    np.testing.assert_array_equal(case.images["photo_green"][:, :, 0], colours[..., 1].T)
    assert case.probabilities.shape == (3, 5, 6, 1)


def test_pages_of_a_tiff_are_slices_where_nnunet_says_their_size(tmp_path: Path) -> None:
    tifffile = pytest.importorskip("tifffile", reason="the extra tiff is not installed")
    voxels = np.random.default_rng(5).integers(1, 255, (7, 6, 5)).astype(np.uint16)  # (Z, Y, X)
    path = tmp_path / "A_0000.tif"
    tifffile.imwrite(path, voxels, compression="zlib")
    with pytest.raises(InputError, match=r"must be 3-D.*where nnU-Net's CASE.json has the spacing"):
        read_case([path], [path])
    (tmp_path / "A.json").write_text('{"spacing": [3.0, 1.5, 0.5]}')
    volume = read_volume(Source("images", path))
    np.testing.assert_array_equal(volume.voxels, voxels.transpose(2, 1, 0))
    assert volume.geometry.spacing == (0.5, 1.5, 3.0)
    assert volume.geometry.axis_codes == "LPS"
    assert volume.geometry.ending == ".nii.gz"  # TIFF has no place for where voxels are
    maps = np.random.default_rng(6).dirichlet((1, 1), (7, 6, 5)).astype(np.float32)
    np.savez(tmp_path / "A.npz", probabilities=np.moveaxis(maps, -1, 0))
    (tmp_path / "plans.json").write_text('{"image_reader_writer": "Tiff3DIO"}')
    case = read_case([path], [tmp_path / "A.npz"])
    np.testing.assert_allclose(case.probabilities, maps.transpose(3, 2, 1, 0), atol=1e-6)
    assert "A.json" in case.hashes
    (tmp_path / "A.json").write_text('{"spacing": [3.0, 0]}')
    with pytest.raises(InputError, match=r"A.json: spacing must be three sizes in mm, got"):
        read_case([path], [tmp_path / "A.npz"])


def test_one_sigmoid_map_is_the_foreground(tmp_path: Path) -> None:
    p = probabilities(2)[..., 1]
    case = read_case(two_images(tmp_path), [write(tmp_path / "p.nii", p)])
    np.testing.assert_allclose(case.probabilities[1], p)
    np.testing.assert_allclose(case.probabilities[0], 1 - p)
    assert case.labels.values == (0, 1)
    logits = np.log(p / (1 - p))
    again = read_case(two_images(tmp_path), [write(tmp_path / "l.nii", logits)], kind="logits")
    np.testing.assert_allclose(again.probabilities, case.probabilities, atol=1e-5)


NRRD = "NRRD0004\ntype: {type}\ndimension: 3\nsizes: {sizes}\nencoding: {encoding}\n\n"


def nrrd(**fields: Any) -> bytes:
    return NRRD.format(**{"type": "uchar", "sizes": "2 2 2", "encoding": "raw", **fields}).encode()


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("v.nrrd", nrrd() + b"1234", "it holds 4 bytes of 8"),
        ("v.nrrd", nrrd(encoding="hex") + b"12345678", "encoding must be raw, gzip or bzip2"),
        ("v.nrrd", nrrd(type="block") + b"12345678", "its type must be a number, got block"),
        ("v.nrrd", nrrd(sizes="2 -2 2") + b"12345678", "its sizes must be positive"),
        ("v.nrrd", nrrd(sizes="90000 90000 90000"), "is too large"),
        ("v.nrrd", nrrd(encoding="gzip") + gzip.compress(b"12345678", mtime=0)[:-9], "damaged"),
        ("v.nrrd", b"NRRD0004\ntype: uchar\n\n", "its header has no sizes"),
        ("v.nrrd", nrrd()[:-1] + b"data file: /etc/passwd\n\n", "must lie beside it"),
        ("v.mha", b"ObjectType = Image\nNDims = 3\n", "its header has no DimSize"),
        (
            "v.mha",
            b"NDims = 3\nDimSize = 2 2 2\nElementType = MET_UCHAR\nElementDataFile = ../x\n",
            "must lie beside it",
        ),
        ("v.png", b"\x89PNG\r\n\x1a\nrubbish", "is damaged"),
        ("v.mgz", gzip.compress(b"rubbish", mtime=0), "is damaged"),
    ],
)
def test_damaged_files_are_refused_in_one_line(
    tmp_path: Path, name: str, content: bytes, message: str
) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(InputError, match=message) as caught:
        read_volume(Source("image", path))
    assert "\n" not in str(caught.value)


BLOCK = 1 << 20


@pytest.mark.parametrize("size", [0, 1, BLOCK - 1, BLOCK, BLOCK + 1, 40 * BLOCK + 3])
def test_a_gzip_stream_in_blocks_gives_its_bytes_back(size: int) -> None:
    data = np.random.default_rng(0).integers(0, 5, size, dtype=np.uint8).tobytes()
    file = io.BytesIO()
    with GzipWriter(file, level=1) as stream:
        stream.write(data[: size // 3])
        stream.write(memoryview(data)[size // 3 :])
        assert stream.tell() == size
    assert gzip.decompress(file.getvalue()) == data


def test_a_gzip_stream_is_the_same_on_any_number_of_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    data = bytes(range(256)) * 20_000
    found = []
    for cores in (1, 2, 16):
        monkeypatch.setattr(os, "cpu_count", lambda cores=cores: cores)
        file = io.BytesIO()
        with GzipWriter(file, level=6) as stream:
            stream.write(data)
        found.append(file.getvalue())
    assert found[0] == found[1] == found[2]
    assert gzip.decompress(found[0]) == data


def test_a_gzip_stream_is_the_same_however_its_bytes_come() -> None:
    data = np.random.default_rng(0).integers(0, 5, 3 * BLOCK, dtype=np.uint8).tobytes()
    found = set()
    for step in (3 * BLOCK, BLOCK, BLOCK + 1, BLOCK - 1, 100_000):
        file = io.BytesIO()
        with GzipWriter(file, level=1) as stream:
            for start in range(0, len(data), step):
                stream.write(data[start : start + step])
        found.add(file.getvalue())
    assert len(found) == 1


def test_a_gzip_stream_goes_forward_over_zeros_and_never_back() -> None:
    file = io.BytesIO()
    with GzipWriter(file, level=6) as stream:
        stream.write(b"ab")
        assert stream.seek(5) == 5
        with pytest.raises(OSError, match="cannot go back from 5 to 4"):
            stream.seek(4)
    assert gzip.decompress(file.getvalue()) == b"ab\0\0\0"
