"""``python -m lab compare``: every method that the paper names, on one's own case."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from lab.console import Flag, Json, OutputFolder, Quiet, print_results, write_figure, write_text
from perturb_mpm.cli import UsageError, prepare_folder, shown_progress

Paths = Annotated[list[Path], Parameter(consume_multiple=True, negative="")]
Values = Annotated[list[int], Parameter(consume_multiple=True, negative="")]


def compare(
    *,
    image: Paths,
    probabilities: Paths,
    npz_axes: Literal["image", "ras"] | None = None,
    region: Values | None = None,
    crop: int | None = None,
    samples: int = 50,
    seed: int = 0,
    output: OutputFolder = Path("compare"),
    quick: Flag = False,
    quiet: Quiet = False,
    json: Json = False,
) -> None:
    """Run every method that the paper names on one case; write a table and a picture.

    Parameters
    ----------
    image
        The patient's images, on one grid.
    probabilities
        The labels' probabilities, as perturb-mpm run takes them.
    npz_axes
        How the axes of an npz file lie: as the image's, or turned to right, front and up.
    region
        The labels of the region that is measured, counted from 0; all but the first by default.
    crop
        Cut a cube of so many voxels a side out around the region's centre; the whole without it.
    samples
        Samples of a method that is quick; the slow ones draw fewer.
    seed
        Names the noise.
    quick
        Eight samples and tiny boxes: to see that it works.
    """
    if samples < 2:
        raise UsageError(f"--samples must be at least 2, got {samples}")
    if crop is not None and crop < 4:
        raise UsageError(f"--crop must be at least 4 voxels, got {crop}")
    folder = prepare_folder(output)

    from lab.compare import compare_page
    from lab.compare.methods import ComparePlan, Subject, crop_box, crop_case, run_methods
    from perturb_mpm.files import read_case, write_table

    case = read_case(image, probabilities, npz_axes=npz_axes)
    labels = len(case.labels)
    members = tuple(region) if region else tuple(range(1, labels))
    if not all(0 <= each < labels for each in members) or len(set(members)) == labels:
        raise UsageError(f"--region must be some of the labels 0 to {labels - 1}, got {members}")
    plan = ComparePlan(samples=samples, cut_samples=min(20, samples), seed=seed)
    if quick:
        plan = ComparePlan(8, 4, 2, dense_voxels=64, program_voxels=27, seed=seed)
    if crop is not None:
        case = crop_case(case, crop_box(case, members, crop))
    subject = Subject(case, members, plan)
    with shown_progress(quiet=quiet) as progress:
        results = list(run_methods(subject, progress))
    files = [folder / name for name in ("compare.csv", "compare.md", "compare.png")]
    write_table(files[0], compare_page.COLUMNS, compare_page.table_rows(results))
    text = compare_page.table(results)
    write_text(files[1], text + "\n")
    write_figure(files[2], compare_page.draw_methods(results, subject))
    rows = [{**asdict(each), "share": None} for each in results]
    print_results(files, text, {"methods": rows}, quiet=quiet, json=json)
