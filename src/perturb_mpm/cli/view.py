"""``perturb-mpm view``: look at a run in the browser, and correct it."""

from __future__ import annotations

import os
import sys
import webbrowser
from contextlib import closing
from pathlib import Path

from perturb_mpm.cli.console import (
    Flag,
    UsageError,
    print_json,
    print_plain,
    print_warning,
    require_run,
    usage_errors,
    whole_number,
)
from perturb_mpm.engines import Compute
from perturb_mpm.storage import LockedError
from perturb_mpm.view import Session, ViewServer, open_session, take_label_map

_LARGEST_PORT = 65535
REMOTE = (
    "This looks like a remote machine. On your own, forward the port first, as in\n"
    "    ssh -L {port}:127.0.0.1:{port} USER@HOST\n"
    "and then open the address there.\n"
)


def view(
    output: Path,
    /,
    *,
    port: int = 0,
    kernel_cache: Path | None = None,
    no_browser: Flag = False,
    correction: Path | None = None,
    quiet: Flag = False,
    json: Flag = False,
) -> None:
    """Look at a run in the browser, and correct its labels. Ctrl-C ends it.

    With --correction or --json it opens no browser and ends by itself.

    Parameters
    ----------
    output
        The folder that ``perturb-mpm run`` or ``perturb-mpm demo`` wrote.
    port
        Where to listen on this machine; a free port where it is 0.
    kernel_cache
        The folder of prepared kernels that the run was given, or another: corrections are ready
        sooner.
    no_browser
        Print the address without opening it.
    correction
        The run's label map as another program corrected it: where it differs is taken for painted,
        and all else follows, as in the browser.
    quiet
        Print the address alone.
    json
        Print where to look, and the volumes, as one JSON object.
    """
    whole_number(port, "--port", 0, _LARGEST_PORT)
    require_run(output, "OUTPUT")

    with usage_errors():
        folder = Compute(kernel_cache=kernel_cache).kernel_cache
    try:
        session = open_session(output, folder)
    except LockedError as error:
        raise UsageError(
            f"OUTPUT must not be in use, got {output}, which a run or another viewer is using"
        ) from error
    except ValueError as error:
        raise UsageError(f"OUTPUT must be the folder of a finished run: {error}") from error
    if correction is not None or json:
        _report_session(session, correction, json=json)
        return
    try:
        server = ViewServer(session, port)
    except OSError as error:
        raise UsageError(f"--port must be free, got {port}: {error.strerror}") from error
    with server:
        session.get_ready()
        sys.stdout.write(f"{server.address}\n")
        sys.stdout.flush()
        if not quiet:
            sys.stderr.write("Open this address in a browser of this machine; Ctrl-C ends it.\n")
            if is_remote():
                sys.stderr.write(REMOTE.format(port=server.gate.port))
        if not no_browser:
            webbrowser.open(server.address)
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            if not quiet:
                sys.stderr.write("\nended; corrections that were saved stay in the folder\n")


def _report_session(session: Session, correction: Path | None, *, json: bool) -> None:
    """Take a correction in, where there is one, and print what the run is then."""
    with closing(session):
        painted, warning = (0, None) if correction is None else take_label_map(session, correction)
        if warning is not None:
            print_warning(warning)
        shown, found = session.shown, session.locations
        if not json:
            print_plain(f"{painted} voxels were painted, {shown.moved_voxels} others followed")
            return
        print_json(
            {
                "output": str(session.run.folder),
                "painted_voxels": painted,
                "moved_voxels": shown.moved_voxels,
                "title": found.title,
                "locations": [vars(each) for each in found.locations],
                "volumes": [vars(each) for each in shown.volumes],
            }
        )


def is_remote() -> bool:
    """Return whether nobody can see a browser that this process opens."""
    if "SSH_CONNECTION" in os.environ:
        return True
    screens = ("DISPLAY", "WAYLAND_DISPLAY")
    return sys.platform == "linux" and not any(os.environ.get(name) for name in screens)
