"""A small HTTP server on the loopback address alone, and what a browser may ask of it.

It gives out the page of ``perturb-mpm view`` and volumes by name, no paths.
"""

from __future__ import annotations

import html
import io
import json
import secrets
import socket
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from email.message import Message
from functools import cached_property, partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

import numpy as np
from numpy.typing import NDArray

from perturb_mpm.posterior import marginal_entropy
from perturb_mpm.report import (
    BrowserGrid,
    asset,
    box_around,
    nifti_bytes,
    niivue,
    script,
    shown_images,
    viewer_settings,
)
from perturb_mpm.run import report_data
from perturb_mpm.storage import DamagedError, parse_json, refuse_damage
from perturb_mpm.view.correction import Edits
from perturb_mpm.view.session import BusyError, ConflictError, Session

_MARGIN_VOXELS = 10


class Volumes:
    """Makes NIfTI bytes of a session's volumes around the mask, in full resolution."""

    def __init__(self, session: Session) -> None:
        self._session = session
        run = session.run
        box = box_around(run.case.mask, (_MARGIN_VOXELS,) * 3)
        geometry = run.case.geometry
        self._grid = BrowserGrid(geometry.affine, geometry.shape, box)
        self._makers: dict[str, Callable[[], bytes]] = {
            "labels": lambda: self._file(run.labels, labels=True),
            "entropy": lambda: self._file(run.entropy),
        }
        for k, image in enumerate(shown_images(run.case.images, run.case.mask).values()):
            self._makers[f"image-{k}"] = partial(self._file, image)
        for label in range(len(run.case.labels)):
            self._makers[f"share-{label}"] = partial(self._share, label)
        for k in range(len(run.sampled_labels)):
            self._makers[f"sample-{k}"] = partial(self._sample, k)

    def get(self, name: str) -> bytes | None:
        """Return a volume of the run as NIfTI, None where there is none of that name.

        Its samples alone follow a correction; for all other volumes see ``changes``.
        """
        make = self._makers.get(name)
        return None if make is None else make()

    def changes(self) -> bytes:
        """Return what a correction changes in the run's maps, in the browser's order.

        Of M voxels, one after the other: M and their positions (uint32), entropy in bits (float32),
        labels (uint8), and the share of each label in 255 steps (uint8, L·M); little-endian.
        """
        correction, regions = self._session.shown.correction, self._session.run.decisions
        positions = self._browser_index[correction.index]
        shown = positions >= 0
        marginals = correction.marginals[:, shown]
        parts = (
            np.array([shown.sum()], dtype="<u4"),
            positions[shown].astype("<u4"),
            marginal_entropy(marginals).astype("<f4"),
            correction.decide(regions)[shown],
            np.round(255 * marginals).astype(np.uint8),
        )
        return b"".join(part.tobytes() for part in parts)

    @cached_property
    def file_index(self) -> NDArray[np.int64]:
        """The C-order index in the file of each voxel in the browser's order."""
        return self._grid.file_index()

    @cached_property
    def _browser_index(self) -> NDArray[np.int32]:
        """The position of each voxel of the file in the browser's order, −1 where not shown."""
        index = np.full(self._session.run.labels.size, -1, dtype=np.int32)
        index[self.file_index] = np.arange(len(self.file_index), dtype=np.int32)
        return index

    def runs(self, edits: Edits) -> list[tuple[int, int, int]]:
        """Return edits as (label, first voxel, number of voxels) in the browser's order."""
        given = np.full(self._session.run.labels.size, -1, dtype=np.int16)
        given[list(edits)] = list(edits.values())
        labels = given[self.file_index]
        starts = np.flatnonzero(np.diff(labels, prepend=-2))
        lengths = np.diff(starts, append=len(labels))
        return [
            (int(labels[start]), int(start), int(length))
            for start, length in zip(starts, lengths)
            if labels[start] >= 0
        ]

    def parse_runs(self, runs: list[tuple[int, int, int]]) -> dict[int, int]:
        """Return the label of each voxel of the file from such runs."""
        edits: dict[int, int] = {}
        for label, start, length in runs:
            voxels = self.file_index[start : start + length].tolist()
            edits.update(dict.fromkeys(voxels, label))
        return edits

    def _sample(self, k: int) -> bytes:
        run = self._session.shown.corrected or self._session.run
        return self._file(run.sampled_labels[k], labels=True)

    def _share(self, label: int) -> bytes:
        share = np.round(255 * self._session.run.marginals[label]).astype(np.uint8)
        return self._file(share, slope=1 / 255)

    def _file(self, volume: NDArray[Any], *, slope: float = 1.0, labels: bool = False) -> bytes:
        voxels = self._grid.reorder(volume)
        return nifti_bytes(voxels, self._grid.affine, slope=slope, labels=labels)


