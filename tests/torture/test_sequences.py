"""What people and accidents do to one folder, in short; and controls that mixed files are seen."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from lab.torture.attack import Finding, Trial, attempt
from lab.torture.sequences import (
    EVERY,
    Undisturbed,
    prepare_corrections,
    prepare_sequences,
    quick_steps,
    update,
)
from perturb_mpm.storage import DamagedError
from perturb_mpm.view import open_session
from perturb_mpm.view.correction import CorrectionFiles

SEED = 7


@pytest.fixture(scope="module")
def sequences(tmp_path_factory: pytest.TempPathFactory) -> Trial:
    return prepare_sequences(tmp_path_factory.mktemp("sequences"))


def find_fault(trial: Trial, trials: int, folder: Path) -> Finding:
    """Make trials up to the first fault."""
    finding = Finding()
    for number in range(trials):
        folder.mkdir()
        finding = attempt(trial, "sequences", SEED, number, folder)
        shutil.rmtree(folder)
        if finding.kind:
            break
    return finding


def test_every_file_belongs_to_one_run_and_one_revision(sequences: Trial, tmp_path: Path) -> None:
    finding = find_fault(sequences, 4, tmp_path / "trial")
    assert not finding.kind, finding.words


def test_killed_corrections_leave_one_set(tmp_path: Path) -> None:
    (tmp_path / "known").mkdir()
    finding = find_fault(prepare_corrections(tmp_path / "known"), 12, tmp_path / "trial")
    assert not finding.kind, finding.words


def forget_most(layout: Any) -> None:
    (layout.state / "run.json").unlink(missing_ok=True)
    (layout.state / "posterior.npz").unlink(missing_ok=True)


MISTAKES: dict[str, tuple[str, Callable[..., Any]]] = {
    "files stay": ("perturb_mpm.run.running.clear", forget_most),
    "no lock": ("perturb_mpm.view.session.lock_run", lambda _: None),
    "no revision": ("perturb_mpm.view.session.ConflictError", OSError),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_found(
    sequences: Trial, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mistake: str
) -> None:
    monkeypatch.setattr(*MISTAKES[mistake])
    assert find_fault(sequences, 8, tmp_path / "trial").kind


def test_a_correction_without_a_switch_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "known").mkdir()
    trial = prepare_corrections(tmp_path / "known")
    monkeypatch.setattr(CorrectionFiles, "recover", finish_all)
    assert find_fault(trial, 40, tmp_path / "trial").kind in ("mixed", "traceback")


def finish_all(files: CorrectionFiles) -> None:
    """Take every staged file for current, whatever the manifest says."""
    for staged in (files.run.folder / "state").glob("new-*"):
        state = "state" if staged.name == "new-correction.npz" else ""
        staged.replace(files.run.folder / state / staged.name.removeprefix("new-"))


def test_an_edit_of_what_is_certain_is_no_stale_correction(tmp_path: Path) -> None:
    """Nothing moves, so that the correction has no voxels; its files are whole all the same."""
    with quick_steps():
        known = Undisturbed(tmp_path)
        known.start(EVERY[0], tmp_path / "out")
        with closing(open_session(tmp_path / "out")) as session:
            labels, marginals = session.run.labels, session.run.marginals
            certain = int(marginals.max(axis=0).argmax())
            assert not update(session, ((certain, int(labels.flat[certain])),))
        with closing(open_session(tmp_path / "out")) as session:
            assert len(session.shown.edits) == 1
            assert not session.shown.stale


@pytest.mark.parametrize("name", ["case.npz", "samples.npz", "snapshots.npz", "posterior.npz"])
def test_a_file_that_a_power_cut_emptied_is_told_and_mended(tmp_path: Path, name: str) -> None:
    with quick_steps():
        known = Undisturbed(tmp_path)
        known.start(EVERY[0], tmp_path / "out")
        path = tmp_path / "out" / "state" / name
        whole = path.read_bytes()
        path.write_bytes(b"")
        with pytest.raises((DamagedError, ValueError), match="damaged"):
            open_session(tmp_path / "out")
        how = "resume" if name == "case.npz" else "overwrite"
        known.start(EVERY[0], tmp_path / "out", how)
        assert path.read_bytes() == whole
