"""``perturb-mpm tune``: the settings of ``run``, learned from labelled cases."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Literal

from cyclopts import Parameter
from rich.table import Table

from perturb_mpm.assess import read_pairs
from perturb_mpm.cli.console import (
    SHOW,
    Show,
    UsageError,
    Words,
    prepare_folder,
    text_table,
    usage_errors,
)
from perturb_mpm.files import (
    Case,
    common_sequences,
    find_labelled_cases,
    labels_from_text,
    region_values_from_text,
)
from perturb_mpm.progress import StagedProgress
from perturb_mpm.run import RunSettings, read_settings, write_settings
from perturb_mpm.storage import write_set
from perturb_mpm.tune import (
    Tuned,
    TuningOptions,
    classify_cases,
    intervals_table,
    learn_correlation,
    maps_table,
    means,
    read_cohort_cases,
    read_labelled_cases,
    write_pairs,
    write_scores,
)
from perturb_mpm.tune import tune as tune_settings

SETTINGS_NAME = "settings.toml"
SCORES_NAME = "scores.csv"
PAIRS_NAME = "pairs.csv"
KERNELS = ".kernels-"


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class TuneOptions:
    """What to learn from, how, and where the settings go."""

    data: Path | None = None
    """The cases: a folder, or a CSV table with the columns case, labels and one a sequence; or the
    folder of perturb-mpm cohort, which knows all that follows up to region."""
    layout: Literal["table", "brats", "nnunet", "bids"] | None = None
    """How the cases lie in it."""
    labels: Words = None
    """The labels of their label maps: brats2021, brats2023, brats2024, or values and names such as
    0:background 1:tumour. They are never guessed from the values."""
    output: Path
    """The folder to write settings.toml and scores.csv to; made where it is missing."""
    truth: Path | None = None
    """A folder with CASE.nii.gz of a cohort's cases, instead of the truths that it was given."""
    probabilities: Path | None = None
    """A folder with each case's probabilities, CASE.nii.gz (4-D, labels last) or nnU-Net's
    CASE.npz, by a classifier that did not see the case."""
    model: Path | None = None
    """A model trained by perturb-mpm, instead; a case that it was trained on is answered by those
    of its trees that never saw it."""
    region: Words = None
    """A region by its name and label values, as in whole=1,2,4 core=1,4 enhancing=4: labels are
    decided region by region, and intervals are learned for them."""
    settings: Path | None = None
    """A TOML file to start from; else the defaults of run. Its kernels, engine, accuracy,
    iterations and length of the noise are used, and its regions where none are given here."""
    measure: Words = None
    """Measures whose intervals are learned too, as in perturb-mpm measure: diameter, area …"""
    pairs: Path | None = None
    """Instead of --data: runs of patients who were scanned twice and in whom nothing changed, CSV
    with the columns case, before and after, or the folder of a cohort. The correlation of their
    errors is learned, which perturb-mpm change takes."""
    sessions: Annotated[tuple[str, str], Parameter(negative="", show_default=False)] = (
        "pre",
        "post",
    )
    """Which sessions of a cohort's folder are the pairs. Default: pre post."""
    folds: int = 5
    """Folds of the cross-validation; as many as cases leaves one out at a time."""
    samples: int = 128
    """How many segmentations are sampled of each case, with kernels and without."""
    threads: int | None = None
    """How many threads instead of those of --settings; all cores by default."""
    show: Show = SHOW

    def is_cohort(self, data: Path) -> bool:
        """Whether the cases are those of a cohort's folder; refuse what it knows itself."""
        found = self.layout is None and (data / "cohort.json").is_file()
        for name in ("labels", "probabilities", "model"):
            if found and getattr(self, name) is not None:
                raise UsageError(f"--{name} must not be given for the folder of a cohort: {data}")
        if self.truth is not None and not found:
            raise UsageError("--truth must come with the folder of a cohort as --data")
        return found

    def check_pairs_alone(self) -> None:
        """Refuse what --pairs has no use for: it reads runs that are done."""
        used = ("pairs", "sessions", "settings", "output", "show")
        for each in fields(self):
            if each.name not in used and getattr(self, each.name) != each.default:
                raise UsageError(
                    f"--{each.name} must not be given with --pairs, which reads finished runs"
                )

    def check_folds(self, cases: int, kind: str = "cases") -> None:
        """Refuse more folds than cases."""
        if cases < self.folds:
            raise UsageError(
                f"--folds must be at most the number of {kind}, {cases}, got {self.folds}"
            )


def tune(*, options: TuneOptions) -> None:
    """Learn from labelled cases how far to trust a network; write the settings that run takes.

    The temperature of the maps is learned by likelihood, as far as cases left out confirm it.
    Kernels act only where the image speaks for them and they beat no kernels. Intervals of volumes
    and of Dice are moved and widened region by region, from 3 cases on; from 19 on they keep a
    promise of 95 %. All that is printed is of cases left out, beside simpler methods.
    """
    if options.pairs is not None:
        _tune_pairs(options.pairs, options)
        return
    with usage_errors():
        measures = tuple(options.measure or ())
        effort = TuningOptions(options.folds, options.samples, measures)
    given = _read_settings(options.settings)
    start = _change_settings(given, options)
    with options.show.progress() as progress:
        cases = _read_cases(options, start.compute.threads, progress)
        folder = prepare_folder(options.output)
        with _kernel_folder(start, folder) as kernels:
            tuned = tune_settings(cases, start.changed(kernel_cache=kernels), effort, progress)
    # How many threads this machine had and where it stored kernels is no part of what was learned.
    here = {"threads": given.compute.threads, "kernel_cache": given.compute.kernel_cache}
    tuned = replace(tuned, settings=tuned.settings.changed(**here))
    files = _write(folder, tuned)
    content, words = _as_json(tuned, files), (*tuned.reasons, tuned.verdict)
    options.show.result(content, *_tables(tuned), *words, files=files)


