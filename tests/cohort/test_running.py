"""Which cases a cohort takes: chosen by name, with names that folders can have."""

from __future__ import annotations

from pathlib import Path

import pytest

from perturb_mpm.cohort import find_cohort
from perturb_mpm.files import CaseFolders, InputError


def test_match_chooses_by_name_and_pattern(tmp_path: Path) -> None:
    for name in ("A1", "A2", "B1", "C1"):
        (tmp_path / f"{name}_0000.nii.gz").touch()
    chosen = find_cohort(CaseFolders(tmp_path), match=("A*", "C1"))
    assert [case.name for case in chosen] == ["A1", "A2", "C1"]
    with pytest.raises(InputError, match="`match` must choose at least one of 4 cases, got D"):
        find_cohort(CaseFolders(tmp_path), match=("D",))


@pytest.mark.parametrize("name", ["../up", "a/b", ".hidden", "cohort", "Cohort.x", "a\\b"])
def test_a_name_that_is_no_folder_of_its_own_is_refused(name: str, tmp_path: Path) -> None:
    table = tmp_path / "cases.csv"
    table.write_text(f"case,images\n{name},a.nii\n")
    with pytest.raises(InputError, match="`images` must name cases so that a folder can have"):
        find_cohort(CaseFolders(table))


@pytest.mark.parametrize("names", ["Aa", ("M\u00fcller", "Mu\u0308ller")])
def test_names_that_some_file_systems_take_for_one_are_refused(
    names: tuple[str, str], tmp_path: Path
) -> None:
    table = tmp_path / "cases.csv"
    table.write_text(f"case,images\n{names[0]},a.nii\n{names[1]},b.nii\n", encoding="utf-8")
    with pytest.raises(InputError, match="must hold a case once"):
        find_cohort(CaseFolders(table))
