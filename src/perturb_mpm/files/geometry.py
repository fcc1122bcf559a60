"""Where voxels lie in space, and whether two grids are the same one."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

if TYPE_CHECKING:
    from nibabel.nifti1 import Nifti1Header


TOLERANCE_MM = 1e-3
_MM_PER_UNIT = {"meter": 1000.0, "mm": 1.0, "micron": 0.001, "unknown": 1.0}
_RIGHT_ANGLE = 1e-3  # the largest cosine between two axes that still counts as one


@dataclass(frozen=True)
class Geometry:
    """Where the voxels are: shape, affine and the header that outputs take their geometry from.

    Examples
    --------
    >>> geometry = pm.read_case("t1c.nii.gz", "case.npz").geometry
    >>> geometry.spacing, geometry.affine.shape
    ((8.0, 8.0, 8.0), (4, 4))
    """

    shape: tuple[int, int, int]
    affine: NDArray[np.float64]  # (4, 4), voxel indices to mm
    spacing: tuple[float, float, float]  # mm
    header: Any  # nibabel.Nifti1Header, for sform, qform and their codes
    ending: str = ".nii.gz"  # of files that are written in the format of this one

    @property
    def has_orientation(self) -> bool:
        """Whether the file says how the patient lies: a NIfTI without sform and qform does not."""
        return bool(self.header["sform_code"] > 0 or self.header["qform_code"] > 0)

    @property
    def axis_codes(self) -> str:
        """Where the axes point, such as RAS: right, anterior, superior."""
        from nibabel.orientations import aff2axcodes

        return "".join(code or "?" for code in aff2axcodes(self.affine))

    def affine_text(self) -> str:
        """Return the affine in one line, with the directions of its axes."""
        rows = ("[" + " ".join(f"{v:.7g}" for v in row) + "]" for row in self.affine[:3])
        return f"[{' '.join(rows)}] (axes {self.axis_codes})"

    def difference(self, other: Geometry) -> str | None:
        """Say in one line how this grid differs from another, or return None."""
        if self.shape != other.shape:
            return f"shape {_size(self)} against {_size(other)}"
        apart = displacement_mm(self.affine, other.affine, self.shape)
        if apart <= TOLERANCE_MM:
            return None
        return (
            f"up to {apart:.4g} mm apart, affine {self.affine_text()} against {other.affine_text()}"
        )

    def warnings(self) -> list[str]:
        """Say why other programs might show a volume of this geometry elsewhere."""
        warnings = []
        header = self.header
        if header["qform_code"] > 0 and header["sform_code"] > 0:
            try:
                with np.errstate(all="ignore"):
                    apart = displacement_mm(header.get_sform(), header.get_qform(), self.shape)
            except ValueError:  # the qform is no rotation
                apart = np.inf
            if not apart <= TOLERANCE_MM:
                warnings.append(
                    f"sform and qform differ by up to {apart:.4g} mm; the sform is used and both "
                    "are kept in what is written, but programs that use the qform show it elsewhere"
                )
        axes = self.affine[:3, :3] / np.asarray(self.spacing)  # (3, 3), unit columns
        if np.abs(axes.T @ axes - np.eye(3)).max() > _RIGHT_ANGLE:
            warnings.append(
                "the axes are not at right angles; distances in mm are taken as if they were"
            )
        return warnings


def geometry_from_header(header: Nifti1Header, shape: tuple[int, int, int]) -> Geometry:
    """Return the geometry that a NIfTI header gives to a grid: sform, else qform, else neither."""
    from nibabel.affines import voxel_sizes

    scale = _MM_PER_UNIT[header.get_xyzt_units()[0]]
    affine = np.diag([scale, scale, scale, 1.0]) @ header.get_best_affine()  # (4, 4)
    x, y, z = voxel_sizes(affine)
    return Geometry(shape, affine, (float(x), float(y), float(z)), header)


def geometry_from_affine(shape: tuple[int, int, int], affine: ArrayLike) -> Geometry:
    """Return the geometry of a grid that comes from no file; ``affine`` (4, 4) gives mm."""
    from nibabel.nifti1 import Nifti1Header

    header = Nifti1Header()
    header.set_data_shape(shape)
    header.set_sform(affine, code="scanner")
    header.set_qform(affine, code="scanner", strip_shears=True)
    header.set_xyzt_units(xyz="mm")
    return geometry_from_header(header, shape)


def displacement_mm(
    one: NDArray[np.float64], other: NDArray[np.float64], shape: tuple[int, int, int]
) -> float:
    """Return how far apart (mm) two affines (4, 4) put the corners of a grid, at most."""
    corners = np.array([[*corner, 1] for corner in itertools.product(*((0, n - 1) for n in shape))])
    moved = corners @ (one - other).T  # (8, 4)
    return float(np.sqrt((moved[:, :3] ** 2).sum(axis=1)).max())


def find_turn(
    geometry: Geometry, grid: Geometry, tolerance_mm: float = TOLERANCE_MM
) -> NDArray[np.float64] | None:
    """Return how axes (3, 2) are permuted and flipped to lie on a grid, None on any other grid.

    nibabel's ``apply_orientation`` turns voxels by it, exactly.
    """
    from nibabel.orientations import inv_ornt_aff, io_orientation

    turn: NDArray[np.float64] = io_orientation(np.linalg.inv(grid.affine) @ geometry.affine)
    if np.isnan(turn).any():
        return None
    shape = tuple(int(geometry.shape[axis]) for axis in np.argsort(turn[:, 0]))
    affine = geometry.affine @ inv_ornt_aff(turn, geometry.shape)
    if shape != grid.shape or displacement_mm(affine, grid.affine, grid.shape) > tolerance_mm:
        return None
    return turn


def _size(geometry: Geometry) -> str:
    return "×".join(map(str, geometry.shape))
