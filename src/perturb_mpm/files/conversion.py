"""Results for other programs: other formats, 3D Slicer and ITK-SNAP, a dataset of BIDS.

Voxels and geometry stay as they are; Slicer's and ITK-SNAP's files add names and colours.

In a derivative dataset of the Brain Imaging Data Structure the label map is a ``dseg`` with a table
of its labels, the marginals are a 4-D ``probseg`` with a ``LabelMap``. BIDS has no suffix for
uncertainty; what it does not know stands in ``.bidsignore``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from perturb_mpm.files.formats import ENDINGS, format_ending, write_nrrd
from perturb_mpm.files.geometry import Geometry
from perturb_mpm.files.labels import LabelScheme, label_map_values, rgb
from perturb_mpm.files.nnunet import KnownGrid, find_dataset, read_dataset, read_prediction
from perturb_mpm.files.source import AnyPath, Digests, InputError, Source
from perturb_mpm.files.tables import write_table
from perturb_mpm.files.volumes import read_volume, require_same_grid, save_like
from perturb_mpm.storage import atomic_open, write_json, write_text

_SLICER = ".seg.nrrd"
Program = Literal["slicer", "itksnap", "sr", "extremes"]
PROGRAM_FILES: dict[Program, str] = {
    "slicer": "labels.seg.nrrd",
    "itksnap": "labels-itksnap.txt",
    "sr": "measurements.sr.dcm",  # a DICOM structured report, beside a DICOM segmentation
    "extremes": "extremes.nii.gz",  # samples of small, middle and large volume
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
    program: Literal["slicer", "itksnap"],
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
    write_text(path, "\n".join(rows) + "\n")


def _segments(scheme: LabelScheme) -> list[tuple[int, str, str]]:
    """Return value, name and colour of every label; 0 is background in both programs."""
    return [each for each in scheme.foreground() if each[0] != 0]


BIDS_VERSION = "1.10.0"
OUR_SEGMENTATION = "seg-pmpm"
"""In every name that this program gives."""
IGNORED = (
    *("*_map.nii.gz", "*_map.json", "*_volumes.*", "*_summary.json", "*_report.html"),
    "*.dcm",
    *("**/state", "**/.*"),  # what a run needs to go on, and files not finished yet
    *("runs", "group.*"),  # of the BIDS App: a folder a case, and what is written of all
)
_UNDESCRIBED = ("summary", "report")
_LABEL = re.compile(r"[0-9a-zA-Z]+")
_ENDINGS = {
    "labels": f"space-orig_{OUR_SEGMENTATION}_dseg.nii.gz",
    "marginals": f"space-orig_{OUR_SEGMENTATION}_probseg.nii.gz",
    "entropy": f"space-orig_{OUR_SEGMENTATION}_desc-entropy_map.nii.gz",
    "uncertainty": f"space-orig_{OUR_SEGMENTATION}_desc-uncertainty_map.nii.gz",
    "mutual_information": f"space-orig_{OUR_SEGMENTATION}_desc-mutualinformation_map.nii.gz",
    "volumes": f"space-orig_{OUR_SEGMENTATION}_volumes.csv",
    "summary": f"space-orig_{OUR_SEGMENTATION}_summary.json",
    "report": f"space-orig_{OUR_SEGMENTATION}_report.html",
}


def bids_names(subject: str, session: str | None = None, run: str | None = None) -> dict[str, str]:
    """Return the path of every output inside the dataset, under its plain name."""
    _check_label("subject", subject)
    parts = [f"sub-{subject}"]
    if session is not None:
        _check_label("session", session)
        parts.append(f"ses-{session}")
    folder, start = "/".join([*parts, "anat"]), "_".join(parts)
    if run is not None:
        _check_label("run", run)
        start += f"_run-{run}"
    return {name: f"{folder}/{start}_{ending}" for name, ending in _ENDINGS.items()}


def bids_sidecar_names(names: Mapping[str, str]) -> list[str]:
    """Return the path of all that is written beside the outputs ``names`` of ``bids_names``."""
    described = (Path(path) for name, path in names.items() if name not in _UNDESCRIBED)
    beside = [_beside(path, ".json").as_posix() for path in described]
    return [_beside(Path(names["labels"]), ".tsv").as_posix(), *beside]


def write_bids_sidecars(
    folder: Path,
    names: Mapping[str, str],
    labels: LabelScheme,
    entropy_max_bits: float,
    version: str,
) -> list[Path]:
    """Write what describes the outputs ``names`` of ``bids_names``; return the files.

    ``folder`` is the dataset. Its description is written where there is none, and its list of
    files to ignore gets the lines that it lacks, since other subjects may be there already.
    """
    files = {name: folder / path for name, path in names.items()}
    for file in files.values():
        file.parent.mkdir(parents=True, exist_ok=True)
    table = _beside(files["labels"], ".tsv")
    write_table(table, ("index", "name"), zip(labels.values, labels.names), delimiter="\t")
    written = [table]
    for name, content in _sidecars(labels, entropy_max_bits).items():
        if name not in files:
            continue
        sidecar = _beside(files[name], ".json")
        write_json(sidecar, content)
        written.append(sidecar)
    return [*written, *_describe_dataset(folder, version)]


def _sidecars(labels: LabelScheme, entropy_max_bits: float) -> dict[str, dict[str, Any]]:
    """Return the content of the JSON file beside each output that has one."""
    common = {"SpatialReference": "orig", "Manual": False}
    volume = {"Units": "mm^3", "Description": "Volume of the label in this sample."}
    return {
        "labels": {**common, "Description": "Most probable label."},
        "marginals": {
            **common,
            "Description": "Probability of every label, one volume each.",
            "LabelMap": list(labels.names),
        },
        "entropy": {
            **common,
            "Description": "Entropy of the marginals; 0 where one label is certain.",
            "Units": "bits",
            "Maximum": entropy_max_bits,
        },
        "uncertainty": {
            **common,
            "Description": "Whether a voxel's label is certain.",
            "Levels": {"0": "certain", "1": "undecided", "2": "uncertain"},
        },
        "mutual_information": {
            **common,
            "Description": "Mutual information of the label and the ensemble's member.",
            "Units": "bits",
        },
        "volumes": {
            "sample": {"Description": "Number of the sampled segmentation."},
            "label": {"Description": "Value in the label map; of a region all of its values."},
            "name": {"Description": "Name of the label or region."},
            "volume_mm3": volume,
            "volume_ml": {**volume, "Units": "ml"},
        },
    }


def _describe_dataset(folder: Path, version: str) -> list[Path]:
    written = []
    description = folder / "dataset_description.json"
    if not description.exists():
        made_by = {"Name": "perturb-mpm", "Version": version}
        content = {
            "Name": "Segmentations and their uncertainty",
            "BIDSVersion": BIDS_VERSION,
            "DatasetType": "derivative",
            "GeneratedBy": [made_by],
        }
        write_json(description, content)
        written.append(description)
    ignore = folder / ".bidsignore"
    before = ignore.read_text().splitlines() if ignore.exists() else []
    missing = [line for line in IGNORED if line not in before]
    if missing:
        write_text(ignore, "".join(f"{line}\n" for line in [*before, *missing]))
        written.append(ignore)
    return written


def _beside(file: Path, ending: str) -> Path:
    return file.with_name(file.name.partition(".")[0] + ending)


def _check_label(what: str, label: str) -> None:
    if not _LABEL.fullmatch(label):
        raise InputError(f"`bids` must name the {what} by letters and digits only, got {label!r}")
