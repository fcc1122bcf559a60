"""What is asked of a run's samples beyond volumes: measures, lesions, extremes, priority.

All of it is found in one pass over the samples, which are drawn once more, bit for bit the run's.
"""

from __future__ import annotations

import csv
import gzip
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perturb_mpm.files import Case, save_like, write_table
from perturb_mpm.measures import (
    LEAST_SHARE,
    Extremes,
    LesionFinder,
    Lesions,
    MeasuredPatient,
    Measurements,
    Measurer,
    Priority,
    PriorityFinder,
    Rule,
    SampledLesion,
    find_measures,
)
from perturb_mpm.model import Grid
from perturb_mpm.posterior import decide_labels
from perturb_mpm.progress import Progress
from perturb_mpm.report import Findings, radiological_planes, to_mm
from perturb_mpm.run.drawing import redraw_samples
from perturb_mpm.run.measuring import (
    MEASURES_FORMAT,
    Surroundings,
    measure_rows,
    measured_patient,
    measurements_as_json,
    write_measurements,
)
from perturb_mpm.run.settings import FindingSettings, RunSettings, SettingsError
from perturb_mpm.run.state import Run
from perturb_mpm.run.volumes import volume_sets
from perturb_mpm.sampling import Sampler
from perturb_mpm.storage import read_json, write_json

FINDING_FILES: dict[str, tuple[str, ...]] = {
    "measure": ("measures.csv", "measures.json"),
    "lesions": ("lesions.csv", "lesions.nii.gz", "lesion_probability.nii.gz"),
    "priority": ("priority.nii.gz", "priority.json"),
    "extremes": ("extremes.nii.gz",),
}
"""The files of each kind."""
_MAP_WORDS = {  # how the descriptions in their headers begin
    "lesions.nii.gz": "numbers of lesions in lesions.csv",
    "lesion_probability.nii.gz": "probability that a lesion exists",
    "priority.nii.gz": "share of the variance of",
    "extremes.nii.gz": "samples of small, middle and large volume",
}
_PRIORITY_FORMAT = "perturb-mpm priority"
LESION_COLUMNS = (
    *("structure", "lesion", "probability", "probability_lower", "probability_upper"),
    *("label_map_ml", "median_ml", "interval_lower_ml", "interval_upper_ml"),
    *("voxel_x", "voxel_y", "voxel_z", "x_mm", "y_mm", "z_mm"),
    *("largest_share", "joined_with", "joined_probability"),
)
EXTREME_LEVELS = (0.025, 0.5, 0.975)
_SHOWN_LEVELS = (0.025, 0.1, 0.25, 0.5, 0.75, 0.9, 0.975)


@dataclass(frozen=True)
class FoundSamples:
    """What was found, and the measures of every sample."""

    findings: Findings
    measurements: Measurements | None = None
    rules: tuple[Rule, ...] = ()


def finding_names(asked: FindingSettings) -> list[str]:
    """Return the names of the files that a run writes of its findings."""
    kinds = {
        "measure": bool(asked.measure or asked.rule),
        "lesions": asked.lesions is not None,
        "priority": asked.priority is not None,
    }
    return [name for kind, wanted in kinds.items() if wanted for name in FINDING_FILES[kind]]


def check_findings(case: Case, settings: RunSettings, regions: Mapping[str, Any]) -> None:
    """Refuse questions that this case cannot answer, before it is sampled."""
    names = finding_names(settings.findings)
    if not names:
        return
    structures = _structures(case, regions)
    patient = MeasuredPatient(
        Grid(case.mask.shape, case.geometry.spacing),
        structures,
        decide_labels(case.probabilities),
        images=case.images,
    )
    check_questions(patient, settings)
    Measurer(patient, find_measures(settings.findings.measure or ["volume"], patient))


