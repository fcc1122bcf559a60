"""The command that trains: what it writes, what it prints, what it refuses."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from helpers.tiny_cohort import write_cohort
from perturb_mpm.cli import main
from perturb_mpm.segmenter import SegmenterModel


@pytest.fixture(scope="module")
def cohort(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_cohort(tmp_path_factory.mktemp("cohort"))


def run(*arguments: object) -> int:
    with pytest.raises(SystemExit) as done:
        main([str(each) for each in arguments])
    return int(done.value.code or 0)


def options(cohort: Path, output: Path) -> list[object]:
    where = ("--data", cohort, "--layout", "brats", "--labels", "brats2021", "--output", output)
    return [
        "train",
        *where,
        "--folds",
        3,
        "--trees",
        6,
        "--seed",
        0,
        "--sequences",
        "t1ce",
        "flair",
    ]


def test_a_model_and_its_report_are_written(
    cohort: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "model.npz"
    assert run(*options(cohort, output), "--json") == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed == json.loads((tmp_path / "model.report.json").read_text())
    assert printed["dice"]["P3"]["enhancing tumour"] is None
    assert set(printed["calibration_error"]) == {"before", "after"}
    model = SegmenterModel.load(output)
    assert model.sequences == ("t1c", "flair")
    assert model.labels.values == (0, 1, 2, 4)


def test_trees_are_grown_as_asked(cohort: Path, tmp_path: Path) -> None:
    output = tmp_path / "model.npz"
    assert run(*options(cohort, output), "--quiet", "--threads", 1) == 0
    ensemble = SegmenterModel.load(output).ensemble
    assert [forest.count for forest in ensemble.forests] == [6 * 4] * 3
    assert run(*options(cohort, output), "--quiet", "--forest") == 0
    forests = SegmenterModel.load(output).ensemble.forests
    assert [(forest.count, forest.value.shape[1]) for forest in forests] == [(6, 4)] * 3


def test_labels_may_be_written_one_by_one(cohort: Path, tmp_path: Path) -> None:
    output = tmp_path / "model.npz"
    given = [str(each) for each in options(cohort, output)]
    place = given.index("brats2021")
    given[place : place + 1] = ["0:background", "1:core", "2:oedema", "4:enhancing [/b]"]
    assert run(*given) == 0  # names are text, never markup
    assert SegmenterModel.load(output).labels.names[3] == "enhancing [/b]"


def test_a_table_is_printed(
    cohort: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(*options(cohort, tmp_path / "model.npz")) == 0
    shown = capsys.readouterr()
    printed = shown.out
    assert "growing trees: 3 of 3" in shown.err  # progress in a log too
    assert "patients that the trees never saw" in printed
    assert "power of the prior" in printed
    assert "features used most" in printed


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (("--folds", 2), "--folds must be between 3 and 1000, got 2"),
        (("--trees", 0), "--trees must be between 1 and 10000, got 0"),
        (("--trees", 10**9), "--trees must be between 1 and 10000, got 1000000000"),
        (("--seed", -1), "--seed must be between 0 and"),
        (("--layout", "tree"), "--layout"),
        (("--labels", "brats"), "--labels must be one of brats2021"),
        (("--labels", "brats2023"), "must hold the label values 0, 1, 2, 3 alone, got 4"),
        (("--sequences", "t1", "pd"), "pd is missing"),
        (("--output", "nowhere/model.npz"), "--output must be a file in a folder that is there"),
        (("--data", "nowhere"), "--data: not found: nowhere"),
    ],
)
def test_bad_options_are_refused_in_one_line(
    cohort: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    changes: tuple[object, ...],
    words: str,
) -> None:
    given = options(cohort, tmp_path / "model.npz")
    start = given.index(changes[0])
    stop = next((i for i in range(start + 1, len(given)) if str(given[i])[:2] == "--"), len(given))
    assert run(*given[:start], *changes, *given[stop:], "--quiet") == 2
    line = capsys.readouterr().err
    assert words in line
    assert line.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_two_cases_are_too_few(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from helpers.tiny_cohort import write_patient

    for number in range(2):
        write_patient(tmp_path / "cases", f"P{number}", number)
    assert run(*options(tmp_path / "cases", tmp_path / "model.npz")) == 2
    assert "at least 3 cases" in capsys.readouterr().err


WITHOUT = """
import sys

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("sklearn", "joblib"):
            raise ImportError(name)

sys.meta_path.insert(0, Missing())
from perturb_mpm.cli import main
main(sys.argv[1:])
"""


def test_a_model_needs_no_scikit_learn_and_training_names_the_extra(
    cohort: Path, tmp_path: Path
) -> None:
    model = tmp_path / "model.npz"
    assert run(*options(cohort, model), "--quiet", "--threads", 1) == 0

    def start(*arguments: object) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-c", WITHOUT, *map(str, arguments)]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    images = [cohort / "P0" / f"P0_{name}.nii.gz" for name in ("flair", "t1", "t1ce", "t2")]
    few = ("--samples", 2, "--iterations", 1, "--quiet")
    done = start("run", "--image", *images, "--model", model, *few, "--output", tmp_path / "out")
    assert done.returncode == 0, done.stderr
    refused = start(*options(cohort, tmp_path / "other.npz"))
    assert refused.returncode == 2
    assert "training needs the package sklearn: pip install 'perturb-mpm[train]'" in refused.stderr
