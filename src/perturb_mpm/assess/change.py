"""Two runs of one patient: how every measure differs, how sure that is, where it changed."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perturb_mpm.assess.change_page import GENERATOR, probability_text, render_change
from perturb_mpm.assess.scans import other_scan_warnings
from perturb_mpm.assess.sources import first_row, refuse_others
from perturb_mpm.biomarkers import (
    CHANGE_CLASSES,
    RANO_PRODUCT,
    RANO_VOLUME,
    ResponseLimits,
    SampledChange,
    sampled_change,
)
from perturb_mpm.evaluation import dice
from perturb_mpm.files import InputError, save_like, write_table
from perturb_mpm.measures import Column, Measurements, Measurer, find_measures
from perturb_mpm.progress import Silent, StagedProgress
from perturb_mpm.run import (
    INTERVAL,
    Run,
    basis_in_words,
    learned_law,
    measure,
    measured_patient,
    rebuild_sampler,
)
from perturb_mpm.sampling import Sampler, share_noise
from perturb_mpm.storage import read_json, write_json, write_set, write_text
from perturb_mpm.version import version

CHANGE_FORMAT = "perturb-mpm change"
_MAPS = ("new.nii.gz", "vanished.nii.gz")
CHANGE_COLUMNS = (
    *("structure", "measure", "unit", "before", "after", "difference"),
    *("difference_median", "difference_lower", "difference_upper"),
    *("relative_median_frac", "relative_lower_frac", "relative_upper_frac"),
    *("grew_probability", *(f"{name}_probability" for name in CHANGE_CLASSES), "limits"),
    *("smallest_change", "samples_before", "samples_after", "correlation", "rests_on"),
)
_MEASURABLE_MM2 = 100.0
_UNLIKE_VOXELS = 1.25  # times the other's size
_LEAST_DICE = 0.8  # of the masks of two scans on one grid, below which they may not be registered


@dataclass(frozen=True)
class ChangeQuestion:
    """What is asked of two scans.

    Examples
    --------
    >>> from perturb_mpm.assess import ChangeQuestion
    >>> ChangeQuestion(("volume", "diameter"), ("core",), correlation=0.5).measures
    ('volume', 'diameter')
    """

    measures: tuple[str, ...] = ("volume",)
    structures: tuple[str, ...] | None = None
    """Names of regions and labels; by default all that both runs have."""
    limits: ResponseLimits | None = None
    """When a structure progressed; RANO 2.0 for volume and bidirectional product by default."""
    correlation: float | None = None
    """Of the noise of both scans on one grid; what both runs learned by default, or 0."""


@dataclass(frozen=True, eq=False)
class ChangeRow:
    """One measure of one structure in both scans."""

    structure: str
    measure: str
    unit: str
    before: float  # of the label maps
    after: float
    sampled: SampledChange | None  # None where white noise says nothing
    limits: ResponseLimits | None
    samples: tuple[int, int]
    rests_on: str


@dataclass(frozen=True, eq=False)
class RunChange:
    """All that two runs say about a change."""

    before: Run
    after: Run
    question: ChangeQuestion
    rows: tuple[ChangeRow, ...]
    new: Mapping[str, NDArray[np.float32]] = field(default_factory=dict)
    """Structure -> P(not before, but after), (X, Y, Z); empty where the grids differ."""
    vanished: Mapping[str, NDArray[np.float32]] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()

    @property
    def answer(self) -> str:
        """The change of the first structure in a few sentences."""
        return answer_in_words(self.rows[0])


def compare_runs(
    before: Run,
    after: Run,
    question: ChangeQuestion | None = None,
    progress: StagedProgress | None = None,
) -> RunChange:
    """Compare two runs of one patient, in the order of time.

    Volumes come from the runs; other measures draw their samples again.

    Examples
    --------
    >>> from perturb_mpm.assess import compare_runs
    >>> case = pm.read_case("t1c.nii.gz", "case.npz")
    >>> settings = pm.RunSettings().changed(samples=4)
    >>> runs = [pm.run_case(case, settings, name, title=name) for name in ("first", "second")]
    >>> compare_runs(*runs).rows[0].sampled.verdict
    'unclear'
    """
    asked, show = question or ChangeQuestion(), progress or Silent()
    patients = measured_patient(before), measured_patient(after)
    common = [name for name in patients[0].structures if name in patients[1].structures]
    names = list(asked.structures or common)
    missing = [name for name in names if name not in common]
    if missing or not common:
        raise InputError(
            f"`structure` must be among those of both runs, {', '.join(common) or 'none'}, got "
            f"{missing[0] if missing else 'runs without a common one'}"
        )
    same_grid = have_same_grid(before, after)
    if asked.correlation is None:
        asked = replace(asked, correlation=learned_correlation(before, after))
    elif asked.correlation > 0:
        _check_correlation(before, after)
    together: Mapping[str, NDArray[np.float32]] = {}
    if asked.correlation:
        found, together = _measure_together(before, after, asked, names, show)
    else:
        found = tuple(
            _measure_alone(run, asked, names, words, show)
            for run, words in ((before, "before"), (after, "after"))
        )
    new, vanished = _changed_maps(before, after, names, together) if same_grid else ({}, {})
    rows = [_row((before, after), asked, found, column) for column in found[0].columns]
    warnings = tuple(_find_warnings(before, after, rows))
    return RunChange(before, after, asked, tuple(rows), new, vanished, warnings)


def have_same_grid(before: Run, after: Run) -> bool:
    """Return whether both runs lie on one grid in space."""
    one, other = before.case.geometry, after.case.geometry
    return one.shape == other.shape and np.allclose(one.affine, other.affine, atol=1e-3)


def _measure_alone(
    run: Run, asked: ChangeQuestion, names: Sequence[str], words: str, show: StagedProgress
) -> Measurements:
    """Measure one run; volumes need no sample drawn again."""
    if asked.measures != ("volume",):
        show.stage(f"measuring samples {words}")
        return measure(run, asked.measures, names, progress=show)
    return sampled_volumes(run, names)


def sampled_volumes(run: Run, names: Sequence[str]) -> Measurements:
    """Return the volumes of some structures in every sample, which a run has already."""
    patient = measured_patient(run)
    empty = Measurer(patient, find_measures(["volume"], patient), names).measurements
    volumes = run.posterior.volumes / 1000  # (S, L) ml
    values = np.stack(
        [volumes[:, list(patient.structures[name])].sum(axis=1) for name in names], axis=1
    )
    return Measurements(empty.columns, run.posterior.sample_index, values, empty.label_map)


def learned_correlation(before: Run, after: Run) -> float:
    """Return how far the errors of two scans are correlated by both runs' settings.

    It is 0 where noise cannot be shared: on two grids, or with two correlation lengths.
    """
    try:
        _check_correlation(before, after)
    except InputError:
        return 0.0
    return min(run.settings.basis.scan_correlation for run in (before, after))


def _check_correlation(before: Run, after: Run) -> None:
    if not have_same_grid(before, after):
        raise InputError(
            "`correlation` above 0 needs both scans on one grid, registered, got grids that differ"
        )
    one, other = (run.settings.sampling.lengths for run in (before, after))
    assumed = all(run.settings.intervals == "assumed" for run in (before, after))
    if one != other and not assumed:
        raise InputError("`correlation` above 0 needs runs of the same noise length")


def _measure_together(
    before: Run,
    after: Run,
    asked: ChangeQuestion,
    names: Sequence[str],
    show: StagedProgress,
) -> tuple[tuple[Measurements, ...], dict[str, NDArray[np.float32]]]:
    """Draw samples of both runs whose noise is correlated, and measure each.

    Also return by how much more often than by chance each voxel is in a structure in both samples
    of a pair: a covariance, (X, Y, Z).
    """
    runs = before, after
    count = min(run.posterior.samples for run in runs)
    patients = [measured_patient(run) for run in runs]
    measurers = [Measurer(each, find_measures(asked.measures, each), names) for each in patients]
    samplers = [
        _shared_sampler(run, number, before, asked.correlation or 0.0)
        for number, run in enumerate(runs, start=1)
    ]
    grid = before.posterior.grid
    index, *rows = np.intersect1d(grid.index, after.posterior.grid.index, return_indices=True)
    sums = {name: np.zeros((3, len(index))) for name in names}  # before, after, both
    show.stage("sampling with shared noise")
    step = min(sampler.batch for sampler in samplers)
    for start in range(0, count, step):
        part, pair = range(start, min(start + step, count)), []
        for sampler, measurer, here in zip(samplers, measurers, rows):
            kept: list[NDArray[np.uint8]] = []

            def keep(part: range, labels: NDArray[np.uint8]) -> None:
                measurer.add(part, labels)  # noqa: B023 - called before the next one
                kept.append(labels[:, here])  # noqa: B023

            sampler.draw(part, keep=keep)
            pair.append(np.concatenate(kept))  # (B, common voxels)
        for name, each in sums.items():
            one, other = (
                np.isin(labels, patient.structures[name]) for labels, patient in zip(pair, patients)
            )
            each += [mask.sum(axis=0) for mask in (one, other, one & other)]
        show(part.stop, count)
    together = {}
    for name, each in sums.items():
        covariance = np.zeros(grid.shape, dtype=np.float32)
        covariance.flat[index] = each[2] / count - each[0] * each[1] / count**2
        together[name] = covariance
    return tuple(each.measurements for each in measurers), together


def _shared_sampler(run: Run, number: int, first: Run, correlation: float) -> Sampler:
    """Return a sampler whose noise is shared; a length that is assumed is the first scan's."""
    sampling = first.settings.sampling
    perturbation = replace(run.settings.sampling.perturbation, lengths=sampling.lengths)
    try:
        shared = share_noise(perturbation, number, sampling.seed, correlation)
        return rebuild_sampler(run).with_perturbation(shared)
    except ValueError as error:
        raise InputError(f"`correlation` cannot be used with {run.folder}: {error}") from error


