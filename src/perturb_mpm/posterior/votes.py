"""The parts of a posterior (votes, label sizes, sums): counted, checked, merged and stored.

A posterior's file is a .npz that NumPy alone can read, with nothing pickled inside. Format
"perturb-mpm posterior", version 1, N voxels inside the mask in C order, all little-endian:

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
import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from perturb_mpm import checks
from perturb_mpm.checks import in_short
from perturb_mpm.engines import FRACTION_BITS, count_votes
from perturb_mpm.model import Grid
from perturb_mpm.storage import (
    DAMAGE,
    MISSING,
    DamagedError,
    largest_state,
    nested_differences,
    parse_json,
    read_arrays,
    write_arrays,
)

if TYPE_CHECKING:
    from perturb_mpm.posterior.posterior import Posterior

T = TypeVar("T")

SAMPLED = (
    "sample_index",
    "volumes",
    "label_changes",
    "voxel_counts",
    "voxel_conditional",
    "voxel_mean_field",
)
"""The names of a posterior's arrays."""

_MOST_IN_UINT16 = 65535
_NORMALISED = 1e-3  # how far from 1 the sum of float32 marginals may be


def count_type(samples: int) -> type[np.unsignedinteger[Any]]:
    """Return the smallest type that counts that many samples: uint16, or uint32."""
    return np.uint16 if samples <= _MOST_IN_UINT16 else np.uint32


def sample_numbers(value: ArrayLike) -> NDArray[np.int64]:
    """Return the numbers of the samples, (S,), at least one and increasing."""
    index = checks.whole(value, "sample_index")
    if index.ndim != 1 or index.size == 0:
        raise ValueError(f"sample_index must be (samples,), not empty, got shape {index.shape}")
    if index[0] < 0 or (np.diff(index) <= 0).any():
        raise ValueError(f"sample_index must be increasing numbers from 0 on, got {ranges(index)}")
    return checks.read_only(index)


def votes(value: ArrayLike, grid: Grid, samples: int) -> NDArray[np.unsignedinteger[Any]]:
    """Return the votes inside the mask, (L, N), that sum to S at every voxel."""
    array = _integers(value, "counts")
    inside = _inside(array, "counts", grid, n_labels=len(array) if array.ndim else 0)
    total = inside.sum(axis=0, dtype=np.int64)
    wrong = total != samples
    if inside.min() < 0 or wrong.any():
        raise ValueError(
            f"counts must be at least 0 and sum to the {samples} samples at every voxel, got "
            f"values from {inside.min()} and sums from {total.min()} to {total.max()}, "
            f"wrong at {int(wrong.sum())} voxels"
        )
    return checks.read_only(inside.astype(count_type(samples), copy=False))


def conditional(value: ArrayLike, grid: Grid, n_labels: int, samples: int) -> NDArray[np.int64]:
    """Return the sums of conditional marginals in units of 2⁻³⁰ inside the mask, (L, N)."""
    inside = _inside(_integers(value, "conditional"), "conditional", grid, n_labels)
    _check_normalised(inside, "conditional", samples << FRACTION_BITS)
    return checks.read_only(inside.astype(np.int64, copy=False))


def mean_field(value: ArrayLike, grid: Grid, n_labels: int) -> NDArray[np.float32]:
    """Return marginals inside the mask as float32, (L, N)."""
    inside = _inside(checks.numeric(value, "mean_field"), "mean_field", grid, n_labels)
    checks.finite(inside, "mean_field")
    _check_normalised(inside, "mean_field", 1)
    return checks.read_only(inside.astype(np.float32, copy=False))


def volumes(
    value: ArrayLike, counts: NDArray[Any], grid: Grid, samples: int
) -> NDArray[np.float64]:
    """Return the volumes (S, L) in mm³, which must add up to those of the votes."""
    array = np.array(checks.numeric(value, "volumes"), dtype=np.float64, order="C")
    if array.shape != (samples, len(counts)):
        raise ValueError(
            f"volumes must be ({samples} samples, {len(counts)} labels), got shape {array.shape}"
        )
    checks.finite(array, "volumes")
    voxel = math.prod(grid.spacing)  # mm³
    whole = grid.voxels * voxel
    counted = counts.sum(axis=1, dtype=np.int64) * voxel  # (L,)
    with np.errstate(over="ignore"):  # an infinite sum does not agree
        summed = array.sum(axis=0)
        agrees = np.allclose(summed, counted, rtol=0, atol=1e-9 * whole * samples)
        fills = np.allclose(array.sum(axis=1), whole, rtol=1e-9, atol=0)
    if array.min() < 0 or not agrees or not fills:
        raise ValueError(
            f"volumes must be at least 0, {whole:g} mm³ in each sample, and for each label what "
            f"its votes amount to, {counted} mm³ in all samples, got {summed} mm³"
        )
    return checks.read_only(array)


