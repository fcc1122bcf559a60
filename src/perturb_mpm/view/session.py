"""A run open in the viewer: its current maps, its edits, and one update at a time.

An update shows the mean field first, then what the run's samples make of the edits, and writes
the files last. The samples' solutions are drawn once, in the background: ``get_ready``.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from perturb_mpm.report import uncertain_locations
from perturb_mpm.run import Run, load_run, report_data
from perturb_mpm.view.correction import Correction, Corrector, no_correction
from perturb_mpm.view.edits import EditsFile
from perturb_mpm.view.saving import (
    VolumeChange,
    load_correction,
    remove_correction,
    save_maps,
    save_pages,
    volume_changes,
)

MOST_PLACES = 12
_ASK_AGAIN_S = 0.1


class BusyError(RuntimeError):
    """An update is asked for while another is being solved."""


@dataclass(frozen=True)
class Status:
    """How far the last update is."""

    busy: bool = False
    stage: str = ""  # what is being done, in words
    done: float = 1.0  # 0 … 1, of the stage
    preparing: bool = False  # whether what updates start from is being prepared
    ready: float = 0.0  # 0 … 1, of that
    error: str = ""  # in words, of the last update
    revision: int = 0  # counts the changes of the maps
    final: bool = True  # whether the samples have had their say in the maps
    edited_voxels: int = 0
    moved_voxels: int = 0  # other voxels whose label an edit changed


@dataclass(frozen=True)
class PlaceToLook:
    """An uncertain place."""

    mm: tuple[float, float, float]
    words: str


class Session:
    """A run and its edits."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.corrected: Run | None = None  # the run with its edits, once the samples are solved
        self._places: dict[bool, list[PlaceToLook]] = {}
        self._background: _Background | None = None
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._file = EditsFile(
            run.folder / "edits.json",
            str(run.posterior.problem),
            run.case.labels,
            run.case.geometry,
        )
        self.edits = self._file.read()
        self.correction = load_correction(run, self.edits)
        self._status = self._counted(Status())

    @property
    def status(self) -> Status:
        """How far things are."""
        background = self._background
        if background is None:
            return self._status
        preparing = background.done < 1 and not background.failed
        return replace(self._status, preparing=preparing, ready=background.done)

    @property
    def stale(self) -> bool:
        """Whether there are edits that no update has taken in yet."""
        return bool(self.edits) and not len(self.correction.index)

    @property
    def labels(self) -> NDArray[np.uint8]:
        """The labels with all edits, indices (X, Y, Z)."""
        return self.correction.labels(self.run.labels, self.run.regions)

    @property
    def volumes(self) -> list[VolumeChange]:
        """What the edits do to volumes."""
        return volume_changes(self.run, self.correction)

    @property
    def places(self) -> list[PlaceToLook]:
        """The most uncertain places, of the corrected run where there is one."""
        corrected = self.corrected
        if (corrected is not None) not in self._places:
            data = report_data(corrected or self.run)
            self._places[corrected is not None] = [
                PlaceToLook(
                    place.centre_mm,
                    f"{place.where}: {' or '.join(place.labels)}, {_ml(place.volume_ml)} ml",
                )
                for place in uncertain_locations(data, limit=MOST_PLACES)
            ]
        return self._places[corrected is not None]

    def get_ready(self) -> None:
        """Begin, in the background, to prepare what every update starts from."""
        with self._lock:
            if self._background is None or self._background.failed:
                self._background = _Background(self.run)

    def update(self, edits: Mapping[int, int]) -> None:
        """Begin to solve again with these edits in place of all earlier ones."""
        known = {voxel: label for voxel, label in self.edits.items() if edits.get(voxel) == label}
        ordered = {**known, **edits}
        self._begin(lambda: self._solve(ordered))

    def revert(self) -> None:
        """Begin to take all edits back, and remove what they wrote."""
        self._begin(self._remove_edits)

    def wait(self) -> None:
        """Wait until no update is under way."""
        if self._thread is not None:
            self._thread.join()

    def _begin(self, work: Callable[[], None]) -> None:
        with self._lock:
            if self._status.busy:
                raise BusyError("an update is under way; wait until it has ended")
            self._status = replace(self._status, busy=True, stage="", done=0.0, error="")
        # A daemon: Ctrl-C need not wait for it, since files appear whole or not at all.
        self._thread = threading.Thread(target=self._guarded, args=(work,), daemon=True)
        self._thread.start()

    def _guarded(self, work: Callable[[], None]) -> None:
        edits, correction, corrected = self.edits, self.correction, self.corrected
        error = "it failed in a way that was not foreseen; the terminal says more"
        try:
            work()
            error = ""
        except (ValueError, OSError, MemoryError) as known:
            error = _in_words(known)
        finally:
            if error:
                self.edits = edits
                self._show(correction, corrected, final=True)
            self._status = replace(self._status, busy=False, stage="", done=1.0, error=error)

    def _solve(self, edits: dict[int, int]) -> None:
        if not edits:
            self._remove_edits()
            return
        self._stage("getting ready")
        self.get_ready()
        background = self._background
        assert background is not None  # noqa: S101
        corrector = background.corrector(self._progress)
        self._stage("solving the first picture")
        edit, correction = corrector.preview(edits)
        self.edits = edits
        self._show(correction, None, final=False)
        self._stage("drawing the run's samples once more, the first time only")
        background.wait(self._progress)
        self._stage("solving the samples again where they move")
        corrected, correction = corrector.solve(
            edits, edit, self._progress, lambda shown: self._show(shown, None, final=False)
        )
        self._stage("writing the maps")
        save_maps(self.run, edits, correction)
        self._file.write(edits, self.run.labels)
        self._show(correction, corrected, final=True)
        self._stage("writing the report")
        save_pages(self.run, corrected, edits, correction)

    def _remove_edits(self) -> None:
        self._file.path.unlink(missing_ok=True)
        remove_correction(self.run)
        self.edits = {}
        self._show(no_correction(self.run.posterior.n_labels), None, final=True)

    def _show(self, correction: Correction, corrected: Run | None, *, final: bool) -> None:
        """Let the page see other maps."""
        self._places.pop(True, None)
        self.correction, self.corrected = correction, corrected
        status = replace(self._status, revision=self._status.revision + 1, final=final)
        self._status = self._counted(status)

    def _counted(self, status: Status) -> Status:
        found = self.correction
        changed = found.index[found.decided(self.run.regions) != self.run.labels.flat[found.index]]
        moved = len(set(changed.tolist()) - self.edits.keys())
        return replace(status, edited_voxels=len(self.edits), moved_voxels=moved)

    def _stage(self, words: str) -> None:
        self._status = replace(self._status, stage=words, done=0.0)

    def _progress(self, done: float, total: float) -> None:
        self._status = replace(self._status, done=done / total)


