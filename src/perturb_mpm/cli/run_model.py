"""The seam between ``run`` and a trained model: images in, a case with probabilities out."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from perturb_mpm.cli.errors import UsageError

if TYPE_CHECKING:
    from perturb_mpm.cli.run_options import InputOptions
    from perturb_mpm.io.case import Case, LabelScheme
    from perturb_mpm.pipeline.progress import Progress


def case_of_model(inputs: InputOptions, model: Path, progress: Progress) -> Case:
    """Read the images, and let the model say how probable each label is."""
    from perturb_mpm.io.case import Case
    from perturb_mpm.io.read_images import read_images
    from perturb_mpm.segmentation.model import probabilities_from_model

    if not model.is_file():
        raise UsageError(f"--model must be a file, got {model}, which is not there")
    found = read_images(inputs.image, mask=inputs.mask, image_names=inputs.image_names)
    progress.stage("classifying the voxels")
    probabilities, labels = probabilities_from_model(model, found)
    return Case(
        images=found.images,
        probabilities=probabilities,
        mask=found.mask,
        mask_origin=found.mask_origin,
        labels=_renamed(labels, inputs),
        geometry=found.geometry,
        hashes={**found.hashes, model.name: hashlib.sha256(model.read_bytes()).hexdigest()},
        warnings=found.warnings,
    )


def _renamed(labels: LabelScheme, inputs: InputOptions) -> LabelScheme:
    """Return the model's labels with the values and names that the user gave."""
    for option, given in (
        ("--label-values", inputs.label_values),
        ("--label-names", inputs.label_names),
    ):
        if given is not None and len(given) != len(labels):
            raise UsageError(
                f"{option} must give one for each of the model's {len(labels)} labels, "
                f"got {len(given)}"
            )
    try:
        return replace(
            labels,
            values=tuple(inputs.label_values or labels.values),
            names=tuple(inputs.label_names or labels.names),
        )
    except ValueError as error:
        raise UsageError(f"--label-values, --label-names: {error}") from error
