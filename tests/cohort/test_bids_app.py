"""``perturb-mpm bids``: six layouts through both levels, and what is refused."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import nibabel as nib
import numpy as np
import pytest

from helpers.bids_data import LABELS, errors_in, require_validator, write_dataset
from helpers.small_case import call
from perturb_mpm.cohort import BidsRequest, find_bids_cases

FEW = ["--samples", "4", "--iterations", "1", "--n-cpus", "1", "--quiet"]
# Cases, pipelines, ending, and the options that choose among the pipelines.
LAYOUTS = {
    "plain": (("sub-01", "sub-02"), ("nnunet",), ".nii.gz", []),
    "sessions": (("sub-01_ses-pre", "sub-01_ses-post"), ("nnunet",), ".nii.gz", []),
    "runs": (("sub-01_run-1", "sub-01_run-2"), ("nnunet",), ".nii.gz", []),
    "ensemble": (("sub-01", "sub-02"), ("a", "b"), ".nii.gz", ["--derivatives", "a", "b"]),
    "one-of-two": (("sub-01", "sub-02"), ("a", "b"), ".nii.gz", ["--derivatives", "b"]),
    "nii": (("sub-01", "sub-02"), ("nnunet",), ".nii", []),
}


def files_in(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def group_rows(out: Path) -> dict[str, dict[str, str]]:
    with (out / "group.tsv").open(encoding="utf-8") as file:
        return {row["case"]: row for row in csv.DictReader(file, delimiter="\t")}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts_through_participant_and_group(layout: str, tmp_path: Path) -> None:
    cases, pipelines, ending, chosen = LAYOUTS[layout]
    data = write_dataset(tmp_path / "data", cases, pipelines, ending)
    before, out = files_in(data), tmp_path / "out"
    assert call("bids", str(data), str(out), "participant", *chosen, *FEW) == 0
    for case in cases:
        folders = [each for each in case.split("_") if not each.startswith("run-")]
        anat = out.joinpath(*folders, "anat")
        labels = nib.load(anat / f"{case}_space-orig_seg-pmpm_dseg.nii.gz")
        same = nib.load(out / "runs" / case / "labels.nii.gz")
        np.testing.assert_array_equal(labels.get_fdata(), same.get_fdata())
        marginals = json.loads((anat / f"{case}_space-orig_seg-pmpm_probseg.json").read_text())
        assert tuple(marginals["LabelMap"]) == LABELS
        ensemble = list(anat.glob(f"{case}_*mutualinformation_map.nii.gz"))
        assert bool(ensemble) == (layout == "ensemble")
    assert call("bids", str(data), str(out), "group", "--quiet") == 0
    assert {case: row["status"] for case, row in group_rows(out).items()} == dict.fromkeys(
        cases, "done"
    )
    page = (out / "group.html").read_text()
    links = (f'href="runs/{case}/report.html#back=../../group.html"' for case in cases)
    assert all(link in page for link in links)
    assert files_in(data) == before  # the dataset is only read
    again = files_in(out)
    assert call("bids", str(data), str(out), "participant", *chosen, *FEW) == 0
    assert {k: v for k, v in files_in(out).items() if "cohort" not in k} == {
        k: v for k, v in again.items() if "cohort" not in k
    }


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_validator_finds_no_error(layout: str, tmp_path: Path) -> None:
    require_validator()
    cases, pipelines, ending, chosen = LAYOUTS[layout]
    data, out = write_dataset(tmp_path / "data", cases, pipelines, ending), tmp_path / "out"
    assert call("bids", str(data), str(out), "participant", *chosen, *FEW) == 0
    assert call("bids", str(data), str(out), "group", "--quiet") == 0
    assert errors_in(out) == []


def test_the_runs_of_a_session_have_images_of_their_own(tmp_path: Path) -> None:
    data = write_dataset(tmp_path / "data", ("sub-01_run-1", "sub-01_run-2"))
    first, second = find_bids_cases(BidsRequest(data, tmp_path / "out"))
    assert [path.name for path in first.images] == [
        "sub-01_run-1_FLAIR.nii.gz",
        "sub-01_run-1_T1w.nii.gz",
    ]
    assert first.image_names == second.image_names == ("FLAIR", "T1w")
    assert second.name == "sub-01_run-2"


def test_the_usual_output_lies_in_the_dataset_and_is_never_read(tmp_path: Path) -> None:
    data = write_dataset(tmp_path / "data")
    out = data / "derivatives" / "perturb-mpm"
    assert call("bids", str(data), str(out), "participant", "--participant-label", "01", *FEW) == 0
    others = ["--participant_label", "sub-02", *FEW]
    assert call("bids", str(data), str(out), "participant", *others) == 0
    assert call("bids", str(data), str(out), "group", "--quiet") == 0
    assert sorted(group_rows(out)) == ["sub-01", "sub-02"]
    # The plain cohort reads the network's maps too, and takes no prediction for the truth.
    cohort = ["cohort", "--images", str(data), "--output", str(tmp_path / "cohort"), *FEW[:4]]
    assert call(*cohort, "--quiet") == 0
    with (tmp_path / "cohort" / "cohort.csv").open(encoding="utf-8") as file:
        assert {row["dice"] for row in csv.DictReader(file)} == {""}


def test_a_subject_without_maps_fails_alone_and_one_not_run_is_named(tmp_path: Path) -> None:
    data, out = write_dataset(tmp_path / "data", ("sub-01", "sub-02", "sub-03")), tmp_path / "out"
    for path in (data / "derivatives" / "nnunet" / "sub-02" / "anat").iterdir():
        path.unlink()
    some = ["--participant-label", "01", "02"]
    assert call("bids", str(data), str(out), "participant", *some, *FEW) == 3
    assert call("bids", str(data), str(out), "group", "--quiet") == 3
    rows = group_rows(out)
    assert [rows[f"sub-0{n}"]["status"] for n in (1, 2, 3)] == ["done", "failed", "failed"]
    assert "must have maps of sub-02, got none in nnunet" in rows["sub-02"]["error"]
    assert rows["sub-03"]["error"] == "it was not run"
    assert not (out / "sub-02").exists()


def test_maps_of_one_label_each_have_its_name(tmp_path: Path) -> None:
    data = write_dataset(tmp_path / "data", ("sub-01",))
    anat = data / "derivatives" / "nnunet" / "sub-01" / "anat"
    maps = nib.load(anat / "sub-01_space-orig_probseg.nii.gz")
    voxels = maps.get_fdata(dtype=np.float32)
    for path in anat.iterdir():
        path.unlink()
    for number, name in enumerate(("background", "aaa", "CORE")):
        one = nib.Nifti1Image(voxels[..., number], maps.affine)
        nib.save(one, anat / f"sub-01_label-{name}_probseg.nii.gz")
        nib.save(one, anat / f"sub-01_space-MNI152_label-{name}_probseg.nii.gz")
    out = tmp_path / "out"
    assert call("bids", str(data), str(out), "participant", *FEW) == 0
    summary = json.loads((out / "runs" / "sub-01" / "summary.json").read_text())
    assert [each["name"] for each in summary["labels"]] == ["background", "CORE", "aaa"]


def test_label_maps_stand_in_for_probabilities(tmp_path: Path) -> None:
    data, out = write_dataset(tmp_path / "data", ("sub-01",)), tmp_path / "out"
    for path in data.rglob("*_probseg.*"):
        path.unlink()
    how = ["--kind", "labels", *FEW]
    assert call("bids", str(data), str(out), "participant", *how) == 0
    assert (out / "sub-01" / "anat" / "sub-01_space-orig_seg-pmpm_dseg.nii.gz").is_file()


@pytest.mark.parametrize(
    ("change", "options", "words"),
    [
        ("", ["--participant-label", "01", "99"], "got 99; it has 01 02"),
        ("", ["--session-label", "pre"], "--session-label must be of images in the dataset"),
        ("two", [], "--derivatives must say which of a, b to read"),
        ("two", ["--derivatives", "c"], "--derivatives must be a folder in"),
        ("none", [], "--derivatives must have sub-…/anat/…_probseg.nii.gz, got none in no folder"),
        ("undescribed", [], "--skip-bids-validation takes the folder as it is"),
        ("", ["--n-cpus", "0"], "--n-cpus must be a number of cores"),
        ("", ["--threads", "1", "--n-cpus", "1"], "--n-cpus and --threads must not"),
    ],
)
def test_what_cannot_be_run_is_refused_before_any_work(
    change: str,
    options: list[str],
    words: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    pipelines = {"two": ("a", "b"), "none": ()}.get(change, ("nnunet",))
    data = write_dataset(tmp_path / "data", pipelines=pipelines)
    if change == "undescribed":
        (data / "dataset_description.json").unlink()
    assert call("bids", str(data), str(tmp_path / "out"), "participant", *options) == 2
    assert words in " ".join(capsys.readouterr().err.split())
    assert not (tmp_path / "out").exists()


def test_the_output_must_not_lie_among_the_images(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = write_dataset(tmp_path / "data")
    for out in (data, data / "sub-01" / "out"):
        assert call("bids", str(data), str(out), "participant", *FEW) == 2
        assert "OUTPUT_DIR must not lie among the images" in capsys.readouterr().err
    assert call("bids", str(tmp_path / "nowhere"), str(tmp_path), "group", "--quiet") == 2
    assert "BIDS_DIR must be a folder" in capsys.readouterr().err
    assert call("bids", str(data), str(tmp_path / "empty"), "group", "--quiet") == 2
    assert "OUTPUT_DIR must be a folder in which cases were run" in capsys.readouterr().err


def test_names_that_a_file_system_may_take_for_one_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = write_dataset(tmp_path / "data", ("sub-a", "sub-A"))
    if len(list(data.glob("sub-*"))) < 2:
        pytest.skip("this file system takes sub-a for sub-A")
    assert call("bids", str(data), str(tmp_path / "out"), "participant", *FEW) == 2
    assert "must hold a case once, got sub-a twice" in capsys.readouterr().err


def test_nothing_stays_published_of_a_case_that_fails_with_other_maps(tmp_path: Path) -> None:
    data, out = write_dataset(tmp_path / "data"), tmp_path / "out"
    assert call("bids", str(data), str(out), "participant", *FEW) == 0
    maps = data / "derivatives/nnunet/sub-01/anat/sub-01_space-orig_probseg.nii.gz"
    whole = maps.read_bytes()
    maps.write_bytes(whole[:500])
    assert call("bids", str(data), str(out), "participant", *FEW) == 3
    assert list((out / "sub-01" / "anat").iterdir()) == []
    assert len(list((out / "sub-02" / "anat").iterdir())) > 5
    maps.write_bytes(whole)
    (out / "runs/sub-01/labels.mine.nii.gz").write_bytes(b"a file of the user")
    assert call("bids", str(data), str(out), "participant", *FEW) == 0
    published = out / "sub-01/anat/sub-01_space-orig_seg-pmpm_dseg.nii.gz"
    assert published.read_bytes() == (out / "runs/sub-01/labels.nii.gz").read_bytes()
