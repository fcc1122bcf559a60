"""Files of patients, in and out: read whole, checked and never unpickled; written whole or not.

``read_case`` makes one ``Case`` of a patient's images and probabilities. Everything that is wrong
with a file is an ``InputError`` of one line.
"""

from perturb_mpm.files.case import Case, read_case
from perturb_mpm.files.conversion import (
    OUR_SEGMENTATION,
    PROGRAM_FILES,
    Program,
    bids_names,
    bids_sidecar_names,
    convert,
    write_bids_sidecars,
    write_for_program,
)
from perturb_mpm.files.datasets import (
    LAYOUTS,
    CaseFiles,
    CaseFolders,
    common_sequences,
    find_cases,
    find_label_map,
    find_labelled_cases,
    find_probabilities,
)
from perturb_mpm.files.dicom import (
    DICOM_FILES,
    check_dicom_series,
    is_dicom,
    read_dose,
    write_dicom,
)
from perturb_mpm.files.dicom_report import DIAMETERS, SegmentVolume, write_dicom_report
from perturb_mpm.files.formats import ENDINGS, output_ending
from perturb_mpm.files.geometry import Geometry, geometry_from_affine
from perturb_mpm.files.images import ImageSet, read_images
from perturb_mpm.files.labels import (
    SCHEMES,
    LabelScheme,
    RegionValues,
    check_region_values,
    choose_scheme,
    label_colours,
    label_indices,
    label_map_from_text,
    labels_from_text,
    read_label_map,
    region_members,
    region_values_from_text,
    regions_from_text,
)
from perturb_mpm.files.names import (
    STANDARD,
    other_patient_warnings,
    select_sequences,
    standard_name,
)
from perturb_mpm.files.nnunet import (
    NestedRegions,
    find_predicted_images,
    nest_regions,
    prediction_files,
    read_dataset,
)
from perturb_mpm.files.probabilities import EnsembleMaps
from perturb_mpm.files.source import InputError, Source, quiet_libraries
from perturb_mpm.files.tables import TableRow, read_table, write_table, write_volumes
from perturb_mpm.files.volumes import Volume, read_volume, require_same_grid, save_like, save_nifti

__all__ = [
    # One patient, and what it is made of.
    "Case",
    "EnsembleMaps",
    "read_case",
    "ImageSet",
    "read_images",
    "other_patient_warnings",
    "STANDARD",
    "standard_name",
    "select_sequences",
    "LabelScheme",
    "SCHEMES",
    "labels_from_text",
    "choose_scheme",
    "label_indices",
    "label_map_from_text",
    "read_label_map",
    "label_colours",
    "RegionValues",
    "check_region_values",
    "region_members",
    "region_values_from_text",
    "regions_from_text",
    "NestedRegions",
    "nest_regions",
    "Geometry",
    "geometry_from_affine",
    "read_dataset",
    "prediction_files",
    # The files of many patients.
    "CaseFiles",
    "CaseFolders",
    "LAYOUTS",
    "find_cases",
    "find_labelled_cases",
    "common_sequences",
    "find_label_map",
    "find_predicted_images",
    "find_probabilities",
    # One file, and what is wrong with it.
    "Source",
    "InputError",
    "Volume",
    "read_volume",
    "require_same_grid",
    "quiet_libraries",
    "TableRow",
    "read_table",
    # Files to write.
    "save_nifti",
    "save_like",
    "convert",
    "write_table",
    "write_volumes",
    "write_bids_sidecars",
    "bids_names",
    "OUR_SEGMENTATION",
    "bids_sidecar_names",
    "write_dicom",
    "check_dicom_series",
    "is_dicom",
    "read_dose",
    "DICOM_FILES",
    "write_dicom_report",
    "DIAMETERS",
    "SegmentVolume",
    "write_for_program",
    "Program",
    "PROGRAM_FILES",
    "ENDINGS",
    "output_ending",
]
