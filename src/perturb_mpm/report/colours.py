"""Colours: fixed ones for entropy, and lines for labels that differ in grey too."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import cycle

import numpy as np
from numpy.typing import NDArray

from perturb_mpm.report.charts import DASHES

COLOUR_MAPS = ("inferno", "viridis", "jet", "hot")

# The entropy of a voxel where one sample in twenty disagrees: the least that can be uncertain.
SHOWN_FROM_BITS = -(0.05 * math.log2(0.05) + 0.95 * math.log2(0.95))

_OPACITY = (0.45, 0.9)  # of the lowest and the highest entropy: dark colours hide less
_LEVELS = 256

# Okabe & Ito's colours, which colour-blind readers tell apart, lightened where black needs it. The
# first four stand for the paper's red, green, yellow and blue.
_RED, _GREEN, _YELLOW, _BLUE = "#ff7a33", "#1fd0a3", "#f6ea4c", "#5cc0ff"
_OTHERS = ("#e59ac4", "#ffffff", "#e69f00", "#b8b8b8")


@dataclass(frozen=True)
class LabelStyle:
    """How a label is drawn: its colour, and the dashes that tell it apart in print."""

    name: str
    colour: str
    dashes: str  # of an SVG stroke; empty: a solid line


def label_styles(names: Sequence[str]) -> tuple[LabelStyle, ...]:
    """Return a style for each label but the first, which is background.

    Tumour parts are known by their names and take the paper's colours in a variant for
    colour-blind readers; other labels take what is left.
    """
    chosen: list[str | None] = []
    for name in names[1:]:
        colour = _known_colour(name)
        chosen.append(None if colour in chosen else colour)
    palette = (_RED, _GREEN, _YELLOW, _BLUE, *_OTHERS)
    left = cycle([colour for colour in palette if colour not in chosen])
    return tuple(
        LabelStyle(name, colour or next(left), dashes)
        for name, colour, dashes in zip(names[1:], chosen, cycle(DASHES))
    )


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


def _known_colour(name: str) -> str | None:
    """Return the colour of a tumour part by its usual names, None for anything else."""
    words = name.lower().replace("_", " ").replace("-", " ")
    if "necro" in words or words in {"ncr", "netc"}:
        return _RED
    if "non enhancing" in words or "nonenhancing" in words:
        return _BLUE
    if "edema" in words or words in {"ed", "snfh"}:
        return _GREEN
    if "enhancing" in words or words == "et":
        return _YELLOW
    return None
