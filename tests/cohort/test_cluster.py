"""Cases on Dask's workers: the same bytes as one after the other, whoever dies meanwhile."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import CancelledError
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from helpers.small_case import call
from helpers.small_cohort import outputs, write_small_cohort
from perturb_mpm.cohort import (
    CaseReading,
    CaseRecord,
    ClusterError,
    cluster,
    connect_scheduler,
    find_cohort,
    local_workers,
    run_cohort,
    share_machine,
)
from perturb_mpm.cohort.one_case import CaseRunner
from perturb_mpm.engines import resolve_budget
from perturb_mpm.files import CaseFolders
from perturb_mpm.run import RunSettings, SettingsError

distributed = pytest.importorskip("distributed", reason="the extra cluster is not installed")
pytestmark = pytest.mark.slow

NAMES = ("A1", "A2", "A3", "A4", "A5", "A6")
SETTINGS = RunSettings().changed(samples=60, iterations=4, seed=5, threads=1)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("cohort")
    write_small_cohort(root, NAMES)
    return root


@pytest.fixture(scope="module")
def cases(data: Path) -> list[Any]:
    return find_cohort(CaseFolders(data / "imagesTs", (data / "predicted",)))


@pytest.fixture(scope="module")
def expected(cases: list[Any], data: Path) -> dict[str, bytes]:
    assert run_cohort(cases, SETTINGS, data / "serial").failed == {}
    return outputs(data / "serial", NAMES)


@pytest.fixture(scope="module")
def client() -> Iterator[Any]:
    with local_workers(2) as found:
        yield found


@pytest.mark.skipif(sys.platform != "linux", reason="memory is limited by Linux here")
def test_a_case_that_is_too_large_for_a_worker_is_a_row_and_its_worker_goes_on(
    data: Path, expected: dict[str, bytes], tmp_path: Path
) -> None:
    for name in ("imagesTs", "predicted"):
        shutil.copytree(data / name, tmp_path / name)
    voxels = np.zeros((3, 300, 300, 300), np.float32)  # 324 MB, in a file of 0.3 MB
    np.savez_compressed(tmp_path / "predicted" / "A1.npz", probabilities=voxels)
    both = find_cohort(CaseFolders(tmp_path / "imagesTs", (tmp_path / "predicted",)))[:2]
    with local_workers(1) as client:
        assert run_cohort(both[1:], SETTINGS, tmp_path / "warm", client).failed == {}
        (before,) = client.run(os.getpid).values()
        client.run(_leave_memory, 200 << 20)
        result = run_cohort(both, SETTINGS, tmp_path / "out", client)
        assert list(client.run(os.getpid).values()) == [before]
    assert list(result.failed) == ["A1"]
    assert "not enough memory" in result.failed["A1"]
    found = outputs(tmp_path / "out", NAMES[1:2])
    assert found == {file: expected[file] for file in found}


def _leave_memory(size: int) -> None:
    """Let this process take so many bytes more, as a batch system does."""
    import resource

    pages = int(Path("/proc/self/statm").read_text().split()[0])
    most = pages * resource.getpagesize() + size
    resource.setrlimit(resource.RLIMIT_AS, (most, resource.RLIM_INFINITY))


def test_killed_workers_change_no_byte(
    client: Any, cases: list[Any], expected: dict[str, bytes], tmp_path: Path
) -> None:
    killed: list[tuple[int, str]] = []

    def begun() -> list[str]:
        return [
            name
            for name in NAMES
            if (tmp_path / name / "state" / "run.json").exists()
            and not (tmp_path / name / "summary.json").exists()
        ]

    def kill_twice() -> None:
        for _ in range(2):
            pids = client.run(os.getpid, on_error="ignore")
            deadline = time.monotonic() + 120
            while not (found := begun()) and time.monotonic() < deadline:
                time.sleep(0.001)
            for pid in pids.values():
                os.kill(pid, signal.SIGKILL)
                killed.append((pid, found[0]))
            while len(client.scheduler_info()["workers"]) and time.monotonic() < deadline:
                if set(client.run(os.getpid, on_error="ignore").values()).isdisjoint(pids.values()):
                    break
                time.sleep(0.05)

    killer = threading.Thread(target=kill_twice)
    killer.start()
    result = run_cohort(cases, SETTINGS, tmp_path, client)
    killer.join()
    assert len(killed) >= 2  # each while a case was begun and not done
    assert result.failed == {}
    assert outputs(tmp_path, NAMES) == expected
    assert list(tmp_path.rglob("*.part")) == []


def test_workers_skip_what_was_done_here_and_a_bad_case_is_a_row(
    client: Any, cases: list[Any], expected: dict[str, bytes], tmp_path: Path
) -> None:
    assert run_cohort(cases[:3], SETTINGS, tmp_path).failed == {}
    told: list[str] = []
    bad = find_cohort(CaseFolders(cases[0].images[0].parent, (tmp_path / "A1",)), "nnunet")[3]
    mixed = [*cases[:3], bad, *cases[4:]]
    result = run_cohort(
        mixed, SETTINGS, tmp_path, client, finished=lambda record: told.append(record.case)
    )
    assert sorted(told) == ["A4", "A5", "A6"]
    assert result.skipped == 3
    assert list(result.failed) == ["A4"]
    assert "must hold A4.npz or A4.nii.gz" in result.failed["A4"]
    others = tuple(name for name in NAMES if name != "A4")
    found = outputs(tmp_path, others)
    assert found == {file: expected[file] for file in found}


@pytest.mark.parametrize("split", [2, 4])
def test_a_split_case_gives_the_same_bytes(
    split: int, client: Any, cases: list[Any], expected: dict[str, bytes], tmp_path: Path
) -> None:
    assert run_cohort(cases[:1], SETTINGS, tmp_path, client, split=split).failed == {}
    found = outputs(tmp_path, NAMES[:1])
    assert found == {file: expected[file] for file in found}
    assert list(tmp_path.rglob("part-*")) == []


def test_the_ranges_of_a_split_case_are_all_its_samples(
    client: Any, cases: list[Any], tmp_path: Path
) -> None:
    runner = CaseRunner(SETTINGS.changed(engine="cpu"), CaseReading(), tmp_path, {})
    tasks = cluster._Tasks(runner, cluster.worker_versions(), split=4)
    begun = client.submit(tasks.begin, cases[0])
    usages = client.gather([client.submit(tasks.draw, cases[0], begun, each) for each in range(4)])
    assert all(usage.seconds > 0 for usage in usages)
    files = (tmp_path / "A1" / "state").glob("part-*.npz")
    parts = [file.stem.split("-")[1:] for file in files if "labels" not in file.name]
    drawn = [number for first, stop in parts for number in range(int(first), int(stop))]
    assert sorted(drawn) == list(range(begun.result(), 60))


def test_a_broken_case_that_is_split_is_a_row(
    client: Any, cases: list[Any], tmp_path: Path
) -> None:
    from dataclasses import replace

    broken = replace(cases[0], missing="`probabilities` must hold A1.npz, got none")
    result = run_cohort([broken, *cases[1:2]], SETTINGS, tmp_path, client, split=2)
    assert result.failed == {"A1": "`probabilities` must hold A1.npz, got none"}


def test_a_split_that_cannot_be_is_refused(
    client: Any, cases: list[Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def refused(words: str, settings: RunSettings, split: Any, client: Any) -> None:
        with pytest.raises(SettingsError, match=words):
            run_cohort(cases, settings, tmp_path / "out", client, split=split)
        assert not (tmp_path / "out").exists()

    refused("`split` must be 1 where there are no workers, got 4", SETTINGS, 4, None)
    refused("`split` must be .*at least 1.*, got 0", SETTINGS, 0, client)
    refused("`split` must be 1 where `until` ends a case", SETTINGS.changed(until=0.2), 2, client)
    folders = ["--images", str(tmp_path), "--output", str(tmp_path / "out")]
    assert call("cohort", *folders, "--split", "4") == 2
    assert "--split must come with --workers" in capsys.readouterr().err


def listening() -> list[str]:
    """Return the addresses that the process listens at."""
    import psutil

    found = psutil.Process().net_connections("inet")
    return [each.laddr.ip for each in found if each.status == psutil.CONN_LISTEN]


def test_workers_of_this_machine_listen_to_this_machine_alone(client: Any) -> None:
    places = [*client.run(listening).values(), *client.run_on_scheduler(lambda: [listening()])]
    assert all(places)
    assert {address for each in places for address in each} == {"127.0.0.1"}


@contextmanager
def hand_started(folder: Path, *options: Sequence[str]) -> Iterator[tuple[str, Callable[[], None]]]:
    """Start a scheduler and two workers as the docs say; yield the address, and what kills it.

    Each leads a group of processes that is killed in the end: asked to end while a task is
    cancelled, a worker of Dask may wait for ever.
    """
    each = options or ((), ())
    address = f"tcp://127.0.0.1:{unused_port()}"
    alone: dict[str, Any] = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    alone |= {"cwd": folder, "start_new_session": True}
    port = address.rpartition(":")[2]
    dask = [sys.executable, "-m", "dask"]
    scheduler = [*dask, "scheduler", "--host", "127.0.0.1", "--port", port, "--no-dashboard"]
    worker = [*dask, "worker", address, "--nthreads", "1", "--no-dashboard"]
    started = [subprocess.Popen(scheduler, **alone)]
    try:
        started += [subprocess.Popen([*worker, *own], **alone) for own in each]
        yield address, started[0].kill
    finally:
        for process in started:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def test_a_scheduler_and_workers_started_by_hand(
    data: Path, expected: dict[str, bytes], tmp_path: Path
) -> None:
    options = ["--images", str(data / "imagesTs"), "--probabilities", str(data / "predicted")]
    numbers = ["--samples", "60", "--iterations", "4", "--seed", "5", "--threads", "1"]
    with hand_started(tmp_path) as (address, _):
        out = ["--output", str(tmp_path / "out"), "--scheduler", address, "--quiet"]
        assert call("cohort", *options, *numbers, *out, "--match", "A1", "A2", "A3") == 0
    found = outputs(tmp_path / "out", NAMES[:3])
    assert found == {file: expected[file] for file in found}


def test_cases_of_the_gpu_go_to_workers_that_offer_one(
    cases: list[Any], client: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There need be no GPU: where a case fails is where it was sent."""
    monkeypatch.setenv("TRITON_INTERPRET", "0")  # it would compute, slowly
    settings = SETTINGS.changed(engine="gpu")
    offers = ("--no-nanny", "--resources", "GPU=1", "--name", "with")
    with (
        hand_started(tmp_path, offers, ("--no-nanny", "--name", "without")) as (address, _),
        connect_scheduler(address) as both,
    ):
        both.wait_for_workers(2)
        records: list[CaseRecord] = []
        run_cohort(cases[:3], settings, tmp_path / "out", both, finished=records.append)
        assert len(records) == 3
        tokens = both.run(
            lambda: __import__("perturb_mpm.cohort.one_case", fromlist=["_WORKER"])._WORKER
        )
        workers = both.scheduler_info()["workers"]
        offering = {tokens[address] for address in workers if workers[address]["name"] == "with"}
        assert {record.worker for record in records} == offering
    with pytest.raises(ClusterError, match="must have a Dask worker that offers the resource GPU"):
        run_cohort(cases, settings, tmp_path / "none", client)


