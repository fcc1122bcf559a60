"""A hard label map as probabilities: one confidence everywhere, for want of anything better."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from perturb_mpm.io.case import LARGEST_VALUE, LabelScheme
from perturb_mpm.io.errors import InputError, Source


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
