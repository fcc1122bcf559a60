from __future__ import annotations

from pathlib import Path

import pytest

from perturb_mpm.cohort import find_cohort
from perturb_mpm.files import CaseFolders, InputError


def touch(*paths: Path) -> None:
    for path in paths:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()


def test_nnunets_layout_gives_channels_in_order_and_the_archive_before_the_label_map(
    tmp_path: Path,
) -> None:
    images, maps = tmp_path / "imagesTs", tmp_path / "predicted"
    touch(*(images / f"B_2_000{k}.nii.gz" for k in (1, 0)), images / "A_0000.nii.gz")
    touch(maps / "B_2.npz", maps / "B_2.nii.gz", maps / "A.nii.gz", maps / "dataset.json")
    first, second = find_cohort(CaseFolders(images, (maps,)))
    assert (first.name, second.name) == ("A", "B_2")
    assert first.probabilities == (maps / "A.nii.gz",)
    assert second.images == (images / "B_2_0000.nii.gz", images / "B_2_0001.nii.gz")
    assert second.probabilities == (maps / "B_2.npz",)
    assert first.missing is None
    assert second.missing is None


def test_several_folders_are_an_ensemble_and_a_member_that_lacks_is_told(tmp_path: Path) -> None:
    images, folds = tmp_path / "imagesTs", (tmp_path / "fold0", tmp_path / "fold1")
    touch(images / "A_0000.nii.gz", images / "B_0000.nii.gz")
    touch(folds[0] / "A.npz", folds[1] / "A.npz", folds[0] / "B.npz")
    whole, part = find_cohort(CaseFolders(images, folds))
    assert whole.probabilities == (folds[0] / "A.npz", folds[1] / "A.npz")
    assert whole.missing is None
    assert part.missing is not None
    assert "B.npz" in part.missing


def test_brats_layout_takes_the_label_map_as_the_truth(tmp_path: Path) -> None:
    data, maps = tmp_path / "data", tmp_path / "p"
    for name in ("P1", "P2"):
        touch(*(data / name / f"{name}_{end}.nii.gz" for end in ("t1", "flair", "seg")))
    touch(maps / "P1.nii.gz", maps / "P2.nii.gz")
    case = find_cohort(CaseFolders(data, (maps,)))[0]
    assert case.image_names == ("flair", "t1")
    assert case.truth == data / "P1" / "P1_seg.nii.gz"
    assert len(case.images) == 2


def test_bids_takes_probabilities_of_the_derivatives(tmp_path: Path) -> None:
    anat = "sub-01/ses-pre/anat"
    touch(tmp_path / anat / "sub-01_ses-pre_T1w.nii.gz")
    derived = tmp_path / "derivatives" / "net" / anat
    touch(derived / "sub-01_ses-pre_probseg.nii.gz", derived / "sub-01_ses-pre_probseg.json")
    touch(derived / "sub-01_ses-pre_desc-brain_mask.nii.gz")
    (case,) = find_cohort(CaseFolders(tmp_path))
    assert case.name == "sub-01_ses-pre"
    assert case.probabilities == (derived / "sub-01_ses-pre_probseg.nii.gz",)
    assert case.mask == derived / "sub-01_ses-pre_desc-brain_mask.nii.gz"


@pytest.mark.parametrize(("ending", "comma"), [("csv", ","), ("tsv", "\t")])
def test_a_table_names_every_file_relative_to_itself(
    ending: str, comma: str, tmp_path: Path
) -> None:
    table = tmp_path / f"cases.{ending}"
    lines = [
        ("case", "images", "probabilities", "mask", "subject", "session"),
        ("A", "a1.nii.gz; a2.nii.gz", "a.npz", "m.nii.gz", "", ""),
        ("", "b1.nii.gz", "b.npz", "", "01", "pre"),
    ]
    table.write_text("\n".join(comma.join(line) for line in lines))
    first, second = find_cohort(CaseFolders(table))
    assert first.images == (tmp_path / "a1.nii.gz", tmp_path / "a2.nii.gz")
    assert first.mask == tmp_path / "m.nii.gz"
    assert second.name == "sub-01_ses-pre"


def test_columns_of_a_table_name_the_images(tmp_path: Path) -> None:
    table = tmp_path / "cases.csv"
    table.write_text("case,image_t1c,image_flair,probabilities\nA,1.nii,2.nii,p.nii\n")
    (case,) = find_cohort(CaseFolders(table))
    assert case.image_names == ("t1c", "flair")


def test_match_chooses_by_name_and_pattern(tmp_path: Path) -> None:
    touch(*(tmp_path / f"{name}_0000.nii.gz" for name in ("A1", "A2", "B1", "C1")))
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


def test_names_that_differ_in_case_alone_are_refused(tmp_path: Path) -> None:
    table = tmp_path / "cases.csv"
    table.write_text("case,images\nA,a.nii\na,b.nii\n")
    with pytest.raises(InputError, match="must hold a case once"):
        find_cohort(CaseFolders(table))


def test_a_folder_of_nothing_known_says_what_is_looked_for(tmp_path: Path) -> None:
    touch(tmp_path / "notes.txt")
    with pytest.raises(InputError, match=r"CASE_0000\.nii\.gz \(nnU-Net\)"):
        find_cohort(CaseFolders(tmp_path))
    with pytest.raises(InputError, match="`layout` must be one of nnunet, brats, bids, table"):
        find_cohort(CaseFolders(tmp_path), "other")
    with pytest.raises(InputError, match="`probabilities` must be a folder"):
        find_cohort(CaseFolders(tmp_path, (tmp_path / "not-there",)))
