"""One case from its arrays to every output file; cut short, it goes on where it stopped."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import numpy as np
from numpy.typing import NDArray

from perturb_mpm.engines import Engine, give_back
from perturb_mpm.files import Case
from perturb_mpm.progress import Silent, StagedProgress
from perturb_mpm.run import folder as output
from perturb_mpm.run.drawing import SHOWN_AFTER, Drawn, draw
from perturb_mpm.run.folder import BidsNames, Layout, layout_of
from perturb_mpm.run.model import build_crf, build_sampler, overconfidence
from perturb_mpm.run.outputs import (
    write_dicom_series,
    write_maps,
    write_page,
    write_sidecars,
    write_tables,
)
from perturb_mpm.run.settings import (
    OutputError,
    RunSettings,
    SettingsError,
    settings_text,
)
from perturb_mpm.run.state import (
    KEPT_SAMPLES,
    StateError,
    difference,
    identity_of,
    read_run,
    write_case,
)
from perturb_mpm.run.summary import maps_of, summary_of
from perturb_mpm.sampling import Sampler
from perturb_mpm.storage import write_json

_PAGE_BYTES = 100 * 10**6  # room for the report, whatever its volumes shrink to


@dataclass(frozen=True)
class RunResult:
    """What a run wrote."""

    folder: Path
    files: Mapping[str, Path]  # plain name -> file
    summary: Mapping[str, Any]  # the content of summary.json
    warnings: tuple[str, ...]


def run_case(
    case: Case,
    settings: RunSettings,
    folder: Path,
    *,
    title: str,
    resume: bool = False,
    overwrite: bool = False,
    bids: BidsNames | None = None,
    dicom_series: Path | None = None,
    truth: NDArray[np.uint8] | None = None,
    reading: Mapping[str, object] | None = None,
    progress: StagedProgress | None = None,
) -> RunResult:
    """Sample a case and write all its files to ``folder``.

    Settings that do not fit the case are a ``SettingsError``, a folder that cannot be used is an
    ``OutputError``; both come before anything is written.

    Parameters
    ----------
    case
        Images, probabilities and mask.
    settings
        All parameters.
    folder
        Where to write: a new or empty folder, unless ``resume`` or ``overwrite`` say otherwise.
    title
        The heading of the report.
    resume
        Go on with the run in the folder, which must be of the same case and settings, or begin.
    overwrite
        Remove the outputs of an earlier run first.
    bids
        Give the files BIDS names, in the subject's folder.
    dicom_series
        A folder with the DICOM series of the image: adds DICOM files.
    truth
        The true label indices (X, Y, Z), where they are known: shown in the report.
    reading
        How the files were read, as values that JSON can hold: a part of what makes the run.
    progress
        Is told how far the run is.
    """
    started = time.monotonic()
    if resume and overwrite:
        raise OutputError("--resume and --overwrite must not be given together: choose one")
    show = progress or Silent()
    show.stage("building the model")
    layout = layout_of(Path(folder), bids)
    needed = planned_bytes(case, settings)
    output.check_usable(layout, needed, resume=resume, overwrite=overwrite)
    if dicom_series is not None:
        _check_dicom(dicom_series, case)
    before = _begun(layout) if resume else None
    if before is not None and settings.compute.engine == "auto":
        settings = settings.changed(engine=before["parameters"]["engine"])
    sampler = _sampler(case, settings)
    if before is not None:
        identity = identity_of(case, settings, reading or {}, sampler.problem)
        _check_same(layout, before, identity)
    warnings = _warnings(case, settings, show)
    if before is None or not layout.files["summary"].exists():
        show.stage("preparing the engine")
        settings = settings.changed(engine=_prepare(sampler))
    identity = identity_of(case, settings, reading or {}, sampler.problem)

    with output.room_expected(), output.held(layout):
        if overwrite:
            output.clear(layout)
        _begin(layout, case, settings, identity, title)
        drawn, seconds = _drawn(sampler, settings, layout, show)
        del sampler
        give_back()
        show.stage("writing the maps")
        maps = maps_of(drawn)
        write_maps(layout, case, maps)
        write_tables(layout, case, maps)
        write_sidecars(layout, case)
        files = dict(layout.files)
        if dicom_series is not None:
            show.stage("writing the DICOM files")
            files |= write_dicom_series(layout, case, maps, dicom_series)
        show.stage("writing the report")
        write_page(layout, case, settings, maps, title=title, truth=truth, warnings=warnings)
        summary = {
            "title": title,
            **summary_of(case, settings, maps, identity),
            "warnings": warnings,
            "files": {name: str(file.relative_to(layout.root)) for name, file in files.items()},
            "timings_s": {**seconds, "total": round(time.monotonic() - started, 3)},
        }
        write_json(layout.files["summary"], summary)
    return RunResult(layout.run, files, summary, tuple(warnings))


def planned_bytes(case: Case, settings: RunSettings) -> int:
    """Return about how much room a run takes on disk; compressed, it is usually less."""
    voxels, n_labels = int(case.mask.sum()), len(case.labels)
    images = len(case.images) * voxels * 4
    shown = sum(samples <= settings.sampling.samples for samples in SHOWN_AFTER) + 1
    # Of each label: probabilities, marginals, twice votes and mean field, the old and the new.
    labels = n_labels * voxels * (4 + 4 + 2 * (2 + 4))
    maps = voxels * (2 + 4 + 1 + 2 * KEPT_SAMPLES + 2 * 4 * shown)
    return images + labels + maps + _PAGE_BYTES


def _sampler(case: Case, settings: RunSettings) -> Sampler:
    try:
        return build_sampler(build_crf(case, settings), settings)
    except (TypeError, ValueError) as error:
        raise SettingsError(str(error)) from error


def _check_dicom(series: Path, case: Case) -> None:
    """Refuse a series that DICOM files could not be written for, while nothing is done yet."""
    from perturb_mpm.files import check_series

    try:
        check_series(series, case.geometry)
    except ImportError as error:
        raise SettingsError(str(error)) from error


def _prepare(sampler: Sampler) -> Engine:
    """Prepare the engine before anything is written: it may not be there, or not fit."""
    try:
        return sampler.prepare()
    except (ImportError, RuntimeError, ValueError) as error:
        raise SettingsError(str(error)) from error


def _warnings(case: Case, settings: RunSettings, show: StagedProgress) -> list[str]:
    hint = overconfidence(case, settings)
    warnings = [*case.warnings, *([hint] if hint else [])]
    for warning in warnings:
        show.warn(warning)
    return warnings


def _begun(layout: Layout) -> dict[str, Any] | None:
    """Return what the run in the folder is, None where there is none."""
    try:
        before = read_run(layout.state)
        if before is not None and before["parameters"]["engine"] not in get_args(Engine):
            raise StateError(f"{layout.state / 'run.json'} names no engine")
    except (KeyError, TypeError, StateError) as error:
        raise OutputError(
            f"--output holds a damaged state, begin anew with --overwrite: {error}"
        ) from error
    return before


def _check_same(layout: Layout, before: dict[str, Any], identity: dict[str, Any]) -> None:
    """Refuse to go on with a run of other inputs or parameters."""
    found = difference(before, identity)
    if found:
        raise OutputError(
            f"--resume must have the inputs and parameters of the run in {layout.run}, got others: "
            f"{found}; name another --output or begin anew with --overwrite"
        )


def _begin(
    layout: Layout, case: Case, settings: RunSettings, identity: dict[str, Any], title: str
) -> None:
    """Write what the run is, and the case that it is about."""
    output.remove_partial(layout)
    names = {n: file.relative_to(layout.run).as_posix() for n, file in layout.files.items()}
    about = {"title": title, "files": names, "settings": settings_text(settings)}
    write_json(layout.state / "run.json", {**identity, "about": about})
    if not (layout.state / "case.npz").exists():
        write_case(layout.state / "case.npz", case)


def _drawn(
    sampler: Sampler, settings: RunSettings, layout: Layout, show: StagedProgress
) -> tuple[Drawn, dict[str, float]]:
    """Draw the samples; return them and how long it took, in seconds."""
    begun = time.monotonic()
    show.stage("sampling")
    drawn = draw(sampler, settings.sampling.samples, layout.state, show)
    return drawn, {"sampling": round(time.monotonic() - begun, 3)}
