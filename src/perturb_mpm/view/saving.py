"""The files of a correction, beside the run's own: one set, which is current as a whole or not.

A set is first written under other names, into the run's state folder. Then its manifest,
``state/correction.json``, which names the files and their digests, replaces the one before in a
single step: that makes the new set current. Only then do its files take their visible names.
A process that is killed before that step leaves the old set, one that is killed after it the new
set. ``recover`` removes or finishes what it left behind, whenever the run is opened.
"""

from __future__ import annotations

import hashlib
import json
import math
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perturb_mpm import checks
from perturb_mpm.checks import ExpectedError, in_short
from perturb_mpm.files import Geometry, LabelScheme, save_like
from perturb_mpm.run import (
    STATE,
    OutputError,
    Run,
    register_files,
    summarize_run,
    volume_rows,
    volume_sets,
    write_page,
)
from perturb_mpm.storage import (
    DAMAGE,
    DamagedError,
    atomic_open,
    error_text,
    largest_state,
    read_arrays,
    read_json,
    write_arrays,
    write_json,
)
from perturb_mpm.view.correction import Correction, Edits, no_correction

LABELS = "labels-corrected.nii.gz"
ENTROPY = "entropy-corrected.nii.gz"
REPORT = "report-corrected.html"
SUMMARY = "summary-corrected.json"
EDITS = "edits.json"
MARGINALS = f"{STATE}/correction.npz"
FILES = (LABELS, ENTROPY, REPORT, SUMMARY, EDITS, MARGINALS)
MANIFEST = "correction.json"  # in the state folder
FORMAT = 1
ABOUT = "Voxels set by hand: their indices from 0 and their labels as in labels.nii.gz."
_STAGED = "new-"  # how names begin until a set is current


@dataclass(frozen=True)
class VolumeChange:
    """What a correction does to the volume of a region or a label, as the maps show it."""

    name: str
    before_ml: float
    after_ml: float


def volume_changes(run: Run, correction: Correction) -> list[VolumeChange]:
    """Return a row for each region and label but the background."""
    labels, voxel_ml = run.case.labels, math.prod(run.case.geometry.spacing) / 1000
    before, after = (
        np.bincount(each, minlength=len(labels))
        for each in (run.labels.flat[correction.index], correction.decide(run.regions))
    )
    inside = {row.name: row.volume_ml for row in volume_rows(run)}
    return [
        VolumeChange(
            name,
            inside[name],
            inside[name] + voxel_ml * float((after - before)[members].sum()),
        )
        for name, kind, members in volume_sets(labels, run.regions)
        if kind != "background"
    ]


