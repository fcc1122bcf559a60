"""The command ``perturb-mpm``: one file a command, each loaded only when it is called."""

from __future__ import annotations

from collections.abc import Sequence

from cyclopts import App, CycloptsError, Group

from perturb_mpm.checks import LONGEST_MESSAGE, ExpectedError, in_short
from perturb_mpm.cli.console import (
    UsageError,
    accept_all_characters,
    in_options,
    prepare_folder,
    print_line,
    shown_progress,
)
from perturb_mpm.version import version

__all__ = ["main", "app", "run_app", "UsageError", "prepare_folder", "shown_progress"]

_EXIT_FAILED, _EXIT_USAGE, _EXIT_INTERRUPTED = 1, 2, 130
_EXIT_CODES = (
    "\n\nExit codes: 0 done; 2 bad input (arguments, files, a folder that cannot be written to); "
    "130 interrupted; 1 other failures."
)
_EXIT_CODES_OF_MANY = (
    "\n\nExit codes: 0 done; 3 some cases failed; 2 bad input; 130 interrupted, the same command "
    "goes on; 1 other failures."
)
_TOOLS = Group("Tools", sort_key=4)
_GROUPS = {  # in the order of --help
    Group("One patient", sort_key=1): ("demo", "run", "view", "measure", "change", "biomarkers"),
    Group("Many patients", sort_key=2): ("cohort", "bids"),
    Group("Labelled cases", sort_key=3): ("evaluate", "tune", "settings", "train"),
    _TOOLS: ("convert", "doctor"),  # and --help, --version
}
# Name: what it does, and an example.
_COMMANDS = {
    "demo": (
        "Try it: run a made-up patient and write its report. Nothing to prepare.",
        "demo --output demo --seed 3",
    ),
    "run": (
        "Segment one patient with error bars: labels, uncertainty, volumes and a report.",
        (
            "run --image t1.nii.gz t1c.nii.gz t2.nii.gz flair.nii.gz --probabilities case.npz "
            f"--output case{_EXIT_CODES}"
        ),
    ),
    "cohort": (
        "Run every case of a folder or table; write maps for each, one table and one page.",
        (
            "cohort --images imagesTs --probabilities predicted --output out --workers 4"
            f"{_EXIT_CODES_OF_MANY}"
        ),
    ),
    "bids": (
        "Run the subjects of a BIDS dataset; write a derivative dataset (a BIDS App).",
        (
            "bids data data/derivatives/perturb-mpm participant --participant-label 01 02 "
            f"--derivatives nnunet{_EXIT_CODES_OF_MANY}"
        ),
    ),
    "view": ("Look at a run in the browser, and correct its labels.", "view case"),
    "measure": (
        "Sizes, distances and doses of a run with intervals, and how probable a rule is.",
        "measure case --measure volume diameter --rule 'enhancing.volume > 10' --output measures",
    ),
    "change": (
        "Compare two runs of one patient: did it grow, how sure is that, and where?",
        "change january june --structure enhancing --output change",
    ),
    "convert": (
        "Write a volume in another format, every voxel in its place.",
        "convert --input labels.nii.gz --output labels.seg.nrrd --labels 0:background 1:core",
    ),
    "doctor": (
        "Show versions, extras, GPU and memory, and check that this machine computes right.",
        "doctor --json",
    ),
    "tune": (
        "Learn intervals and settings from labelled cases; write a TOML file that run takes.",
        "tune --data cases --layout brats --labels brats2021 --model model.npz --output tuned",
    ),
    "settings": (
        "List the settings that come with the program, learned on public data.",
        "settings list",
    ),
    "train": (
        "No network yet? Train a segmenter, and see how it does on patients it never saw.",
        "train --data brats2021_2mm --layout brats --labels brats2021 --output model.npz",
    ),
    "evaluate": (
        "Measure how good the uncertainty is, against a truth or several raters.",
        "evaluate --prediction case --truth truth.nii.gz --region core=1,4 --output evaluation",
    ),
    "biomarkers": (
        "Extent of resection and residual tumour volume, with intervals.",
        "biomarkers --before preop --after postop --region 4 --output biomarkers",
    ),
}

app = App(
    name="perturb-mpm",
    help=(
        "Volumes with intervals, and maps of where not to trust a segmentation, from a patient's "
        "images and the probabilities of any network."
    ),
    help_epilogue=("Example:  perturb-mpm demo --output demo\n\nThen see:  perturb-mpm run --help"),
    version=version,
    group_commands=_TOOLS,
    # Ctrl-C is reported like every other failure, by main.
    suppress_keyboard_interrupt=False,
)
for _group, _names in _GROUPS.items():
    for _rank, _name in enumerate(_names):
        _help, _example = _COMMANDS[_name]
        app.command(
            f"perturb_mpm.cli.{_name}:{_name}",
            name=_name,
            help=_help,
            help_epilogue=f"Example:  perturb-mpm {_example}",
            group=_group,
            sort_key=_rank,
        )
app.register_install_completion_command(
    help="Let bash, zsh, fish or PowerShell complete commands and options."
)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line ``perturb-mpm`` and exit."""
    run_app(app, arguments)


def run_app(commands: App, arguments: Sequence[str] | None = None) -> None:
    """Run one of the commands and exit.

    The code is 0 when all is done, 2 for bad input (arguments, files, a folder that cannot be
    written to), 130 when interrupted, and 1 for other failures.
    """
    accept_all_characters()
    name = commands.name[0]
    try:
        commands(arguments, exit_on_error=False, print_error=False)
    except CycloptsError as error:
        _fail(name, str(error), _EXIT_USAGE)
    except ExpectedError as error:
        _fail(name, in_options(str(error)), _EXIT_USAGE)
    except (OSError, MemoryError) as error:
        _fail(name, str(error), _EXIT_FAILED)
    except KeyboardInterrupt as error:
        _fail(name, str(error) or "interrupted", _EXIT_INTERRUPTED)


def _fail(name: str, message: str, code: int) -> None:
    """Say in one line what went wrong, and exit."""
    line = " ".join(message.split())
    print_line(in_short(line, LONGEST_MESSAGE - len(f"{name}: ")), name)
    raise SystemExit(code)
