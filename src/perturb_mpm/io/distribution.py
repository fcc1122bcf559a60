"""Maps turned into a distribution over exclusive labels, whatever they hold."""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import NDArray

from perturb_mpm.checks import FEWEST_LABELS, MOST_LABELS
from perturb_mpm.io.dataset_json import Dataset
from perturb_mpm.io.maps import Maps
from perturb_mpm.io.probabilities import check_regions, normalise, sigmoid, softmax

Kind = Literal["probabilities", "logits", "labels"]


def distribution_of(
    maps: Maps, kind: Kind, dataset: Dataset | None
) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
    """Return the distribution (L, X, Y, Z), and where there is none (X, Y, Z)."""
    values = maps.values
    if dataset is not None and len(values) != dataset.maps:
        what = "labels" if dataset.regions is None else "regions"
        raise maps.source.error(
            f"must have one map for each of the {dataset.maps} {what} of {dataset.source.path}, "
            f"got {len(values)}"
        )
    nowhere = np.zeros(values.shape[1:], dtype=bool)
    if dataset is not None and dataset.regions is not None:
        if kind == "logits":
            sigmoid(values, maps.source)
        check_regions(values, maps.source)
        return dataset.regions.exclusive(values), nowhere
    if not FEWEST_LABELS <= len(values) <= MOST_LABELS:
        raise maps.source.error(
            f"must have {FEWEST_LABELS} to {MOST_LABELS} labels with background, got {len(values)}"
        )
    if kind == "logits":
        softmax(values, maps.source)
        return values, nowhere
    return values, normalise(values, maps.source)
