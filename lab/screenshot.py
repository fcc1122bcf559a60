"""Make docs/report.png, the picture of a report: ``python -m lab.screenshot``.

It needs Playwright (the extra ``test``) and a Chromium that is already there.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from perturb_mpm.cli import UsageError

PICTURE = Path(__file__).parents[1] / "docs" / "report.png"
WIDTH, HEIGHT = 1000, 1150  # pixels of the page that are shown

_FLAGS = ("--use-angle=swiftshader", "--enable-unsafe-swiftshader", "--no-sandbox")
_CHROMIUM = ("chromium", "chromium-browser", "google-chrome")


def photograph(page: Path, picture: Path) -> None:
    """Write the first screen of a page as a PNG."""
    from playwright.sync_api import sync_playwright

    browser = next(filter(None, map(shutil.which, _CHROMIUM)), None)
    if browser is None:
        raise UsageError("a screenshot needs Chromium, got none: apt-get install chromium")
    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=browser, args=[*_FLAGS])
        shown = opened.new_page(viewport={"width": WIDTH, "height": HEIGHT}, color_scheme="light")
        shown.goto(page.resolve().as_uri(), wait_until="load")
        shown.screenshot(path=picture)
        opened.close()


def demo_report(folder: Path) -> Path:
    """Run the demo in a process of its own and return its page."""
    start = "from perturb_mpm.cli import main; main()"
    command = [sys.executable, "-c", start, "demo", "--output", str(folder), "--quiet"]
    subprocess.run(command, check=True)  # noqa: S603 - this program alone
    return folder / "report.html"


if __name__ == "__main__":
    with TemporaryDirectory() as place:
        photograph(demo_report(Path(place)), PICTURE)
