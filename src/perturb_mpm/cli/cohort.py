"""``perturb-mpm cohort``: every case of a folder or table, here or on workers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Group, Parameter

from perturb_mpm.checks import ExpectedError
from perturb_mpm.cli.console import (
    MOST_WORKERS,
    Files,
    Flag,
    UsageError,
    in_options,
    print_plain,
    shown_progress,
    whole_number,
    write_json_text,
)
from perturb_mpm.cli.options import (
    INPUTS,
    OUTPUT,
    ReadingOptions,
    SettingsOptions,
    says_samples,
    settings_from_options,
)

if TYPE_CHECKING:
    from distributed import Client

    from perturb_mpm.cohort import CaseCheck, CaseReading, CaseRecord, CohortPart, CohortResult
    from perturb_mpm.files import CaseFiles, CaseFolders
    from perturb_mpm.progress import StagedProgress
    from perturb_mpm.run import RunSettings

EXIT_SOME_FAILED = 3
_MOST_NAMED = 20
_OPTIONS = {"images": "images"}


@Parameter(name="*", group=INPUTS)
@dataclass(frozen=True, kw_only=True)
class CohortOptions:
    """Which cases are run.

    Parameters
    ----------
    images
        A folder with CASE_0000.nii.gz … (nnU-Net), CASE/CASE_t1.nii.gz … (BraTS), sub-01/anat
        (BIDS) or CASE.nii.gz, CASE.png (flat: one image a case), or a CSV or TSV table with a row
        a case: case, images, probabilities, mask, truth. Not needed where nnU-Net's own note in
        --probabilities says where its images are.
    probabilities
        The folder with CASE.npz or CASE.nii.gz of every case; several folders, or fold_0, fold_1 …
        in one, are an ensemble.
    mask
        A folder with CASE.nii.gz that is not 0 where voxels count.
    truth
        A folder with the true label map CASE.nii.gz of cases that have one.
    layout
        How the files are laid out; recognised if omitted.
    match
        Which cases: names, or patterns such as BraTS2021_00*.
    ratings
        Ratings that readers downloaded from reports (JSON or TSV): a column of the table and the
        page. With --gather, only these are added and nothing is run.
    """

    images: Annotated[Path | None, Parameter(name=("--images", "--image"))] = None
    probabilities: Annotated[Files, Parameter(show_default=False)] = ()
    mask: Path | None = None
    truth: Path | None = None
    layout: Literal["nnunet", "brats", "bids", "flat", "table"] | None = None
    match: Annotated[tuple[str, ...], Parameter(consume_multiple=True, negative="")] = ()
    ratings: Annotated[Files, Parameter(show_default=False)] = ()


WORKERS = Group("Workers", sort_key=5)


@Parameter(name="*", group=OUTPUT)
@dataclass(frozen=True, kw_only=True)
class WorkOptions:
    """Where cases are run, and what is shown.

    Parameters
    ----------
    output
        The folder to write to: a folder a case in it, cohort.csv, cohort.json and cohort.html. The
        same command again goes on where it stopped.
    workers
        How many cases are run at once on this machine; cores and memory are split among them.
        More than 1 needs the extra cluster.
    scheduler
        The address of a running Dask scheduler whose workers take the cases, as in
        tcp://10.0.0.1:8786.
    cluster
        A TOML or YAML file with a cluster to start: a class of Dask or dask-jobqueue, its
        arguments, and how many workers.
    split
        Over how many workers the samples of one case are spread, for cases so large that one
        worker takes too long; the result is the same.
    part
        Which part of the cases to run, as in 3/40, for an array of jobs that all write to one
        folder; run --gather when they have ended.
    gather
        Write the tables and the page of cases that were run in parts; run none.
    dry_run
        Read every case, and say what would be run, what it takes and what cannot be read; run
        nothing.
    quiet
        Print nothing, and show no progress.
    json
        Print a JSON object in one line for every case that ends, and one for the cohort.
    """

    output: Path
    workers: Annotated[int, Parameter(group=WORKERS)] = 1
    scheduler: Annotated[str | None, Parameter(group=WORKERS)] = None
    cluster: Annotated[Path | None, Parameter(group=WORKERS)] = None
    split: Annotated[int, Parameter(group=WORKERS)] = 1
    part: Annotated[str | None, Parameter(group=WORKERS)] = None
    gather: Annotated[Flag, Parameter(group=WORKERS)] = False
    dry_run: Flag = False
    quiet: Flag = False
    json: Flag = False


def cohort(
    *,
    cases: CohortOptions | None = None,
    read: ReadingOptions | None = None,
    work: WorkOptions,
    options: SettingsOptions | None = None,
) -> None:
    """Run every case of a folder or table; write maps for each, one table and one page."""
    with _name_images():
        _run_cohort(cases or CohortOptions(), read or ReadingOptions(), work, options or SettingsOptions())


@contextmanager
def _name_images() -> Iterator[None]:
    """Let errors name the option ``--images`` of this command, where ``run`` has ``--image``."""
    try:
        yield
    except ExpectedError as error:
        raise UsageError(in_options(str(error), _OPTIONS)) from error


def _run_cohort(
    cases: CohortOptions, read: ReadingOptions, work: WorkOptions, options: SettingsOptions
) -> None:
    from perturb_mpm.cohort import MOST_PARTS, CohortPart, add_ratings, find_cohort

    whole_number(work.workers, "--workers", 1, MOST_WORKERS)
    whole_number(work.split, "--split", 1, MOST_PARTS)
    _check_workers(work)
    part = None if work.part is None else CohortPart.from_text(work.part)
    settings = settings_from_options(options)
    if settings.sampling.until is not None and not says_samples(options):
        raise UsageError("--until must come with --samples, the most that a case may take")
    reading = make_reading(read)
    read.check_model(cases.probabilities)
    found = find_cohort(_make_folders(cases, read), cases.layout, cases.match)
    if work.dry_run:
        chosen = found if part is None else part.choose(found)
        _dry_run(chosen, settings, reading, work)
        return
    if cases.ratings:
        add_ratings(work.output, cases.ratings)
    try:
        result = _run_or_gather(found, settings, reading, work, part)
    except KeyboardInterrupt:
        raise KeyboardInterrupt("interrupted: the same command goes on where it stopped") from None
    if work.json:
        _print_result_line(result)
    elif not work.quiet:
        print_result(result)
    if result.failed:
        raise SystemExit(EXIT_SOME_FAILED)


def make_reading(read: ReadingOptions) -> CaseReading:
    """Return how the options say that the files of every case are read."""
    from perturb_mpm.cohort import CaseReading

    return CaseReading(
        read.kind,
        read.confidence,
        read.read_labels(),
        read.background,
        read.dataset_json,
        read.npz_axes,
        read.image_names,
        read.model,
    )


def _make_folders(cases: CohortOptions, read: ReadingOptions) -> CaseFolders:
    from perturb_mpm.files import CaseFolders, find_predicted_images

    return CaseFolders(
        cases.images or find_predicted_images(cases.probabilities),
        cases.probabilities,
        cases.mask,
        cases.truth,
        without_probabilities=read.model is not None,
    )


def _run_or_gather(
    cases: list[CaseFiles],
    settings: RunSettings,
    reading: CaseReading,
    work: WorkOptions,
    part: CohortPart | None,
) -> CohortResult:
    """Run the cases, or a part of them, or write the tables of parts that were run."""
    from perturb_mpm.cohort import gather_cohort, run_cohort

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
                finished=_print_line if work.json else None,
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
    from perturb_mpm import cohort as on

    if work.scheduler is not None:
        progress.stage(f"connecting to {work.scheduler}")
        with on.connect_scheduler(work.scheduler) as client:
            _name_dashboard(client, progress)
            yield client, settings
    elif work.cluster is not None:
        file = on.read_cluster_file(work.cluster)
        progress.stage(f"starting {file.class_name}")
        with on.start_cluster(file) as client:
            _name_dashboard(client, progress)
            yield client, settings
    elif work.workers > 1:
        progress.stage(f"starting {work.workers} workers")
        with on.local_workers(work.workers, settings.compute.engine) as client:
            yield client, on.share_machine(settings, work.workers)
    else:
        yield None, settings


def _name_dashboard(client: Client, progress: StagedProgress) -> None:
    if client.dashboard_link:
        progress.stage(f"Dask's dashboard: {client.dashboard_link}")


def _dry_run(
    cases: list[CaseFiles], settings: RunSettings, reading: CaseReading, work: WorkOptions
) -> None:
    """Print what would be run; exit with 3 where a case cannot be read."""
    from perturb_mpm.cohort import check_cohort

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
    from rich.table import Table

    table = Table()
    for heading in ("case", "voxels in\nthe mask", "labels", "memory\nGB", ""):
        table.add_column(heading, justify="right" if heading not in ("case", "") else "left")
    for each in checks:
        words = in_options(each.error, _OPTIONS) if each.error else "done" if each.finished else ""
        memory = "" if each.memory_bytes is None else f"{each.memory_bytes / 1e9:.1f}"
        table.add_row(each.case, _text(each.voxels), _text(each.labels), memory, words)
    readable = [each for each in checks if not each.error]
    left = [each for each in readable if not each.finished]
    lines = [f"{len(left)} to run, {len(readable) - len(left)} done, {_unreadable(checks)}"]
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


def _unreadable(checks: list[CaseCheck]) -> str:
    count = sum(each.error is not None for each in checks)
    return f"{count} cannot be read" if count else "all can be read"


def print_result(
    result: CohortResult,
    next_step: str = "when all parts have ended: the same command with --gather instead of --part",
) -> None:
    """Print how many cases are done, which failed, and where the table and the page are."""
    done = result.cases - len(result.failed)
    before = f", {result.skipped} of them before" if result.skipped else ""
    print_plain(f"{done} of {result.cases} cases are done{before}")
    for count, (name, error) in enumerate(result.failed.items()):
        if count == _MOST_NAMED:
            print_plain(f"  and {len(result.failed) - count} more")
            break
        print_plain(f"  failed: {name}: {in_options(error, _OPTIONS)}")
    if result.files:
        print_plain(f"table: {result.files['csv']}", f"page: {result.files['html']}")
    else:
        print_plain(next_step)


def _print_line(record: CaseRecord) -> None:
    _print_one_line(record.to_short_json())


def _print_result_line(result: CohortResult) -> None:
    _print_one_line(
        {
            "output": str(result.folder),
            "cases": result.cases,
            "skipped": result.skipped,
            "failed": result.failed,
            "files": {name: str(path) for name, path in result.files.items()},
        }
    )


def _print_one_line(content: object) -> None:
    import json

    from perturb_mpm.storage import json_ready

    write_json_text(json.dumps(json_ready(content), ensure_ascii=False) + "\n")


def _text(value: object) -> str:
    return "" if value is None else str(value)
