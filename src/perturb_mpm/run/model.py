"""A case and its settings as a dense CRF, and what to warn of before it is sampled."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from perturb_mpm.engines import softmax
from perturb_mpm.files import Case, region_members
from perturb_mpm.model import (
    BilateralKernel,
    DenseCRF,
    Grid,
    Inside,
    Kernel,
    SpatialKernel,
    unary_from_probabilities,
)
from perturb_mpm.posterior import Posterior, check_nested, marginal_entropy
from perturb_mpm.run.evidence import decide_settings
from perturb_mpm.run.settings import KernelSettings, RunSettings, SettingsError
from perturb_mpm.sampling import Sampler

_Real = TypeVar("_Real", bound=np.floating[Any])

# Where more than this share of the voxels is surer than this, hardly a sample will dissent.
SURE = 0.999
SHARE_OF_SURE = 0.99
_AT_ONCE = 1 << 14  # voxels
_UNCERTAIN_BITS = 1e-4  # the entropy from which a voxel is worth softening
_MOST_ASKED = 200_000  # voxels from which an exponent is found, in half a second
# The mean of two laws has at least half of the entropy of either, so this is far off.
_LEAST_EXPONENT = 0.5


def build_crf(case: Case, settings: RunSettings | None = None) -> DenseCRF:
    """Return the CRF of a case: unaries by temperature, clip and bias, kernels in mm.

    Without settings it has those of ``run``; what they leave to the case is decided by it.

    Examples
    --------
    >>> case = pm.read_case(["t1c.nii.gz", "flair.nii.gz"], "case.npz")
    >>> crf = pm.build_crf(case, pm.RunSettings().changed(temperature=1.5))
    >>> crf.n_labels, len(crf.kernels)
    (5, 2)
    """
    settings = decide_settings(settings or RunSettings(), case)
    grid = case.grid
    energies = unary_energies(
        grid.gather(case.probabilities), settings, sampled_temperature(settings)
    )  # (L, N)
    strength = settings.coupling.strength or 0.0
    scaled = [replace(each, weight=strength * each.weight) for each in settings.kernels]
    return DenseCRF(
        Inside(energies, grid),
        [_kernel(each, case, grid) for each in scaled if each.weight > 0],
        centring=settings.coupling.centring,
    )


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
    temperature = sampled_temperature(settings)
    members = case.ensemble.members
    return [unary_energies(case.grid.gather(each), settings, temperature) for each in members]


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


def sampled_temperature(settings: RunSettings) -> float:
    """Return the temperature at which samples are drawn."""
    return settings.unary.sampling_temperature or settings.unary.temperature or 1.0


def unary_energies(
    probabilities: NDArray[Any], settings: RunSettings, temperature: float
) -> NDArray[Any]:
    """Return the unary energies U − bias of probabilities, (L, N) → (L, N)."""
    energies = unary_from_probabilities(probabilities, temperature, settings.unary.clip)
    if settings.unary.bias is not None:
        if len(settings.unary.bias) != len(energies):
            raise ValueError(
                f"bias must have one number for each of the {len(energies)} labels, "
                f"got {len(settings.unary.bias)}"
            )
        energies -= np.asarray(settings.unary.bias, dtype=energies.dtype)[:, np.newaxis]
    return energies


def temper(probabilities: NDArray[_Real], temperature: float, clip: float) -> NDArray[_Real]:
    """Return softmax(log p / T) of probabilities (L, N), none much smaller than the clip.

    That is what maps show. Samples take less: of a network that all but excludes a label, what lies
    below the clip would leak into the volume of a large background.
    """
    tempered = np.empty_like(probabilities)
    for first in range(0, probabilities.shape[1], _AT_ONCE):
        piece = tempered[:, first : first + _AT_ONCE]
        with np.errstate(divide="ignore"):  # what is impossible stays so
            np.log(probabilities[:, first : first + _AT_ONCE], out=piece)
        piece /= probabilities.dtype.type(temperature)
        np.maximum(softmax(piece, axis=0), probabilities.dtype.type(clip), out=piece)
        piece /= piece.sum(axis=0)
    return tempered


def tempered_probabilities(case: Case, settings: RunSettings) -> NDArray[np.float64]:
    """Return the probabilities inside the mask at their temperature, before kernels, (L, N)."""
    temperature = settings.unary.temperature or 1.0
    p = case.grid.gather(case.probabilities)  # (L, N)
    if temperature != 1:
        p = temper(p, temperature, settings.unary.clip)
    return prior_probabilities(unary_energies(p, settings, 1.0))


def prior_probabilities(energies: NDArray[Any]) -> NDArray[np.float64]:
    """Return softmax(−energies), (L, N) → (L, N), by pieces that stay in the cache."""
    found = np.empty(energies.shape)
    for first in range(0, energies.shape[1], _AT_ONCE):
        logits = -energies[:, first : first + _AT_ONCE].astype(np.float64)
        logits -= logits.max(axis=0)
        np.exp(logits, out=logits)
        np.divide(logits, logits.sum(axis=0), out=found[:, first : first + _AT_ONCE])
    return found


def map_marginals(
    case: Case,
    settings: RunSettings,
    posterior: Posterior,
    tempered: NDArray[np.float64] | None = None,
    exponent: float | None = None,
) -> NDArray[np.float64]:
    """Return what maps and labels are made of, the probability of each label, (L, N).

    A blend is half mean field and half ``tempered``, the probabilities at their temperature. The
    mean field of strong kernels is surer than it may be, so a blend that is surer than ``tempered``
    is softened by ``exponent``, which ``find_exponent`` finds. Without kernels a blend is
    ``tempered``.
    """
    kind = settings.maps.marginals
    if kind != "blend":
        return posterior.voxel_marginals(kind)
    if tempered is None:
        tempered = tempered_probabilities(case, settings)
    if not settings.has_kernels:
        return tempered
    mean = _mean_with_field(posterior, tempered)
    if exponent is None:
        exponent = find_exponent(settings, posterior, tempered)
    if exponent < 1:
        np.log(mean, out=mean)
        mean *= exponent
        mean -= mean.max(axis=0)
        np.exp(mean, out=mean)
        mean /= mean.sum(axis=0)
    return mean


def find_exponent(
    settings: RunSettings, posterior: Posterior, tempered: NDArray[np.float64]
) -> float:
    """Return the power of a blend at which it is as unsure as ``tempered``; 1 where it is already.

    Unsure is the entropy of all voxels together, so that voxels keep their order. Where settings
    were learned, labels have said how sure a blend may be: it stays as it is.
    """
    is_blend = settings.maps.marginals == "blend" and settings.has_kernels
    if not is_blend or settings.basis.learned_cases:
        return 1.0
    mean = _mean_with_field(posterior, tempered)
    own, wanted = marginal_entropy(mean), float(marginal_entropy(tempered).sum())
    uncertain = np.flatnonzero(own > _UNCERTAIN_BITS)
    if own.sum() >= wanted or len(uncertain) == 0:
        return 1.0
    asked = uncertain[:: -(-len(uncertain) // _MOST_ASKED)]
    # Of a large image some of the voxels stand for all, and the certain ones stay as they are.
    wanted -= float(own.sum() - own[uncertain].sum())
    wanted *= float(own[asked].sum() / own[uncertain].sum())
    logits = np.log(mean[:, asked])
    logits -= logits.max(axis=0)
    low, high = _LEAST_EXPONENT, 1.0
    for _ in range(12):
        middle = (low + high) / 2
        if _total_entropy(logits, middle) < wanted:
            high = middle
        else:
            low = middle
    return round(low, 3)


def _total_entropy(logits: NDArray[np.float64], exponent: float) -> float:
    """Return the entropy of softmax(exponent · logits) of all voxels together, bits.

    ``logits`` (L, N) are at most 0, and 0 for the largest of a voxel. With Z = Σ exp(x), a voxel
    has log Z − Σ x·exp(x) / Z nats, which takes one logarithm and no division of every share.
    """
    nats = 0.0
    for first in range(0, logits.shape[1], _AT_ONCE):
        scaled = exponent * logits[:, first : first + _AT_ONCE]
        shares = np.exp(scaled)
        total = shares.sum(axis=0)
        scaled *= shares
        nats += float((np.log(total) - scaled.sum(axis=0) / total).sum())
    return nats / math.log(2)


def _mean_with_field(posterior: Posterior, tempered: NDArray[np.float64]) -> NDArray[np.float64]:
    mean = posterior.voxel_marginals("mean_field")
    mean += tempered
    mean /= 2
    return mean


def overconfidence(case: Case, asked: RunSettings) -> str | None:
    """Return a warning where the probabilities leave next to nothing to be uncertain about.

    The grid's temperature does not count: it knows nothing of a network that is too sure.
    """
    sure = float((case.grid.gather(case.probabilities).max(axis=0) > SURE).mean())
    if sure <= SHARE_OF_SURE or (asked.unary.temperature or 1.0) > 1:
        return None
    return (
        f"probabilities are above {SURE} in {100 * sure:.1f} % of the voxels, so the uncertainty "
        "map will be nearly empty: networks are often too sure, soften them by a temperature above "
        "1, such as 2, best chosen on cases with known labels"
    )


def _kernel(settings: KernelSettings, case: Case, grid: Grid) -> Kernel:
    if settings.kind == "spatial":
        return SpatialKernel(
            settings.sigma_space,
            settings.weight,
            settings.normalization,
            settings.compatibility,
        )
    return BilateralKernel(
        Inside(np.stack([grid.gather(each) for each in case.images.values()]), grid),  # (C, N)
        sigma_space=settings.sigma_space,
        sigma_intensity=settings.sigma_intensity_sd or (),
        weight=settings.weight,
        normalization=settings.normalization,
        compatibility=settings.compatibility,
    )