WITHOUT_WEBGL = (
    "This browser cannot draw in 3-D (it lacks WebGL 2, or it is switched off), so the viewer is "
    "not shown. report.html in the same folder has slices that need nothing of the kind."
)


def policy(nonce: str) -> str:
    """Return the content security policy: nothing runs but what carries the nonce."""
    return (
        f"default-src 'none'; script-src 'nonce-{nonce}'; style-src 'nonce-{nonce}'; "
        "img-src data: blob:; connect-src 'self'; base-uri 'none'; form-action 'none'; "
        "frame-ancestors 'none'"
    )


def render_page(session: Session, token: str, nonce: str) -> str:
    """Return the page with the viewer and the tools to correct."""
    run = session.run
    data = report_data(run)
    settings = viewer_settings(
        data,
        data.windows,
        len(data.sampled_labels),
        lambda name: {"url": f"/volumes/{name}"},
        withoutWebgl=WITHOUT_WEBGL,
        note="",
        token=token,
        archiveName=f"{run.folder.resolve().name}-corrected.zip",
    )
    title = html.escape(run.title)
    scripts = script("painting.js", "gestures.js", "correction.js", "start_view.js")
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="referrer" content="no-referrer">
<title>{title} – perturb-mpm view</title>
<link rel="icon" href="data:,">
<style nonce="{nonce}">{asset("viewer.css")}{asset("view.css")}</style>
</head>
<body>
<header><h1>{title}</h1><p>{html.escape(str(run.folder.resolve()))}</p></header>
<main>
{asset("viewer.html")}<template id="pmpm-correction-tools">
{asset("correction.html")}</template>
</main>
<script type="application/json" id="pmpm-settings">{settings}</script>
<script nonce="{nonce}">{niivue()}</script>
<script nonce="{nonce}">{scripts}</script>
</body>
</html>
"""


MOST_BODY_BYTES = 8 * 2**20
MOST_EDITED_VOXELS = 200_000
TOKEN_HEADER = "X-Perturb-Mpm-Token"  # noqa: S105
_MOST_QUERY_FIELDS = 16
_MOST_DIGITS = 12  # of a length, more than any body may have


class RefusedError(Exception):
    """A request that is answered with a status and a sentence."""

    def __init__(self, status: int, sentence: str, *, conflict: bool = False) -> None:
        super().__init__(sentence)
        self.status = status
        self.conflict = conflict  # whether the page has to take in what others changed


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
        hosts = headers.get_all("Host", [""])
        if len(hosts) > 1:  # who is meant: a proxy may read the one, and we the other
            raise RefusedError(400, "a request must name one host")
        host = hosts[0]
        if host not in self.names:
            raise RefusedError(403, f"this server does not answer for the host {host!r}")
        try:
            parts = urlsplit(target)
            query = parse_qs(parts.query, max_num_fields=_MOST_QUERY_FIELDS)
        except ValueError:
            raise RefusedError(400, "this is no address") from None
        if (parts.scheme, parts.netloc) not in {("", ""), ("http", host)}:
            raise RefusedError(400, "this address is not this server's")
        given = headers.get(TOKEN_HEADER, "")
        if parts.path == "/":
            given = query.get("token", [""])[0]
        if not secrets.compare_digest(given.encode(), self.token.encode()):
            raise RefusedError(
                403, "this address needs its token: open the one that perturb-mpm view printed"
            )
        return parts.path

    def check_get(self, headers: Message) -> None:
        """Refuse a body: unread, it would be taken for the next request."""
        if "Transfer-Encoding" in headers or set(headers.get_all("Content-Length", ["0"])) != {"0"}:
            raise RefusedError(400, "a GET request must have no body")

    def check_post(self, headers: Message) -> int:
        """Return the length of the body, after checking where it comes from and its size."""
        if headers.get("Origin") not in {f"http://{name}" for name in self.names}:
            raise RefusedError(403, "changes are taken from the viewer's own page alone")
        if headers.get("Content-Type", "").split(";")[0].strip() != "application/json":
            raise RefusedError(415, "the body must be JSON")
        lengths = headers.get_all("Content-Length", [])
        if len(lengths) != 1 or not lengths[0].isdecimal() or "Transfer-Encoding" in headers:
            raise RefusedError(411, "the body must come with its length")
        length = lengths[0].lstrip("0") or "0"
        if len(length) > _MOST_DIGITS or int(length) > MOST_BODY_BYTES:
            raise RefusedError(
                413, f"the body must not be larger than {MOST_BODY_BYTES // 2**20} MiB"
            )
        return int(length)


def _entry(body: bytes, name: str) -> Any:  # noqa: ANN401 - whatever it says
    """Return one entry of a request's JSON; ``DamagedError`` where it has none."""
    with refuse_damage("the body"):
        return parse_json(body, "the body")[name]


