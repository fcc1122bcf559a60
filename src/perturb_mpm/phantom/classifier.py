"""What an imperfect classifier would say: unsure at borders, fooled by what looks alike."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from perturb_mpm.phantom.scanner import SPREAD, TYPICAL
from perturb_mpm.phantom.space import Array, PhantomGrid, RandomSource

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


def classify(
    source: RandomSource,
    grid: PhantomGrid,
    images: NDArray[np.float32],
    mask: NDArray[np.bool_],
    tissue: dict[str, Array],
    memberships: NDArray[np.float32],
) -> NDArray[np.float32]:
    """Return probabilities (L, X, Y, Z) that follow ``memberships`` (L, X, Y, Z) with errors.

    They join the likelihood of the four brightnesses at a voxel, under one Gaussian a tissue, with
    the truth strongly blurred and two kinds of noise. What looks like tumour and lies near it is
    thus taken for it: blood, vessels, choroid plexus.
    """
    from scipy.ndimage import gaussian_filter
    from scipy.special import softmax

    rng = source.rng("classifier")
    looks = _likelihoods(images, mask, tissue["white"], len(memberships))
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
    probabilities = np.zeros(memberships.shape, dtype=np.float32)
    probabilities[0] = 1.0
    probabilities[:, mask] = softmax(logits, axis=0)
    return probabilities


def _likelihoods(
    images: NDArray[np.float32], mask: NDArray[np.bool_], white: Array, n_labels: int
) -> NDArray[np.float32]:
    """Return the log-likelihood of each voxel's brightness under each label, (L, N).

    It knows what tissues look like on average, not in this scan; only the scale of each image is
    taken from the scan, at the white matter.
    """
    sure = mask & (white > 0.9)
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
