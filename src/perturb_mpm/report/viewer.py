"""The NiiVue viewer as a part of the report, with its volumes inside the page."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from perturb_mpm.report.colours import SHOWN_FROM_BITS, label_styles
from perturb_mpm.report.data import ReportData
from perturb_mpm.report.packing import Packed, pack
from perturb_mpm.report.planes import to_mm
from perturb_mpm.viewer.assets import asset, niivue_packed, script
from perturb_mpm.viewer.settings import ShownImage, ViewerSettings

WITHOUT_WEBGL = (
    "This browser cannot draw in 3-D (it lacks WebGL 2, or it is switched off), so the viewer is "
    "not shown. The slices above show the same maps."
)
BACKGROUND_COLOUR = "#ff6fd8"  # seen where a label was painted over with background
_AROUND_MM = 5.0


@dataclass(frozen=True)
class ViewerFragment:
    """What a page needs to show the viewer: markup to put in place, and a script to run after it.

    Both need a content security policy no wider than ``POLICY``.
    """

    html: str
    script: str


POLICY = (
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; "
    "img-src data: blob:; base-uri 'none'; form-action 'none'"
)


def viewer_fragment(data: ReportData) -> ViewerFragment:
    """Return the viewer of one patient; the same data give the same text."""
    packed = pack(data)
    volumes = "\n".join(
        f'<script type="application/gzip" id="{name}">{text}</script>'
        for name, text in packed.volumes.items()
    )
    settings = _settings(data, packed).as_json()
    html = f"""<style>
{asset("viewer.css")}</style>
{asset("viewer.html")}<script type="application/json" id="pmpm-settings">{settings}</script>
{volumes}
<script type="application/gzip" id="pmpm-niivue">{niivue_packed()}</script>
"""
    return ViewerFragment(html, script("start_report.js"))


def most_uncertain_mm(data: ReportData) -> tuple[float, float, float]:
    """Return the place whose surroundings are most uncertain, in mm."""
    from scipy.ndimage import gaussian_filter

    width = [_AROUND_MM / step for step in data.spacing]
    around = gaussian_filter(np.where(data.mask, data.entropy, 0.0).astype(np.float32), width)
    x, y, z = np.unravel_index(int(around.argmax()), around.shape)
    return to_mm(data.affine, (int(x), int(y), int(z)))


def viewer_label_colours(label_names: tuple[str, ...]) -> tuple[str, ...]:
    """Return the colour of each label, that of the background first."""
    return (BACKGROUND_COLOUR, *(style.colour for style in label_styles(label_names)))


def _settings(data: ReportData, packed: Packed) -> ViewerSettings:
    return ViewerSettings(
        label_names=data.label_names,
        label_colours=viewer_label_colours(data.label_names),
        images=[
            ShownImage(name, {"element": element}, 0.0, 255.0)
            for name, element in packed.images.items()
        ],
        entropy={"element": "pmpm-entropy"},
        label_map={"element": "pmpm-labels"},
        samples=[{"element": element} for element in packed.samples],
        shares=[{"element": element} for element in packed.shares],
        top_bits=math.log2(len(data.label_names)),
        threshold_bits=SHOWN_FROM_BITS,
        start_mm=most_uncertain_mm(data),
        colour_map=data.colour_map,
        without_webgl=WITHOUT_WEBGL,
        note=packed.note,
    )
