"""What a report shows: arrays and tables, checked before anything is drawn."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import NDArray

from perturb_mpm import checks
from perturb_mpm.report.colours import COLOUR_MAPS, grey_window

if TYPE_CHECKING:
    from perturb_mpm.report.findings import Findings

VolumeKind = Literal["region", "label", "background", "together"]

_MAPS = ("labels", "entropy", "uncertainty")  # of ReportData, (X, Y, Z) each


@dataclass(frozen=True)
class Snapshot:
    """The entropy map after the first ``samples`` samples."""

    samples: int
    entropy: NDArray[np.float32]  # (X, Y, Z) bits


@dataclass(frozen=True, eq=False)
class VolumeRow:
    """The volume of a region, of a label, or of all but the background together, in ml."""

    name: str
    kind: VolumeKind
    values: tuple[int, ...]  # the user's numbers of its labels
    volume_ml: float  # of the label map
    samples_ml: NDArray[np.float64]  # (S,)
    interval_ml: tuple[float, float]  # 95 %; NaN without samples, or where noise is white
    truth_ml: float = math.nan  # where it is known

    @property
    def mean_ml(self) -> float:
        """The mean of the sampled volumes."""
        return float(self.samples_ml.mean()) if len(self.samples_ml) else math.nan

    @property
    def sd_ml(self) -> float:
        """The standard deviation of the sampled volumes, 0 of one sample."""
        count = len(self.samples_ml)
        return float(self.samples_ml.std(ddof=min(1, count - 1))) if count else math.nan

    @property
    def median_ml(self) -> float:
        """The middle of the sampled volumes."""
        return float(np.median(self.samples_ml)) if len(self.samples_ml) else math.nan

    @property
    def coefficient_of_variation(self) -> float:
        """Standard deviation over mean of the sampled volumes; NaN where there is none."""
        if len(self.samples_ml) < 2 or self.mean_ml == 0.0:
            return math.nan
        return self.sd_ml / self.mean_ml


@dataclass(frozen=True)
class Provenance:
    """Where a result comes from."""

    version: str = ""  # of perturb-mpm
    date: str = ""  # when the run began, such as 2026-03-31
    inputs: Mapping[str, str] = field(default_factory=dict)  # file name -> SHA-256
    kernels: str = ""  # in words
    convergence: str = ""  # of the samples, in sentences
    maps: str = ""  # what labels and maps are made of, in words
    software: Mapping[str, str] = field(default_factory=dict)  # name -> version


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
    samples: int
    volumes: tuple[VolumeRow, ...]  # regions first; that of the background is not shown
    intervals: str  # what those of volumes rest on: "none", "assumed" or "learned"
    perturbation: str  # in words, for the page
    snapshots: tuple[Snapshot, ...]  # in rising number of samples; the last is all of them
    sampled_labels: NDArray[np.uint8]  # (K, X, Y, Z) a few sampled segmentations, indices
    truth: NDArray[np.uint8] | None = None  # (X, Y, Z) indices, where one is known
    parameters: Mapping[str, object] = field(default_factory=dict)  # shown as a table
    warnings: tuple[str, ...] = ()
    learned_cases: int = 0  # from how many labelled cases
    by_samples: bool = True  # whether the maps are counted from samples, or are the mean field's
    regions: Mapping[str, tuple[int, ...]] = field(default_factory=dict)  # name -> labels
    members: int = 0  # of an ensemble
    disagreement: NDArray[np.float32] | None = None  # (X, Y, Z) bits, their mutual information
    colour_map: str = "inferno"  # or "viridis", "jet", "hot"
    provenance: Provenance = field(default_factory=Provenance)
    evidence: str = ""  # what the image says about the probabilities, in a sentence
    # By name of a row: median, lower and upper end of the Dice of label map and truth.
    agreement: Mapping[str, tuple[float, float, float]] = field(default_factory=dict)
    before_kernels: NDArray[np.uint8] | None = None  # (X, Y, Z) indices, where kernels act
    findings: Findings | None = None
    oriented: bool = True  # whether the affine says which side of the patient is which

    @cached_property
    def windows(self) -> dict[str, tuple[float, float]]:
        """The values of each sequence that are black and brightest."""
        images = shown_images(self.images, self.mask)
        return {name: grey_window(image[self.mask]) for name, image in images.items()}


def shown_images(
    images: Mapping[str, NDArray[np.float32]], mask: NDArray[np.bool_]
) -> Mapping[str, NDArray[np.float32]]:
    """Return the sequences, and the mask where there is none."""
    return images or {"mask": mask.astype(np.float32)}


def check_data(data: ReportData) -> ReportData:
    """Return the data with three spatial axes, after checking that all shapes agree."""
    checks.choice(data.colour_map, "colour_map", COLOUR_MAPS)
    shape = data.mask.shape
    if len(shape) not in (2, 3) or 0 in shape:
        raise ValueError(f"mask must have two or three axes with voxels, got shape {shape}")
    for name, found in _spatial_shapes(data).items():
        if found != shape:
            raise ValueError(f"{name} must have the mask's shape {shape}, got {found}")
    labels = len(data.label_names)
    for name, found_labels in {
        "marginals": len(data.marginals),
        "label_values": len(data.label_values),
    }.items():
        if found_labels != labels:
            raise ValueError(
                f"{name} must hold the {labels} labels of label_names, got {found_labels}"
            )
    affine = np.asarray(data.affine)
    if affine.shape != (4, 4) or not np.linalg.det(affine[:3, :3]):
        raise ValueError("affine must be a (4, 4) matrix that can be inverted")
    return data if len(shape) == 3 else _with_third_axis(data)


def _spatial_shapes(data: ReportData) -> dict[str, tuple[int, ...]]:
    shapes = {f"image {name!r}": image.shape for name, image in data.images.items()}
    shapes |= {name: getattr(data, name).shape for name in _MAPS}
    shapes |= {f"snapshot {each.samples}": each.entropy.shape for each in data.snapshots}
    shapes["marginals"] = data.marginals.shape[1:]
    shapes["sampled_labels"] = data.sampled_labels.shape[1:]
    for name in ("truth", "disagreement", "before_kernels"):
        if (given := getattr(data, name)) is not None:
            shapes[name] = given.shape
    return shapes


def _with_third_axis(data: ReportData) -> ReportData:
    """Return a flat image as a volume of one slice."""
    optional = ("truth", "disagreement", "before_kernels")
    names = (*_MAPS, "mask", "marginals", "sampled_labels", *optional)
    arrays = {name: getattr(data, name) for name in names}
    given = {name: array[..., None] for name, array in arrays.items() if array is not None}
    return replace(
        data,
        images={name: image[..., None] for name, image in data.images.items()},
        snapshots=tuple(Snapshot(s.samples, s.entropy[..., None]) for s in data.snapshots),
        **given,
    )
