"""The command ``perturb-mpm``: one file a command, each loaded only when it is called."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from perturb_mpm.checks import LONGEST_MESSAGE, ExpectedError, in_short
from perturb_mpm.cli.console import (
    UsageError,
    accept_all_characters,
    in_options,
    prepare_folder,
    print_line,
    shown_progress,
)

if TYPE_CHECKING:
    from cyclopts import App

__all__ = [
    "main",
    "load_app",
    "run_app",
    "UsageError",
    "prepare_folder",
    "shown_progress",
]

_EXIT_FAILED, _EXIT_USAGE, _EXIT_INTERRUPTED = 1, 2, 130


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line ``perturb-mpm`` and exit."""
    run_app(load_app(), arguments)


def load_app() -> App:
    """Return the parser of ``perturb-mpm``, all commands named in it and none loaded."""
    from perturb_mpm.cli.app import app

    return app


def run_app(app: App, arguments: Sequence[str] | None = None) -> None:
    """Run the commands of ``app`` and exit.

    The code is 0 when all is done, 2 for bad input (arguments, files, a folder that cannot be
    written to), 130 when interrupted, and 1 for other failures.
    """
    from cyclopts import CycloptsError

    accept_all_characters()
    try:
        app(arguments, exit_on_error=False, print_error=False)
    except CycloptsError as error:
        _fail(app.name[0], str(error), _EXIT_USAGE)
    except ExpectedError as error:
        _fail(app.name[0], in_options(str(error)), _EXIT_USAGE)
    except (OSError, MemoryError) as error:
        _fail(app.name[0], str(error), _EXIT_FAILED)
    except KeyboardInterrupt as error:
        _fail(app.name[0], str(error) or "interrupted", _EXIT_INTERRUPTED)


def _fail(name: str, message: str, code: int) -> None:
    """Say in one line what went wrong, and exit."""
    line = " ".join(message.split())
    print_line(in_short(line, LONGEST_MESSAGE - len(f"{name}: ")), name)
    raise SystemExit(code)
