"""Mistakes that leave every file readable: told as a warning, or put right exactly."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from helpers.patient_files import AFFINE, SHAPE, image, probabilities, two_images, write
from perturb_mpm.files import Case, InputError, LabelScheme, read_case, read_images
from perturb_mpm.files.names import other_patient_warnings

LARGE = (16, 18, 12)
MM = np.diag([1.0, 1.0, 2.0, 1.0])


def ball(centre: tuple[int, int, int], radius: float) -> NDArray[np.bool_]:
    axes = np.meshgrid(*(np.arange(n) - c for n, c in zip(LARGE, centre)), indexing="ij")
    return np.asarray(sum(axis**2 for axis in axes) < radius**2)


BRAIN = ball((8, 9, 6), 5.5)
TUMOUR = ball((8, 9, 6), 3.0)


def maps_of(foreground: NDArray[np.bool_]) -> NDArray[np.float32]:
    share = np.where(foreground, 0.9, 0.02)
    return np.stack([1 - share, share], axis=-1).astype(np.float32)  # (X, Y, Z, 2)


def patient(
    folder: Path, maps: NDArray[Any], affine: NDArray[np.float64] = MM, **more: Any
) -> Case:
    rng = np.random.default_rng(4)
    head = np.where(BRAIN, rng.uniform(10, 90, LARGE), 0).astype(np.float32)
    images = [write(folder / "t1.nii.gz", head, MM)]
    return read_case(images, [write(folder / "maps.nii.gz", maps, MM)], **more)


def test_a_patient_without_a_mistake_has_no_warning(tmp_path: Path) -> None:
    assert patient(tmp_path, maps_of(TUMOUR)).warnings == ()


@pytest.mark.parametrize(
    ("image_path", "other"),
    [
        ("BraTS2021_00006_t1ce.nii.gz", "BraTS2021_01476_probs.nii.gz"),
        ("hippocampus_001.nii.gz", "hippocampus_003.npz"),
        ("sub-01_T1w.nii.gz", "sub-02_probseg.nii.gz"),
        ("case_0001.nii.gz", "case_0002.npz"),
        ("P01_0000.nii.gz", "P02.npz"),
        ("P01/t1.nii.gz", "P02/probabilities.nii.gz"),
    ],
)
def test_names_of_two_patients_are_told_apart(image_path: str, other: str) -> None:
    (words,) = other_patient_warnings(Path(image_path), [Path(other)])
    assert "may be of different patients" in words


@pytest.mark.parametrize(
    ("image_path", "other"),
    [
        ("BraTS2021_00006_t1ce.nii.gz", "BraTS2021_00006_probs.nii.gz"),
        ("P01_0000.nii.gz", "P01.npz"),
        ("t1.nii.gz", "p0.nii.gz"),
        ("image.nii.gz", "probabilities.nii.gz"),
        ("sub-01_ses-01_T1w.nii.gz", "sub-01_ses-02_mask.nii.gz"),
        ("P01_2019.nii.gz", "P01_2020.nii.gz"),
        ("P01/t1.nii.gz", "P01/fold_2.npz"),
        ("images/P01.nii.gz", "fold_3/P01.npz"),
    ],
)
def test_names_of_one_patient_are_not(image_path: str, other: str) -> None:
    assert other_patient_warnings(Path(image_path), [Path(other)]) == []


def test_channels_of_nnunet_are_one_patient() -> None:
    channels = [Path(f"P01_000{n}.nii.gz") for n in range(4)]
    assert other_patient_warnings(channels[0], channels[1:], channels=True) == []
    others = [Path("P02_0001.nii.gz")]
    assert len(other_patient_warnings(channels[0], others, channels=True)) == 1


def test_another_patient_s_probabilities_and_image_are_told(tmp_path: Path) -> None:
    images = two_images(tmp_path)
    path = write(tmp_path / "P02_probs.nii.gz", probabilities())
    (words,) = read_case(images, [path]).warnings
    assert "P01_t1ce.nii.gz and P02_probs.nii.gz may be of different patients" in words
    other = write(tmp_path / "P02_t2.nii.gz", image(3))
    (words,) = read_images([*images, other]).warnings
    assert "one is named p01, the other p02" in words


def test_foreground_outside_the_mask_is_told(tmp_path: Path) -> None:
    elsewhere = maps_of(ball((3, 3, 3), 3.0))
    (words,) = patient(tmp_path, elsewhere).warnings
    assert "of the foreground of the probabilities lies outside the mask" in words
    assert "belong together?" in words


def test_background_that_is_not_first_is_told(tmp_path: Path) -> None:
    last = maps_of(TUMOUR)[..., ::-1]
    (words,) = patient(tmp_path, last).warnings
    assert (
        "label label_1 is the most probable one in 100 % of the voxels around the patient" in words
    )
    assert "is background the first of the maps?" in words
    whole = write(tmp_path / "all.nii.gz", np.ones(LARGE, np.uint8), MM)
    assert "around the patient" in patient(tmp_path, last, mask=whole).warnings[0]
    # Maps of tissues have no background, which their values say.
    tissues = LabelScheme((1, 2), ("grey", "white"))
    assert patient(tmp_path, last, labels=tissues).warnings == ()


def test_a_constant_image_is_told(tmp_path: Path) -> None:
    images = two_images(tmp_path)
    flat = write(tmp_path / "P01_t2.nii.gz", (image(1) != 0).astype(np.float32))
    path = write(tmp_path / "p.nii.gz", probabilities())
    (words,) = read_case([*images, flat], [path]).warnings
    assert words.startswith("image t2 has the same value everywhere inside the mask")


def flipped(
    volume: NDArray[Any],
    affine: NDArray[np.float64],
    order: tuple[int, ...],
    signs: tuple[int, ...],
) -> tuple[NDArray[Any], NDArray[np.float64]]:
    """The same voxels at the same places, with the axes in another order and direction."""
    rest = tuple(range(3, volume.ndim))
    turned = np.transpose(volume, (*order, *rest))
    step, origin = affine[:3, :3][:, order].copy(), affine[:3, 3].copy()
    for axis, sign in enumerate(signs):
        if sign < 0:
            turned = np.flip(turned, axis)
            origin += step[:, axis] * (turned.shape[axis] - 1)
            step[:, axis] *= -1
    moved = np.eye(4)
    moved[:3, :3], moved[:3, 3] = step, origin
    return np.ascontiguousarray(turned), moved


@pytest.mark.parametrize("order", [(0, 1, 2), (1, 0, 2), (2, 0, 1)])
@pytest.mark.parametrize("signs", [(-1, -1, 1), (1, -1, -1), (-1, 1, 1)])
def test_the_same_grid_in_another_order_is_turned_exactly(
    tmp_path: Path, order: tuple[int, ...], signs: tuple[int, ...]
) -> None:
    images = two_images(tmp_path)
    straight = read_case(images, [write(tmp_path / "p.nii.gz", probabilities())])
    turned = write(tmp_path / "q.nii.gz", *flipped(probabilities(), AFFINE, order, signs))
    case = read_case(images, [turned])
    np.testing.assert_array_equal(case.probabilities, straight.probabilities)
    (words,) = case.warnings
    assert "q.nii.gz has its axes in another order or direction than P01_t1ce.nii.gz" in words
    assert "it was turned to fit, exactly" in words


def test_images_masks_and_label_maps_are_turned_too(tmp_path: Path) -> None:
    images = two_images(tmp_path)
    second = write(
        tmp_path / "P01_flair.nii.gz", *flipped(image(2), AFFINE, (0, 1, 2), (-1, -1, 1))
    )
    inside = (np.arange(120).reshape(SHAPE) % 3 > 0).astype(np.uint8)
    mask = write(tmp_path / "m.nii.gz", *flipped(inside, AFFINE, (1, 0, 2), (1, -1, 1)))
    labels = (np.arange(120).reshape(SHAPE) % 4).astype(np.uint8)
    path = write(tmp_path / "l.nii.gz", *flipped(labels, AFFINE, (0, 1, 2), (1, 1, -1)))
    case = read_case([images[0], second], [path], mask=mask, kind="labels")
    np.testing.assert_array_equal(case.images["flair"], image(2))
    np.testing.assert_array_equal(case.mask, inside != 0)
    np.testing.assert_array_equal(case.probabilities.argmax(axis=0), labels)
    assert sum("turned to fit" in words for words in case.warnings) == 3


def test_another_grid_is_still_refused(tmp_path: Path) -> None:
    maps, affine = flipped(probabilities(), AFFINE, (0, 1, 2), (-1, -1, 1))
    affine[0, 3] += 0.5
    images = two_images(tmp_path)
    with pytest.raises(InputError, match="must lie on the grid of"):
        read_case(images, [write(tmp_path / "p.nii.gz", maps, affine)])
