"""The report of a run: one page with slices, charts and a viewer, and the parts that others use."""

from perturb_mpm.report.charts import DASHES, ChartLine, LineChart, unit_chart
from perturb_mpm.report.colours import (
    BRIGHTEST_GREY,
    SHOWN_FROM_BITS,
    EntropyScale,
    grey_window,
    in_window,
    label_styles,
)
from perturb_mpm.report.data import ReportData, Snapshot, VolumeKind, VolumeRow
from perturb_mpm.report.embedded import most_uncertain_mm, viewer_label_colours
from perturb_mpm.report.environment import page_environment
from perturb_mpm.report.pictures import (
    Picture,
    colour_bar,
    data_uri,
    entropy_overlay,
    error_overlay,
    field_of_view,
    grey_png,
    slice_picture,
    thumbnail,
)
from perturb_mpm.report.places import uncertain_places
from perturb_mpm.report.planes import Plane, radiological_planes, to_mm
from perturb_mpm.report.provenance import Provenance
from perturb_mpm.report.report import write_report
from perturb_mpm.report.truth import LabelComparison, compare_labels
from perturb_mpm.report.viewer import (
    ShownImage,
    Turning,
    ViewerSettings,
    asset,
    box_around,
    nifti_bytes,
    niivue,
    script,
)
from perturb_mpm.report.words import number

__all__ = [
    "BRIGHTEST_GREY",
    "EntropyScale",
    "grey_window",
    "in_window",
    "ChartLine",
    "DASHES",
    "data_uri",
    "grey_png",
    "LineChart",
    "number",
    "page_environment",
    "colour_bar",
    "entropy_overlay",
    "error_overlay",
    "field_of_view",
    "label_styles",
    "Picture",
    "slice_picture",
    "thumbnail",
    "to_mm",
    "Plane",
    "radiological_planes",
    "unit_chart",
    "asset",
    "box_around",
    "compare_labels",
    "LabelComparison",
    "most_uncertain_mm",
    "nifti_bytes",
    "niivue",
    "Provenance",
    "ReportData",
    "script",
    "SHOWN_FROM_BITS",
    "ShownImage",
    "Snapshot",
    "Turning",
    "uncertain_places",
    "viewer_label_colours",
    "ViewerSettings",
    "VolumeKind",
    "VolumeRow",
    "write_report",
]
