"""What others would say of a phantom: a voxelwise classifier, and a segmentation network.

The classifier takes voxels one by one: it is unsure of many and fooled by what looks alike. The
network knows shapes: it is smooth, sure inside, unsure at borders that it draws a little apart from
the true ones, and wrong about one whole region.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from perturb_mpm.phantom.scanner import SPREAD, TYPICAL
from perturb_mpm.phantom.space import RandomSource

if TYPE_CHECKING:
    from perturb_mpm.phantom.patient import Phantom

LABEL_NAMES = ("healthy", "necrosis", "oedema", "non-enhancing core", "enhancing tumour")
POSTOPERATIVE_LABEL_NAMES = (*LABEL_NAMES, "cavity or haemorrhage")
HEALTHY, NECROSIS, OEDEMA, NON_ENHANCING, ENHANCING, CAVITY = range(6)

TISSUE_LABELS = {
    "white": HEALTHY,
    "grey": HEALTHY,
    "fluid": HEALTHY,
    "necrosis": NECROSIS,
    "oedema": OEDEMA,
    "non-enhancing": NON_ENHANCING,
    "enhancing": ENHANCING,
    "cavity": CAVITY,
    "blood": CAVITY,
    "air": CAVITY,
}

_NEAR_MM, _FAR_MM = 4.5, 14.0  # how well it knows where each label, and any tumour, is
_FAR_SHARE, _ANYWHERE = 0.03, 1e-4  # what it expects far from any tumour
_BLOOD_SHARE = 0.4  # enhancing tumour that it expects where blood is
_TRUST = 0.2  # in the images; below 1 because the sequences do not err independently
_REGIONAL_SD, _REGIONAL_MM = 0.9, 12.0  # errors of whole regions
_VOXEL_SD = 0.6  # errors of single voxels
_FARTHEST = 16.0  # squared deviations: beyond that a brightness tells no more

_DISPLACED_MM, _DISPLACED_OVER_MM = 1.2, 18.0  # how far the network's borders are off, and together
_BORDER_MM = 1.2  # how wide they are
_SHARPNESS = 3.2  # of its logits
_NETWORK_TRUST = 0.02  # in single brightnesses
_MISTAKE_MM, _MISTAKE_NATS = 11.0, 5.5  # the radius of the region it is wrong about, and how far
_LEAST = np.float32(1e-5)  # of a share: no network is surer


def classify(patient: Phantom) -> NDArray[np.float32]:
    """Return probabilities (L, X, Y, Z) that follow the patient's ``memberships`` with errors.

    They join the likelihood of the four brightnesses at a voxel, under one Gaussian a tissue, with
    the truth strongly blurred and two kinds of noise. What looks like tumour and lies near it is
    thus taken for it: blood, vessels, choroid plexus.
    """
    from scipy.ndimage import gaussian_filter

    source, grid, mask = RandomSource(patient.seed), patient.grid, patient.mask
    tissue, memberships = patient.tissue, patient.memberships
    rng = source.rng("classifier")
    looks = _likelihoods(patient)
    near = [_NEAR_MM / step for step in grid.spacing]
    far = [_FAR_MM / step for step in grid.spacing]
    anywhere = np.float32(_FAR_SHARE) * gaussian_filter(1.0 - memberships[0], far)[mask]
    anywhere += np.float32(_ANYWHERE)
    logits = np.empty((len(memberships), int(mask.sum())), dtype=np.float32)
    for label, membership in enumerate(memberships):
        expected = gaussian_filter(membership, near)[mask] + anywhere
        if label == ENHANCING and "blood" in tissue:
            expected += np.float32(_BLOOD_SHARE) * gaussian_filter(tissue["blood"], near)[mask]
        regional = source.noise(grid, f"classifier {label}", _REGIONAL_MM)[mask]
        logits[label] = np.log(expected) + np.float32(_REGIONAL_SD) * regional
        logits[label] += np.float32(_TRUST) * looks[label]
    logits += np.float32(_VOXEL_SD) * rng.standard_normal(logits.shape, dtype=np.float32)
    return _softmax_inside(logits, mask)


def _softmax_inside(logits: NDArray[np.float32], mask: NDArray[np.bool_]) -> NDArray[np.float32]:
    """Return probabilities (L, X, Y, Z) from logits (L, N); outside the mask is label 0."""
    from scipy.special import softmax

    probabilities = np.zeros((len(logits), *mask.shape), dtype=np.float32)
    probabilities[0] = 1.0
    probabilities[:, mask] = softmax(logits, axis=0)
    return probabilities


def imitate_network(patient: Phantom) -> NDArray[np.float32]:
    """Return probabilities (L, X, Y, Z) as a segmentation network gives them.

    With M the memberships, they are a softmax of log M(x + d(x)), blurred over a border's width,
    where d is a smooth displacement. Beside the oedema lies a ball of white matter that the network
    takes for oedema, unsure of itself.
    """
    from scipy.ndimage import gaussian_filter, map_coordinates

    source, grid, mask = RandomSource(patient.seed), patient.grid, patient.mask
    memberships = patient.memberships
    axes = np.meshgrid(*(np.arange(n, dtype=np.float32) for n in mask.shape), indexing="ij")
    moved = [
        axis + source.noise(grid, f"network {k}", _DISPLACED_OVER_MM) * (_DISPLACED_MM / step)
        for k, (axis, step) in enumerate(zip(axes, grid.spacing, strict=True))
    ]
    width = [_BORDER_MM / step for step in grid.spacing]
    logits = np.float32(_NETWORK_TRUST) * _likelihoods(patient)  # (L, N)
    for label, membership in enumerate(memberships):
        drawn = map_coordinates(membership, moved, order=1, mode="nearest")
        shares = gaussian_filter(drawn, width)[mask]
        logits[label] += np.float32(_SHARPNESS) * np.log(shares + _LEAST)
    centre = _beside_oedema(patient)
    if centre is not None:
        apart2 = sum(((a - c) * s) ** 2 for a, c, s in zip(axes, centre, grid.spacing))
        ball = np.exp(-0.5 * np.asarray(apart2)[mask] / (_MISTAKE_MM / 2) ** 2)
        background = np.float32(_SHARPNESS) * np.log(_LEAST)
        # Nowhere does it make the network surer of oedema than of what is there by 0.8 nats.
        top = logits.max(axis=0) + np.float32(0.8)
        raised = logits[OEDEMA] - ball * (background - np.float32(_MISTAKE_NATS))
        logits[OEDEMA] = np.maximum(logits[OEDEMA], np.minimum(raised, top))
    return _softmax_inside(logits, mask)


def _beside_oedema(patient: Phantom) -> NDArray[np.int64] | None:
    """Return a voxel (3,) of white matter a little outside of the oedema, None where none is."""
    from scipy.ndimage import distance_transform_edt

    away = distance_transform_edt(patient.memberships[0] > 0.5, sampling=patient.spacing)
    healthy = patient.mask & (patient.tissue["white"] > 0.9)
    voxels = np.argwhere(healthy & (away > _MISTAKE_MM / 2) & (away < _MISTAKE_MM))
    if len(voxels) == 0:
        return None
    rng = RandomSource(patient.seed).rng("mistake")
    return voxels[int(rng.integers(len(voxels)))]


def _likelihoods(patient: Phantom) -> NDArray[np.float32]:
    """Return the log-likelihood of each voxel's brightness under each label, (L, N).

    It knows what tissues look like on average, not in this scan; only the scale of each image is
    taken from the scan, at the white matter.
    """
    images, mask, n_labels = patient.images, patient.mask, len(patient.memberships)
    sure = mask & (patient.tissue["white"] > 0.9)
    looks = np.full((n_labels, int(mask.sum())), -np.inf, dtype=np.float32)
    units = [
        float(np.median(image[sure])) / bright for image, bright in zip(images, TYPICAL["white"])
    ]
    for tissue, label in TISSUE_LABELS.items():
        if label >= n_labels:
            continue
        distance = np.zeros(looks.shape[1], dtype=np.float32)
        for channel, image in enumerate(images):
            typical = TYPICAL[tissue][channel]
            sd = np.hypot(0.06, typical * np.hypot(0.08, SPREAD[tissue][channel]))
            apart = (image[mask] / np.float32(units[channel]) - typical) / np.float32(sd)
            distance += np.minimum(apart**2, _FARTHEST) / 2.0 + np.float32(np.log(sd))
        looks[label] = np.logaddexp(looks[label], -distance)
    return looks
