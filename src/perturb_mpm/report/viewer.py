"""The viewer in a page: NiiVue and our scripts, its settings, and volumes in the form they read.

In a report the volumes are in the page itself: cropped, in 8 bits, gzipped and in base64.
"""

from __future__ import annotations

import base64
import gzip
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from importlib.resources import files
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perturb_mpm.report.colours import (
    COLOUR_MAPS,
    OPAQUE_GREY,
    SHOWN_FROM_BITS,
    EntropyScale,
    grey_window,
    in_window,
    label_styles,
)
from perturb_mpm.report.data import ReportData
from perturb_mpm.report.locations import label_centre, uncertain_locations
from perturb_mpm.report.pages import page_environment
from perturb_mpm.report.planes import Box, box_around, to_mm

VolumeAddress = Mapping[str, str]
"""Where a volume is: {"element": id} in the page, or {"url": address} on the local server."""
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
# Tried in turn until the sequences fit: grey levels, and whether the outside of the mask is shown.
_REDUCTIONS = ((256, True), (64, True), (64, False), (32, False), (16, False))
_SCRIPTS = ("volume.js", "scene.js", "viewer.js")
# Of the NIfTI header.
_LABEL_INTENT = 1002
_SCANNER = 1
_DATA_START = 352


def asset(name: str) -> str:
    """Return the text of one file."""
    return files("perturb_mpm.report").joinpath("assets", name).read_text(encoding="utf-8")


def niivue() -> str:
    """Return the NiiVue library, a plain script."""
    return asset("niivue.umd.js")


@cache
def niivue_packed() -> str:
    """Return the NiiVue library gzipped, in base64: a third of its size."""
    return base64.b64encode(gzip.compress(niivue().encode(), 9, mtime=0)).decode()


def script(*last: str) -> str:
    """Return the viewer's scripts and ``last`` as one that leaves no names behind."""
    parts = "\n".join(asset(name) for name in (*_SCRIPTS, *last))
    return f'(() => {{\n"use strict";\n{parts}}})();\n'


@dataclass(frozen=True)
class ShownImage:
    """A sequence, and the stored values that are drawn black and white."""

    name: str
    source: VolumeAddress
    darkest: float
    brightest: float


@dataclass(frozen=True)
class ViewerSettings:
    """One patient's volumes and how they are shown at first."""

    label_names: Sequence[str]
    label_colours: Sequence[str]  # "#rrggbb", one for each label
    images: Sequence[ShownImage]
    entropy: VolumeAddress
    label_map: VolumeAddress
    top_bits: float
    threshold_bits: float
    start_mm: tuple[float, float, float]
    without_webgl: str  # the sentence shown where nothing can be drawn
    colour_map: str = "inferno"
    samples: Sequence[VolumeAddress] = ()
    shares: Sequence[VolumeAddress] = field(default=())  # of each label
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
            "palettes": {
                name: EntropyScale(name, self.top_bits).palette.tolist() for name in COLOUR_MAPS
            },
            "brightestGrey": OPAQUE_GREY,
            "withoutWebgl": self.without_webgl,
            "note": self.note,
            **self.more,
        }
        return json.dumps(settings, ensure_ascii=False).replace("<", "\\u003c")


def _rgb(colour: str) -> list[int]:
    return list(bytes.fromhex(colour.removeprefix("#")))


@dataclass(frozen=True)
class BrowserGrid:
    """The browser's order of a file's voxels, by the file's affine (4, 4).

    Only what lies in ``box`` is shown, voxel by voxel or in its steps.
    """

    file_affine: NDArray[np.float64]
    file_shape: tuple[int, ...]
    box: Box

    @cached_property
    def _axes(self) -> NDArray[np.float64]:
        from nibabel.orientations import io_orientation

        axes: NDArray[np.float64] = io_orientation(self.file_affine)
        return axes

    @cached_property
    def affine(self) -> NDArray[np.float64]:
        """Takes the browser's voxel indices to mm, (4, 4)."""
        from nibabel.orientations import inv_ornt_aff

        cut = np.diag([*(span.step or 1 for span in self.box), 1.0])
        cut[:3, 3] = [span.start for span in self.box]
        shape = [len(range(*span.indices(n))) for span, n in zip(self.box, self.file_shape)]
        affine: NDArray[np.float64] = self.file_affine @ cut @ inv_ornt_aff(self._axes, shape)
        return affine

    def reorder(self, volume: NDArray[Any]) -> NDArray[Any]:
        """Return what lies in the box of (X, Y, Z) in the browser's order, a view."""
        from nibabel.orientations import apply_orientation

        reordered: NDArray[Any] = apply_orientation(volume[self.box], self._axes)
        return reordered

    def file_index(self) -> NDArray[np.int64]:
        """Return the C-order index in the file of each voxel in the browser's order."""
        own = np.arange(np.prod(self.file_shape), dtype=np.int64).reshape(self.file_shape)
        return self.reorder(own).ravel(order="F")


