"""A real browser that opens pages, and writes down what they ask for and complain about."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page, Playwright

FLAGS = (
    "--use-angle=swiftshader",
    "--enable-unsafe-swiftshader",
    "--no-sandbox",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
    "--disable-quic",
)
PATIENCE_MS = 240_000  # machines may be busy
FROM_THE_PAGE_ITSELF = ("data:", "blob:", "about:")

# Starting Playwright and a Chromium takes longer than most tests: those of one file share them.
_driver: list[Playwright] = []
_browsers: dict[tuple[str, ...], Browser] = {}  # by their flags


@dataclass
class OpenPage:
    """A page in the browser, with the requests that left it and the errors it met."""

    page: Page
    address: str
    requests: list[str] = field(default_factory=list)  # of other addresses than its own
    errors: list[str] = field(default_factory=list)  # of the console, or never caught

    def note_request(self, url: str) -> None:
        """Keep the address of a request, unless the page asks for itself or its own contents."""
        if url.split("#", maxsplit=1)[0] != self.address and not url.startswith(
            FROM_THE_PAGE_ITSELF
        ):
            self.requests.append(url)

    def switch(self, selector: str, on: bool) -> None:
        """Switch a box on or off by the page's own click.

        Software WebGL can keep the page so busy that a click of the mouse is taken only after
        the browser has been asked what it did.
        """
        box = self.page.locator(selector)
        box.evaluate("(box, on) => { if (box.checked !== on) box.click(); }", on)
        assert box.is_checked() is on


def chromium_or_skip() -> str:
    """Return the path of Chromium, and skip the test where it or Playwright is missing."""
    pytest.importorskip("playwright.sync_api", reason="Playwright is not installed")
    for name in ("chromium", "chromium-browser", "google-chrome"):
        found = shutil.which(name)
        if found:
            return found
    pytest.skip("no Chromium is installed: apt-get install chromium")


@contextmanager
def open_page(
    path: Path | str,
    *,
    javascript: bool = True,
    width: int = 1280,
    height: int = 900,
    flags: tuple[str, ...] = (),
) -> Iterator[OpenPage]:
    """Open a file, or an address, in a profile of its own, and close both at the end.

    A file is opened without a network; every request for anything else than itself is noted, and
    so is every error. Scripts of the test run in the page even where its own do not.
    """
    address = path if isinstance(path, str) else path.resolve().as_uri()
    context = _start_browser(flags).new_context(
        java_script_enabled=javascript,
        offline=address.startswith("file:"),
        viewport={"width": width, "height": height},
    )
    try:
        opened = OpenPage(context.new_page(), address)
        opened.page.set_default_timeout(PATIENCE_MS)
        opened.page.on("request", lambda request: opened.note_request(request.url))
        opened.page.on("pageerror", lambda error: opened.errors.append(str(error)))
        opened.page.on(
            "console",
            lambda message: opened.errors.append(message.text) if message.type == "error" else None,
        )
        opened.page.goto(address, wait_until="load")
        yield opened
    finally:
        context.close()


def _start_browser(flags: tuple[str, ...]) -> Browser:
    """Return the Chromium with these flags, started where it does not run yet or any more."""
    executable = chromium_or_skip()
    from playwright.sync_api import sync_playwright

    if not _driver:
        _driver.append(sync_playwright().start())
    found = _browsers.get(flags)
    if found is None or not found.is_connected():
        found = _driver[0].chromium.launch(executable_path=executable, args=[*FLAGS, *flags])
        _browsers[flags] = found
    return found


def close_browsers() -> None:
    """Close every Chromium and Playwright, whose event loop other tests could not stand."""
    while _browsers:
        _browsers.popitem()[1].close()
    while _driver:
        _driver.pop().stop()
