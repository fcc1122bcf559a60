"""The patients of the segmentation experiment, and each turn in which one of them is left out.

A turn holds the probabilities of its test patient by a forest that was trained on all others, and
those of each other patient by trees that saw neither it nor the test patient. Turns are kept on
disk: they cost most of the time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perturb_mpm.learning import Regions
from perturb_mpm.model import (
    BilateralKernel,
    DenseCRF,
    Grid,
    Kernel,
    SpatialKernel,
    unary_from_probabilities,
)
from perturb_mpm.storage import atomic_open

GLIOMA_REGIONS: Regions = {"whole tumour": (1, 2, 3), "core": (1, 3), "enhancing": (3,)}
PHANTOM_REGIONS: Regions = {"whole tumour": (1, 2, 3, 4), "core": (1, 3, 4), "enhancing": (4,)}

_FOREST = (
    "In a turn the forest is trained on all others, and the CRF is tuned on these too, on\n"
    "probabilities by trees that saw neither the patient they speak of nor the one left out"
)
_CLASSIFIER = (
    "What is called forest is the imperfect classifier that comes with a made-up patient, and has\n"
    "no temperature of its own. In a turn the CRF is tuned on all others"
)
_UNIT = 65535  # probabilities are kept in 16 bits

Progress = Callable[[str, int, int], None]


@dataclass(frozen=True, eq=False)
class Patient:
    """Images and true labels of one patient."""

    name: str
    images: NDArray[np.float32]  # (C, *spatial)
    mask: NDArray[np.bool_]  # (*spatial)
    spacing: tuple[float, ...]  # mm
    labels: NDArray[np.int64]  # (N,), inside the mask

    @property
    def grid(self) -> Grid:
        """The way from an image to its N voxels."""
        return Grid(self.mask.shape, self.spacing, self.mask)

    @property
    def truth(self) -> NDArray[np.int64]:
        """The true labels, (*spatial)."""
        full: NDArray[np.int64] = self.grid.scatter(self.labels, 0)
        return full

    def crf(self, probabilities: NDArray[np.float32]) -> DenseCRF:
        """Return the CRF that tuning starts from: the defaults of ``run``."""
        kernels: list[Kernel] = [
            SpatialKernel(sigma=3.0, weight=1.0),
            BilateralKernel(self.images, sigma_space=20.0, sigma_intensity=0.5, weight=3.0),
        ]
        energies = unary_from_probabilities(np.ascontiguousarray(probabilities.T))  # (L, N)
        return DenseCRF(
            self.grid.scatter(energies, 0.0), kernels, spacing=self.spacing, mask=self.mask
        )


@dataclass(frozen=True, eq=False)
class Turn:
    """One patient left out. Probabilities are (N, L), in the order of the patient's mask."""

    test: str
    raw: NDArray[np.float32]  # of the test patient, before its temperature
    probabilities: NDArray[np.float32]  # of the test patient
    tuning: dict[str, NDArray[np.float32]]  # of each other patient


@dataclass(frozen=True, eq=False)
class Experiment:
    """All patients, the regions that are measured, and the turns."""

    patients: dict[str, Patient]
    regions: Regions
    origin: str  # who they are, in words
    unaries: str  # where their probabilities come from, in words
    turns: Callable[[Sequence[str]], Iterator[Turn]]


def glioma_experiment(data: Path, folder: Path, seed: int, progress: Progress) -> Experiment:
    """Return the experiment on patients in the BraTS layout, labels of 2021."""
    from lab.segmentation.left_out import held_out_probabilities
    from perturb_mpm.files import SCHEMES
    from perturb_mpm.segmenter import STANDARD, find_cases, training_cases

    scheme = SCHEMES["brats2021"]
    cases = training_cases(find_cases(data, "brats"), STANDARD, scheme)
    patients = {}
    for number, case in enumerate(cases):
        progress("reading the patients", number, len(cases))
        read = case.read()
        patients[case.name] = Patient(
            case.name,
            read.scene.images,
            read.scene.mask,
            read.scene.spacing,
            read.labels.astype(np.int64),
        )

    def turns(tests: Sequence[str]) -> Iterator[Turn]:
        cache = folder / "features"
        cache.mkdir(exist_ok=True)
        for found in held_out_probabilities(
            cases, len(scheme), cache=cache, seed=seed, tests=tests, progress=progress
        ):
            yield Turn(found.test, found.untempered, found.probabilities, found.tuning)

    origin = f"{len(cases)} patients of {data.name}"
    return Experiment(patients, GLIOMA_REGIONS, origin, _FOREST, turns)


def phantom_experiment(count: int, spacing_mm: float, seed: int) -> Experiment:
    """Return the experiment on made-up patients, whose classifier comes with them."""
    from perturb_mpm.phantom import cohort

    made = {f"phantom-{p.seed}": p for p in cohort(count, seed=seed, spacing_mm=spacing_mm)}
    patients = {
        name: Patient(name, p.images, p.mask, tuple(p.spacing), p.truth[p.mask].astype(np.int64))
        for name, p in made.items()
    }
    said = {name: np.ascontiguousarray(p.probabilities[:, p.mask].T) for name, p in made.items()}

    def turns(tests: Sequence[str]) -> Iterator[Turn]:
        for test in tests:
            others = {name: each for name, each in said.items() if name != test}
            yield Turn(test, said[test], said[test], others)

    origin = f"{count} made-up patients at {spacing_mm:g} mm"
    return Experiment(patients, PHANTOM_REGIONS, origin, _CLASSIFIER, turns)


def save_turn(path: Path, turn: Turn) -> None:
    """Keep a turn on disk, probabilities in 16 bits."""
    arrays = {"raw": turn.raw, "test": turn.probabilities}
    arrays |= {f"tuning/{name}": each for name, each in turn.tuning.items()}
    units: dict[str, Any] = {
        key: np.rint(each * _UNIT).astype(np.uint16) for key, each in arrays.items()
    }
    with atomic_open(path) as file:
        np.savez_compressed(file, **units)


def load_turn(path: Path, test: str) -> Turn:
    """Read what ``save_turn`` wrote."""
    with np.load(path, allow_pickle=False) as file:
        found: Mapping[str, NDArray[np.float32]] = {key: _shares(file[key]) for key in file.files}
    tuning = {
        key.removeprefix("tuning/"): each
        for key, each in found.items()
        if key.startswith("tuning/")
    }
    return Turn(test, found["raw"], found["test"], tuning)


def _shares(units: NDArray[np.uint16]) -> NDArray[np.float32]:
    shares = units.astype(np.float32)
    shares /= shares.sum(axis=1, keepdims=True)
    return shares