def nifti_bytes(
    volume: NDArray[Any],
    affine: NDArray[np.float64],
    *,
    slope: float = 1.0,
    labels: bool = False,
) -> bytes:
    """Return the file of (X, Y, Z) uint8, int16 or float32; stored values times slope are meant.

    ``labels`` marks a label map, which is drawn with outlines.
    """
    from nibabel.nifti1 import Nifti1Header

    header = Nifti1Header(endianness="<")
    header.set_data_shape(volume.shape)
    header.set_data_dtype(volume.dtype)
    header.set_zooms(np.linalg.norm(affine[:3, :3], axis=0))
    header.set_sform(affine, code=_SCANNER)
    header.set_xyzt_units(xyz="mm")
    header["scl_slope"], header["scl_inter"] = slope, 0.0
    header["vox_offset"], header["magic"] = _DATA_START, b"n+1"
    if labels:
        header["intent_code"] = _LABEL_INTENT
    data = volume.astype(volume.dtype.newbyteorder("<"), copy=False)
    start: bytes = header.binaryblock
    return start.ljust(_DATA_START, b"\0") + data.tobytes(order="F")


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
        margins = (_MARGIN_VOXELS,) * 3
        size = math.prod(span.stop - span.start for span in box_around(data.mask, margins))
        self.every = math.ceil((size / MOST_VOXELS) ** (1 / 3))
        box = box_around(data.mask, margins, self.every)
        self._grid = BrowserGrid(data.affine, data.mask.shape, box)

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
        voxels = self._grid.reorder(volume)
        file = nifti_bytes(voxels, self._grid.affine, slope=slope, labels=labels)
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
    for k, (name, text) in enumerate(zip(grey, _take_while_fitting(texts, most))):
        packed.images[name] = f"pmpm-image-{k}"
        packed.volumes[packed.images[name]] = text
    return levels


def _pack_samples(data: ReportData, writer: _Writer, packed: Packed, most: int) -> None:
    texts = (writer.labels(labels) for labels in data.sampled_labels)
    for k, text in enumerate(_take_while_fitting(texts, most)):
        packed.samples.append(f"pmpm-sample-{k}")
        packed.volumes[packed.samples[-1]] = text


def _take_while_fitting(texts: Iterable[str], most: int) -> list[str]:
    """Return the first text, and those after it while all fit."""
    taken: list[str] = []
    for text in texts:
        if taken and sum(map(len, taken)) + len(text) > most:
            break
        taken.append(text)
    return taken


def _note(data: ReportData, writer: _Writer, packed: Packed, levels: int) -> str:
    """Say what this page leaves out of the volumes."""
    less = ["cut to the surroundings of the mask", f"with {levels} grey levels"]
    if writer.every > 1:
        less.append(f"with one voxel in {writer.every} along each axis")
    if len(packed.images) < len(data.images):
        less.append(f"with {len(packed.images)} of {len(data.images)} sequences")
    if len(packed.samples) < len(data.sampled_labels):
        less.append(f"with {len(packed.samples)} of {len(data.sampled_labels)} stored samples")
    return (
        f"This page contains reduced volumes: {', '.join(less)}. "
        "perturb-mpm view shows all of it, and lets you correct labels."
    )


@dataclass(frozen=True)
class ViewerFragment:
    """What a page needs to show the viewer: markup, and a script to run after it.

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
    """Return the first uncertain location, or the middle of the labels, in mm."""
    locations = uncertain_locations(data, limit=1)
    return locations[0].centre_mm if locations else to_mm(data.affine, label_centre(data))


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
