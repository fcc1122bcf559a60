"""Colours of voxels: entropy that is always brighter than the image under it; lines for labels.

A voxel is either uncertain and has a colour of the scale beside the picture, through which the
image shows by half, or it is certain and shows the image in grey. The scale uses the part of a
colour map that is brighter than ``BRIGHTEST_GREY`` even at half opacity over black, and no grey is
brighter than that: what shines is what is uncertain.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from importlib.resources import files
from itertools import cycle

import numpy as np
from numpy.typing import NDArray

from perturb_mpm.files import label_colours

COLOUR_MAPS = ("inferno", "viridis", "jet", "hot")

DASHES = ("", "6 3", "2.5 2", "8 3 2 3")
"""Of SVG strokes, a solid line first."""

# The entropy of a voxel where one sample in twenty disagrees: the least that can be uncertain.
SHOWN_FROM_BITS = -(0.05 * math.log2(0.05) + 0.95 * math.log2(0.95))

OPACITY = 0.5
"""Of an entropy map over its image, unless a reader asks for more."""

BRIGHTEST_GREY = 72
"""The brightest grey of an image under an entropy map at ``OPACITY``, of 255."""

OPAQUE_GREY = 112
"""The brightest grey of an image under an opaque entropy map."""

_LEVELS = 256
_FINE = 1024  # steps in which a colour map is searched
_WHITE_OVER_MEDIAN = 1.8


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


@dataclass(frozen=True, eq=False)
class EntropyScale:
    """Which colour each entropy from 0 to ``top_bits`` has.

    The scale ends at log2 L whatever the map contains: the same entropy has the same colour in
    every picture and every report with as many labels.
    """

    colour_map: str
    top_bits: float

    @cached_property
    def first_shown(self) -> int:
        """The number of the first colour that is shown."""
        return int(self.levels(np.array(SHOWN_FROM_BITS)))

    @cached_property
    def palette(self) -> NDArray[np.uint8]:
        """The colours, (256, 3): red, green and blue."""
        return _palette(self.colour_map, self.first_shown)

    @property
    def colours(self) -> NDArray[np.uint8]:
        """The palette with opacity, (256, 4): nothing below the first colour shown, then all."""
        opacity = np.where(np.arange(_LEVELS) < self.first_shown, 0, 255)
        return np.column_stack([self.palette, opacity]).astype(np.uint8)

    def levels(self, entropy: NDArray[np.floating]) -> NDArray[np.uint8]:
        """Return the number of the colour of each entropy in bits, same shape."""
        levels = np.floor(np.clip(entropy / self.top_bits, 0.0, 1.0) * _LEVELS)
        return np.minimum(levels, _LEVELS - 1).astype(np.uint8)


def _palette(colour_map: str, first_shown: int) -> NDArray[np.uint8]:
    """Return (256, 3) colours, from ``first_shown`` on brighter than the brightest grey.

    They are so at ``OPACITY`` over black, and hence over anything.

    What the map has before its bright part is below, for a reader who lowers the threshold.
    """
    shares = np.linspace(0.0, 1.0, _FINE)
    table = np.frombuffer(bytes.fromhex(_colour_maps()[colour_map]), dtype=np.uint8).reshape(-1, 3)
    numbers = np.minimum((shares * len(table)).astype(np.int64), len(table) - 1)
    colours = table[numbers].astype(np.float64)  # (1024, 3)
    least = luminance(np.full((1, 3), BRIGHTEST_GREY + 1))  # a browser rounds
    bright = np.flatnonzero(luminance(np.floor(OPACITY * colours)) > least)
    start, stop = shares[bright[0]], shares[bright[-1]]
    below = np.linspace(0.0, start, first_shown, endpoint=False)
    shown = np.linspace(start, stop, _LEVELS - first_shown)
    nearest = np.round(np.concatenate([below, shown]) * (_FINE - 1)).astype(np.int64)
    return colours[nearest].astype(np.uint8)


@cache
def _colour_maps() -> dict[str, str]:
    """Return each map of matplotlib that is offered, its 256 colours as hexadecimal digits.

    Importing matplotlib for them would take longer than all pictures of a page.
    """
    text = files("perturb_mpm.report").joinpath("assets", "colour_maps.json").read_text("utf-8")
    found: dict[str, str] = json.loads(text)
    return found


def luminance(colours: NDArray[np.generic]) -> NDArray[np.float64]:
    """Return the relative luminance, 0 to 1, of sRGB colours (…, 3) in 0 … 255 (WCAG 2)."""
    shares = np.asarray(colours, dtype=np.float64) / 255.0
    linear = np.where(shares <= 0.04045, shares / 12.92, ((shares + 0.055) / 1.055) ** 2.4)
    return linear @ np.array([0.2126, 0.7152, 0.0722])


def grey_window(values: NDArray[np.floating]) -> tuple[float, float]:
    """Return which of an image's values inside the mask are black and brightest.

    A few outliers do not count, and ordinary tissue is never darker than a middle grey: what is
    much brighter, such as vessels and enhancing tumour under contrast, is as bright as can be.
    So is an image of one value, such as a mask.
    """
    values = values[np.isfinite(values)]
    if values.size == 0:
        return 0.0, 1.0
    low, median, high = np.percentile(values, [0.5, 50.0, 99.7])
    if median > low:
        high = min(high, low + _WHITE_OVER_MEDIAN * (median - low))
    if high <= low:
        low, high = values.min(), values.max()
    return float(low if high > low else low - 1.0), float(high)


def in_window(
    image: NDArray[np.floating], window: tuple[float, float], brightest: int = BRIGHTEST_GREY
) -> NDArray[np.uint8]:
    """Return an image in whole greys from 0 to ``brightest``; what is no number is black."""
    low, high = window
    shares = image - low
    shares /= high - low
    np.fmax(shares, 0.0, out=shares)  # of a number and NaN it is the number
    np.fmin(shares, 1.0, out=shares)
    shares *= brightest
    return np.rint(shares, out=shares).astype(np.uint8)
