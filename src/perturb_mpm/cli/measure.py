"""``perturb-mpm measure``: any measure of every sample of a run, and the probability of a rule."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
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

if TYPE_CHECKING:
    from perturb_mpm.assess import MeasureRow


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
    output: Path = Path("measures")
    quiet: Flag = False
    json: Flag = False


_NO_OPTIONS = MeasureOptions()


def measure(
    run: Annotated[Path, Parameter(name="RUN")], /, *, options: MeasureOptions = _NO_OPTIONS
) -> None:
    """Measure every sample of a finished run; write measures.csv and measures.json.

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

    from perturb_mpm.assess import (
        check_measures_folder,
        measure_rows,
        measured_patient,
        measurements_as_json,
        read_surroundings,
        write_measurements,
    )
    from perturb_mpm.assess import measure as measure_run
    from perturb_mpm.measures import DEFAULT_MEASURES, Rule, find_measures
    from perturb_mpm.run import load_run

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
    except ValueError as error:
        raise UsageError(str(error)) from error
    folder = prepare_folder(options.output)
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
