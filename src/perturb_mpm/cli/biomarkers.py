"""``perturb-mpm biomarkers``: extent of resection and residual volume, one patient or a cohort."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter
from rich.table import Table

from perturb_mpm.assess import (
    Biomarkers,
    ChangeQuestion,
    Line,
    ResectionCalibration,
    RunChange,
    Scan,
    ScanPair,
    biomarker_lines,
    biomarkers_as_json,
    calibrate,
    check_biomarkers_folder,
    check_spacing,
    compare_runs,
    read_calibration,
    read_pairs,
    read_scan,
    resection,
    write_biomarkers,
    write_change_page,
)
from perturb_mpm.biomarkers import KARSCHNIA_2021, RANO_RESECT, ResectionClass
from perturb_mpm.cli.console import SHOW, Flag, Names, Show, UsageError, prepare_folder, text_table
from perturb_mpm.files import Source, region_values_from_text
from perturb_mpm.run import load_run, measured_patient
from perturb_mpm.storage import write_set

LARGEST_NOISE_FLOOR_ML = 1000.0


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class BiomarkersOptions:
    """Which scans are compared, by which limits, and where the numbers go."""

    before: Path | None = None
    """The scan before surgery: a folder of perturb-mpm run, or one label map."""
    after: Path | None = None
    """The scan after surgery, likewise."""
    table: Path | None = None
    """A cohort instead: CSV with the columns case, before, after, truth_before, truth_after, or the
    folder of perturb-mpm cohort with the cases sub-NAME_ses-pre and sub-NAME_ses-post."""
    sessions: Annotated[tuple[str, str], Parameter(negative="", show_default=False)] = (
        "pre",
        "post",
    )
    """Which sessions of a cohort's folder are before and after surgery. Default: pre post."""
    truth: Path | None = None
    """A folder with CASE.nii.gz of a cohort's cases, instead of the truths that it was given."""
    region: Names
    """Enhancing tumour by a name and its label values, as in enhancing=4, or the values alone."""
    spacing: Annotated[tuple[float, float, float] | None, Parameter(negative="")] = None
    """The voxel size in mm of label maps that do not say it; three numbers."""
    classes: Literal["rano", "karschnia"] = "rano"
    """The limits of the classes of resection: RANO resect 2023, or Karschnia 2021."""
    noise_floor_ml: float = 0.0
    """A residual of at most so much counts as none; at most 1000."""
    certain_only: Flag = False
    """Add a row of the voxels alone in which all samples agree, the paper's correction: it drops
    what is uncertain, and can make a resection look complete that was not."""
    calibration: Path | None = None
    """A calibration.json from a cohort with known volumes."""
    output: Path = Path("biomarkers")
    """The folder to write to; made where it is missing."""
    show: Show = SHOW


def biomarkers(*, options: BiomarkersOptions) -> None:
    """Write biomarkers.csv and biomarkers.json: EOR and RTV as segmented and sampled.

    Extent of resection is a change: two runs also get its page, report.html.

    Probabilities of resection classes are worth what their perturbation is worth: they are given
    only with --calibration, which says how they did on cases with known volumes. A --table whose
    cases have truths writes such a file, calibration.json.
    """
    pairs = _find_pairs(options)
    floor = options.noise_floor_ml
    if not 0 <= floor <= LARGEST_NOISE_FLOOR_ML:
        raise UsageError(
            f"--noise-floor-ml must lie between 0 and {LARGEST_NOISE_FLOOR_ML:g}, got {floor:g}"
        )

    values = _region_values(options.region)
    step = None if options.spacing is None else check_spacing(options.spacing)
    limits = RANO_RESECT if options.classes == "rano" else KARSCHNIA_2021
    known = None if options.calibration is None else read_calibration(options.calibration)
    check_biomarkers_folder(options.output)
    found, truths = _read(pairs, values, step, limits, floor)
    if known is not None:
        for case, each in found.items():
            known.require_same_law(case, each, limits, floor)
    learnt = calibrate(found, truths, limits, floor)

    page = _compare_runs(pairs, values)
    folder, certain = prepare_folder(options.output), options.certain_only
    with write_set():
        files = write_biomarkers(folder, found, known, learnt, certain_only=certain)
        files += [] if page is None else [write_change_page(folder, page)]
    options.show.warn(words for each in found.values() for words in each.warnings)
    lines = biomarker_lines(found, known, certain_only=certain)
    sentences = (_classes_in_words(case, each, known) for case, each in found.items())
    content = biomarkers_as_json(found, known)
    options.show.result(content, _table(lines), *sentences, files=files)


