"""``perturb-mpm cohort``: every case of a folder or table, here or on workers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Group, Parameter

from perturb_mpm import cohort as on
from perturb_mpm.checks import ExpectedError
from perturb_mpm.cli.console import (
    COHORT_OPTIONS,
    EXIT_SOME_FAILED,
    MOST_WORKERS,
    Files,
    Flag,
    Names,
    UsageError,
    describe_cohort,
    in_options,
    print_plain,
    shown_progress,
    text_table,
    whole_number,
    write_json_text,
)
from perturb_mpm.cli.options import INPUTS, OUTPUT, ReadingOptions, SettingsOptions, cohort_settings
from perturb_mpm.cohort import (
    MOST_PARTS,
    CaseCheck,
    CaseReading,
    CaseRecord,
    CohortPart,
    CohortResult,
    add_ratings,
    check_cohort,
    find_cohort,
    gather_cohort,
    run_cohort,
)
from perturb_mpm.engines import compile_ahead
from perturb_mpm.files import CaseFiles, CaseFolders, find_predicted_images
from perturb_mpm.progress import StagedProgress
from perturb_mpm.run import RunSettings
from perturb_mpm.storage import json_ready

if TYPE_CHECKING:
    from distributed import Client


@Parameter(name="*", group=INPUTS)
@dataclass(frozen=True, kw_only=True)
class CohortOptions:
    """Which cases are run."""

    images: Annotated[Path | None, Parameter(name=("--images", "--image"))] = None
    """A folder with CASE_0000.nii.gz … (nnU-Net), CASE/CASE_t1.nii.gz … (BraTS), sub-01/anat (BIDS)
    or CASE.nii.gz, CASE.png (flat: one image a case), or a CSV or TSV table with a row a case:
    case, images, probabilities, mask, truth. Not needed where nnU-Net's own note in --probabilities
    says where its images are."""
    probabilities: Annotated[Files, Parameter(show_default=False)] = ()
    """The folder with CASE.npz or CASE.nii.gz of every case; several folders, or fold_0, fold_1 …
    in one, are an ensemble."""
    mask: Path | None = None
    """A folder with CASE.nii.gz that is not 0 where voxels count."""
    truth: Path | None = None
    """A folder with the true label map CASE.nii.gz of cases that have one."""
    layout: Literal["nnunet", "brats", "bids", "flat", "table"] | None = None
    """How the files are laid out; recognised if omitted."""
    match: Names = ()
    """Which cases: names, or patterns such as BraTS2021_00*."""
    ratings: Annotated[Files, Parameter(show_default=False)] = ()
    """Ratings that readers downloaded from reports (JSON or TSV): a column of the table and the
    page. With --gather, only these are added and nothing is run."""


WORKERS = Group("Workers", sort_key=5)


@Parameter(name="*", group=OUTPUT)
@dataclass(frozen=True, kw_only=True)
class WorkOptions:
    """Where cases are run, and what is shown."""

    output: Path
    """The folder to write to: a folder a case in it, cohort.csv, cohort.json and cohort.html. The
    same command again goes on where it stopped."""
    workers: Annotated[int, Parameter(group=WORKERS)] = 1
    """How many cases are run at once on this machine; cores and memory are split among them. More
    than 1 needs the extra cluster."""
    scheduler: Annotated[str | None, Parameter(group=WORKERS)] = None
    """The address of a running Dask scheduler whose workers take the cases, as in
    tcp://10.0.0.1:8786."""
    cluster: Annotated[Path | None, Parameter(group=WORKERS)] = None
    """A TOML or YAML file with a cluster to start: a class of Dask or dask-jobqueue, its arguments,
    and how many workers."""
    split: Annotated[int, Parameter(group=WORKERS)] = 1
    """Over how many workers the samples of one case are spread, for cases so large that one worker
    takes too long; the result is the same."""
    part: Annotated[str | None, Parameter(group=WORKERS)] = None
    """Which part of the cases to run, as in 3/40, for an array of jobs that all write to one
    folder; run --gather when they have ended."""
    gather: Annotated[Flag, Parameter(group=WORKERS)] = False
    """Write the tables and the page of cases that were run in parts; run none."""
    dry_run: Flag = False
    """Read every case, and say what would be run, what it takes and what cannot be read; run
    nothing."""
    quiet: Flag = False
    """Print nothing, and show no progress."""
    json: Flag = False
    """Print a JSON object in one line for every case that ends, and one for the cohort."""


def cohort(
    *,
    cases: CohortOptions | None = None,
    read: ReadingOptions | None = None,
    work: WorkOptions,
    options: SettingsOptions | None = None,
) -> None:
    """Run every case of a folder or table; write maps for each, one table and one page."""
    try:
        _run_cohort(
            cases or CohortOptions(), read or ReadingOptions(), work, options or SettingsOptions()
        )
    except ExpectedError as error:  # of ``--images`` here, where ``run`` has ``--image``
        raise UsageError(in_options(str(error), COHORT_OPTIONS)) from error


