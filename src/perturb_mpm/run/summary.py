"""A finished run in maps, numbers and words: volumes with intervals, and what made them."""

from __future__ import annotations

import math
import platform
from dataclasses import dataclass
from importlib.metadata import version as installed
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perturb_mpm.files import Case, LabelScheme
from perturb_mpm.noise import Field
from perturb_mpm.posterior import CERTAIN, UNCERTAIN, UNDECIDED, Posterior
from perturb_mpm.run.drawing import Drawn
from perturb_mpm.run.settings import KernelSettings, RunSettings
from perturb_mpm.version import version


@dataclass(frozen=True)
class Maps:
    """What was found at every voxel; outside the mask label 0, for certain."""

    posterior: Posterior
    labels: NDArray[np.uint8]  # (X, Y, Z) label indices
    marginals: NDArray[np.float32]  # (L, X, Y, Z)
    entropy: NDArray[np.float32]  # (X, Y, Z) bits
    uncertainty: NDArray[np.uint8]  # (X, Y, Z) 0 certain, 1 undecided, 2 uncertain
    sampled_labels: NDArray[np.uint8]  # (K, X, Y, Z) label indices
    snapshots: dict[int, NDArray[np.float32]]  # samples -> (X, Y, Z) bits


def maps_of(drawn: Drawn) -> Maps:
    """Return the maps of all samples, and those on the way there."""
    posterior = drawn.posterior
    if posterior is None:
        raise ValueError("drawn must hold samples, got none")
    scatter = posterior.grid.scatter
    return Maps(
        posterior=posterior,
        labels=posterior.labels,
        marginals=posterior.marginals.astype(np.float32),
        entropy=posterior.entropy.astype(np.float32),
        uncertainty=posterior.uncertainty_map(),
        sampled_labels=scatter(np.stack(drawn.labels), 0),
        snapshots={n: scatter(bits, 0) for n, bits in sorted(drawn.snapshots.items())},
    )


def perturbation_in_words(settings: RunSettings, labels: LabelScheme) -> str:
    """Return which perturbation the samples come from."""
    noise = "Gumbel noise, independent at every voxel"
    fields = [field for field in settings.sampling.fields if field.scale > 0]
    if not fields:
        return f"{noise}, without random fields"
    return f"{noise}, and {'; '.join(_field(field, labels) for field in fields)}"


def parameters_in_words(settings: RunSettings) -> dict[str, object]:
    """Return the parameters as a reader of the report wants them, with their units."""
    rows: dict[str, object] = {
        "seed": settings.sampling.seed,
        "mean-field iterations": settings.sampling.iterations,
        "estimator": settings.sampling.estimator,
        "temperature": settings.temperature,
        "smallest probability": settings.clip,
    }
    if settings.sampling.until is not None:
        rows["sampled until frequencies are within"] = f"±{settings.sampling.until.epsilon:g}"
    if settings.bias is not None:
        rows["bias (nats)"] = _listed(settings.bias)
    for kernel in settings.kernels:
        rows[f"{kernel.kind} kernel"] = _kernel(kernel)
    rows["engine"] = f"{settings.compute.engine}, {settings.compute.accuracy}"
    return rows


def _field(field: Field, labels: LabelScheme) -> str:
    length = "one offset for the whole image"
    if math.isfinite(field.length_mm):
        length = f"a smooth random field of length {field.length_mm:g} mm"
    whose = "for each label"
    if field.labels is not None:
        whose = f"shared by {', '.join(labels.names[label] for label in field.labels)}"
    return f"{length} and scale {field.scale:g} nats {whose}"


def _kernel(kernel: KernelSettings) -> str:
    words = f"{_listed(kernel.sigma_space)} mm"
    if kernel.sigma_intensity_sd is not None:
        words += f", {_listed(kernel.sigma_intensity_sd)} sd of intensity"
    own = ", own compatibility" if kernel.compatibility is not None else ""
    return f"{words}, weight {kernel.weight:g}{own}"


