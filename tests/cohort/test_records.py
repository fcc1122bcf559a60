"""The record of a case: its file, and its small picture in the report's window and colours."""

from __future__ import annotations

import json
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from helpers.page_pictures import luminance
from helpers.report_cases import pixels_of
from perturb_mpm.cohort.records import (
    CaseOutcome,
    CaseRecord,
    FileStamp,
    RegionFigures,
    draw_picture,
    read_record,
)
from perturb_mpm.files import geometry_from_affine
from perturb_mpm.report import EntropyScale
from perturb_mpm.storage import DamagedError

SHAPE = (24, 30, 8)
LABELS = ("background", "core", "oedema", "enhancing")


def pixels(affine: NDArray[np.float64], right: bool) -> NDArray[np.float32]:
    """The picture of a patient who is uncertain in front, on the right or the left; others bright.

    The tissue that is certain is as bright as images get.
    """
    rng = np.random.default_rng(6)
    steps = np.stack(np.meshgrid(*(np.arange(n) - (n - 1) / 2 for n in SHAPE), indexing="ij"), -1)
    mm = steps @ affine[:3, :3].T
    side = mm[..., 0] > 3 if right else mm[..., 0] < -3
    uncertain = side & (mm[..., 1] > 3) & (np.abs(mm[..., 2]) < 3)
    entropy = np.where(uncertain, rng.uniform(0.4, 2.0, SHAPE), 0).astype(np.float32)
    image = np.where(uncertain, 50, 1000).astype(np.float32)
    run: Any = SimpleNamespace(
        case=SimpleNamespace(
            images={"t1": image},
            mask=np.ones(SHAPE, bool),
            labels=LABELS,
            geometry=geometry_from_affine(SHAPE, affine),
        ),
        entropy=entropy,
        settings=SimpleNamespace(report=SimpleNamespace(colour_map="inferno")),
    )
    return pixels_of(draw_picture(run))[..., :3]


@pytest.mark.parametrize("signs", [(1, 1), (-1, 1), (-1, -1)])
@pytest.mark.parametrize("right", [True, False])
def test_colour_is_on_the_scale_brighter_than_all_else_and_on_its_side(
    signs: tuple[int, int], right: bool
) -> None:
    found = pixels(np.diag([2.0 * signs[0], 2.0 * signs[1], 3.0, 1.0]), right)
    scale = EntropyScale("inferno", math.log2(4))
    shown = {tuple(colour) for colour in scale.palette[scale.first_shown :].tolist()}
    coloured = np.ptp(found, axis=-1) > 0
    assert coloured.any()
    whole = np.round(255 * found[coloured]).astype(int)
    assert {tuple(colour) for colour in whole.tolist()} <= shown
    assert luminance(found[~coloured]).max() < luminance(found[coloured]).min()
    rows, columns = np.nonzero(coloured)
    assert rows.max() < found.shape[0] / 2  # the front is on top
    middle = found.shape[1] / 2
    assert (columns.max() < middle) if right else (columns.min() > middle)


def test_a_record_is_read_as_it_was_written(tmp_path: Path) -> None:
    figures = RegionFigures("core", "label", "1", 2.5, 2.0, 3.0, 0.1, 0.0, 0.9, 0.8, None, None)
    outcome = CaseOutcome(
        truth=None,
        files=("labels.nii.gz",),
        report="report.html",
        samples=20,
        intervals_rest_on="assumed",
        image_evidence=0.7,
        temperature=1.2,
        mask_ml=4.0,
        mask_voxels=500,
        mean_entropy_bits=0.1,
        active_share=1.0,
        expected_dice=0.8,
        dice=None,
        rows=(figures,),
        warnings=("a strange mask",),
        picture="data:,",
    )
    stamps = (FileStamp("/a.nii.gz", 10, 20, "ab"), FileStamp("/gone.nii.gz", None, None, None))
    done = CaseRecord(
        "A", None, {"seed": 5}, stamps, "1f", outcome=outcome, seconds=1.5, peak_memory_mb=300
    )
    failed = CaseRecord("B", "no such file", {"seed": 5}, (), None)
    for record in (done, failed):
        record.write(tmp_path)
        assert read_record(tmp_path, record.case) == record
    assert (done.status, failed.status) == ("done", "failed")
    (tmp_path / "cohort" / "C.json").write_text((tmp_path / "cohort" / "A.json").read_text())
    with pytest.raises(DamagedError, match=r"C\.json is no record of C: it is the record of A;"):
        read_record(tmp_path, "C")
    assert read_record(tmp_path, "D") is None


@pytest.mark.parametrize(
    "content", ["", "[]", "{}", '{"case": "C"', '{"case": "C", "status": "done", "inputs": 3}']
)
def test_a_damaged_record_is_named_with_what_to_do(content: str, tmp_path: Path) -> None:
    path = tmp_path / "cohort" / "C.json"
    path.parent.mkdir()
    path.write_text(content)
    with pytest.raises(DamagedError, match="the same command runs the case again") as refused:
        read_record(tmp_path, "C")
    assert str(refused.value).count(str(path)) == 1


def test_a_record_that_lacks_an_entry_says_which(tmp_path: Path) -> None:
    content = {**CaseRecord("C", None, {}, (), None).to_json(), "status": "done"}
    (tmp_path / "cohort").mkdir()
    (tmp_path / "cohort" / "C.json").write_text(json.dumps(content))
    with pytest.raises(DamagedError, match="it lacks 'truth'"):
        read_record(tmp_path, "C")