def _row(
    runs: tuple[Run, Run], asked: ChangeQuestion, found: Sequence[Measurements], column: Column
) -> ChangeRow:
    limits = asked.limits or {"volume": RANO_VOLUME, "bidirectional": RANO_PRODUCT}.get(
        column.measure
    )
    laws = [learned_law(run, column) for run in runs]
    values = [
        part[column.key] if law is None else law.move(part[column.key], seed)
        for seed, (law, part) in enumerate(zip(laws, found))
    ]
    known = all(run.settings.intervals != "none" for run in runs)
    bases = [basis_in_words(run, learned=law is not None) for run, law in zip(runs, laws)]
    return ChangeRow(
        column.structure,
        column.measure,
        column.unit,
        found[0].label_map_value(column.key),
        found[1].label_map_value(column.key),
        sampled_change(*values, paired=bool(asked.correlation), limits=limits) if known else None,
        limits,
        (found[0].samples, found[1].samples),
        "; ".join(dict.fromkeys(bases)),
    )


def _changed_maps(
    before: Run,
    after: Run,
    names: Sequence[str],
    together: Mapping[str, NDArray[np.float32]],
) -> tuple[dict[str, NDArray[np.float32]], dict[str, NDArray[np.float32]]]:
    """Return P(new) and P(vanished) of each structure; without ``together`` scans err alone."""
    new, vanished = {}, {}
    for name in names:
        one, other = (_share(run, name) for run in (before, after))
        both = np.clip(one * other + together.get(name, 0.0), 0.0, np.minimum(one, other))
        both = np.maximum(both, one + other - 1)
        new[name] = (other - both).astype(np.float32)
        vanished[name] = (one - both).astype(np.float32)
    return new, vanished


