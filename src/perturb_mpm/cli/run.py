"""``perturb-mpm run``: from one patient's files to maps, tables and a report."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Group, Parameter

from perturb_mpm.cli.console import (
    Flag,
    UsageError,
    duration_in_words,
    given,
    options_of,
    print_json,
    print_plain,
    shown_progress,
)
from perturb_mpm.run import RunSettings
from perturb_mpm.sampling import MOST_SAMPLES

if TYPE_CHECKING:
    from perturb_mpm.files import Case, LabelScheme, Program
    from perturb_mpm.progress import StagedProgress
    from perturb_mpm.run import BidsNames, KernelSettings, Run


Files = Annotated[tuple[Path, ...], Parameter(consume_multiple=True, negative="")]
Words = Annotated[tuple[str, ...] | None, Parameter(consume_multiple=True, negative="")]


@Parameter(name="*", group=Group("Inputs", sort_key=1))
@dataclass(frozen=True, kw_only=True)
class InputOptions:
    """What is read.

    Parameters
    ----------
    image
        The sequences, NIfTI, one or more; what is written lies on the grid of the first.
    probabilities
        One 4-D NIfTI with the labels last, one 3-D NIfTI a label, or nnU-Net's .npz; background
        first. Several 4-D NIfTI or .npz are the members of an ensemble: folds, dropout samples.
    kind
        What these files hold: probabilities, a network's raw logits, or a hard label map.
    confidence
        How far a hard label map is trusted at every voxel, with --kind labels.
    model
        A model trained by perturb-mpm that makes the probabilities from the images.
    labels
        Your numbers of the labels, with names or without, background first: 0:background 1:core,
        0 1 2 4, or a scheme such as brats2021; else dataset.json's, else 0, 1, 2 …
    background
        The value written outside the mask; else that of the first label where 0 is a label, else 0.
    image_names
        Your name for each image; else from the names of their files.
    dataset_json
        nnU-Net's dataset.json; looked for beside an .npz.
    reference
        A NIfTI that says where the voxels of an .npz are; else the one beside it does.
    mask
        A NIfTI that is not 0 where voxels count; else where any image is not 0.
    """

    image: Files
    probabilities: Annotated[Files, Parameter(show_default=False)] = ()
    kind: Literal["probabilities", "logits", "labels"] = "probabilities"
    confidence: float = 0.9
    model: Path | None = None
    labels: Words = None
    background: int | None = None
    image_names: Words = None
    dataset_json: Path | None = None
    reference: Path | None = None
    mask: Path | None = None


@Parameter(name="*", group=Group("Model", sort_key=2))
@dataclass(frozen=True, kw_only=True)
class ModelOptions:
    """What is sampled; an option that is not given has the value of the settings file.

    Parameters
    ----------
    settings
        A TOML file with all of these, as tune writes it; options given here come before it.
    paper
        The paper's algorithm: white noise, votes, kernels at full strength and not centred.
    temperature
        Above 1 makes the probabilities less sure of themselves. Default 1.
    clip
        The smallest probability taken at its word. Default 1e-6.
    strength
        Multiplies the weight of every kernel. Default 0.35.
    keep_strength
        Keep the strength where the kernels move volumes far from what the probabilities say: warn
        in place of weakening them.
    centring
        0 to 1; 1 lets the kernels act on deviations from the probabilities alone. Default 1.
    members
        Of an ensemble: sample its mean, or cycle through its members. Default mean.
    region
        A region by its name and label values, as in whole=1,2,4 core=1,4 enhancing=4, nested or
        apart: labels are decided region by region, and each region has a volume. Default: those
        of nnU-Net's dataset.json, where it has some.
    marginals
        What labels and maps are made of: votes (the paper), conditional, or mean_field, which
        ranks errors best. Default mean_field.
    spatial_sigma
        How far the spatial kernel reaches, mm. Default 3.
    spatial_weight
        Its weight; 0 leaves it out. Default 1.
    bilateral_sigma_space
        How far the bilateral kernel reaches, mm. Default 20.
    bilateral_sigma_intensity_sd
        How alike intensities must be for it, standard deviations. Default 0.5.
    bilateral_weight
        Its weight; 0 leaves it out. Default 3.
    """

    settings: Path | None = None
    paper: Flag = False
    temperature: float | None = None
    clip: float | None = None
    strength: float | None = None
    keep_strength: Flag = False
    centring: float | None = None
    members: Literal["mean", "cycle"] | None = None
    region: Words = None
    marginals: Literal["votes", "conditional", "mean_field"] | None = None
    spatial_sigma: float | None = None
    spatial_weight: float | None = None
    bilateral_sigma_space: float | None = None
    bilateral_sigma_intensity_sd: float | None = None
    bilateral_weight: float | None = None


if TYPE_CHECKING:
    SamplingOptions = Any
    ComputeOptions = Any
else:
    SamplingOptions = options_of(RunSettings().sampling, "Sampling", 3)
    ComputeOptions = options_of(RunSettings().compute, "Computing", 4)


@Parameter(name="*", group=Group("Output", sort_key=5))
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
        (labels-itksnap.txt).
    title
        The heading of the report; the name of the folder where it is not given.
    colour_map
        The colours of the report's entropy.
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
        tuple[Literal["slicer", "itksnap"], ...], Parameter(consume_multiple=True, negative="")
    ] = ()
    title: str | None = None
    colour_map: Literal["inferno", "viridis", "jet", "hot"] | None = None
    quiet: Flag = False
    json: Flag = False


def run(
    *,
    inputs: InputOptions,
    model: ModelOptions | None = None,
    sampling: SamplingOptions | None = None,
    compute: ComputeOptions | None = None,
    out: OutputOptions,
) -> None:
    """Sample segmentations of one patient; write labels, uncertainty, volumes and a report."""
    from perturb_mpm.run import check_output, run_case

    model, sampling = model or ModelOptions(), sampling or SamplingOptions()
    settings = settings_of(model, sampling, compute or ComputeOptions(), out.colour_map)
    bids = _bids(out.bids)
    check_output(out.output, bids=bids, resume=out.resume, overwrite=out.overwrite)
    started = time.monotonic()
    try:
        with shown_progress(quiet=out.quiet) as progress:
            case = _case(inputs, out, progress, keep_members=settings.unary.members == "cycle")
            finished = run_case(
                case,
                _enough_samples(settings, model, sampling, len(case.labels)),
                out.output,
                title=out.title or out.output.resolve().name,
                resume=out.resume,
                overwrite=out.overwrite,
                bids=bids,
                dicom_series=out.dicom,
                reading=_reading(inputs),
                progress=progress,
            )
    except KeyboardInterrupt:
        raise KeyboardInterrupt(
            "interrupted: the same command with --resume goes on where it stopped"
        ) from None
    _write_also(finished, out.also)
    if out.json:
        _print_json(finished)
    elif not out.quiet:
        _print_table(finished)
        print_end(finished, time.monotonic() - started)


def _case(
    inputs: InputOptions, out: OutputOptions, progress: StagedProgress, *, keep_members: bool
) -> Case:
    """Read the files; a model's probabilities are computed first."""
    from perturb_mpm.files import read_case

    if bool(inputs.probabilities) == (inputs.model is not None):
        raise UsageError("either --probabilities or --model must be given, and not both")
    if out.dicom is not None and not out.dicom.is_dir():
        raise UsageError(f"--dicom must be a folder with a DICOM series, got {out.dicom}")
    labels = labels_of(inputs.labels)
    progress.stage("reading the files")
    if inputs.model is not None:
        return _case_of_model(inputs, inputs.model, progress)
    return read_case(
        inputs.image,
        inputs.probabilities,
        kind=inputs.kind,
        confidence=inputs.confidence,
        labels=labels,
        dataset_json=inputs.dataset_json,
        reference=inputs.reference,
        mask=inputs.mask,
        image_names=inputs.image_names,
        background=inputs.background,
        keep_members=keep_members,
    )


