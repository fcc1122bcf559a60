"""Pairs of scans: their table of paths, the files of their biomarkers, what a cohort teaches."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, asdict, dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np

from perturb_mpm import checks
from perturb_mpm.assess.scans import PAPER_RULE, Biomarkers
from perturb_mpm.assess.sources import cases_done, first_row, refuse_others
from perturb_mpm.biomarkers import (
    RANO_RESECT,
    ConformalWidening,
    ResectionClass,
    classify,
    conformal_widening,
    coverage,
    crps,
)
from perturb_mpm.checks import in_short
from perturb_mpm.files import InputError, Source, read_table, write_table
from perturb_mpm.storage import DAMAGE, error_text, read_json, write_json, write_set

_VOLUMES = ("before_ml", "rtv_ml", "eor_frac")
_EXTENT = ("eor_frac", "eor_lower_frac", "eor_upper_frac")
COLUMNS = (
    *("case", "method", "before_ml", "rtv_ml", "rtv_lower_ml", "rtv_upper_ml", *_EXTENT),
    *("rule", "samples_before", "samples_after"),
)
SESSIONS = ("pre", "post")
_NUMBER = r"\d+"
_COUNTS_UP = re.compile(r"\d{1,3}|(19|20)\d{2}(\d{4})?")  # 2, 012, 2024, 20240131; no 31012024
LARGEST_WIDENING_LOG = 100.0  # e to this is more than any volume
Line = tuple[object, ...]
CERTAIN_ONLY = "certain voxels only"


@dataclass(frozen=True)
class ScanPair:
    """The files of one patient before and after surgery."""

    case: str
    before: Path
    after: Path
    truth_before: Path | None = None
    truth_after: Path | None = None


def read_pairs(
    path: Path,
    sessions: tuple[str, str] = SESSIONS,
    truths: Path | None = None,
    named_by: str = "table",
) -> list[ScanPair]:
    """Read the columns case, before, after and, where volumes are known, truth_before and after.

    A folder of ``perturb-mpm cohort`` stands for its subjects of whom both sessions are done: the
    cases sub-NAME_ses-pre and sub-NAME_ses-post, or other sessions by their names. Truths are the
    cohort's own, or CASE.nii.gz in the folder ``truths``. ``named_by`` is the argument that names
    the path, for errors.
    """
    if path.is_dir():
        return _pairs_done(path, sessions, truths, named_by)
    known = ("truth_before", "truth_after")
    required = ("case", "before", "after")
    pairs = []
    for row in read_table(Source(named_by, path), required, known, unique="case"):
        before, after = row.path("before"), row.path("after")
        both = tuple(row.path(name) for name in known)
        if before is None or after is None or (both[0] is None) != (both[1] is None):
            raise row.error("must name both truths or none")
        pairs.append(ScanPair(row.fields["case"], before, after, *both))
    return pairs


def _pairs_done(
    folder: Path, sessions: tuple[str, str], truths: Path | None, named_by: str
) -> list[ScanPair]:
    """Return the subjects of a cohort's folder of whom both sessions are done, by name."""
    done = {each.name: each for each in cases_done(folder, truths, named_by)}
    endings = [f"_ses-{name.removeprefix('ses-')}" for name in sessions]
    subjects = [name.removesuffix(endings[0]) for name in done if name.endswith(endings[0])]
    pairs = []
    for subject in subjects:
        before, after = done[subject + endings[0]], done.get(subject + endings[1])
        if after is None:
            continue
        known = None not in (before.truth, after.truth)
        both = (before.truth, after.truth) if known else (None, None)
        pairs.append(ScanPair(subject, folder / before.name, folder / after.name, *both))
    if not pairs:
        raise InputError(
            f"`{named_by}` must have both cases NAME{endings[0]} and NAME{endings[1]} of a "
            f"subject, got {len(done)} cases in {folder} without such a pair; name the `sessions`"
        )
    return pairs


