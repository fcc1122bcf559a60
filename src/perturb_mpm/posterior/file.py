"""Posteriors as files: a .npz that NumPy alone can read, with nothing pickled inside.

Format "perturb-mpm posterior", version 1, N voxels inside the mask in C order, all little-endian:

    header         text     JSON: format, version, shape, spacing in mm, estimator, problem,
                            parameters, and arrays, the names of the others in the file
    sample_index   (S,)     int64, increasing
    counts         (L, N)   uint16, or uint32 where S > 65535; sum S at every voxel
    volumes        (S, L)   float64, mm³
    mask           shape    bool; absent where all voxels are inside
    conditional    (L, N)   int64, sum of conditional marginals in units of 2⁻³⁰; may be absent
    mean_field     (L, N)   float32; may be absent
    label_changes  (S,)     float64; may be absent

``numpy.load(path)["counts"]`` and ``json.loads(numpy.load(path)["header"].item())`` read it too.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from perturb_mpm.checks import in_short
from perturb_mpm.model import Grid
from perturb_mpm.storage import (
    DAMAGE,
    DamagedError,
    largest_state,
    parse_json,
    read_arrays,
    write_arrays,
)

if TYPE_CHECKING:
    from perturb_mpm.posterior.posterior import Posterior


FORMAT = "perturb-mpm posterior"
VERSION = 1

_ALWAYS = {"sample_index", "counts", "volumes"}
_SOMETIMES = {"mask", "conditional", "mean_field", "label_changes"}
_IN_HEADER = ("estimator", "problem", "parameters")


def write(posterior: Posterior, path: str | os.PathLike[str]) -> None:
    """Write the file, whole or not at all."""
    if not Path(path).name.endswith(".npz"):
        raise ValueError(f"path must end in .npz, got {Path(path).name!r}")
    write_arrays(path, _entries(posterior))


def read(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Return the arguments of the posterior in a file, or refuse the file, naming it and why."""
    source = Path(path)
    with source.open("rb") as file:
        if file.read(2) != b"PK":
            raise ValueError(f"{path} is not a posterior of perturb-mpm: it is no .npz file")
    text = _arrays(source, ["header"]).get("header")
    if text is None:
        raise ValueError(f"{path} is not a posterior of perturb-mpm: it has no header")
    header = _header(text, path)
    arrays = _arrays(source, header["arrays"])
    lacking = sorted(set(header["arrays"]) - set(arrays))
    if lacking:
        raise ValueError(f"{path} is damaged: {lacking[0]} cannot be read (it is not there)")
    try:
        grid = Grid(header["shape"], header["spacing"], arrays.pop("mask", None))
        return {"grid": grid, **arrays, **{name: header[name] for name in _IN_HEADER}}
    except KeyError as missing:
        raise ValueError(f"{path} is damaged: its header has no {missing}") from missing
    except DAMAGE as error:
        raise ValueError(f"{path} is damaged: {in_short(str(error), 300)}") from error


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
    given = {name: array for name, array in arrays.items() if array is not None}
    header = {
        "format": FORMAT,
        "version": VERSION,
        "shape": posterior.grid.shape,
        "spacing": posterior.grid.spacing,
        "arrays": sorted(given),  # an entry whose name is damaged must not pass for one left out
        **{name: getattr(posterior, name) for name in _IN_HEADER},
    }
    return {"header": np.array(json.dumps(header, sort_keys=True, allow_nan=False)), **given}


def _arrays(path: Path, names: list[str]) -> dict[str, NDArray[Any]]:
    try:
        return read_arrays(path, names, largest_state())
    except DamagedError as error:
        reason = str(error).removeprefix(f"{path} cannot be read: ")
        raise ValueError(f"{path} is damaged, perhaps cut short: {reason}") from error


def _header(text: NDArray[Any], path: str | os.PathLike[str]) -> dict[str, Any]:
    foreign = f"{path} is not a posterior of perturb-mpm"
    try:
        header = parse_json(str(text.item()), "header")
        form, version = header["format"], header["version"]
    except (LookupError, TypeError, ValueError):
        raise ValueError(f"{foreign}: its header names no format and version") from None
    if form != FORMAT or type(version) is not int:
        found = in_short(f"{form!r}, version {version!r}", 100)
        raise ValueError(f"{foreign}: its format is {found}")
    if version != VERSION:
        raise ValueError(
            f"{path} is of version {version} of its format, but this perturb-mpm reads version "
            f"{VERSION}: use the perturb-mpm that wrote it, or a newer one"
        )
    names = header.get("arrays")
    if not isinstance(names, list) or not _ALWAYS <= set(map(str, names)) <= _ALWAYS | _SOMETIMES:
        found = in_short(str(names), 100)
        raise ValueError(f"{path} is damaged: its header names the arrays {found}")
    return dict(header)
