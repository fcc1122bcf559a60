"""Whether the parts of a report fit together, before any of it is drawn."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from perturb_mpm import checks
from perturb_mpm.report.colours import COLOUR_MAPS
from perturb_mpm.report.data import ReportData, Snapshot


def checked(data: ReportData) -> ReportData:
    """Return the data with three spatial axes, after checking that all shapes agree."""
    checks.choice(data.colour_map, "colour_map", COLOUR_MAPS)
    shape = data.mask.shape
    if len(shape) not in (2, 3) or 0 in shape:
        raise ValueError(f"mask must have two or three axes with voxels, got shape {shape}")
    for name, found in _spatial_shapes(data).items():
        if found != shape:
            raise ValueError(f"{name} must have the mask's shape {shape}, got {found}")
    labels = len(data.label_names)
    for name, found_labels in {
        "marginals": len(data.marginals),
        "label_values": len(data.label_values),
        "volumes_mm3": data.volumes_mm3.shape[1],
    }.items():
        if found_labels != labels:
            raise ValueError(
                f"{name} must hold the {labels} labels of label_names, got {found_labels}"
            )
    affine = np.asarray(data.affine)
    if affine.shape != (4, 4) or not np.linalg.det(affine[:3, :3]):
        raise ValueError("affine must be a (4, 4) matrix that can be inverted")
    return data if len(shape) == 3 else _with_third_axis(data)


def _spatial_shapes(data: ReportData) -> dict[str, tuple[int, ...]]:
    shapes = {f"image {name!r}": image.shape for name, image in data.images.items()}
    shapes |= {name: getattr(data, name).shape for name in ("labels", "entropy", "uncertainty")}
    shapes |= {f"snapshot {each.samples}": each.entropy.shape for each in data.snapshots}
    shapes["marginals"] = data.marginals.shape[1:]
    shapes["sampled_labels"] = data.sampled_labels.shape[1:]
    if data.truth is not None:
        shapes["truth"] = data.truth.shape
    return shapes


def _with_third_axis(data: ReportData) -> ReportData:
    """Return a flat image as a volume of one slice."""
    return replace(
        data,
        images={name: image[..., np.newaxis] for name, image in data.images.items()},
        mask=data.mask[..., np.newaxis],
        labels=data.labels[..., np.newaxis],
        entropy=data.entropy[..., np.newaxis],
        uncertainty=data.uncertainty[..., np.newaxis],
        marginals=data.marginals[..., np.newaxis],
        sampled_labels=data.sampled_labels[..., np.newaxis],
        truth=None if data.truth is None else data.truth[..., np.newaxis],
        snapshots=tuple(Snapshot(s.samples, s.entropy[..., np.newaxis]) for s in data.snapshots),
    )
