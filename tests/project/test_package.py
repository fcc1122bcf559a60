from __future__ import annotations

import subprocess
import sys

import perturb_mpm as pm

HEAVY = ("numba", "torch", "scipy", "sklearn", "matplotlib", "nibabel")


def test_every_public_name_is_there() -> None:
    for name in pm.__all__:
        assert getattr(pm, name) is not None
    assert isinstance(pm.__version__, str)


def test_importing_loads_nothing_heavy() -> None:
    code = f"import sys, perturb_mpm; print(set({HEAVY}) & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
