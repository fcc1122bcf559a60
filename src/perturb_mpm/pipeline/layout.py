"""Where the files of a run go, in a plain folder or under BIDS names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from perturb_mpm.pipeline.state import STATE

PLAIN_NAMES = {
    "labels": "labels.nii.gz",
    "marginals": "marginals.nii.gz",
    "entropy": "entropy.nii.gz",
    "uncertainty": "uncertainty.nii.gz",
    "volumes": "volumes.csv",
    "summary": "summary.json",
    "report": "report.html",
}


@dataclass(frozen=True)
class BidsNames:
    """The subject and session that BIDS names carry."""

    subject: str
    session: str | None = None


@dataclass(frozen=True)
class Layout:
    """The folder a user named, the one of this run inside it, and the name of every output."""

    root: Path
    run: Path  # the root itself, or the subject's (and session's) folder in it
    files: Mapping[str, Path]  # plain name -> file
    bids: BidsNames | None = None

    @property
    def state(self) -> Path:
        """The folder of what is needed to go on."""
        return self.run / STATE

    @property
    def folders(self) -> tuple[Path, ...]:
        """Every folder that gets files."""
        return tuple(dict.fromkeys([self.run, *(file.parent for file in self.files.values())]))


def layout_of(folder: Path, bids: BidsNames | None = None) -> Layout:
    """Return the layout; nothing is made yet."""
    if bids is None:
        return Layout(folder, folder, {name: folder / file for name, file in PLAIN_NAMES.items()})
    from perturb_mpm.io.bids import bids_names

    run = folder / f"sub-{bids.subject}"
    if bids.session is not None:
        run /= f"ses-{bids.session}"
    names = bids_names(bids.subject, bids.session)
    return Layout(folder, run, {name: folder / names[name] for name in PLAIN_NAMES}, bids)
