"""The sentence at the top of a page, against what the numbers say."""

from __future__ import annotations

import os
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from helpers.report_cases import NAMES, entropy_bits, report_case
from perturb_mpm.report.answer import PageAnswer, answer
from perturb_mpm.report.data import ReportData, VolumeRow, check_data
from perturb_mpm.report.locations import uncertain_locations
from perturb_mpm.report.pages import about_ml

SHAPE = (20, 24, 16)
NO_INTERVAL = "says nothing about volumes"


def told(data: ReportData) -> PageAnswer:
    data = check_data(data)
    return answer(data, uncertain_locations(data))


def case(marginals: NDArray[Any], affine: NDArray[np.float64], **changes: Any) -> ReportData:
    """A patient of these marginals (4, …); samples spread volumes by three tenths to each side."""
    marginals = marginals.astype(np.float32)
    labels = marginals.argmax(axis=0).astype(np.uint8)
    voxel_ml = float(abs(np.linalg.det(affine[:3, :3]))) / 1000
    volumes = np.bincount(labels.ravel(), minlength=4) * voxel_ml
    expected = marginals.reshape(4, -1).sum(axis=1) * voxel_ml
    rows = [row("label" if l else "background", NAMES[l], [l], volumes, expected) for l in range(4)]
    for name, members in changes.get("regions", {}).items():
        rows.insert(0, row("region", name, list(members), volumes, expected))
    values = {
        "marginals": marginals,
        "labels": labels,
        "entropy": entropy_bits(marginals),
        "uncertainty": np.where(marginals.max(axis=0) < 0.95, 2, 0).astype(np.uint8),
        "volumes": tuple(rows),
        "intervals": "assumed",
    }
    return report_case(labels.shape, affine, **(values | changes))


def row(
    kind: Any, name: str, members: list[int], volumes: NDArray[Any], expected: NDArray[Any]
) -> VolumeRow:
    middle = float(expected[members].sum())
    samples = np.linspace(0.7, 1.3, 41) * middle
    values = tuple((0, 1, 2, 4)[label] for label in members)
    ends = (0.7 * middle, 1.3 * middle)
    return VolumeRow(name, kind, values, float(volumes[members].sum()), samples, ends)


def box_of_oedema(front: float = 0.6) -> NDArray[np.float64]:
    """1000 voxels of oedema, of which 200 at the front are healthy with what is left of 1."""
    marginals = np.zeros((4, *SHAPE))
    marginals[0] = 1
    marginals[:, 5:15, 6:16, 3:13] = np.reshape([0, 0, 1, 0], (4, 1, 1, 1))
    marginals[:, 5:15, 14:16, 3:13] = np.reshape([1 - front, 0, front, 0], (4, 1, 1, 1))
    return marginals


MM = np.eye(4)


def test_volume_sureness_and_main_doubt_by_hand() -> None:
    said = told(case(box_of_oedema(), MM))
    # 800 + 0.6 · 200 = 920 voxels are expected: Dice 2 · 920 / (1000 + 920).
    assert said.found == "Oedema 1.0 ml (0.64–1.2), necrosis none, enhancing none."
    assert (
        said.basis == "Intervals are 95 % and assumed: they were not learned from labelled cases."
    )
    assert said.sure == "Expected Dice if the probabilities are right: oedema 0.96."
    assert said.doubt == (
        "No place stands out. The doubt is along borders, most at the front border of oedema "
        "(oedema or healthy): about 0.080 ml within 2 mm of it are expected to be wrong."
    )
    assert str(said) == f"{said.found} {said.basis} {said.sure} {said.doubt}"


def test_intervals_only_where_they_are_assumed_or_learned() -> None:
    learned = told(case(box_of_oedema(), MM, intervals="learned", learned_cases=11))
    assert learned.found.startswith("Oedema 1.0 ml (0.64–1.2)")
    assert learned.basis == "Intervals are 95 %, learned from 11 labelled cases."
    none = told(case(box_of_oedema(), MM, intervals="none"))
    assert none.found == "Oedema 1.0 ml, necrosis none, enhancing none."
    assert NO_INTERVAL in none.basis
    assert "assumed" not in str(none)


def test_regions_come_in_place_of_labels() -> None:
    data = case(box_of_oedema(), MM, regions={"whole": (1, 2, 3)})
    assert told(data).found == "Whole 1.0 ml (0.64–1.2)."
    assert told(replace(data, intervals="learned")).sure == "Expected Dice: sure of whole 0.96."