def read_revision(body: bytes) -> int:
    """Return the revision that a request is about."""
    revision = None
    with suppress(DamagedError):
        revision = _entry(body, "revision")
    if type(revision) is not int:
        raise RefusedError(400, "the body must be JSON with the number of a revision")
    return revision


def read_runs(body: bytes, n_labels: int, voxels: int) -> list[tuple[int, int, int]]:
    """Return edits as (label, first voxel, number of voxels), after checking each."""
    try:
        return _check_runs(_entry(body, "runs"), n_labels, voxels)
    except DamagedError as error:
        raise RefusedError(400, "the body must be JSON with a list of runs") from error


def _check_runs(runs: Any, n_labels: int, voxels: int) -> list[tuple[int, int, int]]:  # noqa: ANN401
    try:
        given = [tuple(run) for run in runs]
    except TypeError as error:
        raise RefusedError(400, "the body must be JSON with a list of runs") from error
    found = []
    for run in given:
        if len(run) != 3 or not all(type(number) is int for number in run):
            raise RefusedError(400, "a run must be three whole numbers: label, start and length")
        label, start, length = run
        if not (0 <= label < n_labels and start >= 0 and 0 < length <= voxels - start):
            raise RefusedError(400, f"the run {list(run)} lies outside the labels or the volume")
        found.append((label, start, length))
    edited = sum(length for _, _, length in found)
    if edited > MOST_EDITED_VOXELS:
        raise RefusedError(
            400, f"at most {MOST_EDITED_VOXELS} voxels can be set by hand, got {edited}"
        )
    return found


def read_draft(body: bytes, n_labels: int, voxels: int) -> dict[str, Any]:
    """Return strokes that are not saved yet, after checking each number.

    ``base`` and ``runs`` are edits as in an update, the saved ones and those painted; a stroke is a
    list of (first voxel, number of voxels, value before, value after), a value a label plus 1, or
    0; ``done`` strokes are not undone.
    """
    try:
        draft = _entry(body, "draft")
        found = {name: draft[name] for name in ("base", "runs", "strokes", "done")}
        for name in ("base", "runs"):
            _check_runs(found[name], n_labels, voxels)
        numbers = [number for stroke in found["strokes"] for run in stroke for number in run]
        whole = all(type(number) is int for number in (*numbers, found["done"]))
        runs = np.array([run for stroke in found["strokes"] for run in stroke])
    except RefusedError:
        raise
    except (ValueError, TypeError, KeyError, RecursionError, OverflowError):
        whole = False
    if not whole or not 0 <= found["done"] <= len(found["strokes"]):
        raise RefusedError(400, "the body must be JSON with a draft of whole numbers")
    if runs.size:
        if runs.ndim != 2 or runs.shape[1] != 4 or runs.dtype.kind != "i":
            raise RefusedError(400, "a stroke must be runs of four whole numbers")
        start, length, before, after = runs.T
        values = np.concatenate([before, after])
        if (
            min(start.min(), values.min()) < 0
            or length.min() < 1
            or (start > voxels - length).any()
            or values.max() > n_labels
        ):
            raise RefusedError(400, "a stroke lies outside the labels or the volume")
    return found


