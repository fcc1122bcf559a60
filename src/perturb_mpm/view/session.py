"""A run open in the viewer: its current maps, its edits, and one update at a time.

An update shows the mean field first, then what the run's samples make of the edits, and writes
the files last. The samples' solutions are drawn once, in the background: ``get_ready``.

What the page shows is one ``Revision``. It never changes: an update puts another in its place, so
that every answer is about one state, whatever happens meanwhile. The run's folder stays locked
while the session is open, and an update names the revision that it changes: neither another run nor
another viewer or tab is overwritten.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, BinaryIO
from weakref import finalize

import numpy as np
from numpy.typing import NDArray

from perturb_mpm.evaluation import dice
from perturb_mpm.files import Source, read_label_map
from perturb_mpm.measures import CubeLaw
from perturb_mpm.model import Grid
from perturb_mpm.report import to_mm, uncertain_locations
from perturb_mpm.run import STATE, OutputError, Run, load_run, lock_run, report_data, volume_rows
from perturb_mpm.view.correction import (
    Correction,
    CorrectionError,
    CorrectionFiles,
    Corrector,
    Edits,
    VolumeChange,
    no_correction,
    volume_changes,
)

MOST_LOCATIONS = 12
STROKE_MM = 12.0
"""The side of the squares that are compared for the next stroke."""
LEAST_EXPLAINED = 0.02
"""Of the variance of a volume: what less is worth no stroke."""
_ASK_AGAIN_S = 0.1
_LEAST_DICE = 0.5  # of a label map and its correction


class BusyError(RuntimeError):
    """An update is asked for while another is being solved."""


class ConflictError(RuntimeError):
    """An update is about a revision that is no longer the latest one."""


@dataclass(frozen=True)
class Location:
    """A location to look at."""

    mm: tuple[float, float, float]
    words: str


@dataclass(frozen=True)
class LocationList:
    """Where to look, under a heading that says why."""

    title: str
    locations: list[Location]


@dataclass(frozen=True, eq=False)
class Revision:
    """The maps that the page shows, and all that follows from them."""

    run: Run
    edits: Edits
    correction: Correction
    number: int = 0  # counts the changes of the maps
    corrected: Run | None = None  # the run with its edits, once the samples are solved
    final: bool = True  # whether the samples have had their say in the maps
    stale: bool = False  # whether the files lack these edits, or were changed since
    saved_volumes: tuple[VolumeChange, ...] = ()  # of the files, where these edits come from them

    @cached_property
    def labels(self) -> NDArray[np.uint8]:
        """The labels with all edits, indices (X, Y, Z)."""
        return self.correction.labels(self.run.labels, self.run.decisions)

    @cached_property
    def moved_voxels(self) -> int:
        """The number of other voxels whose label the edits changed."""
        index = self.correction.index
        changed = index[self.labels.flat[index] != self.run.labels.flat[index]]
        return len(set(changed.tolist()) - self.edits.keys())

    @cached_property
    def volumes(self) -> list[VolumeChange]:
        """What the edits do to volumes."""
        if self.saved_volumes:
            return list(self.saved_volumes)
        return volume_changes(self.run, self.correction, self.corrected)


@dataclass(frozen=True)
class Status:
    """How far the last update is, and which revision is shown."""

    busy: bool = False
    stage: str = ""  # what is being done, in words
    done: float = 1.0  # 0 … 1, of the stage
    preparing: bool = False  # whether what updates start from is being prepared
    ready: float = 0.0  # 0 … 1, of that
    error: str = ""  # in words, of the last update
    revision: int = 0
    final: bool = True
    stale: bool = False
    edited_voxels: int = 0
    moved_voxels: int = 0


class Session:
    """A run and its edits; ``folder_lock`` is closed with it."""

    def __init__(self, run: Run, folder_lock: BinaryIO | None = None) -> None:
        self.run = run
        self._folder_lock = folder_lock
        if folder_lock is not None:
            finalize(self, folder_lock.close)
        self._background: _Background | None = None
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._status = Status()
        self.files = CorrectionFiles(run)
        self.shown = self._read_files(number=0)

    @property
    def status(self) -> Status:
        """How far things are."""
        shown, background = self.shown, self._background
        status = replace(
            self._status,
            revision=shown.number,
            final=shown.final,
            stale=shown.stale,
            edited_voxels=len(shown.edits),
            moved_voxels=shown.moved_voxels,
        )
        if background is None:
            return status
        return replace(
            status,
            preparing=background.done < 1 and background.error is None,
            ready=background.done,
        )

    def get_ready(self) -> None:
        """Begin, in the background, to prepare what every update starts from."""
        with self._lock:
            if self._background is None or self._background.error is not None:
                self._background = _Background(self.run)

    def update(self, edits: Edits, revision: int) -> None:
        """Begin to solve again with these edits instead of those of a revision, the latest one."""
        earlier = self.shown.edits
        known = {voxel: label for voxel, label in earlier.items() if edits.get(voxel) == label}
        ordered = {**known, **edits}
        self._begin(lambda: self._solve(ordered), revision)

    def revert(self, revision: int) -> None:
        """Begin to take all edits of a revision back, the latest one, and remove their files."""
        self._begin(self._remove_edits, revision)

    @property
    def locations(self) -> LocationList:
        """Where the next stroke pays; before the samples are there, where most is uncertain."""
        shown, background = self.shown, self._background
        run = shown.corrected or self.run
        if background is not None and (shown.corrected is not None or not shown.edits):
            samples = background.sampled_labels()
            if samples is not None and run.settings.intervals != "none":
                found = rank_strokes(run, self.run.posterior.grid, *samples)
                if found.locations:
                    return found
        return _uncertain(run)

    def write_draft(self, draft: dict[str, Any]) -> None:
        """Keep strokes that no update has taken in yet."""
        self._check_lock()
        self.files.write_draft(draft)

    def wait(self) -> None:
        """Wait until no update is under way."""
        if self._thread is not None:
            self._thread.join()

    def close(self) -> None:
        """Let others use the folder; from now on nothing is saved."""
        if self._folder_lock is not None:
            self._folder_lock.close()

    def _begin(self, work: Callable[[], None], revision: int) -> None:
        with self._lock:
            if self._status.busy:
                raise BusyError("an update is under way; wait until it has ended")
            if revision != self.shown.number:
                raise ConflictError("the correction was changed in another window or tab")
            self._status = Status(busy=True, done=0.0)
        # A daemon: Ctrl-C need not wait for it, since files appear whole or not at all.
        self._thread = threading.Thread(target=self._work, args=(work,), daemon=True)
        self._thread.start()

    def _work(self, work: Callable[[], None]) -> None:
        before = self.shown
        error = "it failed in a way that was not foreseen; the terminal says more"
        try:
            work()
            error = ""
        except (ValueError, OSError, MemoryError) as known:
            error = _in_words(known)
        finally:
            if error:
                self._restore(before)
            self._status = Status(error=error)

    def _read_files(self, number: int) -> Revision:
        edits, correction, whole = self.files.read()
        volumes = tuple(self.files.read_volumes()) if whole and edits else ()
        stale = bool(edits) and not whole
        return Revision(self.run, edits, correction, number, stale=stale, saved_volumes=volumes)

    def _restore(self, before: Revision) -> None:
        """Show what the files say after a failure: as a rule what was there before."""
        number = self.shown.number + 1
        restored = replace(before, number=number)
        with suppress(ValueError, OSError):
            found = self._read_files(number)
            if dict(found.edits) != dict(before.edits):
                restored = found
        self.shown = restored

    def _solve(self, edits: Mapping[int, int]) -> None:
        if not edits:
            self._remove_edits()
            return
        self._stage("getting ready")
        self.get_ready()
        background = self._background
        assert background is not None  # noqa: S101
        corrector = background.wait_for_corrector(self._progress)
        self._stage("solving the first picture")
        preview = corrector.preview(edits)
        self._show(edits, preview.correction, final=False)
        self._stage("drawing the run's samples once more, the first time only")
        background.wait(self._progress)
        self._stage("solving the samples again where they move")
        corrected, correction = corrector.solve(
            preview, self._progress, lambda maps: self._show(edits, maps, final=False)
        )
        self._show(edits, correction, corrected, final=False)
        self._stage("writing the files")
        self._check_lock()
        self.files.save(edits, correction, corrected)
        self._show(edits, correction, corrected)

    def _remove_edits(self) -> None:
        self._check_lock()
        self.files.remove()
        if self._background is not None:
            self._background.forget_edits()
        self._show({}, no_correction(self.run.posterior.n_labels))

    def _check_lock(self) -> None:
        """Refuse to write to a folder that may be another run's by now."""
        if self._folder_lock is not None and self._folder_lock.closed:
            raise OutputError("the run was closed; open it again to correct it")

    def _show(
        self,
        edits: Edits,
        correction: Correction,
        corrected: Run | None = None,
        *,
        final: bool = True,
    ) -> None:
        """Let the page see other maps."""
        number = self.shown.number + 1
        self.shown = Revision(self.run, edits, correction, number, corrected, final)

    def _stage(self, words: str) -> None:
        self._status = replace(self._status, stage=words, done=0.0)

    def _progress(self, done: float, total: float) -> None:
        self._status = replace(self._status, done=done / total)


