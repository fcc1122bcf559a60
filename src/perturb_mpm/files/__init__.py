"""Files in and out: written whole or not at all, and never unpickled."""

from perturb_mpm.files.bids import bids_names, write_bids_sidecars
from perturb_mpm.files.case import SCHEMES, Case, Geometry, LabelScheme, labels_from_text
from perturb_mpm.files.dicom import FILES, check_series, write_dicom
from perturb_mpm.files.geometry import difference, geometry_from_affine
from perturb_mpm.files.images import read_images
from perturb_mpm.files.maps import require_same_grid
from perturb_mpm.files.nifti import Volume, read_volume, save_like, save_nifti
from perturb_mpm.files.nnunet import read_dataset
from perturb_mpm.files.probabilities import label_indices
from perturb_mpm.files.reading import read_case
from perturb_mpm.files.source import InputError, Source, open_source
from perturb_mpm.files.source import open_source as opened
from perturb_mpm.files.tables import TableRow, read_table, write_table, write_volumes

__all__ = [
    "SCHEMES",
    "labels_from_text",
    "bids_names",
    "Case",
    "check_series",
    "difference",
    "FILES",
    "Geometry",
    "geometry_from_affine",
    "InputError",
    "label_indices",
    "LabelScheme",
    "opened",
    "read_case",
    "read_dataset",
    "read_images",
    "read_table",
    "TableRow",
    "open_source",
    "read_volume",
    "require_same_grid",
    "save_like",
    "save_nifti",
    "Source",
    "Volume",
    "write_bids_sidecars",
    "write_dicom",
    "write_table",
    "write_volumes",
]