def label_changes(value: ArrayLike, samples: int) -> NDArray[np.float64]:
    """Return a share of voxels for each sample, (S,)."""
    array = np.array(checks.numeric(value, "label_changes"), dtype=np.float64)
    if array.shape != (samples,):
        raise ValueError(f"label_changes must be ({samples} samples,), got shape {array.shape}")
    checks.finite(array, "label_changes")
    checks.between(array, "label_changes")
    return checks.read_only(array)


def copy_json(value: T, name: str) -> T:
    """Return a copy as it comes back from a JSON file."""
    try:
        copy: T = json.loads(json.dumps(value, allow_nan=False))
    except (RecursionError, TypeError, ValueError) as error:
        raise TypeError(
            f"{name} must contain only text, finite numbers, booleans, None, lists and dicts, "
            f"got one that JSON cannot store ({error}): write infinity as text"
        ) from None
    return copy


def ranges(index: NDArray[np.int64]) -> str:
    """Return sample numbers in words, as in "0–99, 200"; what comes after six ranges is "…"."""
    cuts = np.flatnonzero(np.diff(index) != 1) + 1
    runs = [(int(run[0]), int(run[-1])) for run in np.split(index, cuts)[:7]]
    words = [f"{first}–{last}" if last != first else str(first) for first, last in runs]
    return ", ".join(words if len(words) < 7 else [*words[:6], "…"])


def _integers(value: ArrayLike, name: str) -> NDArray[Any]:
    array = checks.numeric(value, name)
    if array.dtype.kind not in "iu":
        raise TypeError(f"{name} must be integers, got dtype {array.dtype}")
    return array


def _inside(array: NDArray[Any], name: str, grid: Grid, n_labels: int) -> NDArray[Any]:
    """Return a copy of (L, *spatial) or (L, N) as (L, N)."""
    if array.shape == (n_labels, *grid.shape):
        inside = grid.gather(array)
    elif array.shape == (n_labels, grid.voxels):
        inside = np.array(array, order="C")
    else:
        raise ValueError(
            f"{name} must be (labels, *{grid.shape}), or (labels, {grid.voxels}) for the voxels "
            f"inside the mask, got shape {array.shape}"
        )
    if not checks.FEWEST_LABELS <= n_labels <= checks.MOST_LABELS:
        raise ValueError(
            f"{name} must have {checks.FEWEST_LABELS} to {checks.MOST_LABELS} labels "
            f"(the first axis), got shape {array.shape}"
        )
    return inside.astype(inside.dtype.newbyteorder("="), copy=False)


def _check_normalised(inside: NDArray[Any], name: str, one: int) -> None:
    total = inside.sum(axis=0) / float(one)
    if inside.min() < 0 or np.abs(total - 1.0).max() > _NORMALISED:
        raise ValueError(
            f"{name} must be at least 0 and sum to {one} over the labels, within "
            f"{_NORMALISED:g} of it, got values from {inside.min()} and sums from "
            f"{total.min() * one:.6g} to {total.max() * one:.6g}"
        )


class Tally:
    """The votes of each voxel, the size of each label in each sample, and what else is summed."""

    def __init__(self, grid: Grid, n_labels: int, *, conditional: bool) -> None:
        self.counts: NDArray[np.uint32] = np.zeros((n_labels, grid.voxels), dtype=np.uint32)
        self.conditional: NDArray[np.int64] | None = None
        if conditional:
            self.conditional = np.zeros((n_labels, grid.voxels), dtype=np.int64)
        self._sizes: list[NDArray[np.int64]] = []  # each (B, L)
        self._label_changes: list[NDArray[np.float64]] = []  # each (B,)

    @property
    def samples(self) -> int:
        """The number of samples counted."""
        return sum(len(sizes) for sizes in self._sizes)

    @property
    def sizes(self) -> NDArray[np.int64]:
        """The number of voxels of each label in each sample, (S, L)."""
        return np.concatenate(self._sizes)

    @property
    def label_changes(self) -> NDArray[np.float64]:
        """The share of the voxels whose label the last update changed, (S,)."""
        return np.concatenate(self._label_changes)

    def add(self, labels: NDArray[np.uint8], label_changes: NDArray[np.float64]) -> None:
        """Count the label maps of a batch, (B, N)."""
        self.add_sizes(count_votes(labels, self.counts), label_changes)

    def add_sizes(self, sizes: NDArray[np.int64], label_changes: NDArray[np.float64]) -> None:
        """Note the label sizes (B, L) of a batch that is in ``counts`` already."""
        self._sizes.append(sizes)
        self._label_changes.append(label_changes)

    def add_conditional(self, units: NDArray[np.int64]) -> None:
        """Add a batch's conditional marginals, (L, N), in units of 2⁻³⁰."""
        if self.conditional is not None:
            self.conditional += units


