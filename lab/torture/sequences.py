"""Random sequences of what happens to the folder of a run, and kills of corrections.

A sequence runs patients, overwrites, resumes, opens one viewer or two, edits, undoes and updates;
processes are killed and disks fill at any write, files come out of a power cut without bytes.
After every step all files of the folder must belong to one run and one revision of its correction:
the folder says which, and every byte is compared with what these give in a folder of their own.

Pages are one line here and nothing waits for the disk, so that a step takes milliseconds.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from functools import cache, partial
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple
from unittest import mock

import numpy as np

from lab.torture.attack import NOTE, Attack, Finding, Trial
from lab.torture.interruptions import AtChange, kill_self, refuse_space
from perturb_mpm.checks import ExpectedError
from perturb_mpm.files import Case, Program, read_case, save_nifti
from perturb_mpm.run import Run, RunSettings, run_case
from perturb_mpm.view import Session, open_session

STEPS = 25  # of one sequence
_SHAPE = (6, 5, 4)
QUICK_SETTINGS = RunSettings().changed(samples=4, iterations=2, engine="reference", threads=1)
_CHANGES = 90  # of the disk, about as many as one step makes at most
_VOXELS = (31, 32, 57)  # that are edited
_CORRECTED = (
    *("labels-corrected.nii.gz", "entropy-corrected.nii.gz", "report-corrected.html"),
    *("summary-corrected.json", "edits.json", "state/correction.npz", "state/correction.json"),
)
_USERS = {"notes.txt": b"mine", "state/scans/a.txt": b"mine, too"}
_REFUSED, _FAILED = 2, 3

Edits = tuple[tuple[int, int], ...]  # (voxel, label) in their order


class Wanted(NamedTuple):
    """A run that is asked for."""

    patient: str
    seed: int

    @property
    def title(self) -> str:
        """Its heading, by which its folder says whose it is."""
        return f"{self.patient} {self.seed}"

    @property
    def also(self) -> tuple[Program, ...]:
        """The programs that get a file of their own."""
        return ("slicer", "itksnap") if self.seed == 2 else ()


EVERY = tuple(Wanted(patient, seed) for patient in ("first", "second", "third") for seed in (1, 2))


class Content(NamedTuple):
    """What a folder may contain: a run or none, the edits of its correction, all files or some."""

    run: Wanted | None = None
    edits: Edits = ()
    is_whole: bool = True


EMPTY = Content()


class FolderError(Exception):
    """The folder is not as it must be; ``kind`` is that of a finding."""

    def __init__(self, kind: str, words: str) -> None:
        super().__init__(words)
        self.kind = kind


class Undisturbed:
    """The cases, and the bytes that each run and correction gives in a folder of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.cases = {name: write_case(folder / name, n) for n, name in enumerate(_patients())}
        self.run_files = cache(self._run_files)
        self.corrected_files = cache(self._corrected_files)

    def start(self, wanted: Wanted, output: Path, how: str = "") -> None:
        """Run a case; ``how`` may be "resume" or "overwrite"."""
        settings = QUICK_SETTINGS.changed(seed=wanted.seed)
        run_case(
            self.cases[wanted.patient],
            settings,
            output,
            title=wanted.title,
            also=wanted.also,
            resume=how == "resume",
            overwrite=how == "overwrite",
        )

    def _run_files(self, wanted: Wanted) -> dict[str, bytes]:
        output = self.folder / wanted.title
        self.start(wanted, output)
        return _read_files(output)

    def _corrected_files(self, wanted: Wanted, edits: Edits) -> dict[str, bytes]:
        """Return the files that the edits add; the report and the maps are solved from scratch."""
        if not edits:
            return {}
        own = self.run_files(wanted)
        output = self.folder / "corrected"
        shutil.copytree(self.folder / wanted.title, output)
        with closing(open_session(output)) as session:
            update(session, edits)
        found = {name: each for name, each in _read_files(output).items() if name not in own}
        shutil.rmtree(output)
        if set(found) != set(_CORRECTED):
            raise RuntimeError(f"a correction writes {sorted(found)}")
        return found


def _patients() -> tuple[str, ...]:
    return tuple(dict.fromkeys(wanted.patient for wanted in EVERY))


