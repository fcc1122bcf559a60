"""One case from its arrays to every output file; cut short, it goes on where it stopped."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, get_args

from perturb_mpm.engines import Engine, load_ahead
from perturb_mpm.files import DIAMETERS, Case, Program
from perturb_mpm.progress import Silent, StageClock, StagedProgress
from perturb_mpm.run.coupling import Pilot, check_coupling
from perturb_mpm.run.drawing import SHOWN_AFTER, begin_samples, draw_range, draw_samples
from perturb_mpm.run.evidence import decide_settings, describe_unfamiliar, find_evidence
from perturb_mpm.run.findings import (
    FoundSamples,
    check_findings,
    find_in_samples,
    finding_names,
    findings_as_json,
    main_structure,
    write_findings,
)
from perturb_mpm.run.folder import (
    BidsNames,
    Layout,
    check_content,
    check_folder,
    clear,
    explain_full_disk,
    lock_folder,
    plan_files,
    plan_layout,
)
from perturb_mpm.run.manifest import register_files, remove_partial
from perturb_mpm.run.model import (
    build_crf,
    build_sampler,
    member_energies,
    overconfidence,
    with_regions,
)
from perturb_mpm.run.outputs import (
    summarize_run,
    write_also,
    write_dicom_files,
    write_maps,
    write_page,
    write_sampled_volumes,
    write_sidecars,
    write_structured_report,
)
from perturb_mpm.run.settings import OutputError, RunSettings, SettingsError, UnusableRunError
from perturb_mpm.run.state import (
    MOST_SAMPLE_MAPS,
    Run,
    StateError,
    describe_difference,
    read_coupling,
    read_evidence,
    read_run_json,
)
from perturb_mpm.run.volumes import measure_agreement
from perturb_mpm.sampling import Sampler
from perturb_mpm.storage import DAMAGE, error_text, write_json

_PAGE_BYTES = 100 * 10**6  # room for the report, whatever its volumes shrink to


def run_case(
    case: Case,
    settings: RunSettings,
    output: str | Path,
    *,
    title: str,
    resume: bool = False,
    overwrite: bool = False,
    bids: BidsNames | None = None,
    dicom_series: Path | None = None,
    also: Sequence[Program] = (),
    reading: Mapping[str, object] | None = None,
    progress: StagedProgress | None = None,
) -> Run:
    """Sample a case and write all its files to a folder; return the finished run.

    Settings that do not fit the case are a ``SettingsError``, a folder that cannot be used is an
    ``OutputError``; both leave no file behind.

    Parameters
    ----------
    case
        Images, probabilities and mask; the report shows the truth where the case has one.
    settings
        All parameters.
    output
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
    also
        Programs to write the labels for, with names and colours: ``slicer``, ``itksnap``; also
        ``sr``, volumes and diameters as a DICOM structured report, where there is a
        ``dicom_series``; ``extremes``, samples of small, middle and large volume.
    reading
        How the files were read, as values that JSON can hold: a part of what makes the run.
    progress
        Shows how far the run is.

    Examples
    --------
    >>> case = pm.read_case("t1c.nii.gz", "case.npz")
    >>> settings = pm.RunSettings().changed(samples=4, seed=7)
    >>> run = pm.run_case(case, settings, "out", title="Patient 1")
    >>> sorted(run.files)
    ['entropy', 'labels', 'marginals', 'report', 'summary', 'uncertainty', 'volumes']
    """
    if resume and overwrite:
        raise OutputError(
            "`resume=True` and `overwrite=True` must not be given together: choose one"
        )
    show = StageClock(progress or Silent())
    if "sr" in also:
        names = (*settings.findings.measure, *DIAMETERS)
        settings = settings.changed(measure=tuple(dict.fromkeys(names)))
    wanted = _Wanted(
        case, settings, Path(output), title, bids, reading or {}, dicom_series, tuple(also)
    )
    with (
        _begin(wanted, show, resume=resume, overwrite=overwrite) as begun,
        ThreadPoolExecutor(1) as writer,  # the disk need not wait for what is computed
    ):
        show.stage("sampling")
        run, kept = draw_samples(begun.run, begun.sampler, show, begun.pilot, writer)
        show.stage("comparing the label map with samples")
        run = run.annotated(agreement=measure_agreement(run, begun.sampler))
        show.stage("measuring samples")
        extremes = main_structure(run) if "extremes" in wanted.also else None
        found = find_in_samples(run, begun.sampler, extremes=extremes, progress=show)
        begun.forget_engine()

        run, summary = _write_outputs(run, begun, wanted, show, found, writer)
        kept.result()
        write_json(run.files["summary"], {**summary, "timings_s": show.stop()})
    return run


def _write_outputs(
    run: Run,
    begun: _BegunRun,
    wanted: _Wanted,
    show: StagedProgress,
    found: FoundSamples,
    writer: Executor,
) -> tuple[Run, dict[str, Any]]:
    """Write all files but the summary; return the run with these, and what the summary says."""
    show.stage("writing the maps")
    run.compute_maps()
    maps = writer.submit(write_maps, run)
    write_sampled_volumes(run)
    write_sidecars(run, begun.layout)
    if wanted.dicom_series is not None:
        show.stage("writing the DICOM files")
        run = run.annotated(files={**run.files, **write_dicom_files(run, wanted.dicom_series)})
    write_also(run, wanted.also)
    if "sr" in wanted.also and wanted.dicom_series is not None:
        write_structured_report(run, wanted.dicom_series, found.findings.measures)
    run = run.annotated(files={**run.files, **write_findings(run.folder, run, found)})
    show.stage("writing the report")
    answer = write_page(run, begun.warnings, found.findings)
    maps.result()
    root = begun.layout.root
    return run, {
        "answer": answer,
        **summarize_run(run),
        **findings_as_json(run, found),
        "warnings": begun.warnings,
        "files": {name: str(file.relative_to(root)) for name, file in run.files.items()},
    }


def begin_case(
    case: Case,
    settings: RunSettings,
    output: str | Path,
    *,
    title: str,
    overwrite: bool = False,
    reading: Mapping[str, object] | None = None,
) -> int:
    """Begin a run, or go on with it, without drawing more; return how many samples it holds.

    ``draw_part`` may then draw ranges of the others, wherever the folder can be seen, and
    ``run_case`` with ``resume=True`` ends the run.
    """
    wanted = _Wanted(case, settings, Path(output), title, None, reading or {})
    with _begin(wanted, Silent(), resume=not overwrite, overwrite=overwrite) as begun:
        return begin_samples(begun.run, begun.sampler.problem, begun.pilot)


def draw_part(
    case: Case,
    settings: RunSettings,
    output: str | Path,
    part: range,
    *,
    title: str,
    reading: Mapping[str, object] | None = None,
) -> None:
    """Draw a range of the samples of a run that is begun, and leave them in its folder.

    Any number of processes may do so at the same time. What is there already is not drawn again.
    """
    if settings.sampling.until is not None:
        raise SettingsError("`until` must not be given where samples are drawn in ranges")
    wanted = _Wanted(case, settings, Path(output), title, None, reading or {})
    before = _read_begun_run(wanted.layout)
    if before is None:
        raise OutputError(f"`output` must hold a run that is begun, got {output}")
    run = _restore_decisions(wanted.run(), before)
    sampler = _build_sampler(run)
    _check_same(run, before, sampler.problem)
    _prepare(sampler)
    with explain_full_disk():
        draw_range(run, sampler, part)


@dataclass(frozen=True)
class _Wanted:
    """What a run is asked for."""

    case: Case
    settings: RunSettings
    output: Path
    title: str
    bids: BidsNames | None
    reading: Mapping[str, object]
    dicom_series: Path | None = None
    also: tuple[Program, ...] = ()

    @cached_property
    def layout(self) -> Layout:
        return plan_layout(self.output, self.bids, self.case.geometry.ending)

    def run(self) -> Run:
        """Return the run as it is asked for, with nothing drawn."""
        settings = with_regions(self.settings, self.case)
        files = {n: file for n, file in self.layout.files.items() if n not in self._left_out}
        return Run(self.layout.folder, self.title, files, self.case, settings, self.reading)

    @property
    def file_names(self) -> list[str]:
        """The path in the run's folder of every file that is going to be written."""
        dicom = self.dicom_series is not None
        planned = plan_files(self.layout, left_out=self._left_out, dicom=dicom, also=self.also)
        return [*planned, *finding_names(self.settings.findings)]

    @property
    def _left_out(self) -> tuple[str, ...]:
        return () if self.case.ensemble else ("mutual_information",)