def check_questions(patient: MeasuredPatient, settings: RunSettings) -> None:
    """Refuse structures, measures and rules that are not there."""
    asked, known = settings.findings, patient.structures
    try:
        measures = find_measures(asked.measure, patient) if asked.measure else ()
        keys = [f"{name}.{each.name}" for name in known for each in measures]
        for rule in map(Rule.from_text, asked.rule):
            missing = [key for key in rule.keys if key not in keys]
            if missing:
                raise ValueError(
                    f"`rule` must speak of what `measure` names, {', '.join(keys) or 'nothing'}, "
                    f"got {missing[0]}"
                )
        if asked.priority is not None:
            _split_key(asked.priority, patient)
    except ValueError as error:
        raise SettingsError(str(error)) from error
    if asked.lesions is not None and asked.lesions not in known:
        raise SettingsError(f"`lesions` must be one of {', '.join(known)}, got {asked.lesions}")
    if (asked.lesions or asked.priority) and settings.intervals == "none":
        name = "lesions" if asked.lesions else "priority"
        raise SettingsError(
            f"`{name}` needs noise that is correlated, got `noise_length` 0: noise that is "
            "independent at every voxel says nothing about a structure"
        )


def find_in_samples(
    run: Run,
    sampler: Sampler,
    *,
    extremes: str | None = None,
    beside: Surroundings | None = None,
    progress: Progress | None = None,
) -> FoundSamples:
    """Return what the run's settings ask for, and the samples from small to large of a structure.

    ``sampler`` is the one that drew the run's samples.
    """
    asked, posterior = run.settings.findings, run.posterior
    patient = measured_patient(run, beside).with_votes(posterior.voxel_counts)
    adders: list[Callable[[range, NDArray[np.uint8]], None]] = []
    measurer = lesions = priority = None
    if asked.measure:
        measurer = Measurer(patient, find_measures(asked.measure, patient))
        adders.append(measurer.add)
    if asked.lesions is not None:
        share = sampled_share(run, patient.structures[asked.lesions])
        lesions = LesionFinder(patient, asked.lesions, share, asked.least_lesion)
        adders.append(lesions.add)
    if asked.priority is not None:
        name, measure = _split_key(asked.priority, patient)
        priority = PriorityFinder(patient, name, find_measures([measure], patient)[0])
        adders.append(priority.add)

    def add(part: range, labels: NDArray[np.uint8]) -> None:
        for each in adders:
            each(part, labels)

    if adders:
        redraw_samples(run, sampler, range(posterior.samples), add, progress)
    rules = tuple(map(Rule.from_text, asked.rule))
    found = None if measurer is None else measurer.measurements
    summary = {} if found is None else measurements_as_json(run, found, rules)
    return FoundSamples(
        Findings(
            measures=() if found is None else tuple(measure_rows(run, found)),
            rules=tuple(summary.get("rules", ())),
            lesions=None if lesions is None else lesions.lesions,
            priority=None if priority is None else priority.priority,
            extremes=None if extremes is None else draw_extremes(run, sampler, extremes),
        ),
        found,
        rules,
    )


def sampled_share(run: Run, members: Sequence[int]) -> NDArray[np.float64]:
    """Return the share of samples that have a structure at each voxel, (X, Y, Z)."""
    posterior = run.posterior
    votes = posterior.voxel_counts[list(members)].sum(axis=0, dtype=np.float64)
    return posterior.grid.scatter(votes / posterior.samples, 0)


def main_structure(run: Run) -> str:
    """Return the structure that a run is mostly about: its first region, else all foreground."""
    sets = [(name, kind) for name, kind, _ in volume_sets(run.case.labels, run.regions)]
    together = [name for name, kind in sets if kind == "together"]
    if run.regions or not together:
        return next(name for name, kind in sets if kind != "background")
    return together[0]


