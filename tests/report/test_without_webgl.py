"""Where a browser cannot draw, or runs no scripts, the report says so and reads all the same."""

from __future__ import annotations

from pathlib import Path

import pytest

from helpers.browser import open_page
from helpers.viewer_run import copy_run

NO_WEBGL = ("--disable-3d-apis",)


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return copy_run(tmp_path_factory.mktemp("viewer") / "case") / "report.html"


def test_without_webgl_a_sentence_stands_in_its_place(report: Path) -> None:
    with open_page(report, flags=NO_WEBGL) as opened:
        page = opened.page
        page.wait_for_selector('#pmpm-viewer[data-state="without WebGL"]')
        assert page.evaluate("window.pmpm.supported") is False
        sentence = page.locator("[data-part=sentence]")
        assert sentence.is_visible()
        assert "WebGL 2" in sentence.inner_text()
        assert not page.locator("[data-part=stage]").is_visible()
        page.locator("tr.location-row td").last.click()  # does no harm
        assert page.locator("section .slice, section svg, section img").count() > 3
        assert opened.errors == []
        assert opened.requests == []


def test_without_scripts_the_page_says_so(report: Path) -> None:
    with open_page(report, javascript=False) as opened:
        assert opened.page.get_by_text("The viewer needs scripts").is_visible()
        assert not opened.page.locator("[data-part=stage]").is_visible()
        assert opened.errors == []
        assert opened.requests == []
