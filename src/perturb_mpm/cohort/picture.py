"""A small picture of a case: its most uncertain axial slice, entropy over the first image."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from perturb_mpm.run import Run

_SIDE = 72  # pixels at most
_GREYS, _LEVELS = 64, 4  # together the 256 colours of a palette
_HOT = np.array([255.0, 140.0, 0.0])
_OPACITY = np.array([0.0, 0.45, 0.75, 1.0])  # of a quarter of the largest entropy each


def case_picture(run: Run) -> str:
    """Return the address of the picture, which holds its pixels; the same run gives the same."""
    from perturb_mpm.report import data_uri, palette_png, radiological_planes

    mask, entropy = run.case.mask, run.entropy
    plane = radiological_planes(run.case.geometry.affine)[0]
    others = tuple(axis for axis in range(3) if axis != plane.across)
    index = int(entropy.sum(axis=others, dtype=np.float64).argmax())
    box = tuple(
        slice(int(found.min()), int(found.max()) + 1)
        for found in (np.flatnonzero(mask.any(axis=_without(axis))) for axis in range(3))
    )
    image = next(iter(run.case.images.values()))
    low, high = np.percentile(image[mask], [1, 99])
    grey = np.clip((plane.cut(image, index, box) - low) / max(high - low, 1e-12), 0, 1)
    bits = plane.cut(entropy, index, box) / math.log2(len(run.case.labels))
    spacing = run.case.geometry.spacing
    steps = spacing[plane.rows], spacing[plane.columns]
    greys = np.round(_resized(grey, steps) * (_GREYS - 1))
    levels = np.minimum(np.floor(_resized(bits, steps) * _LEVELS), _LEVELS - 1)
    return data_uri(palette_png((levels * _GREYS + greys).astype(np.uint8), _palette()))


def _resized(picture: NDArray[np.floating], steps: tuple[float, float]) -> NDArray[np.floating]:
    """Return the nearest pixels of a picture whose sides are in the proportions of the patient."""
    sizes = [count * step for count, step in zip(picture.shape, steps)]
    pixels = [max(1, round(_SIDE * size / max(sizes))) for size in sizes]
    rows, columns = (
        ((np.arange(wanted) + 0.5) * count / wanted).astype(int)
        for wanted, count in zip(pixels, picture.shape)
    )
    return picture[np.ix_(rows, columns)]


def _palette() -> NDArray[np.uint8]:
    """Return (256, 4) colours: grey, then grey under more and more of one bright colour."""
    greys = np.repeat(np.linspace(0, 255, _GREYS)[:, None], 3, axis=1)  # (64, 3)
    blended = [(1 - share) * greys + share * _HOT for share in _OPACITY]
    colours = np.concatenate(blended)
    opaque = np.full((len(colours), 1), 255.0)
    return np.round(np.concatenate([colours, opaque], axis=1)).astype(np.uint8)


def _without(axis: int) -> tuple[int, ...]:
    return tuple(other for other in range(3) if other != axis)
