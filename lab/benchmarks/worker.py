"""A process of its own for whatever is measured, commanded by lines of JSON.

Both ends live here. They need the standard library alone, since a peer has its own interpreter.
Several workers can be alive at once and take turns, so that a slow moment of the machine hits all
of them; each one's peak memory is its own.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Self

ROOT = Path(__file__).resolve().parents[2]

Answer = dict[str, Any]


class WorkerError(RuntimeError):
    """The worker has died; what it said last is on stderr."""


class Worker:
    """The commanding end: starts ``python -m module`` and asks it for things."""

    def __init__(self, python: str, module: str) -> None:
        self.process = subprocess.Popen(
            [python, "-m", module],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            encoding="utf-8",
        )

    def ask(self, command: str, **arguments: object) -> Answer:
        """Send a command and wait for its answer."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.write(json.dumps({"command": command, **arguments}) + "\n")
            self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            raise WorkerError(f"it died at {command!r} with status {self.process.wait()}")
        answer: Answer = json.loads(line)
        return answer

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.terminate()
        self.process.wait()
        self.process.stdin.close()
        self.process.stdout.close()


def serve(commands: dict[str, Callable[..., Answer]]) -> None:
    """Answer commands until the other end closes; whatever else is printed goes to stderr."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    for line in sys.stdin:
        arguments = json.loads(line)
        answer = commands[arguments.pop("command")](**arguments)
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


def peak_bytes() -> int:
    """Return this process's largest resident size so far.

    Linux hands ``ru_maxrss`` of the starting process down to the one it starts, so the kernel's
    own count for this address space is read first.
    """
    try:
        status = Path("/proc/self/status").read_text(encoding="ascii")
    except FileNotFoundError:
        import resource

        unit = 1 if sys.platform == "darwin" else 1024
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
    line = next(line for line in status.splitlines() if line.startswith("VmHWM:"))
    return int(line.split()[1]) * 1024
