"""``perturb-mpm bids``: a BIDS App, from a dataset to a derivative dataset."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from perturb_mpm.checks import ExpectedError
from perturb_mpm.cli.console import (
    EXIT_SOME_FAILED,
    SHOW,
    Flag,
    Names,
    Show,
    UsageError,
    describe_cohort,
    in_options,
    shown_progress,
)
from perturb_mpm.cli.options import INPUTS, OUTPUT, ReadingOptions, SettingsOptions, cohort_settings
from perturb_mpm.cohort import BidsRequest, run_participants, write_group_results
from perturb_mpm.run import RunSettings


@Parameter(name="*", group=INPUTS)
@dataclass(frozen=True, kw_only=True)
class ParticipantOptions:
    """Which cases are run."""

    participant_label: Annotated[
        Names, Parameter(name=("--participant-label", "--participant_label"))
    ] = ()
    """The subjects, without sub-; else all."""
    session_label: Annotated[Names, Parameter(name=("--session-label", "--session_label"))] = ()
    """The sessions, without ses-; else all."""
    derivatives: Names = ()
    """Which derivative has the probabilities (or, with --kind labels, the label maps): its folder
    in BIDS_DIR/derivatives, or any other folder; several are an ensemble. Needed where several
    derivatives have some."""
    skip_bids_validation: Annotated[
        Flag, Parameter(name=("--skip-bids-validation", "--skip_bids_validation"))
    ] = False
    """Take a folder without a dataset_description.json. The program itself looks at no more: the
    BIDS validator does."""


@Parameter(name="*", group=OUTPUT)
@dataclass(frozen=True, kw_only=True)
class MachineOptions:
    """How much of the machine is used, and what is shown."""

    n_cpus: Annotated[int | None, Parameter(name=("--n-cpus", "--n_cpus"))] = None
    """How many cores to use; else all that this process may use. The same as --threads."""
    show: Show = SHOW


def bids(
    bids_dir: Annotated[Path, Parameter(group=INPUTS)],
    output_dir: Annotated[Path, Parameter(group=OUTPUT)],
    analysis_level: Annotated[Literal["participant", "group"], Parameter(group=INPUTS)],
    /,
    *,
    who: ParticipantOptions | None = None,
    read: ReadingOptions | None = None,
    machine: MachineOptions | None = None,
    options: SettingsOptions | None = None,
) -> None:
    """Run the subjects of a BIDS dataset; write a derivative dataset.

    Parameters
    ----------
    bids_dir
        The dataset; it is only read.
    output_dir
        The derivative dataset to write, as in BIDS_DIR/derivatives/perturb-mpm. The same command
        again goes on where it stopped.
    analysis_level
        participant runs subjects, which several processes may do at once; group makes the table and
        the page of what they wrote.
    """
    who, machine = who or ParticipantOptions(), machine or MachineOptions()
    show = machine.show
    try:
        settings = _read_settings(options or SettingsOptions(), machine.n_cpus)
        request = _make_request(bids_dir, output_dir, who, read or ReadingOptions())
        with shown_progress(quiet=show.quiet or show.json) as progress:
            if analysis_level == "group":
                result = write_group_results(request, progress)
            else:
                result = run_participants(request, settings, progress=progress)
    except ExpectedError as error:
        raise UsageError(_name_options(str(error))) from error
    except KeyboardInterrupt:
        raise KeyboardInterrupt("interrupted: the same command goes on where it stopped") from None
    next_step = "of all subjects: the same command with group instead of participant"
    show.result(vars(result), *describe_cohort(result, next_step))
    if result.failed:
        raise SystemExit(EXIT_SOME_FAILED)


def _read_settings(options: SettingsOptions, n_cpus: int | None) -> RunSettings:
    settings = cohort_settings(options)
    if n_cpus is None:
        return settings
    if settings.compute.threads is not None:
        raise UsageError("--n-cpus and --threads must not be given together: they are the same")
    try:
        return settings.changed(threads=n_cpus)
    except (TypeError, ValueError) as error:
        raise UsageError(f"--n-cpus must be a number of cores from 1 on, got {n_cpus}") from error


def _make_request(
    bids_dir: Path, output_dir: Path, who: ParticipantOptions, read: ReadingOptions
) -> BidsRequest:
    read.check_model(tuple(map(Path, who.derivatives)))
    return BidsRequest(
        bids_dir,
        output_dir,
        tuple(label.removeprefix("sub-") for label in who.participant_label),
        tuple(label.removeprefix("ses-") for label in who.session_label),
        who.derivatives,
        read.to_reading(),
        validate=not who.skip_bids_validation,
    )


def _name_options(message: str) -> str:
    """Return a message in the words of this command, whose first two arguments are no options."""
    for name, argument in (
        *(("bids_dir", "BIDS_DIR"), ("images", "BIDS_DIR")),
        *(("output_dir", "OUTPUT_DIR"), ("output", "OUTPUT_DIR")),
    ):
        message = message.replace(f"`{name}`", argument)
    return in_options(message, {"probabilities": "derivatives"}).replace(
        "--probabilities or --model", "--derivatives or --model"
    )
