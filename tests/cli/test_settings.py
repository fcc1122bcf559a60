"""Settings that come with the program: listed, taken by name, refused where they do not fit."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from helpers.small_case import call
from helpers.viewer_run import make_case
from perturb_mpm.files import Case, LabelScheme, geometry_from_affine
from perturb_mpm.run import (
    SettingsError,
    decide_settings,
    read_settings,
    shipped_settings,
)

NAMES = tuple(shipped_settings())


def fitting_case(name: str) -> Case:
    """Return a case with the labels, sequences and voxels that settings were learned for."""
    basis, case = read_settings(name).basis, make_case()
    values, names = zip(*(each.split(":", 1) for each in basis.learned_labels))
    size = sum(basis.learned_voxels) / 2
    return replace(
        case,
        images=dict.fromkeys(basis.learned_sequences, case.images["T1"]),
        labels=LabelScheme(tuple(map(int, values)), names),
        geometry=geometry_from_affine(case.geometry.shape, _scaled(size)),
        probabilities=case.probabilities[[0, 1, 2, *([1] * (len(names) - 3))]],
    )


def _scaled(size: float) -> list[list[float]]:
    return [[size, 0, 0, 0], [0, size, 0, 0], [0, 0, size, 0], [0, 0, 0, 1]]


def test_the_list_says_what_they_rest_on(capsys: pytest.CaptureFixture[str]) -> None:
    assert call("settings", "list") == 0
    words = capsys.readouterr().out
    assert all(name in words for name in ("hippocampus-unet", "Decathlon", "1:anterior", "0.9 to"))
    assert call("settings", "list", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert tuple(found) == NAMES
    assert found["hippocampus-unet"]["learned_cases"] == 80
    for licence, command in (("CC BY-SA 4.0", "perturb-mpm tune"), ("CC BY 4.0", "--folds 11")):
        assert licence in words
        assert command in words
    assert call("settings", "show", NAMES[0]) == 0
    assert capsys.readouterr().out == shipped_settings()[NAMES[0]].read_text() + "\n"
    assert call("settings", "show", "nothing") == 2
    assert f"NAME must be one of {', '.join(NAMES)}" in capsys.readouterr().err


@pytest.mark.parametrize("name", NAMES)
def test_they_fit_what_they_were_learned_for_and_nothing_else(name: str) -> None:
    settings, case = read_settings(name), fitting_case(name)
    assert set(settings.volume_laws) == set(settings.dice_laws) != set()
    assert decide_settings(settings, case).intervals == "learned"
    renamed = LabelScheme(case.labels.values, ("background", "x", *case.labels.names[2:]))
    with pytest.raises(SettingsError, match="`settings` were learned for the labels 0:background"):
        decide_settings(settings, replace(case, labels=renamed))
    with pytest.raises(SettingsError, match=r"for the sequences .* got adc: if these are the same"):
        decide_settings(settings, replace(case, images={"adc": case.images["t1"]}))
    coarse = replace(case, geometry=geometry_from_affine(case.geometry.shape, _scaled(5.0)))
    with pytest.raises(SettingsError, match=r"for voxels of .* mm, got 5 × 5 × 5 mm"):
        decide_settings(settings, coarse)


def test_a_file_comes_before_a_name_and_what_is_missing_says_what_there_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert read_settings(NAMES[0]).basis.learned_cases > 0
    Path(NAMES[0]).write_text("unary.temperature = 3.0")
    assert read_settings(NAMES[0]).unary.temperature == 3.0
    with pytest.raises(SettingsError, match=f"come with the program are {', '.join(NAMES)}"):
        read_settings("nowhere.toml")
