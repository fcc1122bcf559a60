"""One slice as layers that lie on top of each other: sequences, entropy, outlines of the labels.

Layers stay apart so that a reader can hide them, which works without scripts. Grey and coloured
pixels are the voxels themselves; the page stretches them to their size in mm.
"""

from __future__ import annotations

import base64
import math
import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perturb_mpm.report.charts import round_ticks
from perturb_mpm.report.colours import (
    BRIGHTEST_GREY,
    EntropyScale,
    LabelStyle,
    in_window,
    label_styles,
)
from perturb_mpm.report.data import ReportData
from perturb_mpm.report.planes import (
    Box,
    Plane,
    Voxel,
    box_around,
    in_words,
    radiological_planes,
    to_mm,
)

_GREY, _PALETTE = 0, 3  # colour types of PNG
_MARGIN_MM = 4.0  # around the mask
_SURROUNDINGS_MM = 20.0  # around labels and locations
_LEAST_MM = 90.0  # of a side, where the mask is as wide
_MOST_PIXELS = 320  # a side of a grey layer; more are averaged, to keep the page small
_SCALE_BARS_MM = (50, 20, 10, 5, 2, 1)
_ERROR_COLOUR = (255, 60, 200, 255)  # magenta: no sequence and no label has it
_INSET = 0.2  # of a pixel: borders of neighbours run side by side instead of hiding each other
_UNITS = 10  # coordinates of outlines are whole tenths of a pixel, which keeps paths short

CURVES = (5, 50, 95)
"""The probabilities, in %, of which curves are drawn: what may be inside, what is, and surely."""

Corner = tuple[int, int]


def grey_png(pixels: NDArray[np.uint8]) -> bytes:
    """Return a grey picture (rows, columns)."""
    return _png(pixels, _GREY)


def palette_png(pixels: NDArray[np.uint8], colours: NDArray[np.uint8]) -> bytes:
    """Return a picture (rows, columns) of indices into ``colours`` (256, 4), RGB and opacity."""
    return _png(
        pixels,
        _PALETTE,
        _chunk(b"PLTE", np.ascontiguousarray(colours[:, :3]).tobytes()),
        _chunk(b"tRNS", np.ascontiguousarray(colours[:, 3]).tobytes()),
    )


def data_uri(png: bytes) -> str:
    """Return the address by which a page holds the picture in itself."""
    return "data:image/png;base64," + base64.b64encode(png).decode("ascii")


def _png(pixels: NDArray[np.uint8], colour_type: int, *before_pixels: bytes) -> bytes:
    """Return a file of one byte a pixel."""
    rows, columns = pixels.shape
    header = struct.pack(">2I5B", columns, rows, 8, colour_type, 0, 0, 0)
    lines = np.zeros((rows, columns + 1), dtype=np.uint8)  # each starts with its filter, 0: none
    lines[:, 1:] = pixels
    return b"".join(
        [
            b"\x89PNG\r\n\x1a\n",
            _chunk(b"IHDR", header),
            *before_pixels,
            _chunk(b"IDAT", zlib.compress(lines.tobytes(), level=9)),
            _chunk(b"IEND", b""),
        ]
    )


def _chunk(kind: bytes, content: bytes) -> bytes:
    checksum = zlib.crc32(kind + content)
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", checksum)


@dataclass(frozen=True)
class Outline:
    """The border of one label in a slice."""

    style: LabelStyle
    path: str


@dataclass(frozen=True)
class Curves:
    """Lines of equal probability of one structure in a slice."""

    number: int  # of the structure among those that the page offers
    paths: tuple[tuple[int, str], ...]  # (probability in %, path)