def read_pair(folder: Path, subject: str, sessions: Sequence[str] | None = None) -> ScanPair:
    """Return two sessions of one subject of a cohort's folder, the earlier first.

    By default these are the two that are done, where their names say which is the earlier.
    """
    start = f"sub-{subject.removeprefix('sub-')}_ses-"
    names = [each.name for each in cases_done(folder)]
    known = [name.removeprefix(start) for name in names if name.startswith(start)]
    asked = [each.removeprefix("ses-") for each in sessions or known]
    if sessions is None and len(asked) == 2:
        asked = _order_sessions(asked)
    if len(asked) != 2 or any(each not in known for each in asked):
        raise InputError(
            f"`sessions` must be two of subject {subject} in {folder}, whose done ones are "
            f"{', '.join(known) or 'none'}, got {', '.join(sessions or ()) or 'none'}"
        )
    return ScanPair(f"sub-{subject}", *(folder / f"{start}{each}" for each in asked))


def _order_sessions(names: Sequence[str]) -> list[str]:
    """Return two sessions, the earlier first; refuse names that do not say which that is."""
    numbers = {name: re.findall(_NUMBER, name) for name in names}
    alike = len({re.sub(_NUMBER, "#", name) for name in names}) == 1
    if alike and all(_COUNTS_UP.fullmatch(each) for found in numbers.values() for each in found):
        return sorted(names, key=lambda name: [int(each) for each in numbers[name]])
    before, after = ([n for n in names if n.lower().startswith(each)] for each in SESSIONS)
    if len(before) == len(after) == 1:
        return before + after
    raise InputError(
        f"`sessions` must be given, the earlier first, where their names do not say it, got "
        f"{' and '.join(names)}"
    )


def check_biomarkers_folder(folder: Path) -> None:
    """Refuse a folder that contains a run, or files of the names to be written that are others'."""
    refuse_others(
        folder,
        {
            "biomarkers.csv": lambda path: first_row(path) == COLUMNS,
            "biomarkers.json": lambda path: _are_biomarkers(read_json(path)),
            "calibration.json": lambda path: bool(read_calibration(path)),
        },
    )


def write_biomarkers(
    folder: Path,
    found: Mapping[str, Biomarkers],
    calibration: ResectionCalibration | None = None,
    learnt: ResectionCalibration | None = None,
    *,
    certain_only: bool = False,
) -> list[Path]:
    """Write biomarkers.csv and biomarkers.json, and calibration.json where one was learnt.

    ``calibration`` is one that was learnt before, and allows probabilities of classes. The folder
    must be there, and pass ``check_biomarkers_folder``.
    """
    check_biomarkers_folder(folder)
    files = [folder / "biomarkers.csv", folder / "biomarkers.json"]
    lines = biomarker_lines(found, calibration, certain_only=certain_only)
    with write_set():
        write_table(files[0], COLUMNS, lines)
        write_json(files[1], biomarkers_as_json(found, calibration))
        if learnt is not None:
            files.append(folder / "calibration.json")
            write_json(files[2], asdict(learnt))
    return files


def biomarker_lines(
    found: Mapping[str, Biomarkers],
    calibration: ResectionCalibration | None,
    *,
    certain_only: bool = False,
) -> list[Line]:
    """Return the rows of all patients."""
    return [
        line
        for case, each in found.items()
        for line in biomarker_rows(case, each, calibration, certain_only=certain_only)
    ]


def biomarkers_as_json(
    found: Mapping[str, Biomarkers], calibration: ResectionCalibration | None
) -> dict[str, dict[str, object]]:
    """Return biomarkers as JSON holds them: None where a value is not defined."""
    return {case: _one_as_json(each, calibration) for case, each in found.items()}