LOOPBACK = "127.0.0.1"
MOST_CONNECTIONS = 32  # a browser opens six
_SECONDS_TO_ASK = 10.0  # from the first byte of a request to its last, or until the next one
_SECONDS_TO_SEND = 60.0
_TOO_MANY = b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"


class ViewServer(ThreadingHTTPServer):
    """Serves one session. ``port`` 0 takes a free one."""

    daemon_threads = True
    request_queue_size = MOST_CONNECTIONS

    def __init__(self, session: Session, port: int = 0) -> None:
        self.session = session  # first: it is closed where the port is taken
        super().__init__((LOOPBACK, port), _Handler)
        self.volumes = Volumes(session)
        self.gate = Gate(self.server_address[1], secrets.token_urlsafe(24))
        self._connections = threading.BoundedSemaphore(MOST_CONNECTIONS)

    def process_request(self, request: Any, client_address: Any) -> None:  # noqa: ANN401
        """Serve a connection in a thread of its own, unless there are too many."""
        if not self._connections.acquire(blocking=False):
            with suppress(OSError):
                request.settimeout(0)
                request.send(_TOO_MANY)
            self.shutdown_request(request)
            return
        try:
            super().process_request(request, client_address)
        except BaseException:
            self._connections.release()
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:  # noqa: ANN401
        """Serve a connection to its end, then let another in."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._connections.release()

    def server_close(self) -> None:
        """Stop listening, and let others use the run's folder."""
        super().server_close()
        self.session.close()

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ANN401
        """Say nothing about a client that hung up; what was not foreseen is shown."""
        if not isinstance(sys.exception(), OSError):
            super().handle_error(request, client_address)

    @property
    def address(self) -> str:
        """The address to open, with the token."""
        return f"http://{LOOPBACK}:{self.gate.port}/?token={self.gate.token}"

    @cached_property
    def nonce(self) -> str:
        """Marks the scripts of the page as ours."""
        return secrets.token_urlsafe(16)

    @cached_property
    def page(self) -> bytes:
        """The page, made once."""
        page = render_page(self.session, self.gate.token, self.nonce)
        return page.encode(errors="backslashreplace")


class _Dripping(io.RawIOBase):
    """Bytes of a connection until a deadline, after which it is a TimeoutError."""

    def __init__(self, connection: socket.socket) -> None:
        self.deadline = time.monotonic() + _SECONDS_TO_ASK
        self._connection = connection

    def readable(self) -> bool:
        """Return that it can be read."""
        return True

    def readinto(self, buffer: Any) -> int:  # noqa: ANN401 - anything that holds bytes
        """Read what has come, waiting no longer than until the deadline."""
        left = self.deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError
        self._connection.settimeout(left)
        return self._connection.recv_into(buffer)