def _run_cohort(
    cases: CohortOptions, read: ReadingOptions, work: WorkOptions, options: SettingsOptions
) -> None:
    whole_number(work.workers, "--workers", 1, MOST_WORKERS)
    whole_number(work.split, "--split", 1, MOST_PARTS)
    _check_workers(work)
    part = None if work.part is None else CohortPart.from_text(work.part)
    settings = cohort_settings(options)
    reading = read.to_reading()
    read.check_model(cases.probabilities)
    folders = CaseFolders(
        cases.images or find_predicted_images(cases.probabilities),
        cases.probabilities,
        cases.mask,
        cases.truth,
        without_probabilities=read.model is not None,
    )
    found = find_cohort(folders, cases.layout, cases.match)
    if work.dry_run:
        chosen = found if part is None else part.choose(found)
        _dry_run(chosen, settings, reading, work)
        return
    if cases.ratings:
        add_ratings(work.output, cases.ratings)
    if not work.gather:
        compile_ahead(settings.compute, white=settings.sampling.noise_length == 0)
    try:
        result = _run_or_gather(found, settings, reading, work, part)
    except KeyboardInterrupt:
        raise KeyboardInterrupt("interrupted: the same command goes on where it stopped") from None
    if work.json:
        facts = dict(vars(result))
        _print_one_line({"output": facts.pop("folder"), **facts})
    elif not work.quiet:
        print_plain(*describe_cohort(result))
    if result.failed:
        raise SystemExit(EXIT_SOME_FAILED)


def _run_or_gather(
    cases: list[CaseFiles],
    settings: RunSettings,
    reading: CaseReading,
    work: WorkOptions,
    part: CohortPart | None,
) -> CohortResult:
    """Run the cases, or a part of them, or write the tables of parts that were run."""
    with shown_progress(quiet=work.quiet or work.json) as progress:
        if work.gather:
            return gather_cohort(cases, settings, work.output, reading=reading, progress=progress)
        with _workers(work, settings, progress) as (client, shared):
            return run_cohort(
                cases,
                shared,
                work.output,
                client,
                reading=reading,
                split=work.split,
                part=part,
                progress=progress,
                finished=_print_one_line if work.json else None,
            )


def _check_workers(work: WorkOptions) -> None:
    """Refuse kinds of workers that exclude each other."""
    kinds = {
        "--workers": work.workers != 1,
        "--scheduler": work.scheduler is not None,
        "--cluster": work.cluster is not None,
    }
    chosen = [name for name, is_given in kinds.items() if is_given]
    if len(chosen) > 1:
        raise UsageError(f"{' and '.join(chosen)} must not be given together: choose one")
    if work.gather and (chosen or work.part is not None or work.dry_run):
        others = [*chosen, *(["--part"] if work.part else []), *(["--dry-run"] * work.dry_run)]
        raise UsageError(f"--gather must not be given with {others[0]}: it runs nothing")
    if work.split > 1 and not chosen:
        raise UsageError("--split must come with --workers, --scheduler or --cluster")


@contextmanager
def _workers(
    work: WorkOptions, settings: RunSettings, progress: StagedProgress
) -> Iterator[tuple[Client | None, RunSettings]]:
    """Give workers to run on, and the settings with which they share this machine."""
    if work.scheduler is not None:
        progress.stage(f"connecting to {work.scheduler}")
        opened = on.connect_scheduler(work.scheduler)
    elif work.cluster is not None:
        file = on.read_cluster_file(work.cluster)
        progress.stage(f"starting {file.class_name}")
        opened = on.start_cluster(file)
    elif work.workers > 1:
        progress.stage(f"starting {work.workers} workers")
        with on.local_workers(work.workers, settings.compute.engine) as client:
            yield client, on.share_machine(settings, work.workers)
        return
    else:
        yield None, settings
        return
    with opened as client:
        if client.dashboard_link:
            progress.stage(f"Dask's dashboard: {client.dashboard_link}")
        yield client, settings


def _dry_run(
    cases: list[CaseFiles], settings: RunSettings, reading: CaseReading, work: WorkOptions
) -> None:
    """Print what would be run; exit with 3 where a case cannot be read."""
    checks: list[CaseCheck] = []
    with shown_progress(quiet=work.quiet or work.json) as progress:
        progress.stage(f"reading {len(cases)} cases")
        for check in check_cohort(cases, settings, work.output, reading):
            checks.append(check)
            if work.json:
                _print_one_line(vars(check))
            progress(len(checks), len(cases))
    if not work.quiet and not work.json:
        _print_checks(checks, work)
    if any(each.error for each in checks):
        raise SystemExit(EXIT_SOME_FAILED)


def _print_checks(checks: list[CaseCheck], work: WorkOptions) -> None:
    rows = [
        (
            each.case,
            _text(each.voxels),
            _text(each.labels),
            "" if each.memory_bytes is None else f"{each.memory_bytes / 1e9:.1f}",
            in_options(each.error or "done" * each.finished, COHORT_OPTIONS),
        )
        for each in checks
    ]
    table = text_table(("case", "voxels in\nthe mask", "labels", "memory\nGB", ""), rows)
    readable = [each for each in checks if not each.error]
    left = [each for each in readable if not each.finished]
    bad = len(checks) - len(readable)
    words = f"{bad} cannot be read" if bad else "all can be read"
    lines = [f"{len(left)} to run, {len(readable) - len(left)} done, {words}"]
    if left:
        most = max(each.memory_bytes or 0 for each in left) / 1e9
        lines.append(
            f"memory: about {most:.1f} GB for the largest case, "
            f"{most * work.workers:.1f} GB with {work.workers} at once"
        )
        known = [each.seconds for each in left if each.seconds is not None]
        lines.append(
            f"time: about {sum(known) / work.workers / 60:.0f} min, by the cases that are done"
            if len(known) == len(left)
            else "time: not known before a case is done"
        )
    print_plain(table, *lines)


def _print_one_line(content: object) -> None:
    import json

    if isinstance(content, CaseRecord):
        content = content.to_short_json()
    write_json_text(json.dumps(json_ready(content), ensure_ascii=False) + "\n")


def _text(value: object) -> str:
    return "" if value is None else str(value)
