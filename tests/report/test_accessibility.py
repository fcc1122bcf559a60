"""Every page without a violation of axe's rules, light and dark, on a screen and on a phone."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from helpers.accessibility import SCREENS, violations
from helpers.report_cases import report_case
from perturb_mpm.report import Provenance, write_report


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("page") / "report.html"
    data = report_case(
        truth=np.zeros((20, 24, 16), dtype=np.uint8),
        warnings=("Look twice.",),
        disagreement=np.full((20, 24, 16), 0.1, dtype=np.float32),
        members=3,
        provenance=Provenance("1.0", "2026-03-31", {"t1.nii.gz": "a" * 64}, "a kernel", "votes"),
    )
    write_report(path, data, viewer=False)
    return path


@pytest.mark.slow
@pytest.mark.parametrize(("width", "scheme"), SCREENS)
def test_the_report(page: Path, width: int, scheme: str) -> None:
    assert violations(page, width, scheme) == []


@pytest.mark.slow
def test_the_report_with_its_viewer(tmp_path: Path) -> None:
    write_report(tmp_path / "report.html", report_case())
    assert violations(tmp_path / "report.html", 1400, "light") == []


def test_the_check_finds_what_it_looks_for(tmp_path: Path) -> None:
    bad = tmp_path / "bad.html"
    bad.write_text(
        "<!doctype html><html lang='en'><title>A page</title><main><h1>A page</h1>"
        "<p style='color: #ccc; background: #fff'>Faint words</p><img src='data:,'>"
        "<div style='width: 3000px'>wide</div><a href='#there'>there</a><p id='there'>here</p>"
        "<table><tr><th>a</th></tr></table><ul><li>b</li></ul><button>c</button></main>"
    )
    found = " ".join(violations(bad, 390, "light"))
    assert "color-contrast" in found
    assert "image-alt" in found
    assert "wider than the screen" in found
