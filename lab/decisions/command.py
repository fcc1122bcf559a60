"""``python -m lab lesions``, ``growth`` and ``priority``: whether decisions by samples hold."""

from __future__ import annotations

from pathlib import Path

from lab.console import Json, OutputFolder, Quiet, print_results, write_figure, write_text
from lab.words import paragraph
from perturb_mpm.cli import prepare_folder, shown_progress


def lesions(
    *,
    output: OutputFolder = Path("reproduce-lesions"),
    heads: int = 60,
    samples: int = 80,
    quiet: Quiet = False,
    json: Json = False,
) -> None:
    """Score the probabilities of lesions on made-up heads with satellites; write a page.

    Parameters
    ----------
    heads
        How many heads are made.
    samples
        How many segmentations are sampled of each.
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


def growth(
    *,
    output: OutputFolder = Path("reproduce-growth"),
    heads: int = 40,
    grown: int = 20,
    taught: int = 30,
    samples: int = 40,
    quiet: Quiet = False,
    json: Json = False,
) -> None:
    """Ask whether heads that were scanned twice have grown; write a page and its curve.

    Parameters
    ----------
    heads
        How many heads are scanned twice without growth.
    grown
        How many of them are scanned after growth too.
    taught
        How many other heads, scanned twice, teach the correlation of errors.
    samples
        How many segmentations are sampled of each scan.
    """
    from lab.decisions.growth import draw, learn_correlation, measure_growth, page, verdict

    folder = prepare_folder(output)
    with shown_progress(quiet=quiet) as progress:
        progress.stage("sampling heads")
        learned = learn_correlation(taught, samples)
        calls = measure_growth(heads, grown, samples, learned.lower, progress)
    paths = [folder / "growth.md", folder / "growth.png"]
    write_text(paths[0], page(calls, learned, taught, samples, paths[1].name))
    write_figure(paths[1], draw(calls))
    print_results(
        paths,
        verdict(calls),
        {"calls": calls, "correlation": learned.lower},
        quiet=quiet,
        json=json,
    )


def priority(
    *,
    hippocampi: Path | None = None,
    gliomas: Path | None = None,
    probabilities: Path | None = None,
    output: OutputFolder = Path("reproduce-priority"),
    most: int = 50,
    samples: int = 200,
    quiet: Quiet = False,
    json: Json = False,
) -> None:
    """Let a simulated user see cubes in three orders; write how fast the interval narrows.

    Parameters
    ----------
    hippocampi
        The folder of the hippocampi with a network's probabilities.
    gliomas
        The folder of the BraTS 2021 patients.
    probabilities
        A folder with CASE.npz of a network that never saw the patient, for the gliomas.
    most
        How many cases of each set are taken by name, after those on which the law was chosen.
    samples
        How many segmentations are sampled of each case.
    """
    from lab.decisions.priority import (
        CHOICE,
        CHOSEN_ON,
        LEARNED_SETTINGS,
        OPENING,
        OWN_SETTINGS,
        PATIENTS,
        draw,
        measure_priority,
        section,
        temperatures_of_others,
        verdict,
    )
    from lab.evidence import read_set
    from perturb_mpm.cli import UsageError

    if hippocampi is None and gliomas is None:
        raise UsageError("--hippocampi or --gliomas must be given")
    asked = [
        ("Hippocampi", hippocampi, None, "foreground", 6.0),
        ("Gliomas", gliomas, probabilities, "core", 10.0),
    ]
    folder, sets, parts = prepare_folder(output), {}, []
    with shown_progress(quiet=quiet) as progress:
        for name, data, given, structure, side in asked:
            if data is None:
                continue
            found = read_set(data, given, None, progress)
            first = CHOSEN_ON[name]
            cases = dict(list(found.cases.items())[first : first + most])
            own = dict.fromkeys(cases, found.start.changed(samples=samples))
            asked_of = {name: (OWN_SETTINGS, own)}
            if data == gliomas:
                learned = temperatures_of_others(found.cases)
                taught = {
                    case: start.changed(temperature=learned[case]) for case, start in own.items()
                }
                asked_of[f"{name}, temperature learned"] = (LEARNED_SETTINGS, taught)
            for title, (words, settings) in asked_of.items():
                progress.stage(f"sampling {title.lower()}")
                rows = measure_priority(cases, settings, structure, side_mm=side, progress=progress)
                sets[title] = rows
                parts.append(section(title, structure, rows, samples, side, words))
    paths = [folder / "priority.md", folder / "priority.png"]
    command = "python -m lab priority --hippocampi FOLDER --gliomas FOLDER --probabilities FOLDER"
    heading = f"# Where a correction pays\n\n{PATIENTS} Written by `{command}`."
    parts.append(paragraph(CHOICE))
    picture = f"![Width of the interval over the number of cubes seen]({paths[1].name})"
    write_text(paths[0], "\n\n".join([heading, picture, paragraph(OPENING), *parts]) + "\n")
    write_figure(paths[1], draw(sets))
    text = "\n".join(verdict(name, rows) for name, rows in sets.items())
    print_results(paths, text, {"sets": sets}, quiet=quiet, json=json)


def progression(
    *,
    data: Path,
    output: OutputFolder = Path("reproduce-progression"),
    samples: int = 100,
    quiet: Quiet = False,
    json: Json = False,
) -> None:
    """Compare two dates of real patients by probabilities of our own making; write a table.

    Parameters
    ----------
    data
        The folder with a folder of each patient: Pre_T1post, Pre_mask, Post_T1post, Post_mask.
    samples
        How many segmentations are sampled of each scan.
    """
    from lab.decisions.progression import measure_progression, page, verdict

    folder = prepare_folder(output)
    with shown_progress(quiet=quiet) as progress:
        progress.stage("comparing dates")
        rows = measure_progression(data, samples, progress)
    path = folder / "progression.md"
    write_text(path, page(rows, samples))
    numbers = {row.name: [row.true_change, row.mapped_change, row.inside] for row in rows}
    print_results([path], verdict(rows), {"changes": numbers}, quiet=quiet, json=json)


def definitions(
    *, output: OutputFolder = Path("definitions"), quiet: Quiet = False, json: Json = False
) -> None:
    """Draw what measures mean, on one made-up structure; write measures.png."""
    from lab.decisions.definitions import draw

    path = prepare_folder(output) / "measures.png"
    write_figure(path, draw())
    print_results([path], "Fifteen pictures of measures are drawn.", {}, quiet=quiet, json=json)