def _share(run: Run, name: str) -> NDArray[np.float64]:
    members = list(measured_patient(run).structures[name])
    share: NDArray[np.float64] = run.marginals[members].sum(axis=0, dtype=np.float64)
    return np.where(run.case.mask, share, 0.0)


def pair_warnings(before: Run, after: Run) -> list[str]:
    """Return what speaks against two runs being of one patient at two times, by their files."""
    files = [(run.folder.resolve(), *map(Path, run.case.hashes)) for run in (before, after)]
    return list(other_scan_warnings(files[0], files[1]))


def _find_warnings(before: Run, after: Run, rows: Sequence[ChangeRow]) -> Iterator[str]:
    """Yield what speaks against the comparison, or may look like a change."""
    yield from pair_warnings(before, after)
    yield from (words for run in (before, after) if (words := run.describe_correction()))
    if not have_same_grid(before, after):
        yield (
            "the scans lie on different grids: sizes are compared, places are not; register them "
            "to see what is new and what vanished"
        )
    elif (overlap := dice(before.case.mask, after.case.mask)) < _LEAST_DICE:
        yield (
            f"the masks of the scans hardly overlap (Dice {overlap:.2f}): they may be of different "
            "patients, or not registered"
        )
    one, other = (run.case.geometry.spacing for run in (before, after))
    if any(max(pair) > _UNLIKE_VOXELS * min(pair) for pair in zip(sorted(one), sorted(other))):
        sizes = [" × ".join(f"{step:.3g}" for step in each) for each in (one, other)]
        yield (
            f"voxels have {sizes[0]} mm before and {sizes[1]} mm after: thick slices blur borders, "
            "and part of a difference may come from that"
        )
    images = [sorted(run.case.images) for run in (before, after)]
    if images[0] != images[1]:
        yield (
            f"the images are {', '.join(images[0])} before and {', '.join(images[1])} after: part "
            "of a difference may come from that"
        )
    bases = [run.settings.basis for run in (before, after)]
    if bases[0] != bases[1]:
        yield (
            "the runs have settings from different sources: part of a difference may come from "
            "that; run both scans with the same settings"
        )
    yield from _small_warnings(rows)


