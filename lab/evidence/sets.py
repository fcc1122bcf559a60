"""Labelled cases and the probabilities that somebody's classifier gives for them."""

from __future__ import annotations

import csv
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from perturb_mpm.files import (
    SCHEMES,
    Case,
    InputError,
    LabelScheme,
    Source,
    common_sequences,
    find_labelled_cases,
    label_indices,
    read_case,
    read_volume,
)
from perturb_mpm.progress import StagedProgress
from perturb_mpm.run import RunSettings
from perturb_mpm.segmenter import SegmenterModel
from perturb_mpm.tune import classify_cases, read_labelled_cases
from perturb_mpm.version import version

HIPPOCAMPUS = LabelScheme((0, 1, 2), ("background", "anterior", "posterior"))
GLIOMA_REGIONS = {"whole": (1, 2, 4), "core": (1, 4), "enhancing": (4,)}
FOLDS = 5
_MOST_ATLAS_CASES = 20
HIPPOCAMPI = (
    "A 3-D U-Net of four levels on T1 crops of the hippocampus: Medical Segmentation Decathlon,\n"
    "Task04 (Antonelli et al. 2022), whose images and labels are CC BY-SA 4.0."
)
GLIOMAS = (
    "3-D U-Nets of five levels, trained briefly on few patients, for gliomas before surgery at\n"
    "2 mm: BraTS 2021 (Baid et al. 2021; doi:10.7937/jc8x-9874), CC BY 4.0. Their Dice is 0.70 of\n"
    "the whole tumour, 0.40 of its core: of a better network the intervals will be too wide."
)


@dataclass(frozen=True)
class Rival:
    """What another method says of a case: the mean of its softmax, and its label maps."""

    labels: NDArray[np.uint8]  # (S, X, Y, Z)
    mean: NDArray[np.floating] | None = None  # (L, X, Y, Z)

    def marginals(self, n_labels: int) -> NDArray[np.floating]:
        """Return the mean softmax, or the shares of the label maps, (L, X, Y, Z)."""
        if self.mean is not None:
            return self.mean
        return np.stack([(self.labels == label).mean(axis=0) for label in range(n_labels)])


@dataclass(frozen=True)
class LabelledSet:
    """Labelled cases, the settings that tuning starts from, and its folds."""

    name: str
    """Of its classifier, as a heading."""
    page: str
    """Of what tuning is worth on it, without its ending."""
    command: str
    cases: dict[str, Case]
    start: RunSettings
    folds: int
    sequences: tuple[str, ...] = ()
    source: str = ""
    """Of networks and data, for whoever takes what was learned."""
    read_rivals: Callable[[str], Mapping[str, Rival]] = field(default=lambda _: {})
    """What came with a case of other methods, by their names."""


def read_set(
    data: Path, probabilities: Path | None, model: Path | None, progress: StagedProgress
) -> LabelledSet:
    """Read hippocampi from their folder, or gliomas with probabilities or a model beside them."""
    if probabilities is None and model is None:
        cases = {name: read_hippocampus(data, name) for name in case_names(data)}
        folds = min(FOLDS, len(cases))
        rivals = partial(_read_rivals, data)
        command = "python -m lab network --data FOLDER"
        described = ("3-D U-Net", "tune-hippocampi", command, cases, RunSettings(), folds)
        return LabelledSet(*described, ("t1",), HIPPOCAMPI, rivals)
    files, scheme = find_labelled_cases(data, "brats"), SCHEMES["brats2021"]
    if model is not None:
        cases = classify_cases(files, model, scheme, progress)
    elif probabilities is not None:
        sequences = common_sequences(files)
        cases = read_labelled_cases(files, probabilities, sequences, scheme, progress)
    name, page, given = (
        ("U-Nets", "tune-gliomas", "probabilities FOLDER")
        if model is None
        else ("Boosted trees", "tune-gliomas-trees", "model MODEL")
    )
    command = f"python -m lab gliomas --data FOLDER --{given}"
    start = RunSettings(regions=GLIOMA_REGIONS)
    about = GLIOMAS if model is None else "Boosted trees, on gliomas of BraTS 2021 at 2 mm."
    return LabelledSet(
        name, page, command, cases, start, len(cases), common_sequences(files), about
    )