def test_each_part_has_its_own_sureness() -> None:
    marginals = box_of_oedema()
    marginals[:, 8:12, 8:12, 6:10] = np.reshape([0, 0.55, 0.45, 0], (4, 1, 1, 1))  # 64 voxels
    said = told(case(marginals, MM, intervals="learned"))
    # Necrosis: 2 · 35.2 / (64 + 35.2); oedema: 936 voxels, 856 + 28.8 of 884.8 expected.
    oedema = 2 * (736 + 120) / (936 + 736 + 120 + 28.8)
    assert said.sure == (
        f"Expected Dice: sure of oedema {oedema:.2f}, unsure of necrosis {70.4 / 99.2:.2f}."
    )


def test_the_dice_that_samples_give_has_an_interval() -> None:
    agreement = {"oedema": (0.931, 0.88, 0.957)}
    assumed = told(case(box_of_oedema(), MM, agreement=agreement))
    assert assumed.sure == "Expected Dice with the truth: oedema 0.93 (0.88–0.96)."
    learned = told(case(box_of_oedema(), MM, agreement=agreement, intervals="learned"))
    assert learned.sure == "Expected Dice with the truth: sure of oedema 0.93 (0.88–0.96)."


def with_samples(samples: NDArray[np.float64], ends: tuple[float, float]) -> str:
    """What is said of 1 ml of oedema with such samples."""
    data = case(box_of_oedema(front=1.0), MM)
    rows = [
        replace(row, samples_ml=samples, interval_ml=ends) if row.name == "oedema" else row
        for row in data.volumes
    ]
    return told(replace(data, volumes=tuple(rows))).found


def test_a_volume_that_is_not_determined_is_no_bare_number() -> None:
    said = with_samples(np.linspace(0.5, 1.7, 41), (0.5, 1.7))
    assert said.startswith("Oedema not determined (0.50–1.7 ml), ")
    said = with_samples(np.linspace(0.55, 1.45, 41), (0.55, 1.45))
    assert said.startswith("Oedema 1.0 ml (0.55–1.4), ")


def test_samples_that_expect_another_volume_than_the_label_map_come_first() -> None:
    said = with_samples(np.linspace(1.1, 1.9, 41), (1.0, 1.9))
    assert said.startswith("Oedema about 1.5 ml (1.0–1.9; label map 1.0), ")


def test_what_the_image_says_is_the_last_sentence() -> None:
    said = told(case(box_of_oedema(), MM, evidence="Voxels that look alike are silent."))
    assert str(said).endswith("expected to be wrong. Voxels that look alike are silent.")


def test_no_tumour_at_all() -> None:
    sure = np.zeros((4, *SHAPE))
    sure[0] = 1
    said = told(case(sure, MM))
    assert said.found == "Nothing was found: healthy is the most probable label everywhere."
    assert (said.sure, said.doubt) == ("", "No voxel is uncertain.")
    unsure = sure.copy()
    unsure[:, 2:6, 2:6, 2:6] = np.reshape([0.7, 0, 0.3, 0], (4, 1, 1, 1))
    said = told(case(unsure, MM))
    expected = 64 * 0.3 / 1000
    assert said.found == (
        "Nothing was found: healthy is the most probable label everywhere. "
        f"Up to {about_ml(1.3 * expected)} ml of oedema are possible."
    )
    assert said.doubt == (
        "Check first: back left part of the image (healthy or oedema), 0.064 ml, about 0.019 ml of "
        "it expected to be wrong. Oedema could appear."
    )
    assert "possible" not in told(case(unsure, MM, intervals="none")).found


def test_a_tiny_tumour_is_counted_in_voxels() -> None:
    tiny = np.zeros((4, *SHAPE))
    tiny[0] = 1
    tiny[:, 10, 12, 8:10] = np.reshape([0.3, 0, 0.7, 0], (4, 1))
    said = told(case(tiny, MM))
    assert said.found.startswith("Oedema 0.002 ml, 2 voxels (0.001–0.002)")
    assert "most at the border of oedema (oedema or healthy): about 0.001 ml" in said.doubt
    one = np.where(np.arange(16) == 9, np.reshape([1, 0, 0, 0], (4, 1, 1, 1)), tiny)
    assert "1 voxel (" in told(case(one, MM)).found


def test_a_label_that_vanishes() -> None:
    marginals = box_of_oedema(front=1.0)
    marginals[:, 8:12, 8:12, 6:10] = np.reshape([0, 0, 0.55, 0.45], (4, 1, 1, 1))
    said = told(case(marginals, MM))
    assert "enhancing none (0.020–0.037)" in said.found
    assert "enhancing" not in said.sure
    assert said.doubt.startswith("Check first: inside oedema (oedema or enhancing), 0.064 ml")


