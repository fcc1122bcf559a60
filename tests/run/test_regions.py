"""Regions of a run: labels decided region by region, volumes from joint samples, their checks."""

from __future__ import annotations

import csv
import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from helpers import small_case
from perturb_mpm.files import Case, InputError
from perturb_mpm.run import (
    Run,
    RunSettings,
    SettingsError,
    load_run,
    read_settings,
    run_case,
    volume_rows,
    write_settings,
)

REGIONS = {"whole": (1, 400), "core": (400,)}
SETTINGS = RunSettings().changed(samples=40, seed=5, regions=REGIONS)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("patient")
    small_case.write_files(folder)
    return folder


@pytest.fixture(scope="module")
def case(files: Path) -> Case:
    return small_case.read(files, labels=(0, 1, 400))


@pytest.fixture(scope="module")
def finished(case: Case, tmp_path_factory: pytest.TempPathFactory) -> Run:
    return run_case(case, SETTINGS, tmp_path_factory.mktemp("run") / "out", title="regions")


def test_the_union_is_decided_before_its_labels(case: Case, tmp_path: Path) -> None:
    settings = SETTINGS.changed(samples=2, regions={"whole": (1, 400)})
    run = run_case(case, settings, tmp_path / "out", title="regions")
    p = run.marginals
    expected = np.where(p[1:].sum(axis=0) > 0.5, 1 + p[1:].argmax(axis=0), 0) * case.mask
    np.testing.assert_array_equal(run.labels, expected)
    assert (run.labels != p.argmax(axis=0) * case.mask).any()  # the control
    np.testing.assert_array_equal(load_run(run.folder).labels, run.labels)


def test_a_region_has_the_volumes_of_joint_samples(finished: Run) -> None:
    whole, core, background, one, other, *rest = volume_rows(finished)
    assert not rest  # the whole is all of the foreground
    assert [row.kind for row in (whole, core, background)] == ["region", "region", "background"]
    joint = finished.posterior.volumes[:, 1:].sum(axis=1) / 1000
    np.testing.assert_allclose(whole.samples_ml, joint)
    assert whole.interval_ml == pytest.approx(tuple(np.quantile(joint, [0.025, 0.975])))
    # Ends of the labels' own intervals do not add up to those of the whole.
    assert whole.interval_ml[1] < one.interval_ml[1] + other.interval_ml[1] - 1e-6
    assert whole.volume_ml == pytest.approx(one.volume_ml + other.volume_ml)
    assert core.values == (400,)


def test_every_output_has_the_same_rows(finished: Run) -> None:
    rows = {row.name: row for row in volume_rows(finished)}
    found = finished.summary["regions"]
    assert [row["name"] for row in found] == ["whole", "core"]
    assert found[0]["values"] == [1, 400]
    for each in [*found, *finished.summary["labels"]]:
        row = rows[each["name"]]
        assert each["volume_ml"] == row.volume_ml
        assert (each["interval_lower_ml"], each["interval_upper_ml"]) == row.interval_ml
        assert (each["sampled_mean_ml"], each["sampled_sd_ml"]) == (row.mean_ml, row.sd_ml)
    assert set(found[0]) ^ set(finished.summary["labels"][0]) == {"value", "values"}
    with finished.files["volumes"].open(newline="") as file:
        table = list(csv.DictReader(file))
    assert [row["label"] for row in table[:5]] == ["1,400", "400", "0", "1", "400"]
    wholes = [float(row["volume_ml"]) for row in table if row["name"] == "whole"]
    np.testing.assert_allclose(wholes, rows["whole"].samples_ml)
    page = finished.files["report"].read_text()
    assert page.index("values 1, 400") < page.index("value 1<")


@pytest.mark.parametrize("noise_length", [None, 4.0])
@pytest.mark.parametrize("regions", [{}, REGIONS])
def test_a_printed_volume_lies_inside_its_interval(
    case: Case, regions: dict[str, tuple[int, ...]], noise_length: float | None, tmp_path: Path
) -> None:
    settings = SETTINGS.changed(samples=100, regions=regions, noise_length=noise_length)
    run = run_case(case, settings, tmp_path / "o", title="t")
    for row in volume_rows(run):
        assert row.interval_ml[0] <= row.volume_ml <= row.interval_ml[1], row.name


