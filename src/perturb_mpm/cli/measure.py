"""``perturb-mpm measure``: any measure of every sample of a run, and the probability of a rule."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from perturb_mpm.cli.console import (
    Flag,
    UsageError,
    Words,
    prepare_folder,
    print_json,
    print_plain,
    shown_progress,
)
from perturb_mpm.measures import LEAST_ML

if TYPE_CHECKING:
    from perturb_mpm.measures import MeasureRow, SampledLesion
    from perturb_mpm.run import Run


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class MeasureOptions:
    """What is measured, and where the numbers go.

    Parameters
    ----------
    measure
        volume, area, diameter, bidirectional, axial_diameter, perpendicular_diameter, sphericity,
        components, margin, dice, surface_dice, hd95; distance:NAME, contact:NAME and overlap:NAME
        of another structure; mean:IMAGE, sd, median, p10, p90 and entropy of an image; d95, v20 and
        mean_dose with a dose; or module:function of your own. Size and shape by default.
    structure
        Which regions and labels of the run; all but the background by default.
    rule
        A question that every sample answers, as in "enhancing.volume > 10"; its probability is
        given. Several comparisons are joined by "and".
    beside
        Structures that do not vary, by name and mask, as in vessel=vessel.nii.gz, on the run's
        grid.
    dose
        A dose in Gy on the run's grid.
    lesions
        A region or label whose lesions are found one by one: lesions.csv and two maps.
    least_lesion
        Connected pieces below this volume are no lesions, ml.
    extremes
        A region or label of whose volume the samples at 2.5, 50 and 97.5 % are written:
        extremes.nii.gz.
    priority
        A measure to be narrowed, such as core.volume: priority.nii.gz and priority.json say where
        a correction would do so most.
    output
        The folder to write to; made where it is missing. Interrupted, the same command goes on.
    quiet
        Print nothing.
    json
        Print the summary as JSON instead of a table.
    """

    measure: Words = None
    structure: Words = None
    rule: Words = None
    beside: Words = None
    dose: Path | None = None
    lesions: str | None = None
    least_lesion: float = LEAST_ML
    extremes: str | None = None
    priority: str | None = None
    output: Path = Path("measures")
    quiet: Flag = False
    json: Flag = False


_NO_OPTIONS = MeasureOptions()


def measure(
    run: Annotated[Path, Parameter(name="RUN")], /, *, options: MeasureOptions = _NO_OPTIONS
) -> None:
    """Measure every sample of a finished run, or find its lesions; write tables and maps.

    The samples are drawn again, bit for bit the run's.

    Parameters
    ----------
    run
        The folder that ``perturb-mpm run`` wrote.
    options
        What is measured.
    """
    if not run.is_dir():
        raise UsageError(f"RUN must be the folder of a run, got {run}, which is none")

    from perturb_mpm.assess import check_measures_folder
    from perturb_mpm.measures import DEFAULT_MEASURES, Rule, find_measures
    from perturb_mpm.run import (
        check_questions,
        load_run,
        measure_rows,
        measured_patient,
        measurements_as_json,
        read_surroundings,
        write_measurements,
    )
    from perturb_mpm.run import measure as measure_run

    words = options.measure or DEFAULT_MEASURES
    check_measures_folder(options.output)
    try:
        rules = [Rule.from_text(each) for each in options.rule or ()]
        loaded = load_run(run)
        beside = read_surroundings(loaded, _named_files(options.beside or ()), options.dose)
        patient = measured_patient(loaded, beside)
        chosen = find_measures(words, patient)
        structures = tuple(options.structure or patient.structures)
        _check_names(structures, rules, patient.structures, [each.name for each in chosen])
        asked = _with_questions(loaded, options)
        check_questions(patient, asked.settings)
        if options.extremes not in (None, *patient.structures):
            known = ", ".join(patient.structures)
            raise UsageError(f"--extremes must be one of {known}, got {options.extremes}")
    except ValueError as error:
        raise UsageError(str(error)) from error
    folder = prepare_folder(options.output)
    if options.lesions or options.extremes or options.priority:
        _find(folder, asked, options)
        if not (options.measure or rules):
            return
    with shown_progress(quiet=options.quiet) as show:
        show.stage("measuring samples")
        found = measure_run(
            loaded, chosen, structures, beside=beside, checkpoint=folder, progress=show
        )
    files = write_measurements(folder, loaded, found, rules)
    content = measurements_as_json(loaded, found, rules)
    if options.json:
        print_json(content)
    elif not options.quiet:
        _print(measure_rows(loaded, found), content["rules"], files)


def _with_questions(run: Run, options: MeasureOptions) -> Run:
    """Return the run with what is asked of its samples now."""
    settings = run.settings.changed(
        measure=(),
        rule=(),
        lesions=options.lesions,
        least_lesion=options.least_lesion,
        priority=options.priority,
    )
    return replace(run, settings=settings)


def _find(folder: Path, run: Run, options: MeasureOptions) -> None:
    """Find lesions, extremes and priority; write and print them."""
    from perturb_mpm.run import (
        find_in_samples,
        findings_as_json,
        rebuild_sampler,
        write_findings,
    )

    with shown_progress(quiet=options.quiet) as show:
        show.stage("drawing samples again")
        found = find_in_samples(run, rebuild_sampler(run), extremes=options.extremes, progress=show)
    files = write_findings(folder, run, found)
    if options.json:
        print_json(findings_as_json(run, found))
    elif not options.quiet:
        lesions = found.findings.lesions
        _print_lesions(lesions.by_doubt() if lesions is not None else [])
        print_plain(*(f"wrote {file}" for file in files.values()))


def _print_lesions(lesions: Sequence[SampledLesion]) -> None:
    """Print a line a lesion."""
    from rich.table import Table

    if not lesions:
        return
    table = Table(caption="volumes of the samples that have it")
    for heading in ("lesion", "probability", "median\nml", "95 %\nml", "joined with"):
        table.add_column(heading, justify="right")
    for each in lesions:
        low, high = each.interval_ml
        joined = f"{each.joined[0][0]} ({each.joined[0][1]:.2f})" if each.joined else ""
        ends = f"{low:.2f} to {high:.2f}"
        number = str(each.number)
        table.add_row(number, f"{each.probability:.2f}", f"{each.median_ml:.2f}", ends, joined)
    print_plain(table)


def _named_files(words: Sequence[str]) -> dict[str, Path]:
    """Return name -> file of words such as vessel=vessel.nii.gz."""
    found: dict[str, Path] = {}
    for word in words:
        name, equals, path = word.partition("=")
        if not equals or not name or not path:
            raise UsageError(f"--beside must be NAME=FILE, as in vessel=vessel.nii.gz, got {word}")
        if name in found:
            raise UsageError(f"--beside must name each mask once, got {name} twice")
        found[name] = Path(path)
    return found


def _check_names(
    structures: Sequence[str], rules: Sequence[object], known: Iterable[str], names: Sequence[str]
) -> None:
    """Refuse structures that the run lacks, and rules about what is not measured."""
    from perturb_mpm.measures import Rule

    unknown = [name for name in structures if name not in known]
    if unknown:
        raise UsageError(f"--structure must be among {', '.join(known)}, got {unknown[0]}")
    keys = [f"{structure}.{name}" for structure in structures for name in names]
    for rule in rules:
        missing = [key for key in rule.keys if key not in keys] if isinstance(rule, Rule) else []
        if missing:
            raise UsageError(
                f"--rule must speak of what is measured, {', '.join(keys)}, got {missing[0]}"
            )


def _print(
    rows: Sequence[MeasureRow], rules: Sequence[dict[str, object]], files: Iterable[Path]
) -> None:
    from rich.table import Table

    table = Table()
    for heading in ("structure", "measure"):
        table.add_column(heading)
    for heading in ("label map", "median", "95 %"):
        table.add_column(heading, justify="right")
    table.add_column("unit")
    for row in rows:
        low, high = row.interval
        ends = "–" if low != low else f"{low:.4g} to {high:.4g}"  # noqa: PLR0124 - NaN
        unit = row.unit.replace("mm2", "mm²")
        table.add_row(
            row.structure, row.measure, f"{row.label_map:.4g}", f"{row.median:.4g}", ends, unit
        )
    lines = [f"{rule['rule']}: {_probability(rule['probability'])}" for rule in rules]
    basis = dict.fromkeys(f"intervals rest on {row.rests_on}" for row in rows)
    print_plain(table, *lines, *basis, *(f"wrote {file}" for file in files))


def _probability(value: object) -> str:
    return f"P = {value:.3f}" if isinstance(value, float) else "P unknown, noise is white"
