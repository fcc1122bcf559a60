"""The report of a run: one page with slices, charts and a viewer, and the parts that others use."""

from perturb_mpm.report.charts import DASHES, ChartLine, LineChart, unit_chart
from perturb_mpm.report.colours import (
    BRIGHTEST_GREY,
    SHOWN_FROM_BITS,
    EntropyScale,
    grey_window,
    in_window,
)
from perturb_mpm.report.data import ReportData, Snapshot, VolumeKind, VolumeRow
from perturb_mpm.report.embedded import most_uncertain_mm, viewer_label_colours
from perturb_mpm.report.environment import page_environment
from perturb_mpm.report.pictures import data_uri, grey_png, palette_png
from perturb_mpm.report.places import uncertain_places
from perturb_mpm.report.planes import Plane, radiological_planes
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
    "palette_png",
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
