"""Leave one patient out: probabilities of every patient by a model that never saw it.

For a test patient k a model is trained on all others. Its own folds then give, for each of these,
probabilities by trees that saw neither that patient nor k: whatever is tuned on them, CRF
parameters say, is tested on k without having seen it.

Where the folds are of one patient each, every forest lacks two patients, k and one other, and is
the one that is needed when that other is left out: each is grown once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from perturb_mpm.progress import Silent, StagedProgress
from perturb_mpm.segmenter import (
    Calibration,
    Ensemble,
    EnsembleSettings,
    FeatureStore,
    ReadScene,
    TrainingVoxels,
    Trees,
    calibrate_ensemble,
    train_ensemble,
)

_FEWEST = 4  # one left out, one to be spoken of, two to learn from


@dataclass(frozen=True, eq=False)
class HeldOutProbabilities:
    """What is known of one test patient, and what may be tuned on for it.

    Probabilities are calibrated, (N, L) in the order of the mask of the patient's scene.
    """

    test: str
    probabilities: NDArray[np.float32]  # of the test patient, by all trees
    without_temperature: NDArray[np.float32]  # the same before the temperature
    tuning: dict[str, NDArray[np.float32]]  # of each other patient, by trees that saw neither
    calibration: Calibration


def held_out_probabilities(
    cases: Mapping[str, ReadScene],
    n_labels: int,
    *,
    cache: Path,
    seed: int = 0,
    settings: EnsembleSettings | None = None,
    tests: Sequence[str] | None = None,
    progress: StagedProgress | None = None,
) -> Iterator[HeldOutProbabilities]:
    """Yield the probabilities of each test patient in turn, all patients by default.

    ``cache`` is a folder for the features, which every turn needs again: about 60 MB a patient at
    2 mm.
    """
    names = list(cases)
    if len(names) < _FEWEST:
        raise ValueError(
            f"there must be at least {_FEWEST} cases to leave one out, got {len(names)}"
        )
    progress = progress or Silent()
    wanted = list(names if tests is None else tests)
    whole = FeatureStore(cases, cache)
    settings = settings or EnsembleSettings()
    shared: SharedForests | None = None
    if len(names) - 1 <= settings.folds:
        shared = SharedForests(TrainingVoxels.draw(whole, n_labels, seed, settings, progress))
    for test in wanted:
        progress.stage(f"growing trees without {test}")
        store = whole.without(test)
        if shared is not None:
            ensemble = shared.ensemble(test)
        else:
            ensemble = train_ensemble(store, n_labels, seed, settings)
        calibration, others = calibrate_ensemble(store, ensemble)
        answers = ensemble.predict(whole.features(test))
        yield HeldOutProbabilities(
            test,
            calibration.apply(answers),
            calibration.without_temperature().apply(answers),
            {name: calibration.apply(each.probabilities) for name, each in others.items()},
            calibration,
        )


@dataclass(frozen=True, eq=False)
class SharedForests:
    """Forests without two patients, each grown when first asked for and reused for the other."""

    shown: TrainingVoxels
    grown: dict[tuple[int, int], Trees] = field(default_factory=dict)

    def ensemble(self, test: str) -> Ensemble:
        """Return the ensemble of all patients but one, in folds of one patient each."""
        names = list(self.shown.labels)
        own = names.index(test)
        others = [index for index in range(len(names)) if index != own]
        pairs = [(min(own, other), max(own, other)) for other in others]
        missing = [pair for pair in pairs if pair not in self.grown]
        left_out = [[names[index] for index in pair] for pair in missing]
        self.grown.update(zip(missing, self.shown.grow_forests(left_out, missing)))
        return Ensemble(
            self.shown.n_labels,
            tuple((names[other],) for other in others),
            tuple(self.grown[pair] for pair in pairs),
            self.shown.label_shares([test]),
        )