@dataclass(frozen=True)
class Picture:
    """What a page needs to draw one slice."""

    plane: Plane
    position: str  # of the slice, in mm
    description: str  # for those who do not see it
    width_mm: float
    height_mm: float
    columns: int
    rows: int
    greys: tuple[tuple[str, str], ...]  # (sequence, address of its pixels)
    overlay: str | None = None  # address of the coloured pixels
    opaque: bool = False  # whether the image does not show through the overlay
    outlines: tuple[Outline, ...] = ()
    curves: tuple[Curves, ...] = ()
    cross: tuple[float, float] | None = None  # what it is about, in % from the top and the left
    scale_bar_mm: int = 0

    @property
    def scale_bar_percent(self) -> float:
        """The length of the scale bar, of the picture's width."""
        return 100.0 * self.scale_bar_mm / self.width_mm

    @property
    def voxel_percent(self) -> float:
        """The shorter side of a voxel, of the picture's width."""
        sides = self.width_mm / self.columns, self.height_mm / self.rows
        return 100.0 * min(sides) / self.width_mm


@dataclass(frozen=True)
class Studio:
    """Makes the pictures of one report, all with the same windows, colours and field of view."""

    data: ReportData
    locations: tuple[Voxel, ...] = ()  # what the field of view contains besides the labels
    structures: tuple[tuple[int, ...], ...] = ()  # labels of those that have curves

    @cached_property
    def planes(self) -> tuple[Plane, ...]:
        """The planes, without those of which a slice would be a line, unless all are."""
        planes, shape = radiological_planes(self.data.affine), self.data.mask.shape
        wide = tuple(p for p in planes if shape[p.rows] > 1 and shape[p.columns] > 1)
        return wide or planes[:1]

    @cached_property
    def styles(self) -> tuple[LabelStyle, ...]:
        """How each label but the background is drawn."""
        return label_styles(self.data.label_names)

    @cached_property
    def scale(self) -> EntropyScale:
        """The colours of entropy."""
        return EntropyScale(self.data.colour_map, math.log2(len(self.data.label_names)))

    @cached_property
    def box(self) -> Box:
        """The field of view."""
        shown = self.data.labels > 0
        for voxel in self.locations:
            shown[voxel] = True
        return field_of_view(shown, self.data.mask, self.data.spacing)

    def entropy_picture(
        self,
        plane: Plane,
        voxel: Voxel,
        *,
        entropy: NDArray[np.float32] | None = None,
        sequences: int | None = None,
        reach_mm: float | None = None,
    ) -> Picture:
        """Return the slice through a voxel with its entropy and the labels' outlines.

        ``entropy`` replaces the final map; ``sequences`` limits how many are drawn, and
        ``reach_mm`` how far the picture reaches to each side of the voxel.
        """
        shown = self.data.entropy if entropy is None else entropy
        box = self.box if reach_mm is None else self._box_at(voxel, reach_mm)
        bits = plane.cut(shown, voxel[plane.across], box)
        overlay = entropy_overlay(bits, self.scale)
        description = f"{plane.name} slice with entropy up to {bits.max():.2f} bits"
        labels = self.data.labels
        return self._draw(plane, voxel, box, overlay, labels, description, sequences)

    def location_picture(self, plane: Plane, voxel: Voxel) -> Picture:
        """Return the slice through a voxel with its entropy, outlines and curves."""
        index = voxel[plane.across]
        curves = []
        for number, labels in enumerate(self.structures):
            cuts = [plane.cut(self.data.marginals[each], index, self.box) for each in labels]
            share: NDArray[np.float64] = np.sum(cuts, axis=0, dtype=np.float64)  # (rows, columns)
            paths = ((percent, outline_path(share >= percent / 100.0)) for percent in CURVES)
            curves.append(Curves(number, tuple(paths)))
        return replace(self.entropy_picture(plane, voxel), curves=tuple(curves))

    def bare_picture(self, plane: Plane, voxel: Voxel) -> Picture:
        """Return the slice through a voxel in full contrast with nothing over it."""
        index, box = voxel[plane.across], self.box
        down, right = plane.position(voxel, box)
        picture = slice_picture(
            plane,
            to_mm(self.data.affine, voxel)[plane.looks_along],
            self.data.spacing,
            greys=[(name, self._grey(name, plane, index, box, 255)) for name in self.data.images],
            overlay=None,
            labels=np.zeros_like(plane.cut(self.data.labels, index, box)),
            styles=(),
            description=f"{plane.name} slice, the image alone",
        )
        return replace(picture, cross=(100.0 * down, 100.0 * right))

    def disagreement_picture(
        self, plane: Plane, voxel: Voxel, disagreement: NDArray[np.float32], top_bits: float
    ) -> Picture:
        """Return the slice through a voxel with what members of an ensemble disagree about."""
        bits = plane.cut(disagreement, voxel[plane.across], self.box)
        overlay = entropy_overlay(bits * (self.scale.top_bits / top_bits), self.scale)
        description = f"{plane.name} slice with disagreement up to {bits.max():.2f} bits"
        return self._draw(plane, voxel, self.box, overlay, self.data.labels, description)

    def error_picture(self, plane: Plane, voxel: Voxel, truth: NDArray[np.uint8]) -> Picture:
        """Return the slice through a voxel with wrong voxels coloured and the truth's outlines."""
        wrong = (truth != self.data.labels) & self.data.mask
        pixels = plane.cut(wrong, voxel[plane.across], self.box)
        description = f"{plane.name} slice with {int(pixels.sum())} wrongly labelled voxels"
        drawn = self._draw(plane, voxel, self.box, error_overlay(pixels), truth, description)
        return replace(drawn, opaque=True)

    def change_picture(self, plane: Plane, voxel: Voxel, changed: NDArray[np.bool_]) -> Picture:
        """Return the slice through a voxel with voxels coloured whose label kernels changed."""
        pixels = plane.cut(changed, voxel[plane.across], self.box)
        description = f"{plane.name} slice with {int(pixels.sum())} voxels that the CRF changed"
        overlay = error_overlay(pixels)
        drawn = self._draw(plane, voxel, self.box, overlay, self.data.labels, description)
        return replace(drawn, opaque=True)

    def _draw(
        self,
        plane: Plane,
        voxel: Voxel,
        box: Box,
        overlay: str,
        labels: NDArray[np.uint8],
        description: str,
        sequences: int | None = None,
    ) -> Picture:
        index = voxel[plane.across]
        down, right = plane.position(voxel, box)
        picture = slice_picture(
            plane,
            to_mm(self.data.affine, voxel)[plane.looks_along],
            self.data.spacing,
            greys=[
                (name, self._grey(name, plane, index, box))
                for name in list(self.data.images)[:sequences]
            ],
            overlay=overlay,
            labels=plane.cut(labels, index, box),
            styles=self.styles,
            description=description,
        )
        return replace(picture, cross=(100.0 * down, 100.0 * right))

    def _grey(
        self, name: str, plane: Plane, index: int, box: Box, brightest: int = BRIGHTEST_GREY
    ) -> str:
        pixels = plane.cut(self.data.images[name], index, box).astype(np.float64)
        greys = in_window(_average_neighbours(pixels), self.data.windows[name], brightest)
        return data_uri(grey_png(greys))

    def _box_at(self, voxel: Voxel, reach_mm: float) -> Box:
        """Return the voxels within ``reach_mm`` of one, moved to lie in the field of view."""
        spans = []
        for index, whole, step in zip(voxel, self.box, self.data.spacing):
            reach = max(1, round(reach_mm / step))
            start = max(whole.start, min(index - reach, whole.stop - 2 * reach - 1))
            spans.append(slice(start, min(whole.stop, start + 2 * reach + 1)))
        return spans[0], spans[1], spans[2]


