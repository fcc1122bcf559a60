"""The files of a correction: one set at a time, whatever happens while it is written."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import nibabel as nib
import numpy as np
import pytest

from helpers.viewer_run import copy_run
from perturb_mpm.files import Geometry, LabelScheme
from perturb_mpm.run import OutputError, Run, load_run, run_case
from perturb_mpm.storage import DamagedError
from perturb_mpm.view import correction as saving
from perturb_mpm.view.correction import (
    FILES,
    Correction,
    CorrectionFiles,
    Edits,
    EditsError,
    EditsFile,
)

ONE_EDIT = '{"format": 1, "run": "digest", "edits": [{"order": 1, "voxel": %s, "new_label": %d}]}'
OLD: Edits = {5000: 1, 5001: 1}
NEW: Edits = {5001: 2, 6000: 2, 7000: 1}


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    def write_page(page: Run, warnings: list[str]) -> str:
        page.files["report"].write_text(f"<p>{warnings[0]}</p>")
        return "answer"

    monkeypatch.setattr(saving, "write_page", write_page)
    return load_run(copy_run(tmp_path / "case"))


def save(run: Run, edits: Edits) -> None:
    index = np.array(sorted(edits))
    given = np.array([edits[int(voxel)] for voxel in index])
    correction = Correction(index, (np.arange(3)[:, np.newaxis] == given).astype(np.float64))
    CorrectionFiles(run).save(edits, correction, run)


def contents(run: Run) -> dict[str, bytes]:
    """The files of the correction, and all that lies in the state folder."""
    state = [f"state/{path.name}" for path in (run.folder / "state").iterdir()]
    paths = {name: run.folder / name for name in {*FILES, *state}}
    return {name: path.read_bytes() for name, path in paths.items() if path.exists()}


def die_before(step: int, work: Callable[[], None]) -> bool:
    """Work in a process that dies before its step-th change of a file; return whether it did."""
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9
    left = step

    def count(change: Callable[..., Any]) -> Callable[..., Any]:
        def counting(*args: Any, **options: Any) -> Any:
            nonlocal left
            left -= 1
            if left < 0:
                os._exit(9)
            return change(*args, **options)

        return counting

    try:
        os.replace, os.unlink, os.fsync = count(os.replace), count(os.unlink), count(os.fsync)
        work()
    finally:
        os._exit(0)


def test_every_file_is_listed_before_it_is_there(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    named = Path.replace

    def check(source: Path, target: Path) -> Path:
        path = run.folder / "state" / "files.json"
        if target != path:
            listed = json.loads(path.read_text())["files"]
            assert target.relative_to(run.folder).as_posix() in listed
        return named(source, target)

    monkeypatch.setattr(Path, "replace", check)
    save(run, OLD)
    assert (run.folder / FILES[0]).exists()
    CorrectionFiles(run).remove()
    assert not (run.folder / FILES[0]).exists()


def test_a_run_that_begins_anew_removes_the_correction(run: Run) -> None:
    save(run, OLD)
    settings = run.settings.changed(samples=2, iterations=1)
    run_case(run.case, settings, run.folder, title="another patient", overwrite=True)
    assert not [name for name in FILES if (run.folder / name).exists()]
    assert CorrectionFiles(load_run(run.folder)).read()[0] == {}


@pytest.mark.parametrize("revert", [False, True])
def test_a_killed_save_leaves_the_old_set_or_the_new_one(run: Run, revert: bool) -> None:
    def change(run: Run) -> None:
        if revert:
            CorrectionFiles(run).remove()
        else:
            save(run, NEW)

    save(run, OLD)
    old = contents(run)
    other = replace(run, folder=run.folder.with_name("other"))
    shutil.copytree(run.folder, other.folder)
    change(other)
    new = contents(other)
    assert old != new
    found = []
    for step in range(100):
        trial = replace(run, folder=run.folder.with_name(f"trial-{step}"))
        shutil.copytree(run.folder, trial.folder)
        killed = die_before(step, partial(change, trial))
        edits, _, whole = CorrectionFiles(trial).read()
        found.append(contents(trial))
        assert found[-1] in (old, new)
        assert edits == (OLD if found[-1] == old else {} if revert else NEW)
        assert whole or not edits
        shutil.rmtree(trial.folder)
        if not killed:
            break
    assert not killed
    assert found[0] == old
    assert found[-1] == new
    switch = found.index(new)
    assert all(each == old for each in found[:switch])
    assert all(each == new for each in found[switch:])
    assert switch < len(found) - 5  # it dies between the switch and the end, too


@pytest.mark.parametrize("name", ["save_like", "write_page", "write_arrays", "write_json"])
def test_a_full_disk_changes_nothing(run: Run, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    save(run, OLD)
    old = contents(run)

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(saving, name, full)
        with pytest.raises(OSError, match="No space left"):
            save(run, NEW)
    assert contents(run) == old
    assert CorrectionFiles(run).read()[0] == OLD


def test_a_file_that_was_changed_or_lost_is_noticed(run: Run) -> None:
    assert CorrectionFiles(run).read()[0] == {}
    save(run, OLD)
    for name in FILES:
        path = run.folder / name
        if name not in (saving.EDITS, saving.MARGINALS):
            before = path.read_bytes()
            path.write_bytes(before + b" ")
            assert not CorrectionFiles(run).read()[2]
            path.write_bytes(before)
        assert CorrectionFiles(run).read()[2]
    (run.folder / saving.REPORT).unlink()
    edits, correction, whole = CorrectionFiles(run).read()
    assert edits == OLD
    assert len(correction.index) == 2
    assert not whole


def test_nothing_is_written_beside_another_run(run: Run) -> None:
    files = CorrectionFiles(run)
    (run.folder / "state" / "run.json").write_text("{}")
    before = contents(run)
    with pytest.raises(OutputError, match="contains another run"):
        files.save(OLD, Correction(np.empty(0, np.int64), np.empty((3, 0))), run)
    with pytest.raises(OutputError, match="contains another run"):
        files.remove()
    assert contents(run) == before


@pytest.mark.parametrize(
    "text", ["{", "[]", '{"format": 2, "files": {}}', '{"format": 1, "files": {"../x": "y"}}']
)
def test_a_manifest_that_makes_no_sense_is_refused(run: Run, text: str) -> None:
    (run.folder / "state" / saving.MANIFEST).write_text(text)
    with pytest.raises(DamagedError, match=r"correction\.json"):
        CorrectionFiles(run).read()


@pytest.fixture
def edits_file(tmp_path: Path) -> EditsFile:
    affine = np.array([[2.0, 0, 0, -5], [0, 3, 0, 1], [0, 0, 4, 0], [0, 0, 0, 1]])
    geometry = Geometry((3, 4, 5), affine, (2.0, 3.0, 4.0), nib.Nifti1Header())
    return EditsFile(tmp_path / "edits.json", "digest", LabelScheme((0, 4), ("a", "b")), geometry)


def test_edits_come_back_in_their_order_and_in_the_users_numbers(edits_file: EditsFile) -> None:
    assert edits_file.read() == {}
    edits = {47: 1, 3: 0}
    edits_file.write(edits, np.zeros((3, 4, 5), np.uint8))
    assert list(edits_file.read().items()) == [(47, 1), (3, 0)]
    first, second = json.loads(edits_file.path.read_text())["edits"]
    assert first == {
        "order": 1,
        "voxel": [2, 1, 2],
        "position_mm": [-1.0, 4.0, 8.0],
        "old_label": 0,
        "new_label": 4,
    }
    assert second["voxel"] == [0, 0, 3]
    edits_file.write({}, np.zeros((3, 4, 5), np.uint8))
    assert edits_file.read() == {}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "cannot be read"),
        ('{"format": 1}', "not a list of edits"),
        ('{"format": 2, "run": "digest", "edits": []}', "format must be 1, got 2"),
        ('{"format": 1, "run": "other", "edits": []}', "another run"),
        (ONE_EDIT % ("[9, 0, 0]", 4), "not a list of edits"),
        (ONE_EDIT % ("[1, 0, 0]", 3), "not a list of edits"),
    ],
)
def test_a_list_that_is_not_of_this_run_is_refused(
    edits_file: EditsFile, text: str, words: str
) -> None:
    edits_file.path.write_text(text)
    with pytest.raises(EditsError, match=words):
        edits_file.read()
