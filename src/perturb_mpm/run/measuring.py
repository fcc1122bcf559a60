"""Measures of a finished run: every sample drawn again, measured and forgotten; tables of them."""

from __future__ import annotations

import inspect
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perturb_mpm.biomarkers import LearnedLaw
from perturb_mpm.files import (
    InputError,
    Source,
    is_dicom,
    read_dose,
    read_volume,
    require_same_grid,
    write_table,
)
from perturb_mpm.measures import (
    DEFAULT_MEASURES,
    Column,
    Compute,
    Measure,
    MeasuredPatient,
    Measurements,
    Measurer,
    MeasureRow,
    Rule,
    find_measures,
)
from perturb_mpm.model import digest
from perturb_mpm.progress import Progress
from perturb_mpm.run.drawing import rebuild_sampler, redraw_samples
from perturb_mpm.run.state import Run, load_run
from perturb_mpm.run.volumes import INTERVAL, volume_rows, volume_sets
from perturb_mpm.storage import DAMAGE, read_arrays, write_arrays, write_json, write_set
from perturb_mpm.version import version

MEASURES_FORMAT = "perturb-mpm measures"
_CHECKPOINT = "measures.part.npz"
_RESAMPLED = 0.01  # of the largest dose: so far below 0 a dose may come out of resampling
_SECONDS_AT_RISK = 10.0  # about what an interruption may cost


@dataclass(frozen=True, eq=False)
class Surroundings:
    """What is measured against, on a run's grid.

    Examples
    --------
    >>> from perturb_mpm.run import Surroundings
    >>> Surroundings().dose_gy is None
    True
    """

    masks: Mapping[str, NDArray[np.bool_]] | None = None  # (X, Y, Z) each
    """Given structures by name: a vessel, an organ at risk."""
    dose_gy: NDArray[np.floating] | None = None  # (X, Y, Z)


def measure(
    run: Run | str | Path,
    measures: Sequence[str | Measure | Compute] = DEFAULT_MEASURES,
    structures: Sequence[str] | None = None,
    *,
    beside: Surroundings | None = None,
    samples: range | None = None,
    checkpoint: Path | None = None,
    progress: Progress | None = None,
) -> Measurements:
    """Measure every sample of a finished run; memory does not grow with their number.

    The samples are drawn again, bit for bit the run's. Measures of several ranges of them ``merge``
    to those of all.

    Parameters
    ----------
    run
        A run, or its folder.
    measures
        Names of ``perturb_mpm.measures.MEASURES``, ``module:function``, or functions of a
        ``Structure``.
    structures
        Names of regions and labels; all but the background by default.
    beside
        Masks and a dose that measures need.
    samples
        Which samples; all by default.
    checkpoint
        A folder where finished samples are kept while others are drawn: the same call goes on.
    progress
        Called with (samples done, samples asked for).

    Examples
    --------
    >>> case = pm.read_case("t1c.nii.gz", "case.npz")
    >>> run = pm.run_case(case, pm.RunSettings().changed(samples=4), "measured", title="Patient 1")
    >>> found = pm.measure(run, ["volume", "diameter"], run.case.labels.names[1:2])
    >>> found.values.shape
    (4, 2)
    """
    found = run if isinstance(run, Run) else load_run(run)
    posterior = found.posterior
    numbers = range(posterior.samples) if samples is None else samples
    if not (0 <= numbers.start < numbers.stop <= posterior.samples and numbers.step == 1):
        raise ValueError(f"`samples` must be a range within 0 … {posterior.samples}, got {numbers}")
    patient = measured_patient(found, beside)
    chosen = find_measures(measures, patient)
    for name in structures or ():
        if name not in patient.structures:
            raise InputError(
                f"`structures` must be among {', '.join(patient.structures)}, got {name}"
            )
    measurer = Measurer(patient.with_votes(posterior.voxel_counts), chosen, structures)
    store = _Checkpoint(checkpoint, _identity(found, chosen, measurer, beside), measurer)
    done = store.read(numbers)
    if done is not None and done.samples == len(numbers):
        return done
    sampler = rebuild_sampler(found)
    start = numbers.start + (0 if done is None else done.samples)
    total, saved_at = len(numbers), time.monotonic()
    for first in range(start, numbers.stop, sampler.batch):
        part = range(first, min(first + sampler.batch, numbers.stop))
        redraw_samples(found, sampler, part, measurer.add)
        if progress is not None:
            progress(part.stop - numbers.start, total)
        if time.monotonic() - saved_at > _SECONDS_AT_RISK:
            store.write(_join(done, measurer.measurements))
            saved_at = time.monotonic()
    return _join(done, measurer.measurements)


