"""Outputs as a derivative dataset of the Brain Imaging Data Structure: names and sidecars.

The label map is a ``dseg`` with a table of its labels, the marginals are a 4-D ``probseg`` with a
``LabelMap``. BIDS has no suffix for uncertainty; what it does not know stands in ``.bidsignore``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from perturb_mpm.files.labels import LabelScheme
from perturb_mpm.files.source import InputError
from perturb_mpm.files.tables import write_table
from perturb_mpm.storage import atomic_open, write_json

BIDS_VERSION = "1.10.0"
IGNORED = (
    *("*_map.nii.gz", "*_map.json", "*_volumes.*", "*_summary.json", "*_report.html"),
    "*.dcm",
    *("**/state", "**/.*"),  # what a run needs to go on, and files not finished yet
)
_UNDESCRIBED = ("summary", "report")
_LABEL = re.compile(r"[0-9a-zA-Z]+")
_ENDINGS = {
    "labels": "space-orig_seg-pmpm_dseg.nii.gz",
    "marginals": "space-orig_seg-pmpm_probseg.nii.gz",
    "entropy": "space-orig_seg-pmpm_desc-entropy_map.nii.gz",
    "uncertainty": "space-orig_seg-pmpm_desc-uncertainty_map.nii.gz",
    "mutual_information": "space-orig_seg-pmpm_desc-mutualinformation_map.nii.gz",
    "volumes": "space-orig_seg-pmpm_volumes.csv",
    "summary": "space-orig_seg-pmpm_summary.json",
    "report": "space-orig_seg-pmpm_report.html",
}


def bids_names(subject: str, session: str | None = None) -> dict[str, str]:
    """Return the path of every output inside the dataset, under its plain name."""
    _check_label("subject", subject)
    parts = [f"sub-{subject}"]
    if session is not None:
        _check_label("session", session)
        parts.append(f"ses-{session}")
    folder, start = "/".join([*parts, "anat"]), "_".join(parts)
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
        with atomic_open(ignore) as file:
            file.write("".join(f"{line}\n" for line in [*before, *missing]).encode())
        written.append(ignore)
    return written


def _beside(file: Path, ending: str) -> Path:
    return file.with_name(file.name.partition(".")[0] + ending)


def _check_label(what: str, label: str) -> None:
    if not _LABEL.fullmatch(label):
        raise InputError(f"`bids` must name the {what} by letters and digits only, got {label!r}")
