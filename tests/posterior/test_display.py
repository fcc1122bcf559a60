"""Posteriors to look at: the table, the picture, the NIfTI files."""

from __future__ import annotations

import re
from pathlib import Path

import nibabel as nib
import numpy as np
import pytest

import perturb_mpm as pm
from perturb_mpm.posterior import display


@pytest.fixture(scope="module")
def posterior() -> pm.Posterior:
    logits = np.zeros((3, 6, 5, 4))
    logits[1, :3] = 6.0  # label 1 here, for certain
    logits[2, 3:, :, 2] = 0.5  # undecided, and most so in slice 2
    logits[0, 3:, :, [0, 1, 3]] = 9.0
    crf = pm.DenseCRF(pm.unary_from_logits(logits), [], spacing=(1.0, 2.0, 3.0))
    return pm.sample(crf, samples=40, seed=1, engine="reference", noise_length=4.0)


def test_white_noise_has_no_intervals() -> None:
    """Independent noise averages out: its narrow intervals would say that a volume is known."""
    logits = np.random.default_rng(0).normal(size=(2, 6, 5, 4))
    crf = pm.DenseCRF(pm.unary_from_logits(logits), [])
    white = pm.sample(crf, samples=20, seed=1, engine="reference")
    text = white._repr_html_()
    assert " to " not in text
    assert "% of samples, ml" not in text
    assert "noise_length" in text
    figure = white.plot()
    assert figure.axes[1].get_title() == "volumes: median"
    assert not figure.axes[1].collections  # no line of an interval


@pytest.mark.parametrize(
    ("affine", "axis"),
    [
        (np.diag([-1.0, -2.0, 3.0, 1.0]), -1),  # LPS
        (np.array([[0, 0, 3.0, 0], [1, 0, 0, 0], [0, 2, 0, 0], [0, 0, 0, 1]]), 2),  # ASR
    ],
)
def test_a_picture_is_radiological_with_an_affine(
    posterior: pm.Posterior, affine: np.ndarray, axis: int
) -> None:
    image = np.zeros((6, 5, 4))
    corner = [0, 0, 0]
    for grid_axis in range(3):  # the voxel that is most to the right, front and top
        world = int(np.abs(affine[:3, grid_axis]).argmax())
        corner[grid_axis] = 0 if affine[world, grid_axis] < 0 else image.shape[grid_axis] - 1
    image[tuple(corner)] = 1.0
    top = image.shape[int(np.abs(affine[2, :3]).argmax())] - 1
    figure = posterior.plot(image, axis=axis, index=top, affine=affine)
    shown = figure.axes[0].get_images()[0].get_array()
    assert np.argwhere(shown == 1).tolist() == [[shown.shape[0] - 1, 0]]  # front is up, right left
    letters = {text.get_text(): text.get_position() for text in figure.axes[0].texts}
    assert set(letters) == set("RLAP")
    assert letters["R"][0] < letters["L"][0]
    assert letters["P"][1] < letters["A"][1]


def test_the_table_has_the_volumes_of_every_label(posterior: pm.Posterior) -> None:
    text = posterior._repr_html_()
    rows = re.findall(r"<tr><td>(.*?)</td><td>(.*?)</td><td>(.*?) to (.*?)</td></tr>", text)
    low, high = posterior.volume_interval(0.95) / 1000
    assert [row[0] for row in rows] == ["label 0", "label 1", "label 2"]
    for label, (_, middle, lower, upper) in enumerate(rows):
        assert float(middle) == pytest.approx(
            np.median(posterior.volumes[:, label]) / 1000, abs=0.06
        )
        assert (float(lower), float(upper)) == pytest.approx((low[label], high[label]), abs=0.06)
    assert "data:image/png;base64," in text


def test_the_most_uncertain_slice_is_shown(posterior: pm.Posterior) -> None:
    assert display.largest_slice(posterior.entropy, -1) == 2
    assert posterior.entropy[..., 2].sum() > posterior.entropy[..., 1].sum()
    figure = posterior.plot()
    assert figure.axes[0].get_title() == "uncertain voxels, slice 2"


def test_only_uncertain_voxels_are_coloured(posterior: pm.Posterior) -> None:
    figure = posterior.plot(np.random.default_rng(0).random((6, 5, 4)), names=("a", "b", "c"))
    overlay = figure.axes[0].get_images()[1].get_array()
    expected = posterior.minority[..., 2].T > 0.05
    assert expected.any()
    assert not expected.all()
    np.testing.assert_array_equal(~np.ma.getmaskarray(overlay), expected)
    np.testing.assert_allclose(overlay[expected], posterior.entropy[..., 2].T[expected])
    assert [text.get_text() for text in figure.axes[1].get_yticklabels()] == ["b", "c"]


