"""What to tune on: cases with their truth, or pairs of scans in which nothing changed.

The probabilities of cases were not learned from their truth; pairs teach the correlation of the
errors of two scans.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from perturb_mpm.assess import ScanPair, have_same_grid, pair_warnings, read_cohort, sampled_volumes
from perturb_mpm.biomarkers import ScanCorrelation, fit_correlation
from perturb_mpm.files import (
    Case,
    CaseFiles,
    InputError,
    LabelScheme,
    Source,
    find_probabilities,
    read_case,
    read_images,
    read_label_map,
    write_table,
)
from perturb_mpm.progress import SILENT, StagedProgress
from perturb_mpm.run import Run, RunSettings, learned_law, load_run, measured_patient
from perturb_mpm.segmenter import SegmenterModel, limit_threads, prepare_images, require_scheme

FEWEST_PAIRS = 3
_ENDS = (0.025, 0.5, 0.975)


def read_labelled_cases(
    files: Sequence[CaseFiles],
    folder: Path,
    sequences: Sequence[str],
    scheme: LabelScheme,
    progress: StagedProgress = SILENT,
) -> dict[str, Case]:
    """Read cases whose probabilities are files CASE.nii.gz or CASE.npz in a folder."""
    paths = [_find_probabilities(case, folder) for case in files]
    progress.stage("reading the cases")
    read = {}
    for case, path in zip(files, paths, strict=True):
        images = case.select_images(sequences)
        found = read_case(
            list(images.values()),
            [path],
            mask=case.mask,
            image_names=list(images),
            named_by="data",
            labels=scheme,
            truth=case.truth,
        )
        read[case.name] = replace(found, truth=case.read_truth(found.geometry, scheme))
        progress(len(read), len(files))
    return read


def classify_cases(
    files: Sequence[CaseFiles],
    path: Path,
    scheme: LabelScheme,
    progress: StagedProgress = SILENT,
    threads: int | None = None,
) -> dict[str, Case]:
    """Read cases, and let the model of a file say how probable each label is.

    A case that the model was trained on is answered by those of its trees that never saw it.
    """
    model = SegmenterModel.load(path)
    require_scheme(model, scheme, Source("model", path))
    progress.stage("classifying the cases")
    read = {}
    for case in files:
        wanted = case.select_images(model.sequences)
        found = read_images(
            list(wanted.values()), mask=case.mask, image_names=list(wanted), named_by="data"
        )
        prepared = prepare_images(found, f"`data`: case {case.name}")
        with limit_threads(threads):
            probabilities = model.honest_probabilities(case.name, prepared)
        truth = case.read_truth(found.geometry, scheme)
        read[case.name] = Case.from_images(found, probabilities, scheme, truth)
        progress(len(read), len(files))
    return read


def read_cohort_cases(
    folder: Path, truths: Path | None = None, progress: StagedProgress = SILENT
) -> dict[str, Case]:
    """Read the cases of a cohort's folder that are done and have a truth, as they were run.

    Truths are the cohort's own, or CASE.nii.gz in the folder ``truths``.
    """
    files = read_cohort(folder, truths)
    progress.stage("reading the cases")
    read: dict[str, Case] = {}
    for each in files:
        case = load_run(folder / each.name).case
        source = Source("truth", each.truth or folder)
        like = Source("data", folder / each.name)
        truth = read_label_map(source, case.labels, case.geometry, like, mask=case.mask)
        read[each.name] = replace(case, truth=truth)
        first = next(iter(read.values()))
        if case.labels != first.labels:
            raise InputError(
                f"`data` must have cases of the same labels, got {first.labels.names} and "
                f"{case.labels.names} of {each.name}"
            )
        progress(len(read), len(files))
    return read


def _find_probabilities(case: CaseFiles, folder: Path) -> Path:
    path = find_probabilities(folder, case.name)
    if path is None:
        raise InputError(
            f"`probabilities` must hold {case.name}.npz or {case.name}.nii.gz, got none in {folder}"
        )
    return path


@dataclass(frozen=True, eq=False)
class TunedPairs:
    """What pairs of scans teach, by structure, and the settings that say so."""

    settings: RunSettings
    pairs: Sequence[ScanPair]
    volumes: Mapping[str, Sequence[tuple[NDArray[np.float64], NDArray[np.float64]]]]
    """By structure the sampled volumes of both scans of each pair, (S,) ml."""
    found: Mapping[str, ScanCorrelation | None]
    warnings: Sequence[str] = ()

    @property
    def verdict(self) -> str:
        """What was learned, in a few sentences."""
        parts = [
            f"{name}: no samples that vary"
            if each is None
            else f"{name}: about {each.estimate:.2f}, with 95 % confidence above {each.lower:.2f}"
            for name, each in self.found.items()
        ]
        used = self.settings.basis.scan_correlation
        words = f"Correlation of errors in {len(self.pairs)} pairs of scans: {'; '.join(parts)}. "
        if used > 0:
            words += f"Change takes {used:.2f}, the least that is sure, "
            return words + "where both runs were made with these settings."
        return words + "No correlation is sure, so that change takes 0, as without pairs."


def learn_correlation(
    pairs: Sequence[ScanPair], start: RunSettings, progress: StagedProgress = SILENT
) -> TunedPairs:
    """Learn from runs of patients in whom nothing changed, each on one grid.

    Every region counts, or every label where there are none; the least sure one decides.
    """
    if len(pairs) < FEWEST_PAIRS:
        raise InputError(f"`pairs` must be at least {FEWEST_PAIRS}, got {len(pairs)}")
    progress.stage("reading pairs of scans")
    volumes: dict[str, list[tuple[NDArray[np.float64], NDArray[np.float64]]]] = {}
    warnings: list[str] = []
    for done, pair in enumerate(pairs, start=1):
        runs = load_run(pair.before), load_run(pair.after)
        digests = [sorted(run.case.hashes.values()) for run in runs]
        if pair.before.resolve() == pair.after.resolve() or digests[0] == digests[1] != []:
            raise InputError(
                f"`pairs` must be of two scans, got two runs of the same files in {pair.case}: "
                f"{pair.before} and {pair.after}"
            )
        warnings += [f"{pair.case}: {words}" for words in pair_warnings(*runs)]
        if not have_same_grid(*runs):
            raise InputError(f"`pairs` must be registered: {pair.case} lies on two grids")
        names = [_structures(run) for run in runs]
        if (done > 1 and names[0] != list(volumes)) or names[0] != names[1]:
            raise InputError(f"`pairs` must have the same structures, got others in {pair.case}")
        for name, both in zip(names[0], zip(*(_volumes(run, names[0]) for run in runs))):
            volumes.setdefault(name, []).append(both)
        progress(done, len(pairs))
    found = {name: fit_correlation(*zip(*each)) for name, each in volumes.items()}
    least = min((each.lower if each else 0.0 for each in found.values()), default=0.0)
    settings = start.changed(scan_correlation=round(least, 3))
    return TunedPairs(settings, pairs, volumes, found, warnings)


def _structures(run: Run) -> list[str]:
    return list(run.regions or measured_patient(run).structures)


def _volumes(run: Run, names: Sequence[str]) -> list[NDArray[np.float64]]:
    """Return the sampled volumes of each structure, as wide as the run's settings make them."""
    if run.settings.intervals == "none":
        raise InputError(
            f"`pairs` must be runs with correlated noise, got independent noise in {run.folder}"
        )
    found = sampled_volumes(run, names)
    laws = [learned_law(run, column) for column in found.columns]
    values = [found[column.key] for column in found.columns]
    return [each if law is None else law.move(each) for law, each in zip(laws, values)]


def write_pairs(path: Path, tuned: TunedPairs) -> None:
    """Write the volumes of both scans of every pair as CSV, a row a pair and structure."""
    columns = [
        f"{scan}_{end}_ml" for scan in ("before", "after") for end in ("lower", "median", "upper")
    ]
    rows = []
    for name, volumes in tuned.volumes.items():
        for pair, both in zip(tuned.pairs, volumes, strict=True):
            numbers = [q for each in both for q in np.quantile(each, _ENDS)]
            rows.append([pair.case, name, *(f"{each:.6g}" for each in numbers)])
    write_table(path, ["case", "structure", *columns], rows)
