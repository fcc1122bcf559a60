"""A run in numbers: volumes with intervals, uncertainty of each label, and what made them."""

from __future__ import annotations

import math
import platform
from importlib.metadata import version as installed
from typing import Any

import numpy as np

from perturb_mpm.io.case import Case
from perturb_mpm.pipeline.result import Maps
from perturb_mpm.pipeline.settings import RunSettings
from perturb_mpm.pipeline.words import perturbation_in_words
from perturb_mpm.uncertainty import CERTAIN, UNCERTAIN, UNDECIDED
from perturb_mpm.version import version

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
        "seed": settings.seed,
        "estimator": settings.estimator,
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
    return any(field.scale > 0 for field in settings.fields)


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