class _Background:
    """Prepares the engine and draws the samples in a thread of its own."""

    def __init__(self, run: Run) -> None:
        self.done = 0.0  # 0 … 1
        self.error: Exception | None = None
        self._run = run
        self._corrector: Corrector | None = None
        threading.Thread(target=self._work, daemon=True).start()

    def wait_for_corrector(self, progress: Callable[[float, float], None]) -> Corrector:
        """Return the corrector as soon as its engine is there."""
        while self._corrector is None:
            self._wait_a_little(progress)
        return self._corrector

    def wait(self, progress: Callable[[float, float], None]) -> None:
        """Wait until the samples are drawn."""
        while self.done < 1:
            self._wait_a_little(progress)

    def sampled_labels(self) -> tuple[NDArray[np.int64], NDArray[np.uint8]] | None:
        """Return where samples differ and their labels there, None before they are drawn."""
        if self._corrector is None or self.done < 1:
            return None
        return self._corrector.sampled_labels()

    def forget_edits(self) -> None:
        """Let the samples be the run's own again."""
        if self._corrector is not None:
            self._corrector.forget_edits()

    def _wait_a_little(self, progress: Callable[[float, float], None]) -> None:
        if self.error is not None:
            raise self.error
        progress(self.done, 1.0)
        time.sleep(_ASK_AGAIN_S)

    def _work(self) -> None:
        try:
            self._corrector = Corrector(self._run)
            self._corrector.draw_samples(self._show)
            self.done = 1.0
        except Exception as error:  # noqa: BLE001 - it is raised where the update waits
            self.error = error

    def _show(self, done: float, total: float) -> None:
        self.done = min(done / total, 0.999)