@dataclass
class _BegunRun:
    """A run whose folder is locked and says what it is."""

    layout: Layout
    run: Run
    sampler: Sampler
    pilot: Pilot | None
    warnings: list[str]

    def forget_engine(self) -> None:
        """Let go of its memory."""
        del self.sampler


@contextmanager
def _begin(
    wanted: _Wanted,
    show: StagedProgress,
    *,
    resume: bool,
    overwrite: bool = False,
) -> Iterator[_BegunRun]:
    """Check everything, lock the folder and write what the run is."""
    layout, case = wanted.layout, wanted.case
    run = wanted.run()
    show.stage("building the model")
    check_findings(case, run.settings, run.regions)
    if "extremes" in wanted.also and run.settings.intervals == "none":
        raise SettingsError('`also="extremes"` needs correlated noise, got `noise_length` 0')
    check_folder(layout, planned_bytes(case, run.settings))
    if wanted.dicom_series is not None:
        _check_dicom(wanted.dicom_series, case)
    elif "sr" in wanted.also:
        raise SettingsError('`also="sr"` needs `dicom_series`, the series that it is about')

    # From here on the folder is nobody else's: what is found in it stays true.
    with explain_full_disk(), lock_folder(layout):
        check_content(layout, resume=resume, overwrite=overwrite)
        load_ahead(run.settings.compute, int(case.mask.sum()))
        before = _read_begun_run(layout) if resume else None
        if before is None:
            show.stage("asking image and grid about the probabilities")
            run = _decide(run)
        else:
            run = _restore_decisions(run, before)
        sampler = _build_sampler(run)
        if before is not None:
            _check_same(run, before, sampler.problem)
        if before is None or not layout.files["summary"].exists():
            show.stage("preparing the engine")
            run = _with_engine(run, _prepare(sampler))
        pilot = None
        if before is None:
            show.stage("checking what the kernels do to volumes")
            run, sampler, pilot = check_coupling(run, sampler, _build_sampler)
            sampler.forget_whole()  # a third of the memory of a brain
        warnings = _collect_warnings(run, wanted.settings, show)
        if overwrite:
            clear(layout)
        names = wanted.file_names
        register_files(layout.folder, names)
        remove_partial(layout.folder, names)
        run.write_start(sampler.problem)
        begun = _BegunRun(layout, run, sampler, pilot, warnings)
        del sampler
        yield begun