class CorrectionFiles:
    """Reads and writes the files of the correction of one run."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self._state = run.folder / STATE
        self._run_digest = _digest(self._state / "run.json")
        self._edits = EditsFile(
            run.folder / EDITS, str(run.posterior.problem), run.case.labels, run.case.geometry
        )

    def read(self) -> tuple[dict[int, int], Correction, bool]:
        """Return the edits, what they make of the maps, and whether every file is as it was saved.

        Without edits, or where the correction of other edits is found, the maps are the run's own.
        """
        self.recover()
        edits = self._edits.read()
        correction = self._read_marginals(edits)
        saved = self._read_manifest() or {}
        paths = {name: self.run.folder / name for name in FILES}
        whole = all(p.is_file() and _digest(p) == saved.get(name) for name, p in paths.items())
        return edits, correction, whole

    def save(self, edits: Edits, correction: Correction, corrected: Run) -> None:
        """Make these the current edits and files; where that fails, all stays as it was."""
        self._check_run()
        self.recover()
        self._register()
        staged = {name: self._staged_path(name) for name in FILES}
        try:
            self._write_maps(staged, edits, correction)
            self._write_pages(staged, edits, correction, corrected)
            replace(self._edits, path=staged[EDITS]).write(edits, self.run.labels)
            digests = {name: _digest(path) for name, path in staged.items()}
            write_json(self._state / MANIFEST, {"format": FORMAT, "files": digests})
        except BaseException:
            with suppress(OSError):
                self.recover()
            raise
        self.recover()

    def remove(self) -> None:
        """Remove all files of a correction: a set without any becomes the current one."""
        self._check_run()
        self._register()
        write_json(self._state / MANIFEST, {"format": FORMAT, "files": {}})
        self.recover()

    def recover(self) -> None:
        """Give the files of the current set their names, and remove what belongs to none."""
        current = self._read_manifest()
        for name in FILES:
            staged, visible = self._staged_path(name), self.run.folder / name
            wanted = None if current is None else current.get(name)
            if staged.exists():
                if wanted is not None and _digest(staged) == wanted:
                    staged.replace(visible)
                else:
                    staged.unlink()
            if current is not None and wanted is None and visible.exists():
                visible.unlink()
        for pattern in (f".{_STAGED}*.part", f".{MANIFEST}.*.part"):
            for partial in self._state.glob(pattern):
                partial.unlink()
        if current == {}:
            (self._state / MANIFEST).unlink()

    def _staged_path(self, name: str) -> Path:
        return self._state / f"{_STAGED}{Path(name).name}"

    def _register(self) -> None:
        """List the names of a correction among the run's files, before any of them is written."""
        staged = [f"{STATE}/{self._staged_path(name).name}" for name in FILES]
        register_files(self.run.folder, [*FILES, *staged, f"{STATE}/{MANIFEST}"])

    def _check_run(self) -> None:
        """Refuse to write beside another run: locks do not work on every file system."""
        if _digest(self._state / "run.json") != self._run_digest:
            raise OutputError(
                f"{self.run.folder} now contains another run than the one that is shown; open it "
                "again"
            )

    def _read_manifest(self) -> dict[str, str] | None:
        """Return the digest of each file of the current set, None where nothing was saved."""
        path = self._state / MANIFEST
        try:
            page = read_json(path)
        except FileNotFoundError:
            return None
        try:
            files = {str(name): str(digest) for name, digest in page["files"].items()}
            if page["format"] != FORMAT or set(files) not in (set(), set(FILES)):
                raise ValueError("it names other files")
        except DAMAGE as error:
            raise DamagedError(f"{path} is damaged: {error_text(error)}") from error
        return files

    def _write_maps(self, paths: dict[str, Path], edits: Edits, correction: Correction) -> None:
        run, case = self.run, self.run.case
        mask = case.mask.copy()
        mask.flat[list(edits)] = True
        values = case.labels.to_values(correction.labels(run.labels, run.regions), mask)
        save_like(paths[LABELS], values, case.geometry, "label values, corrected by hand")
        top = f"{math.log2(len(case.labels)):.4g}"
        bits = correction.entropy(run.entropy)
        save_like(paths[ENTROPY], bits, case.geometry, f"entropy, bits, 0 to {top}, corrected")
        arrays = {
            "edited_index": np.array(list(edits), dtype=np.int64),
            "edited_label": np.array(list(edits.values()), dtype=np.int64),
            "index": correction.index,
            "marginals": correction.marginals,
        }
        write_arrays(paths[MARGINALS], arrays)

    def _write_pages(
        self, paths: dict[str, Path], edits: Edits, correction: Correction, corrected: Run
    ) -> None:
        """Write the report and the summary of the corrected run."""
        run = self.run
        files = {"labels": LABELS, "entropy": ENTROPY, "report": REPORT, "summary": SUMMARY}
        outputs = {name: paths[file] for name, file in files.items()}
        by_hand = (
            f"{len(edits)} voxels were set by hand: maps, volumes and intervals are those of the "
            "model given that these labels are right"
        )
        warnings = [by_hand, *run.case.warnings]
        page = replace(corrected, title=f"{run.title}, corrected", files={**run.files, **outputs})
        answer = write_page(page, warnings)
        summary = {
            **summarize_run(page),
            "answer": answer,
            "corrected": {
                "edited_voxels": len(edits),
                "volumes": [asdict(each) for each in volume_changes(run, correction)],
            },
            "warnings": warnings,
            "files": files,
        }
        write_json(paths[SUMMARY], summary)

    def _read_marginals(self, edits: Edits) -> Correction:
        """Return the saved correction of these edits, an empty one where there is none."""
        nothing = no_correction(self.run.posterior.n_labels)
        path = self.run.folder / MARGINALS
        if not edits or not path.is_file():
            return nothing
        arrays = read_arrays(path, limit=largest_state())
        try:
            pairs = zip(arrays["edited_index"].tolist(), arrays["edited_label"].tolist())
            if dict(pairs) != dict(edits):
                return nothing
            _check_fit(arrays["index"], arrays["marginals"], self.run)
        except DAMAGE as error:
            raise DamagedError(f"{path} is damaged: {error_text(error)}") from error
        return Correction(arrays["index"], arrays["marginals"])


