"""Maps of all labels or regions on one grid, and the distribution over labels they stand for.

Several predictions of one case (folds, dropout samples) have a mean; their mutual information says
where they disagree. Where numbers are no probabilities, errors and warnings say what they most
likely are instead.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from perturb_mpm.checks import FEWEST_LABELS, MOST_LABELS
from perturb_mpm.files.images import first_voxel
from perturb_mpm.files.nnunet import PROBABLE, Dataset, KnownGrid, read_prediction
from perturb_mpm.files.source import Digests, InputError, Source
from perturb_mpm.files.volumes import Volume, read_volume, require_same_grid
from perturb_mpm.posterior import marginal_entropy

Kind = Literal["probabilities", "logits", "labels"]

SUM_TOLERANCE = 1e-2
_ROUNDING = 1e-6  # how far below 0 the scaling of a file may put a probability
_FOR_LOGITS = 'say `kind="logits"` for a network\'s raw scores'
_FOR_LABELS = '`kind="labels"` for a label map'


def read_members(
    paths: Sequence[Path],
    kind: Kind,
    dataset: Dataset | None,
    known: KnownGrid,
    image: Volume,
    digests: Digests,
) -> Iterator[Volume]:
    """Read one prediction, or one after the other the members of an ensemble, (X, Y, Z, C) each.

    A prediction is a 4-D NIfTI (labels last), nnU-Net's .npz, or several 3-D NIfTI, one a label.
    ``image`` says where the voxels of an .npz are if nothing else does.
    """
    sources = [Source("probabilities", path) for path in paths]
    if not sources:
        raise InputError("`probabilities` must name a file, got none")
    if len(set(paths)) < len(paths):
        raise InputError("`probabilities` must name every file once, got one twice")
    archives = [source.path.suffix == ".npz" for source in sources]
    first = None if archives[0] else read_volume(sources[0], digests)
    if len(sources) > 1 and not any(archives) and first is not None and first.voxels.ndim == 3:
        yield _stack_labels(first, sources, digests)
        return
    for index, (source, archive) in enumerate(zip(sources, archives)):
        if archive:
            threshold = 0.0 if kind == "logits" else PROBABLE
            yield read_prediction(source, dataset, known, image, digests, threshold=threshold)
        else:
            volume = read_volume(source, digests) if index or first is None else first
            yield _require_labels_last(volume, image)


def distribution_from_maps(
    maps: Volume, kind: Kind, dataset: Dataset | None
) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
    """Return the distribution (L, X, Y, Z) of maps (X, Y, Z, C), and where there is none."""
    source = maps.source
    values = np.require(np.moveaxis(maps.voxels, -1, 0), requirements=["C", "W"])  # (C, X, Y, Z)
    if len(values) == 1 and (dataset is None or dataset.regions is None):
        return _distribution_from_one_map(values, source, kind, dataset)
    if dataset is not None and len(values) != dataset.map_count:
        what = "labels" if dataset.regions is None else "regions"
        raise source.error(
            f"must have one map for each of the {dataset.map_count} {what} of "
            f"{dataset.source.path}, got {len(values)}"
        )
    nowhere = np.zeros(values.shape[1:], dtype=bool)
    if dataset is not None and dataset.regions is not None:
        if kind == "logits":
            sigmoid(values, source)
        check_regions(values, source)
        wrong = dataset.regions.contradiction(values)
        if wrong is not None:
            raise source.error(wrong)
        return dataset.regions.exclusive(values), nowhere
    if not FEWEST_LABELS <= len(values) <= MOST_LABELS:
        raise source.error(
            f"must have {FEWEST_LABELS} to {MOST_LABELS} labels with background, got {len(values)}"
        )
    if kind == "logits":
        softmax(values, source)
        return values, nowhere
    return values, normalise(values, source)


def _distribution_from_one_map(
    values: NDArray[np.float32], source: Source, kind: Kind, dataset: Dataset | None
) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
    """Return background and foreground (2, X, Y, Z) of the map of a single sigmoid."""
    if dataset is not None and len(dataset.labels) != 2:
        raise source.error(
            f"must have one map for each of the {len(dataset.labels)} labels of "
            f"{dataset.source.path}, got 1"
        )
    if kind == "logits":
        sigmoid(values, source)
    elif np.isfinite(values).all() and (values == np.rint(values)).all():
        few = len(np.unique(values)) <= MOST_LABELS
        advice = scale_advice(float(values.max())) if not few or values.max() > 1 else None
        raise source.error(
            "one file must be 4-D with the labels last, or the probability of the foreground, got "
            + (
                f"whole numbers up to {values.max():g}; {advice}"
                if advice
                else f"whole numbers alone, as a label map has them; say {_FOR_LABELS}"
            )
        )
    check_regions(values, source)
    return np.concatenate([1 - values, values]), np.zeros(values.shape[1:], dtype=bool)


def check_finite(values: NDArray[np.float32], source: Source) -> None:
    """Refuse maps (C, X, Y, Z) with a value that is no finite number."""
    for channel, one in enumerate(values):
        finite = np.isfinite(one)
        if not finite.all():
            bad = ~finite
            raise source.error(
                f"must hold finite numbers, got {int(bad.sum())} NaN or infinite values in map "
                f"{channel}, the first at voxel {first_voxel(bad)}"
            )


def check_not_negative(values: NDArray[np.float32], source: Source) -> None:
    """Refuse negative probabilities (C, X, Y, Z); what is only rounding becomes 0, in place."""
    for channel, one in enumerate(values):
        lowest = one.min()
        if lowest < -_ROUNDING:
            raise source.error(
                f"probabilities must not be negative, got {lowest:.6g} in map {channel} at voxel "
                f"{first_voxel(one < -_ROUNDING)}; {_FOR_LOGITS}"
            )
        if lowest < 0:
            np.maximum(one, 0, out=one)


def normalise(values: NDArray[np.float32], source: Source) -> NDArray[np.bool_]:
    """Make probabilities (L, X, Y, Z) sum to 1, in place, where they already nearly do.

    Voxels without any probability become certain background, as in files that hold nothing
    outside the patient. Returns them (X, Y, Z), for the caller to see that none is inside.
    """
    check_finite(values, source)
    check_not_negative(values, source)
    sums = values.sum(axis=0)  # (X, Y, Z)
    empty: NDArray[np.bool_] = sums == 0
    values[0, empty] = 1
    sums[empty] = 1
    errors = sums - 1
    off = np.abs(errors, out=errors) > SUM_TOLERANCE
    if off.any():
        raise _not_a_distribution(values, sums, off, source)
    values /= sums
    return empty


def softmax(values: NDArray[np.float32], source: Source) -> None:
    """Turn logits (L, X, Y, Z) into probabilities, in place."""
    check_finite(values, source)
    _check_logits(values, source)
    values -= values.max(axis=0)
    np.exp(values, out=values)
    values /= values.sum(axis=0)


def sigmoid(values: NDArray[np.float32], source: Source) -> None:
    """Turn the logits (R, X, Y, Z) of regions into their probabilities, in place."""
    check_finite(values, source)
    _check_logits(values, source)
    values *= 0.5  # the same function by its tanh, which does not overflow on either side
    np.tanh(values, out=values)
    values += 1
    values *= 0.5


def _check_logits(values: NDArray[np.float32], source: Source) -> None:
    """Refuse numbers that cannot be logits as they are: whole ones, scaled to be integers."""
    largest = float(np.abs(values).max(initial=0.0))
    if largest > _LARGEST_LOGIT and (values == np.rint(values)).all():
        raise source.error(
            f"must be a network's raw scores, got whole numbers up to {largest:g}: scores that "
            "were multiplied to be stored as integers must be divided again"
        )


def check_regions(values: NDArray[np.float32], source: Source) -> None:
    """Refuse maps (R, X, Y, Z) that cannot each be a probability; what is rounding is clipped."""
    check_finite(values, source)
    check_not_negative(values, source)
    for channel, one in enumerate(values):
        highest = one.max()
        if highest > 1 + SUM_TOLERANCE:
            raise source.error(
                f"a probability must be at most 1, got {highest:.6g} in map {channel}; "
                f"{scale_advice(float(highest)) or _FOR_LOGITS}"
            )
        np.minimum(one, 1, out=one)


def _not_a_distribution(
    values: NDArray[np.float32], sums: NDArray[np.float32], off: NDArray[np.bool_], source: Source
) -> InputError:
    """Return the error that guesses what the numbers are instead."""
    voxel = first_voxel(off)
    largest = float(values.max())
    hint = "give the map of every label, background first"
    if largest > 1 + SUM_TOLERANCE:
        hint = scale_advice(float(np.median(sums[off]))) or f"{_FOR_LOGITS}, {_FOR_LABELS}"
    elif sums.max() > 1 + SUM_TOLERANCE:
        hint = f"nested regions of an nnU-Net model need its `dataset_json`; {_FOR_LOGITS}"
    return source.error(
        f"probabilities must sum to 1 over the {len(values)} labels to within {SUM_TOLERANCE}, got "
        f"{sums[voxel]:.6g} at voxel {voxel} and {int(off.sum())} such voxels in all; {hint}"
    )


def _require_labels_last(volume: Volume, image: Volume) -> Volume:
    """Return maps (X, Y, Z, C); a single one is the probability of the foreground."""
    shape, grid = volume.voxels.shape, image.geometry.shape
    if volume.voxels.ndim == 3:
        return replace(volume, voxels=volume.voxels[..., np.newaxis])
    for axis in range(3) if volume.geometry.shape != grid else ():
        if (*shape[:axis], *shape[axis + 1 :]) == grid:
            raise volume.source.error(
                f"must have the labels last, got shape {shape} with the labels on axis {axis}: "
                f"numpy.moveaxis(maps, {axis}, -1) puts them last"
            )
    return volume


def _stack_labels(first: Volume, sources: list[Source], digests: Digests) -> Volume:
    maps = np.empty((len(sources), *first.geometry.shape), dtype=np.float32)
    for row, source in enumerate(sources):
        volume = first if row == 0 else read_volume(source, digests)
        if volume.voxels.ndim != 3:
            raise source.error(
                f"must be 3-D where there is one file for each label, got {volume.voxels.shape}"
            )
        require_same_grid(source, volume.geometry, first.source, first.geometry)
        maps[row] = volume.voxels
    return replace(first, voxels=np.moveaxis(maps, 0, -1))


@dataclass(frozen=True, eq=False)
class EnsembleMaps:
    """What M members say beside their mean, which is the case's probabilities."""

    count: int  # M
    mutual_information: NDArray[np.float32]  # (X, Y, Z) bits, 0 … log2 min(M, L)
    """The entropy of the mean less the mean of the entropies: what the members disagree about."""
    members: NDArray[np.float32] | None = None  # (M, L, X, Y, Z)


