"""``perturb-mpm demo``: a made-up patient through everything that ``run`` does."""

from __future__ import annotations

import json as json_format
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from perturb_mpm.cli.console import UsageError, prepare_folder, shown_progress

if TYPE_CHECKING:
    from perturb_mpm.files import Case
    from perturb_mpm.phantom import Phantom
    from perturb_mpm.progress import StagedProgress
    from perturb_mpm.report import LabelComparison
    from perturb_mpm.run import RunResult


Flag = Annotated[bool, Parameter(negative="")]

PATIENT, TRUTH = "patient", "truth.nii.gz"  # the folder of what a user would bring
SEQUENCES = ("T1c", "T1", "T2", "FLAIR")  # the report shows the first one first

# Independent noise alone would make volumes far too certain; `tune` learns such fields from data.
FIELD_MM = 20.0
SHARED_FIELD, OWN_FIELD = 1.0, 0.7  # nats, for all tumour labels together and for each


def demo(
    *,
    output: Path = Path("demo"),
    seed: int = 0,
    voxel_mm: float = 2.0,
    samples: int = 200,
    quiet: Flag = False,
    json: Flag = False,
) -> None:
    """Make a patient with a glioblastoma, run the whole pipeline on it, compare with the truth.

    Parameters
    ----------
    output
        The folder to write to; made where it is missing. An earlier demo in it is replaced.
    seed
        Which patient to make.
    voxel_mm
        The edge of a voxel, 1 to 8 mm: larger is faster and coarser.
    samples
        How many segmentations to sample.
    quiet
        Print nothing.
    json
        Print the results as JSON instead of a table.
    """
    if not 1.0 <= voxel_mm <= 8.0:
        raise UsageError(f"--voxel-mm must be between 1 and 8, got {voxel_mm:g}")
    if seed < 0:
        raise UsageError(f"--seed must not be negative, got {seed}")
    if samples < 1:
        raise UsageError(f"--samples must be at least 1, got {samples}")
    folder = prepare_folder(output)
    if (folder / "state").exists() and not (folder / PATIENT / TRUTH).exists():
        raise UsageError(f"--output must not hold a run of yours, got {folder}; name another one")

    from perturb_mpm.phantom import glioblastoma
    from perturb_mpm.run import OutputError

    with shown_progress(quiet=quiet) as progress:
        progress.stage("making a patient")
        patient = glioblastoma(seed, spacing_mm=voxel_mm)
        case = _through_files(folder / PATIENT, patient)
        try:
            result = _run(case, patient, folder, samples, progress)
        except OutputError as error:
            raise UsageError(str(error)) from error
    rows = _compare(patient, result)
    if json:
        _print_json(rows, result)
    elif not quiet:
        _print_table(rows, result)


def _through_files(folder: Path, patient: Phantom) -> Case:
    """Write what a user would bring, and read it as ``run`` does."""
    from perturb_mpm.files import read_case, save_nifti

    folder.mkdir(exist_ok=True)
    images = []
    for name in SEQUENCES:
        image = patient.images[patient.channel_names.index(name)]
        images.append(folder / f"{name.lower()}.nii.gz")
        save_nifti(images[-1], image, patient.affine, f"{name}, arbitrary units")
    probabilities, mask = folder / "probabilities.nii.gz", folder / "mask.nii.gz"
    labels_last = patient.probabilities.transpose(1, 2, 3, 0)
    save_nifti(probabilities, labels_last, patient.affine, "probability of each label")
    save_nifti(mask, patient.mask, patient.affine, "1 in the brain")
    save_nifti(folder / TRUTH, patient.truth, patient.affine, "the true labels")
    return read_case(
        images,
        [probabilities],
        label_names=patient.label_names,
        mask=mask,
        image_names=SEQUENCES,
    )


def _run(
    case: Case, patient: Phantom, folder: Path, samples: int, progress: StagedProgress
) -> RunResult:
    """Sample and write everything; but for the fields the settings are those of ``run``."""
    from perturb_mpm import Field
    from perturb_mpm.run import RunSettings, run_case

    ill = tuple(range(1, len(case.labels)))
    own = (Field(FIELD_MM, OWN_FIELD, labels=(label,)) for label in ill)
    fields = (Field(FIELD_MM, SHARED_FIELD, labels=ill), *own)
    return run_case(
        case,
        RunSettings().changed(samples=samples, fields=fields),
        folder,
        title=f"Phantom glioblastoma, seed {patient.seed}",
        overwrite=True,
        truth=patient.truth,
        progress=progress,
    )


def _compare(patient: Phantom, result: RunResult) -> list[LabelComparison]:
    """Compare the classifier and the labels that were written with the truth."""
    from perturb_mpm.files import Source, read_volume
    from perturb_mpm.report import compare_labels

    written = read_volume(Source("labels", result.files["labels"])).voxels.astype("uint8")
    segmentations = {
        "classifier": patient.probabilities.argmax(axis=0),
        "perturb_mpm": written,
    }
    return compare_labels(patient.truth, segmentations, patient.label_names, patient.spacing)


def _print_json(rows: list[LabelComparison], result: RunResult) -> None:
    """Print the run's summary and the comparison as one object."""
    summary = {
        "output": str(result.folder),
        "truth": [asdict(row) for row in rows],
        **result.summary,
    }
    sys.stdout.write(json_format.dumps(summary, indent=2, ensure_ascii=False) + "\n")


def _print_table(rows: list[LabelComparison], result: RunResult) -> None:
    """Print volume, overlap and uncertainty of every label, and where the report is."""
    from rich.console import Console
    from rich.table import Table

    table = Table()
    table.add_column("label")
    for heading in ("true\nml", "found\nml", "sampled 95 %\nml", "Dice", "uncertain\n%"):
        table.add_column(heading, justify="right")
    for row, found in zip(rows, result.summary["labels"][1:]):
        share = found["uncertain_frac"]
        table.add_row(
            row.label,
            f"{row.truth_ml:.1f}",
            f"{found['volume_ml']:.1f}",
            f"{found['interval_lower_ml']:.1f} to {found['interval_upper_ml']:.1f}",
            f"{row.dice['perturb_mpm']:.3f}",
            "" if share is None else f"{100 * share:.1f}",
        )
    console = Console()
    console.print(table)
    if result.summary["volumes_reflect_voxel_noise_alone"]:
        console.print(
            "The noise is independent at every voxel: the sampled volumes reflect that noise "
            "alone, and their intervals are far too narrow.",
            highlight=False,
        )
    console.print(f"report: {result.files['report']}", highlight=False, soft_wrap=True)
