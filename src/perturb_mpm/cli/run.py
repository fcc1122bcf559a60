"""``perturb-mpm run``: from one patient's files to maps, tables and a report."""

from __future__ import annotations

import json as json_format
import sys
from typing import TYPE_CHECKING

from perturb_mpm.cli.errors import UsageError
from perturb_mpm.cli.progress import shown_progress
from perturb_mpm.cli.run_model import case_of_model
from perturb_mpm.cli.run_options import ComputeOptions, InputOptions, ModelOptions, OutputOptions
from perturb_mpm.cli.run_settings import enough_samples, settings_from_options

if TYPE_CHECKING:
    from perturb_mpm.io.case import Case
    from perturb_mpm.pipeline.layout import BidsNames
    from perturb_mpm.pipeline.progress import Progress
    from perturb_mpm.pipeline.run import RunResult


def run(
    *,
    inputs: InputOptions,
    model: ModelOptions | None = None,
    compute: ComputeOptions | None = None,
    out: OutputOptions,
) -> None:
    """Sample segmentations of one patient; write labels, uncertainty, volumes and a report."""
    model, compute = model or ModelOptions(), compute or ComputeOptions()
    from perturb_mpm.io.errors import InputError
    from perturb_mpm.pipeline.errors import OutputError, SettingsError
    from perturb_mpm.pipeline.run import run_case

    settings = settings_from_options(model, compute, out.colour_map)
    bids = _bids(out.bids)
    try:
        with shown_progress(quiet=out.quiet) as progress:
            case = _case(inputs, out, progress)
            result = run_case(
                case,
                enough_samples(settings, model, len(case.labels)),
                out.output,
                title=out.title or out.output.resolve().name,
                resume=out.resume,
                overwrite=out.overwrite,
                bids=bids,
                dicom_series=out.dicom,
                reading=_reading(inputs),
                progress=progress,
            )
    except (InputError, SettingsError, OutputError) as error:
        raise UsageError(str(error)) from error
    except KeyboardInterrupt:
        raise KeyboardInterrupt(
            "interrupted: the same command with --resume goes on where it stopped"
        ) from None
    if out.json:
        _print_json(result)
    elif not out.quiet:
        _print_table(result)


def _case(inputs: InputOptions, out: OutputOptions, progress: Progress) -> Case:
    """Read the files; those of a model's probabilities are made first."""
    from perturb_mpm.io.read_case import read_case

    if bool(inputs.probabilities) == (inputs.model is not None):
        raise UsageError("either --probabilities or --model must be given, and not both")
    if out.dicom is not None and not out.dicom.is_dir():
        raise UsageError(f"--dicom must be a folder with a DICOM series, got {out.dicom}")
    progress.stage("reading the files")
    if inputs.model is not None:
        return case_of_model(inputs, inputs.model, progress)
    return read_case(
        inputs.image,
        inputs.probabilities,
        kind=inputs.kind,
        confidence=inputs.confidence,
        label_values=inputs.label_values,
        label_names=inputs.label_names,
        dataset_json=inputs.dataset_json,
        reference=inputs.reference,
        mask=inputs.mask,
        image_names=inputs.image_names,
    )


def _reading(inputs: InputOptions) -> dict[str, object]:
    """Return how the files were read, as far as the files themselves do not say it."""
    if inputs.model is not None:
        return {"kind": "model"}
    confidence = {"confidence": inputs.confidence} if inputs.kind == "labels" else {}
    return {"kind": inputs.kind, **confidence}


def _bids(text: str | None) -> BidsNames | None:
    """Return subject and session of "01/pre", which may be written "sub-01/ses-pre" too."""
    from perturb_mpm.pipeline.layout import BidsNames

    if text is None:
        return None
    subject, _, session = text.partition("/")
    return BidsNames(subject.removeprefix("sub-"), session.removeprefix("ses-") or None)


def _print_json(result: RunResult) -> None:
    """Print the summary, with the folder that its file names are in."""
    summary = {"output": str(result.folder), **result.summary}
    sys.stdout.write(json_format.dumps(summary, indent=2, ensure_ascii=False) + "\n")


def _print_table(result: RunResult) -> None:
    """Print volume and uncertainty of every label, and where the report is."""
    from rich.console import Console
    from rich.table import Table

    table = Table()
    table.add_column("label")
    for heading in ("volume\nml", "sampled 95 %\nml", "mean entropy\nbits", "uncertain\n%"):
        table.add_column(heading, justify="right")
    for row in result.summary["labels"]:
        found = row["mean_entropy_bits"] is not None
        table.add_row(
            f"{row['value']} {row['name']}",
            f"{row['volume_ml']:.2f}",
            f"{row['interval_lower_ml']:.2f} to {row['interval_upper_ml']:.2f}",
            f"{row['mean_entropy_bits']:.3f}" if found else "",
            f"{100 * row['uncertain_frac']:.1f}" if found else "",
        )
    console = Console()
    console.print(table)
    if result.summary["volumes_reflect_voxel_noise_alone"]:
        console.print(
            "The noise is independent at every voxel: the sampled volumes reflect that noise "
            "alone, and their intervals are far too narrow.",
            highlight=False,
        )
    console.print(f"mask {result.summary['mask']['origin']}", highlight=False, soft_wrap=True)
    console.print(f"wrote {len(result.files)} files to {result.folder}", highlight=False)
    console.print(f"report: {result.files['report']}", highlight=False, soft_wrap=True)
