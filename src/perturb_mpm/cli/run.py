"""``perturb-mpm run``: from one patient's files to maps, tables and a report."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter
from rich.table import Table

from perturb_mpm.cli.console import SHOW, Files, Flag, Show, UsageError, describe_run, text_table
from perturb_mpm.cli.options import (
    INPUTS,
    OUTPUT,
    ReadingOptions,
    SettingsOptions,
    says_samples,
    settings_from_options,
)
from perturb_mpm.engines import compile_ahead, keep_freed_memory, load_ahead
from perturb_mpm.files import CaseFiles, output_ending, prediction_files
from perturb_mpm.run import (
    BidsNames,
    Run,
    RunSettings,
    check_inputs,
    check_output,
    plan_layout,
    run_case,
)
from perturb_mpm.sampling import MOST_SAMPLES


@Parameter(name="*", group=INPUTS)
@dataclass(frozen=True, kw_only=True)
class InputOptions:
    """What is read."""

    image: Files
    """The patient's images, one file for each sequence: NIfTI, NRRD, DICOM and others. Results lie
    on the grid of the first."""
    probabilities: Annotated[Files, Parameter(show_default=False)] = ()
    """What the network says, background first: one 4-D volume with labels last, one 3-D volume for
    each label, or nnU-Net's .npz. Several 4-D volumes or .npz files are an ensemble (folds, dropout
    samples)."""
    mask: Path | None = None
    """Only voxels that are not 0 here count. Default: those that are not 0 in some image."""
    reference: Path | None = None
    """A volume that says where the voxels of an .npz lie. Default: the one beside it."""


@Parameter(name="*", group=OUTPUT)
@dataclass(frozen=True, kw_only=True)
class OutputOptions:
    """What is written."""

    output: Path
    """The folder to write to. Created where missing, refused where not empty."""
    resume: Flag = False
    """Continue the interrupted run in the folder, or start one."""
    overwrite: Flag = False
    """Replace the outputs of an earlier run in the folder."""
    bids: str | None = None
    """Write BIDS names for SUBJECT or SUBJECT/SESSION, as in 01/pre; the folder is the dataset."""
    dicom: Path | None = None
    """The folder of the images' DICOM series. Adds a DICOM SEG of the labels and a parametric map
    of the entropy."""
    also: Annotated[
        tuple[Literal["slicer", "itksnap", "sr", "extremes"], ...],
        Parameter(consume_multiple=True, negative="", show_default=False),
    ] = ()
    """What else to write. slicer (labels.seg.nrrd), itksnap (labels-itksnap.txt): labels with names
    and colours for these programs. extremes (extremes.nii.gz): the samples at 2.5, 50 and 97.5 % of
    the volume, which the report shows from small to large. sr (measurements.sr.dcm, with --dicom):
    a DICOM structured report (TID 1500) of volumes and diameters with their intervals."""
    title: str | None = None
    """The heading of the report. Default: the name of the folder."""
    show: Show = SHOW


def run(
    *,
    inputs: InputOptions,
    reading: ReadingOptions | None = None,
    out: OutputOptions,
    options: SettingsOptions | None = None,
) -> None:
    """Segment one patient with error bars: labels, uncertainty, volumes and a report."""
    reading, options = reading or ReadingOptions(), options or SettingsOptions()
    settings = settings_from_options(options)
    bids = _read_bids_names(out.bids)
    check_output(out.output, bids=bids, resume=out.resume, overwrite=out.overwrite)
    layout = plan_layout(out.output, bids, output_ending(inputs.image[0]))
    files = _list_inputs(inputs, reading, options)
    check_inputs(layout, files, out.also, overwrite=out.overwrite)
    if out.dicom is not None and not out.dicom.is_dir():
        raise UsageError(f"--dicom must be a folder with a DICOM series, got {out.dicom}")
    reading.check_model(inputs.probabilities, needed=True)
    how = reading.to_reading(inputs.reference)
    started = time.monotonic()
    keep_freed_memory()
    try:
        with out.show.progress() as progress:
            cycle = settings.unary.members == "cycle"
            chosen = CaseFiles(
                out.output.name, inputs.image, probabilities=inputs.probabilities, mask=inputs.mask
            )
            with ThreadPoolExecutor(1) as beside:  # loading the compiler takes as long as a file
                white = settings.sampling.noise_length == 0
                # A voxel takes about a byte of a packed image; what is no file is said below.
                first = inputs.image[0]
                load_ahead(settings.compute, first.stat().st_size if first.is_file() else 0)
                begun = beside.submit(compile_ahead, settings.compute, white=white)
                case = how.read(chosen, keep_members=cycle, progress=progress)
            begun.result()
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
                reading=how.describe(),
                progress=progress,
            )
    except KeyboardInterrupt:
        raise KeyboardInterrupt(
            "interrupted: the same command with --resume goes on where it stopped"
        ) from None
    content = {"output": str(finished.folder), **finished.summary}
    seconds = time.monotonic() - started
    out.show.result(content, *_in_words(finished), *describe_run(finished, seconds))


def _list_inputs(
    inputs: InputOptions, reading: ReadingOptions, options: SettingsOptions
) -> list[Path]:
    """Return every file that is read, those that nnU-Net has beside an .npz included."""
    named = (inputs.mask, inputs.reference, reading.model, reading.dataset_json, options.settings)
    archives = [path for path in inputs.probabilities if path.suffix == ".npz"]
    beside = [each for path in archives for each in prediction_files(path)]
    return [*inputs.image, *inputs.probabilities, *(path for path in named if path), *beside]


def _read_bids_names(text: str | None) -> BidsNames | None:
    """Return subject and session of "01/pre", which may be written "sub-01/ses-pre" too."""
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


def _in_words(finished: Run) -> Iterator[str | Table]:
    """Yield volume and uncertainty of every region and label, and the mask."""
    summary = finished.summary
    regions, known = summary["regions"], summary["intervals"]["rest_on"] != "none"
    rows = []
    for row in [*regions, *summary["labels"]]:
        found = row["mean_entropy_bits"] is not None
        ends = [row[f"interval_{end}_ml"] for end in ("lower", "upper")] if known else []
        rows.append(
            (
                f"{','.join(map(str, row.get('values', [row.get('value')])))} {row['name']}",
                f"{row['volume_ml']:.2f}",
                *(["{:.2f} to {:.2f}".format(*ends)] if known else []),
                f"{row['mean_entropy_bits']:.3f}" if found else "",
                f"{100 * row['uncertain_frac']:.1f}" if found else "",
            )
        )
    interval_heading = ["sampled 95 %\nml"] if known else []
    headings = ["volume\nml", *interval_heading, "mean entropy\nbits", "uncertain\n%"]
    table = text_table(["region or label" if regions else "label", *headings], rows)
    if regions:
        table.rows[len(regions) - 1].end_section = True
    yield table
    yield f"Mask: {summary['mask']['origin']}."