def _write_also(finished: Run, programs: Sequence[Program]) -> None:
    """Write the labels as other programs want them, beside the outputs."""
    from perturb_mpm.files import write_for_program

    case = finished.case
    values = case.labels.to_values(finished.labels, case.mask)
    for program in programs:
        write_for_program(finished.folder, program, values, case.geometry, case.labels)


def labels_of(words: Sequence[str] | None) -> LabelScheme | tuple[int, ...] | None:
    """Return the labels that the user gave; bare values leave the names as they are."""
    from perturb_mpm.files import labels_from_text

    if words is None:
        return None
    scheme = labels_from_text(words)
    bare = all(part.strip().isdecimal() for part in ",".join(words).split(","))
    return scheme.values if bare else scheme


def _case_of_model(inputs: InputOptions, model: Path, progress: StagedProgress) -> Case:
    """Read the images, and let the model say how probable each label is."""
    from perturb_mpm.files import read_images
    from perturb_mpm.segmenter import case_from_model

    if not model.is_file():
        raise UsageError(f"--model must be a file, got {model}, which is not there")
    images = read_images(inputs.image, mask=inputs.mask, image_names=inputs.image_names)
    progress.stage("classifying the voxels")
    return case_from_model(model, images, labels_of(inputs.labels), inputs.background)


def _reading(inputs: InputOptions) -> dict[str, object]:
    """Return how the files were read, as far as the files themselves do not say it."""
    if inputs.model is not None:
        return {"kind": "model"}
    confidence = {"confidence": inputs.confidence} if inputs.kind == "labels" else {}
    background = {} if inputs.background is None else {"background": inputs.background}
    return {"kind": inputs.kind, **confidence, **background}


