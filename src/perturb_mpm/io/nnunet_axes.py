"""In which order nnU-Net stored its voxels, and whether its own label map agrees.

All but one of nnU-Net's readers keep the voxel order of the file. ``NibabelIOWithReorient`` turns
every image to right, anterior, superior first and turns only the label map back, so that the
probabilities lie in another order than the label map beside them. The plans.json beside them says
which reader it was.
"""

from __future__ import annotations

import json

import numpy as np
from numpy.typing import NDArray

from perturb_mpm.io.case import Geometry
from perturb_mpm.io.errors import Source
from perturb_mpm.io.hashing import Digests, sha256
from perturb_mpm.io.nifti_read import opened

_TURNS = "NibabelIOWithReorient"
_LEAST_AGREEMENT = 0.5


def was_turned(npz: Source, digests: Digests) -> bool:
    """Return whether a plans.json beside an .npz names the reader that turns."""
    plans = Source(npz.option, npz.path.with_name("plans.json"))
    if not plans.path.is_file():
        return False
    with opened(plans) as file:
        digests.add(plans.path, sha256(file))
        try:
            content = json.load(file)
        except ValueError as error:
            raise plans.error(f"is not JSON ({error})") from error
    return isinstance(content, dict) and content.get("image_reader_writer") == _TURNS


def turned_back(maps: NDArray[np.float32], geometry: Geometry) -> NDArray[np.float32]:
    """Return maps (C, X, Y, Z) that point right, anterior, superior in the order of a grid."""
    from nibabel.orientations import (
        apply_orientation,
        axcodes2ornt,
        io_orientation,
        ornt_transform,
    )

    turn = ornt_transform(axcodes2ornt("RAS"), io_orientation(geometry.affine))
    return np.stack([apply_orientation(one, turn) for one in maps])


def disagreement(
    probabilities: NDArray[np.float32], values: tuple[int, ...], label_map: NDArray[np.float32]
) -> str | None:
    """Say that probabilities (L, X, Y, Z) and nnU-Net's label map (X, Y, Z) are far apart, or None.

    They never agree everywhere: regions are painted by another rule, and nnU-Net may take small
    pieces out of its label map. ``values`` are the label map's own for the L labels.
    """
    expected = label_map != values[0]
    if not expected.any():
        return None
    found = np.asarray(values)[probabilities.argmax(axis=0)]  # (X, Y, Z)
    foreground = expected | (found != values[0])
    share = float((found == label_map)[foreground].mean())
    if share >= _LEAST_AGREEMENT:
        return None
    return (
        f"the most probable labels are those of nnU-Net's label map beside the .npz in only "
        f"{share:.0%} of the foreground: are both of one patient, and in one voxel order?"
    )