def test_a_flat_image() -> None:
    flat = box_of_oedema()[:, :, :, 8]
    data = replace(case(flat[..., None], MM), title="flat")
    squeezed = {
        name: getattr(data, name)[..., 0]
        for name in ("mask", "labels", "entropy", "uncertainty", "marginals", "sampled_labels")
    }
    data = replace(
        data,
        **squeezed,
        images={name: image[..., 0] for name, image in data.images.items()},
        snapshots=(),
    )
    said = told(data)
    assert said.found.startswith("Oedema 0.10 ml")
    assert "most at the front border of oedema (oedema or healthy): about 0.008 ml" in said.doubt


def test_without_an_orientation() -> None:
    said = told(case(box_of_oedema(), MM, oriented=False))
    assert re.match(
        r"No place stands out. The doubt is along borders, most at the border of oedema near voxel "
        r"\d+, 1[45], \d+ \(oedema",
        said.doubt,
    )
    assert not re.search(r"\b(front|back|left|right|upper|lower)\b", said.found + said.doubt)


def test_too_few_samples_say_so() -> None:
    marginals = box_of_oedema()
    classes = np.where(marginals.max(axis=0) < 0.95, 1, 0).astype(np.uint8)
    said = told(case(marginals, MM, uncertainty=classes))
    assert said.doubt == "No voxel is surely uncertain, but there are too few samples to be sure."


def test_numbers_as_one_says_them() -> None:
    values = {
        0.0: "0",
        0.0001: "under 0.001",
        0.012: "0.012",
        0.2: "0.20",
        3.26: "3.3",
        9.97: "10",
        47.4: "47",
        1234.5: "1234",
    }
    assert {value: about_ml(value) for value in values} == values


ROOT = Path(__file__).parents[2]
BRATS = {"whole": (1, 2, 3), "core": (1, 3), "enhancing": (3,)}  # values 1, 2 and 4


def gliomas() -> list[Path]:
    data = Path(os.environ.get("PERTURB_MPM_DATA") or ROOT.parent / "shared" / "data")
    return sorted((data / "brats2021_2mm").glob("*/*_seg.nii.gz"))


def test_eleven_gliomas() -> None:
    """Experts' labels, blurred into probabilities: every number of the sentence by other means."""
    import nibabel as nib
    from scipy.ndimage import gaussian_filter

    if not gliomas():
        pytest.skip("the gliomas of brats2021_2mm are not there: set PERTURB_MPM_DATA")
    sentences = set()
    for path in gliomas():
        image = nib.load(path)
        assert isinstance(image, nib.Nifti1Image)
        truth = np.asarray(image.dataobj)
        one_hot = np.stack([truth == value for value in (0, 1, 2, 4)]).astype(np.float32)
        blurred = np.stack([gaussian_filter(each, 1.5) for each in one_hot])
        blurred /= blurred.sum(axis=0)
        assert image.affine is not None
        data = case(blurred, image.affine, regions=BRATS)
        said = told(data)
        labels = blurred.argmax(axis=0)
        for name, members in BRATS.items():
            volume = np.isin(labels, members).sum() * 8 / 1000
            expected = r"about [\d.]+ ml \([^;]+; label map ([\d.]+)\)"
            pattern = rf"{name} (none|not determined|{expected}|[\d.]+ ml)"
            found = re.search(pattern, said.found, re.IGNORECASE)
            assert found is not None
            if found[1] == "not determined":
                continue
            assert (found[2] or found[1].removesuffix(" ml")) == (
                about_ml(volume) if volume else "none"
            )
        # What is said is what the list of locations has first, and no more than all of the pair.
        uncertain = blurred.max(axis=0) < 0.95
        order = np.argsort(-blurred[:, uncertain], axis=0)[:2]
        wrong = 1 - blurred[:, uncertain].max(axis=0)
        doubt = re.search(r" \((\w+) or (\w+)\)[,:] .*?about ([\d.]+) ml", said.doubt)
        assert doubt is not None
        pair = [NAMES.index(doubt[1]), NAMES.index(doubt[2])]
        total = wrong[np.isin(order, pair).all(axis=0)].sum() * 8 / 1000
        assert float(doubt[3]) <= total * 1.1
        first, *_ = uncertain_locations(data)
        assert first.where.removesuffix(", all around") in said.doubt
        sentences.add(str(said))
    assert len(sentences) == len(gliomas())
