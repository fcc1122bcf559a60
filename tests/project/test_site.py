"""The site that ``make docs`` builds: without a warning, complete, and alone in the world."""

from __future__ import annotations

import re
import subprocess
import sys
from html import unescape
from pathlib import Path

import pytest

from helpers.accessibility import broken_rules
from helpers.browser import open_page
from perturb_mpm.cli import app
from perturb_mpm.run import RunSettings, settings_text

ROOT = Path(__file__).resolve().parents[2]
SITE = ROOT / "docs" / "_build" / "html"
# What a browser fetches by itself, as against links that a reader follows.
FETCHED = re.compile(r"""<(?:script|img|iframe)[^>]*\ssrc="([^"]*)"|<link[^>]*\shref="([^"]*)\"""")

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("sphinx", reason="Sphinx is not installed: make docs installs it")
    command = re.search(r"^docs:.*\n\t\$\(RUN\) (-m sphinx .*)$", makefile(), re.MULTILINE)
    assert command is not None
    arguments = [sys.executable, *command[1].split()]
    fcntl = pytest.importorskip("fcntl", reason="this system has no such locks")
    with (tmp_path_factory.getbasetemp().parent / "site.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # one worker after the other
        done = subprocess.run(arguments, check=False, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return SITE


def makefile() -> str:
    return (ROOT / "Makefile").read_text()


def pages(site: Path) -> list[Path]:
    return sorted(site.rglob("*.html"))


def test_warnings_are_errors() -> None:
    assert "--fail-on-warning" in makefile()


def test_pages_fetch_nothing_from_elsewhere(site: Path) -> None:
    fetched = {
        (page.name, source or link)
        for page in pages(site)
        for source, link in FETCHED.findall(page.read_text())
    }
    assert fetched
    assert {each for each in fetched if re.match(r"(https?:)?//", each[1])} == set()
    for sheet in site.rglob("*.css"):
        assert not re.search(r"(url\(|@import )[\"']?(https?:)?//", sheet.read_text()), sheet


def test_every_option_is_on_the_page_of_commands(site: Path) -> None:
    shown = unescape((site / "reference" / "commands.html").read_text())
    options = set(re.findall(r"^\* `(--[a-z-]+)", app.generate_docs(), re.MULTILINE))
    assert len(options) > 50
    assert {option for option in options if option not in shown} == set()


def test_every_setting_is_on_the_page_of_settings(site: Path) -> None:
    text = (site / "reference" / "settings.html").read_text()
    shown = unescape(re.sub(r"<[^>]*>", "", text))
    keys = re.findall(r"^(\w+) = ", settings_text(RunSettings()), re.MULTILINE)
    assert len(keys) > 15
    assert {key for key in keys if f"{key} = " not in shown} == set()


def test_every_name_of_the_reference_has_a_page_with_its_example(site: Path) -> None:
    listed = {
        f"{module}.{name}"
        for page in (ROOT / "docs" / "reference").glob("*.md")
        for module, block in re.findall(
            r"currentmodule:: (\S+)\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL
        )
        for name in re.findall(r"^   (\w+)$", block, re.MULTILINE)
    }
    assert len(listed) > 100
    folder = site / "reference" / "generated"
    texts = {name: folder / f"{name}.html" for name in listed}
    assert {name for name, page in texts.items() if "Examples" not in page.read_text()} == set()


def test_no_link_inside_the_site_is_broken(site: Path) -> None:
    broken = set()
    for page in pages(site):
        for target in re.findall(r'<a [^>]*href="([^"#?]+)', page.read_text()):
            if not re.match(r"[a-z]+:", target) and not (page.parent / target).exists():
                broken.add((page.name, target))
    assert broken == set()


@pytest.mark.parametrize("width", [1400, 390])
def test_pages_fit_the_screen_and_raise_no_error(site: Path, width: int) -> None:
    names = ("index", "tutorial", "run", "benchmarks", "reference/commands", "reference/evaluation")
    for name in names:
        with open_page(site / f"{name}.html", width=width) as opened:
            shown = opened.page.evaluate(
                "[document.documentElement.scrollWidth, document.documentElement.clientWidth]"
            )
            assert shown[0] <= shown[1], name
            assert [url for url in opened.requests if not url.startswith("file:")] == []
            assert opened.errors == []


@pytest.mark.parametrize("name", ["index", "run", "view", "tasks", "benchmarks", "evidence"])
def test_no_rule_of_accessibility_is_broken_light_and_dark(site: Path, name: str) -> None:
    with open_page(site / f"{name}.html", width=1400) as opened:
        for scheme in ("light", "dark"):
            opened.page.emulate_media(color_scheme="dark" if scheme == "dark" else "light")
            opened.page.wait_for_selector(f"html[data-theme={scheme}]")
            opened.page.wait_for_function("document.getAnimations().length === 0")  # of colours
            assert broken_rules(opened) == []
