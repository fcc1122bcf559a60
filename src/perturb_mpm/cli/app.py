"""The list of commands. It names them by their import path and loads none."""

from __future__ import annotations

from importlib.metadata import version

from cyclopts import App

app = App(
    name="perturb-mpm",
    help="Segment medical images with a dense CRF, and see how uncertain the segmentation is.",
    help_epilogue="Example:  perturb-mpm demo --output demo",
    version=lambda: version("perturb-mpm"),
    # Ctrl-C is reported like every other failure, by main.
    suppress_keyboard_interrupt=False,
)
app.command(
    "perturb_mpm.cli.demo:demo",
    name="demo",
    help="Segment a made-up brain with a glioma; write a picture and NIfTI files.",
    help_epilogue="Example:  perturb-mpm demo --output demo --seed 3",
)
