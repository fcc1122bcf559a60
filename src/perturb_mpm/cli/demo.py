"""``perturb-mpm demo``: a made-up patient through everything that ``run`` does."""

from __future__ import annotations

import shlex
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING

from perturb_mpm.cli.console import (
    Flag,
    UsageError,
    prepare_folder,
    print_json,
    print_plain,
    shown_progress,
    whole_number,
)
from perturb_mpm.cli.run import print_end
from perturb_mpm.sampling import MOST_SAMPLES

if TYPE_CHECKING:
    from perturb_mpm.files import Case
    from perturb_mpm.phantom import Phantom
    from perturb_mpm.progress import StagedProgress
    from perturb_mpm.report import LabelComparison
    from perturb_mpm.run import Run


PATIENT, TRUTH = "patient", "truth.nii.gz"  # the folder of what a user would bring
SEQUENCES = ("T1c", "T1", "T2", "FLAIR")  # the report shows the first one first
REGIONS = {"whole": (1, 2, 3, 4), "core": (1, 3, 4), "enhancing": (4,)}  # as in BraTS


_LARGEST_SEED = 2**64 - 1


def demo(
    *,
    output: Path = Path("demo"),
    seed: int = 0,
    spacing: float = 2.0,
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
    spacing
        The edge of a voxel, 1 to 8 mm: larger is faster and coarser.
    samples
        How many segmentations to sample.
    quiet
        Print nothing.
    json
        Print the results as JSON instead of a table.
    """
    if not 1.0 <= spacing <= 8.0:
        raise UsageError(f"--spacing must be between 1 and 8, got {spacing:g}")
    whole_number(seed, "--seed", 0, _LARGEST_SEED)
    whole_number(samples, "--samples", 1, MOST_SAMPLES)
    folder = prepare_folder(output)
    if (folder / "state").exists() and not (folder / PATIENT / TRUTH).exists():
        raise UsageError(f"--output must not hold a run of yours, got {folder}; name another one")

    from perturb_mpm.phantom import glioblastoma

    started = time.monotonic()
    with shown_progress(quiet=quiet) as progress:
        progress.stage("making a patient")
        patient = glioblastoma(seed, spacing_mm=spacing)
        case = _through_files(folder / PATIENT, patient)
        finished = _run(case, patient, folder, samples, progress)
    rows = _compare(patient, finished)
    if json:
        _print_json(rows, finished)
    elif not quiet:
        _print_table(rows, finished)
        print_end(finished, time.monotonic() - started)
        command = run_command(folder / PATIENT, patient.label_names, samples)
        print_plain(f"the same by hand: {shlex.join(command)}")


def _through_files(folder: Path, patient: Phantom) -> Case:
    """Write what a user would bring, and read it as ``run`` does."""
    from perturb_mpm.files import LabelScheme, read_case, save_nifti

    folder.mkdir(exist_ok=True)
    images = []
    for name in SEQUENCES:
        image = patient.images[patient.channel_names.index(name)]
        images.append(folder / f"{name.lower()}.nii.gz")
        save_nifti(images[-1], image, patient.affine, f"{name}, arbitrary units")
    probabilities, mask = folder / "probabilities.nii.gz", folder / "mask.nii.gz"
    labels_last = patient.network_probabilities.transpose(1, 2, 3, 0)
    save_nifti(probabilities, labels_last, patient.affine, "probability of each label")
    save_nifti(mask, patient.mask, patient.affine, "1 in the brain")
    save_nifti(folder / TRUTH, patient.truth, patient.affine, "the true labels")
    names = patient.label_names
    case = read_case(
        images,
        [probabilities],
        labels=LabelScheme(tuple(range(len(names))), names),
        mask=mask,
        image_names=SEQUENCES,
    )
    return replace(case, truth=patient.truth)


def _run(case: Case, patient: Phantom, folder: Path, samples: int, progress: StagedProgress) -> Run:
    """Sample and write everything as ``run`` does."""
    from perturb_mpm.run import RunSettings, run_case

    return run_case(
        case,
        RunSettings(regions=REGIONS).changed(samples=samples),
        folder,
        title=f"Phantom glioblastoma, seed {patient.seed}",
        overwrite=True,
        reading={"kind": "probabilities"},
        progress=progress,
    )


def run_command(folder: Path, label_names: tuple[str, ...], samples: int) -> list[str]:
    """Return the command that makes the same maps from the patient's files."""
    return [
        *("perturb-mpm", "run", "--image"),
        *(str(folder / f"{name.lower()}.nii.gz") for name in SEQUENCES),
        *("--image-names", *SEQUENCES),
        *("--probabilities", str(folder / "probabilities.nii.gz")),
        *("--mask", str(folder / "mask.nii.gz")),
        *("--labels", *(f"{value}:{name}" for value, name in enumerate(label_names))),
        *("--region", *(f"{name}={','.join(map(str, v))}" for name, v in REGIONS.items())),
        *("--samples", str(samples), "--output", "mine"),
    ]


def _compare(patient: Phantom, run: Run) -> list[LabelComparison]:
    """Compare the network and the labels that were written with the truth."""
    from perturb_mpm.files import Source, read_volume
    from perturb_mpm.report import compare_labels

    written = read_volume(Source("labels", run.files["labels"])).voxels.astype("uint8")
    segmentations = {
        "network": patient.network_probabilities.argmax(axis=0),
        "perturb_mpm": written,
    }
    return compare_labels(patient.truth, segmentations, patient.label_names, patient.spacing)


def _print_json(rows: list[LabelComparison], run: Run) -> None:
    """Print the run's summary and the comparison as one object."""
    summary = {
        "output": str(run.folder),
        "truth": [asdict(row) for row in rows],
        **run.summary,
    }
    print_json(summary)


def _print_table(rows: list[LabelComparison], run: Run) -> None:
    """Print volume, overlap and uncertainty of every label, and where the report is."""
    from rich.table import Table

    table = Table()
    table.add_column("label")
    for heading in ("true\nml", "found\nml", "sampled 95 %\nml", "Dice", "uncertain\n%"):
        table.add_column(heading, justify="right")
    for row, found in zip(rows, run.summary["labels"][1:]):
        share = found["uncertain_frac"]
        table.add_row(
            row.label,
            f"{row.truth_ml:.1f}",
            f"{found['volume_ml']:.1f}",
            f"{found['interval_lower_ml']:.1f} to {found['interval_upper_ml']:.1f}",
            f"{row.dice['perturb_mpm']:.3f}",
            "" if share is None else f"{100 * share:.1f}",
        )
    print_plain(table)
