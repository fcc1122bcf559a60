"""A small picture of a case: its most uncertain axial slice, entropy over the first image."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perturb_mpm.run import Run

_SIDE = 96  # pixels at most


def case_picture(run: Run) -> str:
    """Return the address of the picture, which holds its pixels; the same run gives the same.

    Window, colours and orientation are those of the case's report.
    """
    from perturb_mpm.report import (
        EntropyScale,
        field_of_view,
        grey_window,
        in_window,
        radiological_planes,
        thumbnail,
    )

    case, entropy = run.case, run.entropy
    spacing = case.geometry.spacing
    plane = radiological_planes(case.geometry.affine)[0]
    others = tuple(axis for axis in range(3) if axis != plane.across)
    index = int(entropy.sum(axis=others, dtype=np.float64).argmax())
    box = field_of_view(np.zeros_like(case.mask), case.mask, spacing)  # all of the patient
    steps = spacing[plane.rows], spacing[plane.columns]
    image = next(iter(case.images.values()), case.mask.astype(np.float32))
    greys = in_window(plane.cut(image, index, box), grey_window(image[case.mask]))
    scale = EntropyScale(run.settings.report.colour_map, math.log2(len(case.labels)))
    bits = plane.cut(entropy, index, box)
    return thumbnail(_resized(greys, steps), _resized(bits, steps), scale)


def _resized(picture: NDArray[Any], steps: tuple[float, float]) -> NDArray[Any]:
    """Return the nearest pixels of a picture whose sides are in the proportions of the patient."""
    sizes = [count * step for count, step in zip(picture.shape, steps)]
    pixels = [max(1, round(_SIDE * size / max(sizes))) for size in sizes]
    rows, columns = (
        ((np.arange(wanted) + 0.5) * count / wanted).astype(int)
        for wanted, count in zip(pixels, picture.shape)
    )
    resized: NDArray[Any] = picture[np.ix_(rows, columns)]
    return resized