def merge(posteriors: Sequence[Posterior]) -> dict[str, Any]:
    """Return the arguments of the posterior of all these samples, in order."""
    first = posteriors[0]
    for other in posteriors[1:]:
        _check_alike(first, other)
    index = np.concatenate([each.sample_index for each in posteriors])
    _check_apart(index)
    order = np.argsort(index)
    all_volumes = np.concatenate([each.volumes for each in posteriors])
    changes = _arrays(posteriors, "label_changes")
    counts = [each.voxel_counts for each in posteriors]
    sums = _arrays(posteriors, "voxel_conditional")
    return {
        "grid": first.grid,
        "counts": _add(counts, count_type(len(index))),
        "sample_index": index[order],
        "volumes": all_volumes[order],
        "estimator": first.estimator,
        "conditional": None if sums is None else _add(sums, np.int64),
        "mean_field": _mean_field(posteriors),
        "label_changes": None if changes is None else np.concatenate(changes)[order],
        "problem": first.problem,
        "parameters": first.parameters,
    }


def differences(a: Posterior, b: Posterior) -> list[str]:
    """Return in words what the two differ in, other than their samples."""
    words = [
        f"{name} {_short(one)} against {_short(other)}"
        for name, one, other in nested_differences(_describe(a), _describe(b))
    ]
    if a.grid.shape == b.grid.shape and not np.array_equal(a.grid.index, b.grid.index):
        words.append(f"masks of {a.grid.voxels} and {b.grid.voxels} voxels that differ")
    return words


def _describe(posterior: Posterior) -> dict[str, object]:
    return {
        "shape": posterior.grid.shape,
        "spacing": posterior.grid.spacing,
        "labels": posterior.n_labels,
        "estimator": posterior.estimator,
        "problem": posterior.problem,
        **posterior.parameters,
    }


def same_array(a: NDArray[Any] | None, b: NDArray[Any] | None) -> bool:
    """Return whether two arrays, or None, have the same type, shape and content."""
    if a is None or b is None:
        return a is b
    return a.dtype == b.dtype and np.array_equal(a, b)


def _short(value: object) -> str:
    return "nothing" if value is MISSING else in_short(repr(value), 60)


def _check_alike(first: Posterior, other: object) -> None:
    if not isinstance(other, type(first)):
        raise TypeError(f"other must be a Posterior, got {type(other).__name__}")
    found = differences(first, other)
    if found:
        raise ValueError(
            "posteriors must be of the same problem and parameters to be merged, got "
            + "; ".join(found)
        )


def _check_apart(index: NDArray[np.int64]) -> None:
    numbers, times = np.unique(index, return_counts=True)
    twice = numbers[times > 1]
    if twice.size:
        raise ValueError(
            "posteriors must have different samples to be merged, got "
            f"{twice.size} in more than one: {ranges(twice)}"
        )


def _arrays(posteriors: Sequence[Posterior], name: str) -> list[NDArray[Any]] | None:
    """Return that array of each posterior, or None where none of them has it."""
    arrays = [getattr(each, name) for each in posteriors]
    given = [array for array in arrays if array is not None]
    if given and len(given) < len(arrays):
        word = name.removeprefix("voxel_")
        raise ValueError(f"{word} must be in all posteriors or in none to be merged, got some")
    return given or None


def _add(arrays: Sequence[NDArray[Any]], dtype: type[np.integer[Any]]) -> NDArray[Any]:
    """Return the sum in a type that holds it: each array may be of a smaller one."""
    total = np.zeros(arrays[0].shape, dtype=dtype)
    for array in arrays:
        total += array
    return total


def _mean_field(posteriors: Sequence[Posterior]) -> NDArray[np.float32] | None:
    """Return the one mean field: it belongs to the problem, and one that has it is enough."""
    given = [each.voxel_mean_field for each in posteriors if each.voxel_mean_field is not None]
    if not all(same_array(given[0], other) for other in given[1:]):
        raise ValueError(
            "mean_field must be the same in all posteriors to be merged, got ones that differ"
        )
    return given[0] if given else None


FORMAT = "perturb-mpm posterior"
VERSION = 1

_ALWAYS = {"sample_index", "counts", "volumes"}
_SOMETIMES = {"mask", "conditional", "mean_field", "label_changes"}
_IN_HEADER = ("estimator", "problem", "parameters")


def write_file(posterior: Posterior, path: str | os.PathLike[str], *, compress: bool) -> None:
    """Write the file, whole or not at all."""
    if not Path(path).name.endswith(".npz"):
        raise ValueError(f"path must end in .npz, got {Path(path).name!r}")
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
    text = json.dumps(header, sort_keys=True, allow_nan=False)
    write_arrays(path, {"header": np.array(text), **given}, compress=compress)


def read_file(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Return the arguments of the posterior in a file, or refuse the file, naming it and why."""
    source = Path(path)
    with source.open("rb") as file:
        if file.read(2) != b"PK":
            raise ValueError(f"{path} is not a posterior of perturb-mpm: it is no .npz file")
    text = _read_stored(source, ["header"]).get("header")
    if text is None:
        raise ValueError(f"{path} is not a posterior of perturb-mpm: it has no header")
    header = _header(text, path)
    arrays = _read_stored(source, header["arrays"])
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


def _read_stored(path: Path, names: list[str]) -> dict[str, NDArray[Any]]:
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
