"""Requests that no browser sends: each gets an answer or is hung up on, and nothing is printed."""

from __future__ import annotations

import socket
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from helpers.viewer_run import copy_run
from perturb_mpm.view import ViewServer, open_session
from perturb_mpm.view import server as server_module


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ViewServer]:
    with ViewServer(open_session(copy_run(tmp_path / "case"))) as serving:
        thread = threading.Thread(target=serving.serve_forever, args=(0.02,))
        thread.start()
        yield serving
        serving.shutdown()
        thread.join()


def connected(server: ViewServer, seconds: float = 120.0) -> socket.socket:
    return socket.create_connection(("127.0.0.1", server.gate.port), timeout=seconds)


def answer(server: ViewServer, request: bytes) -> bytes:
    with connected(server) as connection:
        connection.sendall(request)
        connection.shutdown(socket.SHUT_WR)
        found = b""
        while part := connection.recv(65536):
            found += part
        return found


def head(server: ViewServer, first: str, *headers: str) -> bytes:
    gate = server.gate
    lines = [
        first,
        f"Host: 127.0.0.1:{gate.port}",
        f"X-Perturb-Mpm-Token: {gate.token}",
        f"Origin: http://127.0.0.1:{gate.port}",
        "Content-Type: application/json",
        *headers,
    ]
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")


@pytest.mark.parametrize(
    "target", ["//[", "http://[::1/", "/?token=" + "&a=1" * 20, "//[x]/status"]
)
def test_malformed_targets_are_answered(
    server: ViewServer, target: str, capfd: pytest.CaptureFixture[str]
) -> None:
    found = answer(server, head(server, f"GET {target} HTTP/1.1"))
    assert found.split(b" ")[1] in {b"400", b"404"}
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize(
    ("lengths", "status"),
    [
        (["Content-Length: " + "9" * 5000], b"413"),
        (["Content-Length: -1"], b"411"),
        (["Content-Length: 1e3"], b"411"),
        (["Content-Length: \xb2"], b"411"),
        (["Content-Length: 2", "Content-Length: 3"], b"411"),
        (["Content-Length: 2", "Transfer-Encoding: chunked"], b"411"),
        (["Content-Length: 100"], b"400"),
        ([], b"411"),
    ],
)
def test_malformed_lengths_are_answered(
    server: ViewServer, lengths: list[str], status: bytes, capfd: pytest.CaptureFixture[str]
) -> None:
    found = answer(server, head(server, "POST /update HTTP/1.1", *lengths) + b"{}")
    assert found.split(b" ")[1] == status
    assert capfd.readouterr().err == ""


def test_a_client_that_hangs_up_prints_nothing(
    server: ViewServer, capfd: pytest.CaptureFixture[str]
) -> None:
    for request in (b"", b"GET / HT", head(server, "GET /volumes/labels HTTP/1.1")):
        with connected(server) as connection:
            # Reset at once: the answer meets a connection that is gone.
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            connection.sendall(request)
    assert b" 200 " in answer(server, head(server, "GET /status HTTP/1.1"))
    time.sleep(0.2)
    assert capfd.readouterr().err == ""


def test_a_request_that_drips_is_ended(
    server: ViewServer, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(server_module, "_SECONDS_TO_ASK", 0.4)
    with connected(server) as connection:
        started = time.monotonic()
        ended = False
        while not ended and time.monotonic() - started < 10:
            try:
                connection.sendall(b"G")
                connection.settimeout(0.05)
                ended = connection.recv(10) == b""
            except TimeoutError:
                continue
            except OSError:
                ended = True
        assert ended
    assert capfd.readouterr().err == ""


def test_connections_beyond_the_cap_are_told_so(
    server: ViewServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_module, "_SECONDS_TO_ASK", 1.0)
    held = [connected(server) for _ in range(server_module.MOST_CONNECTIONS)]
    try:
        with connected(server) as refused:
            assert refused.recv(100).startswith(b"HTTP/1.1 503 ")
    finally:
        for connection in held:
            connection.close()
    for _ in range(1200):  # the places are given back
        with suppress(OSError):  # a server that is still full hangs up while one asks
            if b" 200 " in answer(
                server, head(server, "GET /status HTTP/1.1", "Connection: close")
            ):
                return
        time.sleep(0.05)
    pytest.fail("no place was given back")


def test_two_hosts_in_one_request_are_refused(server: ViewServer) -> None:
    for other in (f"127.0.0.1:{server.gate.port}", "evil.example"):
        found = answer(server, head(server, "GET /status HTTP/1.1", f"Host: {other}"))
        assert found.split(b" ")[1] == b"400"
        assert b"one host" in found


@pytest.mark.parametrize(
    "framing", ["Content-Length: {size}", "Transfer-Encoding: chunked", "Content-Length: 0, 5"]
)
def test_the_body_of_a_get_is_not_taken_for_the_next_request(
    server: ViewServer, framing: str
) -> None:
    hidden = head(server, "GET /edits HTTP/1.1")
    framing = framing.format(size=len(hidden))
    found = answer(server, head(server, "GET /status HTTP/1.1", framing) + hidden)
    assert found.startswith(b"HTTP/1.1 400")
    assert found.count(b"HTTP/1.1") == 1
    assert b"Connection: close" in found
