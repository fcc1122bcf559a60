"""The viewer in a page: NiiVue and our scripts, its settings, and volumes in the form they read."""

from __future__ import annotations

import base64
import gzip
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perturb_mpm.report.colours import BRIGHTEST_GREY, COLOUR_MAPS, EntropyScale

VolumeAddress = Mapping[str, str]
"""Where a volume is: {"element": id} in the page, or {"url": address} on the local server."""
Box = tuple[slice, slice, slice]

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
    without_webgl: str  # what is said where nothing can be drawn
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
            "brightestGrey": BRIGHTEST_GREY,
            "withoutWebgl": self.without_webgl,
            "note": self.note,
            **self.more,
        }
        return json.dumps(settings, ensure_ascii=False).replace("<", "\\u003c")


def _rgb(colour: str) -> list[int]:
    return list(bytes.fromhex(colour.removeprefix("#")))


@dataclass(frozen=True)
class Turning:
    """The way from a file's voxels to the browser's and back, by the file's affine (4, 4).

    Only what lies in ``box`` goes that way, voxel by voxel or in its steps.
    """

    file_affine: NDArray[np.float64]
    file_shape: tuple[int, ...]
    box: Box
    affine: NDArray[np.float64] = field(init=False)
    """Takes turned voxel indices to mm."""
    _axes: NDArray[np.float64] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        from nibabel.orientations import inv_ornt_aff, io_orientation

        cut = np.diag([*(span.step or 1 for span in self.box), 1.0])
        cut[:3, 3] = [span.start for span in self.box]
        shape = [len(range(*span.indices(n))) for span, n in zip(self.box, self.file_shape)]
        axes = io_orientation(self.file_affine)
        affine = self.file_affine @ cut @ inv_ornt_aff(axes, shape)
        object.__setattr__(self, "_axes", axes)
        object.__setattr__(self, "affine", affine)

    def turned(self, volume: NDArray[Any]) -> NDArray[Any]:
        """Return what lies in the box of (X, Y, Z) in the browser's order, a view."""
        from nibabel.orientations import apply_orientation

        turned: NDArray[Any] = apply_orientation(volume[self.box], self._axes)
        return turned

    def file_index(self) -> NDArray[np.int64]:
        """Return the C-order index in the file of each turned voxel, the first axis fastest."""
        own = np.arange(np.prod(self.file_shape), dtype=np.int64).reshape(self.file_shape)
        return self.turned(own).ravel(order="F")


def box_around(mask: NDArray[np.bool_], margin: int, every: int = 1) -> Box:
    """Return the box of the mask, ``margin`` voxels wider, in steps of ``every`` voxels."""
    spans = []
    for axis in range(3):
        others = tuple(other for other in range(3) if other != axis)
        inside = np.flatnonzero(mask.any(axis=others))
        start = max(int(inside[0]) - margin, 0)
        spans.append(slice(start, min(int(inside[-1]) + 1 + margin, mask.shape[axis]), every))
    return spans[0], spans[1], spans[2]


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
