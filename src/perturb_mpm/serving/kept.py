"""What an update leaves in the run's folder: corrected maps, and their marginals."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from perturb_mpm.correction.corrector import Correction, no_correction
from perturb_mpm.io.case import Case
from perturb_mpm.io.nifti import save_like
from perturb_mpm.pipeline.arrays import read_arrays, write_arrays
from perturb_mpm.pipeline.state import STATE

LABELS = "labels-corrected.nii.gz"
ENTROPY = "entropy-corrected.nii.gz"
_MARGINALS = f"{STATE}/correction.npz"


def write_kept(
    folder: Path,
    edits: Mapping[int, int],
    correction: Correction,
    case: Case,
    run_labels: NDArray[np.uint8],
    run_entropy: NDArray[np.float32],
) -> None:
    """Write the corrected maps beside the run's own, each whole or not at all."""
    values = case.labels.values_of(correction.labels(run_labels))
    save_like(folder / LABELS, values, case.geometry, "label values, corrected by hand")
    top = f"{math.log2(len(case.labels)):.4g}"
    bits = correction.entropy(run_entropy)
    save_like(folder / ENTROPY, bits, case.geometry, f"entropy, bits, 0 to {top}, corrected")
    arrays = {
        "edited_index": np.array(list(edits), dtype=np.int64),
        "edited_label": np.array(list(edits.values()), dtype=np.int64),
        "index": correction.index,
        "marginals": correction.marginals,
    }
    write_arrays(folder / _MARGINALS, arrays)


def read_kept(folder: Path, edits: Mapping[int, int], n_labels: int) -> Correction:
    """Return what these edits made of the maps, nothing where it is not known."""
    nothing = no_correction(n_labels)
    if not edits or not (folder / _MARGINALS).is_file():
        return nothing
    arrays = read_arrays(folder / _MARGINALS)
    pairs = zip(arrays["edited_index"].tolist(), arrays["edited_label"].tolist())
    if dict(pairs) != dict(edits):
        return nothing
    return Correction(arrays["index"], arrays["marginals"])


def remove_kept(folder: Path) -> None:
    """Remove the corrected maps."""
    for name in (LABELS, ENTROPY, _MARGINALS):
        (folder / name).unlink(missing_ok=True)
