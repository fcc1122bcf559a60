"""The record of one case: what was asked for, which files it was read from, and what came out.

A record is one small JSON file, written last; the tables and the page of a cohort are made of
records. The figures compare a run's label map with its marginals and, where it is known, its truth.
"""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from perturb_mpm.evaluation import dice, expected_dice
from perturb_mpm.files import Source, read_table
from perturb_mpm.report import (
    OPAQUE_GREY,
    EntropyScale,
    VolumeRow,
    field_of_view,
    grey_window,
    in_window,
    radiological_planes,
    run_digest,
    thumbnail,
)
from perturb_mpm.run import MapsInside, Run, report_data, volume_rows
from perturb_mpm.storage import (
    DAMAGE,
    DamagedError,
    error_text,
    read_json,
    require_file,
    write_json,
)

RECORDS = "cohort"
"""The folder in the output that holds a record of every case; no case may have its name."""
RATINGS = ("fine", "fix", "exclude")
"""What a reader may say of a case."""
TABLES = {"csv": "cohort.csv", "json": "cohort.json", "html": "cohort.html"}
"""What is written of all cases, by its ending."""
_BULKY = ("picture", "request", "inputs", "other_inputs", "files", "begun")
_RATINGS = "ratings.list"  # JSON; no record of a case has its ending
_SIDE = 96  # pixels of a picture at most


class FileStamp(NamedTuple):
    """A file as it was read: its content is known by its SHA-256; None where there is no file."""

    path: str
    size: int | None  # bytes
    time_ns: int | None  # of its last change
    sha256: str | None


def stamp_file(path: Path) -> FileStamp:
    """Return the stamp of a file, of which every byte is read."""
    try:
        require_file(path)
        with path.open("rb") as file:
            status = os.fstat(file.fileno())
            digest = hashlib.file_digest(file, "sha256").hexdigest()
    except (OSError, DamagedError):
        return FileStamp(str(path), None, None, None)
    return FileStamp(str(path), status.st_size, status.st_mtime_ns, digest)


def changed_files(before: Iterable[FileStamp], now: Iterable[FileStamp]) -> tuple[str, ...]:
    """Return the paths in both whose content differs, whatever their sizes and times are."""
    known = {stamp.path: stamp.sha256 for stamp in before}
    return tuple(
        stamp.path for stamp in now if stamp.path in known and stamp.sha256 != known[stamp.path]
    )


@dataclass(frozen=True)
class RegionFigures:
    """Volume, interval and uncertainty of one region or label; None where there is no voxel."""

    name: str
    kind: str
    label: str  # its values in the label map, as in "1,4"
    volume_ml: float
    interval_lower_ml: float | None
    interval_upper_ml: float | None
    mean_entropy_bits: float | None
    uncertain_frac: float | None
    network_confidence: float | None
    expected_dice: float | None
    dice: float | None
    true_volume_ml: float | None


@dataclass(frozen=True)
class CaseOutcome:
    """What came out of a case that is done; Dice is that of the whole foreground."""

    truth: str | None
    files: tuple[str, ...]  # inside the folder of the case
    report: str
    samples: int
    intervals_rest_on: str
    image_evidence: float | None  # the share that voxels that look alike predict
    temperature: float  # of the maps
    mask_ml: float
    mask_voxels: int
    mean_entropy_bits: float
    active_share: float
    expected_dice: float | None
    dice: float | None
    rows: tuple[RegionFigures, ...]
    warnings: tuple[str, ...]
    picture: str | None  # the address of an image, which holds its pixels
    expected_error_ml: float | None = None  # foreground that is missing or too much
    run_digest: str | None = None  # by which a rating knows the run that it is of

    @property
    def error_ml(self) -> float | None:
        """The foreground that is missing or too much, where the truth is known."""
        labels = [row for row in self.rows if row.kind == "label"]
        if self.dice is None or any(row.true_volume_ml is None for row in labels):
            return None
        volume = sum(row.volume_ml + (row.true_volume_ml or 0.0) for row in labels)
        return volume * (1.0 - self.dice)  # |A| + |B| - 2 |A ∩ B|