def combine_members(
    distributions: Iterable[NDArray[np.float32]], *, keep: bool = False
) -> tuple[NDArray[np.float32], EnsembleMaps | None]:
    """Return the mean of distributions (L, X, Y, Z), and how they differ where there are several.

    They are taken one by one; ``keep`` keeps each of them.
    """
    members: list[NDArray[np.float32]] = []
    count = 0
    for distribution in distributions:
        if count == 0:
            first = distribution
        elif count == 1:  # one alone needs neither sum nor entropy
            total = first.astype(np.float64) + distribution
            entropy = _bits(first) + _bits(distribution)
        else:
            total += distribution
            entropy += _bits(distribution)
        members += [distribution] if keep else []
        count += 1
    if count == 1:
        return first, None
    total /= count
    mean = total.astype(np.float32)
    information = np.maximum(_bits(total) - entropy / count, 0).astype(np.float32)
    return mean, EnsembleMaps(count, information, np.stack(members) if keep else None)


def _bits(distribution: NDArray[np.floating]) -> NDArray[np.float64]:
    """Return the entropy (X, Y, Z) in bits of a distribution (L, X, Y, Z)."""
    flat = distribution.reshape(len(distribution), -1)
    return marginal_entropy(flat.astype(np.float64)).reshape(distribution.shape[1:])


