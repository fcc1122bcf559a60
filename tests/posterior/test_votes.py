from __future__ import annotations

import io
import json
import os
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from helpers.posteriors import GRID, MASK, PARAMETERS, L, of_counts, run
from perturb_mpm.model.grid import Grid
from perturb_mpm.posterior.posterior import Posterior
from perturb_mpm.posterior.votes import FORMAT, VERSION


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    run(range(3, 40)).save(tmp_path / "case.npz")
    return tmp_path / "case.npz"


@pytest.mark.parametrize(
    "posterior",
    [
        run(range(3, 40)),
        run(range(5), estimator="conditional"),
        run(range(5), conditional=None, mean_field=None, label_changes=None),
        run(range(5), Grid((2, 3, 4), (0.1, 0.7, 3.3))),
        of_counts([[70000, 1], [0, 69999]]),
        of_counts([[2], [1]], parameters={"Länge": [1e-300, 0.1, None, True], "a": {"b": "∞"}}),
    ],
    ids=["all", "conditional", "bare", "no_mask", "uint32", "text"],
)
def test_what_is_saved_comes_back(tmp_path: Path, posterior: Posterior) -> None:
    posterior.save(tmp_path / "case.npz")
    assert os.listdir(tmp_path) == ["case.npz"]
    back = Posterior.load(tmp_path / "case.npz")
    assert back == posterior
    assert back.voxel_counts.dtype == posterior.voxel_counts.dtype
    assert back.entropy.tobytes() == posterior.entropy.tobytes()
    assert Posterior.load(str(tmp_path / "case.npz")) == posterior


def test_what_was_loaded_merges(saved: Path) -> None:
    assert Posterior.load(saved).merge(run(range(3))) == run(range(40))


