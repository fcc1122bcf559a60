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

from perturb_mpm.checks import numeric, positive_numbers
from perturb_mpm.files import Case, ImageSet, LabelScheme, geometry_from_affine
from perturb_mpm.optional import optional_package
from perturb_mpm.run import RunSettings, assumed_length_mm, build_crf, build_sampler

optional_package("monai", "PerturbMPM as a transform")

from monai.config import KeysCollection  # noqa: E402 - after the line that says how to get it
from monai.data import MetaTensor  # noqa: E402
from monai.transforms import MapTransform, Transform  # noqa: E402

__all__ = ["PerturbMPM", "PerturbMPMd"]

OUTPUTS = ("labels", "marginals", "entropy")


class PerturbMPM(Transform):  # type: ignore[misc]
    """Labels, marginals and entropy of probabilities and images, all channel first.

    Parameters
    ----------
    samples, seed
        How many segmentations are drawn, and with which noise.
    spacing
        The voxel size in mm, one number or one for each axis; that of a MetaTensor's affine where
        it is None, else 1 mm.
    settings
        ``RunSettings`` in place of the defaults of ``perturb-mpm run``, as ``tune`` finds them.
    """

    def __init__(
        self,
        samples: int = 200,
        seed: int = 0,
        *,
        spacing: Any = None,  # noqa: ANN401 - a number, numbers or a tensor of them
        settings: RunSettings | None = None,
    ) -> None:
        self.settings = (settings or RunSettings()).changed(samples=samples, seed=seed)
        self.spacing = None if spacing is None else positive_numbers(spacing, "spacing")

    def __call__(
        self,
        probabilities: Any,  # noqa: ANN401 - an array or a tensor
        images: Any,  # noqa: ANN401
        mask: Any = None,  # noqa: ANN401
    ) -> dict[str, Any]:
        """Return ``labels`` (1, …), ``marginals`` (L, …) and ``entropy`` (1, …) in bits.

        ``probabilities`` (L, …) sum to 1, ``images`` (C, …), two or three axes of space; voxels
        where ``mask`` is 0 are label 0 for certain.
        """
        p = numeric(probabilities, "probabilities").astype(np.float32)
        channels = numeric(images, "images").astype(np.float32)
        if p.ndim not in (3, 4) or channels.ndim != p.ndim or channels.shape[1:] != p.shape[1:]:
            raise ValueError(
                "`images` must be (C, …) on the grid of `probabilities` (L, …), two or three axes "
                f"of space, got {channels.shape} and {p.shape}"
            )
        inside = np.ones(p.shape[1:], bool)
        if mask is not None:
            inside = numeric(mask, "mask").reshape(p.shape[1:]) != 0
        found = self._solve(p, channels, inside, _affine_of(probabilities))
        return {name: _like(found[name], probabilities) for name in OUTPUTS}

    def _solve(
        self,
        p: NDArray[np.float32],
        channels: NDArray[np.float32],
        inside: NDArray[np.bool_],
        affine: NDArray[np.float64] | None,
    ) -> dict[str, NDArray[Any]]:
        flat = p.ndim == 3
        if flat:  # one slice
            p, channels, inside = p[..., np.newaxis], channels[..., np.newaxis], inside[..., None]
        geometry = geometry_from_affine(inside.shape, self._placed(affine, 2 if flat else 3))
        case = Case.from_images(
            ImageSet(
                {f"channel_{c}": image for c, image in enumerate(channels)},
                inside,
                "given",
                geometry,
                {},
            ),
            p,
            LabelScheme(tuple(range(len(p))), tuple(f"label_{l}" for l in range(len(p)))),
        )
        settings = self.settings
        if settings.sampling.noise_length is None:
            settings = settings.changed(noise_length=assumed_length_mm(case))
        sampler = build_sampler(build_crf(case, settings), settings)
        posterior = sampler.draw(settings.sampling.samples)
        kind = settings.marginals
        maps: dict[str, NDArray[Any]] = {
            "labels": posterior.labels_of(kind)[np.newaxis],
            "marginals": posterior.marginals_of(kind).astype(np.float32),
            "entropy": posterior.entropy_of(kind)[np.newaxis].astype(np.float32),
        }
        return {name: value[..., 0] if flat else value for name, value in maps.items()}

    def _placed(self, affine: NDArray[np.float64] | None, axes: int) -> NDArray[np.float64]:
        """Return the affine (4, 4) to compute with: only its spacing counts."""
        spacing = np.ones(3)
        if self.spacing is not None:
            spacing[:axes] = self.spacing
        elif affine is not None:
            spacing[:axes] = np.linalg.norm(affine[:3, :3], axis=0)[:axes]
        return np.diag([*spacing, 1.0])


class PerturbMPMd(MapTransform):  # type: ignore[misc]
    """``PerturbMPM`` on a dictionary: ``pred`` gives ``pred_labels``, ``_marginals``, ``_entropy``.

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
    """

    def __init__(
        self,
        keys: KeysCollection,
        image_keys: KeysCollection,
        mask_key: Hashable | None = None,
        samples: int = 200,
        seed: int = 0,
        *,
        spacing: Any = None,  # noqa: ANN401
        settings: RunSettings | None = None,
        allow_missing_keys: bool = False,
    ) -> None:
        super().__init__(keys, allow_missing_keys)
        several = isinstance(image_keys, Sequence) and not isinstance(image_keys, str)
        self.image_keys: tuple[Hashable, ...] = tuple(image_keys) if several else (image_keys,)
        self.mask_key = mask_key
        self.transform = PerturbMPM(samples, seed, spacing=spacing, settings=settings)

    def __call__(self, data: Mapping[Hashable, Any]) -> dict[Hashable, Any]:
        """Return the dictionary with the outputs added."""
        result = dict(data)
        images = np.concatenate([numeric(data[key], str(key)) for key in self.image_keys])
        mask = None if self.mask_key is None else data[self.mask_key]
        for key in self.key_iterator(result):
            for name, value in self.transform(data[key], images, mask).items():
                result[f"{key}_{name}"] = value
        return result


def _affine_of(value: Any) -> NDArray[np.float64] | None:  # noqa: ANN401
    """Return the affine of a MetaTensor, None of anything else."""
    return numeric(value.affine, "affine") if isinstance(value, MetaTensor) else None


def _like(array: NDArray[Any], given: Any) -> Any:  # noqa: ANN401
    """Return an array as what was given: an array, a tensor or a MetaTensor on its device."""
    import torch

    if not isinstance(given, torch.Tensor):
        return array
    tensor = torch.from_numpy(np.ascontiguousarray(array)).to(given.device)
    if not isinstance(given, MetaTensor):
        return tensor
    return MetaTensor(tensor, meta=dict(given.meta))  # with its affine
