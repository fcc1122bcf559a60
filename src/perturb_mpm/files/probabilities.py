"""Maps of numbers, or a hard label map, turned into distributions over the labels, or refused."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from perturb_mpm.files.case import LARGEST_VALUE, LabelScheme
from perturb_mpm.files.source import InputError, Source

SUM_TOLERANCE = 1e-2
_ROUNDING = 1e-6  # how far below 0 the scaling of a file may put a probability


def check_finite(values: NDArray[np.float32], source: Source) -> None:
    """Refuse maps (C, X, Y, Z) with a value that is no finite number."""
    for channel, one in enumerate(values):
        bad = ~np.isfinite(one)
        if bad.any():
            raise source.error(
                f"must hold finite numbers, got {int(bad.sum())} NaN or infinite values in map "
                f"{channel}, the first at voxel {where(bad)}"
            )


def check_not_negative(values: NDArray[np.float32], source: Source) -> None:
    """Refuse negative probabilities (C, X, Y, Z); what is only rounding becomes 0, in place."""
    for channel, one in enumerate(values):
        lowest = one.min()
        if lowest < -_ROUNDING:
            raise source.error(
                f"probabilities must not be negative, got {lowest:.6g} in map {channel} at voxel "
                f"{where(one < -_ROUNDING)}; say --kind logits for a network's raw scores"
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
    off = np.abs(sums - 1) > SUM_TOLERANCE
    if off.any():
        raise _not_a_distribution(values, sums, off, source)
    values /= sums
    return empty


def softmax(values: NDArray[np.float32], source: Source) -> None:
    """Turn logits (L, X, Y, Z) into probabilities, in place."""
    check_finite(values, source)
    values -= values.max(axis=0)
    np.exp(values, out=values)
    values /= values.sum(axis=0)


def sigmoid(values: NDArray[np.float32], source: Source) -> None:
    """Turn the logits (R, X, Y, Z) of regions into their probabilities, in place."""
    check_finite(values, source)
    values *= 0.5  # the same function by its tanh, which does not overflow on either side
    np.tanh(values, out=values)
    values += 1
    values *= 0.5


def check_regions(values: NDArray[np.float32], source: Source) -> None:
    """Refuse maps (R, X, Y, Z) that cannot each be a probability; what is rounding is clipped."""
    check_finite(values, source)
    check_not_negative(values, source)
    for channel, one in enumerate(values):
        highest = one.max()
        if highest > 1 + SUM_TOLERANCE:
            raise source.error(
                f"the probability of a region must be at most 1, got {highest:.6g} in map "
                f"{channel}; say --kind logits for a network's raw scores"
            )
        np.minimum(one, 1, out=one)


def where(bad: NDArray[np.bool_]) -> tuple[int, ...]:
    """Return the index of the first voxel that is bad."""
    return tuple(int(i) for i in np.unravel_index(int(bad.argmax()), bad.shape))


def _not_a_distribution(
    values: NDArray[np.float32],
    sums: NDArray[np.float32],
    off: NDArray[np.bool_],
    source: Source,
) -> InputError:
    """Return the error that guesses what the numbers are instead."""
    voxel = where(off)
    largest = float(values.max())
    hint = "give the map of every label, background first"
    if largest > 1 + SUM_TOLERANCE:
        hint = "say --kind logits for a network's raw scores, --kind labels for a label map"
    elif sums.max() > 1 + SUM_TOLERANCE:
        hint = (
            "nested regions of an nnU-Net model need its --dataset-json; "
            "say --kind logits for a network's raw scores"
        )
    return source.error(
        f"probabilities must sum to 1 over the {len(values)} labels to within {SUM_TOLERANCE}, got "
        f"{sums[voxel]:.6g} at voxel {voxel} and {int(off.sum())} such voxels in all; {hint}"
    )


def values_in(labels: NDArray[np.float32], source: Source) -> tuple[int, ...]:
    """Return 0 and then the other whole numbers that a label map (X, Y, Z) holds."""
    found = np.unique(labels)
    whole = np.isfinite(found) & (found == np.floor(found))
    whole &= (found >= 0) & (found <= LARGEST_VALUE)
    if not whole.all():
        raise source.error(
            f"a label map must hold whole numbers from 0 to {LARGEST_VALUE}, got {found[~whole][0]}"
        )
    return (0, *(int(value) for value in found if value != 0))


def probabilities_of(
    labels: NDArray[np.float32], values: tuple[int, ...], confidence: float, source: Source
) -> NDArray[np.float32]:
    """Return (L, X, Y, Z): ``confidence`` for a voxel's own label, the rest shared equally."""
    if not 1 / len(values) < confidence < 1:
        raise InputError(
            f"--confidence must be above 1/{len(values)}, as likely as any of the "
            f"{len(values)} labels, and below 1, got {confidence:g}"
        )
    unknown = set(values_in(labels, source)) - set(values) - {0}
    if 0 not in values and (labels == 0).any():
        unknown.add(0)
    if unknown:
        raise source.error(
            f"holds the values {', '.join(map(str, sorted(unknown)))}, which are not among the "
            f"label values {', '.join(map(str, values))}; give all of them by --label-values"
        )
    others = np.float32((1 - confidence) / (len(values) - 1))
    result = np.full((len(values), *labels.shape), others, dtype=np.float32)
    for row, value in enumerate(values):
        result[row][labels == value] = confidence
    return result


def warning(confidence: float) -> str:
    """Say what such probabilities are worth."""
    return (
        f"THE PROBABILITIES ARE MADE UP: every voxel of the label map is taken as {confidence:.0%} "
        "sure, in the middle of a structure as at its border. The uncertainty shows the images and "
        "this number, not what the segmentation's author or model was unsure of; give the model's "
        "probabilities where there are any."
    )


def label_indices(
    values: NDArray[np.float32], scheme: LabelScheme, source: Source, remedy: str = ""
) -> NDArray[np.uint8]:
    """Return a label map as labels 0 … L − 1; a value that the scheme does not have is refused."""
    labels = np.zeros(values.shape, dtype=np.uint8)
    known = np.zeros(values.shape, dtype=np.bool_)
    for label, value in enumerate(scheme.values):
        here = values == value
        labels[here] = label
        known |= here
    if not known.all():
        raise source.error(
            f"must hold the label values {', '.join(map(str, scheme.values))} alone, "
            f"got {values[~known][0]:g}{remedy}"
        )
    return labels
