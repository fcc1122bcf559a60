"""A case as one file, so that it can be solved again without the files it came from."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perturb_mpm.grid import Grid
from perturb_mpm.io.case import Case, Geometry, LabelScheme
from perturb_mpm.pipeline.arrays import read_arrays, write_arrays


def write_case(path: Path, case: Case) -> None:
    """Write images, probabilities inside the mask, mask, labels and geometry."""
    words = {
        "image_names": list(case.images),
        "label_values": case.labels.values,
        "label_names": case.labels.names,
        "mask_origin": case.mask_origin,
        "spacing_mm": case.geometry.spacing,
        "hashes": case.hashes,
        "warnings": case.warnings,
    }
    images = list(case.images.values())
    arrays: dict[str, NDArray[Any]] = {
        "header": np.array(json.dumps(words)),
        "images": np.stack(images) if images else np.zeros((0, *case.geometry.shape), np.float32),
        "probabilities": _grid(case.geometry, case.mask).gather(case.probabilities),  # (L, N)
        "mask": case.mask,
        "affine": case.geometry.affine,
        "nifti_header": np.frombuffer(case.geometry.header.binaryblock, dtype=np.uint8),
    }
    write_arrays(path, arrays)


def read_case_file(path: Path) -> Case:
    """Read what ``write_case`` wrote; outside the mask label 0 has the probability 1."""
    arrays = read_arrays(path)
    words = json.loads(arrays["header"].item())
    mask = arrays["mask"]
    geometry = Geometry(
        shape=mask.shape,
        affine=arrays["affine"],
        spacing=tuple(words["spacing_mm"]),
        header=_nifti_header(arrays["nifti_header"]),
    )
    probabilities = arrays["probabilities"]  # (L, N)
    outside = np.arange(len(probabilities)) == 0
    return Case(
        images=dict(zip(words["image_names"], arrays["images"], strict=True)),
        probabilities=_grid(geometry, mask).scatter(probabilities, outside),
        mask=mask,
        mask_origin=words["mask_origin"],
        labels=LabelScheme(tuple(words["label_values"]), tuple(words["label_names"])),
        geometry=geometry,
        hashes=words["hashes"],
        warnings=tuple(words["warnings"]),
    )


def _grid(geometry: Geometry, mask: NDArray[np.bool_]) -> Grid:
    return Grid(geometry.shape, geometry.spacing, mask)


def _nifti_header(block: NDArray[np.uint8]) -> Any:  # noqa: ANN401
    from nibabel.nifti1 import Nifti1Header
    from nibabel.nifti2 import Nifti2Header

    first: Any = Nifti1Header
    second: Any = Nifti2Header
    kind = second if block.size == second.template_dtype.itemsize else first
    return kind(block.tobytes())
