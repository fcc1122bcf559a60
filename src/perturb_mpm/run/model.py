"""A case and its settings as a dense CRF, and what to warn of before it is sampled."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perturb_mpm.files import Case, region_members
from perturb_mpm.model import (
    BilateralKernel,
    DenseCRF,
    Grid,
    Kernel,
    SpatialKernel,
    unary_from_probabilities,
)
from perturb_mpm.posterior import check_nested
from perturb_mpm.run.settings import KernelSettings, RunSettings, SettingsError
from perturb_mpm.sampling import Sampler

# Where more than this share of the voxels is surer than this, hardly a sample will dissent.
SURE = 0.999
SHARE_OF_SURE = 0.99


def build_crf(case: Case, settings: RunSettings | None = None) -> DenseCRF:
    """Return the CRF of a case: unaries by temperature, clip and bias, kernels in mm.

    Without settings it has those of ``run``.

    Examples
    --------
    >>> case = pm.read_case(["t1c.nii.gz", "flair.nii.gz"], "case.npz")
    >>> crf = pm.build_crf(case, pm.RunSettings().changed(temperature=1.5))
    >>> crf.n_labels, len(crf.kernels)
    (5, 2)
    """
    settings = settings or RunSettings()
    grid = Grid(case.geometry.shape, case.geometry.spacing, case.mask)
    energies = unary_energies(grid.gather(case.probabilities), settings)  # (L, N)
    scaled = [
        replace(each, weight=settings.coupling.strength * each.weight) for each in settings.kernels
    ]
    return DenseCRF(
        grid.scatter(energies, 0),
        [_kernel(each, case) for each in scaled if each.weight > 0],
        spacing=case.geometry.spacing,
        mask=case.mask,
        centring=settings.coupling.centring,
    )


def assumed_length_mm(case: Case) -> float:
    """Return the correlation length of the noise where none is given: the structure's radius.

    It is the radius of a ball of the volume that the probabilities expect as foreground.
    """
    inside = case.probabilities[1:, case.mask]
    expected_mm3 = float(inside.sum(dtype=np.float64)) * math.prod(case.geometry.spacing)
    return round(math.cbrt(3 * expected_mm3 / (4 * math.pi)), 1)


def with_assumed_length(settings: RunSettings, case: Case) -> RunSettings:
    """Return the settings with a length of the noise, unless they say one."""
    if settings.sampling.noise_length is not None:
        return settings
    return settings.changed(noise_length=assumed_length_mm(case))


def with_regions(settings: RunSettings, case: Case) -> RunSettings:
    """Return the settings with the case's own regions, unless they say some."""
    regions = settings.regions or case.regions
    try:
        check_nested(region_members(regions, case.labels))
    except ValueError as error:
        raise SettingsError(str(error)) from error
    return replace(settings, regions=regions)


def member_energies(case: Case, settings: RunSettings) -> list[NDArray[Any]]:
    """Return the unary energies (L, N) of each member that samples cycle through."""
    if settings.unary.members == "mean":
        return []
    if case.ensemble is None or case.ensemble.members is None:
        raise ValueError('`members="cycle"` needs several whole `probabilities`, got one')
    grid = Grid(case.geometry.shape, case.geometry.spacing, case.mask)
    return [unary_energies(grid.gather(each), settings) for each in case.ensemble.members]


def build_sampler(
    crf: DenseCRF, settings: RunSettings, members: Sequence[NDArray[Any]] = ()
) -> Sampler:
    """Return the sampler of a CRF; wrong settings are refused, and nothing is computed yet.

    Samples cycle through ``members``, unaries (L, N), where there are any.
    """
    sampling = settings.sampling
    if sampling.until is not None:
        sampling.until.check_reachable(sampling.samples, crf.n_labels, crf.grid.voxels)
    return Sampler(crf, sampling, settings.compute, members)


def unary_energies(probabilities: NDArray[Any], settings: RunSettings) -> NDArray[Any]:
    """Return the unary energies U − bias of probabilities, (L, N) → (L, N)."""
    energies = unary_from_probabilities(
        probabilities, settings.unary.temperature, settings.unary.clip
    )
    if settings.unary.bias is not None:
        if len(settings.unary.bias) != len(energies):
            raise ValueError(
                f"bias must have one number for each of the {len(energies)} labels, "
                f"got {len(settings.unary.bias)}"
            )
        energies -= np.asarray(settings.unary.bias, dtype=energies.dtype)[:, np.newaxis]
    return energies


def overconfidence(case: Case, settings: RunSettings) -> str | None:
    """Return a warning where the probabilities leave next to nothing to be uncertain about."""
    sure = float((case.probabilities.max(axis=0)[case.mask] > SURE).mean())
    if sure <= SHARE_OF_SURE or settings.unary.temperature > 1:
        return None
    return (
        f"probabilities are above {SURE} in {100 * sure:.1f} % of the voxels, so the uncertainty "
        "map will be nearly empty: networks are often too sure, soften them by a temperature above "
        "1, such as 2, best chosen on cases with known labels"
    )


def _kernel(settings: KernelSettings, case: Case) -> Kernel:
    if settings.kind == "spatial":
        return SpatialKernel(
            settings.sigma_space,
            settings.weight,
            settings.normalization,
            settings.compatibility,
        )
    return BilateralKernel(
        np.stack(list(case.images.values())),  # (C, X, Y, Z)
        sigma_space=settings.sigma_space,
        sigma_intensity=settings.sigma_intensity_sd or (),
        weight=settings.weight,
        normalization=settings.normalization,
        compatibility=settings.compatibility,
    )
