"""A run open in the viewer: its current maps, its edits, and one update at a time."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perturb_mpm import checks
from perturb_mpm.files import save_like
from perturb_mpm.run import STATE, Run, build_crf, load_run
from perturb_mpm.storage import (
    DAMAGE,
    DamagedError,
    largest_state,
    read_arrays,
    reason_of,
    write_arrays,
)
from perturb_mpm.view.correction import (
    Correction,
    Corrector,
    no_correction,
)
from perturb_mpm.view.edits import EditsFile

LABELS = "labels-corrected.nii.gz"
ENTROPY = "entropy-corrected.nii.gz"
_MARGINALS = f"{STATE}/correction.npz"


def save_correction(run: Run, edits: Mapping[int, int], correction: Correction) -> None:
    """Write the corrected maps beside the run's own, each whole or not at all."""
    case, folder = run.case, run.folder
    values = case.labels.values_of(correction.labels(run.labels, run.regions), case.mask)
    save_like(folder / LABELS, values, case.geometry, "label values, corrected by hand")
    top = f"{math.log2(len(case.labels)):.4g}"
    bits = correction.entropy(run.entropy)
    save_like(folder / ENTROPY, bits, case.geometry, f"entropy, bits, 0 to {top}, corrected")
    arrays = {
        "edited_index": np.array(list(edits), dtype=np.int64),
        "edited_label": np.array(list(edits.values()), dtype=np.int64),
        "index": correction.index,
        "marginals": correction.marginals,
    }
    write_arrays(folder / _MARGINALS, arrays)


def load_correction(run: Run, edits: Mapping[int, int]) -> Correction:
    """Return the saved correction of these edits, an empty one where there is none."""
    nothing = no_correction(run.posterior.n_labels)
    if not edits or not (run.folder / _MARGINALS).is_file():
        return nothing
    arrays = read_arrays(run.folder / _MARGINALS, limit=largest_state())
    try:
        pairs = zip(arrays["edited_index"].tolist(), arrays["edited_label"].tolist())
        if dict(pairs) != dict(edits):
            return nothing
        _check_correction(arrays["index"], arrays["marginals"], run)
    except DAMAGE as error:
        raise DamagedError(f"{run.folder / _MARGINALS} is damaged: {reason_of(error)}") from error
    return Correction(arrays["index"], arrays["marginals"])


def _check_correction(index: NDArray[Any], marginals: NDArray[Any], run: Run) -> None:
    """Refuse what does not fit the run: it would be written anywhere in its maps."""
    if index.dtype != np.int64 or index.ndim != 1 or marginals.dtype != np.float64:
        raise ValueError("its arrays are of other types")
    if marginals.shape != (run.posterior.n_labels, len(index)):
        raise ValueError("its marginals do not fit its voxels")
    checks.in_range(index, "index", run.case.mask.size)
    checks.finite(marginals, "marginals")


def remove_correction(run: Run) -> None:
    """Remove the corrected maps."""
    for name in (LABELS, ENTROPY, _MARGINALS):
        (run.folder / name).unlink(missing_ok=True)


class BusyError(RuntimeError):
    """An update is asked for while another is being solved."""


@dataclass(frozen=True)
class Status:
    """How far the last update is."""

    busy: bool = False
    done: float = 1.0  # 0 … 1
    error: str = ""  # in words, of the last update
    revision: int = 0  # counts the changes of the maps
    edited_voxels: int = 0
    moved_voxels: int = 0  # other voxels whose label an edit changed


