"""The cache of compiled kernels: whatever is wrong with it costs a compilation, never a run."""

from __future__ import annotations

import errno
import importlib.util
import logging
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import perturb_mpm as pm
from perturb_mpm.engines.cpu import compile as compiling
from perturb_mpm.engines.cpu.ahead import compile_few_problems, compile_sampling


def add(a: float, b: float) -> float:
    return a + b


def solve() -> int:
    """Call a new copy of a kernel; return how often it came from the cache."""
    compiled = compiling.kernel(add)
    assert compiled(2.0, 3.0) == 5.0
    return sum(compiled.stats.cache_hits.values())


@pytest.fixture
def folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setattr(compiling, "_FOLDER", tmp_path)
    compiling._warn_once.cache_clear()
    return tmp_path


def test_a_kernel_is_compiled_once(folder: Path) -> None:
    assert [solve(), solve()] == [0, 1]


def test_another_checkout_has_its_kernels_compiled_already(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Python takes bytecode for that of a source of the same length from the same second.
    monkeypatch.setattr(sys, "dont_write_bytecode", True)

    def solve_in(checkout: str, source: str) -> int:
        path = tmp_path / checkout / "kernels.py"
        path.parent.mkdir(exist_ok=True)
        path.write_text(source)
        spec = importlib.util.spec_from_file_location("kernels", path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        compiled = compiling.kernel(module.double)
        assert compiled(2.0) == (4.0 if "2 *" in source else 6.0)
        return sum(compiled.stats.cache_hits.values())

    source = "def double(a):\n    return 2 * a\n"
    assert [solve_in("one", source), solve_in("another", source)] == [0, 1]
    assert solve_in("another", source.replace("2", "3")) == 0


@pytest.mark.parametrize("suffix", ["nbi", "nbc"])
@pytest.mark.parametrize("content", [b"", b"\0" * 4096, b"no pickle"])
def test_a_damaged_cache_is_made_again(folder: Path, suffix: str, content: bytes) -> None:
    solve()
    files = list(folder.rglob(f"*.{suffix}"))
    assert files
    for path in files:
        path.write_bytes(content)
    assert [solve(), solve()] == [0, 1]


@pytest.mark.skipif(sys.platform != "linux", reason="looks for an ELF header")
def test_code_with_a_changed_byte_is_never_executed(folder: Path) -> None:
    solve()
    (path,) = folder.rglob("*.nbc")
    content = bytearray(path.read_bytes())
    content[content.index(b"ELF") + 9] ^= 1  # padding of its header: it would be executed
    path.write_bytes(content)
    assert [solve(), solve()] == [0, 1]


def test_the_code_of_another_signature_is_never_executed(folder: Path) -> None:
    """An index was written, and the process killed before it wrote the code."""
    solve()
    (path,) = folder.rglob("*.nbc")
    of_floats = path.read_bytes()
    path.unlink()
    next(folder.rglob("*.nbi")).unlink()
    assert compiling.kernel(add)(2, 3) == 5  # of integers, under the same name
    assert path.exists()
    path.write_bytes(of_floats)
    compiled = compiling.kernel(add)
    assert compiled(2, 3) == 5
    assert not sum(compiled.stats.cache_hits.values())


def test_a_folder_that_takes_no_file_is_told_once_and_the_kernel_still_runs(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("os.makedirs", refuse)
    with caplog.at_level(logging.WARNING, logger="perturb_mpm"):
        assert [solve(), solve()] == [0, 0]
    assert [record.getMessage() for record in caplog.records] == [
        f"compiled kernels are not kept in {folder}: No space left on device"
    ]


@pytest.mark.parametrize("damaged", [False, True])
def test_a_full_disk_is_told_once_and_the_kernel_still_runs(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, damaged: bool
) -> None:
    solve()
    for path in folder.rglob("*.nbi"):
        path.write_bytes(b"") if damaged else path.unlink()

    def refuse(*arguments: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("numba.core.caching.IndexDataCacheFile._save_index", refuse)
    with caplog.at_level(logging.WARNING, logger="perturb_mpm"):
        assert [solve(), solve()] == [0, 0]
    assert [record.getMessage() for record in caplog.records] == [
        f"compiled kernels are not kept in {folder}: No space left on device"
    ]


@pytest.mark.skipif(sys.platform == "win32", reason="files are locked another way")
def test_a_kernel_that_another_process_compiles_is_waited_for(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import fcntl

    solve()
    written = {path: path.read_bytes() for path in folder.rglob("*.nb*")}
    (lock,) = folder.rglob("*.lock")
    for path in written:
        path.unlink()
    other = lock.open("wb")
    fcntl.flock(other, fcntl.LOCK_EX)  # as a process that compiles does
    polls = []

    def finish_elsewhere(seconds: float) -> None:
        polls.append(seconds)
        for path, content in written.items():
            path.write_bytes(content)
        other.close()

    monkeypatch.setattr(compiling.time, "sleep", finish_elsewhere)
    assert solve() == 1  # it was read
    assert polls == [compiling.POLL_S]


def test_the_process_beside_is_started_once_and_may_outlive_what_started_it(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    beside: list[subprocess.Popen[bytes]] = []
    monkeypatch.setattr(compiling, "_BESIDE", beside)
    compiling.start_compiling(white=False)
    compiling.start_compiling(white=False)
    (process,) = beside  # one that nobody holds would warn, and warnings fail
    assert process.poll() is None
    process.kill()
    process.wait()


def test_what_is_compiled_ahead_is_begun_again_where_it_was_not_finished(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    beside: list[subprocess.Popen[bytes]] = []
    monkeypatch.setattr(compiling, "_BESIDE", beside)
    monkeypatch.setattr(compiling.subprocess, "Popen", lambda *_, **__: "a process")
    with pytest.raises(KeyboardInterrupt), compiling.only_compiler() as alone:
        assert alone
        with compiling.only_compiler() as another:
            assert not another
        raise KeyboardInterrupt
    compiling.start_compiling(white=False)
    assert beside == ["a process"]
    beside.clear()
    with compiling.only_compiler() as alone:
        assert alone
    compiling.start_compiling(white=False)
    assert beside == []


def test_single_problems_of_a_first_run_are_solved_by_what_samples_need(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from perturb_mpm.engines.cpu import batch, potts_rows, row_kernels

    rng = np.random.default_rng(0)
    probabilities = rng.dirichlet(np.ones(4), (9, 10, 11)).transpose(3, 0, 1, 2)
    images = rng.normal(size=(2, 9, 10, 11))
    kernels = [pm.SpatialKernel(2.0, 1.5), pm.BilateralKernel(images, 4.0, 1.0, weight=0.7)]
    crf = pm.DenseCRF(pm.unary_from_probabilities(probabilities), kernels)
    asked: list[object] = []
    found = []
    for known in (True, False):

        def is_known(kernel: object, *_: object, known: bool = known) -> bool:
            asked.append(kernel)
            return known

        monkeypatch.setattr(batch, "is_compiled", is_known)
        solver = pm.prepare(crf, "cpu", batch=2, threads=1, compact=True)
        solver.load(np.stack([crf.energies, crf.energies[::-1]]))
        changes = [solver.step(damping=-0.3), solver.step(), solver.step(watched=False)]
        moved = [(each.maximum, each.foreground, each.switched) for each in changes[:2]]
        found.append((solver.marginals(), solver.labels(), solver.pairwise(), moved))
    assert set(asked) == {row_kernels.begin, row_kernels.update, row_kernels.pairwise}
    assert potts_rows.pairwise.signatures
    for one, other in zip(*found, strict=True):
        for a, b in zip(one, other, strict=True):
            np.testing.assert_array_equal(a, b)


def test_products_of_matrices_still_compile_after_ours() -> None:
    import numba

    product = numba.njit(lambda a, b: a @ b)
    a = np.arange(6.0).reshape(2, 3)
    np.testing.assert_array_equal(product(a, a.T.copy()), a @ a.T)


def test_sampling_calls_what_is_compiled_ahead() -> None:
    """Kernels of a run with correlated noise, but those that are made for a number of labels."""
    from perturb_mpm.engines.cpu import perturber, row_kernels, transfer

    compile_sampling(white=False)
    compile_few_problems()
    entries = [
        *(perturber.perturb_correlated, perturber.mark_near),
        *(row_kernels.begin, row_kernels.update, row_kernels.pairwise),
        *(transfer.load_problem, transfer.load_marginals, transfer.unload_marginals),
        transfer.count_votes,
    ]
    before = [set(entry.signatures) for entry in entries]
    assert all(before)
    rng = np.random.default_rng(0)
    probabilities = rng.dirichlet(np.ones(4), (14, 14, 14)).transpose(3, 0, 1, 2)
    probabilities[:, 4:] = np.array([0.9999, 5e-5, 3e-5, 2e-5])[:, None, None, None]
    crf = pm.DenseCRF(pm.unary_from_probabilities(probabilities), [pm.SpatialKernel(2.0, 0.5)])
    posterior = pm.sample(
        crf, 9, noise_length=40.0, hold=0.01, tolerance=1e-3, engine="cpu", threads=1
    )
    assert posterior.parameters["hold"]["active_share"] < 0.6
    for entry, known in zip(entries, before, strict=True):
        assert set(entry.signatures) == known, entry.py_func.__name__