def _check_fit(index: NDArray[Any], marginals: NDArray[Any], run: Run) -> None:
    """Refuse what does not fit the run: it would be written anywhere in its maps."""
    if index.dtype != np.int64 or index.ndim != 1 or marginals.dtype != np.float64:
        raise ValueError("its arrays are of other types")
    if marginals.shape != (run.posterior.n_labels, len(index)):
        raise ValueError("its marginals do not fit its voxels")
    checks.in_range(index, "index", run.case.mask.size)
    checks.finite(marginals, "marginals")


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


class EditsError(ExpectedError):
    """A list of edits cannot be read, or belongs to another run."""


@dataclass(frozen=True)
class EditsFile:
    """Reads and writes the edits of one run; ``run`` is the digest that names its CRF."""

    path: Path
    run: str
    labels: LabelScheme
    geometry: Geometry

    def write(self, edits: Edits, old_labels: NDArray[np.uint8]) -> None:
        """Write the edits in their order; ``old_labels`` (X, Y, Z) are the run's own."""
        page = {
            "format": FORMAT,
            "about": ABOUT,
            "run": self.run,
            "shape": list(self.geometry.shape),
            "edits": [
                self._entry(order, voxel, label, old_labels)
                for order, (voxel, label) in enumerate(edits.items(), start=1)
            ],
        }
        with atomic_open(self.path) as file:
            file.write(_text(page).encode())

    def read(self) -> dict[int, int]:
        """Return the edits in their order, none where there is no file."""
        try:
            page = read_json(self.path)
        except FileNotFoundError:
            return {}
        except DamagedError as error:
            raise EditsError(str(error)) from error
        try:
            return self._parse(page)
        except DAMAGE as error:
            words = in_short(error_text(error), 300)
            raise EditsError(f"{self.path} is not a list of edits of this run: {words}") from error

    def _entry(
        self, order: int, voxel: int, label: int, old_labels: NDArray[np.uint8]
    ) -> dict[str, Any]:
        indices = [int(i) for i in np.unravel_index(voxel, self.geometry.shape)]
        mm = self.geometry.affine[:3, :3] @ indices + self.geometry.affine[:3, 3]
        return {
            "order": order,
            "voxel": indices,
            "position_mm": [round(float(x), 3) for x in mm],
            "old_label": self.labels.values[int(old_labels.flat[voxel])],
            "new_label": self.labels.values[label],
        }

    def _parse(self, page: dict[str, Any]) -> dict[int, int]:
        if page["format"] != FORMAT:
            raise ValueError(f"its format must be {FORMAT}, got {page['format']}")
        if page["run"] != self.run:
            raise ValueError("it was made for another run; move it away to start anew")
        edits = {}
        for entry in sorted(page["edits"], key=lambda each: int(each["order"])):
            voxel = np.ravel_multi_index(entry["voxel"], self.geometry.shape)
            edits[int(voxel)] = self.labels.values.index(entry["new_label"])
        return edits


def _text(page: dict[str, Any]) -> str:
    """Write JSON with one line for each edit."""
    edits = ",\n".join("    " + json.dumps(entry) for entry in page["edits"])
    head = json.dumps({**page, "edits": []}, indent=2, ensure_ascii=False)
    return head.removesuffix("[]\n}") + (f"[\n{edits}\n  ]\n}}\n" if edits else "[]\n}\n")
