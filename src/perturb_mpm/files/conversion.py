"""Volumes for other programs: in other formats, and the labels for 3D Slicer and ITK-SNAP.

Voxels and geometry stay as they are; Slicer's and ITK-SNAP's files add names and colours.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from perturb_mpm.files.formats import ENDINGS, format_ending, write_nrrd
from perturb_mpm.files.geometry import Geometry
from perturb_mpm.files.labels import LabelScheme, label_map_values, rgb
from perturb_mpm.files.nnunet import KnownGrid, find_dataset, read_dataset, read_prediction
from perturb_mpm.files.source import AnyPath, Digests, InputError, Source
from perturb_mpm.files.volumes import read_volume, require_same_grid, save_like
from perturb_mpm.storage import atomic_open

_SLICER = ".seg.nrrd"
Program = Literal["slicer", "itksnap"]
PROGRAM_FILES: dict[Program, str] = {
    "slicer": "labels.seg.nrrd",
    "itksnap": "labels-itksnap.txt",
}


def convert(
    inputs: Sequence[Path],
    output: Path,
    *,
    reference: AnyPath | None = None,
    labels: LabelScheme | None = None,
) -> tuple[int, ...]:
    """Write the inputs in the format of the output's ending; return the shape that was written.

    Several 3-D files become the maps of one 4-D file. ``reference`` says where the voxels of
    nnU-Net's .npz are; else the label map beside it does. ``labels`` names the segments of a
    .seg.nrrd. Whole numbers are written as integers, all others as float32.

    Examples
    --------
    >>> from pathlib import Path
    >>> from perturb_mpm.files import convert
    >>> convert([Path("t1c.nii.gz")], Path("t1c.nrrd"))  # the shape that was written
    (20, 25, 21)
    """
    if format_ending(output) is None:
        raise InputError(f"`output` must end in one of {', '.join(ENDINGS)}, got {output.name}")
    if not inputs:
        raise InputError("`inputs` must name at least one file, got none")
    sources = [Source("inputs", path) for path in inputs]
    if any(path.suffix == ".npz" for path in inputs):
        voxels, geometry = _read_npz(sources, reference)
    else:
        voxels, geometry = _read_volumes(sources)
    stored = smallest_type(voxels)
    try:
        if output.name.lower().endswith(_SLICER):
            scheme = labels or _values_as_names(voxels, sources[0])
            write_slicer_segmentation(output, stored, geometry, scheme)
        else:
            save_like(output, stored, geometry)
    except ValueError as error:
        raise InputError(f"`output` {output}: {error}") from error
    return stored.shape


def smallest_type(voxels: NDArray[np.float32]) -> NDArray[np.generic]:
    """Return whole numbers in the smallest type that holds them, and all others as they are."""
    if not np.isfinite(voxels).all() or (voxels != np.rint(voxels)).any():
        return voxels
    low, high = float(voxels.min()), float(voxels.max())
    for kind in (np.uint8, np.uint16, np.int16, np.int32):
        if np.iinfo(kind).min <= low and high <= np.iinfo(kind).max:
            return voxels.astype(kind)
    return voxels


def _read_volumes(sources: Sequence[Source]) -> tuple[NDArray[np.float32], Geometry]:
    volumes = [read_volume(source) for source in sources]
    first = volumes[0]
    if len(volumes) == 1:
        return first.voxels, first.geometry
    for volume in volumes:
        if volume.voxels.ndim != 3:
            raise volume.source.error(
                f"must be 3-D where there are several files, got shape {volume.voxels.shape}"
            )
        require_same_grid(volume.source, volume.geometry, first.source, first.geometry)
    return np.stack([volume.voxels for volume in volumes], axis=-1), first.geometry


def _read_npz(
    sources: Sequence[Source], reference: AnyPath | None
) -> tuple[NDArray[np.float32], Geometry]:
    if len(sources) > 1:
        raise InputError(f"`inputs` must name one .npz and nothing else, got {len(sources)} files")
    path = find_dataset(sources[0].path)
    dataset = read_dataset(Source("inputs", path)) if path else None
    maps = read_prediction(sources[0], dataset, KnownGrid(reference), None, Digests())
    return maps.voxels, maps.geometry


def _values_as_names(voxels: NDArray[np.float32], source: Source) -> LabelScheme:
    if voxels.ndim != 3:
        raise source.error(f"a label map must be 3-D, got shape {voxels.shape}")
    values = label_map_values(voxels, source)
    return LabelScheme(values, ("background", *(f"label {value}" for value in values[1:])))


def write_for_program(
    folder: Path,
    program: Program,
    values: NDArray[Any],
    geometry: Geometry,
    scheme: LabelScheme,
) -> Path:
    """Write the file of ``PROGRAM_FILES`` into a folder and return it.

    ``values`` (X, Y, Z) are the user's label values. ITK-SNAP's file has names and colours alone
    and is loaded beside the label map.
    """
    path = folder / PROGRAM_FILES[program]
    if program == "slicer":
        write_slicer_segmentation(path, values, geometry, scheme)
    else:
        write_itksnap_labels(path, scheme)
    return path


def write_slicer_segmentation(
    path: Path, values: NDArray[Any], geometry: Geometry, scheme: LabelScheme
) -> None:
    """Write a .seg.nrrd: one layer, a segment for each label but background."""
    extent = " ".join(f"0 {n - 1}" for n in geometry.shape)
    fields: dict[str, str] = {}
    segments = _segments(scheme)
    for number, (value, name, colour) in enumerate(segments):
        segment = f"Segment{number}_"
        red, green, blue = (f"{part / 255:.6g}" for part in rgb(colour))
        fields |= {
            f"{segment}ID": f"label_{value}",
            f"{segment}Name": name,
            f"{segment}NameAutoGenerated": "0",
            f"{segment}Color": f"{red} {green} {blue}",
            f"{segment}ColorAutoGenerated": "0",
            f"{segment}LabelValue": str(value),
            f"{segment}Layer": "0",
            f"{segment}Extent": extent,
            f"{segment}Tags": "",
        }
    fields |= {
        "Segmentation_ContainedRepresentationNames": "Binary labelmap|",
        "Segmentation_MasterRepresentation": "Binary labelmap",
        "Segmentation_ReferenceImageExtentOffset": "0 0 0",
    }
    known = np.isin(values, [value for value, _, _ in segments])
    with atomic_open(path) as file:
        write_nrrd(file, np.where(known, values, 0).astype(values.dtype), geometry.affine, fields)


def write_itksnap_labels(path: Path, scheme: LabelScheme) -> None:
    """Write names and colours: index, red, green, blue, opacity, visibility, mesh, name."""
    rows = [
        "# ITK-SnAP Label Description File",
        "# IDX   -R-  -G-  -B-  -A--  VIS MSH  LABEL",
        '    0     0    0    0        0  0  0    "Clear Label"',
    ]
    for value, name, colour in _segments(scheme):
        red, green, blue = rgb(colour)
        plain = name.replace('"', "'")
        rows.append(f'{value:5d} {red:5d} {green:4d} {blue:4d}        1  1  1    "{plain}"')
    with atomic_open(path) as file:
        file.write(("\n".join(rows) + "\n").encode())


def _segments(scheme: LabelScheme) -> list[tuple[int, str, str]]:
    """Return value, name and colour of every label; 0 is background in both programs."""
    return [each for each in scheme.foreground() if each[0] != 0]
