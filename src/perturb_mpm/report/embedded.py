"""The viewer inside the report: volumes cropped, in 8 bits, gzipped and in base64."""

from __future__ import annotations

import base64
import gzip
import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perturb_mpm.report.colours import SHOWN_FROM_BITS, grey_window, in_window, label_styles
from perturb_mpm.report.data import ReportData
from perturb_mpm.report.environment import page_environment
from perturb_mpm.report.places import middle_of_labels, uncertain_places
from perturb_mpm.report.planes import to_mm
from perturb_mpm.report.viewer import (
    ShownImage,
    Turning,
    ViewerSettings,
    asset,
    box_around,
    nifti_bytes,
    niivue_packed,
    script,
)

IMAGE_BYTES = 7_000_000
"""The most that all sequences take together, as text."""
SAMPLE_BYTES = 2_500_000
"""The most that all sampled segmentations take together, as text."""
MOST_VOXELS = 8_000_000
POLICY = (
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; "
    "img-src data: blob:; base-uri 'none'; form-action 'none'"
)
"""The content security policy of a page with the viewer."""
WITHOUT_WEBGL = (
    "This browser cannot draw in 3-D (it lacks WebGL 2, or it is switched off), so the viewer is "
    "not shown. The slices above show the same maps."
)
BACKGROUND_COLOUR = "#ff6fd8"  # seen where a label was painted over with background

_MARGIN_VOXELS = 3
# Tried in turn until the sequences fit: grey levels, and whether what is outside the mask is kept.
_REDUCTIONS = ((256, True), (64, True), (64, False), (32, False), (16, False))


@dataclass
class Packed:
    """The volumes by the id of their element, and what was left out."""

    volumes: dict[str, str] = field(default_factory=dict)  # id -> base64
    images: dict[str, str] = field(default_factory=dict)  # name of the sequence -> id
    samples: list[str] = field(default_factory=list)  # ids
    shares: list[str] = field(default_factory=list)  # ids, one for each label
    note: str = ""


def pack(
    data: ReportData, image_bytes: int = IMAGE_BYTES, sample_bytes: int = SAMPLE_BYTES
) -> Packed:
    """Return the volumes that the viewer of a report shows."""
    writer = _Writer(data)
    packed = Packed()
    packed.volumes["pmpm-labels"] = writer.labels(data.labels)
    top_bits = math.log2(len(data.label_names))
    packed.volumes["pmpm-entropy"] = writer.in_255_steps(data.entropy, top_bits)
    for label, share in enumerate(data.marginals):
        packed.shares.append(f"pmpm-share-{label}")
        packed.volumes[packed.shares[-1]] = writer.in_255_steps(share, 1.0)
    levels = _pack_images(data, writer, packed, image_bytes)
    _pack_samples(data, writer, packed, sample_bytes)
    packed.note = _note(data, writer, packed, levels)
    return packed


class _Writer:
    """Crops volumes to the surroundings of the mask and writes them in the browser's order."""

    def __init__(self, data: ReportData) -> None:
        box = box_around(data.mask, _MARGIN_VOXELS)
        size = math.prod(span.stop - span.start for span in box)
        self.every = math.ceil((size / MOST_VOXELS) ** (1 / 3))
        thinned = box_around(data.mask, _MARGIN_VOXELS, self.every)
        self._turning = Turning(data.affine, data.mask.shape, thinned)

    def labels(self, volume: NDArray[np.uint8]) -> str:
        """Return a label map."""
        return self._text(volume, labels=True)

    def in_255_steps(self, volume: NDArray[np.floating], top: float) -> str:
        """Return 0 … top in 255 steps."""
        steps = np.round(np.clip(volume / top, 0.0, 1.0) * 255)
        return self._text(steps.astype(np.uint8), slope=top / 255)

    def image(self, volume: NDArray[np.uint8]) -> str:
        """Return a sequence in 8 bits."""
        return self._text(volume)

    def _text(self, volume: NDArray[Any], *, slope: float = 1.0, labels: bool = False) -> str:
        turned = self._turning.turned(volume)
        file = nifti_bytes(turned, self._turning.affine, slope=slope, labels=labels)
        return base64.b64encode(gzip.compress(file, 6, mtime=0)).decode()


def _pack_images(data: ReportData, writer: _Writer, packed: Packed, most: int) -> int:
    """Add the sequences with as many grey levels as fit, and return that number."""
    shown = data.images or {"mask": data.mask.astype(np.float32)}
    grey = {
        name: in_window(image, grey_window(image[data.mask]), brightest=255)
        for name, image in shown.items()
    }
    for levels, outside in _REDUCTIONS:
        step = 256 // levels
        texts = [
            writer.image(np.where(data.mask | outside, image // step * step, 0).astype(np.uint8))
            for image in grey.values()
        ]
        if sum(map(len, texts)) <= most:
            break
    for place, (name, text) in enumerate(zip(grey, _fitting(texts, most))):
        packed.images[name] = f"pmpm-image-{place}"
        packed.volumes[packed.images[name]] = text
    return levels


def _pack_samples(data: ReportData, writer: _Writer, packed: Packed, most: int) -> None:
    texts = (writer.labels(labels) for labels in data.sampled_labels)
    for place, text in enumerate(_fitting(texts, most)):
        packed.samples.append(f"pmpm-sample-{place}")
        packed.volumes[packed.samples[-1]] = text


def _fitting(texts: Iterable[str], most: int) -> list[str]:
    """Return the first text, and those after it while all fit."""
    kept: list[str] = []
    for text in texts:
        if kept and sum(map(len, kept)) + len(text) > most:
            break
        kept.append(text)
    return kept


def _note(data: ReportData, writer: _Writer, packed: Packed, levels: int) -> str:
    """Say what this page leaves out of the volumes."""
    less = ["cut to the surroundings of the mask", f"with {levels} grey levels"]
    if writer.every > 1:
        less.append(f"with one voxel in {writer.every} along each axis")
    if len(packed.images) < len(data.images):
        less.append(f"with {len(packed.images)} of {len(data.images)} sequences")
    if len(packed.samples) < len(data.sampled_labels):
        less.append(f"with {len(packed.samples)} of {len(data.sampled_labels)} kept samples")
    return (
        f"This page holds reduced volumes: {', '.join(less)}. "
        "perturb-mpm view shows all of it, and lets you correct labels."
    )


@dataclass(frozen=True)
class ViewerFragment:
    """What a page needs to show the viewer: markup to put in place, and a script to run after it.

    Both need a content security policy no wider than ``POLICY``.
    """

    html: str
    script: str


def viewer_fragment(data: ReportData) -> ViewerFragment:
    """Return the viewer of one patient; the same data give the same text."""
    packed = pack(data)
    template = page_environment().get_template("embedded.html")
    html = template.render(
        style=asset("viewer.css"),
        controls=asset("viewer.html"),
        settings=_settings(data, packed).as_json(),
        volumes=packed.volumes,
        niivue=niivue_packed(),
    )
    return ViewerFragment(html + "\n", script("start_report.js"))


def most_uncertain_mm(data: ReportData) -> tuple[float, float, float]:
    """Return the first uncertain place, or the middle of the labels, in mm."""
    places = uncertain_places(data, limit=1)
    return places[0].centre_mm if places else to_mm(data.affine, middle_of_labels(data))


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
