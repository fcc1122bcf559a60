"""Every wrong file or argument: one line that says which, what it must be and what it got."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from helpers.patient_files import AFFINE, SHAPE, image, probabilities, two_images, write
from perturb_mpm.files import InputError, LabelScheme, read_case, read_images


@dataclass(frozen=True)
class Bad:
    """What is wrong, a pattern of what is said, and the arguments that make it so."""

    name: str
    message: str
    spoil: Callable[[Path], dict[str, Any]]


def spoilt(path: Path, channel: int, value: float) -> Path:
    maps = probabilities()
    maps[3, 2, 1, channel] = value
    return write(path, maps)


def moved(mm: float) -> np.ndarray:
    """Shift and turn a little, so that the far corner is ``mm`` away and the near one is not."""
    affine = AFFINE.copy()
    affine[2, 0] += mm / (SHAPE[0] - 1)
    return affine


def cut(path: Path, keep: Callable[[bytes], bytes]) -> Path:
    path.write_bytes(keep(path.read_bytes()))
    return path


def labels_of(folder: Path, value: float) -> dict[str, Any]:
    labels = np.zeros(SHAPE, np.float32)
    labels[1:3] = 1
    labels[2, 2, 2] = value
    return {"probabilities": [write(folder / "seg.nii", labels)], "kind": "labels"}


def extra_image(folder: Path, volume: np.ndarray, affine: np.ndarray = AFFINE) -> dict[str, Any]:
    return {"images": [*two_images(folder), write(folder / "t2.nii.gz", volume, affine)]}


def maps_of(folder: Path, maps: np.ndarray, affine: np.ndarray = AFFINE) -> dict[str, Any]:
    return {"probabilities": [write(folder / "p.nii.gz", maps, affine)]}


def npz(folder: Path, **arrays: np.ndarray) -> dict[str, Any]:
    np.savez_compressed(folder / "P01.npz", **arrays)
    return {"probabilities": [folder / "P01.npz"]}


def text_file(path: Path, content: bytes = b"no image at all") -> Path:
    path.write_bytes(content)
    return path


ZYX = np.ascontiguousarray(probabilities().transpose(3, 2, 1, 0))
RGB = np.zeros(SHAPE, dtype=[("R", "u1"), ("G", "u1"), ("B", "u1")])

BAD = [
    Bad(
        "no such image",
        r"`images` .*/gone.nii.gz: there is no such file",
        lambda f: {"images": [f / "gone.nii.gz"]},
    ),
    Bad(
        "no such probabilities",
        r"`probabilities` .*/gone.npz: there is no such file",
        lambda f: {"probabilities": [f / "gone.npz"]},
    ),
    Bad(
        "no such mask",
        r"`mask` .*/gone.nii: there is no such file",
        lambda f: {"mask": f / "gone.nii"},
    ),
    Bad(
        "no such dataset.json",
        r"`dataset_json` .*/gone.json: there is no such file",
        lambda f: {"dataset_json": f / "gone.json"},
    ),
    Bad("a folder", r"`images` .*: cannot be read \(Is a directory\)", lambda f: {"images": [f]}),
    Bad("no image", "`images` must name at least one file", lambda _: {"images": []}),
    Bad(
        "no probabilities",
        "`probabilities` must name a file",
        lambda _: {"probabilities": []},
    ),
    Bad(
        "truncated gzip",
        r"`images` .*/t2.nii.gz: is damaged, perhaps cut short \(Compressed file ended",
        lambda f: {"images": [cut(write(f / "t2.nii.gz", image(3)), lambda b: b[: len(b) // 2])]},
    ),
    Bad(
        "gzip cut after the last voxel",
        r"`images` .*/t2.nii.gz: is damaged, perhaps cut short",
        lambda f: {"images": [cut(write(f / "t2.nii.gz", image(3)), lambda b: b[:-4])]},
    ),
    Bad(
        "gzip with a wrong checksum",
        r"`images` .*/t2.nii.gz: is damaged.*CRC check failed",
        lambda f: {
            "images": [cut(write(f / "t2.nii.gz", image(3)), lambda b: b[:-8] + b"1234" + b[-4:])]
        },
    ),
    Bad(
        "truncated nifti",
        r"`images` .*/t2.nii: is damaged, perhaps cut short",
        lambda f: {"images": [cut(write(f / "t2.nii", image(3)), lambda b: b[:-100])]},
    ),
    Bad(
        "nothing but a header's start",
        r"`images` .*/t2.nii: is not a NIfTI file",
        lambda f: {"images": [cut(write(f / "t2.nii", image(3)), lambda b: b[:200])]},
    ),
    Bad(
        "a gzip that ends inside the header",
        r"`images` .*/t2.nii.gz: is damaged, perhaps cut short",
        lambda f: {"images": [cut(write(f / "t2.nii.gz", image(3)), lambda b: b[:60])]},
    ),
    Bad(
        "a header that asks for terabytes",
        r"t2.nii: is damaged, perhaps cut short \(its header says .* \(32000, 32000, 32000\)\)",
        lambda f: {"images": [cut(write(f / "t2.nii", image(3)), impossible)]},
    ),
    Bad(
        "a qform that is no rotation",
        r"t2.nii: is damaged, perhaps cut short \(w2 should be positive",
        lambda f: {"images": [cut(write(f / "t2.nii", image(3)), no_rotation)]},
    ),
    Bad(
        "an unknown unit",
        r"t2.nii: has a unit of length that NIfTI does not know",
        lambda f: {"images": [write(f / "t2.nii", image(3), xyzt_units=7)]},
    ),
    Bad(
        "text",
        r"`images` .*/t2.nii: is not a NIfTI file",
        lambda f: {"images": [text_file(f / "t2.nii", b"no image at all" * 100)]},
    ),
    Bad(
        "compressed text",
        r"`images` .*/t2.nii.gz: is not a NIfTI file",
        lambda f: {"images": [text_file(f / "t2.nii.gz", gzip.compress(b"no image" * 100))]},
    ),
    Bad(
        "an empty file",
        r"`images` .*/t2.nii: is not a NIfTI file",
        lambda f: {"images": [text_file(f / "t2.nii", b"")]},
    ),
    Bad(
        "colours",
        r"`images` .*/t2.nii.gz: must hold one number a voxel",
        lambda f: extra_image(f, RGB),
    ),
    Bad(
        "an image of four dimensions",
        r"`images` .*/t2.nii.gz: must be 3-D, got shape \(5, 6, 4, 3\)",
        lambda f: extra_image(f, probabilities()),
    ),
    Bad(
        "an image of two dimensions",
        r"`images` .*/t2.nii.gz: must have 3 or 4 axes, got shape \(5, 6\)",
        lambda f: extra_image(f, image(1)[:, :, 0]),
    ),
    Bad(
        "an image of another shape",
        r"`images` .*/t2.nii.gz: must lie on the grid of `images` .*P01_t1ce.nii.gz, got shape "
        r"5×6×3 against 5×6×4",
        lambda f: extra_image(f, image(1)[:, :, :3]),
    ),
    Bad(
        "an image elsewhere",
        r"`images` .*/t2.nii.gz: must lie on the grid of .*, got up to 0.002 mm apart, affine "
        r"\[\[-.*\] \[.*\] \[.*\]\] \(axes LAS\) against \[\[.*\]\] \(axes LAS\)",
        lambda f: extra_image(f, image(1), moved(0.002)),
    ),
    Bad(
        "an image in another voxel order",
        r"\(axes RAS\) against .*\(axes LAS\)",
        lambda f: extra_image(f, image(1), AFFINE @ np.diag([-1, 1, 1, 1])),
    ),
    Bad(
        "an image with an affine of zeros",
        r"t2.nii.gz: must have an affine that can be inverted",
        lambda f: {"images": [cut(write(f / "t2.nii.gz", image(1)), flat)]},
    ),
    Bad(
        "an image with NaN in the mask",
        r"`images` .*/t2.nii.gz: must hold finite numbers inside the mask, got 1 NaN or infinite "
        r"values there, the first at voxel \(2, 3, 1\)",
        lambda f: extra_image(f, with_nan(image(1))),
    ),
    Bad(
        "an image beyond float32",
        r"must hold finite numbers inside the mask",
        lambda f: extra_image(f, image(1).astype(np.float64) * 1e300),
    ),
    Bad(
        "probabilities of another shape",
        r"`probabilities` .*/p.nii.gz: must lie on the grid of `images` .*, got shape 5×5×4",
        lambda f: maps_of(f, probabilities()[:, :5]),
    ),
    Bad(
        "probabilities elsewhere",
        r"`probabilities` .*/p.nii.gz: must lie on the grid of `images` .*, got up to 1 mm apart",
        lambda f: maps_of(f, probabilities(), moved(1)),
    ),
    Bad(
        "a label map as the one map",
        r"`probabilities` .*/p.nii.gz: one file must be 4-D with the labels last, or the "
        r'probability of the foreground, got whole numbers .*; say `kind="labels"`',
        lambda f: maps_of(f, np.rint(probabilities()[..., 0])),
    ),
    Bad(
        "scores as the one map",
        r"a probability must be at most 1, got 3.*; say `kind=\"logits\"`",
        lambda f: maps_of(f, 3.5 * probabilities()[..., 0]),
    ),
    Bad(
        "a 3-D and a 4-D file",
        r"must be 3-D where there is one file for each label",
        lambda f: {
            "probabilities": [
                write(f / "0.nii", probabilities()[..., 0]),
                write(f / "1.nii", probabilities()),
            ]
        },
    ),
    Bad(
        "maps on two grids",
        r"`probabilities` .*/1.nii: must lie on the grid of `probabilities` .*/0.nii",
        lambda f: {
            "probabilities": [
                write(f / f"{i}.nii", probabilities()[..., i], moved(i)) for i in range(2)
            ]
        },
    ),
    Bad(
        "probabilities with NaN",
        r"`probabilities` .*: must hold finite numbers, got 1 NaN or infinite values in map 1, "
        r"the first at voxel \(3, 2, 1\)",
        lambda f: {"probabilities": [spoilt(f / "p.nii", 1, np.nan)]},
    ),
    Bad(
        "probabilities with infinity",
        r"must hold finite numbers, got 1 NaN or infinite values in map 2",
        lambda f: {"probabilities": [spoilt(f / "p.nii", 2, -np.inf)]},
    ),
    Bad(
        "negative probabilities",
        r"probabilities must not be negative, got -0.25 in map 0 at voxel \(3, 2, 1\); "
        r'say `kind="logits"`',
        lambda f: {"probabilities": [spoilt(f / "p.nii", 0, -0.25)]},
    ),
    Bad(
        "percentages",
        r"must sum to 1 over the 3 labels to within 0.01, got 100 .*; these look like per cent: "
        r"divide them by 100",
        lambda f: maps_of(f, probabilities() * 100),
    ),
    Bad(
        "whole percentages",
        r"these look like per cent: divide them by 100",
        lambda f: maps_of(f, np.round(probabilities() * 100)),
    ),
    Bad(
        "probabilities from 0 to 255",
        r"these look like probabilities from 0 to 255: divide them by 255",
        lambda f: maps_of(f, np.round(probabilities() * 255).astype(np.uint8)),
    ),
    Bad(
        "one map in per cent",
        r"got whole numbers up to 100; these look like per cent: divide them by 100",
        lambda f: maps_of(f, np.linspace(0, 100, 120).round().reshape(SHAPE)),
    ),
    Bad(
        "one map from 0 to 255",
        r"got whole numbers up to 255; these look like probabilities from 0 to 255",
        lambda f: maps_of(f, np.linspace(0, 255, 120).round().reshape(SHAPE)),
    ),
    Bad(
        "one map in per cent with a fraction",
        r"a probability must be at most 1, got 100 in map 0; these look like per cent",
        lambda f: maps_of(f, np.linspace(0, 100, 120).reshape(SHAPE)),
    ),
    Bad(
        "labels on the first axis",
        r"must have the labels last, got shape \(3, 5, 6, 4\) with the labels on axis 0: "
        r"numpy.moveaxis\(maps, 0, -1\) puts them last",
        lambda f: maps_of(f, np.moveaxis(probabilities(), -1, 0)),
    ),
    Bad(
        "labels on the third axis",
        r"with the labels on axis 2: numpy.moveaxis\(maps, 2, -1\)",
        lambda f: maps_of(f, np.moveaxis(probabilities(), -1, 2)),
    ),
    Bad(
        "logits times 1000",
        r"must be a network's raw scores, got whole numbers up to \d+: scores that were multiplied "
        r"to be stored as integers must be divided again",
        lambda f: {
            **maps_of(f, np.round(1000 * np.log(probabilities())).astype(np.int16)),
            "kind": "logits",
        },
    ),
    Bad(
        "regions without their dataset.json",
        r"must sum to 1 .* nested regions of an nnU-Net model need its `dataset_json`",
        lambda f: maps_of(f, np.full((*SHAPE, 3), 0.9, np.float32)),
    ),
    Bad(
        "a label left out",
        r"must sum to 1 .*; give the map of every label, background first",
        lambda f: maps_of(f, probabilities()[..., :2]),
    ),
    Bad(
        "logits with NaN",
        r"must hold finite numbers",
        lambda f: {"probabilities": [spoilt(f / "p.nii", 1, np.nan)], "kind": "logits"},
    ),
    Bad(
        "too few values",
        r"`labels` must give one for each of the 3 labels, background first, got 2: 0, 1",
        lambda _: {"labels": [0, 1]},
    ),
    Bad(
        "too many labels with names",
        r"`labels` must give one for each of the 3 labels, background first, got 4: 0, 1, 2, 3",
        lambda _: {"labels": LabelScheme((0, 1, 2, 3), tuple("abcd"))},
    ),
    Bad(
        "a value twice",
        r"`labels`: label values must be different, got 0, 1, 1",
        lambda _: {"labels": [0, 1, 1]},
    ),
    Bad(
        "a value beyond 16 bits",
        r"label values must lie between 0 and 65535",
        lambda _: {"labels": [0, 1, 65536]},
    ),
    Bad(
        "an unknown kind",
        r"`kind` must be one of probabilities, logits, labels, got guesses",
        lambda _: {"kind": "guesses"},
    ),
    Bad(
        "too few image names",
        r"`image_names` must give one name for each of the 2 images, got 1",
        lambda _: {"image_names": ["t1"]},
    ),
    Bad(
        "an image name twice",
        r"`image_names` must be different and not empty, got t1, t1",
        lambda _: {"image_names": ["t1", "t1"]},
    ),
    Bad(
        "an empty mask",
        r"`mask` .*: must have voxels that are not 0, got none",
        lambda f: {"mask": write(f / "m.nii", np.zeros(SHAPE, np.uint8))},
    ),
    Bad(
        "a mask elsewhere",
        r"`mask` .*: must lie on the grid of `images`",
        lambda f: {"mask": write(f / "m.nii", np.ones(SHAPE, np.uint8), moved(0.1))},
    ),
    Bad(
        "images of nothing",
        r"`images` .*: must not be 0 everywhere in all images; name the voxels .* `mask`",
        lambda f: {"images": [write(f / "t1.nii", np.zeros(SHAPE, np.float32))]},
    ),
    Bad(
        "a mask where there is no probability",
        r"must have probabilities inside the mask, got 0 for every label at 24 of 120 voxels, "
        r"the first at \(2, 0, 0\)",
        lambda f: {
            **maps_of(f, probabilities() * (np.arange(5) != 2)[:, None, None, None]),
            "mask": write(f / "m.nii", np.ones(SHAPE, np.uint8)),
        },
    ),
    Bad(
        "no probability where the images are",
        r"must have probabilities where the images are, got 0 for every label",
        lambda f: maps_of(f, probabilities() * (np.arange(5) == 0)[:, None, None, None]),
    ),
    Bad(
        "a label map with fractions",
        r"seg.nii: a label map must hold whole numbers from 0 to 65535, got 1.5",
        lambda f: labels_of(f, 1.5),
    ),
    Bad(
        "a label map with NaN",
        r"seg.nii: a label map must hold whole numbers from 0 to 65535, got nan",
        lambda f: labels_of(f, np.nan),
    ),
    Bad(
        "a label map with an unknown value",
        r"seg.nii: holds the values 7, which are not among the label values 0, 1, 2; "
        r"give all of them by `labels`",
        lambda f: {**labels_of(f, 7), "labels": [0, 1, 2]},
    ),
    Bad(
        "a label map whose background is not named",
        r"seg.nii: holds the values 0, which are not among the label values 1, 2",
        lambda f: {**labels_of(f, 2), "labels": [1, 2]},
    ),
    Bad(
        "too many labels",
        r"must have 2 to 255 labels with background, got 256",
        lambda f: maps_of(f, np.full((*SHAPE, 256), 1 / 256, np.float32)),
    ),
    Bad(
        "a label map of one label",
        r"there must be 2 to 255 labels, got 1",
        lambda f: {
            "probabilities": [write(f / "seg.nii", np.zeros(SHAPE, np.uint8))],
            "kind": "labels",
        },
    ),
    Bad(
        "a label map of four dimensions",
        r"a label map must be 3-D, got shape \(5, 6, 4, 3\)",
        lambda _: {"kind": "labels"},
    ),
    Bad(
        "two label maps",
        r'`probabilities` must name one label map with `kind="labels"`, got 2',
        lambda f: {"probabilities": labels_of(f, 2)["probabilities"] * 2, "kind": "labels"},
    ),
    Bad(
        "no label map but a mask",
        r'`probabilities` must name one label map with `kind="labels"`, got 0',
        lambda f: {
            "probabilities": [],
            "kind": "labels",
            "mask": write(f / "m.nii", np.ones(SHAPE, np.uint8)),
        },
    ),
    Bad(
        "a confidence no better than chance",
        r"`confidence` must be above 1/2, .* and below 1, got 0.5",
        lambda f: {**labels_of(f, 1), "confidence": 0.5},
    ),
    Bad(
        "a confidence of 1",
        r"`confidence` must be above 1/2, .* and below 1, got 1",
        lambda f: {**labels_of(f, 1), "confidence": 1.0},
    ),
    Bad(
        "an npz without its label map, on no image's grid",
        r"P01.npz: must have the shape of `images` .*; name a file of its own grid by `reference`",
        lambda f: npz(f, probabilities=ZYX[:, :-1]),
    ),
    Bad(
        "an npz of version 1",
        r"P01.npz: must hold the array probabilities, got softmax; softmax is nnU-Net version 1's",
        lambda f: {**npz(f, softmax=ZYX), "reference": f / "P01_t1ce.nii.gz"},
    ),
    Bad(
        "an npz with its axes forward",
        r"P01.npz: must have the shape of `reference` .*, got Z, Y, X = 5, 6, 4 against 4, 6, 5",
        lambda f: {
            **npz(f, probabilities=np.moveaxis(probabilities(), -1, 0)),
            "reference": f / "P01_t1ce.nii.gz",
        },
    ),
    Bad(
        "an npz of three dimensions",
        r"must hold numbers with the axes C, Z, Y, X, got shape \(4, 6, 5\)",
        lambda f: {**npz(f, probabilities=ZYX[0]), "reference": f / "P01_t1ce.nii.gz"},
    ),
    Bad(
        "an npz cut short",
        r"P01.npz: is no .npz file, or damaged",
        lambda f: {
            "probabilities": [cut(npz(f, probabilities=ZYX)["probabilities"][0], halved)],
            "reference": f / "P01_t1ce.nii.gz",
        },
    ),
    Bad(
        "an npz of objects",
        r"P01.npz: is damaged.*must hold numbers or text, got object",
        lambda f: {
            **npz(f, probabilities=np.array([{"a": 1}], dtype=object)),
            "reference": f / "P01_t1ce.nii.gz",
        },
    ),
    Bad(
        "a member twice",
        r"`probabilities` must name every file once, got one twice",
        lambda f: {"probabilities": npz(f, probabilities=ZYX)["probabilities"] * 2},
    ),
]


def flat(compressed: bytes) -> bytes:
    """Return a NIfTI whose sform is 0 but counts."""
    content = bytearray(gzip.decompress(compressed))
    content[280:328] = bytes(48)
    return gzip.compress(bytes(content))


def impossible(content: bytes) -> bytes:
    """Return a NIfTI whose header asks for more memory than there is."""
    header = bytearray(content)
    header[42:48] = np.array([32000, 32000, 32000], "<i2").tobytes()
    return bytes(header)


def no_rotation(content: bytes) -> bytes:
    """Return a NIfTI whose only place is a qform that is no rotation."""
    header = bytearray(content)
    header[254:256] = bytes(2)
    header[256:268] = np.array([1, 1, 1], "<f4").tobytes()
    return bytes(header)


def halved(content: bytes) -> bytes:
    return content[: len(content) // 2]


def with_nan(volume: np.ndarray) -> np.ndarray:
    volume[2, 3, 1] = np.nan
    return volume


@pytest.mark.parametrize("bad", BAD, ids=lambda bad: bad.name)
def test_bad_input_is_refused_in_one_line(tmp_path: Path, bad: Bad) -> None:
    arguments: dict[str, Any] = {
        "images": two_images(tmp_path),
        "probabilities": [write(tmp_path / "good.nii", probabilities())],
    }
    read_case(**arguments)
    arguments |= bad.spoil(tmp_path)
    with pytest.raises(InputError, match=bad.message) as caught:
        read_case(**arguments)
    assert "\n" not in str(caught.value)


def test_a_thousandth_of_a_millimetre_is_tolerated(tmp_path: Path) -> None:
    images = two_images(tmp_path)
    case = read_case(images, [write(tmp_path / "p.nii", probabilities(), moved(0.0009))])
    np.testing.assert_array_equal(case.geometry.affine, read_images(images).geometry.affine)
    with pytest.raises(InputError, match="mm"):
        read_case(images, [write(tmp_path / "q.nii", probabilities(), moved(0.002))])


def test_rounding_below_zero_is_not_negative(tmp_path: Path) -> None:
    maps = probabilities()
    maps[1, 1, 1] = [-5e-7, 0.25, 0.75]
    case = read_case(two_images(tmp_path), [write(tmp_path / "p.nii", maps)])
    np.testing.assert_allclose(case.probabilities[:, 1, 1, 1], [0, 0.25, 0.75])


def test_what_is_no_number_outside_the_mask_becomes_0(tmp_path: Path) -> None:
    volume = image(1)
    volume[0] = np.nan
    found = read_images([write(tmp_path / "a.nii", volume)])
    assert not found.mask[0].any()
    assert found.images["a"][0].max() == 0
    assert found.warnings == (
        "image a: 24 of 120 voxels outside the mask are no numbers; set to 0",
    )


def test_a_file_that_may_not_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path / "a.nii", image(1))

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(InputError, match=r"a.nii: cannot be read \(Permission denied\)"):
        read_images([path])


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (("a", "b", "b"), "label names must be different, got a, b, b"),
        (("a", "b", "c\t"), r"label names must be words in one line, got \['a', 'b', 'c\\t'\]"),
        (("a", "b"), "one value and one name, got 3 values and 2 names"),
    ],
)
def test_bad_names_of_labels(names: tuple[str, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        LabelScheme((0, 1, 2), names)


def test_one_argument_may_name_images_and_mask(tmp_path: Path) -> None:
    """`train` and `tune` take a folder of cases, and have no argument for single images."""
    (good,) = two_images(tmp_path)[:1]
    maps = write(tmp_path / "p.nii", probabilities())
    for wrong in ({"images": tmp_path / "gone.nii"}, {"mask": tmp_path / "gone.nii"}):
        arguments = {"images": good, "named_by": "data", **wrong}
        with pytest.raises(InputError, match=r"^`data` .*gone.nii: there is no such file"):
            read_images(**arguments)
        with pytest.raises(InputError, match=r"^`data` .*gone.nii: there is no such file"):
            read_case(probabilities=maps, **arguments)
