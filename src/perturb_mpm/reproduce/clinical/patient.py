"""One patient of an experiment: what is segmented, what is true, and what raters drew."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from perturb_mpm.io.case import Case, LabelScheme
from perturb_mpm.io.geometry import geometry_from_affine
from perturb_mpm.phantom import Phantom
from perturb_mpm.pipeline.model import build_crf, build_sampler
from perturb_mpm.pipeline.settings import RunSettings
from perturb_mpm.posterior import Estimator, Posterior


@dataclass(frozen=True, eq=False)
class Patient:
    """A case with its truth; labels are indices."""

    name: str
    case: Case
    truth: NDArray[np.uint8]  # (X, Y, Z)
    raters: NDArray[np.uint8] | None = None  # (R, X, Y, Z)


def phantom_patient(
    name: str,
    phantom: Phantom,
    probabilities: NDArray[np.float32],
    raters: NDArray[np.uint8] | None = None,
    label_names: Sequence[str] | None = None,
) -> Patient:
    """Return a made-up patient with the probabilities (L, X, Y, Z) of a classifier."""
    names = tuple(label_names or phantom.label_names)
    x, y, z = phantom.truth.shape
    case = Case(
        images=dict(zip(phantom.channel_names, phantom.images)),
        probabilities=probabilities,
        mask=phantom.mask,
        mask_origin="the phantom's brain",
        labels=LabelScheme(tuple(range(len(names))), names),
        geometry=geometry_from_affine((x, y, z), phantom.affine),
        hashes={},
    )
    return Patient(name, case, phantom.truth, raters)


def sampled(patient: Patient, settings: RunSettings, estimator: Estimator = "votes") -> Posterior:
    """Sample a patient's segmentations; the mean field comes along."""
    settings = replace(settings, estimator=estimator, noise_scale=None, until=None)
    sampler = build_sampler(build_crf(patient.case, settings), settings)
    return sampler.draw(settings.samples)
