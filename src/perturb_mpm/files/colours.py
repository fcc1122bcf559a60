"""One colour for each label, the same in reports, the viewer, DICOM, 3D Slicer and ITK-SNAP."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import cycle

# Okabe & Ito's colours, which colour-blind readers tell apart, lightened where black needs it. The
# first four stand for the paper's red, green, yellow and blue.
_RED, _GREEN, _YELLOW, _BLUE = "#ff7a33", "#1fd0a3", "#f6ea4c", "#5cc0ff"
_OTHERS = ("#e59ac4", "#ffffff", "#e69f00", "#b8b8b8")


def label_colours(names: Sequence[str]) -> tuple[str, ...]:
    """Return a colour such as #ff7a33 for each label that is drawn; background is not.

    Tumour parts are known by their names and take the paper's colours in a variant for
    colour-blind readers; other labels take what is left.
    """
    chosen: list[str | None] = []
    for name in names:
        colour = _known_colour(name)
        chosen.append(None if colour in chosen else colour)
    palette = (_RED, _GREEN, _YELLOW, _BLUE, *_OTHERS)
    left = cycle([colour for colour in palette if colour not in chosen])
    return tuple(colour or next(left) for colour in chosen)


def rgb(colour: str) -> tuple[int, int, int]:
    """Return red, green and blue, 0 to 255, of a colour such as #ff7a33."""
    return int(colour[1:3], 16), int(colour[3:5], 16), int(colour[5:7], 16)


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
