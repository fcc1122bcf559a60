"""The patients of the segmentation experiment, and each turn in which one of them is left out.

A turn holds the probabilities of its test patient by trees that were trained on all others, and
those of each other patient by trees that saw neither it nor the test patient. They are kept on
disk, for they cost most of the time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from lab.patients import (
    GLIOMA_REGIONS,
    PHANTOM_REGIONS,
    Patient,
    data_digest,
    labelled_case,
    phantom_patient,
)
from lab.store import PartStore
from perturb_mpm.evaluation import Regions
from perturb_mpm.progress import StagedProgress

PROBABILITIES = "probabilities"  # the folder of what the trees say

_TREES = (
    "The classifier is {trees}. In a turn it is trained on all others, and\n"
    "the CRF is tuned on these too, on probabilities by trees that saw neither the patient they\n"
    "speak of nor the one left out"
)
_MADE_UP = (
    "The classifier is the imperfect one that comes with a made-up patient, and has no\n"
    "temperature of its own. In a turn the CRF is tuned on all others"
)
_TUNING = "tuning/"
_TREE_WORDS = {
    False: "the boosted trees of `perturb-mpm train`",
    True: "the decision forest of `perturb-mpm train --forest`",
}


@dataclass(frozen=True, eq=False)
class LeftOut:
    """One patient left out. Probabilities are (N, L), in the order of the patient's mask."""

    test: str
    raw: NDArray[np.float32]  # of the test patient, before its temperature
    probabilities: NDArray[np.float32]  # of the test patient
    tuning: dict[str, NDArray[np.float32]]  # of each other patient


@dataclass(frozen=True, eq=False)
class LeaveOneOut:
    """All patients, the regions that are measured, and the turns in which each is left out."""

    patients: dict[str, Patient]
    regions: Regions
    origin: str  # who they are, in words
    unaries: str  # where their probabilities come from, in words
    identity: dict[str, object]  # all that the probabilities depend on
    turns: Callable[[Sequence[str]], Iterator[LeftOut]]

    def stored_turns(self, names: Sequence[str], store: PartStore) -> Iterator[LeftOut]:
        """Yield the turns of these patients in their order, from the store where they are there.

        New ones go through the store too, so that a first run sees what a resumed one sees.
        """
        found = {name: store.load_arrays(name) for name in names}
        grown = self.turns([name for name, arrays in found.items() if arrays is None])
        for name in names:
            arrays = found.pop(name)
            if arrays is None:
                store.save_arrays(name, _arrays(next(grown)))
                arrays = store.load_arrays(name) or {}
            yield _left_out(name, arrays)


def glioma_patients(
    data: Path, folder: Path, seed: int, progress: StagedProgress, *, forest: bool = False
) -> LeaveOneOut:
    """Return patients in the BraTS layout, labels of 2021, and trees that leave them out.

    ``folder`` is where the features are kept, under the digest of the data. The trees are boosted,
    or a random forest.
    """
    from lab.segmentation.left_out import held_out_probabilities
    from perturb_mpm.files import SCHEMES, STANDARD, find_labelled_cases
    from perturb_mpm.segmenter import EnsembleSettings, RandomForest, training_cases

    scheme = SCHEMES["brats2021"]
    cases = training_cases(find_labelled_cases(data, "brats"), STANDARD, scheme)
    patients = {}
    progress.stage("reading the patients")
    for number, (name, read) in enumerate(cases.items(), start=1):
        scene = read()
        truth = np.zeros(scene.mask.shape, dtype=np.uint8)
        truth[scene.mask] = 0 if scene.truth is None else scene.truth
        images = dict(zip(STANDARD, scene.images))
        affine = np.diag([*scene.spacing, 1.0])
        found = labelled_case(images, scene.mask, truth, scheme, affine)
        patients[name] = Patient(name, found)
        progress(number, len(cases))
    settings = EnsembleSettings(trees=RandomForest()) if forest else EnsembleSettings()
    data_sha256 = data_digest(patients.values())

    def turns(tests: Sequence[str]) -> Iterator[LeftOut]:
        cache = folder / "features" / data_sha256[:16]
        cache.mkdir(parents=True, exist_ok=True)
        for found in held_out_probabilities(
            cases,
            len(scheme),
            cache=cache,
            seed=seed,
            settings=settings,
            tests=tests,
            progress=progress,
        ):
            yield LeftOut(found.test, found.without_temperature, found.probabilities, found.tuning)

    return LeaveOneOut(
        patients,
        GLIOMA_REGIONS,
        f"The patients are real: {len(cases)} of {data.name}",
        _TREES.format(trees=_TREE_WORDS[forest]),
        {
            "patients": list(patients),
            "data_sha256": data_sha256,
            "seed": seed,
            "forest": {"trees": type(settings.trees).__name__, **asdict(settings)},
        },
        turns,
    )


def made_up_patients(number: int, spacing_mm: float, seed: int) -> LeaveOneOut:
    """Return made-up patients, whose classifier comes with them."""
    from lab.phantoms import cohort

    made = {f"phantom-{p.seed}": p for p in cohort(number, seed=seed, spacing_mm=spacing_mm)}
    patients = {name: phantom_patient(name, p, p.probabilities) for name, p in made.items()}
    said = {name: np.ascontiguousarray(p.probabilities[:, p.mask].T) for name, p in made.items()}

    def turns(tests: Sequence[str]) -> Iterator[LeftOut]:
        for test in tests:
            others = {name: each for name, each in said.items() if name != test}
            yield LeftOut(test, said[test], said[test], others)

    return LeaveOneOut(
        patients,
        PHANTOM_REGIONS,
        f"The patients are made up: {number} at {spacing_mm:g} mm",
        _MADE_UP,
        {
            "patients": list(patients),
            "data_sha256": data_digest(patients.values()),
            "seed": seed,
            "forest": "the phantom's classifier",
        },
        turns,
    )


def _arrays(turn: LeftOut) -> dict[str, NDArray[np.float32]]:
    others = {f"{_TUNING}{name}": each for name, each in turn.tuning.items()}
    return {"raw": turn.raw, "test": turn.probabilities, **others}


def _left_out(test: str, arrays: dict[str, NDArray[np.float32]]) -> LeftOut:
    tuning = {
        key.removeprefix(_TUNING): each for key, each in arrays.items() if key.startswith(_TUNING)
    }
    return LeftOut(test, arrays["raw"], arrays["test"], tuning)
