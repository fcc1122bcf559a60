"""A BIDS App: the subjects of a BIDS dataset in, a derivative dataset out.

OUTPUT_DIR/runs/CASE/     what ``run_case`` writes, a folder a case; runs/cohort/ has their records
OUTPUT_DIR/sub-01/[ses-pre/]anat/   the same files under BIDS names, with their sidecars
OUTPUT_DIR/group.tsv, group.html    of all cases, after the level "group"

A case is a subject's session, or one of its runs where the probabilities are those of runs. Files
under BIDS names are hard links of those in runs/, copies where the file system has no links.
"""

from __future__ import annotations

import math
import os
import re
import secrets
import shutil
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path

from perturb_mpm.cohort.one_case import CaseReading
from perturb_mpm.cohort.records import RECORDS
from perturb_mpm.cohort.results import rank_cases, write_group
from perturb_mpm.cohort.running import (
    CohortPart,
    CohortResult,
    check_names,
    gather_records,
    run_cohort,
)
from perturb_mpm.files import (
    OUR_SEGMENTATION,
    CaseFiles,
    CaseFolders,
    InputError,
    LabelScheme,
    bids_names,
    bids_sidecar_names,
    find_cases,
    write_bids_sidecars,
)
from perturb_mpm.progress import SILENT, StagedProgress
from perturb_mpm.run import OutputError, RunSettings
from perturb_mpm.storage import DAMAGE, error_text, read_json
from perturb_mpm.version import version

RUNS = "runs"
_DESCRIPTION = "dataset_description.json"
_OWN_SPACES = ("orig", "individual", "T1w")  # of the images themselves, not of a template
_BACKGROUND = ("background", "bg")


@dataclass(frozen=True)
class BidsRequest:
    """Which cases of which dataset; labels are without sub- and ses-, none means all."""

    dataset: Path
    output: Path
    participants: tuple[str, ...] = ()
    sessions: tuple[str, ...] = ()
    derivatives: tuple[str, ...] = ()  # names in derivatives/, or folders; several are an ensemble
    reading: CaseReading = CaseReading()  # noqa: RUF009 - frozen
    validate: bool = True

    @property
    def runs(self) -> Path:
        """The folder of the cases' own folders."""
        return self.output / RUNS


def find_bids_cases(request: BidsRequest) -> list[CaseFiles]:
    """Return the chosen cases, sorted by name; a label that no case has is refused."""
    _check_dataset(request)
    cases = list(_find_every_case(request))
    check_names(cases)
    for option, wanted, entity in (
        ("participant_label", request.participants, "sub"),
        ("session_label", request.sessions, "ses"),
    ):
        known = {_entity(each.name, entity) or "" for each in cases}
        missing = [label for label in wanted if label not in known]
        if missing:
            there = " ".join(sorted(known - {""})) or "none"
            raise InputError(
                f"`{option}` must be of images in the dataset, got {' '.join(missing)}; "
                f"it has {there}"
            )
    chosen = [each for each in cases if _is_chosen(each.name, request)]
    if not chosen:
        raise InputError(
            "`participant_label` and `session_label` must choose a session that is there, got "
            f"{' '.join(request.participants)} and {' '.join(request.sessions)}"
        )
    return sorted(chosen, key=lambda each: each.name)


def run_participants(
    request: BidsRequest,
    settings: RunSettings,
    *,
    progress: StagedProgress = SILENT,
) -> CohortResult:
    """Run the chosen cases and give their files BIDS names; other processes may run others."""
    cases = find_bids_cases(request)
    named = replace(request.reading, labels=request.reading.labels or _read_labels(request))
    total = CohortResult(request.runs, len(cases), 0, {}, {})
    for subject, group in groupby(cases, lambda each: each.name.split("_")[0]):
        own = list(group)
        result = run_cohort(
            own,
            settings,
            request.runs,
            reading=named,
            part=CohortPart(1, 1, subject),
            progress=progress,
        )
        total = replace(
            total,
            skipped=total.skipped + result.skipped,
            failed=total.failed | result.failed,
        )
        for name in (each.name for each in own):
            if name in result.failed:
                _withdraw(request, name)  # what is there is of other inputs
            else:
                _publish(request, name)
    return total


