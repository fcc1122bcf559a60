"""Eleven patients after surgery, each scanned at two dates, through ``change``.

The probabilities are our own: boosted trees that see the smoothed image of a patient, and learned
from both dates of the ten others. The size of the voxels was lost where the data come from, so that
relative changes alone mean something.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from numpy.typing import NDArray

from lab.words import markdown_table, paragraph
from perturb_mpm.assess import ChangeQuestion, RunChange, compare_runs
from perturb_mpm.biomarkers import RANO_VOLUME, SampledChange
from perturb_mpm.files import Case, LabelScheme, Source, geometry_from_affine, read_volume
from perturb_mpm.progress import Progress
from perturb_mpm.run import RunSettings, run_case

DATES = ("Pre", "Post")
STRUCTURE = "enhancing"
_SMOOTHING = (0.0, 0.7, 1.5, 3.0, 6.0)  # voxels in a slice; slices are far apart
_PER_SCAN = 5000  # voxels that the classifier learns from
OPENING = """{patients} real patients with a glioblastoma after surgery, at two dates each
(Brain-Tumor-Progression, TCIA, doi:10.7937/K9/TCIA.2018.15quzvnb), enhancing tumour. The
probabilities are of our own making: boosted trees that see one smoothed T1 image after contrast,
and learned from both dates of the other patients. Every scan is sampled {samples} times by the
settings that `run` decides itself, and compared by `change` with independent errors. **The size of
the voxels was lost** where the data come from: relative changes alone mean something, and how far
errors are correlated in mm is not known. Written by `python -m lab progression`."""


@dataclass(frozen=True, eq=False)
class DatedScan:
    """One scan and what was drawn on it."""

    image: NDArray[np.float32]  # (X, Y, Z), median 0 and quartiles 1 apart
    truth: NDArray[np.bool_]  # (X, Y, Z)
    affine: NDArray[np.float64]

    @property
    def features(self) -> NDArray[np.float32]:
        """What the classifier sees, voxels × features."""
        from scipy.ndimage import gaussian_filter, maximum_filter

        maps = [gaussian_filter(self.image, (each, each, each / 4)) for each in _SMOOTHING]
        maps += [maximum_filter(maps[2], (size, size, 1)) for size in (5, 11)]
        return np.stack(maps, axis=-1).reshape(-1, len(maps))


@dataclass(frozen=True)
class PatientChange:
    """What was drawn of one patient, and what ``change`` says."""

    name: str
    true_change: float  # relative
    mapped_change: float  # of the label maps
    sampled: SampledChange

    @property
    def inside(self) -> bool:
        """Whether the interval has what was drawn."""
        return self.sampled.relative.lower <= self.true_change <= self.sampled.relative.upper

    @property
    def true_class(self) -> str:
        """The class by what was drawn."""
        if self.true_change >= RANO_VOLUME.progression:
            return "progression"
        return "response" if self.true_change <= RANO_VOLUME.response else "stable"


def read_scans(data: Path) -> dict[str, tuple[DatedScan, DatedScan]]:
    """Read both dates of every patient in a folder."""
    found = {}
    for folder in sorted(each for each in data.iterdir() if each.is_dir()):
        first, second = (_read_scan(folder, date) for date in DATES)
        found[folder.name] = (first, second)
    return found


def _read_scan(folder: Path, date: str) -> DatedScan:
    image, mask = (
        read_volume(Source("data", folder / f"{date}_{name}.nii.gz")) for name in ("T1post", "mask")
    )
    low, middle, high = np.percentile(image.voxels, [25, 50, 75])
    scaled = (image.voxels - middle) / max(high - low, 1e-6)
    return DatedScan(scaled.astype(np.float32), mask.voxels > 0, image.geometry.affine)


def measure_progression(
    data: Path, samples: int, progress: Progress | None = None
) -> list[PatientChange]:
    """Return what ``change`` says of every patient, by trees that did not see the patient."""
    scans = read_scans(data)
    rng = np.random.default_rng(0)
    taught = {name: _voxels(both, rng) for name, both in scans.items()}
    rows = []
    for number, (name, both) in enumerate(scans.items(), start=1):
        model = _learn([each for other, each in taught.items() if other != name])
        found = _compare([_make_case(scan, model) for scan in both], name, samples)
        (row,) = found.rows
        if row.sampled is None:
            raise ValueError(f"the noise of {name} must be correlated")
        before, after = (float(scan.truth.sum()) for scan in both)
        mapped = row.after / row.before - 1 if row.before else float("nan")
        rows.append(PatientChange(name, after / before - 1, mapped, row.sampled))
        if progress is not None:
            progress(number, len(scans))
    return rows


def _voxels(
    both: Sequence[DatedScan], rng: np.random.Generator
) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
    """Return features and truth of some voxels of a patient."""
    x, y = [], []
    for scan in both:
        chosen = rng.choice(scan.truth.size, _PER_SCAN, replace=False)
        x.append(scan.features[chosen])
        y.append(scan.truth.ravel()[chosen])
    return np.concatenate(x), np.concatenate(y)


def _learn(taught: Sequence[tuple[NDArray[np.float32], NDArray[np.bool_]]]) -> object:
    from sklearn.ensemble import HistGradientBoostingClassifier

    x, y = (np.concatenate(each) for each in zip(*taught))
    model = HistGradientBoostingClassifier(
        max_iter=60, max_leaf_nodes=12, min_samples_leaf=100, l2_regularization=1.0, random_state=0
    )
    return model.fit(x, y)


def _make_case(scan: DatedScan, model: object) -> Case:
    found = model.predict_proba(scan.features)[:, 1]  # type: ignore[attr-defined]
    x, y, z = scan.image.shape
    p = np.asarray(found, dtype=np.float32).reshape(x, y, z)
    return Case(
        images={"t1post": scan.image},
        probabilities=np.stack([1 - p, p]),
        mask=np.ones(p.shape, dtype=np.bool_),
        mask_origin="the whole image",
        labels=LabelScheme((0, 1), ("background", STRUCTURE)),
        geometry=geometry_from_affine((x, y, z), scan.affine),
        hashes={},
    )


def _compare(cases: Sequence[Case], name: str, samples: int) -> RunChange:
    """Run both scans and compare the runs, as the command line would."""
    with TemporaryDirectory() as folder:
        settings = RunSettings().changed(samples=samples)
        before, after = (
            run_case(case, settings.changed(seed=seed), Path(folder) / date, title=f"{name} {date}")
            for seed, (case, date) in enumerate(zip(cases, DATES))
        )
        return compare_runs(before, after, ChangeQuestion(structures=(STRUCTURE,)))


def verdict(rows: Sequence[PatientChange]) -> str:
    """Return in sentences what was found."""
    called = [row for row in rows if row.sampled.verdict != "unclear"]
    right = sum((row.true_change > 0) == (row.sampled.verdict == "grew") for row in called)
    likely = [row for row in rows if row.sampled.classes]
    astray = sum((row.true_change > 0) != (row.mapped_change > 0) for row in rows)
    first = sum(
        max(row.sampled.classes or {}, key=(row.sampled.classes or {}).__getitem__)
        == row.true_class
        for row in likely
    )
    return (
        f"The interval has the change that was drawn in {sum(row.inside for row in rows)} of "
        f"{len(rows)} patients. A change is called in {len(called)}, in {right} of them in the "
        f"direction that was drawn; the most probable class by RANO 2.0 is that of what was drawn "
        f"in {first} of {len(likely)}. The trees are poor: their label maps alone change in the "
        f"other direction in {astray} patients, and the intervals say so by their width."
    )


def page(rows: Sequence[PatientChange], samples: int) -> str:
    """Return the page in Markdown."""
    header = ["patient", "drawn, %", "label maps, %", "samples, % (95 %)", "verdict"]
    header += ["P(progression)", "P(stable)", "P(response)", "drawn"]
    cells = []
    for row in rows:
        spread, classes = row.sampled.relative, row.sampled.classes or {}
        ends = f"{100 * spread.lower:+.0f} to {100 * spread.upper:+.0f}"
        cells.append(
            [
                row.name,
                f"{100 * row.true_change:+.0f}",
                f"{100 * row.mapped_change:+.0f}",
                f"{100 * spread.median:+.0f} ({ends})",
                row.sampled.verdict,
                *(f"{share:.2f}" for share in classes.values()),
                row.true_class,
            ]
        )
    parts = [
        "# Patients at two dates",
        paragraph(OPENING.format(patients=len(rows), samples=samples)),
        paragraph(verdict(rows)),
        markdown_table(header, cells),
    ]
    return "\n\n".join(parts) + "\n"