def write_case(folder: Path, number: int) -> Case:
    """Write and read a patient; the last one's maps are in another format."""
    folder.mkdir()
    rng = np.random.default_rng(number)
    p = rng.random((2, *_SHAPE)).astype(np.float32)
    affine = np.diag([1.0, 1.0, 2.0 + number, 1.0])
    bright = rng.random(_SHAPE).astype(np.float32)
    image = folder / "image.nii.gz"
    save_nifti(image, bright, affine)
    if number == 2:
        image = folder / "image.nrrd"
        head = (
            "NRRD0004\ntype: float\ndimension: 3\nspace: RAS\nsizes: 6 5 4\nendian: little\n"
            "space directions: (1,0,0) (0,1,0) (0,0,4)\nencoding: raw\nspace origin: (0,0,0)\n\n"
        )
        image.write_bytes(head.encode() + bright.tobytes(order="F"))
    save_nifti(folder / "p.nii.gz", np.moveaxis(p / p.sum(axis=0), 0, -1), affine)
    return read_case([image], [folder / "p.nii.gz"])


def _read_files(folder: Path) -> dict[str, bytes]:
    """Return the bytes of all files but locks and lists; of a summary those without times."""
    found = {}
    for path in folder.rglob("*"):
        name = path.relative_to(folder).as_posix()
        if path.is_file() and name not in ("state/lock", "state/files.json"):
            found[name] = path.read_bytes()
            if path.name.startswith("summary") and found[name]:
                page = json.loads(found[name])
                page.pop("timings_s", None)
                found[name] = json.dumps(page).encode()
    return found


def update(session: Session, edits: Edits) -> str:
    """Let a viewer solve the run again with these edits; return its error."""
    session.update(dict(edits), session.shown.number)
    session.wait()
    return session.status.error


@contextmanager
def quick_steps() -> Iterator[None]:
    """Write pages of one line and wait for no disk: as many files, in less time."""

    def write_page(run: Run, warnings: list[str], *_: object, **__: object) -> str:
        digest = sha256(run.labels.tobytes() + run.entropy.tobytes()).hexdigest()
        run.files["report"].write_text(f"{run.title} {digest} {warnings}", encoding="utf-8")
        return "as the maps show"

    with ExitStack() as stack:
        for module in ("run.running", "view.correction"):
            stack.enter_context(mock.patch(f"perturb_mpm.{module}.write_page", write_page))
        stack.enter_context(mock.patch("perturb_mpm.view.session._ASK_AGAIN_S", 0.001))
        stack.enter_context(mock.patch("os.fsync", return_value=None))
        yield


def run_apart(work: Callable[[], object], said: Path, *, seconds: float | None = None) -> int:
    """Work in a process of its own, killed after so many seconds; return how it ended."""
    child = os.fork()
    if not child:
        code = _FAILED
        try:
            work()
            code = 0
        except ExpectedError:
            code = _REFUSED
        except BaseException:  # noqa: BLE001 - told to the other process
            said.write_text(traceback.format_exc(), encoding="utf-8")
        finally:
            os._exit(code)
    if seconds is not None:
        time.sleep(seconds)
        os.kill(child, signal.SIGKILL)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if code == _FAILED:
        raise FolderError("traceback", said.read_text(encoding="utf-8"))
    return code


