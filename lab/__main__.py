"""The laboratory: the paper's experiments, repeated. ``python -m lab --help`` lists them."""

from __future__ import annotations

from collections.abc import Sequence

from cyclopts import App

from perturb_mpm.cli import run_app
from perturb_mpm.version import version

app = App(
    name="python -m lab",
    help="Repeat the paper's experiments.",
    help_epilogue="Example:  python -m lab synthetic --quick",
    version=version,
    suppress_keyboard_interrupt=False,  # reported by run_app like every other failure
)
app.command(
    "lab.synthetic.command:synthetic",
    name="synthetic",
    help="Repeat the paper's validation on tiny grids; write a table, two figures and a page.",
    help_epilogue="Example:  python -m lab synthetic --quick --output synthetic",
)
app.command(
    "lab.evidence.command:network",
    name="network",
    help="Score a real network, the CRF and what tune learns, beside ensemble, dropout and flips.",
    help_epilogue="Example:  python -m lab network --data hippocampus_network --quick",
)
app.command(
    "lab.evidence.command:gliomas",
    name="gliomas",
    help="Score networks and trees on gliomas, the CRF and what tune learns, beside baselines.",
    help_epilogue="Example:  python -m lab gliomas --data brats2021_2mm --model model.npz",
)
app.command(
    "lab.frozen.command:frozen",
    name="frozen",
    help="Compare frozen voxels and converged samples with full sampling, sample by sample.",
    help_epilogue="Example:  python -m lab frozen --data data --model model.npz --quick",
)
app.command(
    "lab.volumes.command:volumes",
    name="volumes",
    help="Sample the volumes of real tumours under noise of several lengths; write a table.",
    help_epilogue="Example:  python -m lab volumes --data brats2021_2mm --quick",
)
app.command(
    "lab.decisions.command:lesions",
    name="lesions",
    help="Score the probabilities of single lesions on made-up heads with satellites.",
    help_epilogue="Example:  python -m lab lesions --heads 8 --output lesions",
)
app.command(
    "lab.decisions.command:growth",
    name="growth",
    help="Ask whether made-up heads that were scanned twice have grown; write a curve of power.",
    help_epilogue="Example:  python -m lab growth --heads 8 --grown 4 --output growth",
)
app.command(
    "lab.decisions.command:progression",
    name="progression",
    help="Compare two dates of real patients by probabilities of our own making.",
    help_epilogue="Example:  python -m lab progression --data brain_tumor_progression_crop",
)
app.command(
    "lab.decisions.command:definitions",
    name="definitions",
    help="Draw what measures mean, on one made-up structure.",
    help_epilogue="Example:  python -m lab definitions --output definitions",
)
app.command(
    "lab.decisions.command:priority",
    name="priority",
    help="Let a simulated user correct cubes in three orders; write how the interval narrows.",
    help_epilogue="Example:  python -m lab priority --hippocampi hippocampus_network --most 4",
)
app.command(
    "lab.segmentation.command:segmentation",
    name="segmentation",
    help="Segment patients with trees and a CRF learned on all others; write tables, a page.",
    help_epilogue="Example:  python -m lab segmentation --data brats2021_2mm",
)
app.command(
    "lab.clinical.command:quality",
    name="quality",
    help="Measure how well uncertainty finds errors, on made-up or real patients.",
    help_epilogue="Example:  python -m lab quality --data brats2021_2mm --output quality",
)
app.command(
    "lab.clinical.command:biomarkers",
    name="biomarkers",
    help="Compare extent of resection and residual volume with four raters, 19 patients.",
    help_epilogue="Example:  python -m lab biomarkers --output biomarkers",
)
app.command(
    "lab.clinical.command:bias",
    name="bias",
    help="Say for which segmenters dropping uncertain voxels helps, 19 patients, four raters.",
    help_epilogue="Example:  python -m lab bias --quick --output bias",
)
app.command(
    "lab.clinical.command:figures",
    name="figures",
    help="Draw made-up patients as the paper's figures 4, 7 and 8 show its own.",
    help_epilogue="Example:  python -m lab figures --quick --output figures",
)
app.command(
    "lab.clinical.command:raters",
    name="raters",
    help="Compare drawings of real raters and algorithms with each other.",
    help_epilogue="Example:  python -m lab raters --data data --output raters",
)
app.command(
    "lab.compare.command:compare",
    name="compare",
    help="Run every method that the paper names on one's own case; write a table and a picture.",
    help_epilogue="Example:  python -m lab compare --image t1c.nii.gz --probabilities case.npz",
)
app.command(
    "lab.torture.command:torture",
    name="torture",
    help="Attack readers, interface, disk and server for a given time; write a table.",
    help_epilogue="Example:  python -m lab torture --seconds 60 --seed 3 --output torture",
)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run one experiment and exit."""
    run_app(app, arguments)


if __name__ == "__main__":
    main()