class _Handler(BaseHTTPRequestHandler):
    server: ViewServer
    protocol_version = "HTTP/1.1"
    server_version, sys_version = "perturb-mpm", ""

    def setup(self) -> None:
        """Read what is asked under one deadline, however slowly it drips in."""
        super().setup()
        self._asked = _Dripping(self.connection)
        self.rfile = io.BufferedReader(self._asked)

    def handle_one_request(self) -> None:
        """Answer one request; the time to ask begins anew with each."""
        self._asked.deadline = time.monotonic() + _SECONDS_TO_ASK
        super().handle_one_request()

    def do_GET(self) -> None:
        """Give out the page, a volume, the edits or the status."""
        try:
            path = self.server.gate.check(self.path, self.headers)
            self.server.gate.check_get(self.headers)
            self._get(path)
        except RefusedError as refused:
            self._refuse(refused)

    def do_POST(self) -> None:
        """Take edits, or take them back."""
        try:
            path = self.server.gate.check(self.path, self.headers)
            length = self.server.gate.check_post(self.headers)
            body = self.rfile.read(length)
            if len(body) < length:
                raise RefusedError(400, "the body is shorter than its length says")
            self._post(path, body)
        except RefusedError as refused:
            self._refuse(refused)
        except BusyError as busy:
            self._refuse(RefusedError(409, str(busy)))
        except ConflictError as conflict:
            self._refuse(RefusedError(409, str(conflict), conflict=True))

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Stay quiet: addresses carry the token, and do not belong on a terminal."""

    def _get(self, path: str) -> None:
        shown = self.server.session.shown
        if path == "/":
            self._send(200, "text/html; charset=utf-8", self.server.page)
        elif path == "/status":
            self._send_json(200, asdict(self.server.session.status))
        elif path == "/edits":
            runs = self.server.volumes.runs(shown.edits)
            self._send_json(200, {"runs": runs, "stale": shown.stale, "revision": shown.number})
        elif path == "/changes":
            self._send(200, "application/octet-stream", self.server.volumes.changes())
        elif path == "/volumes-ml":
            self._send_json(200, {"volumes": [asdict(each) for each in shown.volumes]})
        elif path == "/locations":
            self._send_json(200, asdict(self.server.session.locations))
        elif path == "/draft":
            self._send_json(200, {"draft": self.server.session.files.read_draft()})
        elif path == "/archive":
            archive = self.server.session.files.archive()
            if archive is None:
                raise RefusedError(404, "there is no correction yet: press Update first")
            self._send(200, "application/zip", archive)
        else:
            volume = None
            if path.startswith("/volumes/"):
                volume = self.server.volumes.get(path.removeprefix("/volumes/"))
            if volume is None:
                raise RefusedError(404, "there is nothing of this name")
            self._send(200, "application/octet-stream", volume)

    def _post(self, path: str, body: bytes) -> None:
        session = self.server.session
        if path == "/update":
            posterior = session.run.posterior
            voxels = len(self.server.volumes.file_index)
            runs = read_runs(body, posterior.n_labels, voxels)
            session.update(self.server.volumes.parse_runs(runs), read_revision(body))
        elif path == "/revert":
            session.revert(read_revision(body))
        elif path == "/draft":
            posterior = session.run.posterior
            voxels = len(self.server.volumes.file_index)
            session.write_draft(read_draft(body, posterior.n_labels, voxels))
        else:
            raise RefusedError(404, "there is nothing of this name")
        self._send_json(202, asdict(session.status))

    def _refuse(self, refused: RefusedError) -> None:
        # What was sent along is not read: the connection cannot be used again.
        self.close_connection = True
        self._send_json(refused.status, {"error": str(refused), "conflict": refused.conflict})

    def _send_json(self, status: int, value: dict[str, Any]) -> None:
        self._send(status, "application/json", json.dumps(value).encode())

    def _send(self, status: int, kind: str, body: bytes) -> None:
        self.connection.settimeout(_SECONDS_TO_SEND)
        self.send_response(status)
        for name, value in {
            "Content-Type": kind,
            "Content-Length": str(len(body)),
            "Content-Security-Policy": policy(self.server.nonce),
            "X-Content-Type-Options": "nosniff",
            "X-Frame-Options": "DENY",
            "Referrer-Policy": "no-referrer",
            "Cross-Origin-Resource-Policy": "same-origin",
            "Cross-Origin-Opener-Policy": "same-origin",
            "Cache-Control": "no-store",
            "Connection": "close" if self.close_connection else "keep-alive",
        }.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)
