"""What ``sample(progress=…)`` shows."""

from __future__ import annotations

import numpy as np
import pytest

import perturb_mpm as pm

CRF = pm.DenseCRF(pm.unary_from_logits(np.zeros((2, 4, 3))), [])


def test_true_shows_a_line_that_ends_with_all_samples(capsys: pytest.CaptureFixture[str]) -> None:
    pm.sample(CRF, samples=5, engine="reference", batch=1, progress=True)
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.split("\r")[-1].rstrip() == "5 of 5"
    assert shown.err.endswith("\n")


@pytest.mark.parametrize("progress", [None, False])
def test_otherwise_nothing_is_shown(
    capsys: pytest.CaptureFixture[str], progress: bool | None
) -> None:
    pm.sample(CRF, samples=5, engine="reference", progress=progress)
    assert capsys.readouterr().err == ""


def test_a_function_is_called() -> None:
    seen = []
    progress = lambda *now: seen.append(now)  # noqa: E731
    pm.sample(CRF, samples=4, engine="reference", batch=2, progress=progress)
    assert seen[-1] == (4, 4)


def test_anything_else_is_refused() -> None:
    with pytest.raises(TypeError, match=r"`progress` must be True, False or a function .* got int"):
        pm.sample(CRF, samples=4, progress=3)  # type: ignore[arg-type]
