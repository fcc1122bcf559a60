"""The list of a run's files: complete at any moment, and all that beginning anew removes."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from unittest import mock

import pytest

from helpers.small_case import FILES, call, content, options, read, write_files
from perturb_mpm.files import Case
from perturb_mpm.run import BidsNames, Run, load_run, register_files, run_case
from perturb_mpm.run.settings import OutputError, RunSettings

SETTINGS = RunSettings.of_paper().changed(samples=4, seed=1, iterations=1)
CORRECTED = (
    *("labels-corrected.nii.gz", "entropy-corrected.nii.gz", "report-corrected.html"),
    *("summary-corrected.json", "edits.json", "state/correction.npz"),
)
ALSO = ("labels.seg.nrrd", "labels-itksnap.txt")


@pytest.fixture(scope="module")
def patient(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("patient")
    write_files(folder)
    return folder


@pytest.fixture(scope="module")
def case(patient: Path) -> Case:
    return read(patient)


@pytest.fixture(scope="module")
def finished(case: Case, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("finished")
    run_case(case, SETTINGS, folder, title="first")
    return folder


@pytest.fixture
def earlier(finished: Path, tmp_path: Path) -> Path:
    """A finished run, as if for ``--also``, and corrected."""
    folder = tmp_path / "out"
    shutil.copytree(finished, folder)
    register_files(folder, [*ALSO, *CORRECTED])
    for name in (*ALSO, *CORRECTED):
        (folder / name).write_text("of the patient before")
    return folder


def as_nrrd(case: Case) -> Case:
    return replace(case, geometry=replace(case.geometry, ending=".nrrd"))


def files_in(folder: Path) -> set[str]:
    every = (path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
    return set(every) - {"state/lock", "state/files.json"}


def listed_in(folder: Path) -> set[str]:
    return set(json.loads((folder / "state" / "files.json").read_text())["files"])


def run_anew(case: Case, folder: Path) -> None:
    run_case(case, SETTINGS.changed(seed=2), folder, title="second", overwrite=True)


def test_every_file_is_listed_before_it_is_there(
    case: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset, named = tmp_path / "dataset", Path.replace

    def check(source: Path, target: Path) -> Path:
        folder = dataset / "sub-01"
        if target.name not in ("files.json", "dataset_description.json", ".bidsignore"):
            assert target.relative_to(folder).as_posix() in listed_in(folder)
        return named(source, target)

    monkeypatch.setattr(Path, "replace", check)
    bids = BidsNames("01")
    run_case(case, SETTINGS, dataset, title="x", bids=bids, also=("slicer", "itksnap"))
    assert listed_in(dataset / "sub-01") == files_in(dataset / "sub-01")


@pytest.mark.parametrize("error", [OSError(28, "No space left"), None])
def test_a_run_that_ends_before_it_is_named_is_begun_again(
    error: OSError | None, case: Case, tmp_path: Path
) -> None:
    """A full disk leaves nothing, a kill no more than the list."""
    if error is None:
        (tmp_path / "out" / "state").mkdir(parents=True)
        register_files(tmp_path / "out", ["state/run.json"])
    else:
        with mock.patch.object(Run, "write_start", side_effect=error), pytest.raises(OutputError):
            run_case(case, SETTINGS, tmp_path / "out", title="x")
        assert not (tmp_path / "out").exists()
    run_case(case, SETTINGS, tmp_path / "out", title="x")
    assert listed_in(tmp_path / "out") == files_in(tmp_path / "out")


def test_a_plain_run_lists_its_files_and_no_others(finished: Path) -> None:
    assert listed_in(finished) == files_in(finished)


@pytest.mark.parametrize("has_list", [True, False])
def test_beginning_anew_leaves_no_file_of_the_patient_before(
    has_list: bool, case: Case, earlier: Path
) -> None:
    (earlier / "thesis.nii.gz").write_text("mine")
    (earlier / "state" / "notes").mkdir()
    (earlier / "state" / "notes" / "a.txt").write_text("mine")
    if not has_list:  # runs had none once
        (earlier / "state" / "files.json").unlink()
    run_anew(as_nrrd(case), earlier)
    mine = {"thesis.nii.gz", "state/notes/a.txt"}
    assert files_in(earlier) - mine == listed_in(earlier)
    assert mine < files_in(earlier)
    assert {"labels.nrrd", "summary.json"} < listed_in(earlier)
    assert not {"labels.nii.gz", *ALSO, *CORRECTED} & files_in(earlier)
    assert load_run(earlier).title == "second"


def test_the_command_replaces_what_it_wrote_for_other_programs(
    patient: Path, tmp_path: Path
) -> None:
    quick = ["--samples", "4", "--iterations", "1", "--quiet", "--output", str(tmp_path / "out")]
    assert call("run", *options(patient), *quick, "--also", "slicer", "itksnap") == 0
    assert set(ALSO) < files_in(tmp_path / "out")
    assert call("run", *options(patient), *quick, "--overwrite") == 0
    assert not set(ALSO) & files_in(tmp_path / "out")


def test_a_state_folder_of_the_user_stays(case: Case, tmp_path: Path) -> None:
    (tmp_path / "state" / "texas").mkdir(parents=True)
    (tmp_path / "state" / "texas" / "map.txt").write_text("mine")
    (tmp_path / "state" / "lock").write_text("mine")
    (tmp_path / "edits.json").write_text("mine")
    run_anew(case, tmp_path)
    run_anew(case, tmp_path)
    assert (tmp_path / "state" / "texas" / "map.txt").read_text() == "mine"
    assert (tmp_path / "state" / "lock").read_text() == "mine"
    assert (tmp_path / "edits.json").read_text() == "mine"


@pytest.mark.parametrize("text", ['{"format": "other"}', "[]", "no JSON"])
@pytest.mark.parametrize("how", ["overwrite", "resume"])
def test_a_run_json_of_somebody_else_is_refused(
    text: str, how: str, case: Case, tmp_path: Path
) -> None:
    path = tmp_path / "state" / "run.json"
    path.parent.mkdir()
    path.write_text(text)
    (tmp_path / "labels.nii.gz").write_text("mine")
    with pytest.raises(OutputError, match=str(path)):
        run_case(case, SETTINGS, tmp_path, title="x", **{how: True})
    assert files_in(tmp_path) == {"state/run.json", "labels.nii.gz"}
    assert path.read_text() == text


def test_a_case_npz_of_somebody_else_is_neither_kept_nor_replaced(
    case: Case, tmp_path: Path
) -> None:
    path = tmp_path / "state" / "case.npz"
    path.parent.mkdir()
    path.write_text("mine")
    with pytest.raises(OutputError, match=str(path)):
        run_anew(case, tmp_path)
    assert path.read_text() == "mine"


def test_a_listed_run_with_a_damaged_run_json_is_replaced(case: Case, earlier: Path) -> None:
    (earlier / "state" / "run.json").write_text("{")
    run_anew(case, earlier)
    assert listed_in(earlier) == files_in(earlier)
    assert load_run(earlier).title == "second"


def test_outputs_whose_state_was_deleted_are_replaced(case: Case, earlier: Path) -> None:
    shutil.rmtree(earlier / "state")
    run_anew(as_nrrd(case), earlier)
    assert listed_in(earlier) == files_in(earlier)


def test_a_list_never_leads_out_of_the_folder(case: Case, earlier: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "a.txt").write_text("mine")
    (earlier / "linked").symlink_to(outside)
    path = earlier / "state" / "files.json"
    page = json.loads(path.read_text())
    for names in (["linked/a.txt"], ["../outside/a.txt"], [str(outside / "a.txt")]):
        path.write_text(json.dumps({**page, "files": [*page["files"], *names]}))
        run_anew(case, earlier)
        assert (outside / "a.txt").read_text() == "mine"


@pytest.mark.parametrize("name", ["state", "sub-01/anat"])
def test_a_linked_folder_is_refused(name: str, case: Case, tmp_path: Path) -> None:
    outside, link = tmp_path / "outside", tmp_path / "out" / name
    outside.mkdir()
    link.parent.mkdir(parents=True)
    link.symlink_to(outside)
    bids = BidsNames("01") if name != "state" else None
    with pytest.raises(OutputError, match="a link that leads out of it"):
        run_case(case, SETTINGS, tmp_path / "out", title="x", overwrite=True, bids=bids)
    assert list(outside.iterdir()) == []


def test_a_link_that_leads_nowhere_is_refused(case: Case, tmp_path: Path) -> None:
    (tmp_path / "out").symlink_to(tmp_path / "unmounted")
    with pytest.raises(OutputError, match="must not be a link that leads nowhere, got "):
        run_case(case, SETTINGS, tmp_path / "out", title="x")
    assert not (tmp_path / "unmounted").exists()


def test_a_folder_where_a_file_goes_is_refused(case: Case, tmp_path: Path) -> None:
    (tmp_path / "labels.nii.gz").mkdir()
    with pytest.raises(OutputError, match=r"no folder where a file goes, got .*labels\.nii\.gz"):
        run_anew(case, tmp_path)


def test_only_unfinished_files_of_the_run_are_removed(case: Case, earlier: Path) -> None:
    ours = [".labels.nii.gz.0123abcd.part", "state/.files.json.0123abcd.part"]
    mine = ".thesis.txt.0123abcd.part"
    for name in (*ours, mine, "state/part-notes.npz"):
        (earlier / name).write_text("")
    run_anew(case, earlier)
    assert {mine, "state/part-notes.npz"} < files_in(earlier)
    assert not set(ours) & files_in(earlier)


def test_beginning_anew_gives_the_bytes_of_a_new_folder(
    case: Case, earlier: Path, tmp_path: Path
) -> None:
    run_anew(case, earlier)
    run_anew(case, tmp_path / "fresh")
    assert content(earlier) == content(tmp_path / "fresh")
    assert set(FILES) < files_in(earlier) == files_in(tmp_path / "fresh")
