"""A small HTTP server on the loopback address alone, from the standard library."""

from __future__ import annotations

import json
import secrets
from dataclasses import asdict
from functools import cached_property
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from perturb_mpm.serving.page import policy, render_page
from perturb_mpm.serving.requests import Gate, RefusedError, read_runs
from perturb_mpm.serving.session import BusyError, Session
from perturb_mpm.serving.volumes import Volumes

LOOPBACK = "127.0.0.1"
_SECONDS_TO_SEND = 60


class ViewServer(ThreadingHTTPServer):
    """Serves one session. ``port`` 0 takes a free one."""

    daemon_threads = True

    def __init__(self, session: Session, port: int = 0) -> None:
        super().__init__((LOOPBACK, port), _Handler)
        self.session = session
        self.volumes = Volumes(session)
        self.gate = Gate(self.server_address[1], secrets.token_urlsafe(24))

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
        return render_page(self.session.state, self.gate.token, self.nonce).encode()


class _Handler(BaseHTTPRequestHandler):
    server: ViewServer
    protocol_version = "HTTP/1.1"
    server_version, sys_version = "perturb-mpm", ""
    timeout = _SECONDS_TO_SEND

    def do_GET(self) -> None:
        """Give out the page, a volume, the edits or the status."""
        try:
            self._get(self.server.gate.check(self.path, self.headers))
        except RefusedError as refused:
            self._refuse(refused)

    def do_POST(self) -> None:
        """Take edits, or take them back."""
        try:
            path = self.server.gate.check(self.path, self.headers)
            length = self.server.gate.check_post(self.headers)
            self._post(path, self.rfile.read(length))
        except RefusedError as refused:
            self._refuse(refused)
        except BusyError as busy:
            self._refuse(RefusedError(409, str(busy)))

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Stay quiet: addresses carry the token, and a terminal is not its place."""

    def _get(self, path: str) -> None:
        if path == "/":
            self._send(200, "text/html; charset=utf-8", self.server.page)
        elif path == "/status":
            self._send_json(200, asdict(self.server.session.status))
        elif path == "/edits":
            stale = self.server.session.stale
            self._send_json(200, {"runs": self.server.volumes.runs(), "stale": stale})
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
            posterior = session.state.posterior
            voxels = len(self.server.volumes.file_index)
            runs = read_runs(body, posterior.n_labels, voxels)
            session.update(self.server.volumes.edits_of(runs))
        elif path == "/revert":
            session.revert()
        else:
            raise RefusedError(404, "there is nothing of this name")
        self._send_json(202, asdict(session.status))

    def _refuse(self, refused: RefusedError) -> None:
        # What was sent along is not read: the connection cannot be used again.
        self.close_connection = True
        self._send_json(refused.status, {"error": str(refused)})

    def _send_json(self, status: int, value: dict[str, Any]) -> None:
        self._send(status, "application/json", json.dumps(value).encode())

    def _send(self, status: int, kind: str, body: bytes) -> None:
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
