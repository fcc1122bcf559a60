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
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perturb_mpm.checks import ExpectedError
from perturb_mpm.files import Case, Geometry, LabelScheme
from perturb_mpm.model import Grid
from perturb_mpm.posterior import Posterior
from perturb_mpm.run.settings import RunSettings, settings_from_text
from perturb_mpm.storage import read_arrays, write_arrays
from perturb_mpm.version import version


def write_case(path: Path, case: Case) -> None:
    """Write images, probabilities inside the mask, mask, labels and geometry."""
    words = {
        "image_names": list(case.images),
        "label_values": case.labels.values,
        "label_names": case.labels.names,
        "mask_origin": case.mask_origin,
        "spacing_mm": case.geometry.spacing,
        "hashes": case.hashes,
        "warnings": case.warnings,
    }
    images = list(case.images.values())
    arrays: dict[str, NDArray[Any]] = {
        "header": np.array(json.dumps(words)),
        "images": np.stack(images) if images else np.zeros((0, *case.geometry.shape), np.float32),
        "probabilities": _grid(case.geometry, case.mask).gather(case.probabilities),  # (L, N)
        "mask": case.mask,
        "affine": case.geometry.affine,
        "nifti_header": np.frombuffer(case.geometry.header.binaryblock, dtype=np.uint8),
    }
    write_arrays(path, arrays)


def read_case_file(path: Path) -> Case:
    """Read what ``write_case`` wrote; outside the mask label 0 has the probability 1."""
    arrays = read_arrays(path)
    words = json.loads(arrays["header"].item())
    mask = arrays["mask"]
    geometry = Geometry(
        shape=mask.shape,
        affine=arrays["affine"],
        spacing=tuple(words["spacing_mm"]),
        header=_nifti_header(arrays["nifti_header"]),
    )
    probabilities = arrays["probabilities"]  # (L, N)
    outside = np.arange(len(probabilities)) == 0
    return Case(
        images=dict(zip(words["image_names"], arrays["images"], strict=True)),
        probabilities=_grid(geometry, mask).scatter(probabilities, outside),
        mask=mask,
        mask_origin=words["mask_origin"],
        labels=LabelScheme(tuple(words["label_values"]), tuple(words["label_names"])),
        geometry=geometry,
        hashes=words["hashes"],
        warnings=tuple(words["warnings"]),
    )


def _grid(geometry: Geometry, mask: NDArray[np.bool_]) -> Grid:
    return Grid(geometry.shape, geometry.spacing, mask)


def _nifti_header(block: NDArray[np.uint8]) -> Any:  # noqa: ANN401
    from nibabel.nifti1 import Nifti1Header
    from nibabel.nifti2 import Nifti2Header

    first: Any = Nifti1Header
    second: Any = Nifti2Header
    kind = second if block.size == second.template_dtype.itemsize else first
    return kind(block.tobytes())


FORMAT = "perturb-mpm run"
FORMAT_VERSION = 1

_NOTHING = object()
_MOST_NAMED = 3  # an error is one line


def identity_of(
    case: Case, settings: RunSettings, reading: Mapping[str, object], problem: str
) -> dict[str, Any]:
    """Return what must agree before a run goes on; ``problem`` is the digest of its CRF."""
    identity = {
        "format": FORMAT,
        "format_version": FORMAT_VERSION,
        "version": version(),
        "inputs": case.hashes,
        "reading": dict(reading),
        "mask": case.mask_origin,
        "labels": {"values": case.labels.values, "names": case.labels.names},
        "parameters": settings.identity(),
        "problem": problem,
    }
    plain: dict[str, Any] = json.loads(json.dumps(identity, allow_nan=False))
    return plain


def difference(before: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """Return in words what two runs differ in, nothing where they are the same."""
    keys = [key for key in now if key != "problem"]
    found = [words for key in keys for words in _compare(key, before.get(key, _NOTHING), now[key])]
    if not found and before.get("problem") != now["problem"]:
        found = ["the energies and kernels made of the inputs"]
    left = len(found) - _MOST_NAMED
    return "; ".join(found[:_MOST_NAMED] + ([f"and {left} more"] if left > 0 else []))


def _compare(name: str, before: object, now: object) -> Iterator[str]:
    """Name each entry that differs, at any depth."""
    if isinstance(before, Mapping) and isinstance(now, Mapping):
        for key in [*before, *(key for key in now if key not in before)]:
            yield from _compare(f"{name}.{key}", before.get(key, _NOTHING), now.get(key, _NOTHING))
    elif isinstance(before, list) and isinstance(now, list) and len(before) == len(now):
        for place, (one, other) in enumerate(zip(before, now)):
            yield from _compare(f"{name}[{place}]", one, other)
    elif before is _NOTHING or now is _NOTHING or before != now:
        yield f"{name} was {_shown(before)}, is {_shown(now)}"


def _shown(value: object) -> str:
    text = "absent" if value is _NOTHING else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 40 else text[:37] + "..."


STATE = "state"
KEPT_SAMPLES = 16


class StateError(ExpectedError):
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
