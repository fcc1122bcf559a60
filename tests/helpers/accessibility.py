"""Deque's axe in the browser: which rules of accessibility a page breaks."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

import pytest

from helpers.browser import OpenPage, open_page

SCREENS = [(1400, "light"), (1400, "dark"), (390, "light"), (390, "dark")]
_RULES = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "best-practice"]


def violations(path: Path, width: int, scheme: str) -> list[str]:
    """Open a page on a screen, light or dark, and return the rules that it breaks, with an example.

    Also told: a page that is wider than its screen.
    """
    with open_page(path, width=width) as opened:
        opened.page.emulate_media(color_scheme="dark" if scheme == "dark" else "light")
        broken = broken_rules(opened)
        wide = opened.page.evaluate("document.documentElement.scrollWidth") > width
    return [*broken, *(["wider than the screen"] if wide else [])]


def broken_rules(opened: OpenPage) -> list[str]:
    """Return the rules that an open page breaks now, with an example."""
    pytest.importorskip("axe_core_python", reason="axe-core-python is not installed")
    opened.page.evaluate(files("axe_core_python").joinpath("axe.min.js").read_text("utf-8"))
    found = opened.page.evaluate(f"axe.run(document, {{runOnly: {_RULES}}})")
    assert len(found["passes"]) > 20  # the rules have run
    return [f"{each['id']}: {each['nodes'][0]['html'][:120]}" for each in found["violations"]]