def write_group_results(request: BidsRequest, progress: StagedProgress = SILENT) -> CohortResult:
    """Write the tables and the page of what participants have written; run nothing.

    A case of the dataset that was not run counts as failed.
    """
    _check_dataset(request)
    records = request.runs / RECORDS
    known = [path.stem for path in records.glob("sub-*.json")]
    images = CaseFolders(request.dataset, without_probabilities=True)
    sessions = [case.name for case in find_cases(images, "bids")]
    missing = [
        name
        for name in sessions
        if not any(each == name or each.startswith(f"{name}_run-") for each in known)
    ]
    names = sorted(name for name in (*known, *missing) if _is_chosen(name, request))
    progress.stage(f"reading the results of {len(names)} cases")
    result, found = gather_records(names, request.runs)
    progress.stage("writing the table and the page")
    return replace(result, files=write_group(request.output, rank_cases(found), f"{RUNS}/"))


def _is_chosen(name: str, request: BidsRequest) -> bool:
    """Whether a case is of the subjects and sessions that are asked for."""
    return (not request.participants or _entity(name, "sub") in request.participants) and (
        not request.sessions or _entity(name, "ses") in request.sessions
    )


def _check_dataset(request: BidsRequest) -> None:
    """Refuse what is no BIDS dataset, and an output that is not apart from it."""
    dataset, output = request.dataset, request.output
    if not dataset.is_dir():
        raise InputError(f"`bids_dir` must be a folder, got {dataset}")
    here, root = output.resolve(), dataset.resolve()
    inside = here.is_relative_to(root) and here.relative_to(root).parts
    if inside == () or (inside and inside[0].startswith("sub-")):
        raise OutputError(
            f"`output_dir` must not lie among the images, got {output}; "
            f"{dataset / 'derivatives' / 'perturb-mpm'} is usual"
        )
    if not request.validate:
        return
    try:
        description = read_json(dataset / _DESCRIPTION)
        missing = [key for key in ("Name", "BIDSVersion") if key not in description]
        if missing:
            raise ValueError(f"it has no {missing[0]}")
    except (*DAMAGE, FileNotFoundError) as error:
        raise InputError(
            f"`bids_dir` must hold a {_DESCRIPTION} with Name and BIDSVersion, got {dataset}: "
            f"{error_text(error)}; `skip_bids_validation=True` takes the folder as it is"
        ) from error


def _find_every_case(request: BidsRequest) -> Iterator[CaseFiles]:
    """Yield a case a session, or a case a run where its probabilities carry runs."""
    pipelines = () if request.reading.model else _find_pipelines(request)
    for found in find_cases(CaseFolders(request.dataset, without_probabilities=True), "bids"):
        case = replace(found, truth=None)
        if request.reading.model:
            yield case
            continue
        inside = Path(*found.name.split("_"), "anat")
        maps = [path for each in pipelines for path in _find_maps(each / inside, request)]
        for run in dict.fromkeys(_entity(path.name, "run") for path in maps) or (None,):
            own = tuple(path for path in maps if _entity(path.name, "run") == run)
            yield _select_run(case, own, run, pipelines)


def _find_pipelines(request: BidsRequest) -> tuple[Path, ...]:
    """Return the folders of the derivatives to read; without a choice there must be one."""
    here = request.dataset / "derivatives"
    if request.derivatives:
        found = [
            here / name if (here / name).is_dir() else Path(name) for name in request.derivatives
        ]
        for folder in found:
            if not folder.is_dir():
                raise InputError(
                    f"`derivatives` must be a folder in {here} or any other, got {folder.name}; "
                    f"there are {_join_names(_list_folders(here))}"
                )
        return tuple(found)
    output = request.output.resolve()
    able = [
        folder
        for folder in _list_folders(here)
        if folder.resolve() != output
        and any(_find_maps(anat, request) for anat in folder.glob("sub-*/**/anat"))
    ]
    what = _suffix(request)
    if len(able) > 1:
        raise InputError(
            f"`derivatives` must say which of {_join_names(able)} to read, which all have {what}; "
            "several names are an ensemble"
        )
    if not able:
        raise InputError(
            f"`derivatives` must have sub-…/anat/…_{what}.nii.gz, got none in "
            f"{_join_names(_list_folders(here))} of {here}; `model` makes probabilities instead"
        )
    return tuple(able)


def _list_folders(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if path.is_dir()) if folder.is_dir() else []


def _join_names(folders: Sequence[Path]) -> str:
    return ", ".join(folder.name for folder in folders) or "no folder"


def _suffix(request: BidsRequest) -> str:
    return "dseg" if request.reading.kind == "labels" else "probseg"


def _find_maps(folder: Path, request: BidsRequest) -> list[Path]:
    """Return the maps of a session that lie in the space of its images, background first."""
    names = (".nii.gz", ".nii", ".npz")
    every = [
        path
        for path in sorted(folder.glob(f"*_{_suffix(request)}.*"))
        if path.name.endswith(names) and OUR_SEGMENTATION not in path.name
    ]
    spaces = {path: _entity(path.name, "space") for path in every}
    own = [path for path in every if spaces[path] in (None, *_OWN_SPACES)]
    return sorted(own or every, key=_background_first)


