"""MONAI Label: which case to label next, and which slice of it.

    def init_scoring_methods(self):
        return {"perturb_mpm": PerturbMPMScoring(self.infers["segmentation"], samples=64)}

    def init_strategies(self):
        return {"perturb_mpm": PerturbMPMStrategy()}

The infer task must return its dictionary (``skip_writer=True``) with probabilities in ``pred``, as
``Activationsd`` leaves them, and the image on the same grid in ``image``.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from perturb_mpm.checks import numeric
from perturb_mpm.compat.maps import FIRST_VOXEL, VOLUMES, uncertainty_maps
from perturb_mpm.evaluation import expected_dice
from perturb_mpm.files import RegionValues, nest_regions
from perturb_mpm.optional import optional_package
from perturb_mpm.run import RunSettings

optional_package("monailabel", "a strategy of MONAI Label")

# After the line that says how to get it.
from monailabel.interfaces.tasks.scoring import ScoringMethod  # noqa: E402
from monailabel.interfaces.tasks.strategy import Strategy  # noqa: E402

__all__ = ["PerturbMPMScoring", "PerturbMPMStrategy"]

SCORE = "perturb_mpm_score"
_HOUR_S = 3600


class PerturbMPMScoring(ScoringMethod):  # type: ignore[misc]
    """Note for every unlabelled image how wrong its segmentation is expected to be, and where.

    The image's information gets ``perturb_mpm_score``, 1 − the Dice that the maps expect of the
    foreground; ``perturb_mpm_position_mm``, to the right, front and up, the place where knowing the
    truth is expected to narrow the foreground's volume most, as a run's list of priority has it;
    ``perturb_mpm_slice``, its slice along the last axis of the prediction's grid;
    ``perturb_mpm_volume_sd``, the standard deviation of the foreground's sampled volumes over their
    mean.

    Parameters
    ----------
    infer_task
        What predicts: called with a request, it returns (anything, dictionary).
    samples, seed, settings, regions
        As of ``perturb_mpm.compat.monai.PerturbMPM``.
    """

    def __init__(
        self,
        infer_task: Any,  # noqa: ANN401 - a BasicInferTask
        samples: int = 64,
        seed: int = 0,
        *,
        settings: RunSettings | None = None,
        regions: RegionValues | None = None,
    ) -> None:
        super().__init__("Expected error of a segmentation, by samples of a dense CRF")
        self.infer_task = infer_task
        self.settings = (settings or RunSettings()).changed(samples=samples, seed=seed)
        self.regions = None if regions is None else nest_regions(regions)

    def __call__(self, request: Mapping[str, Any], datastore: Any) -> dict[str, Any]:  # noqa: ANN401
        """Score the unlabelled images; those that have a score stay, unless ``again`` is asked."""
        images: Sequence[str] = datastore.get_unlabeled_images()
        todo = [
            each
            for each in images
            if request.get("again") or SCORE not in datastore.get_image_info(each)
        ]
        for image in todo:
            asked = {
                "image": datastore.get_image_uri(image),
                "device": request.get("device", "cpu"),
            }
            _, found = self.infer_task(request={**asked, "cache_transforms": False})
            datastore.update_image_info(image, self.score(found["pred"], found["image"]))
        return {"total": len(images), "executed": len(todo), "skipped": len(images) - len(todo)}

    def score(self, probabilities: Any, images: Any) -> dict[str, Any]:  # noqa: ANN401
        """Return what an image's information gets, from probabilities and images (C, …)."""
        affine = numeric(getattr(probabilities, "affine", np.eye(4)), "affine")
        spacing = np.linalg.norm(affine[:3, :3], axis=0)[: numeric(images, "image").ndim - 1]
        asked = self.settings, self.regions
        maps = uncertainty_maps(probabilities, images, None, spacing, *asked, first_voxel=True)
        marginals, foreground = maps["marginals"], maps["labels"][0] != 0
        voxel = maps[FIRST_VOXEL]
        position = affine[:3, :3] @ np.array([*voxel, 0][:3]) + affine[:3, 3]
        volumes = maps[VOLUMES][:, 1:].sum(axis=1)  # (samples,)
        return {
            SCORE: 1 - expected_dice(foreground.ravel(), marginals[1:].sum(axis=0).ravel()),
            "perturb_mpm_slice": int(voxel[-1]),
            "perturb_mpm_position_mm": [round(float(each), 3) for each in position],
            "perturb_mpm_volume_sd": float(volumes.std() / max(volumes.mean(), 1e-9)),
        }


class PerturbMPMStrategy(Strategy):  # type: ignore[misc]
    """Next is the unlabelled image with the largest expected error that nobody has in hand.

    An image that was handed out within ``reset_s`` seconds comes last; one without a score comes
    after those that have one.
    """

    def __init__(self, reset_s: float = _HOUR_S) -> None:
        super().__init__("Largest expected error first, by samples of a dense CRF")
        self.reset_s = reset_s

    def __call__(self, request: Mapping[str, Any], datastore: Any) -> dict[str, Any] | None:  # noqa: ANN401
        """Return the ID of an image with its score and slice, None where all are labelled."""
        images = datastore.get_unlabeled_images(request.get("label_tag"), request.get("labels"))
        about = {image: datastore.get_image_info(image) for image in images}
        since = time.time() - self.reset_s

        def rank(image: str) -> tuple[bool, float, str]:
            served = about[image].get("strategy", {}).get(request["strategy"], {}).get("ts", 0)
            return served > since, -about[image].get(SCORE, -1.0), image

        best = min(about, key=rank, default=None)
        if best is None:
            return None
        return {"id": best} | {k: v for k, v in about[best].items() if k.startswith("perturb_mpm")}
