"""The files of the demo: volumes to open in a viewer, and one picture."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from perturb_mpm.inference import MeanField
from perturb_mpm.io.atomic import atomic_open
from perturb_mpm.io.nifti import centred_affine, save_nifti
from perturb_mpm.phantom import Phantom
from perturb_mpm.report.slices import LineStyle, Outline, Panel, draw_panels

_CORE = (1, 3, 4)
_WHOLE_TUMOUR = (1, 2, 3, 4)


def write_volumes(folder: Path, phantom: Phantom, result: MeanField) -> list[Path]:
    """Write images, truth and result as NIfTI into ``folder``, and return the files."""
    affine = centred_affine(phantom.mask.shape, phantom.spacing)
    labels = ", ".join(f"{label} {name}" for label, name in enumerate(phantom.label_names))
    images = zip(phantom.channel_names, phantom.images)
    volumes = [(name, image, f"{name}, arbitrary units") for name, image in images]
    volumes += [
        ("truth", phantom.truth, labels),
        ("classifier", most_probable(phantom), labels),
        ("labels", result.labels, labels),
        ("entropy", result.entropy.astype(np.float32), "entropy of the marginals, bits"),
    ]
    files = []
    for name, volume, description in volumes:
        files.append(folder / f"{name.lower()}.nii.gz")
        save_nifti(files[-1], volume, affine, description)
    return files


def write_picture(folder: Path, phantom: Phantom, result: MeanField) -> Path:
    """Draw the axial slice with the largest tumour core, and return the file."""
    level = int(np.isin(phantom.truth, _CORE).sum(axis=(0, 1)).argmax())
    view = (*_bounding_box(phantom.mask.max(axis=2)), level)
    lines: list[tuple[str, NDArray[np.uint8], str, LineStyle]] = [
        ("truth", phantom.truth, "white", "solid"),
        ("classifier", most_probable(phantom), "orange", "dotted"),
        ("dense CRF", result.labels, "deepskyblue", "dashed"),
    ]

    def outlines(region: tuple[int, ...]) -> list[Outline]:
        return [
            Outline(name, np.isin(labels[view], region), colour, style)
            for name, labels, colour, style in lines
        ]

    whole, core = outlines(_WHOLE_TUMOUR), outlines(_CORE)
    bits = math.log2(len(phantom.label_names))
    panels = [
        Panel("FLAIR, whole tumour", phantom.images[3][view], whole),
        Panel("T1ce, tumour core", phantom.images[1][view], core),
        Panel("Uncertainty of the CRF", result.entropy[view], whole[:1], bits),
    ]
    file = folder / "demo.png"
    with atomic_open(file) as stream:
        draw_panels(stream, panels, phantom.spacing[:2])
    return file


def _bounding_box(region: NDArray[np.bool_], margin: int = 2) -> tuple[slice, slice]:
    """Return the box around a region (nx, ny), a few voxels wider on each side."""
    spans = [np.flatnonzero(region.any(axis=other)) for other in (1, 0)]
    x, y = (slice(max(int(span[0]) - margin, 0), int(span[-1]) + 1 + margin) for span in spans)
    return x, y


def most_probable(phantom: Phantom) -> NDArray[np.uint8]:
    """Return the labels that the classifier alone would give, shape of the image."""
    labels: NDArray[np.uint8] = phantom.probabilities.argmax(axis=0).astype(np.uint8)
    return labels