@dataclass
class Sequence:
    """A folder, what it must contain by now, and the viewer that is open on it."""

    rng: random.Random
    folder: Path
    known: Undisturbed
    at_change: AtChange
    now: Content = EMPTY
    session: Session | None = None
    users: dict[str, bytes] = field(default_factory=dict)  # files that are not ours
    story: list[str] = field(default_factory=list)
    ended: int = 0  # how the last other process did

    @property
    def output(self) -> Path:
        """The run's folder."""
        return self.folder / "out"

    @property
    def viewer(self) -> Session:
        """The viewer, which is open."""
        assert self.session is not None  # noqa: S101
        return self.session

    @property
    def run(self) -> Wanted:
        """The run in the folder."""
        assert self.now.run is not None  # noqa: S101
        return self.now.run

    def step(self) -> bool:
        """Do one thing at random, and check the folder; return whether it was refused."""
        steps = [self._run, self._run, self._kill_run, self._fill_disk_of_run]
        if self.session is not None:
            steps += [self._update, self._update, self._update, self._undo, self._revert]
            steps += [self._fill_disk, self._open_second, self._update_unseen, self._close]
        elif self.now.run is not None and self.now.is_whole:
            steps += [self._open, self._open, self._open, self.kill_update, self._cut_power]
        elif self.now.run is not None:
            steps += [self._open_unfinished, self._resume, self._resume]
        if len(self.users) < len(_USERS) and self.rng.random() < 0.03:
            steps = [self._add_file]
        return self.rng.choice(steps)()

    # What people do.

    def _run(self) -> bool:
        wanted, how = self._draw_run("", "resume", "overwrite")
        return self._start(wanted, how)

    def _resume(self) -> bool:
        self.story.append(f"run {self.run.title} resume")
        return self._start(self.run, "resume")

    def _draw_run(self, *ways: str) -> tuple[Wanted, str]:
        again = self.now.run or EVERY[0]
        wanted, how = self.rng.choice((*EVERY, again, again)), self.rng.choice(ways)
        self.story.append(f"run {wanted.title} {how}")
        return wanted, how

    def _start(self, wanted: Wanted, how: str) -> bool:
        before = _read_files(self.output)
        try:
            self.known.start(wanted, self.output, how)
        except ExpectedError as error:
            if self._is_allowed(wanted, how):
                raise FolderError("lost", f"refused: {error}") from error
            if _read_files(self.output) != before:
                raise FolderError("mixed", f"changed by what was refused: {error}") from error
            self._check(self.now)
            return True
        if not self._is_allowed(wanted, how):
            raise FolderError("mixed", "a run that had to be refused")
        self._check(*self._outcomes(wanted, how))
        if missing := set(self.known.run_files(wanted)) - set(_read_files(self.output)):
            raise FolderError("lost", f"missing: {sorted(missing)}")
        return False

    def _is_allowed(self, wanted: Wanted, how: str) -> bool:
        if self.session is not None:
            return False
        if self.now.run is None:
            return how == "overwrite" or not self.users
        return how == "overwrite" or (how == "resume" and wanted == self.now.run)

    def _outcomes(self, wanted: Wanted, how: str) -> list[Content]:
        """Return what a run that ends may leave.

        Edits whose maps an interrupted removal took stay, and the viewer says that maps lack them.
        """
        if how != "resume" or wanted != self.now.run:
            return [Content(wanted)]
        whole = Content(wanted, self.now.edits)
        return [whole] if self.now.is_whole else [whole, whole._replace(is_whole=False)]

    def _open(self) -> bool:
        self.story.append("open")
        self.session = open_session(self.output)
        self._check(self.now)
        return False

    def _open_second(self) -> bool:
        self.story.append("open a second viewer")
        try:
            open_session(self.output).close()
        except ExpectedError:
            self._check(self.now)
            return True
        raise FolderError("mixed", "a viewer that had to be refused")

    def _open_unfinished(self) -> bool:
        self.story.append("open what is unfinished")
        try:
            open_session(self.output).close()
        except ExpectedError:
            return True
        finally:
            self._check(self.now)
        return False

    def _close(self) -> bool:
        self.story.append("close")
        self.viewer.close()
        self.session = None
        self._check(self.now)
        return False

    def _update(self) -> bool:
        return self._change(self._draw_edits())

    def _undo(self) -> bool:
        return self._change(self.now.edits[:-1])

    def _revert(self) -> bool:
        return self._change(())

    def _change(self, edits: Edits) -> bool:
        self.story.append(f"update {edits}")
        if error := update(self.viewer, edits):
            raise FolderError("lost", f"not updated: {error}")
        self._check(self.now._replace(edits=self._ordered(edits)))
        return False

    def _update_unseen(self) -> bool:
        """Send what a tab sends that has not seen the latest revision."""
        self.story.append("update an older revision")
        try:
            self.viewer.update(dict(self._draw_edits()), self.viewer.shown.number - 1)
        except RuntimeError:
            self._check(self.now)
            return True
        self.viewer.wait()
        raise FolderError("lost", "the edits of another tab were overwritten")

    def _add_file(self) -> bool:
        name = next(name for name in _USERS if name not in self.users)
        self.story.append(f"the user writes {name}")
        (self.output / name).parent.mkdir(parents=True, exist_ok=True)
        (self.output / name).write_bytes(_USERS[name])
        self.users[name] = _USERS[name]
        self._check(self.now)
        return False

    # What goes wrong.

    def _kill_run(self) -> bool:
        wanted, how = self._draw_run("", "resume", "overwrite", "overwrite")
        self._kill(partial(self.known.start, wanted, self.output, how))
        self._check_disturbed(wanted, how)
        return False

    def _fill_disk_of_run(self) -> bool:
        wanted, how = self._draw_run("", "resume", "overwrite")
        try:
            with self._full_disk():
                self.known.start(wanted, self.output, how)
        except ExpectedError:
            self._check_disturbed(wanted, how)
            return True
        if not self._is_allowed(wanted, how):
            raise FolderError("mixed", "a run that had to be refused")
        self._check(*self._outcomes(wanted, how))
        return False

    def _check_disturbed(self, wanted: Wanted, how: str) -> None:
        """Check what is left of a run that did not end: the one before, it, or nothing."""
        after = self._outcomes(wanted, how)[0]
        may = [self.now]
        if self._is_allowed(wanted, how):
            may += [self.now._replace(is_whole=False), EMPTY, after, after._replace(is_whole=False)]
        self._check(*may)

    def kill_update(self) -> bool:
        """Kill a viewer in another process while it works or saves; open the run again."""
        edits = self._draw_edits() if self.rng.random() < 0.8 else ()
        self.story.append(f"update {edits}")
        self._kill(lambda: update(open_session(self.output), edits))
        after = self.now._replace(edits=self._ordered(edits))
        self._check_each_file(self.now.edits, after.edits)
        with closing(open_session(self.output)) as self.session:
            if self.session.shown.stale:
                raise FolderError("mixed", "the set is not whole")
            self._check(self.now, after)
        self.session = None
        return False

    def _kill(self, work: Callable[[], object]) -> None:
        """Work in a process that is killed at one of its changes or at any moment."""
        moment = None
        if self.rng.random() < 0.7:
            self.at_change.arm(self.output, self.rng.randrange(1, _CHANGES), kill_self)
        else:
            moment = self.rng.uniform(0, 0.15)
        self.ended = run_apart(work, self.folder / "said.txt", seconds=moment)
        self.at_change.disarm()
        self.story.append(f"  in another process, which ended with {self.ended}")

    @contextmanager
    def _full_disk(self) -> Iterator[None]:
        self.story.append("  on a disk that becomes full")
        self.at_change.arm(self.output, self.rng.randrange(1, _CHANGES // 2), refuse_space)
        try:
            yield
        finally:
            self.at_change.disarm()

    def _fill_disk(self) -> bool:
        edits = self._draw_edits() if self.rng.random() < 0.8 else ()
        self.story.append(f"update {edits}")
        with self._full_disk():
            error = update(self.viewer, edits)
        after = self.now._replace(edits=self._ordered(edits))
        self._check(*([self.now, after] if error else [after]))
        return bool(error)

    def _cut_power(self) -> bool:
        """Empty a file: no traceback, never another map, and overwriting mends all."""
        names = [name for name in sorted(_read_files(self.output)) if name not in self.users]
        name = self.rng.choice([*names, "state/files.json"])
        self.story.append(f"a power cut empties {name}")
        (self.output / name).write_bytes(b"")
        refused = False
        try:
            with closing(open_session(self.output)) as session:
                self._check_shown(session, self.now)
        except ExpectedError:
            refused = True
        if name not in _CORRECTED:
            try:
                self.known.start(self.run, self.output, "resume")
                self._check(self.now)
            except ExpectedError:
                refused = True
        self.known.start(self.run, self.output, "overwrite")
        self._check(Content(self.run))
        return refused

    # What must be.

    def _draw_edits(self) -> Edits:
        voxels = self.rng.sample(_VOXELS, self.rng.choice((1, 1, 2)))
        return tuple((voxel, self.rng.randrange(2)) for voxel in voxels)

    def _ordered(self, edits: Edits) -> Edits:
        """Return edits in the order in which they were made."""
        wanted = dict(edits)
        return tuple({**{v: n for v, n in self.now.edits if wanted.get(v) == n}, **wanted}.items())

    def _check(self, *may: Content) -> None:
        """Check that the folder has just one of some contents, and remember which."""
        files = self._read_own_files()
        found = self._find_content(files)
        if found not in may:
            partly = found._replace(edits=()) if not found.is_whole else found
            if partly not in [each._replace(edits=()) for each in may if not each.is_whole]:
                raise FolderError("mixed", f"the folder has {found}, it may have {may}")
        if found.run is None and files:
            raise FolderError("mixed", f"no run, but {sorted(files)}")
        if found.run is not None:
            expected = self._expected(found)
            left = {name for name in files if name.startswith("state/new-")}
            for name in set(files) - left:
                if files[name] != expected.get(name):
                    raise FolderError("mixed", f"{name} is of another run or revision")
            if found.is_whole and (missing := set(expected) - set(files)):
                raise FolderError("lost", f"missing: {sorted(missing)}")
            listed = json.loads((self.output / "state" / "files.json").read_text())["files"]
            if unlisted := set(files) - set(listed):
                raise FolderError("mixed", f"not listed: {sorted(unlisted)}")
        if self.session is not None:
            self._check_shown(self.session, found)
        self.now = found

    def _expected(self, content: Content) -> dict[str, bytes]:
        assert content.run is not None  # noqa: S101
        run = content.run
        return {**self.known.run_files(run), **self.known.corrected_files(run, content.edits)}

    def _check_each_file(self, *revisions: Edits) -> None:
        """Check that every file is of this run, and of one of some revisions of its correction."""
        sets = [self._expected(self.now._replace(edits=edits)) for edits in revisions]
        for name, content in self._read_own_files().items():
            switched = name == "state/correction.json" and b'"files": {}' in content
            if name.startswith("state/new-") or switched:
                continue
            if all(content != each.get(name) for each in sets):
                raise FolderError("mixed", f"{name} is of no revision")

    def _read_own_files(self) -> dict[str, bytes]:
        """Return what is neither the user's nor being written; the user's must be as it was."""
        files = _read_files(self.output)
        for name, content in self.users.items():
            if files.pop(name, None) != content:
                raise FolderError("lost", f"the user's {name} was changed")
        return {name: content for name, content in files.items() if not name.endswith(".part")}

    def _find_content(self, files: dict[str, bytes]) -> Content:
        """Return what the folder itself says that it contains."""
        if "state/run.json" not in files:
            return EMPTY
        title = json.loads(files["state/run.json"])["about"]["title"]
        run = next(wanted for wanted in EVERY if wanted.title == title)
        page = json.loads(files.get("edits.json", b'{"edits": []}'))["edits"]
        index = [int(np.ravel_multi_index(each["voxel"], _SHAPE)) for each in page]
        edits = tuple(zip(index, (int(each["new_label"]) for each in page)))
        content = Content(run, edits)
        return content._replace(is_whole=set(self._expected(content)) <= set(files))

    def _check_shown(self, session: Session, content: Content) -> None:
        """Check that a viewer shows what the folder has."""
        shown = session.shown
        if content.run is None or shown.run.title != content.run.title:
            raise FolderError("mixed", f"the viewer shows {shown.run.title}")
        if not shown.stale and tuple(shown.edits.items()) != content.edits:
            raise FolderError("mixed", f"it shows {shown.edits}, the folder has {content.edits}")


def prepare_sequences(folder: Path) -> Trial:
    """Return a trial of one sequence of steps."""
    with quick_steps():
        known = Undisturbed(folder)
        for wanted in EVERY:
            known.run_files(wanted)
    at_change = AtChange()
    at_change()

    def trial(rng: random.Random, trial_folder: Path) -> Finding:
        sequence = Sequence(rng, trial_folder, known, at_change)
        sequence.output.mkdir()
        refused = 0
        with quick_steps():
            try:
                for _ in range(STEPS):
                    refused += sequence.step()
            except FolderError as error:
                return _finding(error.kind, f"{error}", sequence)
            except Exception:  # noqa: BLE001 - this is what is looked for
                return _finding("traceback", traceback.format_exc(), sequence)
            finally:
                at_change.disarm()
                if sequence.session is not None:
                    sequence.session.close()
        return Finding(refused)

    return trial


def _finding(kind: str, words: str, sequence: Sequence) -> Finding:
    return Finding(kind=kind, words="\n".join([*sequence.story, "", words]))


def prepare_corrections(folder: Path) -> Trial:
    """Return a trial that kills one update of a corrected run, or one that takes it back."""
    with quick_steps():
        known = Undisturbed(folder)
        start = Content(EVERY[0], ((31, 0), (32, 1)))
        known.run_files(EVERY[0])
        corrected = folder / "start"
        shutil.copytree(folder / EVERY[0].title, corrected)
        with closing(open_session(corrected)) as session:
            update(session, start.edits)
    at_change = AtChange()
    at_change()
    ends = {"before": 0, "after": 0}

    def trial(rng: random.Random, trial_folder: Path) -> Finding:
        killed = False
        while not killed:  # an update that ended before its moment came does not count
            sequence = Sequence(rng, trial_folder, known, at_change, start)
            shutil.rmtree(sequence.output, ignore_errors=True)
            shutil.copytree(corrected, sequence.output)
            with quick_steps():
                try:
                    sequence.kill_update()
                except FolderError as error:
                    return _finding(error.kind, f"{error}", sequence)
                except Exception:  # noqa: BLE001 - this is what is looked for
                    return _finding("traceback", traceback.format_exc(), sequence)
            killed = sequence.ended == -signal.SIGKILL
        ends["before" if sequence.now == start else "after"] += 1
        note = f"{ends['before']} showed the correction before, {ends['after']} the one after"
        (folder / NOTE).write_text(note, encoding="utf-8")
        return Finding()

    return trial


SEQUENCES = Attack(
    "sequences", "steps", prepare_sequences, share=2.0, longest=120, grows=False, each=STEPS
)
CORRECTIONS = Attack("corrections", "killed corrections", prepare_corrections, longest=60)