def _join(done: Measurements | None, new: Measurements) -> Measurements:
    return new if done is None else done.merge(new)


def measured_patient(run: Run, beside: Surroundings | None = None) -> MeasuredPatient:
    """Return what all samples of a run share."""
    from perturb_mpm.report import radiological_planes

    case, given = run.case, beside or Surroundings()
    structures: dict[str, tuple[int, ...]] = {}
    for name, kind, members in volume_sets(case.labels, run.regions):
        if kind != "background":
            structures.setdefault(name, tuple(members))
    return MeasuredPatient(
        run.posterior.grid,
        structures,
        np.where(case.mask, run.labels, 0).astype(np.uint8),
        images=case.images,
        masks=given.masks or {},
        dose_gy=given.dose_gy,
        across=radiological_planes(case.geometry.affine)[0].across,
    )


class _Checkpoint:
    """Finished samples in a folder, for the same run and measures alone."""

    def __init__(self, folder: Path | None, identity: str | None, measurer: Measurer) -> None:
        kept = folder is not None and identity is not None
        self._file = folder / _CHECKPOINT if folder is not None and kept else None
        self._identity = identity or ""
        self._empty = measurer.measurements

    def read(self, numbers: range) -> Measurements | None:
        """Return the first of some samples where they are measured already."""
        if self._file is None or not self._file.exists():
            return None
        try:
            arrays = read_arrays(self._file, ["identity", "index", "values"])
        except DAMAGE:
            return None  # they are measured again
        index, values = arrays["index"], arrays["values"]
        if (
            str(arrays["identity"].item()) != self._identity
            or values.shape != (len(index), len(self._empty.columns))
            or not np.array_equal(index, numbers[: len(index)])
        ):
            return None
        empty = self._empty
        return Measurements(empty.columns, index.astype(np.int64), values, empty.label_map)

    def write(self, done: Measurements) -> None:
        """Keep what is measured so far."""
        if self._file is not None:
            arrays = {"index": done.sample_index, "values": done.values}
            write_arrays(self._file, {"identity": np.array(self._identity), **arrays})


def _identity(
    run: Run, measures: Sequence[Measure], measurer: Measurer, beside: Surroundings | None
) -> str | None:
    """Return a digest of all that the numbers depend on; None where a function has no source."""
    given = beside or Surroundings()
    identity = run.identity(run.posterior.problem)  # with the files, images and regions
    words = [str(identity), version(), str(run.posterior.parameters), *(given.masks or {})]
    words += [column.heading for column in measurer.columns]
    for each in measures:
        function = getattr(each.compute, "func", each.compute)
        try:
            words.append(inspect.getsource(function))
        except (OSError, TypeError):
            return None
    arrays = [np.asarray(mask) for _, mask in sorted((given.masks or {}).items())]
    arrays += [] if given.dose_gy is None else [np.asarray(given.dose_gy)]
    return digest("\n".join(words), run.labels, *arrays)


def read_surroundings(
    run: Run, masks: Mapping[str, Path], dose: Path | None = None
) -> Surroundings:
    """Read masks (not 0 is inside) and a dose in Gy that lie on a run's grid.

    A DICOM RT Dose may have a grid of its own, and is interpolated.
    """
    grid = Source("run", run.folder)

    def read(source: Source) -> NDArray[np.floating]:
        volume = read_volume(source)
        if volume.voxels.ndim != 3:
            raise source.error(f"must have three axes, got shape {volume.voxels.shape}")
        require_same_grid(source, volume.geometry, grid, run.case.geometry)
        return volume.voxels

    found = {n: np.nan_to_num(read(Source("beside", path))) != 0 for n, path in masks.items()}
    for name, mask in found.items():
        if not mask.any():
            raise InputError(f"`beside` {name} must hold a voxel that is not 0, got none")
    if dose is None:
        return Surroundings(found)
    source = Source("dose", dose)
    is_series = dose.is_file() and is_dicom(dose)
    gray = read_dose(source, run.case.geometry) if is_series else read(source)
    _check_dose(source, gray)
    return Surroundings(found, gray)


