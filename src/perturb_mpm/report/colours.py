"""Colours: fixed ones for entropy, and lines for labels that differ in grey too."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import cycle

import numpy as np
from numpy.typing import NDArray

from perturb_mpm.files import label_colours
from perturb_mpm.report.charts import DASHES

COLOUR_MAPS = ("inferno", "viridis", "jet", "hot")

# The entropy of a voxel where one sample in twenty disagrees: the least that can be uncertain.
SHOWN_FROM_BITS = -(0.05 * math.log2(0.05) + 0.95 * math.log2(0.95))

_OPACITY = (0.45, 0.9)  # of the lowest and the highest entropy: dark colours hide less
_LEVELS = 256


@dataclass(frozen=True)
class LabelStyle:
    """How a label is drawn: its colour, and the dashes that tell it apart in print."""

    name: str
    colour: str
    dashes: str  # of an SVG stroke; empty: a solid line


def label_styles(names: Sequence[str]) -> tuple[LabelStyle, ...]:
    """Return a style for each label but the first, which is background."""
    drawn = names[1:]
    return tuple(map(LabelStyle, drawn, label_colours(drawn), cycle(DASHES)))


def entropy_colours(colour_map: str, top_bits: float) -> NDArray[np.uint8]:
    """Return (256, 4) colours for 0 … ``top_bits``, transparent below what is worth showing.

    The scale ends at log2 L whatever the map holds: the same entropy has the same colour in every
    picture and every report with as many labels.
    """
    import matplotlib as mpl

    colours = mpl.colormaps[colour_map].resampled(_LEVELS)(np.arange(_LEVELS))  # (256, 4)
    colours[:, 3] = np.linspace(*_OPACITY, _LEVELS)
    colours[: entropy_level(SHOWN_FROM_BITS, top_bits), 3] = 0.0
    return np.asarray(np.round(colours * 255), dtype=np.uint8)


def entropy_levels(entropy: NDArray[np.floating], top_bits: float) -> NDArray[np.uint8]:
    """Return the number of the colour of each entropy in bits, same shape."""
    levels = np.floor(np.clip(entropy / top_bits, 0.0, 1.0) * _LEVELS)
    numbers: NDArray[np.uint8] = np.minimum(levels, _LEVELS - 1).astype(np.uint8)
    return numbers


def entropy_level(bits: float, top_bits: float) -> int:
    """Return the number of one entropy's colour."""
    return int(entropy_levels(np.array(bits), top_bits))
