"""``perturb-mpm run``: from one patient's files to maps, tables and a report."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter

from perturb_mpm.cli.console import (
    Files,
    Flag,
    UsageError,
    duration_in_words,
    print_json,
    print_plain,
    shown_progress,
)
from perturb_mpm.cli.options import (
    INPUTS,
    OUTPUT,
    ReadingOptions,
    SettingsOptions,
    says_samples,
    settings_from_options,
)
from perturb_mpm.sampling import MOST_SAMPLES

if TYPE_CHECKING:
    from perturb_mpm.files import Case
    from perturb_mpm.progress import StagedProgress
    from perturb_mpm.run import BidsNames, Run, RunSettings


@Parameter(name="*", group=INPUTS)
@dataclass(frozen=True, kw_only=True)
class InputOptions:
    """What is read.

    Parameters
    ----------
    image
        The sequences, one file or more, NIfTI or another format such as NRRD or DICOM; what is
        written lies on the grid of the first.
    probabilities
        One 4-D volume with the labels last, one 3-D volume a label, or nnU-Net's .npz; background
        first. Several 4-D volumes or .npz are the members of an ensemble: folds, dropout samples.
    mask
        A volume that is not 0 where voxels count; else where any image is not 0.
    reference
        A volume that says where the voxels of an .npz are; else the one beside it does.
    """

    image: Files
    probabilities: Annotated[Files, Parameter(show_default=False)] = ()
    mask: Path | None = None
    reference: Path | None = None


@Parameter(name="*", group=OUTPUT)
@dataclass(frozen=True, kw_only=True)
class OutputOptions:
    """What is written.

    Parameters
    ----------
    output
        The folder to write to; made where it is missing, and refused where it is not empty.
    resume
        Go on with the interrupted run in the folder, or begin where there is none.
    overwrite
        Replace the outputs of an earlier run in the folder.
    bids
        Give BIDS names: SUBJECT or SUBJECT/SESSION, as in 01/pre; the folder is the dataset.
    dicom
        A folder with the DICOM series of the images: adds a DICOM SEG of the labels and a
        parametric map of the entropy.
    also
        Programs to write the labels for, with names and colours: slicer (labels.seg.nrrd), itksnap
        (labels-itksnap.txt). Also extremes (extremes.nii.gz): the samples at 2.5, 50 and 97.5 % of
        the volume, which the report shows from small to large. With --dicom also sr
        (measurements.sr.dcm): a DICOM structured report (TID 1500) of volumes, diameters and
        their intervals.
    title
        The heading of the report; the name of the folder where it is not given.
    quiet
        Print nothing, and show no progress.
    json
        Print the summary as one JSON object instead of a table.
    """

    output: Path
    resume: Flag = False
    overwrite: Flag = False
    bids: str | None = None
    dicom: Path | None = None
    also: Annotated[
        tuple[Literal["slicer", "itksnap", "sr", "extremes"], ...],
        Parameter(consume_multiple=True, negative=""),
    ] = ()
    title: str | None = None
    quiet: Flag = False
    json: Flag = False


def run(
    *,
    inputs: InputOptions,
    reading: ReadingOptions | None = None,
    out: OutputOptions,
    options: SettingsOptions | None = None,
) -> None:
    """Sample segmentations of one patient; write labels, uncertainty, volumes and a report."""
    from perturb_mpm.files import output_ending
    from perturb_mpm.run import check_inputs, check_output, plan_layout, run_case

    reading, options = reading or ReadingOptions(), options or SettingsOptions()
    settings = settings_from_options(options)
    bids = _read_bids_names(out.bids)
    check_output(out.output, bids=bids, resume=out.resume, overwrite=out.overwrite)
    layout = plan_layout(out.output, bids, output_ending(inputs.image[0]))
    files = _list_inputs(inputs, reading, options)
    check_inputs(layout, files, out.also, overwrite=out.overwrite)
    if out.dicom is not None and not out.dicom.is_dir():
        raise UsageError(f"--dicom must be a folder with a DICOM series, got {out.dicom}")
    started = time.monotonic()
    try:
        with shown_progress(quiet=out.quiet) as progress:
            cycle = settings.unary.members == "cycle"
            case = _read_case(inputs, reading, progress, keep_members=cycle)
            if not says_samples(options):
                settings = _allow_samples(settings, len(case.labels))
            finished = run_case(
                case,
                settings,
                out.output,
                title=out.title or out.output.resolve().name,
                resume=out.resume,
                overwrite=out.overwrite,
                bids=bids,
                dicom_series=out.dicom,
                also=out.also,
                reading=_describe_reading(reading),
                progress=progress,
            )
    except KeyboardInterrupt:
        raise KeyboardInterrupt(
            "interrupted: the same command with --resume goes on where it stopped"
        ) from None
    if out.json:
        print_json({"output": str(finished.folder), **finished.summary})
    elif not out.quiet:
        _print_table(finished)
        print_end(finished, time.monotonic() - started)


def _read_case(
    inputs: InputOptions, reading: ReadingOptions, progress: StagedProgress, *, keep_members: bool
) -> Case:
    """Read the files; a model's probabilities are computed from the images."""
    from perturb_mpm.files import read_case, read_images

    if not inputs.probabilities and reading.model is None:
        raise UsageError("either --probabilities or --model must be given, and not both")
    reading.check_model(inputs.probabilities)
    labels = reading.read_labels()
    progress.stage("reading the files")
    if reading.model is None:
        return read_case(
            inputs.image,
            inputs.probabilities,
            kind=reading.kind,
            confidence=reading.confidence,
            labels=labels,
            dataset_json=reading.dataset_json,
            reference=inputs.reference,
            npz_axes=reading.npz_axes,
            mask=inputs.mask,
            image_names=reading.image_names,
            background=reading.background,
            keep_members=keep_members,
        )
    from perturb_mpm.segmenter import case_from_model

    images = read_images(inputs.image, mask=inputs.mask, image_names=reading.image_names)
    progress.stage("classifying the voxels")
    return case_from_model(reading.model, images, labels, reading.background)


