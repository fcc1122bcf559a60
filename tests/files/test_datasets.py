"""Cases found in folders and tables: to run, or to learn from."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from perturb_mpm.files import (
    CaseFiles,
    CaseFolders,
    InputError,
    common_sequences,
    find_cases,
    find_labelled_cases,
    find_predicted_images,
    select_sequences,
    standard_name,
)


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
    first, second = find_cases(CaseFolders(images, (maps,)))
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
    whole, part = find_cases(CaseFolders(images, folds))
    assert whole.probabilities == (folds[0] / "A.npz", folds[1] / "A.npz")
    assert whole.missing is None
    assert part.missing is not None
    assert "B.npz" in part.missing


def test_folds_are_an_ensemble_and_those_of_a_validation_are_not(tmp_path: Path) -> None:
    images, maps, model = tmp_path / "imagesTs", tmp_path / "predicted", tmp_path / "model"
    touch(images / "A_0000.nii.gz", images / "B_0000.nii.gz", maps / "dataset.json")
    touch(*(maps / f"fold_{k}" / "A.npz" for k in range(3)), maps / "fold_0" / "B.npz")
    first, second = find_cases(CaseFolders(images, (maps,)))
    assert first.probabilities == tuple(maps / f"fold_{k}" / "A.npz" for k in range(3))
    assert "must hold B.npz" in (second.missing or "")  # two members lack it
    touch(model / "fold_0" / "validation" / "A.npz", model / "fold_1" / "validation" / "B.npz")
    first, second = find_cases(CaseFolders(images, (model,)))
    assert first.probabilities == (model / "fold_0" / "validation" / "A.npz",)
    assert second.probabilities == (model / "fold_1" / "validation" / "B.npz",)
    assert (first.missing, second.missing) == (None, None)
    touch(model / "fold_1" / "validation" / "A.npz")
    assert find_cases(CaseFolders(images, (model,)))[0].missing is not None
    with pytest.raises(InputError, match="`probabilities` must be one folder where it holds"):
        find_cases(CaseFolders(images, (maps, model)))


def test_a_flat_folder_has_one_image_a_case(tmp_path: Path) -> None:
    images, maps = tmp_path / "images", tmp_path / "predicted"
    touch(images / "b.2.nii.gz", images / "a.nii", images / "notes.txt", maps / "b.2.npz")
    first, second = find_cases(CaseFolders(images, (maps,)))
    assert (first.name, first.images) == ("a", (images / "a.nii",))
    assert "must hold a.npz or a.nii.gz" in (first.missing or "")
    assert (second.name, second.probabilities) == ("b.2", (maps / "b.2.npz",))
    with pytest.raises(InputError, match="`layout` must be one of nnunet, brats, bids, table"):
        find_labelled_cases(images, "flat")


def test_pictures_are_cases_where_there_are_no_volumes(tmp_path: Path) -> None:
    images, maps = tmp_path / "images", tmp_path / "predicted"
    touch(images / "a.png", images / "b.tif", images / "notes.txt", maps / "a.npz", maps / "b.png")
    first, second = find_cases(CaseFolders(images, (maps,)))
    assert (first.name, first.probabilities) == ("a", (maps / "a.npz",))
    assert (second.images, second.probabilities) == ((images / "b.tif",), (maps / "b.png",))
    touch(images / "a.nii.gz")  # then the picture is no case of its own
    (only,) = find_cases(CaseFolders(images, (maps,)))
    assert only.images == (images / "a.nii.gz",)
    channels = tmp_path / "imagesTs"
    touch(channels / "P_0000.png", channels / "P_0001.png", maps / "P.npz")
    (case,) = find_cases(CaseFolders(channels, (maps,)))
    assert case.images == (channels / "P_0000.png", channels / "P_0001.png")


def test_nnunet_says_where_its_images_were(tmp_path: Path) -> None:
    images, maps = tmp_path / "imagesTs", tmp_path / "predicted"
    note = maps / "fold_0" / "predict_from_raw_data_args.json"
    touch(images / "A_0000.nii.gz", maps / "fold_0" / "A.npz")
    with pytest.raises(InputError, match="`images` must be given where no predict_from_raw"):
        find_predicted_images([maps])
    note.write_text(json.dumps({"list_of_lists_or_source_folder": str(images)}))
    assert find_predicted_images([maps]) == images
    for elsewhere in (str(tmp_path / "nowhere"), [["A_0000.nii.gz"]]):
        note.write_text(json.dumps({"list_of_lists_or_source_folder": elsewhere}))
        with pytest.raises(InputError, match="`images` must be given: the folder that"):
            find_predicted_images([maps])


def test_brats_layout_takes_the_label_map_as_the_truth(tmp_path: Path) -> None:
    data, maps = tmp_path / "data", tmp_path / "p"
    for name in ("P1", "P2"):
        touch(*(data / name / f"{name}_{end}.nii.gz" for end in ("t1", "flair", "seg")))
    touch(maps / "P1.nii.gz", maps / "P2.nii.gz")
    case = find_cases(CaseFolders(data, (maps,)))[0]
    assert case.image_names == ("flair", "t1")
    assert case.truth == data / "P1" / "P1_seg.nii.gz"
    assert len(case.images) == 2


def test_bids_takes_probabilities_of_the_derivatives(tmp_path: Path) -> None:
    anat = "sub-01/ses-pre/anat"
    touch(tmp_path / anat / "sub-01_ses-pre_T1w.nii.gz")
    derived = tmp_path / "derivatives" / "net" / anat
    touch(derived / "sub-01_ses-pre_probseg.nii.gz", derived / "sub-01_ses-pre_probseg.json")
    touch(derived / "sub-01_ses-pre_desc-brain_mask.nii.gz")
    (case,) = find_cases(CaseFolders(tmp_path))
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
    first, second = find_cases(CaseFolders(table))
    assert first.images == (tmp_path / "a1.nii.gz", tmp_path / "a2.nii.gz")
    assert first.mask == tmp_path / "m.nii.gz"
    assert second.name == "sub-01_ses-pre"


def test_columns_of_a_table_name_the_images(tmp_path: Path) -> None:
    table = tmp_path / "cases.csv"
    table.write_text("case,image_t1c,image_flair,probabilities\nA,1.nii,2.nii,p.nii\n")
    (case,) = find_cases(CaseFolders(table))
    assert case.image_names == ("t1c", "flair")


def test_a_folder_of_nothing_known_says_what_is_looked_for(tmp_path: Path) -> None:
    touch(tmp_path / "notes.txt")
    with pytest.raises(InputError, match=r"CASE_0000\.nii\.gz \(nnU-Net\)"):
        find_cases(CaseFolders(tmp_path))
    with pytest.raises(InputError, match="`layout` must be one of nnunet, brats, bids, table"):
        find_cases(CaseFolders(tmp_path), "other")
    with pytest.raises(InputError, match="`probabilities` must be a folder"):
        find_cases(CaseFolders(tmp_path, (tmp_path / "not-there",)))


def test_contrast_enhanced_t1_of_bids_is_t1c_and_equal_suffixes_are_told_apart(
    tmp_path: Path,
) -> None:
    anat = tmp_path / "sub-01" / "anat"
    touch(anat / "sub-01_T1w.nii.gz", anat / "sub-01_ce-gad_T1w.nii.gz")
    touch(tmp_path / "derivatives" / "expert" / "sub-01" / "anat" / "sub-01_dseg.nii.gz")
    (case,) = find_labelled_cases(tmp_path, "bids")
    assert set(case.select_images(("t1", "t1c"))) == {"t1", "t1c"}
    assert common_sequences([case]) == ("t1", "t1c")
    touch(anat / "sub-01_run-2_T1w.nii.gz")
    (case,) = find_labelled_cases(tmp_path, "bids")
    assert set(case.image_names or ()) == {"t1c", "T1w", "run-2_T1w"}
    assert case.select_images(("t1",)) == {"t1": anat / "sub-01_T1w.nii.gz"}


def test_two_label_maps_of_one_session_are_refused(tmp_path: Path) -> None:
    touch(tmp_path / "sub-01" / "anat" / "sub-01_T1w.nii.gz")
    for rater in ("a", "b"):
        touch(tmp_path / "derivatives" / rater / "sub-01" / "anat" / "sub-01_dseg.nii.gz")
    with pytest.raises(InputError, match="sub-01/anat must have one _dseg, got 2"):
        find_labelled_cases(tmp_path, "bids")


def test_cases_without_a_label_map_are_not_learned_from(tmp_path: Path) -> None:
    touch(*(tmp_path / "P1" / f"P1_{end}.nii.gz" for end in ("t1", "seg")))
    touch(tmp_path / "P2" / "P2_t1.nii.gz")
    assert [case.name for case in find_labelled_cases(tmp_path, "brats")] == ["P1"]


def test_absolute_paths_hold_in_any_working_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    case = CaseFiles(
        "A", (Path("a.nii"),), None, (Path("p.npz"),), Path("m.nii"), raters=(Path("r"),)
    )
    assert case.resolve().paths == tuple(tmp_path / path for path in case.paths)


def test_folders_without_cases_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"cases in the layout brats, got .* without any"):
        find_labelled_cases(tmp_path, "brats")
    with pytest.raises(InputError, match="`layout` must be one of nnunet, brats, bids, table"):
        find_labelled_cases(tmp_path, "tree")
    with pytest.raises(InputError, match="`data`: not found: "):
        find_labelled_cases(tmp_path / "nowhere", "brats")
    table = tmp_path / "cases.csv"
    table.write_text("case,t1\nP0,t1.nii.gz\n")
    with pytest.raises(InputError, match="labels"):
        find_labelled_cases(table, "table")
    table.write_text("case,t1,labels\nP0,a.nii,b.nii\nP0,c.nii,d.nii\n")
    with pytest.raises(InputError, match="line 3 must name another case than line 2, got P0"):
        find_labelled_cases(table, "table")


def test_sequences_have_many_names() -> None:
    assert [standard_name(name) for name in ("T1ce", "t1n", "T2w", "t2f", "ADC")] == [
        "t1c",
        "t1",
        "t2",
        "flair",
        "adc",
    ]
    assert select_sequences({"t2f": 1, "T1Gd": 2, "adc": 3}, ("t1c", "flair")) == {
        "t1c": 2,
        "flair": 1,
    }
    with pytest.raises(InputError, match="t1c must be there once"):
        select_sequences({"t1c": 1, "t1ce": 2}, ("t1c",))


def test_sequences_have_the_names_of_the_raw_data_sets_dataset_json(tmp_path: Path) -> None:
    images = tmp_path / "imagesTs"
    images.mkdir()
    for channel in range(2):
        (images / f"P1_{channel:04d}.nii.gz").touch()
    (case,) = find_cases(CaseFolders(images, without_probabilities=True))
    assert case.image_names is None
    content = {"labels": {"background": 0, "core": 1}, "channel_names": {"0": "T1", "1": "FLAIR"}}
    (tmp_path / "dataset.json").write_text(json.dumps(content))
    (case,) = find_cases(CaseFolders(images, without_probabilities=True))
    assert case.image_names == ("T1", "FLAIR")


def test_two_files_for_one_thing_are_refused(tmp_path: Path) -> None:
    images, maps = tmp_path / "imagesTs", tmp_path / "predicted"
    touch(images / "A_0000.nii.gz", images / "A_0000.mha", maps / "A.npz", maps / "A.nii.gz")
    with pytest.raises(InputError, match=r"an image once, got A_0000.mha and A_0000.nii.gz"):
        find_cases(CaseFolders(images, (maps,)))
    (images / "A_0000.mha").unlink()
    touch(tmp_path / "labelsTs" / "A.nii.gz", tmp_path / "labelsTs" / "A.png")
    folders = CaseFolders(images, (maps,), truth=tmp_path / "labelsTs")
    (case,) = find_cases(folders)
    assert case.truth == tmp_path / "labelsTs" / "A.nii.gz"  # a picture shows it
    touch(tmp_path / "labelsTs" / "A.mha")
    with pytest.raises(InputError, match=r"must hold one file of A, got A.nii.gz and A.mha"):
        find_cases(folders)
    touch(tmp_path / "brats" / "P1" / "P1_t1.nii.gz", tmp_path / "brats" / "P1" / "P1_t1.nii")
    with pytest.raises(InputError, match=r"an image once, got P1_t1.nii and P1_t1.nii.gz"):
        find_cases(CaseFolders(tmp_path / "brats"), "brats")
