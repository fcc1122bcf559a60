"""What the transforms of MONAI and TorchIO share: probabilities and images in, maps out."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perturb_mpm.checks import numeric
from perturb_mpm.files import (
    Case,
    ImageSet,
    LabelScheme,
    NestedRegions,
    geometry_from_affine,
    region_members,
)
from perturb_mpm.measures import MeasuredPatient, Priority, PriorityFinder, find_measures
from perturb_mpm.posterior import Posterior, choose_regions, decide_labels, marginal_entropy
from perturb_mpm.run import RunSettings, build_crf, build_sampler, decide_settings, map_marginals
from perturb_mpm.sampling import Sampler

SUM_TOLERANCE = 1e-2
_ROUNDING = 1e-6  # how far below 0 rounding may put a probability
VOLUMES = "volumes"
"""The volume of each label in each sample in mm³, (samples, L): no map."""
FIRST_VOXEL = "first_voxel"
"""The voxel to look at first, (axes of space,): no map."""
_NO_MAPS = (VOLUMES, FIRST_VOXEL)


def uncertainty_maps(
    probabilities: Any,  # noqa: ANN401 - an array or a tensor
    images: Any,  # noqa: ANN401
    mask: Any,  # noqa: ANN401
    spacing: NDArray[np.float64] | None,
    settings: RunSettings,
    regions: NestedRegions | None = None,
    *,
    first_voxel: bool = False,
) -> dict[str, NDArray[Any]]:
    """Return ``labels`` (1, …), ``marginals`` (L, …), ``entropy`` (1, …) in bits, and ``VOLUMES``.

    ``first_voxel`` adds ``FIRST_VOXEL``: the voxel that is wrong most probably in the cube whose
    truth is expected to narrow the volume of the foreground most, for which samples are drawn
    twice; in the whole image where samples do not tell.

    ``probabilities`` (L, …) sum to 1, or are one channel (1, …), that of the foreground, or one for
    each of the ``regions``, which may overlap; ``images`` (C, …), two or three axes of space;
    voxels where ``mask`` is 0 are label 0 for certain. ``spacing`` is in mm, 1 where it is None.
    """
    p = _read_distribution(numeric(probabilities, "probabilities").astype(np.float32), regions)
    channels = numeric(images, "images").astype(np.float32)
    if p.ndim not in (3, 4) or channels.ndim != p.ndim or channels.shape[1:] != p.shape[1:]:
        raise ValueError(
            "`images` must be (C, …) on the grid of `probabilities` (L, …), two or three axes "
            f"of space, got {channels.shape} and {p.shape}"
        )
    inside = np.ones(p.shape[1:], bool)
    if mask is not None:
        given = numeric(mask, "mask")
        if given.shape not in (p.shape[1:], (1, *p.shape[1:])):
            raise ValueError(
                f"`mask` must be on the grid {p.shape[1:]} of `probabilities`, got {given.shape}"
            )
        inside = given.reshape(p.shape[1:]) != 0
    flat = p.ndim == 3
    if flat:  # one slice
        p, channels, inside = p[..., np.newaxis], channels[..., np.newaxis], inside[..., None]
    scheme = LabelScheme(tuple(range(len(p))), tuple(f"label_{l}" for l in range(len(p))))
    if regions is not None:
        scheme = regions.scheme()
        settings = replace(settings, regions=settings.regions or regions.values())
    found = _draw_maps(
        _case(p, channels, inside, spacing, scheme), settings, first_voxel=first_voxel
    )
    if flat:
        found |= {name: value[..., 0] for name, value in found.items() if name not in _NO_MAPS}
        found |= {FIRST_VOXEL: found[FIRST_VOXEL][:2]} if first_voxel else {}
    return found


def _read_distribution(
    p: NDArray[np.float32], regions: NestedRegions | None
) -> NDArray[np.float32]:
    """Return probabilities (L, …) of all labels; refuse what a network gives before its softmax."""
    if p.size and (p.min() < -_ROUNDING or p.max() > 1 + SUM_TOLERANCE):
        raise ValueError(
            f"`probabilities` must lie between 0 and 1, got {p.min():.3g} to {p.max():.3g}, as the "
            "logits of a network do: apply its softmax, or the sigmoid of a single channel, before"
        )
    if regions is not None:
        if len(p) != len(regions):
            raise ValueError(
                f"`probabilities` must have a channel for each of the {len(regions)} regions, got "
                f"{len(p)}"
            )
        wrong = regions.contradiction(p)
        if wrong is not None:
            raise ValueError(f"`regions`: {wrong}")
        return regions.exclusive(np.clip(p, 0, 1))
    if len(p) == 1:
        return np.concatenate([1 - p, p])
    sums = p.sum(axis=0)
    off = np.abs(sums - 1) > SUM_TOLERANCE
    if off.any():
        raise ValueError(
            f"`probabilities` must sum to 1 over the {len(p)} labels, background first, got "
            f"{sums[off][0]:.3g} in {int(off.sum())} voxels; regions that overlap, each with a "
            "sigmoid of its own, are named by `regions`"
        )
    return p


def _case(
    p: NDArray[np.float32],
    channels: NDArray[np.float32],
    inside: NDArray[np.bool_],
    spacing: NDArray[np.float64] | None,
    scheme: LabelScheme,
) -> Case:
    """Return the case on a straight grid: only the spacing of an image counts."""
    sides = np.ones(3)
    if spacing is not None:
        sides[: len(spacing)] = spacing
    geometry = geometry_from_affine(inside.shape, np.diag([*sides, 1.0]))
    named = {f"channel_{c}": image for c, image in enumerate(channels)}
    return Case.from_images(ImageSet(named, inside, "given", geometry, {}), p, scheme)


def _draw_maps(case: Case, settings: RunSettings, *, first_voxel: bool) -> dict[str, NDArray[Any]]:
    settings = decide_settings(settings, case)
    sampler = build_sampler(build_crf(case, settings), settings)
    posterior = sampler.draw(settings.sampling.samples)
    marginals = map_marginals(case, settings, posterior)  # (L, N)
    image = partial(posterior.grid.scatter, outside=0)
    regions = choose_regions(marginals, region_members(settings.regions, case.labels))
    values = case.labels.to_values(decide_labels(marginals, regions))
    background = np.eye(len(marginals), dtype=np.float32)[0]
    found = {
        "labels": image(values)[np.newaxis],
        "marginals": posterior.grid.scatter(marginals.astype(np.float32), background),
        "entropy": image(marginal_entropy(marginals))[np.newaxis].astype(np.float32),
        VOLUMES: posterior.volumes.copy(),  # one may write to what is one's own
    }
    if first_voxel:
        patches = []
        if settings.intervals != "none":
            patches = _find_priority(sampler, posterior).patch_list(1)
        wrong = 1 - found["marginals"].max(axis=0)
        first = np.zeros(wrong.ndim, dtype=np.intp)  # of the cube
        if patches:
            sides = np.array(patches[0].size_voxels)
            first = patches[0].centre_voxel // sides * sides
            wrong = wrong[tuple(slice(at, at + side) for at, side in zip(first, sides))]
        found[FIRST_VOXEL] = first + np.unravel_index(int(wrong.argmax()), wrong.shape)
    return found


def _find_priority(sampler: Sampler, posterior: Posterior) -> Priority:
    """Draw the samples again, and ask where the volume of the foreground is decided."""
    patient = MeasuredPatient(
        posterior.grid,
        {"foreground": tuple(range(1, posterior.n_labels))},
        np.zeros(posterior.grid.shape, np.uint8),
    ).with_votes(posterior.voxel_counts)
    volume = find_measures(["volume"], patient)[0]
    finder = PriorityFinder(patient, "foreground", volume)
    sampler.draw(posterior.samples, keep=finder.add)
    return finder.priority
