"""Files that an attack broke a reader with: each gets one short line, before memory is taken."""

from __future__ import annotations

import gzip
import json
import os
import resource
import struct
import subprocess
import sys
import textwrap
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import perturb_mpm as pm
from helpers.patient_files import image, write
from helpers.viewer_run import copy_run
from perturb_mpm.checks import LONGEST_MESSAGE, ExpectedError, in_short
from perturb_mpm.files import (
    InputError,
    Source,
    geometry_from_affine,
    read_images,
    read_table,
    read_volume,
    save_like,
)
from perturb_mpm.files.nnunet import read_dataset, read_npz
from perturb_mpm.run import StateError, load_run, read_settings
from perturb_mpm.storage import (
    DamagedError,
    largest_file,
    parse_json,
    parse_toml,
    read_arrays,
    read_json,
    write_arrays,
)
from perturb_mpm.view import open_session

HEADER_OF_VOX_OFFSET, HEADER_OF_DIM = 108, 40


def patched(path: Path, place: int, content: bytes) -> Path:
    whole = bytearray(path.read_bytes())
    whole[place : place + len(content)] = content
    path.write_bytes(bytes(whole))
    return path


def check_refused(call: Callable[[], object], words: str) -> None:
    with pytest.raises(ExpectedError, match=words) as caught:
        call()
    assert len(str(caught.value)) <= LONGEST_MESSAGE
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("offset", [np.inf, -np.inf, np.nan, -8.0, 1e18])
def test_voxels_that_begin_nowhere(tmp_path: Path, offset: float) -> None:
    path = write(tmp_path / "t1.nii", image(1))
    patched(path, HEADER_OF_VOX_OFFSET, struct.pack("<f", offset))
    check_refused(lambda: read_images([path]), "begin at byte|cannot convert float|vox offset")


@pytest.mark.parametrize("axis", [1, 2, 3])
def test_shapes_below_one(tmp_path: Path, axis: int) -> None:
    path = write(tmp_path / "t1.nii", image(1))
    patched(path, HEADER_OF_DIM + 2 * axis, struct.pack("<h", -4))
    check_refused(lambda: read_images([path]), "must have 3 or 4 axes")


def test_a_small_gzip_that_would_fill_the_memory(tmp_path: Path) -> None:
    """Two megabytes that unpack to 2.4 GB of voxels are refused before they are unpacked."""
    header = bytearray(write(tmp_path / "t1.nii", image(1)).read_bytes()[:352])
    header[HEADER_OF_DIM : HEADER_OF_DIM + 16] = struct.pack("<8h", 3, 840, 840, 840, 1, 1, 1, 1)
    path = tmp_path / "bomb.nii.gz"
    with path.open("wb") as raw, gzip.GzipFile(fileobj=raw, mode="wb", compresslevel=1) as file:
        file.write(bytes(header))
    with path.open("ab") as raw:
        os.truncate(raw.fileno(), 3 << 20)  # as large as the whole of it would be
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    check_refused(lambda: read_images([path]), "would take 2.37 GB unpacked, more than the 2.15 GB")
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100_000  # kB


def test_a_user_may_raise_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    assert largest_file() == 2 << 30
    monkeypatch.setenv("PERTURB_MPM_LARGEST_FILE_GB", "8")
    assert largest_file() == 8 * 10**9
    for nonsense in ("", "much", "-1", "inf", "nan"):
        monkeypatch.setenv("PERTURB_MPM_LARGEST_FILE_GB", nonsense)
        assert largest_file() == 2 << 30


def test_a_gzip_that_goes_on_after_its_voxels(tmp_path: Path) -> None:
    whole = write(tmp_path / "t1.nii", image(1)).read_bytes()
    path = tmp_path / "long.nii.gz"
    path.write_bytes(gzip.compress(whole + bytes(65 << 20), 1))
    check_refused(lambda: read_images([path]), "more than 64 MiB follow its voxels")


NHDR = "NRRD0004\ntype: uchar\ndimension: 3\nsizes: 4 4 4\nencoding: raw\ndata file: v.raw\n\n"
MHD = "NDims = 3\nDimSize = 4 4 4\nElementType = MET_UCHAR\n{more}ElementDataFile = {file}\n"