def _list_inputs(
    inputs: InputOptions, reading: ReadingOptions, options: SettingsOptions
) -> list[Path]:
    """Return every file that is read, those that nnU-Net has beside an .npz included."""
    from perturb_mpm.files import prediction_files

    named = (inputs.mask, inputs.reference, reading.model, reading.dataset_json, options.settings)
    archives = [path for path in inputs.probabilities if path.suffix == ".npz"]
    beside = [each for path in archives for each in prediction_files(path)]
    return [*inputs.image, *inputs.probabilities, *(path for path in named if path), *beside]


def _describe_reading(reading: ReadingOptions) -> dict[str, object]:
    """Return how the files were read, as far as the files themselves do not say it."""
    if reading.model is not None:
        return {"kind": "model"}
    confidence = {"confidence": reading.confidence} if reading.kind == "labels" else {}
    given = {"background": reading.background, "npz_axes": reading.npz_axes}
    stated = {name: value for name, value in given.items() if value is not None}
    return {"kind": reading.kind, **confidence, **stated}


def _read_bids_names(text: str | None) -> BidsNames | None:
    """Return subject and session of "01/pre", which may be written "sub-01/ses-pre" too."""
    from perturb_mpm.run import BidsNames

    if text is None:
        return None
    subject, _, session = text.partition("/")
    return BidsNames(subject.removeprefix("sub-"), session.removeprefix("ses-") or None)


def _allow_samples(settings: RunSettings, labels: int) -> RunSettings:
    """Return settings that allow as many samples as ``until`` may take."""
    until = settings.sampling.until
    if until is None:
        return settings
    samples = until.samples_to_reach(labels)
    if samples > MOST_SAMPLES:
        raise UsageError(
            f"--until must be reachable within {MOST_SAMPLES} samples, got {until.epsilon:g}, "
            f"which takes up to {samples}"
        )
    return settings.changed(samples=samples)


def _print_table(finished: Run) -> None:
    """Print volume and uncertainty of every region and label, and where the report is."""
    from rich.table import Table

    summary = finished.summary
    table = Table()
    table.add_column("region or label" if summary["regions"] else "label")
    has_intervals = summary["intervals"]["rest_on"] != "none"
    headings = ["volume\nml", "sampled 95 %\nml", "mean entropy\nbits", "uncertain\n%"]
    for heading in headings if has_intervals else [headings[0], *headings[2:]]:
        table.add_column(heading, justify="right")
    regions = summary["regions"]
    for number, row in enumerate([*regions, *summary["labels"]]):
        found = row["mean_entropy_bits"] is not None
        table.add_row(
            f"{','.join(map(str, row.get('values', [row.get('value')])))} {row['name']}",
            f"{row['volume_ml']:.2f}",
            *([_interval_text(row)] if has_intervals else []),
            f"{row['mean_entropy_bits']:.3f}" if found else "",
            f"{100 * row['uncertain_frac']:.1f}" if found else "",
            end_section=number == len(regions) - 1,
        )
    print_plain(table)
    print_plain(f"Mask: {summary['mask']['origin']}.")


def _interval_text(row: Mapping[str, Any]) -> str:
    return f"{row['interval_lower_ml']:.2f} to {row['interval_upper_ml']:.2f}"


def print_end(finished: Run, seconds: float) -> None:
    """Print the answer of the report, how long it took, where everything is and what comes next."""
    summary = finished.summary
    folder = finished.folder
    steps = [
        f"report: {finished.files['report']}",
        f"look at it and correct it: perturb-mpm view {folder}",
    ]
    if summary["intervals"]["rest_on"] != "learned":
        steps.append("learn intervals from your own labelled cases: perturb-mpm tune --help")
    print_plain(
        "",
        summary["answer"],
        "",
        f"wrote {len(finished.files)} files to {folder} in {duration_in_words(seconds)}",
        *steps,
    )
