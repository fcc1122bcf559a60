"""``python -m lab gliomas``: gliomas left out one at a time."""

from __future__ import annotations

from pathlib import Path

from lab.console import Flag, print_results, write_text
from perturb_mpm.cli import prepare_folder, shown_progress


def gliomas(
    *,
    data: Path,
    model: Path | None = None,
    probabilities: Path | None = None,
    output: Path = Path("reproduce-gliomas"),
    samples: int = 128,
    quick: Flag = False,
    quiet: Flag = False,
    json: Flag = False,
) -> None:
    """Learn on all patients but one, score that one; write a page and every score.

    Parameters
    ----------
    data
        The folder of the BraTS 2021 patients.
    model
        A model that perturb-mpm train made of these patients: each is answered by trees that never
        saw it.
    probabilities
        Instead, a folder with CASE.npz of a network that never saw the patient.
    output
        The folder to write to; made where it is missing.
    samples
        How many segmentations are sampled of each patient.
    quick
        Four patients and few samples: tells whether it runs, and nothing more.
    quiet
        Print nothing, and show no progress.
    json
        Print the means of every method as JSON instead of the findings.
    """
    from lab.gliomas.gliomas_page import NETWORK, PAGE_NAME, TREES, findings, page
    from lab.gliomas.measuring import measure_gliomas
    from perturb_mpm.cli import UsageError
    from perturb_mpm.files import SCHEMES, common_sequences, find_labelled_cases
    from perturb_mpm.tune import classify_cases, means, read_labelled_cases, write_scores

    if (model is None) == (probabilities is None):
        raise UsageError("either --model or --probabilities must be given, and not both")
    folder = prepare_folder(output)
    drawn = 8 if quick else samples
    with shown_progress(quiet=quiet) as progress:
        files = find_labelled_cases(data, "brats")[: 4 if quick else None]
        scheme = SCHEMES["brats2021"]
        if model is not None:
            cases = classify_cases(files, model, scheme, progress)
        elif probabilities is not None:
            sequences = common_sequences(files)
            cases = read_labelled_cases(files, probabilities, sequences, scheme, progress)
        tuned, scores = measure_gliomas(cases, drawn, progress)
    write_text(folder / PAGE_NAME, page(tuned, scores, drawn, TREES if model else NETWORK))
    write_scores(folder / "scores.csv", tuned)
    rows = means(scores, tuned.regions)
    paths = [folder / PAGE_NAME, folder / "scores.csv"]
    print_results(paths, findings(rows, tuned.regions), {"methods": rows}, quiet=quiet, json=json)
