"""``python -m lab network``: a network with and without the CRF, beside what one does instead."""

from __future__ import annotations

from pathlib import Path

from lab.console import Flag, print_results, write_text
from perturb_mpm.cli import prepare_folder, shown_progress


def network(
    *,
    data: Path,
    output: Path = Path("reproduce-network"),
    samples: int = 100,
    quick: Flag = False,
    quiet: Flag = False,
    json: Flag = False,
) -> None:
    """Score a network, its ensemble, dropout and flips, and CRFs around it; write a page.

    What is done is kept in the folder: after an interruption the same command goes on from there.

    Parameters
    ----------
    data
        The folder of the cases: images, labels, probabilities, others and cases.csv.
    output
        The folder to write to; made where it is missing.
    samples
        How many segmentations are sampled of each case.
    quick
        Six cases and few samples: under a minute instead of some minutes.
    quiet
        Print nothing, and show no progress.
    json
        Print the means of every method as JSON instead of the findings.
    """
    from lab.network.measuring import measure_network, summarise
    from lab.network.network_page import PAGE_NAME, findings, page

    folder = prepare_folder(output)
    drawn, most = (16, 6) if quick else (samples, None)
    with shown_progress(quiet=quiet) as progress:
        scores = measure_network(data, folder, samples=drawn, most_cases=most, progress=progress)
    means = summarise(scores)
    cases = len({each.case for each in scores})
    write_text(folder / PAGE_NAME, page(means, cases, drawn, scores))
    files = [folder / PAGE_NAME]
    print_results(files, findings(means), {"methods": means}, quiet=quiet, json=json)