def _tune_pairs(path: Path, options: TuneOptions) -> None:
    """Learn the correlation of the errors of two scans; write settings.toml and pairs.csv."""
    options.check_pairs_alone()
    files = [options.output / name for name in (SETTINGS_NAME, PAIRS_NAME)]
    if files[1].exists() and files[1].samefile(path):
        raise UsageError(f"--output must be another folder: {files[1]} is what --pairs names")
    start = _read_settings(options.settings)
    with options.show.progress() as progress:
        pairs = read_pairs(path, options.sessions, named_by="pairs")
        tuned = learn_correlation(pairs, start, progress)
    options.show.warn(tuned.warnings)
    prepare_folder(options.output)
    with write_set():
        write_settings(files[0], tuned.settings, f"By perturb-mpm tune --pairs.\n{tuned.verdict}")
        write_pairs(files[1], tuned)
    content = {
        "files": [str(file) for file in files],
        "verdict": tuned.verdict,
        "scan_correlation": tuned.settings.basis.scan_correlation,
        "structures": {
            name: each and {"estimate": each.estimate, "lower": each.lower}
            for name, each in tuned.found.items()
        },
    }
    options.show.result(content, tuned.verdict, files=files)


@contextmanager
def _kernel_folder(settings: RunSettings, folder: Path) -> Iterator[str | Path]:
    """Give a folder for kernels, which are prepared again and again: the user's or one for now."""
    if settings.compute.kernel_cache is not None:
        yield settings.compute.kernel_cache
        return
    for old in folder.glob(f"{KERNELS}*"):  # of a command that was killed
        shutil.rmtree(old, ignore_errors=True)
    with TemporaryDirectory(prefix=KERNELS, dir=folder, ignore_cleanup_errors=True) as made:
        yield made


def _read_settings(path: Path | None) -> RunSettings:
    with usage_errors("--settings "):
        return RunSettings() if path is None else read_settings(path)


def _change_settings(settings: RunSettings, options: TuneOptions) -> RunSettings:
    """Return the settings with the threads and regions given on the command line."""
    if options.threads is not None:
        with usage_errors("--"):
            settings = settings.changed(threads=options.threads)
    if options.region is not None:
        settings = settings.changed(regions=region_values_from_text(options.region))
    return settings


def _read_cases(
    options: TuneOptions, threads: int | None, progress: StagedProgress
) -> dict[str, Case]:
    model, probabilities, data = options.model, options.probabilities, options.data
    if data is None:
        raise UsageError("--data or --pairs must be given")
    if options.is_cohort(data):
        cases = read_cohort_cases(data, options.truth, progress)
        options.check_folds(len(cases), "cases with a truth")
        return cases
    scheme = None if options.labels is None else labels_from_text(options.labels)
    if options.layout is None or scheme is None:
        raise UsageError("--layout and --labels must be given, but for the folder of a cohort")
    if (probabilities is None) == (model is None):
        raise UsageError("either --probabilities or --model must be given, and not both")
    files = find_labelled_cases(data, options.layout)
    options.check_folds(len(files))
    if model is not None:
        return classify_cases(files, model, scheme, progress, threads)
    if probabilities is None or not probabilities.is_dir():
        raise UsageError(f"--probabilities must be a folder, got {probabilities}")
    return read_labelled_cases(files, probabilities, common_sequences(files), scheme, progress)


def _write(folder: Path, tuned: Tuned) -> list[Path]:
    files = [folder / SETTINGS_NAME, folder / SCORES_NAME]
    with write_set():
        write_settings(files[0], tuned.settings, f"Learned by perturb-mpm tune.\n{tuned.verdict}")
        write_scores(files[1], tuned)
    return files


def _as_json(tuned: Tuned, files: list[Path]) -> dict[str, object]:
    """Return the result; what a method does not say is left out."""
    return {
        "files": [str(file) for file in files],
        "verdict": tuned.verdict,
        "cases": sum(map(len, tuned.folds)),
        "folds": [list(fold) for fold in tuned.folds],
        "regions": list(tuned.regions),
        "methods": means(tuned.scores, tuned.regions),
        "reasons": list(tuned.reasons),
        "settings": tuned.settings.identity(),
    }


def _tables(tuned: Tuned) -> Iterator[Table]:
    """Yield tables of every method on cases left out, side by side."""
    maps = "Labels and maps of cases left out, means (Dice: of cases with the region)"
    left_out = "of cases left out: 95 % intervals"
    titled = {
        maps: maps_table(tuned),
        f"Volumes {left_out}": intervals_table(tuned),
        f"Dice of the label maps {left_out}": intervals_table(tuned, "dice"),
        f"Other measures {left_out}": intervals_table(tuned, "measures"),
    }
    for title, (header, rows) in titled.items():
        if rows:
            table = text_table(header, rows, words=0, title=title)
            table.columns[0].no_wrap = True
            yield table
