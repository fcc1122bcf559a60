"""The viewer in a page: NiiVue and our scripts, its settings, and volumes in the form they read.

In a report the volumes are in the page itself: cropped, in 8 bits, gzipped and in base64.
"""

from __future__ import annotations

import base64
import gzip
import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib.resources import files
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perturb_mpm.report.colours import (
    COLOUR_MAPS,
    OPAQUE_GREY,
    SHOWN_FROM_BITS,
    EntropyScale,
    in_window,
    label_styles,
)
from perturb_mpm.report.data import ReportData, shown_images
from perturb_mpm.report.locations import UncertainLocation, label_centre, uncertain_locations
from perturb_mpm.report.pages import page_environment
from perturb_mpm.report.planes import Box, box_around, to_mm

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
_NIIVUE = "niivue.umd.js.gz"
_SCRIPTS = ("volume.js", "scene.js", "viewer.js")
# Of the NIfTI header.
_LABEL_INTENT = 1002
_SCANNER = 1
_DATA_START = 352


def asset(name: str) -> str:
    """Return the text of one file."""
    return _asset_bytes(name).decode()


def _asset_bytes(name: str) -> bytes:
    return files("perturb_mpm.report").joinpath("assets", name).read_bytes()


def niivue() -> str:
    """Return the NiiVue library, a plain script."""
    return gzip.decompress(_asset_bytes(_NIIVUE)).decode()


def niivue_packed() -> str:
    """Return the NiiVue library gzipped, in base64: a third of its size."""
    return base64.b64encode(_asset_bytes(_NIIVUE)).decode()


def script(*last: str) -> str:
    """Return the viewer's scripts and ``last`` as one that leaves no names behind."""
    parts = "\n".join(asset(name) for name in (*_SCRIPTS, *last))
    return f'(() => {{\n"use strict";\n{parts}}})();\n'


def viewer_settings(
    data: ReportData,
    images: Mapping[str, tuple[float, float]],
    samples: int,
    address: Callable[[str], Mapping[str, str]],
    locations: Sequence[UncertainLocation] | None = None,
    **more: object,
) -> str:
    """Return one patient's volumes and how they are shown at first, for the scripts.

    ``images`` are the stored values of each sequence that are drawn black and white, ``address``
    says where the volume of a name is: {"element": id} in the page, or {"url": address} on the
    local server. ``locations``, where they are known, are where samples disagree. The text is safe
    inside a script element.
    """
    names, top_bits = data.label_names, math.log2(len(data.label_names))
    colours = (BACKGROUND_COLOUR, *(style.colour for style in label_styles(names)))
    if locations is None:
        locations = uncertain_locations(data, limit=1)
    voxel_ml = math.prod(data.spacing) / 1000.0
    sampled = [  # from small to large, by the volume of all that is not background
        (round(np.count_nonzero(labels) * voxel_ml, 3), k)
        for k, labels in enumerate(data.sampled_labels[:samples])
    ]
    start = locations[0].centre_mm if locations else to_mm(data.affine, label_centre(data))
    settings = {
        "labels": [
            {"name": name, "colour": list(bytes.fromhex(colour.removeprefix("#")))}
            for name, colour in zip(names, colours, strict=True)
        ],
        "images": [
            {"name": name, "source": address(f"image-{k}"), "range": window}
            for k, (name, window) in enumerate(images.items())
        ],
        "entropy": address("entropy"),
        "labelMap": address("labels"),
        "samples": [{**address(f"sample-{k}"), "ml": ml} for ml, k in sorted(sampled)],
        "shares": [address(f"share-{label}") for label in range(len(names))],
        "topBits": top_bits,
        "thresholdBits": round(SHOWN_FROM_BITS, 2),
        "startMm": start,
        "colourMap": data.colour_map,
        "palettes": {name: EntropyScale(name, top_bits).palette.tolist() for name in COLOUR_MAPS},
        "brightestGrey": OPAQUE_GREY,
        **more,
    }
    return json.dumps(settings, ensure_ascii=False).replace("<", "\\u003c")


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

        return io_orientation(self.file_affine)

    @cached_property
    def affine(self) -> NDArray[np.float64]:
        """Takes the browser's voxel indices to mm, (4, 4)."""
        from nibabel.orientations import inv_ornt_aff

        cut = np.diag([*(span.step or 1 for span in self.box), 1.0])
        cut[:3, 3] = [span.start for span in self.box]
        shape = [len(range(*span.indices(n))) for span, n in zip(self.box, self.file_shape)]
        return self.file_affine @ cut @ inv_ornt_aff(self._axes, shape)

    def reorder(self, volume: NDArray[Any]) -> NDArray[Any]:
        """Return what lies in the box of (X, Y, Z) in the browser's order, a view."""
        return self.turn(volume[self.box])

    def turn(self, cut: NDArray[Any]) -> NDArray[Any]:
        """Return what lies in the box in the browser's order, a view."""
        from nibabel.orientations import apply_orientation

        return apply_orientation(cut, self._axes)

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
    return _nifti_file(volume, affine, slope=slope, labels=labels).tobytes()


