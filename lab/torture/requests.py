"""Requests that no browser sends, to the viewer's server."""

from __future__ import annotations

import hashlib
import io
import random
import socket
import struct
import sys
import threading
import time
from pathlib import Path

from lab.torture.attack import Attack, Finding, Trial
from lab.torture.patient import write_patient, write_run
from perturb_mpm.view import ViewServer, open_session

_METHODS = ("GET", "POST", "HEAD", "PUT", "OPTIONS", "get", "", "G" * 70_000, "\x00", "PRI *")
_TARGETS = (
    *("/", "/status", "/edits", "/volumes/labels", "/volumes/../state/run.json", "/update", "*"),
    *("//[", "http://[::1", "/%00", "/../../etc/passwd", "/volumes/" + "a" * 60_000, "/revert"),
    *("/?token=", "/?token=x&token=y", "/volumes/%2e%2e", "", "\xff\xfe", "?token=", "///", "/#"),
)
_VERSIONS = (
    "HTTP/1.1",
    "HTTP/1.0",
    "HTTP/0.9",
    "HTTP/2.0",
    "HTTP/9" * 30,
    "",
    "FTP/1.1",
    "HTTP/a.b",
)
_HEADERS = (
    *(
        "Content-Length: -1",
        "Content-Length: " + "9" * 5000,
        "Content-Length: 10",
        "Content-Length:",
    ),
    *(
        "Content-Length: 1\r\nContent-Length: 2",
        "Transfer-Encoding: chunked",
        "Expect: 100-continue",
    ),
    *("Host: evil.example", "Origin: http://evil.example", "Origin: null", "Connection: close"),
    *("X: " + "y" * 70_000, ": :", "no colon", " folded", "\x00: \x01", "Range: bytes=0-"),
    *("Content-Type: text/plain", "Content-Length: 2", "Upgrade: websocket", "Cookie: a=b"),
)
_BODIES = (
    *(b"", b"{}", b'{"runs": []}', b'{"runs": [[1, 0, 1]]}', b'{"runs": [[1, -1, 1e9]]}', b"["),
    *(b"[" * 100_000, b'{"runs": Infinity}', b'{"runs": [[true, 0, 1]]}', b'{"runs": {"a": 1}}'),
    *(b"\xff" * 100, b'{"runs": [[0, 0, ' + b"9" * 5000 + b"]]}", b"0\r\n\r\n", b"5\r\nhello\r\n"),
)


def prepare_requests(folder: Path) -> Trial:
    """Start the server; a trial sends it one request and looks at the answer."""
    write_patient(folder)
    write_run(folder, folder / "run")
    server = ViewServer(open_session(folder / "run"))
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    digest = _digest(folder / "run")
    sys.stderr = said = io.StringIO()

    def trial(rng: random.Random, _: Path) -> Finding:
        nonlocal digest
        authorised = rng.random() < 0.5
        request = _request(rng, server, authorised=authorised)
        hangs_up = rng.random() < 0.2
        answer = _ask(server.gate.port, request, rng, hangs_up=hangs_up)
        if said.getvalue():
            words = said.getvalue()
            said.truncate(0)
            said.seek(0)
            return Finding(kind="traceback", words=f"{request[:2000]!r}\n{words}")
        status = answer.split(b" ")[1:2]
        if not authorised and status and status[0][:1] == b"2":
            return Finding(kind="lost", words=f"let in without a token: {request[:2000]!r}")
        if authorised and request.startswith(b"POST"):  # which may be taken
            time.sleep(0.005)
            server.session.wait()
            digest = _digest(folder / "run")
        elif rng.random() < 0.1 and _digest(folder / "run") != digest:
            return Finding(kind="lost", words=f"changed by {request[:2000]!r}")
        return Finding(refused=status != [b"200"])

    return trial


def _request(rng: random.Random, server: ViewServer, *, authorised: bool) -> bytes:
    """Return a request, right in most of its parts so that it comes far."""
    gate = server.gate
    method = rng.choice(("GET", "GET", "POST")) if rng.random() < 0.7 else rng.choice(_METHODS)
    version = "HTTP/1.1" if rng.random() < 0.8 else rng.choice(_VERSIONS)
    lines = [f"{method} {rng.choice(_TARGETS)} {version}".rstrip(" ")]
    if rng.random() < 0.9:
        lines.append(f"Host: 127.0.0.1:{gate.port}")
    if authorised:
        lines.append(f"X-Perturb-Mpm-Token: {gate.token}")
        origin = rng.choice((f"http://127.0.0.1:{gate.port}", "null"))
        lines.append(f"Origin: {origin}")
    if rng.random() < 0.5:
        lines.append("Content-Type: application/json")
    body = rng.choice(_BODIES)
    if rng.random() < 0.5:
        lines.append(f"Content-Length: {len(body)}")
    lines += rng.sample(_HEADERS, rng.choice((0, 0, 1, 2)))
    ending = rng.choice(("\r\n", "\r\n", "\r\n", "\n"))
    request = (ending.join(lines) + ending * 2).encode("latin-1", "replace") + body
    if rng.random() < 0.2:
        index = rng.randrange(len(request))
        request = request[:index] + rng.randbytes(rng.choice((1, 4))) + request[index + 1 :]
    return request


def _ask(port: int, request: bytes, rng: random.Random, *, hangs_up: bool) -> bytes:
    """Send a request and return the answer, empty where the server hung up."""
    answer = b""
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=10) as connection:
            if hangs_up:
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                connection.sendall(request[: rng.randrange(len(request) + 1)])
                return b""
            connection.sendall(request)
            connection.shutdown(socket.SHUT_WR)
            while part := connection.recv(65536):
                answer += part
    except OSError:  # the server hung up first
        return answer
    return answer


def _digest(folder: Path) -> str:
    whole = hashlib.sha256()
    for file in sorted(folder.rglob("*")):
        if file.is_file():
            whole.update(str(file).encode() + file.read_bytes())
    return whole.hexdigest()


REQUESTS = Attack("requests", "hostile requests", prepare_requests, share=1.5, longest=15)
