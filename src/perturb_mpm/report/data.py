"""What a report shows: plain arrays and tables, wherever they come from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Snapshot:
    """The entropy map after the first ``samples`` samples."""

    samples: int
    entropy: NDArray[np.float32]  # (X, Y, Z) bits


@dataclass(frozen=True)
class ReportData:
    """One patient's result. Labels are indices 0 … L − 1 here; ``label_values`` are the user's."""

    title: str
    images: Mapping[str, NDArray[np.float32]]  # name -> (X, Y, Z); the first is shown by default
    mask: NDArray[np.bool_]  # (X, Y, Z)
    labels: NDArray[np.uint8]  # (X, Y, Z) indices
    entropy: NDArray[np.float32]  # (X, Y, Z) bits, 0 … log2 L
    uncertainty: NDArray[np.uint8]  # (X, Y, Z) 0 certain, 1 undecided, 2 uncertain
    marginals: NDArray[np.float32]  # (L, X, Y, Z)
    affine: NDArray[np.float64]  # (4, 4)
    spacing: tuple[float, float, float]  # mm
    label_values: tuple[int, ...]
    label_names: tuple[str, ...]
    volumes_mm3: NDArray[np.float64]  # (S, L), one row a sample
    independent_noise: bool  # True: the paper's noise alone; False: with smooth random fields
    perturbation: str  # in words, for the page
    snapshots: tuple[Snapshot, ...]  # in rising number of samples; the last is all of them
    sampled_labels: NDArray[np.uint8]  # (K, X, Y, Z) a few sampled segmentations, indices
    truth: NDArray[np.uint8] | None = None  # (X, Y, Z) indices, where one is known
    parameters: Mapping[str, object] = field(default_factory=dict)  # shown as a table
    warnings: tuple[str, ...] = ()
    colour_map: str = "inferno"  # or "viridis", "jet", "hot"