class _Background:
    """Prepares the engine and draws the samples in a thread of its own."""

    def __init__(self, run: Run) -> None:
        self.done = 0.0  # 0 … 1
        self._run = run
        self._made: Corrector | None = None
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._thread.start()

    @property
    def failed(self) -> bool:
        """Whether it ended in an error."""
        return self._error is not None

    def corrector(self, progress: Callable[[float, float], None]) -> Corrector:
        """Return the corrector as soon as its engine is there."""
        while self._made is None:
            self._wait_a_little(progress)
        return self._made

    def wait(self, progress: Callable[[float, float], None]) -> None:
        """Wait until the samples are kept."""
        while self.done < 1:
            self._wait_a_little(progress)

    def _wait_a_little(self, progress: Callable[[float, float], None]) -> None:
        if self._error is not None:
            raise self._error
        progress(self.done, 1.0)
        time.sleep(_ASK_AGAIN_S)

    def _work(self) -> None:
        try:
            self._made = Corrector(self._run)
            self._made.keep(self._show)
            self.done = 1.0
        except Exception as error:  # noqa: BLE001 - it is raised where the update waits
            self._error = error

    def _show(self, done: float, total: float) -> None:
        self.done = min(done / total, 0.999)


def _ml(volume: float) -> str:
    return f"{volume:.0f}" if volume >= 10 else f"{volume:.2g}"


def _in_words(error: Exception) -> str:
    if isinstance(error, MemoryError):
        return "there is not enough memory to solve this again"
    return " ".join(str(error).split())


def open_session(folder: Path, kernel_cache: str | Path | None = None) -> Session:
    """Open the run in ``folder``; one whose files lead out of it by a link is refused.

    Corrections take prepared kernels from the folder ``kernel_cache``, and keep them there.
    """
    home = folder.resolve()
    for path in sorted(home.rglob("*")):
        if not path.resolve().is_relative_to(home):
            raise ValueError(f"{path} is a link to a place outside the folder; remove it")
    run = load_run(home)
    return Session(replace(run, settings=run.settings.changed(kernel_cache=kernel_cache)))
