"""What a run finds in its samples: lesions, extremes, priority, measures, in files and the page."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import nibabel as nib
import numpy as np
import pytest

import perturb_mpm as pm
from helpers.small_case import call, save
from helpers.viewer_run import SETTINGS, copy_run, make_case
from perturb_mpm.checks import ExpectedError
from perturb_mpm.measures import Extremes
from perturb_mpm.run import FINDING_FILES, Run, SettingsError, load_run

ASKED = SETTINGS.changed(
    noise_length=20.0,
    samples=20,
    measure=("volume", "diameter"),
    rule=("core.volume > 8",),
    lesions="core",
    priority="core.volume",
)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("findings") / "case"
    return pm.run_case(make_case(), ASKED, folder, title="Patient", also=("extremes",))


def test_lesions_are_those_of_the_runs_samples(run: Run) -> None:
    with (run.folder / "lesions.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    numbers = np.asarray(nib.load(run.folder / "lesions.nii.gz").dataobj)
    shares = np.asarray(nib.load(run.folder / "lesion_probability.nii.gz").dataobj)
    assert sorted(np.unique(numbers)[1:]) == [int(row["lesion"]) for row in rows]
    for row in rows:
        here = shares[numbers == int(row["lesion"])]
        np.testing.assert_allclose(here, float(row["probability"]), rtol=1e-6)
        voxel = [float(row[f"voxel_{axis}"]) for axis in "xyz"]
        mm = run.case.geometry.affine @ [*voxel, 1.0]
        found = [float(row[f"{axis}_mm"]) for axis in "xyz"]
        np.testing.assert_allclose(found, mm[:3], atol=0.05)
    told = run.summary["lesions"]
    assert sum(told["number_probability"].values()) == pytest.approx(1)
    assert len(told["lesions"]) == len(rows)
    has_core = run.posterior.volumes[:, 2] > 0
    assert max(float(row["probability"]) for row in rows) <= has_core.mean()


def test_extremes_are_the_runs_own_samples(run: Run) -> None:
    maps = np.asarray(nib.load(run.folder / "extremes.nii.gz").dataobj)
    assert maps.shape == (*run.case.mask.shape, 3)
    together = run.posterior.volumes[:, 1:].sum(axis=1) / 1000
    told = {row["level"]: row for row in run.summary["extremes"]}
    for index, level in enumerate((0.025, 0.5, 0.975)):
        number = Extremes.choose(together, [level])[0]
        assert told[level]["sample"] == number
        assert told[level]["volume_ml"] == together[number]
        if number < len(run.sampled_labels):
            kept = run.case.labels.to_values(run.sampled_labels[number], run.case.mask)
            np.testing.assert_array_equal(maps[..., index], kept)
        voxels = np.count_nonzero(maps[..., index])
        assert voxels * 0.064 == pytest.approx(together[number])


def test_priority_is_listed_for_a_viewer(run: Run) -> None:
    content = json.loads((run.folder / "priority.json").read_text())
    assert content["structure"] == "core"
    image = np.asarray(nib.load(run.folder / "priority.nii.gz").dataobj)
    first = content["patches"][0]
    assert image[tuple(first["voxel"])] == pytest.approx(first["explained_frac"], rel=1e-5)
    assert image.max() <= 1
    assert run.summary["priority"]["patches"] == content["patches"]


def test_the_page_and_the_summary_tell_all(run: Run) -> None:
    page = run.files["report"].read_text()
    for name in ("measures", "lesions", "extremes", "priority"):
        assert f'<section id="{name}">' in page
    assert run.summary["rules"][0]["rule"] == "core.volume > 8"
    assert (run.folder / "measures.csv").exists()
    listed = json.loads((run.folder / "state" / "files.json").read_text())["files"]
    assert {"lesions.csv", "priority.json", "extremes.nii.gz", "measures.csv"} <= set(listed)


def test_nothing_asked_for_leaves_nothing(tmp_path: Path) -> None:
    plain = load_run(copy_run(tmp_path / "case"))
    assert "lesions" not in plain.summary
    assert not (plain.folder / "lesions.csv").exists()


def test_the_command_finds_what_the_run_found(run: Run, tmp_path: Path) -> None:
    words = ["--lesions", "core", "--priority", "core", "--extremes", "core", "--quiet"]
    assert call("measure", str(run.folder), *words, "--output", str(tmp_path / "out")) == 0
    for name in ("lesions.csv", "lesions.nii.gz", "priority.json"):
        assert (tmp_path / "out" / name).read_bytes() == (run.folder / name).read_bytes()
    assert (tmp_path / "out" / "extremes.nii.gz").exists()
    assert not (tmp_path / "out" / "measures.csv").exists()


def test_priority_knows_structures_that_do_not_vary(
    run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    vessel = np.zeros(run.case.mask.shape, np.uint8)
    vessel[:2] = 1
    save(tmp_path / "vessel.nii.gz", vessel, run.case.geometry.affine)
    words = [
        "--beside",
        f"vessel={tmp_path / 'vessel.nii.gz'}",
        "--priority",
        "core.contact:vessel",
    ]
    out = tmp_path / "out"
    both = [*words, "--measure", "contact:vessel", "--lesions", "core", "--json"]
    assert call("measure", str(run.folder), *both, "--output", str(out)) == 0
    printed = json.loads(capsys.readouterr().out)  # one document, whatever was asked for
    assert printed["priority"]["measure"] == "contact:vessel"
    assert printed["measures"][0]["measure"] == "contact:vessel"
    assert printed["lesions"]["structure"] == "core"
    assert (out / "priority.json").exists()


def test_evaluate_scores_lesions_against_the_truth(run: Run, tmp_path: Path) -> None:
    """A truth that is a sample of the run: it is judged as that sample is."""
    number = int(np.argmax(run.posterior.volumes[:16, 2]))
    truth = run.case.labels.to_values(run.sampled_labels[number], run.case.mask)
    save(tmp_path / "truth.nii.gz", truth, run.case.geometry.affine)
    out = tmp_path / "evaluation"
    words = ["--prediction", str(run.folder), "--truth", str(tmp_path / "truth.nii.gz")]
    assert call("evaluate", *words, "--output", str(out), "--quiet") == 0
    scores = json.loads((out / "lesions.json").read_text())
    listed = run.summary["lesions"]["lesions"]
    assert scores["candidates"] == len(listed)
    assert sum(each["candidates"] for each in scores["reliability"]) == len(listed)
    assert scores["true_lesions"] >= 1
    assert 0 < scores["average_precision"] <= 1


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"lesions": "liver"}, "`lesions` must be one of .*, got liver"),
        ({"priority": "liver.volume"}, "`priority` must be STRUCTURE.MEASURE with one of"),
        ({"measure": ("size",)}, "`measure` must be one of"),
        ({"rule": ("core.area > 3",)}, "`rule` must speak of what `measure` names"),
        ({"noise_length": 0.0}, "`lesions` needs noise that is correlated"),
    ],
)
def test_what_cannot_be_found_is_refused_at_once(
    tmp_path: Path, values: dict[str, object], words: str
) -> None:
    with pytest.raises(SettingsError, match=words):
        pm.run_case(make_case(), ASKED.changed(**values), tmp_path / "case", title="Patient")
    assert not (tmp_path / "case").exists()


def test_a_length_that_the_case_decides_refuses_nothing(tmp_path: Path) -> None:
    settings = pm.RunSettings().changed(samples=4, lesions="core", priority="core.volume")
    run = pm.run_case(make_case(), settings, tmp_path, title="Patient", also=("extremes",))
    assert run.settings.intervals == "assumed"
    assert (tmp_path / "lesions.csv").exists()


def test_a_measure_that_raises_is_refused_before_any_sample(tmp_path: Path) -> None:
    settings = ASKED.changed(measure=("statistics:mean",), rule=())
    with pytest.raises(ExpectedError, match=r"`measure` mean must return a number for .*TypeError"):
        pm.run_case(make_case(), settings, tmp_path / "case", title="Patient")
    assert not (tmp_path / "case").exists()


def test_a_folder_of_measures_is_of_one_run_and_one_question(run: Run, tmp_path: Path) -> None:
    out = tmp_path / "out"
    asked = ["--lesions", "core", "--priority", "core", "--extremes", "core", "--quiet"]
    measured = ["--measure", "volume", "--output", str(out)]
    assert call("measure", str(run.folder), *asked, *measured) == 0
    every = {name for names in FINDING_FILES.values() for name in names}
    assert {path.name for path in out.iterdir()} == every
    other = copy_run(tmp_path / "other", SETTINGS.changed(noise_length=20.0, samples=20))
    assert call("measure", str(other), *measured, "--quiet") == 0
    assert {path.name for path in out.iterdir()} == {"measures.csv", "measures.json"}


@pytest.mark.parametrize("name", [n for names in FINDING_FILES.values() for n in names])
def test_files_of_these_names_that_are_somebody_elses_stay(
    name: str, run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    mine = tmp_path / name
    if name.endswith(".nii.gz"):
        save(mine, np.ones((2, 2, 2), dtype=np.uint8))
    else:
        mine.write_text("{}" if name.endswith(".json") else "lesion,size\n1,2\n")
    before = mine.read_bytes()
    options = ["--measure", "volume", "--output", str(tmp_path), "--quiet"]
    assert call("measure", str(run.folder), *options) == 2
    assert f"{name}, which this command did not write" in capsys.readouterr().err
    assert mine.read_bytes() == before


def test_lesions_and_measures_are_one_answer_in_json(
    run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--lesions", "core", "--measure", "volume", "--output", str(tmp_path / "out")]
    assert call("measure", str(run.folder), *options, "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert {"lesions", "measures", "samples"} <= set(found)
