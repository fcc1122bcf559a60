"""What the CPU and the GPU engine share: one lattice, one order, one noise, in NumPy alone.

Neither engine imports the other. Here stands whatever makes their results the same: the blur and
its gain, the keys of the vertices, the order of the voxels, the groups of kernels, the tables of
smooth noise and the part of an image on which a lattice is calibrated.
"""

from perturb_mpm.engines.lattice.blur import (
    BLURS,
    CALIBRATION_ROWS,
    CALIBRATION_SCALES,
    CALIBRATION_VOXELS,
    Blur,
    calibration_rows,
    published_gain,
)
from perturb_mpm.engines.lattice.groups import (
    LARGEST_HALF,
    KernelGroup,
    against_first_label,
    energy_ceiling,
    groups_of,
)
from perturb_mpm.engines.lattice.keys import (
    CURVE_BITS,
    KeyCode,
    key_code,
    morton_code,
    morton_order,
)
from perturb_mpm.engines.lattice.node_tables import MOST_AXES, NodeTables

__all__ = [
    "against_first_label",
    "Blur",
    "BLURS",
    "CALIBRATION_ROWS",
    "calibration_rows",
    "CALIBRATION_SCALES",
    "CALIBRATION_VOXELS",
    "CURVE_BITS",
    "energy_ceiling",
    "groups_of",
    "KernelGroup",
    "key_code",
    "KeyCode",
    "LARGEST_HALF",
    "morton_code",
    "morton_order",
    "MOST_AXES",
    "NodeTables",
    "published_gain",
]
