"""Named arrays in one .npz file: whole or not at all, the same bytes every time, no pickles."""

from __future__ import annotations

import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perturb_mpm.io.atomic import atomic_open

_COMPRESSION = 1  # the state is written while the user waits


def write_arrays(path: Path, arrays: Mapping[str, NDArray[Any]]) -> None:
    """Write the arrays; NumPy alone reads them."""
    with (
        atomic_open(path) as file,
        zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED, compresslevel=_COMPRESSION) as archive,
    ):
        for name, array in arrays.items():
            # An entry named by ZipInfo has the first date that zip knows, not the present one.
            entry = zipfile.ZipInfo(f"{name}.npy")
            entry.compress_type = zipfile.ZIP_DEFLATED
            with archive.open(entry, "w", force_zip64=True) as stream:
                np.lib.format.write_array(stream, np.asarray(array), allow_pickle=False)


def read_arrays(path: Path) -> dict[str, NDArray[Any]]:
    """Read all arrays of a file; one that is damaged is a ValueError."""
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
            return {name: archive[name] for name in archive.files}
    except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
        raise ValueError(f"{path} cannot be read: {error}") from error
