"""Posteriors as files: a .npz that NumPy alone can read, with nothing pickled inside.

Format "perturb-mpm posterior", version 1, N voxels inside the mask in C order, all little-endian:

    header         text     JSON: format, version, shape, spacing in mm, estimator, problem,
                            parameters, and arrays, the names of the others in the file
    sample_index   (S,)     int64, increasing
    counts         (L, N)   uint16, or uint32 where S > 65535; sum S at every voxel
    volumes        (S, L)   float64, mm³
    mask           shape    bool; absent where all voxels are in play
    conditional    (L, N)   int64, sum of conditional marginals in units of 2⁻³⁰; may be absent
    mean_field     (L, N)   float32; may be absent
    label_changes  (S,)     float64; may be absent

``numpy.load(path)["counts"]`` and ``json.loads(numpy.load(path)["header"].item())`` read it too.
"""

from __future__ import annotations

import io
import json
import os
import struct
import zipfile
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from perturb_mpm.model import Grid
from perturb_mpm.storage import write_arrays

if TYPE_CHECKING:
    from perturb_mpm.posterior.posterior import Posterior


FORMAT = "perturb-mpm posterior"
VERSION = 1

_ALWAYS = {"sample_index", "counts", "volumes"}
_SOMETIMES = {"mask", "conditional", "mean_field", "label_changes"}
_IN_HEADER = ("estimator", "problem", "parameters")

# What a zip file with any bytes changed makes its reader raise.
_DAMAGE = (
    zipfile.BadZipFile,
    zlib.error,
    struct.error,
    EOFError,
    LookupError,
    OSError,
    OverflowError,
    RuntimeError,
    ValueError,
)


def write(posterior: Posterior, path: str | os.PathLike[str]) -> None:
    """Write the file, whole or not at all."""
    if not Path(path).name.endswith(".npz"):
        raise ValueError(f"path must end in .npz, got {Path(path).name!r}")
    write_arrays(path, _entries(posterior))


def read(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Return the arguments of the posterior in a file, or refuse the file, naming it and why."""
    with Path(path).open("rb") as file:
        if file.read(2) != b"PK":
            raise ValueError(f"{path} is not a posterior of perturb-mpm: it is no .npz file")
        try:
            archive = zipfile.ZipFile(file)
        except _DAMAGE as error:
            raise ValueError(f"{path} is damaged, perhaps cut short: {error}") from error
        with archive:
            header = _header(archive, path)
            arrays = {name: _array(archive, name, path) for name in header["arrays"]}
    try:
        grid = Grid(header["shape"], header["spacing"], arrays.pop("mask", None))
        return {"grid": grid, **arrays, **{name: header[name] for name in _IN_HEADER}}
    except KeyError as missing:
        raise ValueError(f"{path} is damaged: its header has no {missing}") from missing
    except (TypeError, ValueError) as error:
        raise ValueError(f"{path} is damaged: {error}") from error


def _entries(posterior: Posterior) -> dict[str, NDArray[Any]]:
    arrays = {
        "sample_index": posterior.sample_index,
        "counts": posterior.voxel_counts,
        "volumes": posterior.volumes,
        "mask": posterior.grid.mask,
        "conditional": posterior.voxel_conditional,
        "mean_field": posterior.voxel_mean_field,
        "label_changes": posterior.label_changes,
    }
    held = {name: array for name, array in arrays.items() if array is not None}
    header = {
        "format": FORMAT,
        "version": VERSION,
        "shape": posterior.grid.shape,
        "spacing": posterior.grid.spacing,
        "arrays": sorted(held),  # an entry whose name is damaged must not pass for one left out
        **{name: getattr(posterior, name) for name in _IN_HEADER},
    }
    return {"header": np.array(json.dumps(header, sort_keys=True, allow_nan=False)), **held}


def _header(archive: zipfile.ZipFile, path: str | os.PathLike[str]) -> dict[str, Any]:
    foreign = f"{path} is not a posterior of perturb-mpm"
    if "header.npy" not in archive.namelist():
        raise ValueError(f"{foreign}: it has no header")
    text = _array(archive, "header", path)
    try:
        header = json.loads(text.item())
        form, version = header["format"], header["version"]
    except (KeyError, TypeError, ValueError):
        raise ValueError(f"{foreign}: its header names no format and version") from None
    if form != FORMAT or type(version) is not int:
        raise ValueError(f"{foreign}: its format is {form!r}, version {version!r}")
    if version != VERSION:
        raise ValueError(
            f"{path} is of version {version} of its format, but this perturb-mpm reads version "
            f"{VERSION}: use the perturb-mpm that wrote it, or a newer one"
        )
    names = header.get("arrays")
    if not isinstance(names, list) or not _ALWAYS <= set(map(str, names)) <= _ALWAYS | _SOMETIMES:
        raise ValueError(f"{path} is damaged: its header names the arrays {names}")
    return dict(header)


def _array(archive: zipfile.ZipFile, name: str, path: str | os.PathLike[str]) -> NDArray[Any]:
    try:
        info = archive.getinfo(f"{name}.npy")
        if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise ValueError(f"compression type {info.compress_type}")
        # Read to its end before it is looked at: only then is its checksum compared.
        content = archive.read(info)
        array: NDArray[Any] = np.lib.format.read_array(io.BytesIO(content), allow_pickle=False)
    except _DAMAGE as error:
        raise ValueError(f"{path} is damaged: {name} cannot be read ({error})") from error
    return array
