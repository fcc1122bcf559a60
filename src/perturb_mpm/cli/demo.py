"""``perturb-mpm demo``: one segmentation of a made-up patient, from images to files."""

from __future__ import annotations

import json as json_format
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from perturb_mpm.cli.errors import UsageError
from perturb_mpm.cli.output import prepare_folder

if TYPE_CHECKING:
    from perturb_mpm.inference import MeanField
    from perturb_mpm.phantom import Phantom
    from perturb_mpm.report.comparison import LabelComparison

Flag = Annotated[bool, Parameter(negative="")]


def demo(
    *,
    output: Path = Path("demo"),
    seed: int = 0,
    voxel_mm: float = 2.0,
    quiet: Flag = False,
    json: Flag = False,
) -> None:
    """Segment a made-up brain with a glioma; write a picture and NIfTI files.

    Parameters
    ----------
    output
        The folder to write to; made where it is missing.
    seed
        Which patient to make.
    voxel_mm
        The edge of a voxel, 1 to 8 mm: larger is faster and coarser.
    quiet
        Print nothing.
    json
        Print the results as JSON instead of a table.
    """
    if not 1.0 <= voxel_mm <= 8.0:
        raise UsageError(f"--voxel-mm must be between 1 and 8, got {voxel_mm:g}")
    if seed < 0:
        raise UsageError(f"--seed must not be negative, got {seed}")
    folder = prepare_folder(output)

    from perturb_mpm.phantom import FIELD_OF_VIEW_MM, glioma_phantom
    from perturb_mpm.report.demo import write_picture, write_volumes

    shape = [round(extent / voxel_mm) for extent in FIELD_OF_VIEW_MM]
    phantom = glioma_phantom(shape, seed=seed)
    result = segment(phantom)
    files = [*write_volumes(folder, phantom, result), write_picture(folder, phantom, result)]
    rows = _compare(phantom, result)
    if json:
        _print_json(files, rows, result)
    elif not quiet:
        _print_table(files, rows)


def segment(phantom: Phantom) -> MeanField:
    """Refine the classifier's probabilities with a dense CRF on all four images."""
    import perturb_mpm as pm

    crf = pm.DenseCRF(
        unary=pm.unary_from_probabilities(phantom.probabilities),
        kernels=[
            pm.SpatialKernel(sigma=2.5, weight=1.0),
            pm.BilateralKernel(phantom.images, sigma_space=10.0, sigma_intensity=0.5, weight=4.0),
        ],
        spacing=phantom.spacing,
        mask=phantom.mask,
    )
    return pm.mean_field(crf, iterations=50, tolerance=0.01)


def _compare(phantom: Phantom, result: MeanField) -> list[LabelComparison]:
    """Compare the classifier and the CRF with the truth."""
    from perturb_mpm.report.comparison import compare_labels
    from perturb_mpm.report.demo import most_probable

    segmentations = {"classifier": most_probable(phantom), "crf": result.labels}
    return compare_labels(phantom.truth, segmentations, phantom.label_names, phantom.spacing)


def _print_json(files: list[Path], rows: list[LabelComparison], result: MeanField) -> None:
    """Print one JSON object; the unit stands in the name of every key."""
    summary = {
        "files": [str(file) for file in files],
        "labels": [asdict(row) for row in rows],
        "engine": result.engine,
        "iterations": result.iterations,
        "converged": result.converged,
        "free_energy_nats": result.free_energy,
    }
    sys.stdout.write(json_format.dumps(summary, indent=2) + "\n")


def _print_table(files: list[Path], rows: list[LabelComparison]) -> None:
    """Print what was written, and volume and overlap of every label."""
    from rich.console import Console
    from rich.table import Table

    table = Table()
    table.add_column("label")
    for heading in ("truth\nml", "classifier\nml", "CRF\nml", "classifier\nDice", "CRF\nDice"):
        table.add_column(heading, justify="right")
    for row in rows:
        volumes = (row.truth_ml, row.volume_ml["classifier"], row.volume_ml["crf"])
        overlaps = (row.dice["classifier"], row.dice["crf"])
        table.add_row(row.label, *(f"{v:.1f}" for v in volumes), *(f"{d:.3f}" for d in overlaps))
    console = Console()
    console.print(table)
    for file in files:
        console.print(f"wrote {file}", highlight=False, soft_wrap=True)
