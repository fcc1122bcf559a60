"""The list of edits beside the maps, in the user's own label numbers."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perturb_mpm.checks import ExpectedError, in_short
from perturb_mpm.files import Geometry, LabelScheme
from perturb_mpm.storage import DAMAGE, DamagedError, atomic_open, error_text, read_json
from perturb_mpm.view.correction import Edits

FORMAT = 1
ABOUT = "Voxels set by hand: their indices from 0 and their labels as in labels.nii.gz."


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
            return self._checked(page)
        except DAMAGE as error:
            words = in_short(error_text(error), 300)
            raise EditsError(f"{self.path} is not a list of edits of this run: {words}") from error

    def _entry(
        self, order: int, voxel: int, label: int, old_labels: NDArray[np.uint8]
    ) -> dict[str, Any]:
        place = [int(i) for i in np.unravel_index(voxel, self.geometry.shape)]
        mm = self.geometry.affine[:3, :3] @ place + self.geometry.affine[:3, 3]
        return {
            "order": order,
            "voxel": place,
            "position_mm": [round(float(x), 3) for x in mm],
            "old_label": self.labels.values[int(old_labels.flat[voxel])],
            "new_label": self.labels.values[label],
        }

    def _checked(self, page: dict[str, Any]) -> dict[int, int]:
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