OUTSIDE_SHARE = 0.1
"""Of the foreground: more than this outside the mask looks like another patient's."""
BACKGROUND_SHARE = 0.9
"""Of the voxels outside the patient: so many of one other label look as if background came last."""

_SCALES = {100: "per cent", 255: "probabilities from 0 to 255"}
_SCALE_TOLERANCE = 0.02  # whole numbers that are rounded do not sum to 255 exactly
_LARGEST_LOGIT = 100.0  # a whole number above this is no raw score of a network
_FEWEST_VOXELS = 64  # that say something


def scale_advice(largest: float) -> str | None:
    """Say what numbers up to ``largest`` are, where they are probabilities on another scale.

    ``largest`` is the sum over labels, or the largest value of a single map.
    """
    for scale, name in _SCALES.items():
        if abs(largest - scale) <= _SCALE_TOLERANCE * scale:
            return f"these look like {name}: divide them by {scale}"
    return None


def foreground_warning(labels: NDArray[np.integer], mask: NDArray[np.bool_]) -> str | None:
    """Say that much of the foreground of a label map (X, Y, Z) lies outside the mask."""
    foreground = labels > 0
    outside = int(np.count_nonzero(foreground & ~mask))
    total = int(np.count_nonzero(foreground))
    if outside <= OUTSIDE_SHARE * total or outside < _FEWEST_VOXELS:
        return None
    return (
        f"{100 * outside / total:.0f} % of the foreground of the probabilities lies outside the "
        "mask, where it does not count: do probabilities, images and mask belong together?"
    )


def background_warning(
    labels: NDArray[np.integer], mask: NDArray[np.bool_], names: Sequence[str]
) -> str | None:
    """Say that another label than the first is what lies around the patient.

    Around is outside the mask, or on the faces of the grid where the mask leaves nothing out.
    """
    around = ~mask
    if np.count_nonzero(around) < _FEWEST_VOXELS:
        around = np.ones_like(mask)
        around[tuple(slice(1, -1) if size > 2 else slice(0) for size in mask.shape)] = False
    found = labels[around]
    if len(found) < _FEWEST_VOXELS:
        return None
    counts = [np.count_nonzero(found == label) for label in range(len(names))]
    most = int(np.argmax(counts))
    if most == 0 or counts[most] < BACKGROUND_SHARE * len(found):
        return None
    share = 100 * counts[most] / len(found)
    return (
        f"label {names[most]} is the most probable one in {share:.0f} % of the voxels around the "
        f"patient, and {names[0]} is not: is background the first of the maps?"
    )
