"""``python -m lab quality``, ``biomarkers`` and ``raters``: the clinical experiments."""

from __future__ import annotations

import json as json_format
import math
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from perturb_mpm.cli import UsageError, prepare_folder, shown_progress

if TYPE_CHECKING:
    from perturb_mpm.run import RunSettings


Flag = Annotated[bool, Parameter(negative="")]
Told = Callable[[int, str], object]


def quality(
    *,
    data: Path | None = None,
    forests: Path | None = None,
    settings: Path | None = None,
    samples: int = 200,
    seed: int = 0,
    spacing_mm: float = 2.0,
    output: Path = Path("reproduce-quality"),
    quick: Flag = False,
    quiet: Flag = False,
    json: Flag = False,
) -> None:
    """Measure how well uncertainty finds errors; write quality.csv, quality.md and curves.png.

    Parameters
    ----------
    data
        A folder of BraTS 2021 patients, each segmented by a forest that never saw it; without it
        14 made-up patients are segmented by a forest trained on others.
    forests
        The folder of an earlier reproduce segmentation on the same data, whose forests are taken;
        else they are grown, and kept in the output folder.
    settings
        A settings file as perturb-mpm tune writes it; the defaults of run without it.
    samples
        Samples of each patient and estimator.
    seed
        Names the noise, the forest and the made-up patients.
    spacing_mm
        The voxel size of made-up patients.
    output
        The folder to write to; made where it is missing.
    quick
        Three coarse patients and 16 samples: to see that it works.
    quiet
        Print nothing, and show no progress.
    json
        Print every number as JSON instead of the page.
    """
    chosen = _settings(settings, samples=samples, seed=seed, quick=quick)
    _check_spacing(spacing_mm)
    if data is not None and not data.is_dir():
        raise UsageError(f"--data must be a folder of patients, got {data}")
    if forests is not None and (data is None or not forests.is_dir()):
        raise UsageError(f"--forests must be a folder, and come with --data, got {forests}")
    folder = prepare_folder(output)

    from lab.clinical import cohorts as sources
    from lab.clinical import quality as experiment
    from lab.clinical import quality_page
    from perturb_mpm.files import InputError, write_table

    try:
        with _progress(quiet=quiet) as tell:
            if data is None:
                cohort = sources.preoperative(seed, spacing_mm, quick=quick, tell=tell)
            else:
                cohort = sources.held_out(data, forests or folder, seed, quick=quick, tell=tell)
            found = experiment.measure_quality(cohort.patients, cohort.regions, chosen, tell)
    except InputError as error:
        raise UsageError(str(error)) from error
    comparisons = experiment.compare_estimators(found, cohort.regions)
    about = f"{cohort.about} {_sampling_words(chosen)}"
    text = quality_page.page(found, comparisons, cohort.regions, about)
    rows = [(r.case, r.method, r.region, r.domain, r.metric, r.value) for r in found.rows]
    columns = ("case", "estimator", "region", "domain", "metric", "value")
    write_table(folder / "quality.csv", columns, rows)
    _write_text(folder / "quality.md", text)
    _write_figure(folder / "curves.png", quality_page.operating_curves(found, list(cohort.regions)))
    plain = {"rows": [asdict(row) for row in found.rows], "tests": [asdict(c) for c in comparisons]}
    _finish(folder, ("quality.csv", "quality.md", "curves.png"), text, plain, quiet, json)


