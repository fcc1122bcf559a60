"""Predictions and label maps read from files, one by one or as a cohort's table."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from perturb_mpm.evaluation import Prediction, from_marginals, from_posterior, from_samples
from perturb_mpm.files import (
    Geometry,
    InputError,
    LabelScheme,
    Source,
    Volume,
    difference,
    label_indices,
    read_volume,
)
from perturb_mpm.posterior import Posterior
from perturb_mpm.posterior import Source as Estimator
from perturb_mpm.run import STATE, StateError, load_state


@dataclass(frozen=True)
class Entry:
    """One case of a cohort."""

    case: str
    prediction: Path
    truth: Path | None
    raters: tuple[Path, ...] = ()
    mask: Path | None = None


def read_cohort(path: Path) -> list[Entry]:
    """Read the columns case, prediction, truth, mask and any number that begin with rater.

    Empty fields are left out; each case needs a prediction and a truth or a rater.
    """
    source = Source("--table", path)
    lines = read_lines(source, required=("case", "prediction"), known=("truth", "mask"))
    entries = []
    for number, line in enumerate(lines, start=2):
        paths = {name: path.parent / text for name, text in line.items() if text and name != "case"}
        if not line["case"] or "prediction" not in paths:
            raise source.error(f"line {number} must name a case and its prediction")
        raters = tuple(paths[name] for name in paths if name.startswith("rater"))
        if "truth" not in paths and not raters:
            raise source.error(f"line {number} must name a truth or a rater")
        entries.append(
            Entry(line["case"], paths["prediction"], paths.get("truth"), raters, paths.get("mask"))
        )
    names = [entry.case for entry in entries]
    if len(set(names)) < len(names):
        raise source.error("must name every case once")
    return entries


def read_lines(
    source: Source, required: tuple[str, ...], known: tuple[str, ...]
) -> list[dict[str, str]]:
    """Read a CSV file with a heading; columns that begin with rater are always known."""
    try:
        with source.path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.DictReader(file, restkey="", restval="")
            columns = [name.strip() for name in reader.fieldnames or ()]
            reader.fieldnames = columns
            lines = [{k: (v or "").strip() for k, v in line.items() if k} for line in reader]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"{source} cannot be read: {error}") from error
    missing = [name for name in required if name not in columns]
    strange = [
        name for name in columns if name not in (*required, *known) and not name.startswith("rater")
    ]
    if missing or strange:
        raise source.error(
            f"must have the columns {', '.join(required)} and may have {', '.join(known)} and "
            f"rater columns, got {', '.join(columns) or 'none'}"
        )
    if not lines:
        raise source.error("must hold at least one line below its heading, got none")
    return lines


@dataclass(frozen=True, eq=False)
class Segmentation:
    """A prediction with what is needed to compare it with files."""

    prediction: Prediction
    scheme: LabelScheme
    geometry: Geometry
    sampled_labels: NDArray[np.uint8] | None  # (K, X, Y, Z) label indices
    posterior: Posterior | None
    perturbation: str
    """What the samples come from, in words."""


def read_segmentation(
    path: Path,
    scheme: LabelScheme | None = None,
    mask: Path | None = None,
    estimator: Estimator | None = None,
) -> Segmentation:
    """Read a folder of ``perturb-mpm run``, or a 4-D NIfTI file of label maps or marginals.

    Whole numbers along the fourth axis are sampled label maps, one a sample; numbers between are
    marginals, one a label. A file needs ``scheme``: label values are never guessed.
    """
    if path.is_dir():
        return _from_run(path, estimator)
    source = Source("--prediction", path)
    if scheme is None:
        raise source.error("needs --label-values: what its labels are cannot be guessed")
    volume = read_volume(source)
    if volume.voxels.ndim != 4:
        raise source.error(
            "must be a folder of perturb-mpm run, or have four axes with a label map a sample or "
            f"a marginal a label, got shape {volume.voxels.shape}"
        )
    inside = _mask(mask, volume)
    maps = np.moveaxis(volume.voxels, 3, 0)
    try:
        if _are_whole(maps):
            labels = np.stack([label_indices(each, scheme, source) for each in maps])
            prediction = from_samples(labels, len(scheme), volume.geometry.spacing, inside)
            words = f"{len(labels)} label maps from {path.name}"
            return Segmentation(prediction, scheme, volume.geometry, labels, None, words)
        if len(maps) != len(scheme):
            raise source.error(f"must hold {len(scheme)} marginals, one a label, got {len(maps)}")
        prediction = from_marginals(maps, volume.geometry.spacing, inside)
    except InputError:
        raise
    except (TypeError, ValueError) as error:
        raise source.error(str(error)) from error
    return Segmentation(prediction, scheme, volume.geometry, None, None, "none: marginals alone")


def read_labels(source: Source, like: Segmentation) -> NDArray[np.uint8]:
    """Read a label map on the grid of a segmentation, as label indices (X, Y, Z)."""
    volume = read_volume(source)
    if volume.voxels.ndim != 3:
        raise source.error(f"must be one label map, got shape {volume.voxels.shape}")
    words = difference(volume.geometry, like.geometry)
    if words is not None:
        raise source.error(f"must lie on the grid of the prediction, got {words}")
    return label_indices(volume.voxels, like.scheme, source)


def regions_of(words: Sequence[str], scheme: LabelScheme) -> dict[str, tuple[int, ...]]:
    """Return named sets of label indices from "core=1,4", in the user's label values."""
    regions: dict[str, tuple[int, ...]] = {}
    for each in words:
        name, _, values = each.partition("=")
        try:
            asked = [int(value) for value in values.split(",")]
            members = tuple(scheme.values.index(value) for value in asked)
        except ValueError:
            raise InputError(
                "--region must be a name and label values, as in core=1,4, with values out of "
                f"{', '.join(map(str, scheme.values))}, got {each!r}"
            ) from None
        if not name or 0 in members or len(set(members)) < len(members):
            raise InputError(
                f"--region must be a name and different foreground labels, got {each!r}"
            )
        regions[name] = members
    return regions