def draw_extremes(run: Run, sampler: Sampler, structure: str) -> Extremes:
    """Draw the samples between the smallest and the largest volume of a structure again."""
    members = list(_structures(run.case, run.regions)[structure])
    volumes = run.posterior.volumes[:, members].sum(axis=1) / 1000  # (S,) ml
    numbers = Extremes.choose(volumes, _SHOWN_LEVELS)
    kept: dict[int, NDArray[np.uint8]] = {}

    def keep(part: range, labels: NDArray[np.uint8]) -> None:
        kept[part.start] = labels[0].copy()

    for number in dict.fromkeys(numbers):
        redraw_samples(run, sampler, range(number, number + 1), keep)
    return Extremes(
        structure,
        _SHOWN_LEVELS,
        tuple(numbers),
        tuple(float(volumes[number]) for number in numbers),
        np.stack([run.posterior.grid.scatter(kept[number], 0) for number in numbers]),
    )


def _structures(case: Case, regions: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    return {
        name: tuple(members)
        for name, kind, members in reversed(list(volume_sets(case.labels, regions)))
        if kind != "background"
    }


def _split_key(key: str, patient: MeasuredPatient) -> tuple[str, str]:
    """Return structure and measure of core.volume; a structure alone means its volume."""
    name, dot, measure = key.rpartition(".")
    if key in patient.structures or not dot:
        name, measure = key, "volume"
    if name not in patient.structures:
        raise ValueError(
            f"`priority` must be STRUCTURE.MEASURE with one of {', '.join(patient.structures)}, "
            f"got {key}"
        )
    find_measures([measure], patient)
    return name, measure


def write_findings(folder: Path, run: Run, found: FoundSamples) -> dict[str, Path]:
    """Write the files of what was found; return them by name."""
    findings, files = found.findings, []
    if found.measurements is not None:
        files += write_measurements(folder, run, found.measurements, found.rules)
    if findings.lesions is not None:
        files += _write_lesions(folder, run, findings.lesions)
    if findings.priority is not None:
        files += _write_priority(folder, run, findings.priority)
    if findings.extremes is not None:
        path = folder / FINDING_FILES["extremes"][0]
        chosen = [findings.extremes.levels.index(level) for level in EXTREME_LEVELS]
        scheme, mask = run.case.labels, run.case.mask
        maps = [scheme.to_values(findings.extremes.labels[each], mask) for each in chosen]
        save_like(path, np.stack(maps, axis=-1), run.case.geometry, _MAP_WORDS[path.name])
        files.append(path)
    return {file.name.partition(".")[0] + _kind(file): file for file in files}


def is_finding(file: Path) -> bool:
    """Whether a file of such a name was written here, and not by somebody else.

    May raise any ``DAMAGE``.
    """
    match file.suffix:
        case ".csv":
            with file.open(encoding="utf-8", newline="") as lines:
                row = next(csv.reader(lines), [""])
            return row[0] == "sample" or tuple(row) == LESION_COLUMNS
        case ".json":
            return read_json(file)["format"] in (MEASURES_FORMAT, _PRIORITY_FORMAT)
        case _:
            with gzip.open(file) as stream:
                description = stream.read(228)[148:]  # of a NIfTI header
            return description.startswith(_MAP_WORDS[file.name].encode())


def _kind(file: Path) -> str:
    """Return what tells a table or summary from the map of the same name."""
    return {".csv": "_table", ".json": "_summary"}.get(file.suffix, "")


def _write_lesions(folder: Path, run: Run, lesions: Lesions) -> list[Path]:
    table, numbers, probability = (folder / name for name in FINDING_FILES["lesions"])
    geometry, candidates = run.case.geometry, lesions.candidates
    rows = [_lesion_cells(run, lesions.structure, lesion) for lesion in lesions]
    write_table(table, LESION_COLUMNS, rows)
    painted = candidates.paint(np.arange(1, len(candidates) + 1, dtype=np.uint16), LEAST_SHARE)
    save_like(numbers, painted, geometry, _MAP_WORDS[numbers.name])
    shares = candidates.paint(lesions.probability.astype(np.float32), LEAST_SHARE)
    save_like(probability, shares, geometry, _MAP_WORDS[probability.name])
    return [table, numbers, probability]


def _lesion_cells(run: Run, structure: str, lesion: SampledLesion) -> list[object]:
    other, shared = lesion.joined[0] if lesion.joined else (None, 0.0)
    x, y, z = lesion.centre_voxel
    return [
        *(structure, lesion.number, lesion.probability, *lesion.probability_interval),
        *(lesion.label_map_ml, lesion.median_ml, *lesion.interval_ml),
        *(round(each, 2) for each in (x, y, z)),
        *(round(each, 2) for each in _lesion_mm(run, lesion)),
        *(lesion.peak, other, shared),
    ]


def _lesion_mm(run: Run, lesion: SampledLesion) -> tuple[float, float, float]:
    x, y, z = run.case.geometry.affine @ [*lesion.centre_voxel, 1.0] @ np.eye(4, 3)
    return float(x), float(y), float(z)


def _write_priority(folder: Path, run: Run, priority: Priority) -> list[Path]:
    image, listed = (folder / name for name in FINDING_FILES["priority"])
    words = f"{_MAP_WORDS[image.name]} {priority.structure}.{priority.measure} explained"
    save_like(image, priority.image(), run.case.geometry, words[:79])
    write_json(listed, {"format": _PRIORITY_FORMAT, **_priority_as_json(run, priority)})
    return [image, listed]


def _priority_as_json(run: Run, priority: Priority) -> dict[str, Any]:
    affine = run.case.geometry.affine
    plane = radiological_planes(affine)[0]
    return {
        "structure": priority.structure,
        "measure": priority.measure,
        "samples": len(priority.values),
        "patches": [
            {
                "rank": rank,
                "voxel": patch.centre_voxel,
                "mm": to_mm(affine, patch.centre_voxel),
                "size_voxels": patch.size_voxels,
                "explained_frac": patch.explained,
                "explained_so_far_frac": patch.explained_so_far,
            }
            for rank, patch in enumerate(priority.patch_list(), start=1)
        ],
        "slice_axis": plane.across,
        "slices": [
            {"index": index, "explained_frac": share} for index, share in priority.slice_list()
        ],
    }


def findings_as_json(run: Run, found: FoundSamples) -> dict[str, Any]:
    """Return what a summary says of the findings; nothing of what was not asked for."""
    findings = found.findings
    content: dict[str, Any] = {}
    if found.measurements is not None:
        measured = measurements_as_json(run, found.measurements, found.rules)
        content |= {"measures": measured["measures"], "rules": measured["rules"]}
    if findings.lesions is not None:
        content["lesions"] = lesions_as_json(run, findings.lesions)
    if findings.priority is not None:
        content["priority"] = _priority_as_json(run, findings.priority)
    if findings.extremes is not None:
        extremes = findings.extremes
        content["extremes"] = [
            {"structure": extremes.structure, "level": level, "sample": number, "volume_ml": ml}
            for level, number, ml in zip(extremes.levels, extremes.numbers, extremes.volumes_ml)
        ]
    return content


def lesions_as_json(run: Run, lesions: Lesions) -> dict[str, Any]:
    """Return the number of lesions as a distribution, and every lesion."""
    numbers = lesions.number_distribution
    return {
        "structure": lesions.structure,
        "least_ml": lesions.candidates.least_ml,
        "samples": lesions.samples,
        "number_label_map": lesions.label_map.pieces,
        "number_probability": {str(number): share for number, share in numbers.items()},
        "number_mean": float(lesions.counts.mean()),
        "lesions": [
            {
                "lesion": lesion.number,
                "probability": lesion.probability,
                "probability_lower": lesion.probability_interval[0],
                "probability_upper": lesion.probability_interval[1],
                "label_map_ml": lesion.label_map_ml,
                "median_ml": lesion.median_ml,
                "interval_lower_ml": lesion.interval_ml[0],
                "interval_upper_ml": lesion.interval_ml[1],
                "voxel": lesion.centre_voxel,
                "mm": _lesion_mm(run, lesion),
                "joined": [
                    {"lesion": other, "probability": share} for other, share in lesion.joined
                ],
            }
            for lesion in lesions
        ],
    }
