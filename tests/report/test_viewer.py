"""What a report's viewer is given: cropped, reduced and turned volumes, and pinned files."""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
import re
from dataclasses import replace

import nibabel as nib
import numpy as np
import pytest

from perturb_mpm.report import viewer as packing
from perturb_mpm.report.data import ReportData
from perturb_mpm.report.locations import uncertain_locations
from perturb_mpm.report.planes import box_around
from perturb_mpm.report.viewer import POLICY, BrowserGrid, asset, niivue, pack, viewer_fragment

SHAPE = (17, 20, 13)
BOX = (slice(2, 13), slice(3, 16), slice(1, 12))  # of the mask, three voxels wider
NAMES = ("healthy", "</script><b>", "core")


def make_data(**changes: object) -> ReportData:
    """Return a patient whose axes run to the left, top and back."""
    generator = np.random.default_rng(4)
    mask = np.zeros(SHAPE, dtype=bool)
    mask[5:10, 6:13, 4:9] = True
    marginals = generator.dirichlet(np.ones(3), SHAPE).astype(np.float32)
    marginals[~mask] = (1, 0, 0)
    marginals = np.moveaxis(marginals, -1, 0)
    safe = np.maximum(marginals, 1e-12)
    affine = np.array([[-2.0, 0, 0, 30], [0, 0, -3, 9], [0, 4, 0, -7], [0, 0, 0, 1]])
    samples = generator.integers(0, 3, (4, *SHAPE)).astype(np.uint8) * mask
    data = ReportData(
        title="",
        images={name: generator.gamma(2, 100, SHAPE).astype(np.float32) for name in ("T1", "T2")},
        mask=mask,
        labels=marginals.argmax(axis=0).astype(np.uint8),
        entropy=-(safe * np.log2(safe)).sum(axis=0).astype(np.float32),
        uncertainty=np.zeros(SHAPE, np.uint8),
        marginals=marginals,
        affine=affine,
        spacing=(2.0, 4.0, 3.0),
        label_values=(0, 1, 2),
        label_names=NAMES,
        samples=4,
        volumes=(),
        intervals="none",
        perturbation="",
        snapshots=(),
        sampled_labels=samples,
    )
    return replace(data, **changes)  # type: ignore[arg-type]


def opened(text: str) -> nib.Nifti1Image:
    return nib.Nifti1Image.from_bytes(gzip.decompress(base64.b64decode(text)))


def in_browser_order(volume: np.ndarray) -> np.ndarray:
    return np.moveaxis(volume[BOX], 2, 1)[::-1, ::-1]


def test_volumes_are_cropped_and_turned_and_stay_in_their_place() -> None:
    data = make_data()
    labels = opened(pack(data).volumes["labels"])
    assert nib.aff2axcodes(labels.affine) == ("R", "A", "S")
    assert np.array_equal(np.asarray(labels.dataobj), in_browser_order(data.labels))
    # The same voxel, by its file's indices and by the browser's, is at the same place.
    i, j, k = 7, 9, 5
    turned = (BOX[0].stop - 1 - i, BOX[2].stop - 1 - k, j - BOX[1].start)
    assert labels.affine @ [*turned, 1] == pytest.approx(data.affine @ [i, j, k, 1])
    assert np.asarray(labels.dataobj)[turned] == data.labels[i, j, k]


def test_entropy_and_shares_have_a_fixed_scale() -> None:
    data = make_data()
    packed = pack(data)
    bits = opened(packed.volumes["entropy"])
    assert bits.get_fdata() == pytest.approx(in_browser_order(data.entropy), abs=0.0032)
    assert bits.dataobj.slope == pytest.approx(np.log2(3) / 255)
    for label in range(len(NAMES)):
        share = opened(packed.volumes[f"share-{label}"]).get_fdata()
        assert share == pytest.approx(in_browser_order(data.marginals[label]), abs=0.002)
    assert (packed.images, packed.samples) == (("T1", "T2"), 4)
    image = np.asarray(opened(packed.volumes["image-1"]).dataobj)
    assert image.dtype == np.uint8
    assert image.max() == 255
    order = np.argsort(in_browser_order(data.images["T2"]), axis=None)
    assert (np.diff(image.ravel()[order].astype(int)) >= 0).all()


def test_what_does_not_fit_is_left_out_and_said() -> None:
    data = make_data()
    full = pack(data)
    assert "256 grey levels" in full.note
    image_bytes = sum(len(full.volumes[f"image-{k}"]) for k in range(2))
    coarse = pack(data, image_bytes=int(0.9 * image_bytes))
    assert "64 grey levels" in coarse.note
    assert len(coarse.images) == 2
    least = pack(data, image_bytes=1, sample_bytes=1)
    assert "1 of 2 sequences" in least.note
    assert "1 of 4 stored samples" in least.note
    assert (least.images, least.samples) == (("T1",), 1)


def test_a_very_large_image_is_thinned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packing, "MOST_VOXELS", 300)
    data = make_data()
    packed = pack(data)
    labels = opened(packed.volumes["labels"])
    assert "every 2th voxel" not in packed.note
    assert "one voxel in 2 along each axis" in packed.note
    assert labels.shape == (6, 6, 7)
    first = data.affine @ [BOX[0].stop - 1, BOX[1].start, BOX[2].stop - 1, 1]
    assert labels.affine @ [0, 0, 0, 1] == pytest.approx(first)


def test_without_images_the_mask_is_shown() -> None:
    packed = pack(make_data(images={}))
    assert packed.images == ("mask",)
    assert np.asarray(opened(packed.volumes["image-0"]).dataobj).max() == 255


def test_the_fragment_is_repeatable_and_cannot_be_broken_out_of() -> None:
    data = make_data()
    locations = uncertain_locations(data)
    fragment = viewer_fragment(data, locations, pack(data))
    assert fragment == viewer_fragment(data, locations, pack(data))
    assert NAMES[1] not in fragment.html
    settings = re.search(r'id="pmpm-settings">(.*?)</script>', fragment.html)
    assert settings is not None
    told = json.loads(settings[1])
    assert [label["name"] for label in told["labels"]] == list(NAMES)
    assert told["topBits"] == pytest.approx(np.log2(3))
    for source in (told["entropy"], told["labelMap"], *told["samples"], *told["shares"]):
        assert f'id="{source["element"]}"' in fragment.html
    assert "</script" not in fragment.script
    assert "unsafe-eval" not in POLICY


def test_turning_comes_back_to_the_file() -> None:
    data = make_data()
    grid = BrowserGrid(data.affine, SHAPE, box_around(data.mask, (3, 3, 3)))
    volume = np.random.default_rng(0).random(SHAPE)
    flat = grid.reorder(volume).ravel(order="F")
    assert flat.size == 11 * 13 * 11
    assert np.array_equal(volume.ravel()[grid.file_index()], flat)


def test_niivue_is_the_version_that_was_checked() -> None:
    digest = hashlib.sha256(niivue().encode()).hexdigest()
    assert digest in asset("README.md")
    assert "0.69.0" in asset("README.md")
    assert "BSD 2-Clause" in asset("NIIVUE-LICENSE.txt")
    assert not re.search(r"\beval\(|new Function\(|importScripts", niivue())
