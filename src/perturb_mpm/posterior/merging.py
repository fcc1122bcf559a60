"""Posteriors put together: what must agree, and how their samples add up."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from perturb_mpm.posterior import votes as posterior_parts

if TYPE_CHECKING:
    from perturb_mpm.posterior.posterior import Posterior


_NOTHING = object()


def merged(posteriors: Sequence[Posterior]) -> dict[str, Any]:
    """Return the arguments of the posterior that holds the samples of all these, in order."""
    first = posteriors[0]
    for other in posteriors[1:]:
        _check_alike(first, other)
    index = np.concatenate([each.sample_index for each in posteriors])
    _check_apart(index)
    order = np.argsort(index)
    volumes = np.concatenate([each.volumes for each in posteriors])
    changes = _of_all(posteriors, "label_changes")
    votes = [each.voxel_counts for each in posteriors]
    sums = _of_all(posteriors, "voxel_conditional")
    return {
        "grid": first.grid,
        "counts": _added(votes, posterior_parts.count_type(len(index))),
        "sample_index": index[order],
        "volumes": volumes[order],
        "estimator": first.estimator,
        "conditional": None if sums is None else _added(sums, np.int64),
        "mean_field": _mean_field(posteriors),
        "label_changes": None if changes is None else np.concatenate(changes)[order],
        "problem": first.problem,
        "parameters": first.parameters,
    }


def differences(a: Posterior, b: Posterior) -> list[str]:
    """Return in words what the two differ in, other than their samples."""
    words = [
        *_compare("shape", a.grid.shape, b.grid.shape),
        *_compare("spacing", a.grid.spacing, b.grid.spacing),
        *_compare("labels", a.n_labels, b.n_labels),
        *_compare("estimator", a.estimator, b.estimator),
        *_compare("problem", a.problem, b.problem),
        *_compare("", a.parameters, b.parameters),
    ]
    if a.grid.shape == b.grid.shape and not np.array_equal(a.grid.index, b.grid.index):
        words.append(f"masks of {a.grid.voxels} and {b.grid.voxels} voxels that differ")
    return words


def same_array(a: NDArray[Any] | None, b: NDArray[Any] | None) -> bool:
    """Return whether two arrays, or None, have the same type, shape and content."""
    if a is None or b is None:
        return a is b
    return a.dtype == b.dtype and np.array_equal(a, b)


def _compare(name: str, a: object, b: object) -> Iterator[str]:
    """Name each entry that differs, at any depth of nested dicts."""
    if isinstance(a, Mapping) and isinstance(b, Mapping):
        for key in [*a, *(key for key in b if key not in a)]:
            path = f"{name}.{key}" if name else str(key)
            yield from _compare(path, a.get(key, _NOTHING), b.get(key, _NOTHING))
    elif a is _NOTHING or b is _NOTHING or type(a) is not type(b) or a != b:
        yield f"{name} {_shown(a)} against {_shown(b)}"


def _shown(value: object) -> str:
    text = "nothing" if value is _NOTHING else repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


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
            "posteriors must hold different samples to be merged, got "
            f"{twice.size} in more than one: {posterior_parts.ranges(twice)}"
        )


def _of_all(posteriors: Sequence[Posterior], name: str) -> list[NDArray[Any]] | None:
    """Return that array of each posterior, or None where none of them has it."""
    arrays = [getattr(each, name) for each in posteriors]
    held = [array for array in arrays if array is not None]
    if held and len(held) < len(arrays):
        word = name.removeprefix("voxel_")
        raise ValueError(f"{word} must be in all posteriors or in none to be merged, got some")
    return held or None


def _added(arrays: Sequence[NDArray[Any]], dtype: type[np.integer[Any]]) -> NDArray[Any]:
    """Return the sum in a type that holds it: each array may be of a smaller one."""
    total = np.zeros(arrays[0].shape, dtype=dtype)
    for array in arrays:
        total += array
    return total


def _mean_field(posteriors: Sequence[Posterior]) -> NDArray[np.float32] | None:
    """Return the one mean field: it belongs to the problem, and one that has it is enough."""
    held = [each.voxel_mean_field for each in posteriors if each.voxel_mean_field is not None]
    if not all(same_array(held[0], other) for other in held[1:]):
        raise ValueError(
            "mean_field must be the same in all posteriors to be merged, got ones that differ"
        )
    return held[0] if held else None