@dataclass(frozen=True)
class CaseRecord:
    """One case of a cohort after it was run: done where it has an outcome, else failed."""

    case: str
    error: str | None
    request: Mapping[str, Any]
    inputs: tuple[FileStamp, ...]
    worker: str | None  # a random name of the process; None where it was lost
    other_inputs: tuple[FileStamp, ...] = ()  # that the inputs name, such as the voxels of a header
    begun: bool = False  # the folder of the case was empty, or holds this cohort's own run
    run_sha256: str | None = None  # of the run.json of the finished run
    run_anew: str | None = None  # why a run that the folder held was replaced
    outcome: CaseOutcome | None = None
    seconds: float | None = None
    peak_memory_mb: int | None = None

    @property
    def status(self) -> str:
        """Either "done" or "failed"."""
        return "failed" if self.outcome is None else "done"

    def to_json(self) -> dict[str, Any]:
        """Return the record as its file has it."""
        return {
            "case": self.case,
            "status": self.status,
            "error": self.error,
            "request": self.request,
            "inputs": [list(stamp) for stamp in self.inputs],
            "other_inputs": [list(stamp) for stamp in self.other_inputs],
            "worker": self.worker,
            "begun": self.begun,
            "run_sha256": self.run_sha256,
            "run_anew": self.run_anew,
            **({} if self.outcome is None else asdict(self.outcome)),
            "seconds": self.seconds,
            "peak_memory_mb": self.peak_memory_mb,
        }

    def to_short_json(self) -> dict[str, Any]:
        """Return the record without what only the program needs."""
        return {key: value for key, value in self.to_json().items() if key not in _BULKY}

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> CaseRecord:
        """Return the record of a file; any ``DAMAGE`` where it is none."""
        found = {field.name: content[field.name] for field in fields(cls) if field.name in content}
        for name in ("inputs", "other_inputs"):
            found[name] = tuple(FileStamp(*stamp) for stamp in content[name])
        if content["status"] == "done":
            figures = {"expected_error_ml": None, "run_digest": None, **content}
            figures = {field.name: figures[field.name] for field in fields(CaseOutcome)}
            figures["rows"] = tuple(RegionFigures(**row) for row in content["rows"])
            for name in ("files", "warnings"):
                figures[name] = tuple(content[name])
            found["outcome"] = CaseOutcome(**figures)
        return cls(**found)

    def without_picture(self) -> CaseRecord:
        """Return the record without its largest part, for the way back from a worker."""
        if self.outcome is None:
            return self
        return replace(self, outcome=replace(self.outcome, picture=None))

    def write(self, folder: Path) -> None:
        """Write the record into the folder of its cohort."""
        path = _record_path(folder, self.case)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_json(path, self.to_json())


def read_record(folder: Path, case: str) -> CaseRecord | None:
    """Return the record of a case, None where there is none; ``DamagedError`` says what to do."""
    path = _record_path(folder, case)
    try:
        found = CaseRecord.from_json(read_json(path))
        if found.case != case:
            raise ValueError(f"it is the record of {found.case}")
    except FileNotFoundError:
        return None
    except DAMAGE as error:
        words = error_text(error).removeprefix(f"{path} cannot be read: ")
        raise DamagedError(
            f"{path} is no record of {case}: {words}; the same command runs the case again, or "
            "remove the file"
        ) from error
    return found


def _record_path(folder: Path, case: str) -> Path:
    return folder / RECORDS / f"{case}.json"


def summarise_run(run: Run, truth: Path | None) -> CaseOutcome:
    """Return what a finished run comes to."""
    summary, case, inside = run.summary, run.case, MapsInside(run)
    confidence = case.grid.gather(case.probabilities).max(axis=0)  # (N,)
    foreground = range(1 if case.labels.has_background else 0, len(case.labels))
    expected, true = _dice_coefficients(inside, foreground)
    return CaseOutcome(
        truth=None if truth is None else str(truth.resolve()),
        files=tuple(file.relative_to(run.folder).as_posix() for file in run.files.values()),
        report=run.files["report"].relative_to(run.folder).as_posix(),
        samples=run.posterior.samples,
        intervals_rest_on=summary["intervals"]["rest_on"],
        image_evidence=summary["image_evidence"],
        temperature=summary["temperature"],
        mask_ml=summary["mask"]["volume_ml"],
        mask_voxels=summary["mask"]["voxels"],
        mean_entropy_bits=summary["entropy"]["mean_bits"],
        active_share=run.posterior.active_share,
        expected_dice=expected,
        dice=true,
        rows=tuple(
            _figures(inside, row, confidence)
            for row in volume_rows(run)
            if row.kind != "background"
        ),
        warnings=tuple(summary["warnings"]),
        picture=draw_picture(run),
        expected_error_ml=_expected_error_ml(inside, foreground),
        run_digest=run_digest(report_data(run)),
    )


def _figures(inside: MapsInside, row: VolumeRow, confidence: NDArray[np.float32]) -> RegionFigures:
    """Return the figures of a row; ``confidence`` (N,) is the network's largest probability."""
    values = inside.run.case.labels.values
    members = [values.index(value) for value in row.values]
    here = inside.having(members)
    found = bool(here.any())
    expected, true = _dice_coefficients(inside, members)
    return RegionFigures(
        name=row.name,
        kind=row.kind,
        label=",".join(map(str, row.values)),
        volume_ml=row.volume_ml,
        interval_lower_ml=_number(row.interval_ml[0]),
        interval_upper_ml=_number(row.interval_ml[1]),
        mean_entropy_bits=inside.mean_bits(here) if found else None,
        uncertain_frac=inside.shares(here)["uncertain_frac"] if found else None,
        network_confidence=float(confidence[here].mean(dtype=np.float64)) if found else None,
        expected_dice=expected,
        dice=true,
        true_volume_ml=_number(row.truth_ml),
    )


