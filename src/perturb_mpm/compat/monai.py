"""Perturb-and-MPM as transforms of MONAI (extra ``monai``): after a network, channel first.

    Compose([…, Activationsd("pred", softmax=True), PerturbMPMd("pred", "image", samples=100)])

The defaults are those of ``perturb-mpm run``; its check of what the kernels do to volumes is left
out. Tensors and MetaTensors go in from any device and come out on the device of the probabilities,
a MetaTensor with its affine and the rest of what it knew.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perturb_mpm.checks import numeric, one_each, positive_numbers
from perturb_mpm.compat.maps import VOLUMES, uncertainty_maps
from perturb_mpm.files import RegionValues, nest_regions
from perturb_mpm.optional import optional_package
from perturb_mpm.run import RunSettings

optional_package("monai", "PerturbMPM as a transform")

from monai.config import KeysCollection  # noqa: E402 - after the line that says how to get it
from monai.data import MetaTensor  # noqa: E402
from monai.transforms import MapTransform, Transform  # noqa: E402

__all__ = ["PerturbMPM", "PerturbMPMd"]

_SAME_MM = 1e-3  # how far affines of one grid may differ


class PerturbMPM(Transform):  # type: ignore[misc]
    """Labels, marginals, entropy and sampled volumes of probabilities and images, channel first.

    Parameters
    ----------
    samples, seed
        How many segmentations are drawn, and with which noise.
    spacing
        The voxel size in mm, one number or one for each axis; that of a MetaTensor's affine where
        it is None, else 1 mm.
    settings
        ``RunSettings`` instead of the defaults of ``perturb-mpm run``, as ``tune`` finds them.
    regions
        Where every channel is the sigmoid of a region that may overlap others: the regions in the
        order of the channels, each with the values of its labels, as in
        ``{"core": (1, 4), "whole": (1, 2, 4), "enhancing": (4,)}``. Labels come out with these.
    """

    def __init__(
        self,
        samples: int = 200,
        seed: int = 0,
        *,
        spacing: Any = None,  # noqa: ANN401 - a number, numbers or a tensor of them
        settings: RunSettings | None = None,
        regions: RegionValues | None = None,
    ) -> None:
        self.regions = None if regions is None else nest_regions(regions)
        self.settings = (settings or RunSettings()).changed(samples=samples, seed=seed)
        self.spacing = None if spacing is None else positive_numbers(spacing, "spacing")

    def __call__(
        self,
        probabilities: Any,  # noqa: ANN401 - an array or a tensor
        images: Any,  # noqa: ANN401
        mask: Any = None,  # noqa: ANN401
    ) -> dict[str, Any]:
        """Return ``labels`` (1, …), ``marginals`` (L, …) and ``entropy`` (1, …) in bits.

        Beside these maps ``volumes`` (samples, L) are those of every sample, in mm³.
        ``probabilities`` (L, …) sum to 1, are one channel (1, …), that of the foreground, or one
        for each of the regions; ``images`` (C, …), two or three axes of space; voxels where
        ``mask`` is 0 are label 0 for certain. An image or mask with another affine is refused.
        """
        for name, other in (("images", images), ("mask", mask)):
            _require_same_affine("probabilities", probabilities, name, other)
        spacing = self._find_spacing(probabilities)
        found = uncertainty_maps(probabilities, images, mask, spacing, self.settings, self.regions)
        return {
            name: _like(value, probabilities, is_map=name != VOLUMES)
            for name, value in found.items()
        }

    def _find_spacing(self, probabilities: Any) -> NDArray[np.float64] | None:  # noqa: ANN401
        axes = numeric(probabilities, "probabilities").ndim - 1
        if self.spacing is not None:
            return one_each(self.spacing, "spacing", axes, "axis")
        if not isinstance(probabilities, MetaTensor):
            return None
        affine = numeric(probabilities.affine, "affine")
        sides: NDArray[np.float64] = np.linalg.norm(affine[:3, :3], axis=0)
        return sides[:axes]


class PerturbMPMd(MapTransform):  # type: ignore[misc]
    """``PerturbMPM`` on a dictionary: ``pred`` gives ``pred_labels``, ``_marginals`` and so on.

    Parameters
    ----------
    keys
        Where the probabilities are.
    image_keys
        Where the images are, one key or several that are put together.
    mask_key
        Where the mask is; every voxel counts where it is None.
    allow_missing_keys
        Leave out keys that are not there.
    **others
        ``spacing``, ``settings`` and ``regions`` of ``PerturbMPM``.
    """

    def __init__(
        self,
        keys: KeysCollection,
        image_keys: KeysCollection,
        mask_key: Hashable | None = None,
        samples: int = 200,
        seed: int = 0,
        *,
        allow_missing_keys: bool = False,
        **others: Any,  # noqa: ANN401
    ) -> None:
        super().__init__(keys, allow_missing_keys)
        several = isinstance(image_keys, Sequence) and not isinstance(image_keys, str)
        self.image_keys: tuple[Hashable, ...] = tuple(image_keys) if several else (image_keys,)
        self.mask_key = mask_key
        self.transform = PerturbMPM(samples, seed, **others)

    def __call__(self, data: Mapping[Hashable, Any]) -> dict[Hashable, Any]:
        """Return the dictionary with the outputs added."""
        result = dict(data)
        images = np.concatenate([numeric(data[key], str(key)) for key in self.image_keys])
        mask = None if self.mask_key is None else data[self.mask_key]
        others = (*self.image_keys, *(() if self.mask_key is None else (self.mask_key,)))
        for key in self.key_iterator(result):
            for other in others:
                _require_same_affine(str(key), data[key], str(other), data[other])
            for name, value in self.transform(data[key], images, mask).items():
                result[f"{key}_{name}"] = value
        return result


def _require_same_affine(key: str, maps: Any, other: str, image: Any) -> None:  # noqa: ANN401
    """Refuse an image or mask whose affine says that it lies elsewhere than the probabilities."""
    if not isinstance(maps, MetaTensor) or not isinstance(image, MetaTensor):
        return
    here, there = (numeric(each.affine, "affine") for each in (maps, image))
    if here.shape != there.shape or not np.allclose(here, there, atol=_SAME_MM):
        raise ValueError(
            f"`{other}` must have the affine of `{key}`, got {there.tolist()} and {here.tolist()}: "
            "resample one of them (ResampleToMatchd), or invert the transforms of both"
        )


def _like(array: NDArray[Any], given: Any, *, is_map: bool) -> Any:  # noqa: ANN401
    """Return an array as what was given: an array, or a tensor on its device.

    A map of a MetaTensor is one.
    """
    import torch

    if not isinstance(given, torch.Tensor):
        return array
    tensor = torch.from_numpy(np.ascontiguousarray(array)).to(given.device)
    if not is_map or not isinstance(given, MetaTensor):
        return tensor
    return MetaTensor(tensor, meta=dict(given.meta))  # with its affine
