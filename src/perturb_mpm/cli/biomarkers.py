"""``perturb-mpm biomarkers``: extent of resection and residual volume, one patient or a cohort."""

from __future__ import annotations

import json as json_format
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from perturb_mpm.cli.console import UsageError, prepare_folder

if TYPE_CHECKING:
    from perturb_mpm.assess import Biomarkers, Line, Pair, ResectionCalibration
    from perturb_mpm.biomarkers import ResectionClass


Flag = Annotated[bool, Parameter(negative="")]


def biomarkers(
    *,
    before: Path | None = None,
    after: Path | None = None,
    table: Path | None = None,
    region: Annotated[list[int], Parameter(consume_multiple=True, negative="")],
    spacing: Annotated[tuple[float, float, float] | None, Parameter(negative="")] = None,
    classes: Literal["rano", "karschnia"] = "rano",
    noise_floor_ml: float = 0.0,
    calibration: Path | None = None,
    output: Path = Path("biomarkers"),
    quiet: Flag = False,
    json: Flag = False,
) -> None:
    """Write biomarkers.csv and biomarkers.json: EOR and RTV as segmented, corrected and sampled.

    Probabilities of resection classes are worth what their perturbation is worth: they are given
    only with --calibration, which says how they did on cases with known volumes. A --table whose
    cases have truths writes such a file, calibration.json.

    Parameters
    ----------
    before
        The scan before surgery: a folder of perturb-mpm run, or one label map.
    after
        The scan after surgery, likewise.
    table
        A cohort instead: CSV with the columns case, before, after, truth_before, truth_after.
    region
        The label values of enhancing tumour.
    spacing
        The voxel size in mm of label maps that do not say it; three numbers.
    classes
        The limits of the classes of resection: RANO resect 2023, or Karschnia 2021.
    noise_floor_ml
        A residual of at most so much counts as none.
    calibration
        A calibration.json from a cohort with known volumes.
    output
        The folder to write to; made where it is missing.
    quiet
        Print nothing.
    json
        Print the results as JSON instead of a table.
    """
    pairs = _pairs(before, after, table)
    if noise_floor_ml < 0:
        raise UsageError(f"--noise-floor-ml must not be negative, got {noise_floor_ml:g}")
    if spacing is not None and min(spacing) <= 0:
        raise UsageError(f"--spacing must be three positive numbers in mm, got {spacing}")

    from perturb_mpm.assess import COLUMNS, lines_of, read_calibration
    from perturb_mpm.biomarkers import KARSCHNIA_2021, RANO_RESECT
    from perturb_mpm.files import InputError, write_table
    from perturb_mpm.storage import write_json

    limits = RANO_RESECT if classes == "rano" else KARSCHNIA_2021
    try:
        known = None if calibration is None else read_calibration(calibration)
        found, truths = _read(pairs, region, spacing, limits, noise_floor_ml)
    except InputError as error:
        raise UsageError(str(error)) from error
    _check_perturbation(known, found)

    folder = prepare_folder(output)
    files = [folder / "biomarkers.csv", folder / "biomarkers.json"]
    lines = [line for case, each in found.items() for line in lines_of(case, each, known)]
    write_table(files[0], COLUMNS, lines)
    plain = {case: _plain(each, known) for case, each in found.items()}
    write_json(files[1], plain)
    files += _write_calibration(folder, found, truths, limits, noise_floor_ml)
    if json:
        sys.stdout.write(json_format.dumps(plain, indent=2) + "\n")
    elif not quiet:
        _print(lines, found, known, files)


def _read(
    pairs: list[Pair],
    region: list[int],
    spacing: tuple[float, float, float] | None,
    limits: Sequence[ResectionClass],
    noise_floor_ml: float,
) -> tuple[dict[str, Biomarkers], dict[str, tuple[float, float]]]:
    """Return every case's biomarkers, and the true volumes before and after where known, in ml."""
    from perturb_mpm.assess import Scan, read_scan, resection
    from perturb_mpm.files import Source

    def read(option: str, path: Path) -> Scan:
        return read_scan(Source(option, path), region, spacing)

    found = {
        pair.case: resection(
            read("--before", pair.before), read("--after", pair.after), limits, noise_floor_ml
        )
        for pair in pairs
    }
    truths = {
        pair.case: (
            read("truth_before", pair.truth_before).original_ml,
            read("truth_after", pair.truth_after).original_ml,
        )
        for pair in pairs
        if pair.truth_before is not None and pair.truth_after is not None
    }
    return found, truths


