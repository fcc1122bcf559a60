"""Measures of a finished run: its own samples drawn again, ranges, interruptions, files, words."""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import perturb_mpm as pm
from helpers.small_case import AFFINE, call, save
from helpers.viewer_run import SETTINGS, SHAPE, copy_run
from perturb_mpm.biomarkers import LearnedLaw
from perturb_mpm.files import InputError
from perturb_mpm.measures import DEFAULT_MEASURES, LabelMap, Measurer, find_measures
from perturb_mpm.run import (
    Run,
    StateError,
    Surroundings,
    load_run,
    measure_rows,
    measured_patient,
    measuring,
    read_surroundings,
    volume_rows,
)

CORRELATED = SETTINGS.changed(noise_length=20.0, samples=20)
NAMES = [*DEFAULT_MEASURES, "dice", "surface_dice", "hd95", "margin", "mean:T1", "distance:oedema"]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return load_run(copy_run(tmp_path_factory.mktemp("measuring") / "case", CORRELATED))


def test_measures_are_those_of_the_runs_own_samples(run: Run) -> None:
    found = pm.measure(run, NAMES)
    assert found.samples == 20
    for name, label in (("oedema", 1), ("core", 2)):
        ml = run.posterior.volumes[:, label] / 1000
        np.testing.assert_allclose(found[f"{name}.volume"], ml, rtol=1e-12)
    patient = measured_patient(run)
    kept = Measurer(patient, find_measures(NAMES, patient))
    rows = run.posterior.grid.gather(run.sampled_labels)  # the first 16, from the run's folder
    kept.add(range(len(rows)), rows)
    np.testing.assert_array_equal(kept.measurements.values, found.values[:16])
    assert found.label_map_value("core.volume") == volume_rows(run)[2].volume_ml


def test_ranges_of_samples_add_up(run: Run) -> None:
    whole = pm.measure(run, ["area"], ["core"])
    parts = [pm.measure(run, ["area"], ["core"], samples=part) for part in _parts(20, 7)]
    merged = parts[0].merge(parts[2]).merge(parts[1])
    np.testing.assert_array_equal(merged.values, whole.values)


def _parts(stop: int, step: int) -> list[range]:
    return [range(first, min(first + step, stop)) for first in range(0, stop, step)]


