"""What a run keeps beside its outputs, to go on after an interruption and to be solved again.

Everything is in the folder ``state`` of the run's folder; each file appears whole or not at all,
and none is pickled. N counts the voxels inside the mask in C order, L the labels.

    run.json       written first: what the run is (inputs' SHA-256, label scheme, parameters,
                   version, digest of the CRF), and under "about" its title, its settings as TOML
                   and the names of its output files relative to the run's folder
    case.npz       header (JSON text), images (C, X, Y, Z) float32, probabilities (L, N) float32,
                   mask (X, Y, Z) bool, affine (4, 4), nifti_header (bytes)
    samples.npz    labels (K, N) uint8: the first K ≤ 16 sampled segmentations, label indices
    snapshots.npz  samples (k,) int64, entropy (k, N) float32: the map in bits after so many samples
    posterior.npz  all votes so far: ``perturb_mpm.Posterior.load`` reads it
    lock           held while a run writes here

A correction made in the viewer adds files of its own.

``posterior.npz`` is the last file of a checkpoint. Samples and snapshots are functions of the
sample's number alone, so that what they hold beyond it is right all the same.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perturb_mpm.io.case import Case
from perturb_mpm.pipeline.arrays import read_arrays, write_arrays
from perturb_mpm.pipeline.case_file import read_case_file
from perturb_mpm.pipeline.settings import RunSettings, settings_from_text
from perturb_mpm.posterior import Posterior

STATE = "state"
KEPT_SAMPLES = 16


class StateError(ValueError):
    """A folder does not hold the state of a run, or holds a damaged one."""


@dataclass(frozen=True)
class RunState:
    """A run as it stands in its folder."""

    folder: Path
    title: str
    files: Mapping[str, Path]  # plain name, as in "labels" -> file
    case: Case
    settings: RunSettings
    posterior: Posterior
    sampled_labels: NDArray[np.uint8]  # (K, X, Y, Z) label indices of samples 0 … K − 1


@dataclass(frozen=True)
class Snapshots:
    """Entropy maps after rising numbers of samples, inside the mask."""

    samples: tuple[int, ...]
    entropy: NDArray[np.float32]  # (k, N) bits


def load_state(folder: Path) -> RunState:
    """Read the run in ``folder``; ``pipeline.model.build_crf(case, settings)`` is its CRF."""
    place = Path(folder) / STATE
    about = read_run(place)
    if about is None:
        raise StateError(f"{folder} holds no run of perturb-mpm: it has no {STATE}/run.json")
    if not (place / "posterior.npz").is_file():
        raise StateError(f"{folder} holds a run without samples: finish it with --resume first")
    posterior = read_posterior(place)
    kept = read_samples(place)  # (K, N)
    return RunState(
        folder=Path(folder),
        title=about["about"]["title"],
        files={name: Path(folder) / file for name, file in about["about"]["files"].items()},
        case=read_case_file(place / "case.npz"),
        settings=settings_from_text(about["about"]["settings"]),
        posterior=posterior,
        sampled_labels=posterior.grid.scatter(kept, 0),
    )


def read_run(place: Path) -> dict[str, Any] | None:
    """Return what run.json says, None where there is none."""
    try:
        found: dict[str, Any] = json.loads((place / "run.json").read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise StateError(f"{place / 'run.json'} cannot be read: {error}") from error
    return found


def read_posterior(place: Path) -> Posterior:
    """Return the votes so far."""
    return Posterior.load(place / "posterior.npz")


def write_samples(place: Path, labels: NDArray[np.uint8]) -> None:
    """Keep the first sampled segmentations, (K, N)."""
    write_arrays(place / "samples.npz", {"labels": labels})


def read_samples(place: Path) -> NDArray[np.uint8]:
    """Return the sampled segmentations that are kept, (K, N)."""
    labels: NDArray[np.uint8] = read_arrays(place / "samples.npz")["labels"]
    return labels


def write_snapshots(place: Path, snapshots: Snapshots) -> None:
    """Keep the entropy maps."""
    arrays = {"samples": np.array(snapshots.samples), "entropy": snapshots.entropy}
    write_arrays(place / "snapshots.npz", arrays)


def read_snapshots(place: Path) -> Snapshots:
    """Return the entropy maps that are kept."""
    arrays = read_arrays(place / "snapshots.npz")
    return Snapshots(tuple(arrays["samples"].tolist()), arrays["entropy"])