def _background_first(path: Path) -> tuple[bool, str]:
    label = _entity(path.name, "label")
    return (label or "").lower() not in _BACKGROUND, path.name


def _select_run(
    case: CaseFiles, maps: tuple[Path, ...], run: str | None, pipelines: Sequence[Path]
) -> CaseFiles:
    """Return the case of one run: its maps, and the images of that run or of none."""
    names = case.image_names or ()
    kept = {
        path: name
        for path, name in zip(case.images, names, strict=True)
        if run is None or _entity(path.name, "run") in (None, run)
    }
    if run is not None:
        kept = {path: re.sub(r"(^|_)run-[^_]+_", r"\1", name) for path, name in kept.items()}
    missing = None if kept else "`bids_dir` must hold an image of the session, got none"
    if len(maps) < len(pipelines) or not maps:
        without = ", ".join(folder.name for folder in pipelines)
        missing = missing or f"`derivatives` must have maps of {case.name}, got none in {without}"
    if len(pipelines) > 1 and any(_entity(path.name, "label") for path in maps):
        missing = "`derivatives` must be one where every label has a file of its own, got several"
    name = case.name if run is None else f"{case.name}_run-{run}"
    return replace(
        case,
        name=name,
        images=tuple(kept),
        image_names=tuple(kept.values()),
        probabilities=maps,
        missing=missing,
    )


def _entity(name: str, entity: str) -> str | None:
    """Return the value of an entity in a BIDS name, None where it has none."""
    found = re.search(rf"(?:^|_){entity}-([0-9a-zA-Z+]+)", name)
    return found[1] if found else None


def _read_labels(request: BidsRequest) -> LabelScheme | None:
    """Return the labels that all maps of the dataset name, None where they do not or differ.

    Maps of one label each carry its name, a 4-D map has a ``LabelMap`` in its sidecar.
    """
    if request.reading.model or request.reading.kind == "labels":
        return None
    found = {names for each in _find_every_case(request) if (names := _label_names(each))}
    if len(found) != 1:
        return None
    (names,) = found
    return LabelScheme(tuple(range(len(names))), names)


def _label_names(case: CaseFiles) -> tuple[str, ...]:
    names = [_entity(path.name, "label") for path in case.probabilities]
    if len(names) > 1 and all(names) and len(set(names)) == len(names):
        return tuple(name for name in names if name)
    for path in case.probabilities[:1]:
        sidecar = path.with_name(path.name.partition(".")[0] + ".json")
        with suppress(*DAMAGE, FileNotFoundError):
            listed = read_json(sidecar)["LabelMap"]
            if isinstance(listed, list) and all(isinstance(name, str) for name in listed):
                return tuple(listed)
    return ()


def _publish(request: BidsRequest, case: str) -> None:
    """Give the files of a finished case BIDS names, and write what describes them."""
    folder, names = request.runs / case, _output_names(case)
    summary = read_json(folder / "summary.json")
    written = {name: path for name, path in names.items() if name in summary["files"]}
    for name, path in names.items():
        if name in written:
            _link(folder / summary["files"][name], request.output / path)
        else:
            (request.output / path).unlink(missing_ok=True)  # of a run before
    labels = summary["labels"]
    scheme = LabelScheme(
        tuple(each["value"] for each in labels), tuple(each["name"] for each in labels)
    )
    write_bids_sidecars(request.output, written, scheme, math.log2(len(labels)), version())


def _withdraw(request: BidsRequest, case: str) -> None:
    """Remove the files of a case under BIDS names; those in runs/ stay."""
    names = _output_names(case)
    for path in (*names.values(), *bids_sidecar_names(names)):
        (request.output / path).unlink(missing_ok=True)


def _output_names(case: str) -> dict[str, str]:
    """Return the path of every output of a case in the derivative dataset, by its plain name."""
    return bids_names(_entity(case, "sub") or "", _entity(case, "ses"), _entity(case, "run"))


def _link(source: Path, target: Path) -> None:
    """Let a file have a second name; copy it where the file system has no links."""
    target.parent.mkdir(parents=True, exist_ok=True)
    if target.exists() and target.samefile(source):
        return
    partial = target.with_name(f".{target.name}.{secrets.token_hex(4)}.part")
    try:
        os.link(source, partial)
    except OSError:
        shutil.copyfile(source, partial)
    partial.replace(target)
