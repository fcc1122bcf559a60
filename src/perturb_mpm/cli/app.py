"""The list of commands. It names them by their import path and loads none."""

from __future__ import annotations

from cyclopts import App

from perturb_mpm.version import version

app = App(
    name="perturb-mpm",
    help="Segment medical images with a dense CRF, and see how uncertain the segmentation is.",
    help_epilogue="Example:  perturb-mpm demo --output demo",
    version=version,
    # Ctrl-C is reported like every other failure, by main.
    suppress_keyboard_interrupt=False,
)
app.command(
    "perturb_mpm.cli.demo:demo",
    name="demo",
    help="Segment a made-up brain with a glioma; write a picture and NIfTI files.",
    help_epilogue="Example:  perturb-mpm demo --output demo --seed 3",
)

reproduce = App(
    name="reproduce",
    help="Repeat the paper's experiments.",
    help_epilogue="Example:  perturb-mpm reproduce synthetic --quick",
)
reproduce.command(
    "perturb_mpm.cli.reproduce:synthetic",
    name="synthetic",
    help="Repeat the paper's validation on tiny grids; write a table, two figures and a page.",
    help_epilogue="Example:  perturb-mpm reproduce synthetic --quick --output synthetic",
)
reproduce.command(
    "perturb_mpm.cli.reproduce_volumes:volumes",
    name="volumes",
    help="Sample the volumes of real tumours with and without random fields; write a table.",
    help_epilogue="Example:  perturb-mpm reproduce volumes --data brats2021_2mm --quick",
)
app.command(reproduce)
