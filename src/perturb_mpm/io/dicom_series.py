"""A DICOM series and its grid: where its voxels are, and how a NIfTI volume lies on it.

DICOM counts mm to the left, to the back and up, NIfTI to the right, to the front and up. The two
store the same grid in different orders, often with its rows turned round; a volume is taken over
voxel by voxel, never resampled.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perturb_mpm.io.case import Geometry
from perturb_mpm.io.errors import Source
from perturb_mpm.io.geometry import displacement_mm, geometry_from_affine, in_words
from perturb_mpm.optional import optional_package

TOLERANCE_MM = 1e-2  # DICOM keeps positions and directions as decimal text
_NEEDED = (
    *("ImagePositionPatient", "ImageOrientationPatient", "PixelSpacing", "Rows", "Columns"),
    *("StudyInstanceUID", "FrameOfReferenceUID"),
)
# What must be there but may be empty, and is often taken out with the patient's name.
_MAY_BE_EMPTY = (
    *("PatientName", "PatientID", "PatientBirthDate", "PatientSex"),
    *("StudyDate", "StudyTime", "StudyID", "AccessionNumber"),
)


@dataclass(frozen=True)
class Series:
    """The slices of one series, from the first to the last along their normal."""

    source: Source
    slices: tuple[Any, ...]  # pydicom.Dataset, without pixels
    geometry: Geometry  # of (column, row, slice), in NIfTI's directions


def read_series(folder: Path) -> Series:
    """Read the headers of the one DICOM series in a folder, and where its voxels are."""
    source = Source("--dicom", folder)
    slices = _headers(source)
    normal = np.cross(_direction(slices[0], 0), _direction(slices[0], 1))
    slices = sorted(slices, key=lambda one: float(np.dot(_position(one), normal)))
    _check_stack(source, slices)
    first = slices[0]
    step = normal * float(first.get("SliceThickness") or 1.0)
    if len(slices) > 1:
        step = (_position(slices[-1]) - _position(first)) / (len(slices) - 1)
    _complete(slices, float(np.linalg.norm(step)))
    down, across = (float(size) for size in first.PixelSpacing)
    affine = np.eye(4)
    affine[:3, 0] = _direction(first, 0) * across
    affine[:3, 1] = _direction(first, 1) * down
    affine[:3, 2] = step
    affine[:3, 3] = _position(first)
    affine = np.diag([-1.0, -1.0, 1.0, 1.0]) @ affine
    shape = (int(first.Columns), int(first.Rows), len(slices))
    return Series(source, tuple(slices), geometry_from_affine(shape, affine))


def require_on_series(series: Series, geometry: Geometry) -> NDArray[np.float64]:
    """Return how a grid's axes (3, 2) lie on a series, or refuse a grid that is another one."""
    from nibabel.orientations import inv_ornt_aff, io_orientation

    grid = series.geometry
    axes: NDArray[np.float64] = io_orientation(np.linalg.inv(grid.affine) @ geometry.affine)
    if not np.isnan(axes).any():
        shape = tuple(int(geometry.shape[i]) for i in np.argsort(axes[:, 0]))
        turned = geometry.affine @ inv_ornt_aff(axes, geometry.shape)
        if shape == grid.shape:
            apart = displacement_mm(turned, grid.affine, grid.shape)
            if apart <= TOLERANCE_MM:
                return axes
    raise series.source.error(
        f"the series must lie on the grid of the images, got shape {grid.shape} and affine "
        f"{in_words(grid)} against shape {geometry.shape} and affine {in_words(geometry)}"
    )


def on_series(volume: NDArray[Any], axes: NDArray[np.float64]) -> NDArray[Any]:
    """Return a volume (X, Y, Z) as (slices, rows, columns) of the series."""
    from nibabel.orientations import apply_orientation

    turned = apply_orientation(volume, axes)  # (columns, rows, slices)
    return np.ascontiguousarray(turned.transpose(2, 1, 0))


def _headers(source: Source) -> list[Any]:
    """Return the headers of every DICOM file in a folder, which must be of one series."""
    pydicom = optional_package("pydicom", "reading a DICOM series")
    if not source.path.is_dir():
        raise source.error("must be a folder with a DICOM series")
    headers = []
    for path in sorted(source.path.iterdir()):
        if path.is_file():
            try:
                headers.append(pydicom.dcmread(path, stop_before_pixels=True))
            except pydicom.errors.InvalidDicomError:
                continue  # a file of another kind beside the series
    found = [one for one in headers if "SeriesInstanceUID" in one]
    numbers = {str(one.SeriesInstanceUID) for one in found}
    if len(numbers) != 1:
        raise source.error(f"must hold the files of one DICOM series, got {len(numbers)} series")
    for one in found:
        missing = [name for name in _NEEDED if name not in one]
        if missing:
            raise source.error(
                f"must hold slices with their place in space, but {Path(one.filename).name} has "
                f"no {missing[0]}; a series of several frames in one file is not read"
            )
    return found


def _check_stack(source: Source, slices: list[Any]) -> None:
    """Refuse slices that do not make up one regular grid."""
    first = slices[0]
    for one in slices:
        for name in ("ImageOrientationPatient", "PixelSpacing", "Rows", "Columns"):
            same = np.allclose(one[name].value, first[name].value, rtol=0, atol=1e-4)
            if not same:
                raise source.error(
                    f"all slices must have one {name}, got {first[name].value} and "
                    f"{one[name].value}"
                )
    places = np.stack([_position(one) for one in slices])  # (slices, 3)
    expected = np.linspace(places[0], places[-1], len(slices))
    apart = float(np.abs(places - expected).max())
    steps = np.linalg.norm(np.diff(places, axis=0), axis=1)
    if apart > TOLERANCE_MM or (steps < TOLERANCE_MM).any():
        raise source.error(
            "slices must be the same distance from one to the next, got "
            f"{steps.min():.4g} to {steps.max():.4g} mm; one may be missing or there twice"
        )


def _complete(slices: list[Any], thickness_mm: float) -> None:
    """Put in what the standard wants and a series may lack, without inventing anything."""
    for one in slices:
        for name in _MAY_BE_EMPTY:
            if name not in one:
                setattr(one, name, "")
        if not one.get("SliceThickness"):
            one.SliceThickness = f"{thickness_mm:.8g}"


def _position(one: Any) -> NDArray[np.float64]:  # noqa: ANN401
    return np.asarray(one.ImagePositionPatient, dtype=np.float64)


def _direction(one: Any, axis: int) -> NDArray[np.float64]:  # noqa: ANN401
    """Return the direction of growing columns (0) or rows (1)."""
    both = np.asarray(one.ImageOrientationPatient, dtype=np.float64)
    return both[3 * axis : 3 * axis + 3]
