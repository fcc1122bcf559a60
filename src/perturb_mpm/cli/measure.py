"""``perturb-mpm measure``: any measure of every sample of a run, and the probability of a rule."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter
from rich.table import Table

from perturb_mpm.assess import check_measures_folder
from perturb_mpm.cli.console import (
    SHOW,
    Show,
    UsageError,
    Words,
    prepare_folder,
    require_run,
    text_table,
    usage_errors,
)
from perturb_mpm.measures import (
    DEFAULT_MEASURES,
    LEAST_ML,
    MeasureRow,
    Rule,
    SampledLesion,
    find_measures,
)
from perturb_mpm.run import (
    FINDING_FILES,
    Run,
    check_questions,
    find_in_samples,
    findings_as_json,
    load_run,
    measure_rows,
    measured_patient,
    measurements_as_json,
    read_surroundings,
    rebuild_sampler,
    write_findings,
    write_measurements,
)
from perturb_mpm.run import measure as measure_run
from perturb_mpm.storage import write_set


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class MeasureOptions:
    """What is measured, and where the numbers go."""

    measure: Words = None
    """volume, area, diameter, bidirectional, axial_diameter, perpendicular_diameter, sphericity,
    components, margin, dice, surface_dice, hd95; distance:NAME, contact:NAME and overlap:NAME of
    another structure; mean:IMAGE, sd, median, p10, p90 and entropy of an image; d95, v20 and
    mean_dose with a dose; or module:function of your own. Size and shape by default."""
    structure: Words = None
    """Which regions and labels of the run; all but the background by default."""
    rule: Words = None
    """A question that every sample answers, as in "enhancing.volume > 10"; its probability is
    given. Several comparisons are joined by "and"."""
    beside: Words = None
    """Structures that do not vary, by name and mask, as in vessel=vessel.nii.gz, on the run's
    grid."""
    dose: Path | None = None
    """A dose in Gy: an image on the run's grid, or a DICOM RT Dose, which is interpolated."""
    lesions: str | None = None
    """A region or label whose lesions are found one by one: lesions.csv and two maps."""
    least_lesion: float = LEAST_ML
    """Connected pieces below this volume are no lesions, ml."""
    extremes: str | None = None
    """A region or label of whose volume the samples at 2.5, 50 and 97.5 % are written:
    extremes.nii.gz."""
    priority: str | None = None
    """A measure to be narrowed, such as core.volume: priority.nii.gz and priority.json say where a
    correction would do so most."""
    output: Path = Path("measures")
    """The folder to write to; made where it is missing. Interrupted, the same command goes on."""
    show: Show = SHOW


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
    require_run(run, "RUN")
    words = options.measure or DEFAULT_MEASURES
    check_measures_folder(options.output)
    with usage_errors():
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
    folder = prepare_folder(options.output)
    content: dict[str, Any] = {}
    lines: list[str | Table] = []
    files: list[Path] = []
    measured = findings = None
    with options.show.progress() as progress:
        if options.lesions or options.extremes or options.priority:
            progress.stage("drawing samples again")
            sampler = rebuild_sampler(asked)
            findings = find_in_samples(
                asked, sampler, extremes=options.extremes, beside=beside, progress=progress
            )
            del sampler
        if findings is None or options.measure or rules:
            progress.stage("measuring samples")
            measured = measure_run(
                loaded, chosen, structures, beside=beside, checkpoint=folder, progress=progress
            )
    # Nothing stays of what the folder said of another run or question.
    with write_set(*(folder / name for names in FINDING_FILES.values() for name in names)):
        if findings is not None:
            files += write_findings(folder, asked, findings).values()
            content |= findings_as_json(asked, findings)
            lesions = findings.findings.lesions
            if lesions is not None and lesions.by_doubt():
                lines.append(_lesion_table(lesions.by_doubt()))
        if measured is not None:
            files += write_measurements(folder, loaded, measured, rules)
            content |= measurements_as_json(loaded, measured, rules)
            lines += _in_words(measure_rows(loaded, measured), content["rules"])
    correction = loaded.describe_correction()
    options.show.warn([] if correction is None else [correction])
    options.show.result(content, *lines, files=files)


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


def _lesion_table(lesions: Sequence[SampledLesion]) -> Table:
    """Return a line a lesion."""
    rows = [
        (
            str(each.number),
            f"{each.probability:.2f}",
            f"{each.median_ml:.2f}",
            f"{each.interval_ml[0]:.2f} to {each.interval_ml[1]:.2f}",
            f"{each.joined[0][0]} ({each.joined[0][1]:.2f})" if each.joined else "",
        )
        for each in lesions
    ]
    headings = ("lesion", "probability", "median\nml", "95 %\nml", "joined with")
    return text_table(headings, rows, words=0, caption="volumes of the samples that have it")


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
    structures: Sequence[str], rules: Sequence[Rule], known: Iterable[str], names: Sequence[str]
) -> None:
    """Refuse structures that the run lacks, and rules about what is not measured."""
    for name in structures:
        if name not in known:
            raise UsageError(f"--structure must be among {', '.join(known)}, got {name}")
    keys = [f"{structure}.{name}" for structure in structures for name in names]
    for key in (key for rule in rules for key in rule.keys if key not in keys):
        raise UsageError(f"--rule must speak of what is measured, {', '.join(keys)}, got {key}")


def _in_words(
    rows: Sequence[MeasureRow], rules: Sequence[dict[str, object]]
) -> Iterator[str | Table]:
    cells = [
        (
            row.structure,
            row.measure,
            f"{row.label_map:.4g}",
            f"{row.median:.4g}",
            "–" if math.isnan(row.interval[0]) else "{:.4g} to {:.4g}".format(*row.interval),
            row.unit.replace("mm2", "mm²"),
        )
        for row in rows
    ]
    headings = ("structure", "measure", "label map", "median", "95 %", "unit")
    table = text_table(headings, cells, words=2)
    table.columns[-1].justify = "left"
    yield table
    yield from (f"{rule['rule']}: {_probability(rule['probability'])}" for rule in rules)
    yield from dict.fromkeys(f"intervals rest on {row.rests_on}" for row in rows)


def _probability(value: object) -> str:
    return f"P = {value:.3f}" if isinstance(value, float) else "P unknown, noise is white"
