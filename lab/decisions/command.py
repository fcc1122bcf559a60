"""``python -m lab lesions``, ``growth`` and ``priority``: whether decisions by samples hold."""

from __future__ import annotations

from pathlib import Path

from lab.console import Flag, print_results, write_text
from perturb_mpm.cli import prepare_folder, shown_progress


def lesions(
    *,
    output: Path = Path("reproduce-lesions"),
    heads: int = 40,
    samples: int = 80,
    quiet: Flag = False,
    json: Flag = False,
) -> None:
    """Score the probabilities of lesions on made-up heads with satellites; write a page.

    Parameters
    ----------
    output
        The folder to write to; made where it is missing.
    heads
        How many heads are made.
    samples
        How many segmentations are sampled of each.
    quiet
        Print nothing, and show no progress.
    json
        Print the scores as JSON instead of a sentence.
    """
    from lab.decisions.lesions import measure_lesions, page, verdict

    folder = prepare_folder(output)
    with shown_progress(quiet=quiet) as progress:
        progress.stage("sampling heads")
        pools, satellites = measure_lesions(heads, samples, progress)
    path = folder / "lesions.md"
    write_text(path, page(pools, satellites, samples))
    numbers = {name: pool.detection().average_precision for name, pool in pools.items()}
    numbers_by_name = {"average_precision": numbers}
    print_results([path], verdict(pools), numbers_by_name, quiet=quiet, json=json)
