from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from perturb_mpm.files.images import derive_mask
from perturb_mpm.files.names import name_images


def brain(background: float, seed: int = 0) -> np.ndarray:
    image = np.full((6, 6, 6), background, np.float32)
    image[1:5, 1:5, 1:5] = np.random.default_rng(seed).uniform(2, 3, (4, 4, 4))
    return image


def test_a_background_of_zeros() -> None:
    one, two = brain(0, 1), brain(0, 2)
    one[2, 2, 2] = 0  # a hole in one image is none where the other has a value
    mask, origin = derive_mask({"a": one, "b": two})
    np.testing.assert_array_equal(mask, two != 0)
    assert origin == "derived: the 64 of 216 voxels where any image is not 0"


def test_a_background_that_is_no_number() -> None:
    mask, _ = derive_mask({"a": brain(np.nan)})
    assert mask.sum() == 64


def test_a_background_of_another_constant() -> None:
    mask, origin = derive_mask({"a": brain(-0.7), "b": brain(-1.3, 2)})
    assert mask.sum() == 64
    assert origin.startswith("derived: the 64 of 216 voxels where any image differs from the value")


def test_no_background_at_all() -> None:
    noise = np.random.default_rng(0).uniform(1, 2, (6, 6, 6)).astype(np.float32)
    mask, origin = derive_mask({"a": brain(-0.7), "b": noise})
    assert mask.all()
    assert origin == (
        "derived: all 216 of 216 voxels, since the images have no constant background"
    )


def test_one_value_everywhere_is_no_background() -> None:
    mask, _ = derive_mask({"a": np.full((3, 3, 3), 5, np.float32)})
    assert mask.all()


@pytest.mark.parametrize(
    ("files", "names"),
    [
        (["P_t1.nii.gz", "P_t1ce.nii", "P_t2.nii.gz", "P_flair.nii"], "t1 t1ce t2 flair"),
        (["BraTS-GLI-1-000-t1n.nii.gz", "BraTS-GLI-1-000-t2f.nii.gz"], "t1n t2f"),
        (["sub-01_ses-a_T1w.nii.gz", "sub-01_ses-a_FLAIR.nii.gz"], "T1w FLAIR"),
        (["sub-01_T1w.nii.gz", "sub-01_ce-gd_T1w.nii.gz"], "T1w ce-gd_T1w"),
        (["P_0000.nii.gz", "P_0001.nii.gz"], "0000 0001"),
        (["brain.nii.gz"], "brain"),
        (["case 3 before.nii.gz", "case 3 after.nii.gz"], "before after"),
        (["a/x.nii.gz", "b/x.nii.gz"], "1_x 2_x"),
        (["scan.nii", "scan2.nii"], "scan scan2"),
    ],
)
def test_names_of_images(files: list[str], names: str) -> None:
    assert name_images([Path(file) for file in files]) == names.split()


def test_channels_have_the_names_of_their_dataset() -> None:
    files = [Path("P_0000.nii.gz"), Path("P_0003.nii.gz")]
    assert name_images(files, {0: "T1", 3: "FLAIR"}) == ["T1", "FLAIR"]
    assert name_images(files, {0: "T1"}) == ["T1", "0003"]