def _dice_coefficients(
    inside: MapsInside, members: Sequence[int]
) -> tuple[float | None, float | None]:
    """Return the Dice that the marginals expect of a set of labels, and the true one if known.

    None where neither side has a voxel of the set.
    """
    here, share, case = inside.having(members), _marginal(inside, members), inside.run.case
    expected = expected_dice(here, share) if here.any() or share.any() else None
    if case.truth is None:
        return expected, None
    there = np.isin(case.grid.gather(case.truth), members)  # (N,)
    return expected, dice(here, there) if here.any() or there.any() else None


def _marginal(inside: MapsInside, members: Sequence[int]) -> NDArray[np.float64]:
    """Return the probability of a set of labels, (N,)."""
    found: NDArray[np.float64] = inside.marginals[list(members)].sum(axis=0, dtype=np.float64)
    return found


def _expected_error_ml(inside: MapsInside, members: Sequence[int]) -> float:
    """Return the volume of a set of labels that should be missing or too much."""
    share = _marginal(inside, members)
    wrong = float(np.where(inside.having(members), 1.0 - share, share).clip(0.0, 1.0).sum())
    return wrong * math.prod(inside.run.case.geometry.spacing) / 1000.0


@dataclass(frozen=True)
class CaseRating:
    """What a reader said of a case in its report."""

    case: str
    rating: str  # one of RATINGS
    initials: str = ""
    note: str = ""
    rated_at: str = ""  # ISO 8601
    run: str = ""  # the digest of the run; empty where it is not known

    def apply_to(self, outcome: CaseOutcome | None) -> CaseRating:
        """Return the rating of a case; of another run than this one it is only a note."""
        known = None if outcome is None else outcome.run_digest
        if not self.run or known in (None, self.run):
            return self
        earlier = f"another run of this case was rated {self.rating}"
        return replace(self, rating="", note=f"{earlier}: {self.note}" if self.note else earlier)


def add_ratings(folder: Path, files: Iterable[Path]) -> dict[str, CaseRating]:
    """Add downloaded ratings to those that a cohort has; the latest of a case counts.

    Return all, by case. Files are JSON or tables, as the report of a case writes them.
    """
    known = read_ratings(folder)
    for path in files:
        for each in _read_rating_file(path):
            if each.case not in known or each.rated_at >= known[each.case].rated_at:
                known[each.case] = each
    (folder / RECORDS).mkdir(parents=True, exist_ok=True)
    write_json(folder / RECORDS / _RATINGS, [asdict(known[case]) for case in sorted(known)])
    return known


def read_ratings(folder: Path) -> dict[str, CaseRating]:
    """Return the ratings that a cohort has, by case."""
    path = folder / RECORDS / _RATINGS
    if not path.is_file():
        return {}
    return {each.case: each for each in _read_rating_file(path)}


def _read_rating_file(path: Path) -> list[CaseRating]:
    source = Source("ratings", path)
    names = [field.name for field in fields(CaseRating)]
    rows: list[Any]
    if path.suffix in (".tsv", ".csv"):
        rows = [row.fields for row in read_table(source, names[:2], names[2:])]
    else:
        content = source.read_json()
        rows = content if isinstance(content, list) else [content]
    found = []
    for row in rows:
        said = row.get("rating") if isinstance(row, Mapping) else None
        if said not in RATINGS or not isinstance(row.get("case"), str):
            raise source.error(f"must give a case and one of {', '.join(RATINGS)}, got {row}")
        found.append(CaseRating(**{name: str(row.get(name) or "") for name in names}))
    return found


def _number(value: float) -> float | None:
    return None if math.isnan(value) else value


def draw_picture(run: Run) -> str:
    """Return a small picture of the most uncertain axial slice, entropy over the first image.

    It is an address that holds the pixels. Window, colours and orientation are the report's.
    """
    case, entropy = run.case, run.entropy
    spacing = case.geometry.spacing
    plane = radiological_planes(case.geometry.affine)[0]
    index = int(plane.sum_slices(entropy).argmax())
    box = field_of_view(np.zeros_like(case.mask), case.mask, spacing)  # all of the patient
    steps = spacing[plane.rows], spacing[plane.columns]
    image = next(iter(case.images.values()), case.mask.astype(np.float32))
    window = grey_window(image[case.mask])
    greys = in_window(plane.cut(image, index, box), window, OPAQUE_GREY)
    scale = EntropyScale(run.settings.report.colour_map, math.log2(len(case.labels)))
    bits = plane.cut(entropy, index, box)
    return thumbnail(_resize(greys, steps), _resize(bits, steps), scale)


def _resize(picture: NDArray[Any], steps: tuple[float, float]) -> NDArray[Any]:
    """Return the nearest pixels of a picture whose sides are in the proportions of the patient."""
    sizes = [count * step for count, step in zip(picture.shape, steps)]
    pixels = [max(1, round(_SIDE * size / max(sizes))) for size in sizes]
    rows, columns = (
        ((np.arange(wanted) + 0.5) * count / wanted).astype(int)
        for wanted, count in zip(pixels, picture.shape)
    )
    return picture[np.ix_(rows, columns)]
