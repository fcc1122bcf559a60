from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import perturb_mpm as pm
from perturb_mpm.engines import compute, prepare


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("4 GB", 4 * 10**9),
        ("1.5gb", 15 * 10**8),
        ("2 GiB", 2 * 1024**3),
        ("300MB", 3 * 10**8),
        ("1 TB", 10**12),
        ("4096", 4096),
        (" 10 kb ", 10**4),
    ],
)
def test_budgets_may_be_written_with_units(text: str, size: int) -> None:
    assert compute.resolve_budget(text) == size


def test_budgets_may_be_numbers_of_bytes() -> None:
    assert compute.resolve_budget(np.int64(12)) == 12
    assert compute.resolve_budget(4e9) == 4 * 10**9


def test_the_default_is_60_percent_of_what_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compute, "available_bytes", lambda: 1000)
    assert compute.resolve_budget(None) == 600


@pytest.mark.parametrize("text", ["four", "4 GBit", "-1 GB", "", "0 GB", "GB"])
def test_budgets_that_mean_nothing_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r'memory must be .* such as "4 GB", got'):
        compute.resolve_budget(text)


@pytest.mark.parametrize("number", [0, -5, float("nan"), float("inf")])
def test_budgets_must_be_positive(number: float) -> None:
    with pytest.raises(ValueError, match="memory must be"):
        compute.resolve_budget(number)


def test_some_memory_is_free_here() -> None:
    assert compute.available_bytes() > 10**7


def test_a_control_group_limits_what_is_free(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    group = tmp_path / "root" / "a" / "b"
    group.mkdir(parents=True)
    own = tmp_path / "cgroup"
    own.write_text("5:cpu:/x\n0::/a/b\n")
    (group / "memory.max").write_text("max\n")
    (group.parent / "memory.max").write_text("1000\n")
    (group.parent / "memory.current").write_text("700\n")
    (group.parent / "memory.stat").write_text("anon 5\ninactive_file 100\n")
    free = compute._free_in_control_groups(own, tmp_path / "root")
    assert free == [400]
    monkeypatch.setattr(compute, "_free_in_control_groups", lambda: free)
    monkeypatch.setattr(compute, "_free_on_linux", lambda: 10**9)
    assert compute.available_bytes() == 400


def test_without_control_groups_nothing_limits(tmp_path: Path) -> None:
    assert compute._free_in_control_groups(tmp_path / "none", tmp_path) == []


def test_other_systems_count_on_half_of_their_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compute, "_free_on_linux", lambda: None)
    assert compute.available_bytes() > 10**7
    monkeypatch.delattr(compute.os, "sysconf")
    assert compute.available_bytes() == compute.UNKNOWN_MACHINE


def test_a_problem_that_does_not_fit_names_the_size_and_the_remedy() -> None:
    crf = pm.DenseCRF(unary=np.zeros((2, 100, 100)), kernels=[pm.SpatialKernel(sigma=1.0)])
    message = (
        r'engine "reference" on 10000 voxels, 1 kernels and batch 1 needs 3.2 GB, '
        r'memory allows 1 GB: use engine="cpu", a smaller mask, or a larger memory'
    )
    with pytest.raises(MemoryError, match=message):
        prepare(crf, "reference", batch=1, memory="1 GB")
    with pytest.raises(MemoryError, match=message):
        pm.mean_field(crf, engine="reference", memory=10**9)


@pytest.mark.skipif(sys.platform != "linux", reason="glibc alone is told")
@pytest.mark.parametrize("keeps", [True, False])
def test_freed_memory_is_kept_until_it_is_given_back(*, keeps: bool) -> None:
    script = (
        "import numpy as np\n"
        "from pathlib import Path\n"
        "from perturb_mpm.engines import give_back, keep_freed_memory\n"
        f"if {keeps}: keep_freed_memory()\n"
        "def resident(): return 4096 * int(Path('/proc/self/statm').read_text().split()[1])\n"
        "kept = [np.ones(64 << 20, np.uint8) for _ in range(4)]\n"
        "last = np.ones(64 << 10, np.uint8)\n"  # on top of the heap
        "before = resident()\n"
        "del kept\n"
        "freed = resident()\n"
        "again = np.ones(64 << 20, np.uint8)\n"
        "print(before - freed, resident() - freed)\n"
        "give_back()\n"
        "print(before - resident())\n"
    )
    # Workers that another test has started leave their settings behind.
    environment = {k: v for k, v in os.environ.items() if not k.startswith("MALLOC_")}
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, env=environment
    )
    returned, taken, in_the_end = map(int, done.stdout.split())
    size = 64 << 20
    assert (returned < size) == (taken < size // 2) == keeps
    assert in_the_end > 2.5 * size