def take_label_map(session: Session, path: Path) -> tuple[int, str | None]:
    """Take a label map that another program corrected for edits, solve and save.

    Edits are the voxels in which it differs from the labels as they are now. Return how many, and
    what speaks against a map of this patient: others may lie on the same grid.
    """
    shown, case = session.shown, session.run.case
    own = Source("output", session.run.files["labels"])
    source = Source("correction", path)
    given = read_label_map(source, case.labels, case.geometry, own, mask=case.mask)  # (X, Y, Z)
    changed = np.flatnonzero(given != shown.labels)
    session.update({**shown.edits, **{int(i): int(given.flat[i]) for i in changed}}, shown.number)
    session.wait()
    if session.status.error:
        raise CorrectionError(f"`correction` {path} cannot be taken in: {session.status.error}")
    if not (given.any() and shown.labels.any()):
        return len(changed), None
    overlap = dice(given != 0, shown.labels != 0)
    warning = (
        f"{path} and the labels that it corrects hardly overlap (Dice {overlap:.2f}): are both of "
        "one patient? The viewer can take all edits back"
    )
    return len(changed), warning if overlap < _LEAST_DICE else None


def _uncertain(run: Run) -> LocationList:
    """Return the most uncertain locations of a run."""
    found = [
        Location(
            mm=each.centre_mm,
            words=f"{each.where}: {' or '.join(each.labels)}, {_ml(each.volume_ml)} ml",
        )
        for each in uncertain_locations(report_data(run), limit=MOST_LOCATIONS)
    ]
    return LocationList("Most uncertain locations", found)