def test_an_interrupted_measurement_goes_on(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(measuring, "_SECONDS_AT_RISK", 0.0)
    small = replace(run, settings=run.settings.changed(batch=8))
    calls: list[float] = []

    def stop(done: float, _: float) -> None:
        calls.append(done)
        if len(calls) == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        pm.measure(small, ["area"], ["core"], checkpoint=tmp_path, progress=stop)
    resumed: list[float] = []
    found = pm.measure(
        small, ["area"], ["core"], checkpoint=tmp_path, progress=lambda n, _: resumed.append(n)
    )
    assert resumed == [16, 20]
    np.testing.assert_array_equal(found.values, pm.measure(run, ["area"], ["core"]).values)
    other: list[float] = []  # another measure begins anew
    pm.measure(
        small, ["diameter"], ["core"], checkpoint=tmp_path, progress=lambda n, _: other.append(n)
    )
    assert other[0] == 8
    with pytest.raises(KeyboardInterrupt):
        calls.clear()
        pm.measure(small, ["mean:T1"], ["core"], checkpoint=tmp_path, progress=stop)
    images = replace(run.case, hashes={**run.case.hashes, "t1.nii.gz": "of another image"})
    other.clear()  # so does another image whose kernels do not act
    pm.measure(
        replace(small, case=images),
        ["mean:T1"],
        ["core"],
        checkpoint=tmp_path,
        progress=lambda n, _: other.append(n),
    )
    assert other[0] == 8


def test_samples_that_are_not_the_runs_are_noticed(run: Run) -> None:
    posterior = run.posterior
    volumes = posterior.volumes.copy()
    volumes[[3, 4]] = volumes[[4, 3]]
    other = pm.Posterior(
        grid=posterior.grid,
        counts=posterior.voxel_counts,
        sample_index=posterior.sample_index,
        volumes=volumes,
        problem=posterior.problem,
        parameters=posterior.parameters,
    )
    with pytest.raises(StateError, match="sample 3, drawn again, differs"):
        pm.measure(replace(run, votes=other), ["volume"])


def test_another_problem_is_noticed(run: Run) -> None:
    warm = replace(run, settings=run.settings.changed(temperature=3.0))
    with pytest.raises(StateError, match="another problem"):
        pm.measure(warm, ["volume"])


def test_intervals_say_what_they_rest_on(run: Run) -> None:
    found = pm.measure(run, ["volume", "diameter"])
    rows = {(row.structure, row.measure): row for row in measure_rows(run, found)}
    volumes = {row.name: row for row in volume_rows(run)}
    assert rows["core", "volume"].interval == volumes["core"].interval_ml
    low, high = np.quantile(found["core.diameter"], [0.025, 0.975])
    assert rows["core", "diameter"].interval == pytest.approx((low, high))
    assert "assumed correlation length" in rows["core", "volume"].rests_on
    white = replace(run, settings=run.settings.changed(noise_length=0.0))
    for row in measure_rows(white, found):
        assert np.isnan(row.interval).all()
        assert row.rests_on.startswith("nothing")


def test_masks_beside_vary_with_nothing(run: Run) -> None:
    vessel = np.zeros(SHAPE, dtype=np.bool_)
    vessel[20] = True
    beside = Surroundings({"vessel": vessel})
    found = pm.measure(run, ["distance:vessel", "overlap:vessel"], ["core"], beside=beside)
    patient = measured_patient(run, beside)
    first = LabelMap(patient, run.posterior.grid.gather(run.sampled_labels[0])).structure("core")
    columns = np.flatnonzero(run.sampled_labels[0].any(axis=(1, 2)))
    assert found["core.distance:vessel"][0] == find_measures(["distance:vessel"], patient)[0](first)
    assert columns.size


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return copy_run(tmp_path / "case", CORRELATED)


def test_the_command_writes_a_row_a_sample_and_a_summary(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    (tmp_path / "mine.py").write_text("def width(structure):\n    return structure.mask.shape[0]\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    output = tmp_path / "out"
    words = ["volume", "diameter", "mine:width", "mean:T1"]
    rule = "core.volume > 5 and core.width > 2"
    options = ["--measure", *words, "--rule", rule, "--structure", "core"]
    assert call("measure", str(folder), *options, "--output", str(output)) == 0
    with (output / "measures.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0]) == [
        *("sample", "core.volume_ml", "core.diameter_mm", "core.width", "core.mean:T1")
    ]
    assert [int(row["sample"]) for row in rows] == list(range(20))
    run = load_run(folder)
    ml = run.posterior.volumes[:, 2] / 1000
    assert [float(row["core.volume_ml"]) for row in rows] == pytest.approx(ml)
    summary = json.loads((output / "measures.json").read_text())
    held = [float(r["core.volume_ml"]) > 5 and float(r["core.width"]) > 2 for r in rows]
    assert summary["rules"][0]["probability"] == np.mean(held)
    assert summary["measures"][0]["unit"] == "ml"
    assert summary["samples"] == 20
    assert sorted(file.name for file in output.iterdir()) == ["measures.csv", "measures.json"]
    assert "core.volume > 5" in capsys.readouterr().out
    # Once more, in the same folder: the command knows its own files.
    assert call("measure", str(folder), *options, "--output", str(output), "--quiet") == 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--measure", "girth"], "--measure must be one of volume"),
        (["--structure", "liver"], "--structure must be among oedema, core"),
        (["--rule", "core.girth > 3"], "--rule must speak of what is measured"),
        (["--rule", "core"], "--rule must be STRUCTURE.MEASURE"),
        (["--beside", "vessel"], "--beside must be NAME=FILE"),
        (["--beside", "vessel=none.nii.gz"], "none.nii.gz"),
        (["--measure", "d95"], "needs a --dose"),
        (["--output", "{folder}"], "must not be the folder of a run"),
    ],
)
def test_bad_options_are_named(
    folder: Path, options: list[str], message: str, capsys: pytest.CaptureFixture
) -> None:
    words = [each.replace("{folder}", str(folder)) for each in options]
    assert call("measure", str(folder), *words, "--quiet") == 2
    assert message in capsys.readouterr().err


def test_a_mask_on_another_grid_is_refused(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    save(tmp_path / "vessel.nii.gz", np.ones((12, 14, 10), dtype=np.uint8), AFFINE)
    options = ["--beside", f"vessel={tmp_path / 'vessel.nii.gz'}", "--measure", "distance:vessel"]
    assert call("measure", str(folder), *options, "--output", str(tmp_path / "out")) == 2
    assert "vessel.nii.gz" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("value", [np.nan, np.inf, -5.0])
def test_what_is_neither_dose_nor_mask_is_refused(run: Run, tmp_path: Path, value: float) -> None:
    voxels = np.ones(SHAPE, dtype=np.float32)
    voxels[3:] = value
    affine = run.case.geometry.affine
    given = tmp_path / "given.nii.gz"
    save(given, voxels, affine)
    if np.isnan(value):  # no dose was computed there
        assert np.isnan(read_surroundings(run, {}, given).dose_gy[3:]).all()  # type: ignore[index]
        save(given, np.full_like(voxels, value), affine)
    with pytest.raises(InputError, match=r"must hold doses in Gy, finite and not below 0, got"):
        read_surroundings(run, {}, given)
    if np.isnan(value):  # outside, as in the mask of a run
        with pytest.raises(InputError, match="`beside` vessel must hold a voxel that is not 0"):
            read_surroundings(run, {"vessel": given})


def test_a_learned_law_moves_and_widens_the_dice(run: Run) -> None:
    found = pm.measure(run, ["dice"], ["core"])
    law = LearnedLaw("share", shift=-0.5, floor=0.4, trust=1.0, cases=12)
    laws = {"core": law}
    learned = replace(run, settings=run.settings.changed(learned_cases=12, dice_laws=laws))
    (before,), (after,) = measure_rows(run, found), measure_rows(learned, found)
    assert after.interval == law.widen(found["core.dice"])
    assert after.interval != before.interval
    assert "widened by what these showed" in after.rests_on