def test_two_saves_give_the_same_bytes(
    saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("time.time", lambda: 2e9)
    again = run(range(3, 20)).merge(run(range(20, 40)))
    again.save(tmp_path / "again.npz")
    assert (tmp_path / "again.npz").read_bytes() == saved.read_bytes()
    Posterior.load(saved).save(tmp_path / "again.npz")
    assert (tmp_path / "again.npz").read_bytes() == saved.read_bytes()


def test_numpy_alone_reads_it(saved: Path) -> None:
    with np.load(saved, allow_pickle=False) as file:
        header = json.loads(file["header"].item())
        counts, mask = file["counts"], file["mask"]
    assert header["format"] == "perturb-mpm posterior"
    assert header["version"] == 1
    assert header["parameters"] == PARAMETERS
    np.testing.assert_array_equal(mask, MASK)
    assert counts.shape == (L, MASK.sum())
    assert (counts.sum(axis=0) == 37).all()


def repacked(path: Path, **changes: np.ndarray | None) -> None:
    """Write the file anew with some of its arrays changed, added, or (None) left out."""
    with np.load(path) as file:
        arrays = {name: file[name] for name in file.files}
    arrays |= changes
    np.savez(path, **{name: array for name, array in arrays.items() if array is not None})


def reheaded(path: Path, **changes: object) -> None:
    with np.load(path) as file:
        header = json.loads(file["header"].item()) | changes
    repacked(path, header=np.array(json.dumps(header)))


def test_a_file_packed_anew_by_numpy_is_still_good(saved: Path) -> None:
    repacked(saved)
    assert Posterior.load(saved) == run(range(3, 40))


def counts_with(change: Callable[[np.ndarray], object]) -> np.ndarray:
    counts = np.array(run(range(3, 40)).voxel_counts)
    change(counts)
    return counts


def one_vote_less(counts: np.ndarray) -> None:
    counts[0, 2] -= 1


def one_voxel_swapped(counts: np.ndarray) -> None:
    counts[:, 4] = counts[::-1, 4]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"counts": counts_with(one_vote_less)}, "counts must .* sum to the 37 samples"),
        ({"counts": counts_with(one_voxel_swapped)}, "volumes must .* what its votes amount to"),
        ({"counts": np.zeros((L, 5), np.uint16)}, r"counts must be .* got shape \(3, 5\)"),
        ({"counts": np.zeros(7, np.uint16)}, r"counts must be .* got shape \(7,\)"),
        ({"counts": np.zeros((L, MASK.sum()))}, "counts must be integers, got dtype float64"),
        ({"counts": None}, "counts cannot be read"),
        ({"volumes": np.zeros((37, L))}, "volumes must be"),
        ({"volumes": np.zeros((36, L))}, r"volumes must be \(37 samples, 3 labels\)"),
        ({"sample_index": np.arange(37)[::-1]}, "sample_index must be increasing"),
        ({"sample_index": np.arange(36)}, "sum to the 36 samples"),
        ({"mask": np.zeros((4, 5), bool)}, "mask must contain at least one voxel"),
        ({"mask": np.ones((4, 4), bool)}, r"mask must have the image's shape \(4, 5\)"),
        ({"mask": None}, "mask cannot be read"),
        ({"mean_field": None}, "mean_field cannot be read"),
        ({"conditional": np.zeros((L, MASK.sum()), int)}, "conditional must .* sum to"),
        ({"mean_field": np.ones((L, MASK.sum()))}, "mean_field must .* sum to"),
        ({"label_changes": np.full(37, 2.0)}, "label_changes must lie between 0 and 1"),
        ({"label_changes": np.array(["a"] * 37)}, "label_changes must be a numeric array"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else "",
)
def test_what_does_not_fit_together_is_refused(
    saved: Path, changes: dict[str, np.ndarray | None], message: str
) -> None:
    repacked(saved, **changes)
    with pytest.raises(ValueError, match=f"case.npz is damaged: .*{message}"):
        Posterior.load(saved)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"version": 2}, "is of version 2 .* reads version 1: use"),
        ({"version": "1"}, "is not a posterior of perturb-mpm: its format is .* version '1'"),
        ({"format": "another"}, "is not a posterior of perturb-mpm: its format is 'another'"),
        ({"arrays": ["counts"]}, r"is damaged: its header names the arrays \['counts'\]"),
        ({"arrays": None}, "is damaged: its header names the arrays None"),
        ({"shape": [4]}, "is damaged: "),
        ({"shape": 4}, "is damaged: "),
        ({"spacing": [1.0, -1.0]}, "is damaged: spacing must be"),
        ({"estimator": "guess"}, "is damaged: estimator must be one of votes, conditional"),
        ({"parameters": 3}, "is damaged: parameters must be a dict, got int"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else "",
)
def test_headers_of_other_versions_and_formats_are_refused(
    saved: Path, changes: dict[str, object], message: str
) -> None:
    reheaded(saved, **changes)
    with pytest.raises(ValueError, match=f"case.npz {message}"):
        Posterior.load(saved)


def as_text(path: Path) -> None:
    path.write_text("not a posterior")


def as_nothing(path: Path) -> None:
    path.write_bytes(b"")


def as_other_arrays(path: Path) -> None:
    np.savez(path, a=np.zeros(3))


def as_one_array(path: Path) -> None:
    with path.open("wb") as file:
        np.save(file, np.zeros(3))


def as_no_header(path: Path) -> None:
    repacked(path, header=None)


def as_strange_header(path: Path) -> None:
    repacked(path, header=np.zeros(2))


def as_list_header(path: Path) -> None:
    repacked(path, header=np.array("[]"))


@pytest.mark.parametrize(
    "spoil",
    [
        as_text,
        as_nothing,
        as_other_arrays,
        as_one_array,
        as_no_header,
        as_strange_header,
        as_list_header,
    ],
)
def test_foreign_files_are_refused(saved: Path, spoil: Callable[[Path], None]) -> None:
    spoil(saved)
    with pytest.raises(ValueError, match=r"case\.npz is not a posterior of perturb-mpm: it"):
        Posterior.load(saved)


