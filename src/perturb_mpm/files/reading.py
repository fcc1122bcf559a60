"""One patient's files, read, compared with each other and checked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

import numpy as np
from numpy.typing import NDArray

from perturb_mpm.files.case import Case, LabelScheme
from perturb_mpm.files.geometry import doubts
from perturb_mpm.files.images import (
    counted,
    find_mask,
    read_images,
    read_pictures,
    require_readable,
    settle,
)
from perturb_mpm.files.maps import (
    OPTION,
    Kind,
    Maps,
    distribution_of,
    read_maps,
    read_noted,
    require_same_grid,
)
from perturb_mpm.files.nnunet import (
    Dataset,
    choose_scheme,
    dataset_json_beside,
    disagreement,
    read_dataset,
)
from perturb_mpm.files.probabilities import probabilities_of, values_in, warning, where
from perturb_mpm.files.source import Digests, InputError, Source

__all__ = ["InputError", "Kind", "read_case", "read_images"]


def read_case(
    images: Sequence[Path],
    probabilities: Sequence[Path],
    *,
    kind: Kind = "probabilities",
    confidence: float = 0.9,
    label_values: Sequence[int] | None = None,
    label_names: Sequence[str] | None = None,
    dataset_json: Path | None = None,
    reference: Path | None = None,
    mask: Path | None = None,
    image_names: Sequence[str] | None = None,
) -> Case:
    """Read images and probabilities on one grid; raise ``InputError`` in one line where they fail.

    Parameters
    ----------
    images
        NIfTI files, one a sequence. Everything that is written lies on the grid of the first.
    probabilities
        One 4-D NIfTI with the labels last, one 3-D NIfTI for each label, or nnU-Net's .npz.
        Background comes first.
    kind
        What these files hold: ``probabilities``, ``logits`` (a network's raw scores) or
        ``labels``, a hard label map that is trusted to ``confidence`` at every voxel.
    label_values, label_names
        The user's own numbers and names of the labels; else from ``dataset_json``, else 0 … L − 1.
    dataset_json
        nnU-Net's, looked for beside an .npz where it is not given. It says which labels there
        are, and which nested regions the maps are where a model was trained on regions.
    reference
        A NIfTI that says where the voxels of an .npz are; else the label map beside it does.
    mask
        A NIfTI that is not 0 where voxels count; else it is derived from the images.
    image_names
        Short names of the images; else from their files' names.
    """
    if kind not in get_args(Kind):
        raise InputError(f"--kind must be one of {', '.join(get_args(Kind))}, got {kind}")
    named = [Source(OPTION, path) for path in probabilities]
    for option, path in (("--mask", mask), ("--reference", reference)):
        named += [Source(option, path)] if path else []
    require_readable(named)

    digests = Digests()
    dataset = _find_dataset(probabilities, dataset_json, digests)
    channels = dataset.channels if dataset else None
    pictures = read_pictures(images, digests, image_names=image_names, channels=channels)
    if kind == "labels":
        maps = _read_label_map(probabilities, digests)
    else:
        maps = read_maps(probabilities, reference, digests)
    require_same_grid(maps.source, maps.geometry, pictures.sources[0], pictures.geometry)
    if kind == "labels":
        found = _from_label_map(maps, confidence, label_values, label_names, dataset)
    else:
        found = _from_maps(maps, kind, label_values, label_names, dataset)

    inside, origin = find_mask(pictures, mask, digests)
    warnings = [*found.warnings, *doubts(pictures.geometry)]
    if found.empty is not None and found.empty.any():
        inside, origin = _without_empty(inside, origin, found.empty, maps.source)
        warnings.append(
            f"{counted(found.empty)} have no probability at all; they are outside the mask and "
            "count as background"
        )
    warnings += settle(pictures, inside)
    return Case(
        pictures.images,
        found.probabilities,
        inside,
        origin,
        found.labels,
        pictures.geometry,
        digests.named(),
        tuple(warnings),
    )


@dataclass(frozen=True)
class _Found:
    """What the probability files come to."""

    probabilities: NDArray[np.float32]  # (L, X, Y, Z)
    labels: LabelScheme
    empty: NDArray[np.bool_] | None = None  # (X, Y, Z), voxels without any probability
    warnings: tuple[str, ...] = ()


def _from_maps(
    maps: Maps,
    kind: Kind,
    values: Sequence[int] | None,
    names: Sequence[str] | None,
    dataset: Dataset | None,
) -> _Found:
    distribution, empty = distribution_of(maps, kind, dataset)
    scheme = choose_scheme(len(distribution), values, names, dataset)
    doubt = None
    if maps.label_map is not None:
        own = dataset.labels.values if dataset else tuple(range(len(distribution)))
        doubt = disagreement(distribution, own, maps.label_map)
    return _Found(distribution, scheme, empty, (doubt,) if doubt else ())


def _from_label_map(
    maps: Maps,
    confidence: float,
    given: Sequence[int] | None,
    names: Sequence[str] | None,
    dataset: Dataset | None,
) -> _Found:
    labels = maps.values[0]  # (X, Y, Z)
    if given is not None:
        scheme = choose_scheme(len(given), given, names, None)
    elif dataset is not None:
        scheme = choose_scheme(len(dataset.labels), None, names, dataset)
    else:
        values = values_in(labels, maps.source)
        scheme = choose_scheme(len(values), values, names, None)
    distribution = probabilities_of(labels, scheme.values, confidence, maps.source)
    return _Found(distribution, scheme, warnings=(warning(confidence),))


def _find_dataset(
    probabilities: Sequence[Path], given: Path | None, digests: Digests
) -> Dataset | None:
    path, option = given, "--dataset-json"
    if path is None and len(probabilities) == 1 and probabilities[0].suffix == ".npz":
        path, option = dataset_json_beside(probabilities[0]), OPTION
    if path is None:
        return None
    dataset = read_dataset(Source(option, path))
    digests.add(path, dataset.digest)
    return dataset


def _read_label_map(paths: Sequence[Path], digests: Digests) -> Maps:
    if len(paths) != 1:
        raise InputError(f"{OPTION} must name one label map with --kind labels, got {len(paths)}")
    source = Source(OPTION, paths[0])
    volume = read_noted(source, digests)
    if volume.voxels.ndim != 3:
        raise source.error(f"a label map must be 3-D, got shape {volume.voxels.shape}")
    return Maps(source, volume.voxels[None], volume.geometry)


def _without_empty(
    mask: NDArray[np.bool_], origin: str, empty: NDArray[np.bool_], source: Source
) -> tuple[NDArray[np.bool_], str]:
    """Refuse voxels of a given mask that have no probability; leave them out of a derived one."""
    uncovered = mask & empty
    if not uncovered.any():
        return mask, origin
    if origin == "given":
        raise source.error(
            "must have probabilities inside the mask, got 0 for every label at "
            f"{counted(uncovered)}, the first at {where(uncovered)}"
        )
    left = mask & ~empty
    if not left.any():
        raise source.error("must have probabilities where the images are, got 0 for every label")
    return left, f"{origin}, less {counted(uncovered)} without any probability"
