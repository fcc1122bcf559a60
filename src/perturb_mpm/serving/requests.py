"""What a browser may ask for, and how it is refused: checks that need no socket."""

from __future__ import annotations

import json
import secrets
from dataclasses import dataclass
from email.message import Message
from urllib.parse import parse_qs, urlsplit

MOST_BODY_BYTES = 8 * 2**20
MOST_EDITED_VOXELS = 200_000
TOKEN_HEADER = "X-Perturb-Mpm-Token"  # noqa: S105


class RefusedError(Exception):
    """A request that is answered with a status and a sentence."""

    def __init__(self, status: int, sentence: str) -> None:
        super().__init__(sentence)
        self.status = status


@dataclass(frozen=True)
class Gate:
    """Lets in requests for this server's own name that carry its token."""

    port: int
    token: str

    @property
    def names(self) -> tuple[str, str]:
        """The Host headers that mean this server."""
        return f"127.0.0.1:{self.port}", f"localhost:{self.port}"

    def check(self, target: str, headers: Message) -> str:
        """Return the path that is asked for, after checking Host and token.

        The page itself takes the token from its address, everything else from a header, which
        other sites and other tabs cannot send.
        """
        host = headers.get("Host", "")
        if host not in self.names:
            raise RefusedError(403, f"this server does not answer for the host {host!r}")
        parts = urlsplit(target)
        given = headers.get(TOKEN_HEADER, "")
        if parts.path == "/":
            given = parse_qs(parts.query).get("token", [""])[0]
        if not secrets.compare_digest(given.encode(), self.token.encode()):
            raise RefusedError(
                403, "this address needs its token: open the one that perturb-mpm view printed"
            )
        return parts.path

    def check_post(self, headers: Message) -> int:
        """Return the length of the body, after checking where it comes from and its size."""
        if headers.get("Origin") not in {f"http://{name}" for name in self.names}:
            raise RefusedError(403, "changes are taken from the viewer's own page alone")
        if headers.get("Content-Type", "").split(";")[0].strip() != "application/json":
            raise RefusedError(415, "the body must be JSON")
        length = headers.get("Content-Length", "")
        if not length.isdecimal():
            raise RefusedError(411, "the body must come with its length")
        if int(length) > MOST_BODY_BYTES:
            raise RefusedError(
                413, f"the body must not be larger than {MOST_BODY_BYTES // 2**20} MiB"
            )
        return int(length)


def read_runs(body: bytes, n_labels: int, voxels: int) -> list[tuple[int, int, int]]:
    """Return edits as (label, first voxel, number of voxels), after checking each."""
    try:
        runs = [tuple(run) for run in json.loads(body)["runs"]]
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise RefusedError(400, "the body must be JSON with a list of runs") from error
    checked = []
    for run in runs:
        if len(run) != 3 or not all(type(number) is int for number in run):
            raise RefusedError(400, "a run must be three whole numbers: label, start and length")
        label, start, length = run
        if not (0 <= label < n_labels and start >= 0 and 0 < length <= voxels - start):
            raise RefusedError(400, f"the run {list(run)} lies outside the labels or the volume")
        checked.append((label, start, length))
    edited = sum(length for _, _, length in checked)
    if edited > MOST_EDITED_VOXELS:
        raise RefusedError(
            400, f"at most {MOST_EDITED_VOXELS} voxels can be set by hand, got {edited}"
        )
    return checked
