"""Cohorts on Dask's workers while these, the scheduler and the client are killed.

A trial runs 40 small cases and 5 broken ones, on a scheduler and two workers in processes of their
own. At 20 random moments a worker is killed with -9, and once each the scheduler and the client;
what is gone is started anew, and the same command given again. All bytes must be those of a run of
one case after the other, and every broken case a row.
"""

from __future__ import annotations

import csv
import json
import os
import random
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from lab.torture.attack import NOTE, Attack, Finding, Trial
from lab.torture.patient import AFFINE, IMAGES, SAME_BYTES, SHAPE, probabilities
from perturb_mpm.files import save_nifti

CASES = tuple(f"P{number:02d}" for number in range(40))
BROKEN = {  # a case, and words of its error
    "X1": "X1.npz",
    "X2": "must hold X2.npz or X2.nii.gz",
    "X3": "X3",
    "X4": "X4_0001.nii.gz",
    "X5": "must hold the array probabilities",
}
KILLED_WORKERS = 20
WORKERS = 2
SAMPLES = 200
_LONGEST = 1800.0  # seconds of one command
_SOME_FAILED = 3
_COMMAND = "import sys; from perturb_mpm.cli import main; main(sys.argv[1:])"


def write_cohort(root: Path) -> None:
    """Write all cases in nnU-Net's layout, five of them broken in five ways."""
    images, maps = root / "imagesTs", root / "predicted"
    images.mkdir(parents=True)
    maps.mkdir()
    labels = {"background": 0, "oedema": 1, "core": 2}
    content = {"labels": labels, "channel_names": {str(n): name for n, name in enumerate(IMAGES)}}
    (maps / "dataset.json").write_text(json.dumps(content), encoding="utf-8")
    for number, name in enumerate((*CASES, *BROKEN)):
        rng = np.random.default_rng(number)
        p = probabilities() * rng.uniform(0.5, 2, (3, *SHAPE)).astype(np.float32)
        p /= p.sum(axis=0)
        for channel in range(len(IMAGES)):
            bright = 100 + 30 * p.argmax(axis=0) + 5 * rng.normal(size=SHAPE)
            save_nifti(images / f"{name}_{channel:04d}.nii.gz", bright.astype(np.float32), AFFINE)
        np.savez_compressed(maps / f"{name}.npz", probabilities=p.transpose(0, 3, 2, 1))
        save_nifti(maps / f"{name}.nii.gz", p.argmax(axis=0).astype(np.uint8), AFFINE)
    whole = (maps / "X1.npz").read_bytes()
    (maps / "X1.npz").write_bytes(whole[: len(whole) // 2])  # cut short
    (maps / "X2.npz").unlink()
    (maps / "X2.nii.gz").unlink()
    np.savez(maps / "X3.npz", probabilities=np.ones((3, 2, 2, 2), np.float32))  # another grid
    (images / "X4_0001.nii.gz").write_bytes(b"not an image")
    np.savez(maps / "X5.npz", other=np.ones(3))


def command(root: Path, output: Path, *engine: str) -> list[str]:
    """Return the command line of a cohort."""
    files = ["--images", str(root / "imagesTs"), "--probabilities", str(root / "predicted")]
    numbers = ["--samples", str(SAMPLES), "--iterations", "3", "--seed", "5", "--threads", "1"]
    where = ["--engine", "reference", "--output", str(output), "--quiet", *engine]
    return [sys.executable, "-c", _COMMAND, "cohort", *files, *numbers, *where]


def find_faults(output: Path, expected: dict[str, bytes]) -> str:
    """Say what is wrong in a cohort's folder, nothing where all is right."""
    changed = [name for name, content in read_results(output).items() if content != expected[name]]
    if changed or len(read_results(output)) < len(expected):
        return f"other bytes, or none, in {changed or 'some cases'}"
    with (output / "cohort.csv").open(encoding="utf-8") as file:
        failed = {row["case"]: row["error"] for row in csv.DictReader(file) if row["error"]}
    if set(failed) != set(BROKEN) or any(w not in failed[name] for name, w in BROKEN.items()):
        return f"these failed: {failed}"
    left = [str(path) for path in output.rglob("*.part")]
    left += [str(output / name) for name in BROKEN if (output / name).exists()]
    return f"left behind: {left}" if left else ""


def read_results(output: Path) -> dict[str, bytes]:
    """Return the bytes of every map and table."""
    files = (f"{case}/{name}" for case in CASES for name in SAME_BYTES)
    return {file: (output / file).read_bytes() for file in files if (output / file).exists()}


@dataclass
class Processes:
    """A scheduler and its workers, each a process, over TCP on this machine."""

    folder: Path
    address: str = ""
    running: dict[str, list[subprocess.Popen[bytes]]] = field(default_factory=dict)

    def start(self) -> None:
        """Start a scheduler at a new port, and all workers."""
        port = _unused_port()
        self.address = f"tcp://127.0.0.1:{port}"
        where = ["--host", "127.0.0.1", "--port", str(port), "--no-dashboard"]
        self.running = {"scheduler": [self._dask("scheduler", *where)], "worker": []}
        while len(self.running["worker"]) < WORKERS:
            self.start_worker()

    def start_worker(self) -> None:
        """Start a worker that joins the scheduler."""
        options = ["--nthreads", "1", "--no-nanny", "--no-dashboard", "--death-timeout", "120"]
        self.running["worker"].append(self._dask("worker", self.address, *options))

    def kill(self, kind: str, rng: random.Random) -> None:
        """Kill one of a kind with -9, and start a new one."""
        index = rng.randrange(len(self.running[kind]))
        _end(self.running[kind].pop(index))
        if kind == "worker":
            self.start_worker()
        else:
            self.stop()
            self.start()

    def stop(self) -> None:
        """Kill all that is left."""
        for process in (each for found in self.running.values() for each in found):
            _end(process)

    def _dask(self, *arguments: str) -> subprocess.Popen[bytes]:
        # More deaths under one case than Dask allows by itself: here they are on purpose.
        deaths = {"DASK_DISTRIBUTED__SCHEDULER__ALLOWED_FAILURES": "20"}
        return subprocess.Popen(  # noqa: S603 - this very Python
            [sys.executable, "-m", "dask", *arguments],
            cwd=self.folder,
            env={**os.environ, **deaths},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )


@contextmanager
def hand_started(folder: Path) -> Iterator[Processes]:
    """Start a scheduler and workers, and stop them at the end."""
    found = Processes(folder)
    found.start()
    try:
        yield found
    finally:
        found.stop()


def disturb(
    root: Path, trial_folder: Path, rng: random.Random, expected: dict[str, bytes]
) -> tuple[str, dict[str, int]]:
    """Run the cohort until everything was killed that must be; say what is wrong, and the kills."""
    middle = ["worker"] * (KILLED_WORKERS - 2) + ["scheduler", "client"]
    rng.shuffle(middle)
    kills = ["worker", *middle, "worker"]
    done = dict.fromkeys(("worker", "scheduler", "client", "cohorts"), 0)
    with hand_started(trial_folder) as processes, (trial_folder / "said.txt").open("wb") as said:
        while kills:
            output = trial_folder / f"out{done['cohorts']}"
            code: int | None = None
            began = time.monotonic()
            while code != _SOME_FAILED or find_faults(output, expected):
                if time.monotonic() - began > _LONGEST:
                    return f"no end, code {code}: {find_faults(output, expected)}", done
                line = command(root, output, "--scheduler", processes.address)
                client = subprocess.Popen(line, stderr=said)  # noqa: S603 - this very Python
                code = _with_kills(client, processes, kills, rng, done)
                if code == _SOME_FAILED and (words := find_faults(output, expected)):
                    return words, done
            done["cohorts"] += 1
    text = (trial_folder / "said.txt").read_text(encoding="utf-8")
    return (text if "Traceback" in text else ""), done


def _with_kills(
    client: subprocess.Popen[bytes],
    processes: Processes,
    kills: list[str],
    rng: random.Random,
    done: dict[str, int],
) -> int:
    """Kill what comes next at random moments until the client ends; return its code."""
    until = time.monotonic() + _LONGEST
    while client.poll() is None and time.monotonic() < until:
        moment = time.monotonic() + rng.uniform(0.5, 8.0)
        while client.poll() is None and time.monotonic() < min(moment, until):
            time.sleep(0.02)
        if client.poll() is None and kills:
            kind = kills.pop(0)
            done[kind] += 1
            if kind == "client":
                _end(client)
            else:
                processes.kill(kind, rng)
    _end(client)
    return client.wait()


def prepare_cohorts(folder: Path) -> Trial:
    """Run all cases one after the other; a trial runs them while all is killed."""
    write_cohort(folder)
    serial = folder / "serial"
    first = subprocess.run(command(folder, serial), check=False, capture_output=True)  # noqa: S603
    expected = read_results(serial)
    if first.returncode != _SOME_FAILED or len(expected) != len(CASES) * len(SAME_BYTES):
        raise RuntimeError(first.stderr.decode())
    total: dict[str, int] = {}

    def trial(rng: random.Random, trial_folder: Path) -> Finding:
        words, done = disturb(folder, trial_folder, rng, expected)
        for kind, count in done.items():
            total[kind] = total.get(kind, 0) + count
        killed = ", ".join(f"{total[kind]} {kind}s" for kind in ("worker", "scheduler", "client"))
        note = f"killed {killed} in {total['cohorts']} cohorts of {len(CASES)} + {len(BROKEN)}"
        (folder / NOTE).write_text(note, encoding="utf-8")
        return Finding(kind="lost" if words else "", words=words)

    return trial


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()


def _unused_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


COHORTS = Attack(
    "cohorts", "disturbed cohorts", prepare_cohorts, longest=3600, grows=False, least=300
)
