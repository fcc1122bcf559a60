from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from helpers.reproduction import RESULTS, TINY
from lab.store import OtherSettingsError, PartStore
from lab.synthetic.plan import FULL, QUICK, SyntheticPlan, plan_parts
from lab.synthetic.run import measure_parts, reproduce_synthetic
from lab.synthetic.summary import COLUMNS, csv_bytes, summarise


def table(folder: Path, plan: SyntheticPlan = TINY, seed: int = 0) -> bytes:
    return csv_bytes(summarise(measure_parts(folder, plan, seed)))


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("finished")
    reproduce_synthetic(folder, TINY)
    return folder


def copied_parts(source: Path, target: Path, first: int) -> None:
    """Make a folder as a run leaves it that was stopped after its first parts."""
    (target / "parts").mkdir(parents=True)
    names = [
        "parts/settings.json",
        *(f"parts/{part.key}.json" for part in plan_parts(TINY, 0)[:first]),
    ]
    for name in names:
        (target / name).write_bytes((source / name).read_bytes())


def test_a_run_leaves_its_results_and_its_parts(finished: Path) -> None:
    assert set(os.listdir(finished)) == {*RESULTS, "parts"}
    names = {f"{part.key}.json" for part in plan_parts(TINY, 0)}
    assert set(os.listdir(finished / "parts")) == {*names, "settings.json"}


@pytest.mark.parametrize("plan", [TINY, QUICK, FULL])
def test_every_part_has_a_name_of_its_own(plan: SyntheticPlan) -> None:
    parts = plan_parts(plan, 0)
    assert len({part.key for part in parts}) == len(parts)
    assert all(part.cost > 0 for part in parts)


def test_the_table_is_tidy(finished: Path) -> None:
    lines = (finished / "reproduce-synthetic.csv").read_text().splitlines()
    assert lines[0] == ",".join(COLUMNS)
    for name in ("sigma_voxels", "total_variation_mean", "log_probability_error_nats_mean"):
        assert name in COLUMNS
    assert len(set(lines)) == len(lines)
    experiments = {line.split(",")[0] for line in lines[1:]}
    assert experiments == {"single voxel", "map", "comparators", "curves"}


def test_the_same_seed_gives_the_same_bytes_and_another_does_not(
    finished: Path, tmp_path: Path
) -> None:
    again = tmp_path / "again"
    again.mkdir()
    reproduce_synthetic(again, TINY)
    for name in RESULTS:
        assert (again / name).read_bytes() == (finished / name).read_bytes(), name
    other = tmp_path / "other"
    other.mkdir()
    assert table(other, seed=1) != (finished / "reproduce-synthetic.csv").read_bytes()


@pytest.mark.parametrize("done", range(1, len(plan_parts(TINY, 0))))
def test_a_run_stopped_after_any_part_goes_on_to_the_same_table(
    done: int, finished: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "stopped"
    # All but the part before and the part after the interruption are copied, to save time.
    copied_parts(finished, folder, done - 1)

    def stop(*_: float) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        measure_parts(folder, TINY, 0, stop)
    assert len(os.listdir(folder / "parts")) == done + 1  # and the settings
    for part in plan_parts(TINY, 0)[done + 1 :]:
        name = f"parts/{part.key}.json"
        (folder / name).write_bytes((finished / name).read_bytes())
    assert table(folder) == (finished / "reproduce-synthetic.csv").read_bytes()


def test_an_interrupted_run_does_only_what_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, finished: Path
) -> None:
    saved: list[str] = []
    save = PartStore.save

    def counted(self: PartStore, key: str, content: dict) -> None:
        if len(saved) == 9:
            raise KeyboardInterrupt
        save(self, key, content)
        saved.append(key)

    monkeypatch.setattr(PartStore, "save", counted)
    with pytest.raises(KeyboardInterrupt):
        measure_parts(tmp_path, TINY)
    first, saved[:] = list(saved), []
    monkeypatch.setattr(PartStore, "save", lambda _self, key, _content: saved.append(key))
    shares: list[float] = []
    rows = measure_parts(tmp_path, TINY, 0, lambda done, total: shares.append(done / total))
    assert first + saved == [part.key for part in plan_parts(TINY, 0)]
    assert csv_bytes(summarise(rows)) == (finished / "reproduce-synthetic.csv").read_bytes()
    assert shares == sorted(shares)
    assert shares[-1] == pytest.approx(1.0)


@pytest.mark.parametrize("damage", [b"", b"{", b"[1]", b'{"part": "other", "rows": []}'])
def test_a_damaged_part_is_measured_again(damage: bytes, finished: Path, tmp_path: Path) -> None:
    parts = plan_parts(TINY, 0)
    copied_parts(finished, tmp_path / "run", len(parts))
    broken = tmp_path / "run" / "parts" / f"{parts[0].key}.json"
    whole = broken.read_bytes()
    broken.write_bytes(damage)
    assert table(tmp_path / "run") == (finished / "reproduce-synthetic.csv").read_bytes()
    assert broken.read_bytes() == whole


@pytest.mark.parametrize(
    ("plan", "seed", "message"),
    [
        (TINY, 7, "seed is 0 there and 7 now"),
        (replace(TINY, draws=3), 0, "draws is 2 there and 3 now"),
        (replace(TINY, curve_samples=(10, 60)), 0, "curve_samples is [10, 50] there"),
    ],
)
def test_a_folder_with_other_settings_is_refused_and_left_alone(
    plan: SyntheticPlan, seed: int, message: str, finished: Path
) -> None:
    before = {path: path.stat().st_mtime_ns for path in finished.rglob("*")}
    with pytest.raises(OtherSettingsError, match="other settings") as problem:
        reproduce_synthetic(finished, plan, seed)
    assert message in str(problem.value)
    assert {path: path.stat().st_mtime_ns for path in finished.rglob("*")} == before


def test_settings_that_cannot_be_read_are_refused(tmp_path: Path) -> None:
    (tmp_path / "parts").mkdir()
    (tmp_path / "parts" / "settings.json").write_bytes(b"{")
    with pytest.raises(OtherSettingsError, match="cannot be read as the settings of a run"):
        measure_parts(tmp_path, TINY)
