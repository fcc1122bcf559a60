"""The files of a correction, beside the run's own and never over them."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perturb_mpm import checks
from perturb_mpm.checks import ExpectedError, in_short
from perturb_mpm.files import Geometry, LabelScheme, save_like
from perturb_mpm.run import STATE, Run, summarize_run, volume_rows, volume_sets, write_page
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
MARGINALS = f"{STATE}/correction.npz"
FORMAT = 1
ABOUT = "Voxels set by hand: their indices from 0 and their labels as in labels.nii.gz."


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


def save_maps(run: Run, edits: Edits, correction: Correction) -> None:
    """Write the corrected maps, each whole or not at all."""
    case, folder = run.case, run.folder
    mask = case.mask.copy()
    mask.flat[list(edits)] = True
    values = case.labels.to_values(correction.labels(run.labels, run.regions), mask)
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
    write_arrays(folder / MARGINALS, arrays)


def save_pages(run: Run, corrected: Run, edits: Edits, correction: Correction) -> None:
    """Write the report and the summary of the corrected run."""
    files = {"labels": LABELS, "entropy": ENTROPY, "report": REPORT, "summary": SUMMARY}
    paths = {name: run.folder / file for name, file in files.items()}
    by_hand = (
        f"{len(edits)} voxels were set by hand: maps, volumes and intervals are those of the model "
        "given that these labels are right"
    )
    warnings = [by_hand, *run.case.warnings]
    page = replace(corrected, title=f"{run.title}, corrected", files={**run.files, **paths})
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
    write_json(run.folder / SUMMARY, summary)


def load_correction(run: Run, edits: Edits) -> Correction:
    """Return the saved correction of these edits, an empty one where there is none."""
    nothing = no_correction(run.posterior.n_labels)
    if not edits or not (run.folder / MARGINALS).is_file():
        return nothing
    arrays = read_arrays(run.folder / MARGINALS, limit=largest_state())
    try:
        pairs = zip(arrays["edited_index"].tolist(), arrays["edited_label"].tolist())
        if dict(pairs) != dict(edits):
            return nothing
        _check(arrays["index"], arrays["marginals"], run)
    except DAMAGE as error:
        raise DamagedError(f"{run.folder / MARGINALS} is damaged: {error_text(error)}") from error
    return Correction(arrays["index"], arrays["marginals"])


def _check(index: NDArray[Any], marginals: NDArray[Any], run: Run) -> None:
    """Refuse what does not fit the run: it would be written anywhere in its maps."""
    if index.dtype != np.int64 or index.ndim != 1 or marginals.dtype != np.float64:
        raise ValueError("its arrays are of other types")
    if marginals.shape != (run.posterior.n_labels, len(index)):
        raise ValueError("its marginals do not fit its voxels")
    checks.in_range(index, "index", run.case.mask.size)
    checks.finite(marginals, "marginals")


def remove_correction(run: Run) -> None:
    """Remove all files of a correction."""
    for name in (LABELS, ENTROPY, REPORT, SUMMARY, MARGINALS):
        (run.folder / name).unlink(missing_ok=True)


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
