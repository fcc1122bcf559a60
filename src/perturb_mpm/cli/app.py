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
    help="Run everything on a made-up patient; write maps, tables and a report.",
    help_epilogue="Example:  perturb-mpm demo --output demo --seed 3",
)
app.command(
    "perturb_mpm.cli.run:run",
    name="run",
    help="Sample segmentations of one patient; write labels, uncertainty, volumes and a report.",
    help_epilogue=(
        "Example:  perturb-mpm run --image t1.nii.gz t1c.nii.gz t2.nii.gz flair.nii.gz "
        "--probabilities case.npz --output case\n\n"
        "Exit codes: 0 done; 2 bad input (arguments, files, a folder that cannot be written to); "
        "130 interrupted; 1 other failures."
    ),
)
app.command(
    "perturb_mpm.cli.cohort:cohort",
    name="cohort",
    help="Run every case of a folder or table; write maps for each, one table and one page.",
    help_epilogue=(
        "Example:  perturb-mpm cohort --images imagesTs --probabilities predicted --output out "
        "--workers 4\n\n"
        "Exit codes: 0 done; 3 some cases failed; 2 bad input; 130 interrupted, the same command "
        "goes on; 1 other failures."
    ),
)
app.command(
    "perturb_mpm.cli.bids:bids",
    name="bids",
    help="Run the subjects of a BIDS dataset; write a derivative dataset (a BIDS App).",
    help_epilogue=(
        "Example:  perturb-mpm bids data data/derivatives/perturb-mpm participant "
        "--participant-label 01 02 --derivatives nnunet\n\n"
        "Exit codes: 0 done; 3 some cases failed; 2 bad input; 130 interrupted, the same command "
        "goes on; 1 other failures."
    ),
)
app.command(
    "perturb_mpm.cli.view:view",
    name="view",
    help="Look at a run in the browser, and correct its labels.",
    help_epilogue="Example:  perturb-mpm view case",
)
app.command(
    "perturb_mpm.cli.measure:measure",
    name="measure",
    help="Measure every sample of a run: size, shape, distances, dose, your own; P of a rule.",
    help_epilogue=(
        "Example:  perturb-mpm measure case --measure volume diameter "
        "--rule 'enhancing.volume > 10' --output measures"
    ),
)
app.command(
    "perturb_mpm.cli.change:change",
    name="change",
    help="Compare two runs of one patient: did it grow, how sure is that, and where?",
    help_epilogue="Example:  perturb-mpm change january june --structure enhancing --output change",
)
app.command(
    "perturb_mpm.cli.convert:convert",
    name="convert",
    help="Write a volume in another format, its voxels where they were.",
    help_epilogue=(
        "Example:  perturb-mpm convert --input labels.nii.gz --output labels.seg.nrrd "
        "--labels 0:background 1:core"
    ),
)
app.command(
    "perturb_mpm.cli.doctor:doctor",
    name="doctor",
    help="Show versions, extras, threads, cache, GPU and memory, and solve a tiny problem.",
    help_epilogue="Example:  perturb-mpm doctor --json",
)

app.command(
    "perturb_mpm.cli.tune:tune",
    name="tune",
    help="Learn the CRF's settings on labelled cases; write a TOML file that run takes.",
    help_epilogue=(
        "Example:  perturb-mpm tune --data cases --layout brats --labels brats2021 "
        "--model model.npz --output tuned"
    ),
)
app.command(
    "perturb_mpm.cli.train:train",
    name="train",
    help="Train a segmenter on labelled cases; report how it does on patients it never saw.",
    help_epilogue=(
        "Example:  perturb-mpm train --data brats2021_2mm --layout brats --labels brats2021 "
        "--output model.npz"
    ),
)
app.command(
    "perturb_mpm.cli.evaluate:evaluate",
    name="evaluate",
    help="Measure how good an uncertainty is, against a truth or several raters.",
    help_epilogue=(
        "Example:  perturb-mpm evaluate --prediction case --truth truth.nii.gz "
        "--region core=1,4 --output evaluation"
    ),
)
app.command(
    "perturb_mpm.cli.biomarkers:biomarkers",
    name="biomarkers",
    help="Extent of resection and residual tumour volume, with what is known of their error.",
    help_epilogue=(
        "Example:  perturb-mpm biomarkers --before preop --after postop --region 4 "
        "--output biomarkers"
    ),
)
app.register_install_completion_command(
    help="Let bash, zsh, fish or PowerShell complete commands and options."
)