def _from_run(folder: Path, estimator: Estimator | None) -> Segmentation:
    try:
        state = load_state(folder)
        prediction = from_posterior(state.posterior, estimator)
    except (StateError, ValueError) as error:
        raise InputError(f"--prediction {folder}: {error}") from error
    return Segmentation(
        prediction,
        state.case.labels,
        state.case.geometry,
        state.sampled_labels,
        state.posterior,
        _perturbation(state.settings.sampling.fields),
    )


def _perturbation(fields: Sequence[object]) -> str:
    if fields:
        return f"Gumbel noise at every voxel and {len(fields)} smooth random fields"
    return "independent Gumbel noise at every voxel, which makes volumes far too certain"


def is_run(path: Path) -> bool:
    """Whether a path is a folder that ``perturb-mpm run`` wrote."""
    return (path / STATE / "run.json").is_file()


def _mask(path: Path | None, volume: Volume) -> NDArray[np.bool_] | None:
    if path is None:
        return None
    source = Source("--mask", path)
    mask = read_volume(source)
    words = difference(mask.geometry, volume.geometry)
    if words is not None or mask.voxels.ndim != 3:
        raise source.error(f"must lie on the grid of the prediction, got {words or 'four axes'}")
    if not mask.voxels.any():
        raise source.error("must hold a voxel that is not 0, got none")
    inside: NDArray[np.bool_] = mask.voxels != 0
    return inside


def _are_whole(maps: NDArray[np.float32]) -> bool:
    """Whether all values are whole, and not just a one-hot distribution over the labels."""
    return bool((maps == np.floor(maps)).all()) and not bool((maps.sum(axis=0) == 1).all())