def _nifti_file(
    volume: NDArray[Any], affine: NDArray[np.float64], *, slope: float, labels: bool
) -> NDArray[np.uint8]:
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
    start: bytes = header.binaryblock
    file = np.empty(_DATA_START + volume.nbytes, dtype=np.uint8)
    file[:_DATA_START] = np.frombuffer(start.ljust(_DATA_START, b"\0"), dtype=np.uint8)
    stored = file[_DATA_START:].view(volume.dtype.newbyteorder("<"))
    stored = stored.reshape(volume.shape, order="F")
    for y in range(volume.shape[1]):  # a plane fits into the cache
        stored[:, y] = volume[:, y]
    return file


@dataclass(frozen=True)
class Packed:
    """The volumes of a page by their names, in base64, and what was left out."""

    volumes: dict[str, str]
    images: tuple[str, ...]  # names of the sequences
    samples: int
    note: str


def pack(
    data: ReportData, image_bytes: int = IMAGE_BYTES, sample_bytes: int = SAMPLE_BYTES
) -> Packed:
    """Return the volumes that the viewer of a report shows, cropped to the mask's surroundings."""
    margins = (_MARGIN_VOXELS,) * 3
    size = math.prod(span.stop - span.start for span in box_around(data.mask, margins))
    every = math.ceil((size / MOST_VOXELS) ** (1 / 3))
    grid = BrowserGrid(data.affine, data.mask.shape, box_around(data.mask, margins, every))

    def text(cut: NDArray[Any], *, slope: float = 1.0, labels: bool = False) -> str:
        file = _nifti_file(grid.turn(cut), grid.affine, slope=slope, labels=labels)
        return base64.b64encode(gzip.compress(file.data, 6, mtime=0)).decode()

    def in_255_steps(volume: NDArray[np.floating], top: float) -> str:
        steps = volume[grid.box] / top
        np.clip(steps, 0.0, 1.0, out=steps)
        steps *= 255
        np.rint(steps, out=steps)
        return text(steps.astype(np.uint8), slope=top / 255)

    mask = data.mask[grid.box]
    grey = {
        name: in_window(image[grid.box], data.windows[name], brightest=255)
        for name, image in shown_images(data.images, data.mask).items()
    }
    for levels, outside in _REDUCTIONS:
        step = 256 // levels
        images = []
        for image in grey.values():
            coarse = image if step == 1 else image // step * step
            images.append(text(coarse if outside else coarse * mask))
        if sum(map(len, images)) <= image_bytes:
            break
    images = _take_while_fitting(images, image_bytes)
    sampled = (text(labels[grid.box], labels=True) for labels in data.sampled_labels)
    samples = _take_while_fitting(sampled, sample_bytes)
    less = ["cut to the surroundings of the mask", f"with {levels} grey levels"]
    if every > 1:
        less.append(f"with one voxel in {every} along each axis")
    if len(images) < len(data.images):
        less.append(f"with {len(images)} of {len(data.images)} sequences")
    if len(samples) < len(data.sampled_labels):
        less.append(f"with {len(samples)} of {len(data.sampled_labels)} stored samples")
    return Packed(
        {
            "labels": text(data.labels[grid.box], labels=True),
            "entropy": in_255_steps(data.entropy, math.log2(len(data.label_names))),
            **{f"share-{k}": in_255_steps(share, 1.0) for k, share in enumerate(data.marginals)},
            **{f"image-{k}": image for k, image in enumerate(images)},
            **{f"sample-{k}": sample for k, sample in enumerate(samples)},
        },
        tuple(grey)[: len(images)],
        len(samples),
        f"This page contains reduced volumes: {', '.join(less)}. "
        "perturb-mpm view shows all of it, and lets you correct labels.",
    )


def _take_while_fitting(texts: Iterable[str], most: int) -> list[str]:
    """Return the first text, and those after it while all fit."""
    taken: list[str] = []
    for text in texts:
        if taken and sum(map(len, taken)) + len(text) > most:
            break
        taken.append(text)
    return taken


@dataclass(frozen=True)
class ViewerFragment:
    """What a page needs to show the viewer: markup, and a script to run after it.

    Both need a content security policy no wider than ``POLICY``.
    """

    html: str
    script: str


def viewer_fragment(
    data: ReportData, locations: Sequence[UncertainLocation], packed: Packed
) -> ViewerFragment:
    """Return the viewer of one patient, with its volumes; the same data give the same text."""
    settings = viewer_settings(
        data,
        dict.fromkeys(packed.images, (0.0, 255.0)),
        packed.samples,
        lambda name: {"element": f"pmpm-{name}"},
        locations,
        withoutWebgl=WITHOUT_WEBGL,
        note=packed.note,
    )
    html = (
        page_environment()
        .get_template("embedded.html")
        .render(
            style=asset("viewer.css"),
            controls=asset("viewer.html"),
            settings=settings,
            volumes=packed.volumes,
            niivue=niivue_packed(),
        )
    )
    return ViewerFragment(html + "\n", script("start_report.js"))
