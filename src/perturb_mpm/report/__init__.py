"""The report of a run: one page with slices, charts and a viewer, and the parts that others use."""

from perturb_mpm.report.charts import ChartLine, LineChart, unit_chart
from perturb_mpm.report.colours import (
    DASHES,
    OPAQUE_GREY,
    SHOWN_FROM_BITS,
    EntropyScale,
    grey_window,
    in_window,
    label_styles,
)
from perturb_mpm.report.data import (
    Provenance,
    ReportData,
    Snapshot,
    VolumeKind,
    VolumeRow,
    shown_images,
)
from perturb_mpm.report.findings import Findings
from perturb_mpm.report.locations import uncertain_locations
from perturb_mpm.report.pages import number, page_environment
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
from perturb_mpm.report.planes import Plane, box_around, radiological_planes, to_mm
from perturb_mpm.report.report import LabelComparison, compare_labels, run_digest, write_report
from perturb_mpm.report.viewer import (
    BrowserGrid,
    asset,
    nifti_bytes,
    niivue,
    script,
    viewer_settings,
)

__all__ = [
    "Findings",
    "write_report",
    "ReportData",
    "VolumeRow",
    "VolumeKind",
    "Snapshot",
    "Provenance",
    "LabelComparison",
    "compare_labels",
    "run_digest",
    "uncertain_locations",
    "Picture",
    "slice_picture",
    "thumbnail",
    "entropy_overlay",
    "error_overlay",
    "colour_bar",
    "grey_png",
    "data_uri",
    "field_of_view",
    "Plane",
    "radiological_planes",
    "to_mm",
    "box_around",
    "EntropyScale",
    "SHOWN_FROM_BITS",
    "OPAQUE_GREY",
    "grey_window",
    "in_window",
    "label_styles",
    "DASHES",
    "ChartLine",
    "LineChart",
    "unit_chart",
    "page_environment",
    "number",
    "viewer_settings",
    "shown_images",
    "BrowserGrid",
    "nifti_bytes",
    "asset",
    "script",
    "niivue",
]