def _one_as_json(found: Biomarkers, calibration: ResectionCalibration | None) -> dict[str, object]:
    sampled = found.sampled
    result: dict[str, object] = {
        "before_ml": found.before_ml,
        "rtv_ml": found.residual_ml,
        "eor_frac": found.extent,
        "resection_class": found.resection_class,
        "certain_voxels_only": {
            "before_ml": found.certain_before_ml,
            "rtv_ml": found.certain_residual_ml,
            "eor_frac": found.certain_extent,
        },
        "samples": list(found.samples),
        "perturbation": found.perturbation,
        "warnings": list(found.warnings),
    }
    if sampled is None:
        return result
    result["sampled"] = {
        "rtv_median_ml": sampled.residual_ml.median,
        "rtv_interval_ml": [sampled.residual_ml.lower, sampled.residual_ml.upper],
        "eor_median_frac": sampled.extent.median,
        "eor_interval_frac": [sampled.extent.lower, sampled.extent.upper],
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


def _are_biomarkers(content: object) -> bool:
    return isinstance(content, dict) and all(
        isinstance(each, dict) and "rtv_ml" in each for each in content.values()
    )


def biomarker_rows(
    case: str,
    found: Biomarkers,
    calibration: ResectionCalibration | None = None,
    *,
    certain_only: bool = False,
) -> list[Line]:
    """Return the rows of one patient: as segmented, sampled and calibrated.

    With ``certain_only`` there is one of the voxels alone in which all samples agree, the paper's
    correction: it drops what is uncertain, and can only shrink a volume.
    """
    original = {
        "method": "original",
        **dict(zip(_VOLUMES, (found.before_ml, found.residual_ml, found.extent))),
    }
    rows: list[dict[str, object]] = [original]
    samples = dict(zip(("samples_before", "samples_after"), found.samples))
    if certain_only and found.certain_extent is not None:
        left = found.certain_before_ml, found.certain_residual_ml, found.certain_extent
        certain = {"method": CERTAIN_ONLY, "rule": PAPER_RULE, **samples}
        rows.append({**certain, **dict(zip(_VOLUMES, left))})
    if found.sampled is not None:
        residual, extent = found.sampled.residual_ml, found.sampled.extent
        sampled = {
            **samples,
            "before_ml": found.sampled.before_ml.median,
            "rtv_ml": residual.median,
            "rtv_lower_ml": residual.lower,
            "rtv_upper_ml": residual.upper,
        }
        share = dict(zip(_EXTENT, (extent.median, extent.lower, extent.upper)))
        rule = {"method": "samples, median", "rule": found.perturbation}
        rows.append({**sampled, **share, **rule})
        if calibration is not None and calibration.widening is not None:
            ends = calibration.widening.widen([residual.lower], [residual.upper])
            wide = dict(zip(("rtv_lower_ml", "rtv_upper_ml"), (float(end[0]) for end in ends)))
            words = f"conformal, learned on {calibration.cases} cases"
            rows.append({**sampled, **wide, "method": "conformal", "rule": words})
    return [tuple(_plain({"case": case, **row}.get(name)) for name in COLUMNS) for row in rows]


def _plain(value: object) -> object:
    return None if isinstance(value, float) and math.isnan(value) else value


@dataclass(frozen=True)
class ResectionCalibration:
    """How far samples can be believed, measured on cases whose volumes are known."""

    perturbation: str
    law: Mapping[str, Any]
    """What the samples came from, as ``sampling_law`` says: other samples are another matter."""
    classes: Sequence[str]
    noise_floor_ml: float
    cases: int
    residual_coverage: float
    """The share of cases whose true residual volume lies in the 95 % sample interval."""
    residual_crps_ml: float
    class_brier: float
    """Mean over cases of Σ_c (p(c) − [c is true])², 0 … 2."""
    true_class_probability: float
    """The mean probability given to the class that was true."""
    widening_log: float | None
    """What conformal intervals add on the scale log(V + offset); None: too few cases."""
    widening_offset_ml: float
    confidence: float = 0.95

    @property
    def widening(self) -> ConformalWidening | None:
        """The conformal widening, where the cohort was large enough."""
        if self.widening_log is None:
            return None
        return ConformalWidening(
            self.widening_log, self.widening_offset_ml, self.confidence, self.cases
        )

    def require_same_law(
        self,
        case: str,
        found: Biomarkers,
        classes: Sequence[ResectionClass],
        noise_floor_ml: float,
    ) -> None:
        """Refuse a patient whose samples or classes are others than those of the calibration."""
        if found.sampled is not None and any(law != self.law for law in found.laws):
            raise InputError(
                f"`calibration` rests on {self.perturbation}, but {case} was sampled with "
                f"{found.perturbation}"
            )
        names = [each.name for each in classes]
        if names != list(self.classes) or noise_floor_ml != self.noise_floor_ml:
            raise InputError(
                f"`calibration` rests on the classes {', '.join(self.classes)} and a noise floor "
                f"of {self.noise_floor_ml:g} ml, got {', '.join(names)} and {noise_floor_ml:g} ml"
            )


def calibrate(
    found: Mapping[str, Biomarkers],
    truths: Mapping[str, tuple[float, float]],
    classes: Sequence[ResectionClass] = RANO_RESECT,
    noise_floor_ml: float = 0.0,
) -> ResectionCalibration | None:
    """Compare biomarkers with known volumes before and after (mL), in cases that have samples.

    Without such cases there is nothing to learn: None.
    """
    cases = [case for case in truths if found[case].sampled is not None]
    if not cases:
        return None
    known = [found[case] for case in cases]
    sampled = [each.sampled for each in known if each.sampled is not None]
    true_before_ml, true_after_ml = zip(*(truths[case] for case in cases))
    law = known[0].laws[1]
    if any(each != law for one in known for each in one.laws):
        words = dict.fromkeys(str(each.perturbation) for each in known)
        raise InputError(
            "a calibration must rest on scans that are all sampled with one perturbation, "
            f"got {'; '.join(words)}"
        )
    lower = [each.residual_ml.lower for each in sampled]
    upper = [each.residual_ml.upper for each in sampled]
    widening = conformal_widening(lower, upper, true_after_ml)
    true_class = classify(true_before_ml, true_after_ml, classes, noise_floor_ml)
    given = np.array([[each.classes[c.name] for c in classes] for each in sampled])  # (n, C)
    truth = np.eye(len(classes))[true_class]
    return ResectionCalibration(
        perturbation=known[0].perturbation or "none",
        law=law or {},
        classes=[each.name for each in classes],
        noise_floor_ml=noise_floor_ml,
        cases=len(cases),
        residual_coverage=coverage(lower, upper, true_after_ml),
        residual_crps_ml=float(
            np.mean([crps(each.residual_ml.values, y) for each, y in zip(sampled, true_after_ml)])
        ),
        class_brier=float(((given - truth) ** 2).sum(axis=1).mean()),
        true_class_probability=float((given * truth).sum(axis=1).mean()),
        widening_log=widening.amount if math.isfinite(widening.amount) else None,
        widening_offset_ml=widening.offset_ml,
    )


def read_calibration(path: Path) -> ResectionCalibration:
    """Read a calibration that ``write_biomarkers`` wrote."""
    source = Source("calibration", path)
    try:
        content = read_json(path)
        missing = [name for name in _NEEDED if name not in content]
        if missing:
            raise source.error(f"is no calibration of perturb-mpm biomarkers: no {missing[0]}")
        calibration = ResectionCalibration(**content)
        _check_numbers(calibration)
    except InputError:
        raise
    except OSError as error:
        raise source.error(f"cannot be read ({error.strerror})") from error
    except DAMAGE as error:
        words = in_short(error_text(error), 300)
        raise source.error(f"is no calibration of perturb-mpm biomarkers ({words})") from error
    return calibration


_NEEDED = [each.name for each in fields(ResectionCalibration) if each.default is MISSING]


def _check_numbers(calibration: ResectionCalibration) -> None:
    checks.instance(calibration.perturbation, "perturbation", str)
    checks.instance(calibration.law, "law", dict)
    checks.instance(calibration.classes, "classes", list)
    checks.integer(calibration.cases, "cases", minimum=1)
    for name in ("residual_coverage", "class_brier", "true_class_probability", "noise_floor_ml"):
        checks.number(getattr(calibration, name), name, minimum=0)
    checks.number(calibration.widening_offset_ml, "widening_offset_ml", positive=True)
    checks.number(calibration.confidence, "confidence", positive=True, below=1)
    if calibration.widening_log is not None:
        checks.number(calibration.widening_log, "widening_log", below=LARGEST_WIDENING_LOG)