def slice_picture(
    plane: Plane,
    position_mm: float,
    spacing: tuple[float, float, float],
    *,
    greys: Sequence[tuple[str, str]],
    overlay: str | None,
    labels: NDArray[np.uint8],
    styles: Sequence[LabelStyle],
    description: str,
) -> Picture:
    """Return a slice whose labels (rows, columns) are outlined.

    ``greys`` are names of sequences and addresses of their pixels, ``overlay`` the address of the
    coloured pixels over them, where there are any.
    """
    rows, columns = labels.shape
    width_mm = columns * spacing[plane.columns]
    position = in_words(plane.looks_along, position_mm, digits=1)
    return Picture(
        plane=plane,
        position=f"{position} mm",
        description=f"{description}, at {position} mm",
        width_mm=width_mm,
        height_mm=rows * spacing[plane.rows],
        columns=columns,
        rows=rows,
        greys=tuple(greys),
        overlay=overlay,
        outlines=tuple(
            Outline(style, outline_path(labels == label))
            for label, style in enumerate(styles, start=1)
            if (labels == label).any()
        ),
        scale_bar_mm=next((bar for bar in _SCALE_BARS_MM if bar <= 0.4 * width_mm), 0),
    )


def error_overlay(wrong: NDArray[np.bool_]) -> str:
    """Return the address of a picture (rows, columns) in which what is wrong is magenta."""
    colours = np.zeros((256, 4), dtype=np.uint8)
    colours[1] = _ERROR_COLOUR
    return data_uri(palette_png(wrong.astype(np.uint8), colours))


