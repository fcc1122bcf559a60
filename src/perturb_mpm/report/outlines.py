"""The border of a region in a slice, as a path that a page can draw."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

_INSET = 0.2  # of a pixel: borders of neighbours run side by side instead of hiding each other
_UNITS = 10  # coordinates are whole tenths of a pixel, which keeps paths short

Corner = tuple[int, int]


def outline_path(region: NDArray[np.bool_]) -> str:
    """Return the border of a region (rows, columns) as an SVG path, in tenths of a pixel.

    The path joins the middles of the pixels' edges, a fifth of a pixel inside the region, so that
    it cuts corners; every part of it is closed.
    """
    following = _edges(region)
    parts = []
    while following:
        loop = _walk(following)
        points = _without_straight(np.array([_inset_middle(a, b) for a, b in loop]))
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
    for y, x in np.argwhere(between_rows):
        entering = between_rows[y, x] > 0
        a, b = (int(x), int(y)), (int(x) + 1, int(y))
        following.setdefault(a if entering else b, []).append(b if entering else a)
    between_columns = np.diff(padded, axis=1)[1:-1]  # (rows, columns + 1)
    for y, x in np.argwhere(between_columns):
        entering = between_columns[y, x] > 0
        a, b = (int(x), int(y)), (int(x), int(y) + 1)
        following.setdefault(b if entering else a, []).append(a if entering else b)
    return following


def _walk(following: dict[Corner, list[Corner]]) -> list[tuple[Corner, Corner]]:
    """Take one closed loop of edges out of ``following``."""
    start = here = next(iter(following))
    loop: list[tuple[Corner, Corner]] = []
    while not loop or here != start:
        ways = following[here]
        there = ways.pop(_sharpest_right(loop[-1], ways) if loop and len(ways) > 1 else 0)
        if not ways:
            del following[here]
        loop.append((here, there))
        here = there
    return loop


def _sharpest_right(last: tuple[Corner, Corner], ways: list[Corner]) -> int:
    """Return the way that turns right, so that pixels touching at a corner stay apart."""
    (ax, ay), (bx, by) = last
    right_turn = (bx - (by - ay), by + (bx - ax))
    return ways.index(right_turn) if right_turn in ways else 0


def _inset_middle(a: Corner, b: Corner) -> tuple[int, int]:
    """Return the middle of an edge, moved into the region on its right."""
    dx, dy = b[0] - a[0], b[1] - a[1]
    x, y = (a[0] + b[0]) / 2 - dy * _INSET, (a[1] + b[1]) / 2 + dx * _INSET
    return round(x * _UNITS), round(y * _UNITS)


def _without_straight(points: NDArray[np.int64]) -> NDArray[np.int64]:
    """Leave out the points of a closed loop at which it does not turn."""
    before = points - np.roll(points, 1, axis=0)
    after = np.roll(points, -1, axis=0) - points
    turns = before[:, 0] * after[:, 1] != before[:, 1] * after[:, 0]
    kept: NDArray[np.int64] = points[turns]
    return kept