def test_the_case_brings_regions_that_the_settings_may_replace(case: Case, tmp_path: Path) -> None:
    own = replace(case, regions={"of the model": (1, 400)})
    plain = SETTINGS.changed(regions={}, samples=4)
    brought = run_case(own, plain, tmp_path / "brought", title="t")
    assert [row["name"] for row in brought.summary["regions"]] == ["of the model"]
    assert brought.summary["parameters"]["regions"] == {"of the model": [1, 400]}
    assert load_run(brought.folder).regions == {"of the model": (1, 2)}
    asked = run_case(own, SETTINGS.changed(samples=4), tmp_path / "asked", title="t")
    assert [row["name"] for row in asked.summary["regions"]] == ["whole", "core"]


def test_regions_are_part_of_what_a_run_is(case: Case, finished: Run) -> None:
    with pytest.raises(ValueError, match=r"parameters\.regions\.core was \[400\], is absent"):
        run_case(
            case,
            SETTINGS.changed(regions={"whole": (1, 400)}),
            finished.folder,
            title="t",
            resume=True,
        )


@pytest.mark.parametrize(
    ("regions", "message"),
    [
        ({"a": (1, 2)}, "`regions` must be label values out of 0, 1, 400, got 1, 2 for a"),
        ({"a": (0, 1)}, r"`regions` must be sets of foreground labels, got a with background \(0"),
        ({"a": (1,), "b": (1,)}, "`regions` must be different sets of labels, got a and b"),
    ],
)
def test_regions_that_do_not_fit_the_case(
    case: Case, regions: dict[str, tuple[int, ...]], message: str, tmp_path: Path
) -> None:
    with pytest.raises((SettingsError, InputError), match=message):
        run_case(case, SETTINGS.changed(regions=regions), tmp_path / "o", title="t")
    assert not (tmp_path / "o").exists()


def test_regions_stand_in_a_settings_file(tmp_path: Path) -> None:
    named = SETTINGS.changed(regions={"whole tumour": (1, 2, 4), "core": (1, 4)})
    write_settings(tmp_path / "s.toml", named)
    assert '"whole tumour" = [1, 2, 4]' in (tmp_path / "s.toml").read_text()
    assert read_settings(tmp_path / "s.toml") == named
    (tmp_path / "own.toml").write_text("[regions]\nwhole = [1, 2, 4]\n")
    assert read_settings(tmp_path / "own.toml").regions == {"whole": (1, 2, 4)}


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("core = 4", "regions must be lists of label values, as in core = [1, 4], got 4 for core"),
        ("core = []", "regions must be lists of label values"),
        ("core = [1.5]", "regions must be lists of label values"),
        ("core = [1, 1]", "regions must be different labels, got [1, 1] for core"),
        ('"" = [1]', "regions must have names that are words in one line, got ''"),
    ],
)
def test_wrong_regions_in_a_settings_file(line: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "s.toml").write_text(f"[regions]\n{line}\n")
    with pytest.raises(ValueError, match=re.escape(message)):
        read_settings(tmp_path / "s.toml")


def test_the_command_takes_regions(
    files: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    start = ["run", *small_case.options(files), "--samples", "3", "--quiet", "--output"]
    assert small_case.call(*start, str(tmp_path / "one"), "--region", "all=1,2", "inner=2") == 0
    twice = ["--region", "all=1,2", "--region", "inner=2"]
    assert small_case.call(*start, str(tmp_path / "two"), *twice) == 0
    for folder in ("one", "two"):
        summary = json.loads((tmp_path / folder / "summary.json").read_text())
        assert [row["name"] for row in summary["regions"]] == ["all", "inner"]
    assert small_case.call(*start, str(tmp_path / "no"), "--region", "all=1,7") == 2
    assert "--region must be label values out of 0, 1, 2, got 1, 7" in capsys.readouterr().err


def test_the_rule_is_chosen_by_what_was_given_and_stays(case: Case, tmp_path: Path) -> None:
    """Two of three labels share most voxels: by the regions they would hardly ever be decided."""
    shares = np.array([0.30, 0.36, 0.34], dtype=np.float32)
    probabilities = np.broadcast_to(shares[:, None, None, None], (3, *case.mask.shape)).copy()
    given = replace(case, probabilities=probabilities)
    found = {}
    for name, members in (("both", (1, 400)), ("one", (1,))):
        settings = SETTINGS.changed(samples=2, temperature=1.0, regions={name: members})
        run = run_case(given, settings, tmp_path / name, title="x")
        found[name] = run.summary["labels_decided_by"]
        assert load_run(tmp_path / name).decisions == run.decisions
    assert found == {"both": "regions", "one": "most probable label"}