@pytest.mark.parametrize("ending", [".nhdr", ".mhd", ".mha", ".mgh"])
def test_voxels_with_gigabytes_behind_them_take_no_memory(tmp_path: Path, ending: str) -> None:
    path, data = tmp_path / f"v{ending}", tmp_path / "v.raw"
    data.write_bytes(bytes(64))
    if ending == ".nhdr":
        path.write_text(NHDR)
    elif ending == ".mhd":
        path.write_text(MHD.format(more="", file="v.raw"))
    elif ending == ".mha":
        data = path
        header = MHD.format(more="CompressedData = True\n", file="LOCAL").encode()
        path.write_bytes(header + zlib.compress(bytes(64)))
    else:
        data = path
        grid = geometry_from_affine((4, 4, 4), np.eye(4))
        save_like(path, np.zeros((4, 4, 4), np.uint8), grid)
    assert voxel_count(path) == 64
    os.truncate(data, 4 << 30)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    check_refused(lambda: voxel_count(path), "more than 64 MiB follow its voxels")
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200_000  # kB


def voxel_count(path: Path) -> int:
    return read_volume(Source("images", path)).voxels.size


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no pipes here")
def test_pipes_and_devices_are_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.nii")
    for path in (tmp_path / "pipe.nii", Path("/dev/zero")):
        check_refused(
            lambda path=path: read_images([path]), "must be a file, got a pipe or a device"
        )
    check_refused(
        lambda: read_json(tmp_path / "pipe.nii"), "must be a file, got a pipe or a device"
    )


def npz(path: Path, members: dict[str, bytes], kind: int = zipfile.ZIP_DEFLATED) -> Path:
    with zipfile.ZipFile(path, "w", kind) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return path


def npy(header: str, content: bytes = b"") -> bytes:
    text = header.encode()
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text + content