def _compare_runs(pairs: Sequence[ScanPair], values: Sequence[int]) -> RunChange | None:
    """Return the change between two runs that both name a structure of these label values."""
    if len(pairs) != 1 or not (pairs[0].before.is_dir() and pairs[0].after.is_dir()):
        return None
    runs = load_run(pairs[0].before), load_run(pairs[0].after)
    names = []
    for run in runs:
        members = {run.case.labels.values.index(value) for value in values}
        structures = measured_patient(run).structures.items()
        names.append([name for name, labels in structures if set(labels) == members])
    common = [name for name in names[0] if name in names[1]]
    if not common:
        return None
    return compare_runs(*runs, ChangeQuestion(structures=(common[0],)))


def _region_values(words: Sequence[str]) -> tuple[int, ...]:
    regions = region_values_from_text(words)
    if len(regions) != 1:
        raise UsageError(
            "--region must be one set of label values joined by commas, as in enhancing=1,4, "
            f"got {' '.join(words) or 'none'}"
        )
    return next(iter(regions.values()))


def _read(
    pairs: Sequence[ScanPair],
    region: Sequence[int],
    spacing: Sequence[float] | None,
    limits: Sequence[ResectionClass],
    noise_floor_ml: float,
) -> tuple[dict[str, Biomarkers], dict[str, tuple[float, float]]]:
    """Return every case's biomarkers, and the true volumes before and after where known, in ml."""

    def read(argument: str, path: Path) -> Scan:
        return read_scan(Source(argument, path), region, spacing)

    found = {
        pair.case: resection(
            read("before", pair.before), read("after", pair.after), limits, noise_floor_ml
        )
        for pair in pairs
    }
    truths = {
        pair.case: (
            read("table", pair.truth_before).original_ml,
            read("table", pair.truth_after).original_ml,
        )
        for pair in pairs
        if pair.truth_before is not None and pair.truth_after is not None
    }
    return found, truths


def _find_pairs(options: BiomarkersOptions) -> list[ScanPair]:
    before, after, table = options.before, options.after, options.table
    if options.truth is not None and (table is None or not table.is_dir()):
        raise UsageError("--truth must come with the folder of a cohort as --table")
    if table is not None:
        if before is not None or after is not None:
            raise UsageError("give --before and --after, or --table, not both")
        return read_pairs(table, options.sessions, options.truth)
    if before is None or after is None:
        raise UsageError("give --before and --after for one patient, or --table for a cohort")
    for option, path in (("--before", before), ("--after", after)):
        if not path.exists():
            raise UsageError(f"{option} {path}: there is no such file or folder")
    return [ScanPair(after.name.removesuffix(".gz").removesuffix(".nii"), before, after)]


def _table(lines: Sequence[Line]) -> Table:
    def text(value: object, scale: float = 1.0) -> str:
        return f"{scale * value:.2f}" if isinstance(value, float) else "–"

    def interval(low: object, high: object, scale: float = 1.0) -> str:
        return "–" if low is None else f"{text(low, scale)} to {text(high, scale)}"

    rows = [
        (
            str(case),
            str(method),
            text(v_pre),
            text(rtv),
            interval(low, high),
            text(eor, 100.0) if eor is not None else "undefined" if v_pre == 0 else "–",
            interval(eor_low, eor_high, 100.0),
        )
        for case, method, v_pre, rtv, low, high, eor, eor_low, eor_high, *_ in lines
    ]
    numbers = ("before\nml", "RTV\nml", "RTV 95 %\nml", "EOR\n%", "EOR 95 %\n%")
    return text_table(("case", "method", *numbers), rows, words=2)


def _classes_in_words(
    case: str, found: Biomarkers, calibration: ResectionCalibration | None
) -> str:
    words = f"{case}: class {found.resection_class} as segmented"
    if found.sampled is None:
        return words + "; label maps alone say nothing of its probability"
    if calibration is None:
        return (
            f"{words}; samples rest on {found.perturbation}. Probabilities of classes are withheld "
            "without --calibration: nothing is known of how they do on other cases"
        )
    shares = ", ".join(
        f"{name} {100 * share:.0f} %" for name, share in found.sampled.classes.items()
    )
    return (
        f"{words}; by samples ({found.perturbation}): {shares}; residual tumour "
        f"{100 * found.sampled.residual_present:.0f} %. On {calibration.cases} cases with known "
        f"volumes the true class got {100 * calibration.true_class_probability:.0f} % on average "
        f"(Brier score {calibration.class_brier:.2f})"
    )