@pytest.mark.parametrize("workers", [1, 2])
def test_a_killed_client_goes_on_with_the_same_command(
    workers: int, data: Path, expected: dict[str, bytes], tmp_path: Path
) -> None:
    out = tmp_path / "out"
    options = ["--images", str(data / "imagesTs"), "--probabilities", str(data / "predicted")]
    numbers = ["--samples", "60", "--iterations", "4", "--seed", "5", "--threads", "1"]
    place = ["--output", str(out), "--workers", str(workers), "--quiet"]
    command = ["cohort", *options, *numbers, *place]
    code = f"from perturb_mpm.cli import main\nif __name__ == '__main__':\n    main({command!r})\n"
    script = tmp_path / "start.py"
    script.write_text(code)
    client = subprocess.Popen([sys.executable, str(script)])
    while not list(out.glob("*/state/run.json")) and client.poll() is None:
        time.sleep(0.005)
    client.kill()
    assert client.wait() == -signal.SIGKILL
    assert len(list(out.glob("*/summary.json"))) < len(NAMES)
    deadline = time.monotonic() + 60
    while call(*command) != 0 and time.monotonic() < deadline:  # its workers notice and end
        time.sleep(1)
    assert outputs(out, NAMES) == expected
    assert list(out.rglob("*.part")) == []