CLAIM = "{'descr': '<f4', 'fortran_order': False, 'shape': (3, 900, 900, 900)}\n"
BROKEN_ARRAYS = {
    "a member without .npy": ({"probabilities": b"nothing"}, "a member is no array"),
    "no header": ({"probabilities.npy": b""}, "a member is no array"),
    "a broken header": ({"probabilities.npy": npy("{'descr': (((")}, "cannot be read"),
    "a header of Python 2": (
        {"probabilities.npy": npy("{'descr':'<f4','fortran_order':False,'shape':(3L,)}")},
        "cannot be read",
    ),
    "a header that nests": ({"probabilities.npy": npy("[" * 9000)}, "cannot be read"),
    "no shape": ({"probabilities.npy": npy("{'descr': '<f4'}")}, "lacks 'shape'"),
    "a claim of 3 × 900³": ({"probabilities.npy": npy(CLAIM)}, "has 0 bytes, but its header says"),
    "a negative shape": (
        {"probabilities.npy": npy(CLAIM.replace("3,", "-3,"))},
        r"an array has the shape \(-3,",
    ),
    "a shape of booleans": (
        {"probabilities.npy": npy(CLAIM.replace("3,", "True,"))},
        "an array has the shape",
    ),
    "an endless shape": (
        {"probabilities.npy": npy(CLAIM.replace("900", "9" * 400))},
        "but its header says",
    ),
    "fields": (
        {"probabilities.npy": npy(CLAIM.replace("'<f4'", "[('a', '<f4')]"))},
        "must hold one number each, got fields",
    ),
    "dates": ({"probabilities.npy": npy(CLAIM.replace("<f4", "<M8[s]"))}, "numbers or text"),
    "letters that are none": (
        {"probabilities.npy": npy(CLAIM.replace("<f4", "<U1").replace("3, 900, 900, 900", "1,"),
                                  b"\xff\xff\xff\xff")},
        "numbers that are no characters",
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", BROKEN_ARRAYS)
def test_arrays_that_are_none(tmp_path: Path, what: str) -> None:
    members, words = BROKEN_ARRAYS[what]
    path = npz(tmp_path / "P01.npz", members)
    check_refused(lambda: read_npz(Source("probabilities", path)), words)
    check_refused(lambda: read_arrays(path), words)


@pytest.mark.parametrize("kind", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_compressions_that_no_writer_uses(tmp_path: Path, kind: int) -> None:
    path = npz(tmp_path / "P01.npz", {"probabilities.npy": b"x" * 100}, kind)
    check_refused(lambda: read_npz(Source("probabilities", path)), "compression type")


def test_an_unknown_compression(tmp_path: Path) -> None:
    path = npz(tmp_path / "a.npz", {"probabilities.npy": b"x" * 100})
    content = path.read_bytes().replace(b"\x08\x00", b"\x63\x00")
    path.write_bytes(content)
    check_refused(lambda: read_npz(Source("probabilities", path)), "compression type 99")


def test_members_of_the_same_name(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    npz(path, {"a.npy": b"1", "b.npy": b"2"})
    path.write_bytes(path.read_bytes().replace(b"b.npy", b"a.npy"))
    check_refused(lambda: read_arrays(path), "two members of the same name")


def test_arrays_that_unpack_to_more_than_they_may(tmp_path: Path) -> None:
    write_arrays(tmp_path / "a.npz", {"a": np.zeros(100_000)})
    with pytest.raises(DamagedError, match=r"would take 0.0008 GB unpacked, more than the 1e-05"):
        read_arrays(tmp_path / "a.npz", limit=10_000)
    assert read_arrays(tmp_path / "a.npz", ["b"], limit=0) == {}


STATE_FILES = ("case.npz", "samples.npz", "snapshots.npz", "posterior.npz")


@pytest.mark.parametrize("name", STATE_FILES)
@pytest.mark.parametrize(
    "spoil",
    [
        lambda path: patched(path, path.stat().st_size // 3, b"\xff" * 40),
        lambda path: path.write_bytes(path.read_bytes()[:-50]),
        lambda path: path.write_bytes(b""),
        lambda path: path.unlink(),
        lambda path: npz(path, {"a": b"b"}),
        lambda path: write_arrays(path, {"a": np.zeros(3)}),
        lambda path: path.write_bytes(path.read_bytes().replace(b"\x08\x00", b"\x63\x00")),
    ],
    ids=["bytes", "end", "empty", "gone", "foreign", "other arrays", "compression"],
)
def test_states_that_cannot_be_read(
    tmp_path: Path, name: str, spoil: Callable[[Path], object]
) -> None:
    folder = copy_run(tmp_path / "case")
    spoil(folder / "state" / name)
    with pytest.raises(StateError) as caught:
        load_run(folder)
    assert len(str(caught.value)) <= LONGEST_MESSAGE


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("affine", lambda array: array[:, :3]),
        ("affine", lambda array: np.where(np.eye(4) == 1, np.inf, array)),
        ("mask", lambda array: array[1:]),
        ("images", lambda array: array[:, :, 1:]),
        ("images", lambda array: array[:0]),
        ("probabilities", lambda array: array[:, 1:]),
        ("probabilities", lambda array: array[1:]),
        ("probabilities", lambda array: array / 2),
        ("probabilities", lambda array: 2 * array - array.mean(axis=0)),
    ],
)
def test_a_state_whose_arrays_do_not_fit_each_other(
    tmp_path: Path, name: str, change: Callable[[np.ndarray], np.ndarray]
) -> None:
    folder = copy_run(tmp_path / "case")
    path = folder / "state" / "case.npz"
    with np.load(path) as file:
        arrays = dict(file)
    write_arrays(path, {**arrays, name: change(arrays[name])})
    with pytest.raises(StateError, match=r"holds a damaged run: .* must be "):
        load_run(folder)


@pytest.mark.parametrize("place", ["../../elsewhere.json", "/etc/hostname"])
def test_a_state_that_leads_out_of_its_folder(tmp_path: Path, place: str) -> None:
    folder = copy_run(tmp_path / "case")
    state = folder / "state" / "run.json"
    content = json.loads(state.read_text())
    content["about"]["files"]["summary"] = place
    state.write_text(json.dumps(content))
    check_refused(lambda: load_run(folder), "its files must lie in its folder")


TEXTS = {
    "infinity": '{"labels": Infinity}',
    "not a number": '{"labels": NaN}',
    "too large a number": '{"labels": 1e999}',
    "nested": "[" * 100_000,
    "a number of a million digits": "1" * 10**6,
    "half a character": '{"labels": "\ud800"}',
    "nothing": "",
}


@pytest.mark.parametrize("what", TEXTS)
def test_json_that_is_none(tmp_path: Path, what: str) -> None:
    path = tmp_path / "dataset.json"
    path.write_text(TEXTS[what], encoding="utf-8", errors="surrogatepass")
    check_refused(lambda: read_dataset(Source("dataset_json", path)), "is not JSON")
    check_refused(lambda: parse_json(path.read_bytes(), "it"), "it cannot be read")


@pytest.mark.parametrize("value", ["[[[1]]]", '{"a": {}}', "[null]", '{"a": [1, [2]]}', "[1e300]"])
def test_datasets_of_another_form(tmp_path: Path, value: str) -> None:
    path = tmp_path / "dataset.json"
    path.write_text(f'{{"labels": {{"a": {value}, "b": 1}}}}')
    with pytest.raises(InputError):
        read_dataset(Source("dataset_json", path))


@pytest.mark.parametrize("what", [*TEXTS, "other"])
def test_edits_that_cannot_be_read(tmp_path: Path, what: str) -> None:
    folder = copy_run(tmp_path / "case")
    text = TEXTS.get(what, '{"format": 1, "run": [[]], "edits": {"a": 1e300}}')
    (folder / "edits.json").write_text(text, encoding="utf-8", errors="surrogatepass")
    check_refused(lambda: open_session(folder), "edits")


@pytest.mark.parametrize(
    "text", ["a = " + "[" * 50_000, "a = " + "{a=" * 5_000, "[" + "a." * 90_000 + "b]\n", "\ud800"]
)
def test_toml_that_nests_too_deeply(tmp_path: Path, text: str) -> None:
    path = tmp_path / "settings.toml"
    path.write_text(text, encoding="utf-8", errors="surrogatepass")
    with pytest.raises(ValueError, match=r"settings.toml") as caught:
        read_settings(path)
    assert len(str(caught.value)) <= LONGEST_MESSAGE
    check_refused(lambda: parse_toml("a = " + "[" * 50_000, "it"), "it is nested too deeply")
    for key in ("a.", "a .\t", '"a".'):
        check_refused(
            lambda key=key: parse_toml(key * 40_000 + "a=1", "it"), "it is nested too deeply"
        )
    assert parse_toml("a = [" + "0.1, " * 1000 + "0.1]", "it")["a"][0] == 0.1


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("case,labels\na,{long}\n", "line 2 is no CSV|at most 4096 characters"),
        ("case,labels\na,b,c,d\n", "must have 2 fields like the heading, got 4"),
        ("case,labels\na,\0\n", "line"),
        ("case,labels\n\"a,b\n", "no CSV"),
        ("{long}\n", "must have the columns|no CSV|at most 4096"),
        ("case,labels" + ",x" * 50_000 + "\n", "must name every column once"),
    ],
)  # fmt: skip
def test_tables_that_are_none(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "cases.csv"
    path.write_text(text.replace("{long}", "x" * 200_000))
    check_refused(
        lambda: read_table(Source("data", path), ("case", "labels"), prefix=""), words
    )  # fmt: skip


def test_a_table_with_a_byte_order_mark(tmp_path: Path) -> None:
    (tmp_path / "cases.csv").write_bytes(b"\xef\xbb\xbfcase,labels\r\na,b.nii\r\n")
    (row,) = read_table(Source("data", tmp_path / "cases.csv"), ("case", "labels"))
    assert row.fields == {"case": "a", "labels": "b.nii"}


def test_posteriors_that_claim_too_much(tmp_path: Path) -> None:
    path = npz(tmp_path / "a.npz", {"header.npy": npy(CLAIM), "counts.npy": b""})
    with pytest.raises(ValueError, match=r"a.npz is damaged"):
        pm.Posterior.load(path)


def test_long_messages_are_cut_in_their_middle() -> None:
    assert in_short("abc", 10) == "abc"
    assert in_short("a" * 100 + "b" * 100, 30) == "a" * 17 + " … " + "b" * 10
    assert len(str(ExpectedError("x" * 10**6))) == LONGEST_MESSAGE


@pytest.mark.skipif(sys.platform != "linux", reason="memory is limited by Linux here")
def test_want_of_memory_is_told_in_one_line(tmp_path: Path) -> None:
    """The same bytes that are refused for their size are refused where there is no memory."""
    np.savez_compressed(tmp_path / "a.npz", a=np.zeros(10**8))
    script = textwrap.dedent(f"""
        import resource
        from pathlib import Path
        from perturb_mpm.storage import DamagedError, read_arrays
        resource.setrlimit(resource.RLIMIT_AS, (600 << 20, 600 << 20))
        try:
            read_arrays(Path({str(tmp_path / "a.npz")!r}))
        except DamagedError as error:
            print(error)
    """)
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", script], check=False, capture_output=True, text=True, env=environment
    )
    assert done.stdout.strip().endswith("not enough memory for it)"), done.stderr


def test_a_qform_that_is_no_rotation_beside_a_good_sform(tmp_path: Path) -> None:
    path = write(tmp_path / "t1.nii", image(1))
    patched(path, 252, struct.pack("<hhfff", 1, 1, 0.9, 0.9, 0.9))
    (warning,) = (words for words in read_images([path]).warnings if "qform" in words)
    assert "the sform is used" in warning


def test_settings_with_an_endless_key(tmp_path: Path) -> None:
    (tmp_path / "settings.toml").write_text(f"{'x' * 5000} = 1")
    check_refused(lambda: read_settings(tmp_path / "settings.toml"), "unknown key")


def test_members_whose_names_differ_are_told_in_short(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    write_arrays(path, {"header": np.arange(9)})
    content = path.read_bytes()
    path.write_bytes(content.replace(b"\x0a\x00", b"\xff\x00", 1))  # the length of the first name
    with pytest.raises(ValueError, match=r"a.npz") as caught:
        pm.Posterior.load(path)
    assert len(str(caught.value)) <= LONGEST_MESSAGE


def test_an_image_as_wide_as_float32(tmp_path: Path) -> None:
    voxels = image(1)
    voxels.flat[:2] = 3e38, -3e38
    with np.errstate(all="raise"):
        assert read_images([write(tmp_path / "t1.nii", voxels)]).images


def test_a_dicom_header_whose_length_is_no_number(tmp_path: Path) -> None:
    """pydicom raises an error of its own, which is nothing but an exception."""
    pytest.importorskip("pydicom", reason="the extra dicom is not installed")
    from helpers.dicom_series import write_series
    from perturb_mpm.files.dicom import read_series

    folder = write_series(tmp_path / "series")
    file = folder / "IM001.dcm"
    content = bytearray(file.read_bytes())
    content[138:140] = b"\x02\x00"  # the length of the length of the first group
    file.write_bytes(content)
    check_refused(lambda: read_series(folder), "`dicom_series`")


def test_a_deflated_dicom_header_is_measured_before_it_is_unpacked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pydicom = pytest.importorskip("pydicom", reason="the extra dicom is not installed")
    from helpers.dicom_series import write_series
    from perturb_mpm.files.dicom import read_series

    folder = write_series(tmp_path / "series")
    one = pydicom.dcmread(folder / "IM001.dcm")
    one.file_meta.TransferSyntaxUID = pydicom.uid.DeflatedExplicitVRLittleEndian
    one.ImageComments = "x" * 1000
    one.save_as(folder / "IM001.dcm", enforce_file_format=True)
    read_series(folder)
    monkeypatch.setenv("PERTURB_MPM_LARGEST_FILE_GB", "0.0001")
    check_refused(lambda: read_series(folder), "more than the 0.0001 GB")
