"""Samples of one run drawn in ranges, by whoever sees its folder: they add up to the same bytes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from helpers.small_case import content, read, write_files
from perturb_mpm.run import (
    OutputError,
    RunSettings,
    SettingsError,
    begin_case,
    draw_part,
    load_run,
    run_case,
)

SETTINGS = RunSettings().changed(samples=60, iterations=3, seed=5, threads=1)
STATE = ("posterior.npz", "samples.npz", "snapshots.npz", "run.json")


@pytest.fixture
def case(tmp_path: Path) -> Any:
    write_files(tmp_path / "files")
    return read(tmp_path / "files")


def state_of(folder: Path) -> dict[str, bytes]:
    return content(folder / "state", STATE)


@pytest.mark.parametrize(
    "changed",
    [{}, {"estimator": "conditional"}, {"strength": 0.0}, {"noise_length": 0.0, "hold": 0.01}],
    ids=["default", "conditional", "without kernels", "held"],
)
def test_ranges_in_any_order_add_up_to_the_same_bytes(
    changed: dict[str, Any], case: Any, tmp_path: Path
) -> None:
    settings = SETTINGS.changed(**changed)
    whole, split = tmp_path / "whole", tmp_path / "split"
    run_case(case, settings, whole, title="P")
    held = begin_case(case, settings, split, title="P")
    assert held < 16  # so that the labels of the first samples come from two parts
    assert begin_case(case, settings, split, title="P") == held
    for part in (range(40, 60), range(held, 21), range(21, 40)):
        draw_part(case, settings, split, part, title="P")
    drawn = sorted((split / "state").glob("part-*.npz"))
    run_case(case, settings, split, title="P", resume=True)
    assert len(drawn) > 3
    assert content(split) == content(whole)
    assert state_of(split) == state_of(whole)
    assert list((split / "state").glob("part-*")) == []
    assert load_run(split).sampled_labels.shape[0] == 16


def test_what_lacks_or_is_damaged_is_drawn(case: Any, tmp_path: Path) -> None:
    whole, split = tmp_path / "whole", tmp_path / "split"
    run_case(case, SETTINGS, whole, title="P")
    held = begin_case(case, SETTINGS, split, title="P")
    for part in (range(held, 30), range(45, 60)):
        draw_part(case, SETTINGS, split, part, title="P")
    damaged = split / "state" / f"part-{held}-10.npz"
    damaged.write_bytes(damaged.read_bytes()[:100])
    (split / "state" / "part-50-60.npz").write_bytes(
        (split / "state" / "part-10-25.npz").read_bytes()  # other samples under this name
    )
    run_case(case, SETTINGS, split, title="P", resume=True)
    assert content(split) == content(whole)
    assert state_of(split) == state_of(whole)


def test_parts_are_taken_and_not_drawn_again(
    case: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from perturb_mpm.sampling import Sampler

    held = begin_case(case, SETTINGS, tmp_path / "out", title="P")
    draw_part(case, SETTINGS, tmp_path / "out", range(held, 60), title="P")
    drawn: list[object] = []
    monkeypatch.setattr(Sampler, "draw", lambda *_, **__: drawn.append(1))
    # The label map is compared with samples of its own, drawn after those of the run.
    monkeypatch.setattr("perturb_mpm.run.running.measure_agreement", lambda *_: {})
    run = run_case(case, SETTINGS, tmp_path / "out", title="P", resume=True)
    assert drawn == []
    assert run.posterior.samples == 60
    np.testing.assert_array_equal(run.posterior.sample_index, np.arange(60))


def test_a_part_needs_a_run_of_the_same_parameters(case: Any, tmp_path: Path) -> None:
    out = tmp_path / "out"
    with pytest.raises(OutputError, match="`output` must hold a run that is begun"):
        draw_part(case, SETTINGS, out, range(10, 20), title="P")
    assert not out.exists()
    begin_case(case, SETTINGS, out, title="P")
    with pytest.raises(OutputError, match=r"parameters\.\S*seed was 5, is 6"):
        draw_part(case, SETTINGS.changed(seed=6), out, range(10, 20), title="P")
    until = SETTINGS.changed(until=0.2)
    with pytest.raises(SettingsError, match="`until` must not be given"):
        draw_part(case, until, out, range(10, 20), title="P")
    assert list((out / "state").glob("part-*")) == []
