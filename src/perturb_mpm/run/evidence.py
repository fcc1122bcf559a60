"""What a run decides without a label: from what image and grid say about a case's probabilities.

- **Strength of the kernels.** With κ the skill of the image (``image_evidence``: the share of what
  position leaves open that voxels that look alike predict), kernels act with strength

      s(κ) = κ − 0.25,  at least 0 and at most 0.5,

  and with the bandwidth of the best skill. Where intensities say nothing about the labels, kernels
  erode what they should refine: s is 0 there. Stronger kernels than half serve some labels better,
  and make volumes too sure of themselves.
- **Temperature.** That of the grid (``grid_temperature``): a border is known no better than its
  voxels. Kernels make probabilities surer than they were; where none act, soft borders are left as
  they are (``spare_soft_borders``).
- **Temperature of the samples.** Where kernels act, the same. Where they do not, 1: what the grid
  adds is doubt about single voxels, which are rounded one by one and cancel in a volume, while the
  noise of a sample is correlated over the whole structure.
- **Correlation length of the noise.** The radius of the structure.

What settings say is never changed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from perturb_mpm.files import Case, standard_name
from perturb_mpm.learning import (
    ImageEvidence,
    ask_image_and_grid,
    case_properties,
    find_unfamiliar,
    spare_soft_borders,
)
from perturb_mpm.run.settings import DEFAULT_BILATERAL, RunSettings, SettingsError

NO_KERNELS_BELOW = 0.25
"""The skill below which kernels do not act."""

STRONGEST = 0.5
"""How strongly they act at most."""


@dataclass(frozen=True)
class CaseEvidence:
    """What image and grid say about the probabilities of a case; None where they say nothing."""

    image: ImageEvidence | None
    temperature: float | None  # of the grid

    @property
    def strength(self) -> float:
        """How strongly kernels act."""
        if self.image is None:
            return 0.0
        return round(min(max(self.image.skill - NO_KERNELS_BELOW, 0.0), STRONGEST), 2)

    @property
    def map_temperature(self) -> float:
        """The temperature of the maps."""
        found = max(self.temperature or 1.0, 1.0)
        return round(found if self.strength else spare_soft_borders(found), 2)

    def as_json(self) -> dict[str, Any]:
        """Return it as values that JSON can hold."""
        return asdict(self)

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> CaseEvidence:
        """Return what ``as_json`` wrote; TypeError or KeyError where it is something else."""
        image, temperature = found["image"], found["temperature"]
        if image is not None:
            numbers = {
                name: float(image[name]) for name in ("skill", "sigma_space", "sigma_intensity")
            }
            image = ImageEvidence(**numbers, skills=tuple(map(float, image["skills"])))
        return cls(image, None if temperature is None else float(temperature))


def find_evidence(case: Case) -> CaseEvidence:
    """Return what image and grid say about the probabilities of a case."""
    from threadpoolctl import threadpool_limits

    # Each is done by one core: products are so small that others would only wait for each other.
    with threadpool_limits(1, user_api="blas"):
        found = ask_image_and_grid(list(case.images.values()), case.probabilities, case.grid)
    return CaseEvidence(*found)


def is_decided(settings: RunSettings) -> bool:
    """Whether settings leave nothing that a case decides."""
    return None not in (
        settings.unary.temperature,
        settings.coupling.strength,
        settings.sampling.noise_length,
    )


def decide_settings(
    settings: RunSettings, case: Case, evidence: CaseEvidence | None = None
) -> RunSettings:
    """Return the settings with a value for all that they leave to the case.

    ``evidence`` is what image and grid say; it is found where it is needed and not given. Settings
    that were learned for other labels, sequences or voxels are refused.
    """
    _require_fit(settings, case)
    if is_decided(settings):
        return settings
    evidence = evidence or find_evidence(case)
    if settings.coupling.strength is None:
        settings = settings.changed(strength=evidence.strength)
        if evidence.image is not None:
            found = replace(DEFAULT_BILATERAL, sigma_intensity_sd=evidence.image.sigma_intensity)
            kernels = (found if each == DEFAULT_BILATERAL else each for each in settings.kernels)
            settings = replace(settings, kernels=tuple(kernels))
    if settings.unary.temperature is None:
        sampled = settings.unary.sampling_temperature
        if sampled is None and not settings.has_kernels:
            sampled = 1.0
        settings = settings.changed(
            temperature=evidence.map_temperature, sampling_temperature=sampled
        )
    if settings.sampling.noise_length is None:
        settings = settings.changed(noise_length=assumed_length_mm(case))
    return settings


def _require_fit(settings: RunSettings, case: Case) -> None:
    """Refuse a case of other labels, sequences or voxels than the settings were learned for."""
    basis, spacing = settings.basis, case.geometry.spacing
    labels = [f"{value}:{name}" for value, name in zip(case.labels.values, case.labels.names)]
    sequences = sorted(map(standard_name, case.images))
    start, words = "`settings` were learned for", " ".join(basis.learned_labels)
    if words and words.lower() != " ".join(labels).lower():
        raise SettingsError(
            f"{start} the labels {words}, got {' '.join(labels)}: if these are the same "
            "structures, say so by `labels`"
        )
    if basis.learned_sequences and sequences != sorted(basis.learned_sequences):
        raise SettingsError(
            f"{start} the sequences {', '.join(basis.learned_sequences)}, got "
            f"{', '.join(case.images)}: if these are the same, name them so by `image_names`"
        )
    low, high = basis.learned_voxels or (0.0, math.inf)
    if min(spacing) < low or max(spacing) > high:
        sides = " × ".join(f"{side:.3g}" for side in spacing)
        raise SettingsError(f"{start} voxels of {low:g} to {high:g} mm, got {sides} mm")


def describe_unfamiliar(
    case: Case, settings: RunSettings, evidence: CaseEvidence
) -> tuple[str, ...]:
    """Return what of a case lies outside of the cases that settings were learned from, in words."""
    if not settings.tuning_ranges:
        return ()
    properties = case_properties(
        case.images,
        case.probabilities,
        spacing=case.geometry.spacing,
        mask=case.mask,
        skill=None if evidence.image is None else evidence.image.skill,
        temperature=evidence.temperature,
    )
    return tuple(map(str, find_unfamiliar(properties, settings.tuning_ranges)))


def assumed_length_mm(case: Case) -> float:
    """Return the correlation length of the noise where none is given: the structure's radius.

    It is the radius of a ball of the volume that the probabilities expect as foreground.
    """
    inside = case.grid.gather(case.probabilities[1:])
    expected_mm3 = float(inside.sum(dtype=np.float64)) * math.prod(case.geometry.spacing)
    return round(math.cbrt(3 * expected_mm3 / (4 * math.pi)), 1)
