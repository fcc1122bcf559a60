"""``perturb-mpm demo``: a made-up patient through everything that ``run`` does."""

from __future__ import annotations

import gzip
import shlex
import time
import zlib
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING

from rich.table import Table

from perturb_mpm.cli.console import (
    SHOW,
    Show,
    UsageError,
    describe_run,
    prepare_folder,
    text_table,
    whole_number,
)
from perturb_mpm.files import Case, LabelScheme, Source, read_case, read_volume, save_nifti
from perturb_mpm.phantom import Phantom, glioblastoma
from perturb_mpm.report import LabelComparison, compare_labels
from perturb_mpm.run import (
    Run,
    RunSettings,
    StateError,
    list_files,
    plan_layout,
    read_run_json,
    run_case,
)
from perturb_mpm.sampling import MOST_SAMPLES

if TYPE_CHECKING:
    from collections.abc import Iterator


PATIENT, TRUTH = "patient", "truth.nii.gz"  # the folder of what a user would bring
MASK, PROBABILITIES = "mask.nii.gz", "probabilities.nii.gz"
SEQUENCES = ("T1c", "T1", "T2", "FLAIR")  # the report shows the first one first
REGIONS = {"whole": (1, 2, 3, 4), "core": (1, 3, 4), "enhancing": (4,)}  # as in BraTS
_DESCRIPTIONS = {  # of the patient's files, by which a demo knows its own
    **{f"{name.lower()}.nii.gz": f"{name}, arbitrary units" for name in SEQUENCES},
    PROBABILITIES: "probability of each label",
    MASK: "1 in the brain",
    TRUTH: "the true labels",
}
_TITLE = "Phantom glioblastoma"
_LARGEST_SEED = 2**64 - 1


def demo(
    *,
    output: Path = Path("demo"),
    seed: int = 0,
    spacing: float = 2.0,
    samples: int = 200,
    show: Show = SHOW,
) -> None:
    """Make a patient with a glioblastoma, run the whole pipeline on it, compare with the truth.

    Parameters
    ----------
    output
        The folder to write to; made where it is missing. An earlier demo in it is replaced;
        a folder with files of yours that the demo would write over is refused.
    seed
        Which patient to make.
    spacing
        The edge of a voxel, 1 to 8 mm: larger is faster and coarser.
    samples
        How many segmentations to sample.
    """
    if not 1.0 <= spacing <= 8.0:
        raise UsageError(f"--spacing must be between 1 and 8, got {spacing:g}")
    whole_number(seed, "--seed", 0, _LARGEST_SEED)
    whole_number(samples, "--samples", 1, MOST_SAMPLES)
    folder = prepare_folder(output)
    for path in _find_others(folder):
        raise UsageError(
            f"--output must be a new folder or that of a demo, got {folder}, where {path} would "
            "be replaced, which is not a demo's; name another one"
        )

    started = time.monotonic()
    with show.progress() as progress:
        progress.stage("making a patient")
        patient = glioblastoma(seed, spacing_mm=spacing)
        case = _through_files(folder / PATIENT, patient)
        finished = run_case(
            case,
            RunSettings(regions=REGIONS).changed(samples=samples),
            folder,
            title=f"{_TITLE}, seed {patient.seed}",
            overwrite=True,
            reading={"kind": "probabilities"},
            progress=progress,
        )
    rows = _compare(patient, finished)
    command = run_command(folder / PATIENT, patient.label_names, samples)
    show.result(
        {"output": str(folder), "truth": [asdict(row) for row in rows], **finished.summary},
        _table(rows, finished),
        *describe_run(finished, time.monotonic() - started),
        f"the same by hand: {shlex.join(command)}",
    )


def _find_others(folder: Path) -> Iterator[Path]:
    """Yield the files that the demo would write over and no demo has written."""
    try:
        run = read_run_json(folder / "state") or {}
        is_demo = not run or (
            str(run["about"]["title"]).startswith(_TITLE) and (folder / PATIENT / TRUTH).exists()
        )
    except (StateError, LookupError, TypeError):
        is_demo = False
    listed = set(list_files(folder) or ()) if is_demo else set()
    names = [*plan_layout(folder).outputs.values(), "state/run.json"]
    for name in names:
        if name not in listed and (folder / name).exists():
            yield folder / name
    for name, description in _DESCRIPTIONS.items():
        path = folder / PATIENT / name
        if path.exists() and not _is_described(path, description):
            yield path


def _is_described(path: Path, description: str) -> bool:
    """Whether a file is a compressed NIfTI with this description."""
    try:
        with gzip.open(path) as file:
            return file.read(228)[148:].rstrip(b"\0") == description.encode()
    except (OSError, EOFError, zlib.error):
        return False


def _through_files(folder: Path, patient: Phantom) -> Case:
    """Write what a user would bring, and read it as ``run`` does."""
    folder.mkdir(exist_ok=True)
    images = []
    for name in SEQUENCES:
        image = patient.images[patient.channel_names.index(name)]
        images.append(folder / f"{name.lower()}.nii.gz")
        save_nifti(images[-1], image, patient.affine, _DESCRIPTIONS[images[-1].name])
    probabilities, mask, truth = folder / PROBABILITIES, folder / MASK, folder / TRUTH
    labels_last = patient.network_probabilities.transpose(1, 2, 3, 0)
    for path, volume in (
        (probabilities, labels_last),
        (mask, patient.mask),
        (truth, patient.truth),
    ):
        save_nifti(path, volume, patient.affine, _DESCRIPTIONS[path.name])
    names = patient.label_names
    case = read_case(
        images,
        [probabilities],
        labels=LabelScheme(tuple(range(len(names))), names),
        mask=mask,
        image_names=SEQUENCES,
    )
    return replace(case, truth=patient.truth)


def run_command(folder: Path, label_names: tuple[str, ...], samples: int) -> list[str]:
    """Return the command that makes the same maps from the patient's files."""
    return [
        *("perturb-mpm", "run", "--image"),
        *(str(folder / f"{name.lower()}.nii.gz") for name in SEQUENCES),
        *("--image-names", *SEQUENCES),
        *("--probabilities", str(folder / PROBABILITIES)),
        *("--mask", str(folder / MASK)),
        *("--labels", *(f"{value}:{name}" for value, name in enumerate(label_names))),
        *("--region", *(f"{name}={','.join(map(str, v))}" for name, v in REGIONS.items())),
        *("--samples", str(samples), "--output", "mine"),
    ]


def _compare(patient: Phantom, run: Run) -> list[LabelComparison]:
    """Compare the network and the labels that were written with the truth."""
    written = read_volume(Source("labels", run.files["labels"])).voxels.astype("uint8")
    segmentations = {
        "network": patient.network_probabilities.argmax(axis=0),
        "perturb_mpm": written,
    }
    return compare_labels(patient.truth, segmentations, patient.label_names, patient.spacing)


def _table(rows: list[LabelComparison], run: Run) -> Table:
    """Return volume, overlap and uncertainty of every label."""
    cells = []
    for row, found in zip(rows, run.summary["labels"][1:]):
        share = found["uncertain_frac"]
        cells.append(
            (
                row.label,
                f"{row.truth_ml:.1f}",
                f"{found['volume_ml']:.1f}",
                f"{found['interval_lower_ml']:.1f} to {found['interval_upper_ml']:.1f}",
                f"{row.dice['perturb_mpm']:.3f}",
                "" if share is None else f"{100 * share:.1f}",
            )
        )
    headings = ("label", "true\nml", "found\nml", "sampled 95 %\nml", "Dice", "uncertain\n%")
    return text_table(headings, cells)
