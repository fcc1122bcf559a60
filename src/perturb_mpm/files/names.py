"""Names: of sequences, of images by their files, of patients in the names of files."""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from perturb_mpm.files.labels import join_values
from perturb_mpm.files.source import InputError

Value = TypeVar("Value")

STANDARD = ("t1", "t1c", "t2", "flair")
"""The sequences of most data sets of gliomas, by our names."""
ALIASES = {
    "t1": ("t1", "t1n", "t1w", "t1pre"),
    "t1c": ("t1c", "t1ce", "t1gd", "t1post", "t1wc", "t1wce"),
    "t2": ("t2", "t2w"),
    "flair": ("flair", "t2f", "fla", "t2flair"),
}
_STANDARD_NAME = {alias: name for name, aliases in ALIASES.items() for alias in aliases}
SEQUENCES = (*_STANDARD_NAME, "adc", "dwi")
_COLLECTION = re.compile(r"[a-z]+(19|20)\d\d|(dataset|task|fold)\d+")  # is of many patients
_CHANNEL = re.compile(r"_(\d{4})$")  # nnU-Net's CASE_0000.nii.gz


def standard_name(name: str) -> str:
    """Return our name of a sequence: t1ce becomes t1c; an unknown name only becomes lower case."""
    plain = name.lower().replace("-", "").replace("_", "").replace(" ", "")
    return _STANDARD_NAME.get(plain, name.lower())


def select_sequences(
    images: Mapping[str, Value], wanted: Sequence[str], what: str = "`images`"
) -> dict[str, Value]:
    """Return the wanted sequences of a case in the wanted order, found by any of their names."""
    found: dict[str, Value] = {}
    for name, image in images.items():
        standard = standard_name(name)
        if standard in wanted and standard in found:
            raise InputError(f"{what}: {standard} must be there once, got it twice")
        found[standard] = image
    missing = [name for name in wanted if name not in found]
    if missing:
        raise InputError(
            f"{what}: the sequences {join_values(wanted)} are needed, {join_values(missing)} is "
            f"missing; got {join_values(images)}. Name them so in the files or by `image_names`"
        )
    return {name: found[name] for name in wanted}


def name_images(paths: Sequence[Path], channels: dict[int, str] | None = None) -> list[str]:
    """Return one short name for each image file, all of them different.

    The name is the sequence that ends the file's name (``P01_t1ce.nii.gz``), or for nnU-Net's
    ``P01_0000.nii.gz`` the channel's name where ``channels`` has it; otherwise what tells the
    files apart, and for a single file its whole name.
    """
    stems = [without_endings(path) for path in paths]
    short = [_sequence_name(stem, channels or {}) for stem in stems]
    if all(short) and len(set(short)) == len(short):
        return [name for name in short if name]
    rest = [stem[_shared_prefix(stems) :].strip("_-. ") for stem in stems]
    for names in (rest, stems):
        if all(names) and len(set(names)) == len(names):
            return names
    return [f"{number}_{stem}" for number, stem in enumerate(stems, start=1)]


def without_endings(path: Path) -> str:
    """Return the name of a file without .nii.gz and other endings that stand for a format."""
    endings = r"\.nii(\.gz)?|\.gz|\.npz|\.nrrd|\.nhdr|\.mha|\.mhd|\.mgz|\.mgh|\.tiff?|\.png"
    return re.sub(rf"({endings})$", "", path.name, flags=re.IGNORECASE)


def _shared_prefix(stems: Sequence[str]) -> int:
    """Return how many letters all names begin with."""
    same = (len(set(letters)) == 1 for letters in zip(*stems))
    return sum(1 for _ in itertools.takewhile(bool, same)) if len(stems) > 1 else 0


def _sequence_name(stem: str, channels: dict[int, str]) -> str | None:
    channel = _CHANNEL.search(stem)
    if channel:
        return channels.get(int(channel[1]), channel[1])
    last = re.split(r"[_\-. ]", stem)[-1]
    return last if last.lower() in SEQUENCES else None


def other_patient_warnings(
    first: Path, others: Sequence[Path], *, channels: bool = False
) -> list[str]:
    """Say which files seem to be of another patient than the first, by their names.

    ``channels``: four digits at the end are nnU-Net's number of a sequence, not of a patient.
    """
    warnings = []
    for path in others:
        differing = _differing(first, path, channels=channels)
        if differing is not None:
            mine, theirs = differing
            warnings.append(
                f"{first.name} and {path.name} may be of different patients: one is named {mine}, "
                f"the other {theirs}"
            )
    return list(dict.fromkeys(warnings))


def _differing(one: Path, other: Path, *, channels: bool) -> tuple[str, str] | None:
    """Return the parts of two names that number different patients, None where none do.

    Parts such as P01 and P02 differ in their digits alone; what comes before them must be equal and
    without a number that names the same patient. Where names hold no numbers, folders are compared.
    """
    for a, b in ((one, other), (one.parent, other.parent)):
        mine, theirs = _parts(a, channels), _parts(b, channels)
        for part, counterpart in itertools.zip_longest(mine, theirs):
            if part == counterpart:
                if part is not None and _has_digit(part) and not _COLLECTION.fullmatch(part):
                    return None
                continue
            if part is None or counterpart is None or not _has_digit(part):
                break
            if _shape(part) != _shape(counterpart):
                break
            return part, counterpart
        if any(map(_has_digit, mine)) and any(map(_has_digit, theirs)):
            return None
    return None


def _parts(path: Path, channels: bool) -> list[str]:  # noqa: FBT001
    """Return the parts of a name that may say whose it is, which a sequence does not."""
    stem = without_endings(path).lower()
    parts = re.split(r"[_\-. ]+", _CHANNEL.sub("", stem) if channels else stem)
    return [part for part in parts if part and part not in SEQUENCES]


def _has_digit(part: str) -> bool:
    return any(letter.isdigit() for letter in part)


def _shape(part: str) -> str:
    """Return a part with its numbers as one sign."""
    return re.sub(r"\d+", "#", part)