def test_a_lost_scheduler_is_said_and_the_same_command_goes_on(
    cases: list[Any],
    expected: dict[str, bytes],
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    lost = pytest.raises(ConnectionError, match="the same again goes on where it stopped")
    with (
        hand_started(tmp_path, ()) as (address, scheduler),
        connect_scheduler(address) as client,
        lost,
    ):
        run_cohort(cases, SETTINGS, tmp_path / "out", client, finished=lambda _: scheduler())
    assert "Traceback" not in capfd.readouterr().err
    assert 1 <= len(list((tmp_path / "out").glob("*/summary.json"))) <= len(NAMES)
    assert run_cohort(cases, SETTINGS, tmp_path / "out").failed == {}
    assert outputs(tmp_path / "out", NAMES) == expected


@pytest.mark.parametrize(
    "error",
    [distributed.comm.CommClosedError("reset by peer"), CancelledError("A1")],
)
def test_a_scheduler_lost_while_a_record_is_fetched_is_said(
    error: Exception,
    client: Any,
    cases: list[Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def lost(*_: Any, **__: Any) -> None:
        raise error

    monkeypatch.setattr(distributed.Future, "result", lost)
    with pytest.raises(ConnectionError, match="the same again goes on where it stopped"):
        run_cohort(cases[:2], SETTINGS, tmp_path, client)


def test_other_versions_are_refused_by_name(
    client: Any, cases: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = cluster.worker_versions()
    monkeypatch.setattr(cluster, "_ask_workers", lambda *_: {"tcp://w:1": here})
    cluster.check_versions(client)
    other = {**here, "numba": "0.1"}
    monkeypatch.setattr(cluster, "_ask_workers", lambda *_: {"tcp://w:1": other})
    with pytest.raises(ClusterError, match=r"tcp://w:1 with numba 0\.1: install the same"):
        run_cohort(cases, SETTINGS, tmp_path, client)
    assert not (tmp_path / "A1").exists()
    # A worker that comes late is asked when it takes its first case.
    monkeypatch.setattr(cluster, "_ask_workers", lambda *_: {})
    monkeypatch.setattr(cluster, "worker_versions", lambda: other)
    with pytest.raises(ClusterError, match=r"must have workers with numba 0\.1 as here"):
        run_cohort(cases, SETTINGS, tmp_path, client)
    assert not (tmp_path / "A1").exists()


def test_a_worker_that_dies_while_it_is_asked_is_left_out(client: Any) -> None:
    class Asked:
        def __init__(self, answers: dict[str, Any] | Exception) -> None:
            self.answers = answers

        def run(self, *_: Any, **__: Any) -> Any:
            if isinstance(self.answers, Exception):
                raise self.answers
            return self.answers

    here = cluster.worker_versions()
    cluster.check_versions(Asked({"tcp://a:1": here, "tcp://b:1": OSError("Stream is closed")}))
    with pytest.raises(ClusterError, match="got tcp://b:1 without: No module named perturb_mpm"):
        cluster.check_versions(Asked({"tcp://b:1": ImportError("No module named perturb_mpm")}))
    with pytest.raises(ConnectionError, match="scheduler was lost"):
        cluster.check_versions(Asked(OSError("Stream is closed")))
    cluster.check_versions(client)


def test_nobody_at_the_address_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster, "_SECONDS_TO_CONNECT", 1)
    address = f"tcp://127.0.0.1:{unused_port()}"
    with (
        pytest.raises(ClusterError, match="`scheduler` must be the address of a running"),
        connect_scheduler(address),
    ):
        pass


def test_without_the_extra_the_error_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "distributed", None)
    with (
        pytest.raises(ClusterError, match=r"pip install 'perturb-mpm\[cluster\]'"),
        local_workers(2),
    ):
        pass


def test_cores_and_memory_are_split_and_what_is_asked_for_is_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cluster, "available_cores", lambda: 9)
    shared = share_machine(RunSettings(), 4).compute
    assert shared.threads == 2
    assert isinstance(shared.memory, int)
    assert 0 < shared.memory * 3 < resolve_budget(None) * 1.1
    assert share_machine(RunSettings(), 20).compute.threads == 1
    asked = RunSettings().changed(threads=3, memory="1 GB")
    assert share_machine(asked, 4).compute == asked.compute
    assert share_machine(RunSettings(), 4).identity() == RunSettings().identity()


def unused_port() -> int:
    import socket

    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])