class Session:
    """A run and its edits. ``samples`` is how many of the run's samples an update solves again."""

    def __init__(self, run: Run, samples: int | None = None) -> None:
        self.run = run
        posterior = run.posterior
        self._samples = min(samples or posterior.samples, posterior.samples)
        self._corrector: Corrector | None = None
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._file = EditsFile(
            run.folder / "edits.json",
            str(posterior.problem),
            run.case.labels,
            run.case.geometry,
        )
        self.edits = self._file.read()
        self.correction = load_correction(run, self.edits)
        self.status = self._status(revision=0)

    @property
    def stale(self) -> bool:
        """Whether there are edits that no update has taken in yet."""
        return bool(self.edits) and not len(self.correction.index)

    @property
    def labels(self) -> NDArray[np.uint8]:
        """The labels with all edits, indices (X, Y, Z)."""
        return self.correction.labels(self.run.labels, self.run.regions)

    @property
    def entropy(self) -> NDArray[np.float32]:
        """The entropy with all edits, bits (X, Y, Z)."""
        return self.correction.entropy(self.run.entropy)

    def share(self, label: int) -> NDArray[np.float32]:
        """Return the marginal of a label with all edits, (X, Y, Z)."""
        share: NDArray[np.float32] = self.run.marginals[label].copy()
        share.flat[self.correction.index] = self.correction.marginals[label]
        return share

    def update(self, edits: Mapping[int, int]) -> None:
        """Begin to solve again with these edits in place of all earlier ones."""
        known = {voxel: label for voxel, label in self.edits.items() if edits.get(voxel) == label}
        ordered = {**known, **edits}
        self._begin(lambda: self._solve(ordered))

    def revert(self) -> None:
        """Begin to take all edits back, and remove what they wrote."""
        self._begin(self._remove_edits)

    def wait(self, seconds: float | None = None) -> None:
        """Wait until nothing is under way."""
        if self._thread is not None:
            self._thread.join(seconds)

    def _begin(self, work: Callable[[], None]) -> None:
        with self._lock:
            if self.status.busy:
                raise BusyError("an update is under way; wait until it has ended")
            self.status = replace(self.status, busy=True, done=0.0, error="")
        # A daemon: Ctrl-C need not wait for it, since files appear whole or not at all.
        self._thread = threading.Thread(target=self._guarded, args=(work,), daemon=True)
        self._thread.start()

    def _guarded(self, work: Callable[[], None]) -> None:
        error = "it failed in a way that was not foreseen; the terminal says more"
        try:
            work()
            error = ""
        except (ValueError, OSError, MemoryError) as known:
            error = _in_words(known)
        finally:
            if error:
                self.status = replace(self.status, busy=False, done=1.0, error=error)
            else:
                self.status = self._status(self.status.revision + 1)

    def _status(self, revision: int) -> Status:
        changed = self.correction.index[
            self.correction.marginals.argmax(axis=0) != self.run.labels.flat[self.correction.index]
        ]
        moved = len(set(changed.tolist()) - self.edits.keys())
        return Status(revision=revision, edited_voxels=len(self.edits), moved_voxels=moved)

    def _solve(self, edits: dict[int, int]) -> None:
        if not edits:
            self._remove_edits()
            return
        if self._corrector is None:
            self._corrector = self._make_corrector()
        correction = self._corrector.correct(edits, self._show_progress)
        save_correction(self.run, edits, correction)
        self._file.write(edits, self.run.labels)
        self.edits, self.correction = edits, correction

    def _remove_edits(self) -> None:
        self._file.path.unlink(missing_ok=True)
        remove_correction(self.run)
        self.edits = {}
        self.correction = no_correction(self.run.posterior.n_labels)

    def _show_progress(self, done: float, total: float) -> None:
        self.status = replace(self.status, done=done / total)

    def _make_corrector(self) -> Corrector:
        settings, posterior = self.run.settings, self.run.posterior
        sampling = replace(settings.sampling, samples=self._samples, until=None)
        crf = build_crf(self.run.case, settings)
        return Corrector(
            crf,
            sampling,
            settings.compute,
            posterior.voxel_marginals(settings.marginals),
            posterior.samples,
            by_samples=self.run.by_samples,
        )


def _in_words(error: Exception) -> str:
    if isinstance(error, MemoryError):
        return "there is not enough memory to solve this again"
    return " ".join(str(error).split())


def open_session(folder: Path, samples: int | None = None) -> Session:
    """Open the run in ``folder``; one whose files lead out of it by a link is refused."""
    home = folder.resolve()
    for path in sorted(home.rglob("*")):
        if not path.resolve().is_relative_to(home):
            raise ValueError(f"{path} is a link to a place outside the folder; remove it")
    return Session(load_run(home), samples)