def planned_bytes(case: Case, settings: RunSettings) -> int:
    """Return about how much room a run takes on disk; compressed, it is usually less."""
    voxels, n_labels = int(case.mask.sum()), len(case.labels)
    images = len(case.images) * voxels * 4
    shown = sum(samples <= settings.sampling.samples for samples in SHOWN_AFTER) + 1
    # Of each label: probabilities, marginals, twice votes and mean field, the old and the new.
    labels = n_labels * voxels * (4 + 4 + 2 * (2 + 4))
    maps = voxels * (2 + 4 + 1 + 2 * MOST_SAMPLE_MAPS + 2 * 4 * shown)
    return images + labels + maps + _PAGE_BYTES


def _with_engine(run: Run, engine: Engine) -> Run:
    """Return the run with an engine by its name, where "auto" was asked for."""
    return replace(run, settings=run.settings.changed(engine=engine))


def _decide(run: Run) -> Run:
    """Return the run with what image and grid say, and what that decides."""
    evidence = find_evidence(run.case)
    settings = decide_settings(run.settings, run.case, evidence)
    return replace(run, settings=settings, evidence=evidence)


def _restore_decisions(run: Run, before: Mapping[str, Any]) -> Run:
    """Return the run with all that was decided when it began: another machine may round apart."""
    evidence = read_evidence(before) or find_evidence(run.case)
    settings = decide_settings(run.settings, run.case, evidence)
    run = replace(run, settings=settings, evidence=evidence)
    if run.settings.compute.engine == "auto":
        run = _with_engine(run, before["parameters"]["engine"])
    coupling = read_coupling(before)
    if coupling is None or coupling.asked_strength != run.settings.coupling.strength:
        return run
    settings = run.settings.changed(strength=coupling.used_strength)
    return replace(run, settings=settings, coupling=coupling)


def _build_sampler(run: Run) -> Sampler:
    try:
        members = member_energies(run.case, run.settings)
        return build_sampler(build_crf(run.case, run.settings), run.settings, members)
    except (TypeError, ValueError) as error:
        raise SettingsError(str(error)) from error


def _check_dicom(series: Path, case: Case) -> None:
    """Refuse a series that DICOM files could not be written for, while nothing is done yet."""
    from perturb_mpm.files import check_dicom_series

    try:
        check_dicom_series(series, case.geometry)
    except ImportError as error:
        raise SettingsError(str(error)) from error


def _prepare(sampler: Sampler) -> Engine:
    """Prepare the engine before anything is written: it may not be there, or not fit."""
    try:
        return sampler.prepare()
    except (ImportError, RuntimeError, ValueError) as error:
        raise SettingsError(str(error)) from error


def _collect_warnings(run: Run, asked: RunSettings, show: StagedProgress) -> list[str]:
    hint = overconfidence(run.case, asked)
    moved = run.coupling.warning() if run.coupling else None
    warnings = [*run.case.warnings, *(words for words in (hint, moved) if words)]
    unfamiliar = describe_unfamiliar(run.case, run.settings, run.evidence) if run.evidence else ()
    if unfamiliar:
        warnings.append(
            "this case lies outside of what was learned, so that intervals may not hold: "
            + ", ".join(unfamiliar)
        )
    for warning in warnings:
        show.warn(warning)
    return warnings


def _read_begun_run(layout: Layout) -> dict[str, Any] | None:
    """Return what the run in the folder is, None where there is none."""
    try:
        before = read_run_json(layout.state)
        if before is not None and before["parameters"]["engine"] not in get_args(Engine):
            raise StateError(f"{layout.state / 'run.json'} names no engine")
        read_coupling(before or {})
        read_evidence(before or {})
    except DAMAGE as error:
        raise UnusableRunError(
            "`output` holds a damaged state, begin anew with `overwrite=True`: "
            f"{error_text(error)}",
            f"its state is damaged: {error_text(error)}",
        ) from error
    return before


def _check_same(run: Run, before: Mapping[str, Any], problem: str) -> None:
    """Refuse to go on with a run of other inputs or parameters."""
    found = describe_difference(before, run.identity(problem))
    if found:
        raise UnusableRunError(
            f"`resume=True` must have the inputs and parameters of the run in {run.folder}, got "
            f"others: {found}; name another `output` or begin anew with `overwrite=True`",
            f"it has other inputs or parameters: {found}",
        )
