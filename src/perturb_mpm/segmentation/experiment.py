"""Leave one patient out: probabilities of every patient by a model that never saw it.

For a test patient k a model is trained on all others. Its own folds then give, for each of these,
probabilities by trees that saw neither that patient nor k: whatever is tuned on them, CRF
parameters say, is tested on k without having seen it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from perturb_mpm.segmentation.calibration import Calibration, fit_calibration
from perturb_mpm.segmentation.ensemble import EnsembleSettings, train_ensemble
from perturb_mpm.segmentation.store import FeatureStore, TrainingCase
from perturb_mpm.segmentation.training import held_out_answers, prior_ratio


@dataclass(frozen=True, eq=False)
class HeldOutProbabilities:
    """What is known of one test patient, and what may be tuned on for it.

    Probabilities are calibrated, (N, L) in the order of the mask of the patient's scene.
    """

    test: str
    probabilities: NDArray[np.float32]  # of the test patient, by all trees
    untempered: NDArray[np.float32]  # the same before the temperature
    tuning: dict[str, NDArray[np.float32]]  # of each other patient, by trees that saw neither
    calibration: Calibration


def held_out_probabilities(
    cases: Sequence[TrainingCase],
    n_labels: int,
    *,
    cache: Path,
    seed: int = 0,
    settings: EnsembleSettings | None = None,
    tests: Sequence[str] | None = None,
    progress: Callable[[str, int, int], None] | None = None,
) -> Iterator[HeldOutProbabilities]:
    """Yield the probabilities of each test patient in turn, all patients unless told otherwise.

    ``cache`` is a folder for the features, which every turn needs again: about 60 MB a patient at
    2 mm.
    """
    names = [case.name for case in cases]
    wanted = list(names if tests is None else tests)
    whole = FeatureStore(cases, cache)
    for number, test in enumerate(wanted):
        if progress:
            progress("leave-one-out", number, len(wanted))
        store = whole.without(test)
        ensemble = train_ensemble(store, n_labels, seed, settings or EnsembleSettings())
        others = held_out_answers(store, ensemble)
        calibration = fit_calibration(list(others.values()), prior_ratio(store, ensemble).tolist())
        said = ensemble.predict(whole.features(test))
        yield HeldOutProbabilities(
            test,
            calibration.apply(said),
            calibration.untempered().apply(said),
            {name: calibration.apply(each.probabilities) for name, each in others.items()},
            calibration,
        )