def _small_warnings(rows: Sequence[ChangeRow]) -> Iterator[str]:
    """Yield what RANO would not measure: its limits say little about it."""
    for row in rows:
        if row.limits is RANO_PRODUCT and 0 < row.before < _MEASURABLE_MM2:
            yield (
                f"{row.structure} has a product of diameters of {_size(row.before)} mm² before: "
                "RANO calls a lesion measurable from 10 × 10 mm on"
            )


def answer_in_words(row: ChangeRow) -> str:
    """Return whether a structure changed, by how much, and what can be shown at all."""
    unit = f" {row.unit.replace('mm2', 'mm²')}" if row.unit else ""
    what = row.structure if row.measure == "volume" else f"{row.measure} of {row.structure}"
    sizes = f"{_size(row.before)}{unit} before, {_size(row.after)}{unit} after"
    what = f"{what[:1].upper()}{what[1:]}"
    if row.sampled is None:
        return (
            f"{what}: {sizes}. Whether that is a change cannot be said: noise that is independent "
            "at every voxel says nothing about it."
        )
    change = row.sampled
    spread = change.difference
    interval = f"95 % {_signed(spread.lower)} to {_signed(spread.upper)}{unit}"
    verb = {"grew": "grew", "shrank": "shrank", "unclear": "shows no sure change"}[change.verdict]
    words = f"{what} {verb}: {sizes} (by samples {_signed(spread.median)}{unit}, {interval})."
    words += f" The probability that it grew is {probability_text(change.grew)}."
    if change.verdict == "unclear":
        words += f" These scans can show changes of about {_size(change.smallest)}{unit} or more."
    if change.classes is not None and row.limits is not None:
        shares = ", ".join(
            f"{name} {probability_text(change.classes[name])}" for name in CHANGE_CLASSES
        )
        words += f" By {row.limits.name}: {shares}."
    return words


