"""Labelled cases to tune on: images, probabilities that were not learned from them, true labels."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from perturb_mpm.files import (
    Case,
    InputError,
    LabelScheme,
    Source,
    label_indices,
    read_case,
    read_images,
    read_volume,
    require_same_grid,
)
from perturb_mpm.model import DenseCRF
from perturb_mpm.run import RunSettings, build_crf
from perturb_mpm.segmenter import (
    CaseFiles,
    SegmenterModel,
    feature_table,
    prepare,
    require_scheme,
    select_sequences,
)

ENDINGS = (".nii.gz", ".nii", ".npz")


@dataclass(frozen=True, eq=False)
class TuningCase:
    """A case with its true labels 0 … L − 1."""

    name: str
    case: Case
    truth: NDArray[np.uint8]  # (X, Y, Z)

    def crf(self, settings: RunSettings) -> DenseCRF:
        """Return its CRF, as ``run`` makes it."""
        return build_crf(self.case, settings)


def cases_with_probabilities(
    files: Sequence[CaseFiles], folder: Path, sequences: Sequence[str], scheme: LabelScheme
) -> list[TuningCase]:
    """Read cases whose probabilities are files CASE.nii.gz or CASE.npz in a folder."""
    paths = [_probabilities_of(case, folder) for case in files]
    read = []
    for case, path in zip(files, paths, strict=True):
        images = select_sequences(case.images, sequences, f"--data: case {case.name}")
        found = read_case(
            list(images.values()),
            [path],
            mask=case.mask,
            image_names=list(images),
            label_values=scheme.values,
            label_names=scheme.names,
            reference=case.labels if path.suffix == ".npz" else None,
        )
        read.append(TuningCase(case.name, found, _truth(case, found, scheme)))
    return read


def cases_of_model(
    files: Sequence[CaseFiles],
    path: Path,
    scheme: LabelScheme,
    said: Callable[[str], object],
) -> list[TuningCase]:
    """Read cases, and let the model of a file say how probable each label is.

    A case that the model was trained on is answered by those of its trees that never saw it.
    """
    model = SegmenterModel.load(path)
    require_scheme(model, scheme, Source("--model", path))
    read = []
    for case in files:
        said(f"classifying {case.name}")
        wanted = select_sequences(case.images, model.sequences, f"--data: case {case.name}")
        images = read_images(list(wanted.values()), mask=case.mask, image_names=list(wanted))
        prepared = prepare(images.images, images.geometry.affine, images.mask)
        fold = _fold(model, case.name)
        answers = model.ensemble.predict(feature_table(prepared.scene), fold)
        outside = np.eye(len(scheme), dtype=np.float32)[0]
        found = Case(
            images=images.images,
            probabilities=prepared.restore(model.calibration.apply(answers).T, outside),
            mask=images.mask,
            mask_origin=images.mask_origin,
            labels=scheme,
            geometry=images.geometry,
            hashes=images.hashes,
        )
        read.append(TuningCase(case.name, found, _truth(case, found, scheme)))
    return read


def _fold(model: SegmenterModel, name: str) -> int | None:
    known = any(name in names for names in model.ensemble.folds)
    return model.ensemble.fold_of(name) if known else None


def _probabilities_of(case: CaseFiles, folder: Path) -> Path:
    for ending in ENDINGS:
        path = folder / f"{case.name}{ending}"
        if path.is_file():
            return path
    raise InputError(
        f"--probabilities must hold {case.name}.nii.gz, .nii or .npz, got {folder}, which has none"
    )


def _truth(files: CaseFiles, case: Case, scheme: LabelScheme) -> NDArray[np.uint8]:
    volume = read_volume(Source("--data", files.labels))
    first = Source("--data", next(iter(files.images.values())))
    require_same_grid(volume.source, volume.geometry, first, case.geometry)
    return label_indices(
        volume.voxels, scheme, volume.source, "; name the right scheme by --labels"
    )
