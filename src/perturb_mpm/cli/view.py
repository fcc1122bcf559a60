"""``perturb-mpm view``: look at a run in the browser, and correct it."""

from __future__ import annotations

import sys
import webbrowser
from pathlib import Path

from perturb_mpm.cli.console import Flag, UsageError, whole_number
from perturb_mpm.sampling import MOST_SAMPLES

_LARGEST_PORT = 65535


def view(
    output: Path,
    /,
    *,
    port: int = 0,
    samples: int | None = None,
    no_browser: Flag = False,
    quiet: Flag = False,
) -> None:
    """Look at a run in the browser, and correct its labels. Ctrl-C ends it.

    Parameters
    ----------
    output
        The folder that ``perturb-mpm run`` or ``perturb-mpm demo`` wrote.
    port
        Where to listen on this machine; a free port where it is 0.
    samples
        How many of the run's samples a correction solves again; all of them where not given.
        Fewer are faster, and leave the maps coarser near edits.
    no_browser
        Print the address without opening it.
    quiet
        Print the address alone.
    """
    whole_number(port, "--port", 0, _LARGEST_PORT)
    if samples is not None:
        whole_number(samples, "--samples", 1, MOST_SAMPLES)
    if not output.is_dir():
        raise UsageError(f"OUTPUT must be the folder of a run, got {output}, which is none")

    from perturb_mpm.view import ViewServer, open_session

    try:
        session = open_session(output, samples)
    except ValueError as error:
        raise UsageError(f"OUTPUT must be the folder of a finished run: {error}") from error
    try:
        server = ViewServer(session, port)
    except OSError as error:
        raise UsageError(f"--port must be free, got {port}: {error.strerror}") from error
    with server:
        sys.stdout.write(f"{server.address}\n")
        sys.stdout.flush()
        if not quiet:
            sys.stderr.write("Open this address in a browser of this machine; Ctrl-C ends it.\n")
        if not no_browser:
            webbrowser.open(server.address)
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            if not quiet:
                sys.stderr.write("\nended; corrections that were saved stay in the folder\n")