def entropy_overlay(bits: NDArray[np.floating], scale: EntropyScale) -> str:
    """Return the address of a picture (rows, columns) of entropy in the colours of a scale."""
    return data_uri(palette_png(scale.levels(bits), scale.colours))


def colour_bar(scale: EntropyScale) -> dict[str, Any]:
    """Return the pixels of a scale, its ticks in % and its top, for a template."""
    top = scale.top_bits
    ticks = [(bits, text) for bits, text in round_ticks(0.0, top) if bits < 0.85 * top]
    return {
        "pixels": data_uri(palette_png(np.arange(256, dtype=np.uint8)[None], scale.colours)),
        "ticks": [(100.0 * bits / top, text) for bits, text in ticks],
        "top": f"{top:.3g}",
    }


def thumbnail(greys: NDArray[np.uint8], bits: NDArray[np.floating], scale: EntropyScale) -> str:
    """Return the address of one small picture (rows, columns): entropy over greys of a window.

    Every second grey and colour are left out, so that all fit into one palette.
    """
    levels = scale.levels(bits)
    shown = levels >= scale.first_shown
    coarse = np.maximum(levels // 2 * 2, scale.first_shown)
    pixels = np.where(shown[..., None], scale.palette[coarse], (greys // 2 * 2)[..., None])
    colours, numbers = np.unique(pixels.reshape(-1, 3), axis=0, return_inverse=True)
    table = np.full((256, 4), 255, dtype=np.uint8)
    table[: len(colours), :3] = colours
    return data_uri(palette_png(numbers.reshape(bits.shape).astype(np.uint8), table))


def field_of_view(
    shown: NDArray[np.bool_], mask: NDArray[np.bool_], spacing: tuple[float, float, float]
) -> Box:
    """Return the box of what is shown and its surroundings, inside that of the mask."""
    margins = [math.ceil(_MARGIN_MM / step) for step in spacing]
    whole = box_around(mask, margins)
    if not shown.any():
        return whole
    spans = []
    for within, inner, step in zip(whole, box_around(shown, margins), spacing):
        more = math.ceil((_SURROUNDINGS_MM - _MARGIN_MM) / step)
        start, stop = inner.start - more, inner.stop + more
        missing = max(0, math.ceil(_LEAST_MM / step) - (stop - start))
        start, stop = start - missing // 2, stop + missing - missing // 2
        spans.append(slice(max(within.start, start), min(within.stop, stop)))
    return spans[0], spans[1], spans[2]


def _average_neighbours(pixels: NDArray[np.float64]) -> NDArray[np.float64]:
    """Average neighbouring pixels where a picture has more than a page needs."""
    for axis, size in enumerate(pixels.shape):
        if size > _MOST_PIXELS:
            edges = np.linspace(0, size, _MOST_PIXELS + 1).round().astype(np.int64)
            counts = np.expand_dims(np.diff(edges), 1 - axis)
            pixels = np.add.reduceat(pixels, edges[:-1], axis=axis) / counts
    return pixels


def outline_path(region: NDArray[np.bool_]) -> str:
    """Return the border of a region (rows, columns) as an SVG path, in tenths of a pixel.

    The path joins the middles of the pixels' edges, a fifth of a pixel inside the region, so that
    it cuts corners; every part of it is closed.
    """
    following = _edges(region)
    parts = []
    while following:
        loop = _walk(following)
        points = _without_straight(_inset_middles(np.array(loop)))
        steps = np.diff(points, axis=0)
        start = f"M{points[0, 0]} {points[0, 1]}"
        parts.append(start + "l" + " ".join(f"{dx} {dy}" for dx, dy in steps) + "z")
    return "".join(parts)


def _edges(region: NDArray[np.bool_]) -> dict[Corner, list[Corner]]:
    """Return the edges between inside and outside, from corner to corner, the inside on the right.

    Corners are (x, y), x to the right and y down.
    """
    padded = np.pad(region.astype(np.int8), 1)
    following: dict[Corner, list[Corner]] = {}
    between_rows = np.diff(padded, axis=0)[:, 1:-1]  # (rows + 1, columns)
    for (y, x), change in zip(np.argwhere(between_rows).tolist(), _nonzero(between_rows)):
        a, b = ((x, y), (x + 1, y)) if change > 0 else ((x + 1, y), (x, y))
        following.setdefault(a, []).append(b)
    between_columns = np.diff(padded, axis=1)[1:-1]  # (rows, columns + 1)
    for (y, x), change in zip(np.argwhere(between_columns).tolist(), _nonzero(between_columns)):
        a, b = ((x, y + 1), (x, y)) if change > 0 else ((x, y), (x, y + 1))
        following.setdefault(a, []).append(b)
    return following


def _nonzero(values: NDArray[np.int8]) -> list[int]:
    found: list[int] = values[values != 0].tolist()
    return found


def _walk(following: dict[Corner, list[Corner]]) -> list[tuple[Corner, Corner]]:
    """Take one closed loop of edges out of ``following``."""
    start = here = next(iter(following))
    loop: list[tuple[Corner, Corner]] = []
    while not loop or here != start:
        ways = following[here]
        there = ways.pop(_right_turn(loop[-1], ways) if loop and len(ways) > 1 else 0)
        if not ways:
            del following[here]
        loop.append((here, there))
        here = there
    return loop


def _right_turn(last: tuple[Corner, Corner], ways: list[Corner]) -> int:
    """Return the way that turns right, so that pixels touching at a corner stay apart."""
    (ax, ay), (bx, by) = last
    right = (bx - (by - ay), by + (bx - ax))
    return ways.index(right) if right in ways else 0


def _inset_middles(edges: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the middles of edges (n, 2 corners, 2), moved into the region on their right, (n, 2).

    They are in tenths of a pixel.
    """
    steps = edges[:, 1] - edges[:, 0]
    right = np.stack([-steps[:, 1], steps[:, 0]], axis=1)
    return np.rint((edges.sum(axis=1) / 2 + right * _INSET) * _UNITS).astype(np.int64)


def _without_straight(points: NDArray[np.int64]) -> NDArray[np.int64]:
    """Leave out the points of a closed loop at which it does not turn."""
    before = points - np.roll(points, 1, axis=0)
    after = np.roll(points, -1, axis=0) - points
    turns = before[:, 0] * after[:, 1] != before[:, 1] * after[:, 0]
    return points[turns]
