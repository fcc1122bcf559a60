"""Perturb-and-MPM as a transform of TorchIO (extra ``torchio``): after a network, on a Subject.

    Compose([…, PerturbMPM("probabilities", ["t1", "flair"], mask_key="brain", samples=100)])

The defaults are those of ``perturb-mpm run``; its check of what the kernels do to volumes is left
out.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perturb_mpm.compat.maps import VOLUMES, uncertainty_maps
from perturb_mpm.files import RegionValues, nest_regions
from perturb_mpm.optional import optional_package
from perturb_mpm.run import RunSettings

optional_package("torchio", "PerturbMPM as a transform of TorchIO")

# After the line that says how to get it.
from torchio import Image, LabelMap, ScalarImage, Subject, Transform  # noqa: E402

__all__ = ["PerturbMPM"]


class SubjectPerturbMPM(Transform):  # type: ignore[misc]
    """Labels, marginals and entropy of an image of probabilities, added to its Subject.

    ``pred`` gives the LabelMap ``pred_labels`` and the ScalarImages ``pred_marginals`` and
    ``pred_entropy`` in bits, with the affine of ``pred``, which also gives the spacing, and
    ``pred_volumes``, the volumes of every sample in mm³, (samples, labels).

    Parameters
    ----------
    key
        Where the probabilities are, one channel for each label.
    image_keys
        Where the images are, one key or several that are put together.
    mask_key
        Where the mask is; every voxel counts where it is None.
    samples, seed
        How many segmentations are drawn, and with which noise.
    settings
        ``RunSettings`` instead of the defaults of ``perturb-mpm run``, as ``tune`` finds them.
    regions
        Where channels are sigmoids of regions that may overlap: these, each with its label values.
    **others
        What every transform of TorchIO takes.
    """

    def __init__(
        self,
        key: str,
        image_keys: str | Sequence[str],
        mask_key: str | None = None,
        samples: int = 200,
        seed: int = 0,
        *,
        settings: RunSettings | None = None,
        regions: RegionValues | None = None,
        **others: Any,  # noqa: ANN401
    ) -> None:
        super().__init__(**others)
        self.key, self.mask_key, self.samples, self.seed = key, mask_key, samples, seed
        self.image_keys = (image_keys,) if isinstance(image_keys, str) else tuple(image_keys)
        self.settings = (settings or RunSettings()).changed(samples=samples, seed=seed)
        self.regions = regions
        self.args_names = [
            "key",
            "image_keys",
            "mask_key",
            "samples",
            "seed",
            "settings",
            "regions",
        ]

    def apply_transform(self, subject: Subject) -> Subject:
        """Return the subject with the maps added."""
        given = self._image(subject, self.key)
        images = np.concatenate([self._data(subject, key) for key in self.image_keys])
        mask = None if self.mask_key is None else self._data(subject, self.mask_key)
        # TorchIO turns every division by zero into an error while a transform runs.
        with np.errstate(divide="warn", over="warn", invalid="warn"):
            spacing = np.array(given.spacing, dtype=np.float64)
            regions = None if self.regions is None else nest_regions(self.regions)
            maps = uncertainty_maps(given.data, images, mask, spacing, self.settings, regions)
        subject[f"{self.key}_{VOLUMES}"] = maps.pop(VOLUMES)
        for name, array in maps.items():
            kind = LabelMap if name == "labels" else ScalarImage
            image = kind(tensor=np.ascontiguousarray(array), affine=given.affine)
            subject.add_image(image, f"{self.key}_{name}")
        return subject

    def _data(self, subject: Subject, key: str) -> NDArray[Any]:
        """Return the voxels (C, …) of an image that lies where the probabilities lie."""
        image, given = self._image(subject, key), self._image(subject, self.key)
        if image.spatial_shape != given.spatial_shape or not np.allclose(
            image.affine, given.affine, rtol=0, atol=1e-3
        ):
            raise ValueError(
                f"`{key}` must lie on the grid of `{self.key}`: resample it first; got "
                f"{image.spatial_shape} and {given.spatial_shape} voxels"
            )
        return image.data.detach().cpu().numpy()

    def _image(self, subject: Subject, key: str) -> Image:
        if not isinstance(subject.get(key), Image):
            raise ValueError(f"the subject must have an image `{key}`, got {sorted(subject)}")
        return subject[key]


PerturbMPM = SubjectPerturbMPM