def biomarkers(
    *,
    settings: Path | None = None,
    fields_settings: Path | None = None,
    samples: int = 200,
    seed: int = 0,
    spacing_mm: float = 2.0,
    output: Path = Path("reproduce-biomarkers"),
    quick: Flag = False,
    quiet: Flag = False,
    json: Flag = False,
) -> None:
    """Compare EOR and RTV of 19 made-up patients with four raters; write tables and boxplots.

    Parameters
    ----------
    settings
        A settings file for the paper's noise; the defaults of run without it.
    fields_settings
        A settings file with smooth random fields, as perturb-mpm tune writes it; without it
        fields are learned on the patients that the forest is trained on.
    samples
        Samples of each scan and perturbation.
    seed
        Names the noise, the forest and the patients.
    spacing_mm
        The voxel size.
    output
        The folder to write to; made where it is missing.
    quick
        Three coarse patients and 16 samples: to see that it works.
    quiet
        Print nothing, and show no progress.
    json
        Print every estimate as JSON instead of the page.
    """
    chosen = _settings(settings, samples=samples, seed=seed, quick=quick)
    with_fields = (
        None
        if fields_settings is None
        else _settings(fields_settings, samples=samples, seed=seed, quick=quick)
    )
    _check_spacing(spacing_mm)
    folder = prepare_folder(output)

    from lab.clinical import biomarkers as experiment
    from lab.clinical import biomarkers_page
    from lab.clinical import cohorts as sources
    from perturb_mpm.files import write_table

    with _progress(quiet=quiet) as tell:
        cohort = sources.operated(seed, spacing_mm, quick=quick, tell=tell)
        perturbations = sources.perturbations(cohort, chosen, with_fields, quick=quick, tell=tell)
        found = experiment.measure_biomarkers(cohort.patients, cohort.region, perturbations, tell)
    tests, covered = experiment.error_tests(found), experiment.interval_coverage(found)
    about = f"{cohort.about} {_sampling_words(chosen)}"
    text = biomarkers_page.page(found, tests, covered, about)
    columns = (
        "patient", "perturbation", "quantity", "method", "reference", "value", "reference_value",
    )  # fmt: skip
    rows = [tuple(getattr(each, name) for name in columns) for each in found.estimates]
    write_table(folder / "biomarkers.csv", columns, rows)
    _write_text(folder / "biomarkers.md", text)
    files = ["biomarkers.csv", "biomarkers.md"]
    for number, perturbation in enumerate(perturbations):
        for quantity, short in (("rtv_ml", "rtv"), ("eor_frac", "eor")):
            files.append(f"{short}-{('paper', 'fields')[number]}.png")
            _write_figure(
                folder / files[-1], biomarkers_page.boxplots(found, perturbation, quantity)
            )
    plain = {
        "estimates": [asdict(each) for each in found.estimates],
        "tests": [asdict(each) for each in tests],
        "coverage": [asdict(each) for each in covered],
    }
    _finish(folder, files, text, plain, quiet, json)


def raters(
    *,
    data: Path,
    output: Path = Path("reproduce-raters"),
    quiet: Flag = False,
    json: Flag = False,
) -> None:
    """Hold real drawings of one structure against each other; write raters.csv and raters.md.

    Parameters
    ----------
    data
        A folder with lidc_multirater_masks, tcga_fg6692_5algorithms or both.
    output
        The folder to write to; made where it is missing.
    quiet
        Print nothing.
    json
        Print the rows as JSON instead of a table.
    """
    from lab.clinical.raters import RaterRow, compare_raters, table
    from perturb_mpm.files import InputError, write_table

    try:
        rows = compare_raters(data)
    except InputError as error:
        raise UsageError(str(error)) from error
    folder = prepare_folder(output)
    columns = tuple(RaterRow.__dataclass_fields__)
    write_table(folder / "raters.csv", columns, [tuple(asdict(row).values()) for row in rows])
    text = table(rows)
    _write_text(folder / "raters.md", text)
    plain = {"rows": [asdict(row) for row in rows]}
    _finish(folder, ("raters.csv", "raters.md"), text, plain, quiet, json)


def _settings(path: Path | None, *, samples: int, seed: int, quick: bool) -> RunSettings:

    from perturb_mpm.run import RunSettings, read_settings

    try:
        found = RunSettings() if path is None else read_settings(path)
        return found.changed(samples=16 if quick else samples, seed=seed)
    except (OSError, TypeError, ValueError) as error:
        raise UsageError(str(error)) from error


def _check_spacing(spacing_mm: float) -> None:
    if not 1.0 <= spacing_mm <= 8.0:
        raise UsageError(f"--spacing-mm must be between 1 and 8, got {spacing_mm:g}")


def _sampling_words(settings: RunSettings) -> str:
    drawn = settings.sampling
    return f"{drawn.samples} samples of {drawn.iterations} iterations, seed {drawn.seed}."


@contextmanager
def _progress(*, quiet: bool) -> Iterator[Told]:
    """Yield what is told how many are done and of what."""
    with shown_progress(quiet=quiet) as shown:
        yield lambda done, what: shown.stage(f"{done} done: {what}" if done else what)


def _write_text(path: Path, text: str) -> None:
    from perturb_mpm.storage import atomic_open

    with atomic_open(path) as file:
        file.write(text.encode())


def _write_figure(path: Path, figure: object) -> None:
    from lab.figures import save_png
    from perturb_mpm.storage import atomic_open

    with atomic_open(path) as file:
        save_png(figure, file)  # type: ignore[arg-type]


def _finish(
    folder: Path,
    files: list[str] | tuple[str, ...],
    text: str,
    plain: Mapping[str, object],
    quiet: bool,  # noqa: FBT001
    json: bool,  # noqa: FBT001
) -> None:
    if json:
        names = [str(folder / name) for name in files]
        text = json_format.dumps(_without_nan({"files": names, **plain}), indent=2)
        sys.stdout.write(text + "\n")
    elif not quiet:
        sys.stdout.write(text + "".join(f"wrote {folder / name}\n" for name in files))


def _without_nan(value: object) -> object:
    """Return the same with null for what is not a number, which JSON does not know."""
    if isinstance(value, dict):
        return {name: _without_nan(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [_without_nan(inner) for inner in value]
    return None if isinstance(value, float) and math.isnan(value) else value
