"""Two runs compared: numbers, correlated noise, maps, the page, other patients."""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from helpers.small_case import call
from helpers.viewer_run import SETTINGS, copy_run, make_case
from perturb_mpm.assess import ChangeQuestion, compare_runs
from perturb_mpm.assess.change import CHANGE_COLUMNS, _small_warnings, answer_in_words
from perturb_mpm.assess.scan_pairs import read_pair
from perturb_mpm.biomarkers import ResponseLimits, sampled_change
from perturb_mpm.files import InputError
from perturb_mpm.run import Run, load_run, run_case

CORRELATED = SETTINGS.changed(noise_length=20.0, samples=20)
CORE = ("core",)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A run, and one of the same patient in whom the core gained much."""
    root = tmp_path_factory.mktemp("change")
    case = make_case()
    p = case.probabilities.copy()
    p[2] = np.minimum(4 * p[2], 0.97)
    grown = replace(case, probabilities=(p / p.sum(axis=0)).astype(np.float32))
    run_case(grown, CORRELATED.changed(seed=9), root / "june", title="June")
    return copy_run(root / "january", CORRELATED), root / "june"


@pytest.fixture(scope="module")
def runs(folders: tuple[Path, Path]) -> tuple[Run, Run]:
    return load_run(folders[0]), load_run(folders[1])


def test_volumes_are_compared_pair_by_pair(runs: tuple[Run, Run]) -> None:
    found = compare_runs(*runs, ChangeQuestion(structures=CORE))
    (row,) = found.rows
    assert row.before < row.after
    assert row.sampled is not None
    before, after = (run.posterior.volumes[:, 2] / 1000 for run in runs)
    plain = sampled_change(before, after)
    assert row.sampled.difference.median == pytest.approx(plain.difference.median, rel=0.05)
    assert row.sampled.grew > 0.7
    assert sum((row.sampled.classes or {}).values()) == pytest.approx(1)
    assert found.answer.startswith("Core ")
    assert "probability that it grew" in found.answer


def test_the_same_run_twice_shows_no_change_and_is_noticed(runs: tuple[Run, Run]) -> None:
    found = compare_runs(runs[0], runs[0], ChangeQuestion(structures=CORE))
    assert found.rows[0].sampled is not None
    assert found.rows[0].sampled.verdict == "unclear"
    assert any("both scans are" in words for words in found.warnings)
    assert "shows no sure change" in found.answer


def test_new_and_vanished_are_products_of_marginals(runs: tuple[Run, Run]) -> None:
    found = compare_runs(*runs, ChangeQuestion(structures=CORE))
    before, after = (np.where(run.case.mask, run.marginals[2], 0.0) for run in runs)
    np.testing.assert_allclose(found.new["core"], (1 - before) * after, atol=1e-6)
    np.testing.assert_allclose(found.vanished["core"], before * (1 - after), atol=1e-6)


def test_errors_that_both_scans_share_are_neither_new_nor_vanished(runs: tuple[Run, Run]) -> None:
    """The control: with independent errors the same scan twice seems to change everywhere."""
    sums = {}
    for correlation in (0.0, 0.5, 1.0):
        asked = ChangeQuestion(structures=CORE, correlation=correlation)
        found = compare_runs(runs[0], runs[0], asked)
        new, vanished = found.new["core"], found.vanished["core"]
        np.testing.assert_allclose(new, vanished, atol=1e-6)
        assert new.min() >= 0
        sums[correlation] = float(new.sum())
    assert sums[1.0] < 0.3 * sums[0.0]
    assert sums[1.0] < sums[0.5] < sums[0.0]


def test_shared_errors_leave_the_difference_of_expected_volumes(runs: tuple[Run, Run]) -> None:
    asked = ChangeQuestion(structures=CORE, correlation=0.5)
    found = compare_runs(*runs, asked)
    before, after = (np.where(run.case.mask, run.marginals[2], 0.0) for run in runs)
    np.testing.assert_allclose(
        found.new["core"] - found.vanished["core"], after - before, atol=1e-6
    )


def test_scans_that_were_made_otherwise_are_named(runs: tuple[Run, Run]) -> None:
    one, other = runs
    x, y, z = other.case.geometry.spacing
    affine = other.case.geometry.affine @ np.diag([1, 1, 4, 1])
    geometry = replace(other.case.geometry, affine=affine, spacing=(x, y, 4 * z))
    images = {"flair": next(iter(other.case.images.values()))}
    settings = other.settings.changed(learned_cases=7)
    other = replace(
        other, case=replace(other.case, geometry=geometry, images=images), settings=settings
    )
    warnings = compare_runs(one, other, ChangeQuestion(structures=CORE)).warnings
    for words in ("voxels have", "the images are", "the runs have settings"):
        assert any(each.startswith(words) for each in warnings), words
    assert not any("images are" in words for words in compare_runs(*runs).warnings)


def test_what_rano_does_not_measure_is_named(runs: tuple[Run, Run]) -> None:
    row = compare_runs(*runs, ChangeQuestion(("bidirectional",), CORE)).rows[0]
    (words,) = _small_warnings([replace(row, before=96.0)])
    assert "core has a product of diameters of 96 mm² before" in words
    others = ResponseLimits("the limits given", 0.2, -0.2)
    changed = [{"before": 100.0}, {"before": 0.0}, {"before": 96.0, "limits": others}]
    for each in changed:
        assert list(_small_warnings([replace(row, **each)])) == []  # type: ignore[arg-type]


def test_other_measures_draw_samples_again(runs: tuple[Run, Run]) -> None:
    found = compare_runs(*runs, ChangeQuestion(("bidirectional", "diameter"), CORE))
    assert [row.measure for row in found.rows] == ["bidirectional", "diameter"]
    assert found.rows[0].limits is not None
    assert "product" in found.rows[0].limits.name
    assert found.rows[1].limits is None


def test_shared_noise_narrows_the_change(runs: tuple[Run, Run]) -> None:
    """The same scan twice: what is shared cancels, what is not does not."""
    widths = []
    for correlation in (0.05, 0.95):
        asked = ChangeQuestion(structures=CORE, correlation=correlation)
        row = compare_runs(runs[0], runs[0], asked).rows[0]
        assert row.sampled is not None
        widths.append(row.sampled.smallest)
    assert widths[1] < 0.6 * widths[0]


def test_grids_that_differ_are_said_and_refuse_correlation(runs: tuple[Run, Run]) -> None:
    moved = replace(
        runs[1],
        case=replace(
            runs[1].case,
            geometry=replace(
                runs[1].case.geometry, affine=runs[1].case.geometry.affine + np.eye(4, k=3)
            ),
        ),
    )
    found = compare_runs(runs[0], moved, ChangeQuestion(structures=CORE))
    assert found.new == {}
    assert any("different grids" in words for words in found.warnings)
    with pytest.raises(InputError, match="needs both scans on one grid"):
        compare_runs(runs[0], moved, ChangeQuestion(structures=CORE, correlation=0.5))


def test_two_patients_are_noticed(runs: tuple[Run, Run]) -> None:
    cases = [
        replace(run.case, hashes={f"sub-{number:02d}_t1.nii.gz": "0"})
        for number, run in enumerate(runs)
    ]
    one, other = (replace(run, case=case) for run, case in zip(runs, cases))
    found = compare_runs(one, other, ChangeQuestion(structures=CORE))
    assert any("different patients" in words for words in found.warnings)


def test_white_noise_says_nothing(runs: tuple[Run, Run]) -> None:
    white = [replace(run, settings=run.settings.changed(noise_length=0.0)) for run in runs]
    (row,) = compare_runs(white[0], white[1], ChangeQuestion(structures=CORE)).rows
    assert row.sampled is None
    assert "cannot be said" in answer_in_words(row)


def test_the_command_writes_table_numbers_page_and_maps(
    folders: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    output = tmp_path / "out"
    arguments = [*map(str, folders), "--structure", "core", "oedema", "--output", str(output)]
    assert call("change", *arguments) == 0
    names = {"change.csv", "change.json", "report.html", "new.nii.gz", "vanished.nii.gz"}
    assert {file.name for file in output.iterdir()} == names
    with (output / "change.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert tuple(rows[0]) == CHANGE_COLUMNS
    assert [row["structure"] for row in rows] == ["core", "oedema"]
    content = json.loads((output / "change.json").read_text())
    page = (output / "report.html").read_text()
    assert content["answer"].split(". ")[0] in page
    # Only what is compared is outlined.
    assert "Outline of core." in page
    key = page.split('<ul class="lines">')[1].split("</ul>")[0]
    assert key.count("<li>") == 1
    assert "core</li>" in key
    assert content["answer"] in capsys.readouterr().out.replace("\n", " ")
    assert content["expected_new_ml"]["core"] > content["expected_vanished_ml"]["core"]
    assert float(rows[0]["grew_probability"]) == content["changes"][0]["grew_probability"]
    assert call("change", *arguments, "--quiet") == 0  # it knows its own files


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--structure", "liver"], "--structure must be among those of both runs"),
        (["--correlation", "2"], "--correlation must be between 0 and 1"),
        (["--progression", "0.3"], "--progression and --response must be given together"),
        (["--measure", "girth"], "--measure must be one of volume"),
    ],
)
def test_bad_options_are_named(
    folders: tuple[Path, Path],
    options: list[str],
    message: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture,
) -> None:
    output = ["--output", str(tmp_path / "out"), "--quiet"]
    assert call("change", *map(str, folders), *options, *output) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_a_resection_gets_the_page_of_its_change(
    folders: tuple[Path, Path], tmp_path: Path
) -> None:
    output = tmp_path / "out"
    before, after = map(str, folders)
    assert call(
        *("biomarkers", "--before", before, "--after", after, "--region", "7"),
        *("--output", str(output), "--quiet"),
    ) == 0  # fmt: skip
    assert "did it change?" in (output / "report.html").read_text()
    with (output / "biomarkers.csv").open() as file:
        rows = list(csv.DictReader(file))
    (row,) = compare_runs(*map(load_run, folders), ChangeQuestion(structures=CORE)).rows
    assert float(rows[0]["eor_frac"]) == pytest.approx((row.before - row.after) / row.before)


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (("post", "pre"), ("pre", "post")),
        (("POSTop", "preop"), ("preop", "POSTop")),
        (("10", "2"), ("2", "10")),
        (("M12", "M6"), ("M6", "M12")),
        (("20230105", "20221231"), ("20221231", "20230105")),
        (("31012022", "01022022"), None),  # days first: another order than the numbers'
        (("baseline", "followup"), None),
    ],
)
def test_the_earlier_of_two_sessions_is_the_first(
    names: tuple[str, str], expected: tuple[str, str] | None, tmp_path: Path
) -> None:
    records = [{"case": f"sub-1_ses-{n}", "truth": None, "status": "done"} for n in names]
    (tmp_path / "cohort.json").write_text(json.dumps({"records": records}))
    if expected is None:
        with pytest.raises(InputError, match="`sessions` must be given, the earlier first"):
            read_pair(tmp_path, "1")
    else:
        pair = read_pair(tmp_path, "1")
        assert (pair.before.name, pair.after.name) == tuple(f"sub-1_ses-{n}" for n in expected)
    told = read_pair(tmp_path, "1", names)
    assert (told.before.name, told.after.name) == tuple(f"sub-1_ses-{n}" for n in names)
