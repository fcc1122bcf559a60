"""Probabilities as nnU-Net saves them: an .npz with its axes reversed, and files beside it.

The .pkl beside it is never opened: a pickle can run anything. What it would tell, where the voxels
are, stands in the label map ``CASE.nii.gz`` that is written with ``CASE.npz``.
"""

from __future__ import annotations

import zipfile
import zlib
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from perturb_mpm.io.errors import Source
from perturb_mpm.io.hashing import sha256
from perturb_mpm.io.nifti_read import damaged, opened

_DAMAGE = (EOFError, NotImplementedError, OSError, RuntimeError, ValueError, zlib.error)


def read_npz(source: Source) -> tuple[NDArray[np.float32], str]:
    """Return the maps (C, X, Y, Z) of nnU-Net's .npz, stored as (C, Z, Y, X), and its SHA-256."""
    with opened(source) as file:
        digest = sha256(file)
        try:
            with zipfile.ZipFile(file) as archive:
                stored = _stored(source, archive)
        except zipfile.BadZipFile as error:
            raise source.error(f"is no .npz file, or damaged ({error})") from error
    if stored.ndim != 4 or 0 in stored.shape or stored.dtype.kind not in "biuf":
        raise source.error(
            "must hold numbers with the axes C, Z, Y, X, "
            f"got shape {stored.shape} of type {stored.dtype}"
        )
    with np.errstate(over="ignore"):
        maps = stored.transpose(0, 3, 2, 1).astype(np.float32, order="C")
    return maps, digest


def label_map_beside(path: Path) -> Path | None:
    """Return the label map that nnU-Net wrote with an .npz, or None."""
    candidates = (path.with_suffix(ending) for ending in (".nii.gz", ".nii"))
    return next((found for found in candidates if found.is_file()), None)


def dataset_json_beside(path: Path) -> Path | None:
    """Return the dataset.json that nnU-Net copies to where it predicts, or None."""
    found = path.with_name("dataset.json")
    return found if found.is_file() else None


def _stored(source: Source, archive: zipfile.ZipFile) -> np.ndarray:
    names = [name.removesuffix(".npy") for name in archive.namelist()]
    if "probabilities" not in names:
        hint = "predict with nnUNetv2_predict --save_probabilities"
        if "softmax" in names:
            hint = (
                "softmax is nnU-Net version 1's, which covers only the cropped box and does not "
                "say where that is; " + hint
            )
        raise source.error(f"must hold the array probabilities, got {', '.join(names)}; {hint}")
    try:
        with archive.open("probabilities.npy") as entry:
            array = np.lib.format.read_array(entry, allow_pickle=False)
            entry.read(1)  # only at its end does an entry compare its checksum
    except _DAMAGE as error:
        raise damaged(source, error) from error
    return array
