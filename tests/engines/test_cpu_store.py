"""Prepared kernels in a folder: the same bits as made anew, bounded, and never in the way."""

from __future__ import annotations

import errno
import logging
import os
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import perturb_mpm as pm
from helpers.problems import smooth_problem
from perturb_mpm.engines import Compute
from perturb_mpm.engines.cpu import build, preparation, store
from perturb_mpm.engines.cpu.chain import Filter
from perturb_mpm.engines.cpu.layout import Taps
from perturb_mpm.engines.cpu.store import KernelStore
from perturb_mpm.run import RunSettings, read_settings
from perturb_mpm.storage import read_arrays, write_arrays

SHAPE = (12, 14, 10)


@pytest.fixture(autouse=True)
def _small_problems_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "WORTH_KEEPING", 0)
    store._warnings_given.clear()


class Counted:
    """How many lattices the solver and its calibration have built."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.solver = self.calibration = 0

        def count(*arguments: Any) -> Any:
            if sys._getframe(1).f_code.co_qualname.startswith("_filter_at"):
                self.calibration += 1
            else:
                self.solver += 1
            return build(*arguments)

        monkeypatch.setattr(preparation, "build", count)


@pytest.fixture
def built(monkeypatch: pytest.MonkeyPatch) -> Counted:
    return Counted(monkeypatch)


def sampled(crf: pm.DenseCRF, folder: Path | None, **options: Any) -> list[NDArray[Any]]:
    """What eight samples come to, array by array."""
    posterior = pm.sample(
        crf, 8, seed=3, iterations=3, engine="cpu", kernel_cache=folder, **options
    )
    assert posterior.mean_field is not None
    return [posterior.counts, posterior.volumes, posterior.mean_field]


def assert_same(found: list[NDArray[Any]], wanted: list[NDArray[Any]]) -> None:
    for ours, theirs in zip(found, wanted, strict=True):
        assert ours.dtype == theirs.dtype
        assert ours.tobytes() == theirs.tobytes()


@pytest.mark.parametrize("accuracy", ["plain", "calibrated", "accurate"])
def test_the_same_bytes_with_a_store_empty_or_warm(
    accuracy: str, tmp_path: Path, built: Counted
) -> None:
    crf = smooth_problem(SHAPE)
    without = sampled(crf, None, accuracy=accuracy)
    anew = (built.solver, built.calibration)
    assert_same(sampled(crf, tmp_path / "a" / "kernels", accuracy=accuracy), without)
    assert (built.solver, built.calibration) == (2 * anew[0], 2 * anew[1])
    assert_same(sampled(crf, tmp_path / "a" / "kernels", accuracy=accuracy), without)
    assert (built.solver, built.calibration) == (2 * anew[0], 2 * anew[1])  # nothing was built


def test_mean_field_takes_kernels_of_its_own(tmp_path: Path, built: Counted) -> None:
    """Sampling has its splat in other stages, which float32 must not get."""
    crf = smooth_problem(SHAPE)
    sampled(crf, tmp_path)
    wanted = pm.mean_field(crf, engine="cpu").marginals
    for _ in range(2):
        found = pm.mean_field(crf, engine="cpu", kernel_cache=tmp_path).marginals
        assert found.tobytes() == wanted.tobytes()
    assert built.solver == 2 + 2 + 2


def kernels(
    width: float = 6.0, sigma: float = 0.5, weight: float = 3.0, **options: Any
) -> Callable[[NDArray[Any]], list[pm.BilateralKernel]]:
    return lambda images: [pm.BilateralKernel(images, width, sigma, weight=weight, **options)]


def problem(
    of: Callable[[NDArray[Any]], list[pm.BilateralKernel]],
    *,
    temperature: float = 1.0,
    spacing: float = 1.0,
    other_images: bool = False,
    other_mask: bool = False,
    centring: float = 0.0,
) -> pm.DenseCRF:
    rng = np.random.default_rng(5)
    images = np.cumsum(rng.normal(size=(2, *SHAPE)), axis=1)
    unary = rng.normal(size=(3, *SHAPE)) / temperature
    mask = np.ones(SHAPE, dtype=bool)
    mask[0, 0, 0] = not other_mask
    if other_images:
        images[0, 5, 5, 5] += 1e-3
    return pm.DenseCRF(unary, of(images), spacing=spacing, mask=mask, centring=centring)


@pytest.mark.parametrize(
    "other",
    [
        problem(kernels(width=6.01)),
        problem(kernels(sigma=0.51)),
        problem(kernels(normalization="before")),
        problem(kernels(normalization="none")),
        problem(kernels(), spacing=1.01),
        problem(kernels(), other_images=True),
        problem(kernels(), other_mask=True),
    ],
    ids=["width", "intensity", "before", "none", "spacing", "images", "mask"],
)
def test_another_kernel_is_never_taken_for_this_one(
    other: pm.DenseCRF, tmp_path: Path, built: Counted
) -> None:
    sampled(problem(kernels()), tmp_path)
    before = built.solver
    assert_same(sampled(other, tmp_path), sampled(other, None))
    assert built.solver == before + 2  # with the folder, and without one


@pytest.mark.parametrize("accuracy", ["plain", "accurate"])
def test_another_accuracy_is_another_kernel(accuracy: str, tmp_path: Path, built: Counted) -> None:
    crf = problem(kernels())
    sampled(crf, tmp_path)
    sampled(crf, tmp_path, accuracy=accuracy)
    assert built.solver == 2


@pytest.mark.parametrize(
    "same",
    [problem(kernels(weight=1.0)), problem(kernels(), centring=1.0)],
    ids=["weight", "centring"],
)
def test_weight_and_centring_use_the_same_kernel(
    same: pm.DenseCRF, tmp_path: Path, built: Counted
) -> None:
    sampled(problem(kernels()), tmp_path)
    sampled(same, tmp_path)
    assert (built.solver, built.calibration) == (1, 6)


def test_another_temperature_calibrates_on_the_same_lattices(
    tmp_path: Path, built: Counted
) -> None:
    """Which scale is best depends on the unaries; the lattices of all scales do not."""
    sampled(problem(kernels()), tmp_path)
    hotter = problem(kernels(), temperature=1.7)
    before = len(list(tmp_path.iterdir()))
    found = sampled(hotter, tmp_path)
    assert built.calibration == 6
    assert len(list(tmp_path.iterdir())) > before  # which one was chosen
    assert_same(found, sampled(hotter, None))


def some_filter(rng: np.random.Generator, rows: int = 5) -> Filter:
    """A filter of 9 voxels, made up."""
    pointers = np.arange(rows + 1, dtype=np.int64) * 2
    stages = tuple(
        Taps(
            pointers,
            rng.integers(0, below, 2 * rows, dtype=np.int32),
            rng.random(2 * rows, dtype=np.float32),
        )
        for below in (9, rows)
    )
    columns = rng.integers(0, rows, (9, 3), dtype=np.int32)
    coefficients = rng.random((9, 3), dtype=np.float32)
    total, diagonal = rng.random((2, 9), dtype=np.float32)
    return Filter(stages, rows, columns, coefficients, total, diagonal)


def arrays_of(made: Filter) -> list[NDArray[Any]]:
    taps = [part for stage in made.stages for part in stage]
    return [*taps, made.columns, made.coefficients, made.total, made.diagonal]


def keep(kept: KernelStore, name: str, *, rows: int = 5) -> tuple[Filter, bool]:
    """Ask for a made-up filter; return it, and whether it had to be made."""
    made = []

    def make() -> Filter:
        made.append(some_filter(np.random.default_rng(len(name)), rows))
        return made[0]

    return kept.filter(make, 9, 9, name), bool(made)


def test_a_filter_comes_back_as_it_was(tmp_path: Path) -> None:
    kept = KernelStore(tmp_path)
    wanted, was_made = keep(kept, "a")
    found, is_made = keep(kept, "a")
    assert (was_made, is_made) == (True, False)
    assert found.vertices == wanted.vertices
    assert_same(arrays_of(found), arrays_of(wanted))
    assert keep(kept, "b")[1]


def changed(**arrays: Any) -> Callable[[Path], None]:
    """Write a sound file of other content."""
    return lambda path: write_arrays(path, {**read_arrays(path), **arrays})


def cut_in_the_middle(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:700])


def one_bit_flipped(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[content.index(b"NUMPY") + 130] ^= 1  # of the first array
    path.write_bytes(bytes(content))


def without_slice(path: Path) -> None:
    write_arrays(path, {name: each for name, each in read_arrays(path).items() if name != "total"})


@pytest.mark.parametrize(
    "spoil",
    [
        cut_in_the_middle,
        one_bit_flipped,
        without_slice,
        lambda path: path.write_bytes(b""),
        lambda path: path.write_bytes(os.urandom(5000)),
        changed(columns_0=np.full(10, 9, dtype=np.int32)),  # voxel 9 of 9
        changed(columns_1=np.full(10, -1, dtype=np.int32)),
        changed(columns=np.full((9, 3), 5, dtype=np.int32)),
        changed(pointers_0=np.array([0, 8, 2, 4, 6, 10])),
        changed(pointers_0=np.array([0, 2, 4, 6, 8, 11])),
        changed(pointers_0=np.array(3)),
        changed(pointers_0=np.empty(0, dtype=np.int64)),
        changed(total=np.ones(8, dtype=np.float32)),
        changed(coefficients=np.ones((9, 3))),
        changed(more=np.ones(3)),
    ],
    ids=[
        *("cut", "bit", "without", "empty", "random", "voxel", "negative", "vertex", "falling"),
        *("long", "number", "nothing", "short", "float64", "more"),
    ],
)
def test_a_damaged_or_foreign_file_is_made_again(
    spoil: Callable[[Path], object], tmp_path: Path
) -> None:
    kept = KernelStore(tmp_path)
    wanted, _ = keep(kept, "a")
    (path,) = tmp_path.iterdir()
    spoil(path)
    found, is_made = keep(kept, "a")
    assert is_made
    assert_same(arrays_of(found), arrays_of(wanted))
    assert not keep(kept, "a")[1]  # it was replaced


def test_a_choice_is_one_of_those_there_are(tmp_path: Path) -> None:
    kept = KernelStore(tmp_path)
    assert kept.choice(lambda: 3, 6, "a") == 3
    assert kept.choice(lambda: 4, 6, "a") == 3
    (path,) = tmp_path.iterdir()
    write_arrays(path, {"choice": np.array(6)})
    assert kept.choice(lambda: 4, 6, "a") == 4


def test_the_folder_is_bounded_and_what_is_not_used_goes_first(tmp_path: Path) -> None:
    rows = 2000
    own = tmp_path / "mine.npz"
    own.write_bytes(bytes(10**6))  # a user's own file, older than all others
    os.utime(own, (1, 1))
    for second, name in enumerate(["1", "22", "333"], start=10):
        keep(KernelStore(tmp_path), name, rows=rows)
        newest = max(tmp_path.iterdir(), key=lambda path: path.stat().st_mtime)
        os.utime(newest, (second, second))
    size = newest.stat().st_size
    part = tmp_path / f".{'0' * 64}.npz.00ff.part"  # of a writer that was killed
    part.write_bytes(bytes(size // 3))
    os.utime(part, (2, 2))
    kept = KernelStore(tmp_path, limit=7 * size // 2)
    assert not keep(kept, "1", rows=rows)[1]  # used now, the oldest no more
    assert part.exists()
    assert keep(kept, "4444", rows=rows)[1]
    assert not part.exists()
    assert own.exists()
    ours = [path for path in tmp_path.iterdir() if path != own]
    assert sum(path.stat().st_size for path in ours) <= 7 * size // 2
    assert [keep(kept, name, rows=rows)[1] for name in ("1", "333", "4444")] == [False] * 3
    assert keep(kept, "22", rows=rows)[1]


def test_what_is_larger_than_the_limit_is_not_kept(tmp_path: Path) -> None:
    kept = KernelStore(tmp_path, 5000)
    assert keep(kept, "a")[1]
    assert keep(kept, "a")[1]
    assert list(tmp_path.iterdir()) == []


def test_a_disk_that_is_nearly_full_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "RESERVE", 1 << 62)
    keep(KernelStore(tmp_path), "a")
    assert list(tmp_path.iterdir()) == []


def full(*arguments: Any, **options: Any) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_run_goes_on_where_nothing_can_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    crf = smooth_problem(SHAPE)
    wanted = sampled(crf, None)
    (tmp_path / "file").write_bytes(b"")
    with caplog.at_level(logging.WARNING, "perturb_mpm"):
        assert_same(sampled(crf, tmp_path / "file" / "kernels"), wanted)
        monkeypatch.setattr(store, "write_arrays", full)
        assert_same(sampled(crf, tmp_path / "full"), wanted)
    told = [each.message for each in caplog.records if "stored in" in each.message]
    assert len(told) == 2  # once a folder
    assert "No space left" in told[1]


def test_several_may_share_a_folder_that_is_too_small(tmp_path: Path) -> None:
    names = ["a" * (1 + number % 7) for number in range(120)]
    kept = KernelStore(tmp_path, 60_000)

    def ask(name: str) -> bool:
        found = arrays_of(keep(kept, name)[0])
        wanted = arrays_of(some_filter(np.random.default_rng(len(name))))
        return all(np.array_equal(a, b) for a, b in zip(found, wanted, strict=True))

    with ThreadPoolExecutor(6) as workers:
        assert all(workers.map(ask, names))


def test_small_problems_leave_no_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "WORTH_KEEPING", 10**5)
    sampled(smooth_problem(SHAPE), tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("engine", ["reference", "cpu"])
def test_exact_kernels_are_not_kept(engine: Any, tmp_path: Path) -> None:
    crf = smooth_problem((6, 6, 6))
    options = {"iterations": 2, "engine": engine, "accuracy": "exact", "kernel_cache": tmp_path}
    pm.sample(crf, 4, **options)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("value", "error"),
    [(3, TypeError), ("", ValueError), ("a\0b", ValueError), ("x" * 5000, ValueError)],
)
def test_what_is_no_folder_is_refused(value: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match="`kernel_cache` must be"):
        Compute(kernel_cache=value)


def test_a_file_is_refused_and_a_path_is_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(ValueError, match="`kernel_cache` must be a folder, or one that can be"):
        Compute(kernel_cache=tmp_path / "file")
    monkeypatch.chdir(tmp_path)
    assert Compute(kernel_cache="kernels").kernel_cache == str(tmp_path / "kernels")


def test_the_folder_is_no_part_of_what_a_run_is(tmp_path: Path) -> None:
    plain = RunSettings()
    assert plain.changed(kernel_cache=tmp_path).identity() == plain.identity()
    path = tmp_path / "settings.toml"
    path.write_text('[compute]\nkernel_cache = "kernels"\n')
    assert read_settings(path).compute.kernel_cache == str(Path("kernels").absolute())
