from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
from pathlib import Path

import nibabel as nib
import numpy as np
import pytest

from perturb_mpm.files.nifti import save_nifti
from perturb_mpm.storage.atomic import atomic_open

AFFINE = np.array(
    [[-0.9, 0.1, 0.0, 12.0], [0.1, 0.9, 0.0, -7.0], [0.0, 0.0, 3.0, 5.5], [0.0, 0.0, 0.0, 1.0]]
)


def test_a_finished_file_has_its_name_and_its_bytes(tmp_path: Path) -> None:
    with atomic_open(tmp_path / "a.bin") as file:
        file.write(b"whole")
        assert not (tmp_path / "a.bin").exists()
    assert (tmp_path / "a.bin").read_bytes() == b"whole"
    assert os.listdir(tmp_path) == ["a.bin"]


@pytest.mark.parametrize("problem", [ValueError, KeyboardInterrupt, SystemExit])
def test_a_writer_that_raises_leaves_nothing(tmp_path: Path, problem: type[BaseException]) -> None:
    with pytest.raises(problem), atomic_open(tmp_path / "a.bin") as file:
        file.write(b"half")
        raise problem
    assert os.listdir(tmp_path) == []


def test_a_writer_that_raises_leaves_the_old_file(tmp_path: Path) -> None:
    (tmp_path / "a.bin").write_bytes(b"old")
    with pytest.raises(ValueError, match="half way"), atomic_open(tmp_path / "a.bin") as file:
        file.write(b"new")
        raise ValueError("half way")
    assert (tmp_path / "a.bin").read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["a.bin"]


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_a_killed_writer_leaves_nothing_under_the_name(tmp_path: Path, how: signal.Signals) -> None:
    script = (
        "import os, sys\n"
        "from perturb_mpm.storage.atomic import atomic_open\n"
        "with atomic_open(sys.argv[1]) as file:\n"
        "    file.write(b'half')\n"
        "    file.flush()\n"
        "    os.kill(os.getpid(), int(sys.argv[2]))\n"
    )
    path = tmp_path / "a.bin"
    done = subprocess.run([sys.executable, "-c", script, path, str(int(how))], check=False)
    assert done.returncode == -how
    assert not path.exists()


def test_the_umask_decides_who_may_read(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        with atomic_open(tmp_path / "a.bin") as file:
            file.write(b"shared")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "a.bin").stat().st_mode) == 0o640


@pytest.mark.parametrize("name", ["v.nii", "v.nii.gz"])
def test_volume_and_geometry_come_back(tmp_path: Path, name: str) -> None:
    volume = np.arange(60, dtype=np.float32).reshape(3, 4, 5)
    save_nifti(tmp_path / name, volume, AFFINE, "entropy, bits")
    image = nib.load(tmp_path / name)
    np.testing.assert_array_equal(np.asanyarray(image.dataobj), volume)
    assert image.get_data_dtype() == np.float32
    np.testing.assert_allclose(image.affine, AFFINE, atol=1e-6)
    np.testing.assert_allclose(image.get_qform(), AFFINE, atol=1e-5)
    assert image.header.get_xyzt_units()[0] == "mm"
    assert image.header["descrip"].item() == b"entropy, bits"


def test_two_writes_give_the_same_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    volume = np.random.default_rng(0).random((4, 5, 6)).astype(np.float32)
    save_nifti(tmp_path / "one.nii.gz", volume, AFFINE)
    monkeypatch.setattr("time.time", lambda: 2e9)
    save_nifti(tmp_path / "two.nii.gz", volume, AFFINE)
    assert (tmp_path / "one.nii.gz").read_bytes() == (tmp_path / "two.nii.gz").read_bytes()


@pytest.mark.parametrize(
    ("given_type", "stored_type"),
    [("bool", "u1"), ("f2", "f4"), (">f8", "f8"), ("i2", "i2"), ("u4", "u4")],
)
def test_types_are_kept_where_nifti_has_them(
    tmp_path: Path, given_type: str, stored_type: str
) -> None:
    volume = (np.arange(24).reshape(2, 3, 4) % 2).astype(given_type)
    save_nifti(tmp_path / "v.nii", volume, AFFINE)
    image = nib.load(tmp_path / "v.nii")
    assert image.get_data_dtype() == np.dtype(stored_type)
    np.testing.assert_array_equal(np.asanyarray(image.dataobj), volume)


def test_a_view_that_is_not_contiguous_is_written_in_order(tmp_path: Path) -> None:
    volume = np.arange(120).reshape(4, 5, 6).astype(np.int16)[::-2, :, 1:4]
    save_nifti(tmp_path / "v.nii", volume, AFFINE)
    np.testing.assert_array_equal(np.asanyarray(nib.load(tmp_path / "v.nii").dataobj), volume)


@pytest.mark.parametrize(
    ("name", "volume", "affine", "description", "error", "message"),
    [
        ("v.img", np.zeros((2, 2, 2)), AFFINE, "", ValueError, "path must end in .nii"),
        ("v.nii", np.zeros((2, 2)), AFFINE, "", ValueError, "volume must have 3 or 4 axes"),
        ("v.nii", np.zeros((2, 2, 2), "i8"), AFFINE, "", TypeError, "got int64; convert"),
        ("v.nii", np.zeros((2, 2, 2), "c8"), AFFINE, "", TypeError, "got complex64"),
        ("v.nii", np.zeros((2, 2, 2)), np.eye(3), "", ValueError, "affine must be a finite"),
        ("v.nii", np.zeros((2, 2, 2)), np.eye(4) * np.nan, "", ValueError, "must be a finite"),
        ("v.nii", np.zeros((2, 2, 2)), np.zeros((4, 4)), "", ValueError, "must be invertible"),
        ("v.nii", np.zeros((2, 2, 2)), AFFINE, "x" * 80, ValueError, "at most 79 bytes, got 80"),
    ],
)
def test_what_cannot_be_stored_is_refused_before_a_file_is_made(
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