def test_what_shines_is_uncertain() -> None:
    weights = np.array([0.2126, 0.7152, 0.0722])
    colours = np.array([colour[:3] for colour in display._bright_colours().colors])
    linear = np.where(colours <= 0.04045, colours / 12.92, ((colours + 0.055) / 1.055) ** 2.4)
    grey = ((display._BRIGHTEST_GREY + 0.055) / 1.055) ** 2.4
    assert (linear @ weights).min() > grey


def test_a_slice_can_be_chosen(posterior: pm.Posterior) -> None:
    figure = posterior.plot(axis=0, index=4)
    assert figure.axes[0].get_images()[0].get_array().shape == (4, 5)
    assert figure.axes[0].get_title().endswith("slice 4")


def test_the_picture_of_two_axes(tmp_path: Path) -> None:
    logits = np.random.default_rng(1).normal(size=(2, 7, 9))
    crf = pm.DenseCRF(pm.unary_from_logits(logits), [], mask=np.ones((7, 9)))
    flat = pm.sample(crf, samples=8, seed=0, engine="reference")
    flat.plot(logits[1]).savefig(tmp_path / "flat.png")
    assert (tmp_path / "flat.png").stat().st_size > 1000
    assert "<img" in flat._repr_html_()


def test_pictures_of_other_shapes_are_refused(posterior: pm.Posterior) -> None:
    with pytest.raises(ValueError, match=r"`image` must have the shape \(6, 5, 4\), got \(5, 5\)"):
        posterior.plot(np.zeros((5, 5)))
    with pytest.raises(ValueError, match=r"`names` must be one for each of the 3 labels"):
        posterior.plot(names=["one"])
    with pytest.raises(ValueError, match="index must be at most 3, got 4"):
        posterior.plot(index=4)
    crf = pm.DenseCRF(pm.unary_from_logits(np.zeros((2, 5))), [])
    line = pm.sample(crf, samples=2, engine="reference")
    with pytest.raises(ValueError, match="`plot` needs an image of 2 or 3 axes, got 1"):
        line.plot()
    assert "<img" not in line._repr_html_()
    with pytest.raises(ValueError, match="`save_nifti` needs an image of 3 axes, got 1"):
        line.save_nifti("nowhere")


def test_nifti_files_hold_the_maps_where_the_image_lies(
    posterior: pm.Posterior, tmp_path: Path
) -> None:
    affine = np.array([[-1.0, 0, 0, 5], [0, 2, 0, -3], [0, 0, 3, 7], [0, 0, 0, 1]])
    image = nib.Nifti1Image(np.zeros((6, 5, 4), np.float32), affine)
    nib.save(image, tmp_path / "t1.nii.gz")
    for like in (affine, image, tmp_path / "t1.nii.gz"):
        written = posterior.save_nifti(tmp_path / "out", like)
        assert sorted(written) == ["entropy", "labels", "marginals"]
        found = {name: nib.load(path) for name, path in written.items()}
        np.testing.assert_array_equal(found["labels"].dataobj, posterior.labels)
        np.testing.assert_allclose(found["entropy"].dataobj, posterior.entropy, rtol=1e-6)
        last = np.moveaxis(posterior.marginals, 0, -1)
        np.testing.assert_allclose(found["marginals"].dataobj, last, rtol=1e-6)
        assert all(np.array_equal(each.affine, affine) for each in found.values())
    first = written["labels"].read_bytes()
    assert posterior.save_nifti(tmp_path / "again", affine)["labels"].read_bytes() == first
    with pytest.warns(UserWarning, match="nothing says how the patient lies"):
        plain = posterior.save_nifti(tmp_path / "plain")["entropy"]
    unplaced = nib.load(plain)
    assert unplaced.header.get_zooms() == (1.0, 2.0, 3.0)
    assert unplaced.header["sform_code"] == unplaced.header["qform_code"] == 0


@pytest.mark.parametrize(
    ("like", "words"),
    [
        (np.eye(3), r"affine \(4, 4\), got the shape \(3, 3\)"),
        (np.full((4, 4), np.nan), "like must be finite"),
        (nib.Nifti1Image(np.zeros((6, 5, 3), np.float32), np.eye(4)), r"got \(6, 5, 3\)"),
    ],
    ids=["matrix", "nan", "image"],
)
def test_a_place_that_does_not_fit_is_refused(
    posterior: pm.Posterior, tmp_path: Path, like: object, words: str
) -> None:
    with pytest.raises(ValueError, match=words):
        posterior.save_nifti(tmp_path / "out", like)
    assert not (tmp_path / "out").exists()
