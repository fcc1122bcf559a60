"""Labelled cases of every layout, read as scenes to learn from."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from helpers.tiny_cohort import AFFINE, SEQUENCES, VALUES, make_patient, write_cohort, write_patient
from perturb_mpm.files import SCHEMES, InputError, find_labelled_cases, save_nifti
from perturb_mpm.segmenter.preprocessing import read_scene
from perturb_mpm.segmenter.training import training_cases

SCHEME = SCHEMES["brats2021"]


@pytest.fixture(scope="module")
def brats(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_cohort(tmp_path_factory.mktemp("brats"))


def as_nnunet(brats: Path, root: Path) -> Path:
    (root / "imagesTr").mkdir(parents=True)
    (root / "labelsTr").mkdir()
    for folder in sorted(brats.iterdir()):
        for channel, name in enumerate(("t1", "t1ce", "t2", "flair")):
            source = folder / f"{folder.name}_{name}.nii.gz"
            shutil.copy(source, root / "imagesTr" / f"{folder.name}_{channel:04d}.nii.gz")
        shutil.copy(
            folder / f"{folder.name}_seg.nii.gz", root / "labelsTr" / f"{folder.name}.nii.gz"
        )
    (root / "dataset.json").write_text(
        json.dumps(
            {
                "channel_names": {"0": "T1", "1": "T1-CE", "2": "T2w", "3": "FLAIR"},
                "labels": {"background": 0, "core": 1, "oedema": 2, "enhancing": 4},
            }
        )
    )
    return root


def as_bids(brats: Path, root: Path) -> Path:
    endings = {"t1": "T1w", "t1ce": "ce-gad_T1w", "t2": "T2w", "flair": "FLAIR"}
    for folder in sorted(brats.iterdir()):
        subject = f"sub-{folder.name}"
        anat = root / subject / "anat"
        derived = root / "derivatives" / "expert" / subject / "anat"
        anat.mkdir(parents=True)
        derived.mkdir(parents=True)
        for name, ending in endings.items():
            source = folder / f"{folder.name}_{name}.nii.gz"
            shutil.copy(source, anat / f"{subject}_{ending}.nii.gz")
        source = folder / f"{folder.name}_seg.nii.gz"
        shutil.copy(source, derived / f"{subject}_desc-tumour_dseg.nii.gz")
    return root


def as_table(brats: Path, root: Path) -> Path:
    lines = ["case,t1,t1ce,t2,flair,labels,mask"]
    for folder in sorted(brats.iterdir()):
        start = folder / folder.name
        paths = [f"{start}_{name}.nii.gz" for name in ("t1", "t1ce", "t2", "flair", "seg")]
        lines.append(",".join([folder.name, *paths, ""]))
    table = root / "cases.csv"
    table.write_text("\n".join(lines) + "\n")
    return table


@pytest.mark.parametrize("layout", ["brats", "nnunet", "bids", "table"])
def test_every_layout_gives_the_same_cases(brats: Path, tmp_path: Path, layout: str) -> None:
    make = {"nnunet": as_nnunet, "bids": as_bids, "table": as_table}
    data = brats if layout == "brats" else make[layout](brats, tmp_path)
    cases = find_labelled_cases(data, layout)
    names = [case.name.removeprefix("sub-") for case in cases]
    assert names == ["P0", "P1", "P2", "P3", "P4"]
    found = read_scene(cases[0], SEQUENCES, SCHEME)
    images, labels = make_patient(0)
    inside = images["t1"] != 0
    assert found.sequences == SEQUENCES
    assert found.truth.size == inside.sum()
    counts = [np.count_nonzero(labels[inside] == value) for value in VALUES]
    assert np.bincount(found.truth, minlength=4).tolist() == counts
    # The patient is stored with its right and front reversed, and the scene is not.
    t1c = images["t1c"][::-1, ::-1]
    order = np.argsort(t1c[t1c != 0])
    assert np.array_equal(np.argsort(found.images[1][found.mask])[-50:], order[-50:])


def test_a_missing_sequence_is_refused_before_anything_is_read(brats: Path, tmp_path: Path) -> None:
    shutil.copytree(brats, tmp_path / "cases")
    (tmp_path / "cases" / "P1" / "P1_t1ce.nii.gz").unlink()
    cases = find_labelled_cases(tmp_path / "cases", "brats")
    with pytest.raises(InputError, match=r"case P1: .* t1c is missing; got flair, t1, t2"):
        training_cases(cases, SEQUENCES, SCHEME)


def test_another_label_scheme_is_refused(brats: Path) -> None:
    case = find_labelled_cases(brats, "brats")[0]
    with pytest.raises(InputError, match=r"must hold the label values 0, 1, 2, 3 alone, got 4"):
        read_scene(case, SEQUENCES, SCHEMES["brats2023"])


def test_labels_on_another_grid_are_refused(tmp_path: Path) -> None:
    folder = write_patient(tmp_path, "P", 0)
    save_nifti(folder / "P_seg.nii.gz", np.zeros((18, 16, 14), np.uint8), np.eye(4))
    with pytest.raises(InputError, match=r"P_seg.nii.gz"):
        read_scene(find_labelled_cases(tmp_path, "brats")[0], SEQUENCES, SCHEME)


def test_a_table_of_a_spreadsheet_is_read(brats: Path, tmp_path: Path) -> None:
    """Spreadsheets begin their CSV files with a byte-order mark."""
    table = as_table(brats, tmp_path)
    plain = find_labelled_cases(table, "table")
    table.write_text("\ufeff" + table.read_text(), encoding="utf-8")
    assert find_labelled_cases(table, "table") == plain


def test_an_image_without_contrast_is_refused_by_its_case(tmp_path: Path) -> None:
    folder = write_patient(tmp_path, "P", 0)
    flat = np.ones((18, 16, 14), dtype=np.float32)
    save_nifti(folder / "P_t2.nii.gz", flat, AFFINE)
    with pytest.raises(InputError, match="`data`: case P: images must vary inside the mask"):
        read_scene(find_labelled_cases(tmp_path, "brats")[0], SEQUENCES, SCHEME)