def _write_calibration(
    folder: Path,
    found: dict[str, Biomarkers],
    truths: dict[str, tuple[float, float]],
    limits: Sequence[ResectionClass],
    noise_floor_ml: float,
) -> list[Path]:
    """Write what cases with known volumes teach, where there are any; return the file."""
    from perturb_mpm.assess import calibrate, write_calibration

    sampled = [case for case in truths if found[case].sampled is not None]
    if not sampled:
        return []
    learnt = calibrate(
        [found[case] for case in sampled],
        [truths[case][0] for case in sampled],
        [truths[case][1] for case in sampled],
        limits,
        noise_floor_ml,
    )
    write_calibration(folder / "calibration.json", learnt)
    return [folder / "calibration.json"]


def _pairs(before: Path | None, after: Path | None, table: Path | None) -> list[Pair]:
    from perturb_mpm.assess import Pair, read_pairs
    from perturb_mpm.files import InputError

    if table is not None:
        if before is not None or after is not None:
            raise UsageError("give --before and --after, or --table, not both")
        try:
            return read_pairs(table)
        except InputError as error:
            raise UsageError(str(error)) from error
    if before is None or after is None:
        raise UsageError("give --before and --after for one patient, or --table for a cohort")
    for option, path in (("--before", before), ("--after", after)):
        if not path.exists():
            raise UsageError(f"{option} {path}: there is no such file or folder")
    return [Pair(after.name.removesuffix(".gz").removesuffix(".nii"), before, after)]


def _check_perturbation(
    calibration: ResectionCalibration | None, found: dict[str, Biomarkers]
) -> None:
    """Refuse a calibration that was learned with another perturbation."""
    if calibration is None:
        return
    for case, each in found.items():
        if each.perturbation is not None and each.perturbation != calibration.perturbation:
            raise UsageError(
                f"--calibration rests on {calibration.perturbation}, but {case} was sampled with "
                f"{each.perturbation}"
            )


def _plain(found: Biomarkers, calibration: ResectionCalibration | None) -> dict[str, object]:
    """Return what JSON can hold; None where a value is not defined."""
    sampled = found.sampled

    def defined(value: float | None) -> float | None:
        return None if value is None or math.isnan(value) else value

    result: dict[str, object] = {
        "before_ml": found.before_ml,
        "rtv_ml": found.residual_ml,
        "eor_frac": defined(found.extent),
        "resection_class": found.resection_class,
        "corrected": {
            "before_ml": found.corrected_before_ml,
            "rtv_ml": found.corrected_residual_ml,
            "eor_frac": defined(found.corrected_extent),
        },
        "samples": list(found.samples),
        "perturbation": found.perturbation,
    }
    if sampled is not None:
        result["sampled"] = {
            "rtv_median_ml": sampled.residual_ml.median,
            "rtv_interval_ml": [sampled.residual_ml.lower, sampled.residual_ml.upper],
            "eor_median_frac": defined(sampled.extent.median),
            "eor_interval_frac": [defined(sampled.extent.lower), defined(sampled.extent.upper)],
            "eor_undefined_samples": sampled.extent.undefined,
        }
        if calibration is not None:
            result["class_probabilities"] = sampled.classes
            result["residual_present_probability"] = sampled.residual_present
            result["calibration"] = {
                "cases": calibration.cases,
                "class_brier": calibration.class_brier,
                "true_class_probability": calibration.true_class_probability,
                "residual_coverage": calibration.residual_coverage,
            }
    return result


def _print(
    lines: list[Line],
    found: dict[str, Biomarkers],
    calibration: ResectionCalibration | None,
    files: list[Path],
) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table()
    for heading in ("case", "method"):
        table.add_column(heading)
    for heading in ("before\nml", "RTV\nml", "RTV 95 %\nml", "EOR\n%", "EOR 95 %\n%"):
        table.add_column(heading, justify="right")

    def text(value: object, scale: float = 1.0) -> str:
        return f"{scale * value:.2f}" if isinstance(value, float) else "–"

    def interval(low: object, high: object, scale: float = 1.0) -> str:
        return "–" if low is None else f"{text(low, scale)} to {text(high, scale)}"

    for case, method, v_pre, rtv, low, high, eor, eor_low, eor_high, *_ in lines:
        table.add_row(
            str(case),
            str(method),
            text(v_pre),
            text(rtv),
            interval(low, high),
            text(eor, 100.0) if eor is not None else "undefined" if v_pre == 0 else "–",
            interval(eor_low, eor_high, 100.0),
        )
    console = Console()
    console.print(table)
    for case, each in found.items():
        console.print(_classes_in_words(case, each, calibration), highlight=False)
    for file in files:
        console.print(f"wrote {file}", highlight=False, soft_wrap=True)


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
