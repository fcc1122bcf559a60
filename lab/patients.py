"""A patient of the experiments: a case that carries its truth, made up or read from files."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from perturb_mpm.evaluation import Regions
from perturb_mpm.files import Case, LabelScheme, geometry_from_affine
from perturb_mpm.model import DenseCRF, Grid, digest
from perturb_mpm.phantom import Phantom
from perturb_mpm.run import RunSettings, build_crf

GLIOMA_REGIONS: Regions = {"whole tumour": (1, 2, 3), "core": (1, 3), "enhancing": (3,)}
PHANTOM_REGIONS: Regions = {"whole tumour": (1, 2, 3, 4), "core": (1, 3, 4), "enhancing": (4,)}


@dataclass(frozen=True, eq=False)
class Patient:
    """A case with its truth, by name; what several raters drew comes along where they did."""

    name: str
    case: Case
    raters: NDArray[np.uint8] | None = None  # (R, X, Y, Z)

    @property
    def truth(self) -> NDArray[np.uint8]:
        """The true labels, (X, Y, Z)."""
        if self.case.truth is None:
            raise ValueError(f"the truth of {self.name} must be known")
        return self.case.truth

    @property
    def grid(self) -> Grid:
        """The way from an image to its N voxels inside the mask."""
        geometry = self.case.geometry
        return Grid(geometry.shape, geometry.spacing, self.case.mask)

    @property
    def labels(self) -> NDArray[np.int64]:
        """The true labels inside the mask, (N,)."""
        inside: NDArray[np.int64] = self.grid.gather(self.truth).astype(np.int64)
        return inside

    def volume_ml(self, labels: NDArray[np.integer], members: Iterable[int]) -> float:
        """Return the volume of the voxels that have one of the labels ``members``."""
        voxel_ml = float(np.prod(self.case.geometry.spacing)) / 1000.0
        return float(np.isin(labels, list(members)).sum()) * voxel_ml

    def with_probabilities(self, shares: NDArray[np.float32]) -> Patient:
        """Return the patient with the probabilities (N, L) of a classifier; background outside."""
        outside = np.eye(shares.shape[1], dtype=np.float32)[0]
        full = self.grid.scatter(np.ascontiguousarray(shares.T), outside)  # (L, X, Y, Z)
        return replace(self, case=replace(self.case, probabilities=full))

    def crf(self) -> DenseCRF:
        """Return the CRF of the patient's probabilities under our kernels at full strength."""
        return build_crf(self.case, RunSettings.of_paper())


def labelled_case(
    images: dict[str, NDArray[np.float32]],
    mask: NDArray[np.bool_],
    truth: NDArray[np.uint8],
    labels: LabelScheme,
    affine: NDArray[np.float64],
) -> Case:
    """Return a case with its truth, and with the truth as its probabilities until others come."""
    x, y, z = truth.shape
    certain = (truth == np.arange(len(labels))[:, np.newaxis, np.newaxis, np.newaxis]).astype(
        np.float32
    )
    return Case(
        images=images,
        probabilities=certain,
        mask=mask,
        mask_origin="voxels that are not 0",
        labels=labels,
        geometry=geometry_from_affine((x, y, z), affine),
        hashes={},
        truth=truth,
    )


def phantom_patient(
    name: str,
    phantom: Phantom,
    probabilities: NDArray[np.float32],
    raters: NDArray[np.uint8] | None = None,
    label_names: Sequence[str] | None = None,
) -> Patient:
    """Return a made-up patient with the probabilities (L, X, Y, Z) of a classifier."""
    names = tuple(label_names or phantom.label_names)
    images = dict(zip(phantom.channel_names, phantom.images))
    scheme = LabelScheme(tuple(range(len(names))), names)
    case = labelled_case(images, phantom.mask, phantom.truth, scheme, phantom.affine)
    return Patient(name, replace(case, probabilities=probabilities), raters)


def data_digest(patients: Iterable[Patient]) -> str:
    """Return a digest of the patients' names, images, masks and truth."""
    return digest(
        *(
            part
            for each in patients
            for part in (each.name, *each.case.images.values(), each.case.mask, each.truth)
        )
    )