def _size(value: float) -> str:
    return f"{value:.3g}" if abs(value) < 1000 else f"{value:.0f}"


def _signed(value: float) -> str:
    return f"{'+' if value > 0 else '−' if value < 0 else ''}{_size(abs(value))}"


def check_change_folder(folder: Path) -> None:
    """Refuse a folder that contains a run, or files of the names to be written that are others'."""
    refuse_others(
        folder,
        {
            "change.csv": lambda path: first_row(path) == CHANGE_COLUMNS,
            "change.json": lambda path: read_json(path)["format"] == CHANGE_FORMAT,
            "report.html": lambda path: GENERATOR in path.read_text("utf-8")[:2000],
            **dict.fromkeys(_MAPS, lambda path: path.with_name("change.json").exists()),
        },
    )


def change_as_json(change: RunChange) -> dict[str, Any]:
    """Return all numbers as values that JSON can hold."""
    voxel_ml = math.prod(change.after.case.geometry.spacing) / 1000
    return {
        "format": CHANGE_FORMAT,
        "version": version(),
        "answer": change.answer,
        "before": change.before.title,
        "after": change.after.title,
        "correlation": change.question.correlation,
        "interval_level": INTERVAL,
        "changes": [dict(zip(CHANGE_COLUMNS, _line(change, row))) for row in change.rows],
        "expected_new_ml": _sums(change.new, voxel_ml),
        "expected_vanished_ml": _sums(change.vanished, voxel_ml),
        "warnings": list(change.warnings),
    }


def _sums(maps: Mapping[str, NDArray[np.float32]], voxel_ml: float) -> dict[str, float] | None:
    if not maps:
        return None
    return {name: float(each.sum(dtype=np.float64)) * voxel_ml for name, each in maps.items()}


def _line(change: RunChange, row: ChangeRow) -> list[object]:
    """Return one row of the table; None where a number is not defined."""
    numbers: list[float | None] = [None] * 11
    if row.sampled is not None:
        each, classes = row.sampled, row.sampled.classes or {}
        numbers = [
            *(each.difference.median, each.difference.lower, each.difference.upper),
            *(each.relative.median, each.relative.lower, each.relative.upper),
            *(each.grew, *(classes.get(name) for name in CHANGE_CLASSES)),
            each.smallest,
        ]
    plain = [None if number is None or math.isnan(number) else number for number in numbers]
    return [
        *(row.structure, row.measure, row.unit or None),
        *(None if math.isnan(v) else v for v in (row.before, row.after, row.after - row.before)),
        *plain[:10],
        None if row.limits is None else row.limits.name,
        plain[10],
        *row.samples,
        change.question.correlation,
        row.rests_on,
    ]


def write_change(folder: Path, change: RunChange) -> list[Path]:
    """Write change.csv, change.json, report.html, and on one grid new and vanished maps.

    The folder must be there, and pass ``check_change_folder``. Maps are of the first structure.
    """
    check_change_folder(folder)
    table, summary = files = [folder / name for name in ("change.csv", "change.json")]
    first = change.rows[0].structure
    with write_set(*(folder / name for name in _MAPS)):
        write_table(table, CHANGE_COLUMNS, [_line(change, row) for row in change.rows])
        write_json(summary, change_as_json(change))
        files.append(write_change_page(folder, change))
        for path, maps in zip(_MAPS, (change.new, change.vanished)):
            if maps:
                files.append(folder / path)
                words = f"probability that {first} is {path.partition('.')[0]}"
                save_like(files[-1], maps[first], change.after.case.geometry, words)
    return files


def write_change_page(folder: Path, change: RunChange) -> Path:
    """Write report.html."""
    check_change_folder(folder)
    page = folder / "report.html"
    write_text(page, render_change(change))
    return page