def _listed(numbers: float | tuple[float, ...]) -> str:
    each = numbers if isinstance(numbers, tuple) else (numbers,)
    return ", ".join(f"{number:g}" for number in each)


INTERVAL = 0.95
CLASSES = {"certain": CERTAIN, "undecided": UNDECIDED, "uncertain": UNCERTAIN}


def summary_of(
    case: Case, settings: RunSettings, maps: Maps, identity: dict[str, Any]
) -> dict[str, Any]:
    """Return all but the files and the timings, as values that JSON can hold."""
    posterior = maps.posterior
    inside = case.mask
    return {
        "samples": posterior.samples,
        "seed": settings.sampling.seed,
        "estimator": settings.sampling.estimator,
        "perturbation": perturbation_in_words(settings, case.labels),
        "volumes_reflect_voxel_noise_alone": not _has_fields(settings),
        "labels": _labels(case, maps),
        "entropy": {
            "mean_bits": float(maps.entropy[inside].mean(dtype=np.float64)),
            "mean_bits_corrected": posterior.mean_entropy(),
            "largest_bits": float(maps.entropy.max()),
            "largest_possible_bits": math.log2(posterior.n_labels),
        },
        "uncertainty": {
            "threshold": 0.05,
            "confidence": 0.95,
            **{f"{name}_frac": _share(maps, inside, each) for name, each in CLASSES.items()},
        },
        "largest_label_change_frac": _largest_change(maps),
        "mask": {
            "origin": case.mask_origin,
            "voxels": posterior.grid.voxels,
            "volume_ml": posterior.grid.voxels * _voxel_ml(case),
        },
        "image": {
            "names": list(case.images),
            "shape": case.geometry.shape,
            "spacing_mm": case.geometry.spacing,
            "affine_mm": case.geometry.affine.tolist(),
        },
        "parameters": identity["parameters"],
        "reading": identity["reading"],
        "inputs_sha256": identity["inputs"],
        "problem_sha256": identity["problem"],
        "versions": _versions(posterior.parameters),
    }


def _has_fields(settings: RunSettings) -> bool:
    return any(field.scale > 0 for field in settings.sampling.fields)


def _labels(case: Case, maps: Maps) -> list[dict[str, Any]]:
    """Return a row for each label; volumes are inside the mask."""
    volumes_ml = maps.posterior.volumes / 1000  # (S, L)
    lower, upper = maps.posterior.volume_interval(INTERVAL) / 1000  # each (L,)
    rows = []
    for l, (value, name) in enumerate(zip(case.labels.values, case.labels.names)):
        here = (maps.labels == l) & case.mask
        found = bool(here.any())
        rows.append(
            {
                "value": value,
                "name": name,
                "volume_ml": int(here.sum()) * _voxel_ml(case),
                "sampled_mean_ml": float(volumes_ml[:, l].mean()),
                "sampled_sd_ml": float(volumes_ml[:, l].std()),
                "interval_level": INTERVAL,
                "interval_lower_ml": float(lower[l]),
                "interval_upper_ml": float(upper[l]),
                "mean_entropy_bits": (
                    float(maps.entropy[here].mean(dtype=np.float64)) if found else None
                ),
                **{
                    f"{word}_frac": _share(maps, here, each) if found else None
                    for word, each in CLASSES.items()
                },
            }
        )
    return rows


def _share(maps: Maps, where: np.ndarray[Any, np.dtype[np.bool_]], value: int) -> float:
    return float((maps.uncertainty[where] == value).mean())


def _largest_change(maps: Maps) -> float | None:
    changes = maps.posterior.label_changes
    return None if changes is None else float(changes.max())


def _voxel_ml(case: Case) -> float:
    return math.prod(case.geometry.spacing) / 1000


def _versions(parameters: dict[str, Any]) -> dict[str, str]:
    return {
        "perturb-mpm": version(),
        "engine": f"{parameters['engine']}, {parameters['accuracy']}",
        "python": platform.python_version(),
        "numpy": installed("numpy"),
        "numba": installed("numba"),
        "nibabel": installed("nibabel"),
    }
