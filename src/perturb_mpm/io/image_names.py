"""Short names for images, from what their files are usually called."""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from pathlib import Path

SEQUENCES = ("t1", "t1c", "t1ce", "t1gd", "t1n", "t1w", "t2", "t2w", "t2f", "flair", "adc", "dwi")
_CHANNEL = re.compile(r"_(\d{4})$")  # nnU-Net's CASE_0000.nii.gz


def derived_names(paths: Sequence[Path], channels: dict[int, str] | None = None) -> list[str]:
    """Return one short name for each image file, all of them different.

    The name is the sequence that ends the file's name (``P01_t1ce.nii.gz``), or for nnU-Net's
    ``P01_0000.nii.gz`` the channel's name where ``channels`` has it; otherwise what tells the
    files apart, and for a single file its whole name.
    """
    stems = [without_endings(path) for path in paths]
    short = [_short(stem, channels or {}) for stem in stems]
    if all(short) and len(set(short)) == len(short):
        return [name for name in short if name]
    rest = [stem[_shared(stems) :].strip("_-. ") for stem in stems]
    for names in (rest, stems):
        if all(names) and len(set(names)) == len(names):
            return names
    return [f"{place}_{stem}" for place, stem in enumerate(stems, start=1)]


def without_endings(path: Path) -> str:
    """Return the name of a file without .nii, .nii.gz or .npz."""
    return re.sub(r"(\.nii)?(\.gz)?$|\.npz$", "", path.name)


def _shared(stems: Sequence[str]) -> int:
    """Return how many letters all names begin with."""
    same = (len(set(letters)) == 1 for letters in zip(*stems))
    return sum(1 for _ in itertools.takewhile(bool, same)) if len(stems) > 1 else 0


def _short(stem: str, channels: dict[int, str]) -> str | None:
    channel = _CHANNEL.search(stem)
    if channel:
        return channels.get(int(channel[1]), channel[1])
    last = re.split(r"[_\-. ]", stem)[-1]
    return last if last.lower() in SEQUENCES else None
