"""What the viewer's scripts must know, as JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

Source = Mapping[str, str]
"""Where a volume is: {"element": id} in the page, or {"url": address} on the local server."""

COLOUR_MAPS = ("inferno", "viridis", "jet", "hot")


@dataclass(frozen=True)
class ShownImage:
    """A sequence, and the stored values that are drawn black and white."""

    name: str
    source: Source
    darkest: float
    brightest: float


@dataclass(frozen=True)
class ViewerSettings:
    """One patient's volumes and how they are shown at first."""

    label_names: Sequence[str]
    label_colours: Sequence[str]  # "#rrggbb", one for each label
    images: Sequence[ShownImage]
    entropy: Source
    label_map: Source
    top_bits: float
    threshold_bits: float
    start_mm: tuple[float, float, float]
    without_webgl: str  # what is said where nothing can be drawn
    colour_map: str = "inferno"
    samples: Sequence[Source] = ()
    shares: Sequence[Source] = field(default=())  # of each label
    note: str = ""
    more: Mapping[str, object] = field(default_factory=dict)

    def as_json(self) -> str:
        """Return the settings in the scripts' words; safe inside a script element."""
        names_and_colours = zip(self.label_names, self.label_colours, strict=True)
        settings = {
            "labels": [{"name": name, "colour": _rgb(hex_)} for name, hex_ in names_and_colours],
            "images": [
                {
                    "name": image.name,
                    "source": image.source,
                    "range": [image.darkest, image.brightest],
                }
                for image in self.images
            ],
            "entropy": self.entropy,
            "labelMap": self.label_map,
            "samples": list(self.samples),
            "shares": list(self.shares),
            "topBits": self.top_bits,
            "thresholdBits": round(self.threshold_bits, 2),
            "startMm": self.start_mm,
            "colourMap": self.colour_map,
            "palettes": {name: _palette(name) for name in COLOUR_MAPS},
            "withoutWebgl": self.without_webgl,
            "note": self.note,
            **self.more,
        }
        return json.dumps(settings, ensure_ascii=False).replace("<", "\\u003c")


def _rgb(colour: str) -> list[int]:
    return list(bytes.fromhex(colour.removeprefix("#")))


def _palette(name: str) -> list[list[int]]:
    """Return the 256 colours of a map, [r, g, b] each."""
    import matplotlib as mpl
    import numpy as np

    colours = mpl.colormaps[name].resampled(256)(np.arange(256))[:, :3]
    palette: list[list[int]] = np.round(255 * colours).astype(int).tolist()
    return palette