def _check_dose(source: Source, gray: NDArray[np.floating]) -> None:
    """Refuse what is no dose in Gy (X, Y, Z); it is NaN where none was computed."""
    least, most = np.nanmin(gray, initial=np.inf), np.nanmax(gray, initial=-np.inf)
    if not -_RESAMPLED * most <= least <= most < np.inf:
        got = f"{least:g} to {most:g}" if least <= most else "NaN alone"
        raise source.error(f"must hold doses in Gy, finite and not below 0, got {got}")


def measure_rows(run: Run, found: Measurements) -> list[MeasureRow]:
    """Return a row for each measure, with the interval that was learned where one was."""
    volumes = {row.name: row for row in reversed(volume_rows(run))}
    rows = []
    for column in found.columns:
        spread = found.distribution(column.key)
        interval, law = (spread.lower, spread.upper), learned_law(run, column)
        if run.settings.intervals == "none":
            interval = (math.nan, math.nan)
        elif column.measure == "volume":
            interval = volumes[column.structure].interval_ml
        elif law is not None and spread.undefined < found.samples:
            values = found[column.key]
            interval = law.widen(values[~np.isnan(values)])
        rows.append(
            MeasureRow(
                column.structure,
                column.measure,
                column.unit,
                found.label_map_value(column.key),
                spread.median,
                interval,
                spread.undefined,
                basis_in_words(run, learned=law is not None),
            )
        )
    return rows


def learned_law(run: Run, column: Column) -> LearnedLaw | None:
    """Return where labelled cases showed the truth of a measure to lie, given its samples."""
    settings = run.settings
    laws = {"volume": settings.volume_laws, "dice": settings.dice_laws}.get(column.measure)
    if laws is not None:
        return laws.get(column.structure)
    return settings.measure_laws.get(column.key)


def basis_in_words(run: Run, *, learned: bool) -> str:
    """Return what an interval rests on; ``learned`` where labelled cases can have widened it."""
    settings = run.settings
    if settings.intervals == "none":
        return "nothing: noise that is independent at every voxel says nothing about a structure"
    if settings.intervals == "assumed":
        return "samples whose noise has an assumed correlation length"
    cases = settings.basis.learned_cases
    widened = " and widened by what these showed" if learned else ""
    return f"samples whose noise was learned on {cases} labelled cases{widened}"


def measurements_as_json(run: Run, found: Measurements, rules: Sequence[Rule]) -> dict[str, Any]:
    """Return all but the single samples, as values that JSON can hold."""
    correction = run.describe_correction()
    return {
        "format": MEASURES_FORMAT,
        "version": version(),
        "run": run.title,
        "problem_sha256": run.posterior.problem,
        "samples": found.samples,
        **({} if correction is None else {"warnings": [correction]}),
        "measures": [
            {
                "structure": row.structure,
                "measure": row.measure,
                "unit": row.unit or None,
                "label_map": row.label_map,
                "median": row.median,
                "interval_level": INTERVAL,
                "interval_lower": row.interval[0],
                "interval_upper": row.interval[1],
                "undefined_samples": row.undefined_samples,
                "rests_on": row.rests_on,
            }
            for row in measure_rows(run, found)
        ],
        "rules": [_rule_as_json(run, found, rule) for rule in rules],
    }


def _rule_as_json(run: Run, found: Measurements, rule: Rule) -> dict[str, Any]:
    """Return the probability of a rule, None where white noise says nothing about it."""
    known = run.settings.intervals != "none"
    low, high = found.probability_interval(rule)
    return {
        "rule": rule.text,
        "probability": found.probability(rule) if known else None,
        "probability_lower": low if known else None,
        "probability_upper": high if known else None,
        "rests_on": basis_in_words(run, learned=False),
    }


def write_measurements(
    folder: Path, run: Run, found: Measurements, rules: Sequence[Rule] = ()
) -> list[Path]:
    """Write measures.csv, a row a sample, and measures.json; remove what was kept on the way."""
    table, summary = folder / "measures.csv", folder / "measures.json"
    headings = ["sample", *(column.heading for column in found.columns)]
    lines = [
        [number, *(None if math.isnan(value) else value for value in row)]
        for number, row in zip(found.sample_index.tolist(), found.values.tolist())
    ]
    with write_set():
        write_table(table, headings, lines)
        write_json(summary, measurements_as_json(run, found, rules))
    (folder / _CHECKPOINT).unlink(missing_ok=True)
    return [table, summary]