def describe_basis(found: LabelledSet) -> dict[str, object]:
    """Return the labels, sequences and voxel sizes of a set, the latter with a tenth to spare."""
    first = next(iter(found.cases.values())).labels
    sides = [side for case in found.cases.values() for side in case.geometry.spacing]
    return {
        "learned_labels": tuple(f"{v}:{name}" for v, name in zip(first.values, first.names)),
        "learned_sequences": found.sequences,
        "learned_voxels": (round(0.9 * min(sides), 3), round(1.1 * max(sides), 3)),
    }


def describe_origin(found: LabelledSet, command: str) -> str:
    """Return what learned settings say of themselves: the cases, their licence, how and when."""
    return (
        f"{found.source}\nThe numbers below are statistics of these cases and hold no part of them."
        f"\nLearned on {datetime.now(tz=UTC).date()} by version {version()}:\n{command}"
    )


def case_names(data: Path) -> list[str]:
    """Return the names of the cases in the folder's table."""
    table = data / "cases.csv"
    try:
        with table.open(encoding="utf-8-sig", newline="") as file:
            rows = list(csv.DictReader(file))
        names = sorted(Path(next(iter(row.values()))).name.removesuffix(".nii.gz") for row in rows)
    except (OSError, StopIteration, TypeError) as error:
        raise InputError(f"`data` must be the folder of the network's cases: {error}") from error
    return names


def read_hippocampus(data: Path, name: str) -> Case:
    """Read a case's image, the network's probabilities and the truth."""
    image = data / "images" / f"{name}.nii.gz"
    probabilities = data / "probabilities" / f"{name}.npz"
    case = read_case(
        image,
        probabilities,
        reference=image,
        labels=HIPPOCAMPUS,
        image_names=["t1"],
        named_by="data",
    )
    drawn = read_volume(Source("data", data / "labels" / f"{name}.nii.gz"))
    truth = label_indices(drawn.voxels, HIPPOCAMPUS, drawn.source)
    return replace(case, truth=truth.astype(np.uint8))


def _read_rivals(data: Path, name: str) -> dict[str, Rival]:
    with np.load(data / "others" / f"{name}.npz", allow_pickle=False) as file:
        return {
            "ensemble of 5": Rival(file["labels_ensemble"], file["mean_ensemble"]),
            "20 dropout samples": Rival(file["labels_mc"]),
            "8 flips": Rival(file["labels_tta"]),
        }


def other_classifiers(
    data: Path, cases: Mapping[str, Case], model: Path | None, progress: StagedProgress
) -> dict[str, dict[str, Case]]:
    """Return at most 20 of the hippocampi with an atlas' probabilities, and those of trees.

    ``model`` is one that perturb-mpm train made of some of them.
    """
    chosen = list(cases)[:: -(-len(cases) // _MOST_ATLAS_CASES)]
    found = {"atlas": {name: atlas_case(cases, name) for name in chosen}}
    if model is not None:
        known = {name for fold in SegmenterModel.load(model).ensemble.folds for name in fold}
        files = find_labelled_cases(data / "cases.csv", "table")
        shown = [each for each in files if each.name in known]
        found["boosted trees"] = classify_cases(shown, model, HIPPOCAMPUS, progress)
    return found


def atlas_case(cases: Mapping[str, Case], name: str) -> Case:
    """Return a case with the label shares of all others, each crop stretched to this one's."""
    case = cases[name]
    shape, n_labels = case.geometry.shape, len(case.labels)
    total = np.full((n_labels, *shape), 1 / n_labels)  # one vote for any label: none is impossible
    for other in cases:
        truth = cases[other].truth
        if other == name or truth is None:
            continue
        axes = [((np.arange(n) + 0.5) * m / n).astype(int) for n, m in zip(shape, truth.shape)]
        stretched = truth[np.ix_(*axes)]
        total += stretched == np.arange(n_labels).reshape(-1, 1, 1, 1)
    return replace(case, probabilities=(total / len(cases)).astype(np.float32))