def test_a_header_that_lacks_an_entry_is_refused(saved: Path) -> None:
    header = {
        "format": FORMAT,
        "version": VERSION,
        "arrays": ["counts", "sample_index", "volumes"],
    }
    repacked(saved, header=np.array(json.dumps(header)))
    with pytest.raises(ValueError, match=r"case\.npz is damaged: its header has no 'shape'"):
        Posterior.load(saved)


def test_pickles_are_never_opened(saved: Path) -> None:
    repacked(saved, header=np.array([{"format": "x"}], dtype=object))
    with pytest.raises(ValueError, match=r"header cannot be read .*numbers or text, got object"):
        Posterior.load(saved)


def test_a_missing_file_is_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="nowhere"):
        Posterior.load(tmp_path / "nowhere.npz")


def test_a_file_cut_short_anywhere_is_refused(saved: Path) -> None:
    whole = saved.read_bytes()
    for length in range(0, len(whole), 7):
        saved.write_bytes(whole[:length])
        with pytest.raises(ValueError, match=r"case\.npz is (damaged|not a posterior)"):
            Posterior.load(saved)


def test_a_changed_byte_is_refused_or_changes_nothing(saved: Path) -> None:
    whole = saved.read_bytes()
    good = Posterior.load(saved)
    refused = harmless = 0
    for place in range(0, len(whole), 3):
        spoiled = bytearray(whole)
        spoiled[place] ^= 1 << place % 8
        saved.write_bytes(spoiled)
        try:
            loaded = Posterior.load(saved)
        except ValueError as error:
            refused += "case.npz is" in str(error)
        else:
            # Dates and permissions of a zip file's entries may change without a loss.
            assert loaded == good
            harmless += 1
    assert refused + harmless == len(range(0, len(whole), 3))
    assert refused > 3 * harmless


@pytest.mark.parametrize("kind", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_compressions_it_never_writes_are_refused(saved: Path, kind: int) -> None:
    with zipfile.ZipFile(saved) as archive:
        entries = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(saved, "w", kind) as archive:
        for name, content in entries.items():
            archive.writestr(name, content)
    with pytest.raises(ValueError, match=r"damaged.*: header cannot be read \(compression type"):
        Posterior.load(saved)


def test_a_save_that_fails_leaves_the_old_file(
    saved: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = saved.read_bytes()
    real = np.lib.format.write_array

    def full_disk(file: io.BytesIO, array: np.ndarray, **options: bool) -> None:
        if array.dtype == np.float64:
            raise OSError("No space left on device")
        real(file, array, **options)

    monkeypatch.setattr(np.lib.format, "write_array", full_disk)
    with pytest.raises(OSError, match="No space left"):
        run(range(2)).save(saved)
    with pytest.raises(OSError, match="No space left"):
        run(range(2)).save(saved.with_name("new.npz"))
    assert saved.read_bytes() == before
    assert os.listdir(saved.parent) == ["case.npz"]


def test_a_file_that_is_refused_is_left_as_it_is(saved: Path) -> None:
    saved.write_bytes(saved.read_bytes()[:-9])
    before = saved.read_bytes()
    with pytest.raises(ValueError, match="damaged"):
        Posterior.load(saved)
    assert saved.read_bytes() == before


@pytest.mark.parametrize("name", ["case", "case.npy", "case.npz.gz"])
def test_the_name_must_say_what_it_is(tmp_path: Path, name: str) -> None:
    with pytest.raises(ValueError, match=f"path must end in .npz, got '{name}'"):
        run(range(2)).save(tmp_path / name)
    assert os.listdir(tmp_path) == []


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="nowhere"):
        run(range(2)).save(tmp_path / "nowhere" / "case.npz")


def test_a_grid_with_a_mask_keeps_only_what_is_inside(tmp_path: Path) -> None:
    posterior = run(range(5))
    posterior.save(tmp_path / "case.npz")
    back = Posterior.load(tmp_path / "case.npz")
    assert back.voxel_counts.shape == (L, GRID.voxels)
    np.testing.assert_array_equal(back.counts, posterior.counts)
