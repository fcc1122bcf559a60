"""``python -m lab network`` and ``gliomas``: what we make of probabilities, beside others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from lab.console import Flag, Json, OutputFolder, Quiet, print_results, write_text
from perturb_mpm.cli import prepare_folder, shown_progress

if TYPE_CHECKING:
    from lab.evidence.measuring import GivenScore, MeasuredSet
    from lab.evidence.sets import LabelledSet
    from perturb_mpm.progress import StagedProgress

HIPPOCAMPI = """{cases} real MRI crops of the hippocampus (Medical Segmentation Decathlon, Task04,
CC BY-SA 4.0) with the probabilities of a 3-D U-Net that never saw them. Written by `python -m lab
network --data FOLDER --model MODEL`, the model of one case in four by `perturb-mpm train --layout
table --sequences t1 --folds 5 --trees 60`. Cases are left out in five folds. Of dropout and flips
only label maps are stored: shares of 20 or 8 of them are mostly 0 or 1, which says nothing of the
mean softmax, so their maps are not scored."""
GLIOMAS = """{cases} real glioma patients of BraTS 2021 at 2 mm (T1, T1ce, T2, FLAIR), with the
probabilities of classifiers that never saw the patient. Written by `python -m lab gliomas --data
FOLDER --probabilities FOLDER --model MODEL`, the model by `perturb-mpm train --layout brats
--folds 5 --trees 60`. Patients are left out one at a time. Regions are the whole tumour, its core
and its enhancing part, which 8 of 11 patients have; labels are decided by them as `run` does."""
NETWORK_TITLE = "What the CRF and its noise make of a network"
GLIOMA_TITLE = "What the CRF and its noise make of gliomas"
_QUICK_CASES, _QUICK_SAMPLES = 6, 16


def network(
    *,
    data: Path,
    model: Path | None = None,
    output: OutputFolder = Path("reproduce-network"),
    samples: int = 128,
    quick: Flag = False,
    quiet: Quiet = False,
    json: Json = False,
) -> None:
    """Score a network's hippocampi, its ensemble, dropout and flips, CRFs and tuning; write pages.

    What is done is kept in the folder: after an interruption the same command goes on from there.

    Parameters
    ----------
    data
        The folder of the cases: images, labels, probabilities, others and cases.csv.
    model
        A model that perturb-mpm train made of some of these cases, to be scored beside an atlas.
    samples
        How many segmentations are sampled of each case.
    quick
        Six cases and few samples: tells whether it runs, and nothing more.
    """
    from lab.evidence.measuring import score_given
    from lab.evidence.sets import other_classifiers, read_set

    folder = prepare_folder(output)
    with shown_progress(quiet=quiet) as progress:
        found = read_set(data, None, None, progress)
        measured = _measure([found], folder, *_plan(samples, quick=quick), progress)
        others = other_classifiers(data, found.cases, model, progress)
        given = {}
        for name, cases in others.items():
            progress.stage(f"scoring another classifier: {name}")
            given[name] = score_given(cases, found.start)
    results = _write(folder / "reproduce-network.md", NETWORK_TITLE, HIPPOCAMPI, measured, given)
    print_results(*results, quiet=quiet, json=json)


def gliomas(
    *,
    data: Path,
    probabilities: Path | None = None,
    model: Path | None = None,
    output: OutputFolder = Path("reproduce-gliomas"),
    samples: int = 128,
    quick: Flag = False,
    quiet: Quiet = False,
    json: Json = False,
) -> None:
    """Score networks' and trees' gliomas, CRFs around them and tuning; write pages.

    What is done is kept in the folder: after an interruption the same command goes on from there.

    Parameters
    ----------
    data
        The folder of the BraTS 2021 patients.
    probabilities
        A folder with CASE.npz of a network that never saw the patient.
    model
        A model that perturb-mpm train made of these patients: each is answered by trees that never
        saw it.
    samples
        How many segmentations are sampled of each patient.
    quick
        Six patients and few samples: tells whether it runs, and nothing more.
    """
    from lab.evidence.sets import read_set
    from perturb_mpm.cli import UsageError

    if model is None and probabilities is None:
        raise UsageError("--probabilities or --model must be given, or both")
    folder = prepare_folder(output)
    with shown_progress(quiet=quiet) as progress:
        wanted = [(probabilities, None), (None, model)]
        sets = [read_set(data, *each, progress) for each in wanted if any(each)]
        measured = _measure(sets, folder, *_plan(samples, quick=quick), progress)
    results = _write(folder / "reproduce-gliomas.md", GLIOMA_TITLE, GLIOMAS, measured, {})
    print_results(*results, quiet=quiet, json=json)


def _plan(samples: int, *, quick: bool) -> tuple[int, int | None]:
    """Return how many samples to draw of at most how many cases."""
    return (_QUICK_SAMPLES, _QUICK_CASES) if quick else (samples, None)


def _measure(
    sets: Sequence[LabelledSet],
    folder: Path,
    samples: int,
    most: int | None,
    progress: StagedProgress,
) -> list[MeasuredSet]:
    from lab.evidence.measuring import measure_set

    chosen = [
        replace(
            each,
            cases=dict(list(each.cases.items())[:most]),
            folds=min(each.folds, most or each.folds),
        )
        for each in sets
    ]
    return [measure_set(each, folder, samples, progress) for each in chosen]


def _write(
    path: Path,
    title: str,
    opening: str,
    measured: Sequence[MeasuredSet],
    given: Mapping[str, Sequence[GivenScore]],
) -> tuple[list[Path], str, dict[str, object]]:
    """Write the pages; return their paths, the verdicts as text, and all means."""
    from lab.evidence.evidence_page import evidence_page, verdicts
    from perturb_mpm.tune import means

    files = [path, *(path.parent / f"{each.page}.md" for each in measured)]
    write_text(path, evidence_page(title, opening.format(cases=measured[0].cases), measured, given))
    for file, each in zip(files[1:], measured, strict=True):
        write_text(file, each.tuning_page)
        write_text(file.with_suffix(".toml"), each.settings)
    lines = [f"{each.name}, {'; '.join(row)}" for each in measured for row in verdicts(each)]
    numbers: dict[str, object] = {each.name: means(each.scores, each.regions) for each in measured}
    return files, "\n".join(lines), {"sets": numbers}
