"""``python -m lab tuning``: what tune is worth on cases left out, from all cases and from five."""

from __future__ import annotations

from pathlib import Path

from lab.console import Flag, print_results, write_text
from perturb_mpm.cli import prepare_folder, shown_progress


def tuning(
    *,
    data: Path,
    probabilities: Path | None = None,
    model: Path | None = None,
    output: Path = Path("reproduce-tuning"),
    title: str = "What tuning is worth",
    name: str = "tune-measured",
    samples: int = 128,
    quiet: Flag = False,
    json: Flag = False,
) -> None:
    """Tune, score cases left out, then from five cases ten times; write a page and every score.

    Parameters
    ----------
    data
        The folder of the hippocampi; or of BraTS 2021 patients, with one of the two that follow.
    probabilities
        A folder with CASE.npz of a network that never saw the patient.
    model
        A model that perturb-mpm train made of these patients.
    output
        The folder to write to; made where it is missing.
    title
        The title of the page.
    name
        The name of the page and the table, without their endings.
    samples
        How many segmentations are sampled of each case.
    quiet
        Print nothing, and show no progress.
    json
        Print the means of every method as JSON instead of the findings.
    """
    from lab.tuning.measuring import FEW, rank_dice, read_set, score_few
    from lab.tuning.tuning_page import findings, page
    from perturb_mpm.tune import (
        TuningOptions,
        find_candidates,
        learn_settings,
        means,
        prepare_study,
        write_scores,
    )

    folder = prepare_folder(output)
    with shown_progress(quiet=quiet) as progress:
        found = read_set(data, probabilities, model, progress)
        options = TuningOptions(folds=found.folds, samples=samples)
        study = prepare_study(found.cases, found.start, options, progress)
        candidates = find_candidates(study, found.start)
        tuned = learn_settings(study, candidates)
        few = score_few(study, candidates) if len(study.problems) > FEW else []
        # What needs no label: samples at the grid's temperature, with the kernels that run takes.
        first = candidates[0] if candidates[0].has_kernels else candidates[1]
        ranks = rank_dice(study, first)
    given = " --probabilities FOLDER" if probabilities else " --model MODEL" if model else ""
    command = f"python -m lab tuning --data FOLDER{given} --name {name}"
    paths = [folder / f"{name}.md", folder / f"{name}.csv"]
    write_text(paths[0], page(title, command, samples, tuned, few, ranks))
    write_scores(paths[1], tuned)
    rows = means(tuned.scores, tuned.regions)
    print_results(paths, findings(tuned), {"methods": rows}, quiet=quiet, json=json)