def _bids(text: str | None) -> BidsNames | None:
    """Return subject and session of "01/pre", which may be written "sub-01/ses-pre" too."""
    from perturb_mpm.run import BidsNames

    if text is None:
        return None
    subject, _, session = text.partition("/")
    return BidsNames(subject.removeprefix("sub-"), session.removeprefix("ses-") or None)


def settings_of(
    model: ModelOptions, sampling: SamplingOptions, compute: ComputeOptions, colour_map: str | None
) -> RunSettings:
    """Return the settings; what is wrong with them is a UsageError."""
    from perturb_mpm.files import region_values_from_text
    from perturb_mpm.run import read_settings

    changed: dict[str, Any] = {
        "temperature": model.temperature,
        "clip": model.clip,
        "strength": model.strength,
        "keep_strength": model.keep_strength or None,
        "centring": model.centring,
        "members": model.members,
        "marginals": model.marginals,
        "regions": None if model.region is None else region_values_from_text(model.region),
        "colour_map": colour_map,
    }
    try:
        if model.paper and model.settings is not None:
            raise UsageError("--paper and --settings must not be given together: choose one")
        settings = RunSettings.of_paper() if model.paper else RunSettings()
        if model.settings is not None:
            settings = read_settings(model.settings)
        return settings.changed(
            **given(sampling),
            **given(compute),
            **{name: value for name, value in changed.items() if value is not None},
            kernels=_kernels(settings, model),
        )
    except (TypeError, ValueError) as error:
        raise UsageError(str(error)) from error


def _enough_samples(
    settings: RunSettings, model: ModelOptions, sampling: SamplingOptions, labels: int
) -> RunSettings:
    """Return settings that allow as many samples as ``until`` may take, unless a number is said."""
    until = settings.sampling.until
    if until is None or "samples" in given(sampling) or model.settings is not None:
        return settings
    samples = until.samples_to_reach(labels)
    if samples > MOST_SAMPLES:
        raise UsageError(
            f"--until must be reachable within {MOST_SAMPLES} samples, got {until.epsilon:g}, "
            f"which takes up to {samples}"
        )
    return settings.changed(samples=samples)


def _kernels(settings: RunSettings, model: ModelOptions) -> tuple[KernelSettings, ...]:
    from perturb_mpm.run import DEFAULT_BILATERAL, DEFAULT_SPATIAL

    kernels = list(settings.kernels)
    wanted = {
        DEFAULT_SPATIAL: {"sigma_space": model.spatial_sigma, "weight": model.spatial_weight},
        DEFAULT_BILATERAL: {
            "sigma_space": model.bilateral_sigma_space,
            "sigma_intensity_sd": model.bilateral_sigma_intensity_sd,
            "weight": model.bilateral_weight,
        },
    }
    for default, options in wanted.items():
        changed = {key: value for key, value in options.items() if value is not None}
        if changed:
            _change(kernels, default, changed)
    return tuple(kernels)


def _change(
    kernels: list[KernelSettings], default: KernelSettings, changed: dict[str, Any]
) -> None:
    """Change the one kernel of that kind, or add it where there is none."""
    places = [place for place, kernel in enumerate(kernels) if kernel.kind == default.kind]
    if len(places) > 1:
        raise UsageError(
            f"--{default.kind}-… options must mean one kernel, got --settings with {len(places)} "
            f"{default.kind} kernels: change them in the file"
        )
    if not places:
        kernels.append(replace(default, **changed))
    else:
        kernels[places[0]] = replace(kernels[places[0]], **changed)


def _print_json(finished: Run) -> None:
    """Print the summary, with the folder that its file names are in."""
    summary = {"output": str(finished.folder), **finished.summary}
    print_json(summary)


def _print_table(finished: Run) -> None:
    """Print volume and uncertainty of every region and label, and where the report is."""
    from rich.table import Table

    summary = finished.summary
    table = Table()
    table.add_column("region or label" if summary["regions"] else "label")
    for heading in ("volume\nml", "sampled 95 %\nml", "mean entropy\nbits", "uncertain\n%"):
        table.add_column(heading, justify="right")
    regions = summary["regions"]
    for place, row in enumerate([*regions, *summary["labels"]]):
        found = row["mean_entropy_bits"] is not None
        table.add_row(
            f"{','.join(map(str, row.get('values', [row.get('value')])))} {row['name']}",
            f"{row['volume_ml']:.2f}",
            f"{row['interval_lower_ml']:.2f} to {row['interval_upper_ml']:.2f}",
            f"{row['mean_entropy_bits']:.3f}" if found else "",
            f"{100 * row['uncertain_frac']:.1f}" if found else "",
            end_section=place == len(regions) - 1,
        )
    print_plain(table)
    print_plain(f"Mask: {summary['mask']['origin']}.")


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