def rank_strokes(
    run: Run, grid: Grid, voxels: NDArray[np.int64], labels: NDArray[np.uint8]
) -> LocationList:
    """Return where labels set by hand would say most about the volume that is least known.

    Candidates are squares of one axial slice. The square whose volume of the structure explains
    most of the variance of the whole volume comes first, then the one that explains most of what is
    left, and so on; by the law of ``Priority``, in which squares err by themselves too.
    ``labels`` (S, V) are those of the samples at ``voxels`` (V,) of ``grid``.
    """
    rows = [row for row in volume_rows(run) if row.kind in ("region", "label")]
    target = max(rows, key=lambda row: row.interval_ml[1] - row.interval_ml[0])
    members = [run.case.labels.values.index(value) for value in target.values]
    inside = np.isin(labels, members).astype(np.float32)  # (S, V)
    indices = np.stack(np.unravel_index(grid.index[voxels], grid.shape), axis=1)  # (V, 3)
    affine = run.case.geometry.affine
    across = int(np.abs(affine[2, :3]).argmax())  # the axis that runs from bottom to top
    steps = np.maximum(1, np.round(STROKE_MM / np.asarray(grid.spacing))).astype(int)
    steps[across] = 1
    squares, owner = np.unique(indices // steps, axis=0, return_inverse=True)
    counts = np.zeros((len(inside), len(squares)), dtype=np.float64)  # (S, Q)
    for sample, row in enumerate(inside):
        counts[sample] = np.bincount(owner.ravel(), weights=row, minlength=len(squares))
    law = CubeLaw(target.samples_ml, counts)
    total = float(law.variance.mean())
    found: list[Location] = []
    for square, gain in law.choose(MOST_LOCATIONS, LEAST_EXPLAINED * total) if total else ():
        here = owner.ravel() == square
        x, y, z = indices[here][inside[:, here].std(axis=0).argmax()].tolist()
        mm = to_mm(affine, (x, y, z))
        words = f"{describe_side(mm)}: {100 * gain / total:.0f} %{' more' if found else ''}"
        found.append(Location(mm, words))
    return LocationList(
        f"Where the next stroke pays: its share of the doubt about {target.name}", found
    )


def describe_side(mm: tuple[float, float, float]) -> str:
    """Return a position by the patient's sides, such as "R 12, A 30, S 5"."""
    pairs = zip(mm, (("L", "R"), ("P", "A"), ("I", "S")))
    return ", ".join(f"{sides[int(x >= 0)]} {abs(x):.0f}" for x, sides in pairs) + " mm"


def _ml(volume: float) -> str:
    return f"{volume:.0f}" if volume >= 10 else f"{volume:.2g}"


def _in_words(error: Exception) -> str:
    if isinstance(error, MemoryError):
        return "there is not enough memory to solve this again"
    return " ".join(str(error).split())


def open_session(folder: Path, kernel_cache: str | Path | None = None) -> Session:
    """Open the run in ``folder``, and lock it until the session is closed.

    A folder with a link that leads out of it is refused, and one that a run or another viewer is
    using. Corrections take prepared kernels from the folder ``kernel_cache``, and store them there.
    """
    home = folder.resolve()
    for path in sorted(home.rglob("*")):
        if not path.resolve().is_relative_to(home):
            raise ValueError(f"{path} is a link that leads out of the folder; remove it")
    lock = lock_run(home) if (home / STATE).is_dir() else None
    try:
        run = load_run(home)
        return Session(replace(run, settings=run.settings.changed(kernel_cache=kernel_cache)), lock)
    except BaseException:
        if lock is not None:
            lock.close()
        raise
