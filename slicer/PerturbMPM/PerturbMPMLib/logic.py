"""Commands of perturb-mpm and the folder of a run, for the module of 3D Slicer.

Nothing here needs Slicer, Qt or VTK: everything that computes runs in a process of its own, by the
command line, so that Slicer's window stays alive.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

SEGMENT = "label_"  # with a label's value: the ID of its segment


class CommandError(RuntimeError):
    """A command of perturb-mpm failed; the message is its own."""


@dataclass(frozen=True)
class Place:
    """Somewhere to look: millimetres to the right, front and up, as in Slicer (RAS)."""

    mm: tuple[float, float, float]
    words: str


def run_arguments(
    images: Sequence[Path], probabilities: Sequence[Path], output: Path, others: Sequence[str] = ()
) -> list[str]:
    """Return the arguments of ``perturb-mpm run``; ``others`` are more of its options."""
    if not images or not probabilities:
        raise ValueError("Choose at least one image, and the probabilities of its labels.")
    given = ["--image", *map(str, images), "--probabilities", *map(str, probabilities)]
    return ["run", *given, "--output", str(output), "--also", "slicer", "--quiet", *others]


def call(python: str, arguments: Sequence[str]) -> str:
    """Run a command of perturb-mpm to its end, and return what it prints."""
    command = [python, "-m", "perturb_mpm", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        lines = done.stderr.strip().splitlines() or ["it ended without a word"]
        raise CommandError(lines[-1])
    return done.stdout


class RunFolder:
    """The folder that ``perturb-mpm run`` wrote."""

    def __init__(self, folder: Path) -> None:
        self.folder = Path(folder)
        summary = self.folder / "summary.json"
        if not summary.is_file():
            raise ValueError(f"{folder} is not the folder of a finished run: no summary.json in it")
        self.summary = json.loads(summary.read_text(encoding="utf-8"))

    @property
    def labels(self) -> dict[int, str]:
        """Every label's value and name, background first."""
        return {row["value"]: row["name"] for row in self.summary["labels"]}

    @property
    def answer(self) -> str:
        """The answer of the report in words."""
        return str(self.summary["answer"])

    def find(self, name: str) -> Path:
        """Return the file of a map: as corrected, if it was, else as the run wrote it."""
        for stem in (f"{name}-corrected", name):
            found = sorted(self.folder.glob(f"{stem}.n*"))  # .nii.gz or .nrrd
            if found:
                return found[0]
        raise ValueError(f"{self.folder} has no {name}.nii.gz")

    def segmentation(self, python: str, folder: Path) -> Path:
        """Return the labels as a .seg.nrrd with names and colours, written to a folder."""
        path = Path(folder) / "labels.seg.nrrd"
        names = [f"{value}:{name}" for value, name in self.labels.items()]
        files = ["--input", str(self.find("labels")), "--output", str(path), "--overwrite"]
        call(python, ["convert", *files, "--labels", *names, "--quiet"])
        return path

    def read_places(self, python: str) -> list[Place]:
        """Return where to look first."""
        return places_from(call(python, ["view", str(self.folder), "--json"]))

    def correct(self, python: str, label_map: Path) -> list[Place]:
        """Hand a corrected label map back; return where to look next.

        Refused where the folder holds another run by now than the one that was opened.
        """
        names = ("problem_sha256", "seed")
        now = RunFolder(self.folder).summary
        if any(now.get(name) != self.summary.get(name) for name in names):
            raise ValueError(f"{self.folder} contains another run by now: open it again.")
        given = ["--correction", str(label_map), "--json"]
        return places_from(call(python, ["view", str(self.folder), *given]))


def places_from(text: str) -> list[Place]:
    """Return the places that ``perturb-mpm view --json`` prints."""
    return [
        Place(tuple(map(float, each["mm"])), each["words"])
        for each in json.loads(text)["locations"]
    ]


def combine_segments(
    segments: Mapping[str, np.ndarray], labels: Mapping[int, str], background: int = 0
) -> np.ndarray:
    """Return one label map of segments' masks by their IDs, all on one grid; the last one wins.

    A segment that is no label of the run is refused: the CRF cannot know it.
    """
    values = {f"{SEGMENT}{value}": value for value in labels}
    unknown = [name for name in segments if name not in values]
    if unknown:
        known = ", ".join(name for value, name in labels.items() if value != background)
        raise ValueError(f"The run has no label for the segment {unknown[0]}; it has {known}.")
    if not segments:
        raise ValueError("The segmentation has no segment.")
    first = next(iter(segments.values()))
    result = np.full(first.shape, background, dtype=np.uint16)
    for name, mask in segments.items():
        result[mask != 0] = values[name]
    return result
