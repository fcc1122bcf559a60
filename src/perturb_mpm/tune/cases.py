"""Cases to tune on: with their truth, and with probabilities that were not learned from it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from perturb_mpm.assess import read_cohort
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
)
from perturb_mpm.progress import Silent, StagedProgress
from perturb_mpm.run import load_run
from perturb_mpm.segmenter import (
    SegmenterModel,
    limit_threads,
    prepare_images,
    require_scheme,
)


def read_labelled_cases(
    files: Sequence[CaseFiles],
    folder: Path,
    sequences: Sequence[str],
    scheme: LabelScheme,
    progress: StagedProgress | None = None,
) -> dict[str, Case]:
    """Read cases whose probabilities are files CASE.nii.gz or CASE.npz in a folder."""
    progress = progress or Silent()
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
    progress: StagedProgress | None = None,
    threads: int | None = None,
) -> dict[str, Case]:
    """Read cases, and let the model of a file say how probable each label is.

    A case that the model was trained on is answered by those of its trees that never saw it.
    """
    progress = progress or Silent()
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
    folder: Path, truths: Path | None = None, progress: StagedProgress | None = None
) -> dict[str, Case]:
    """Read the cases of a cohort's folder that are done and have a truth, as they were run.

    Truths are the cohort's own, or CASE.nii.gz in the folder ``truths``.
    """
    progress = progress or Silent()
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
