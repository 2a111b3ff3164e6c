"""A real browser for the report's page: Debian's Chromium, driven by playwright.

`make test-browser` runs these tests. They are skipped where either is not installed, and by plain
`pytest`: starting a browser takes seconds.
"""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from covey.report.page.page import build
from tests.report.made_facts import Facts

WANTED = "COVEY_TEST_BROWSER"


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    """One browser for all tests."""
    if not os.environ.get(WANTED):
        pytest.skip(f"set {WANTED}=1, or run make test-browser")
    sync_api = pytest.importorskip("playwright.sync_api")
    path = shutil.which("chromium")
    if path is None:
        pytest.skip("chromium is not installed (apt-get install chromium)")
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield browser
        browser.close()


class Visitor:
    """Opens pages, and remembers their errors and requests."""

    def __init__(self, browser: Any, folder: Path) -> None:
        self.browser = browser
        self.folder = folder
        self.errors: list[str] = []
        self.requests: list[str] = []
        self.pages: list[Any] = []
        self.homes: list[str] = []  # the addresses of the pages

    def open(
        self, facts: Facts, width: int = 1280, scheme: str = "light", fragment: str = ""
    ) -> Any:
        """The page of these facts, drawn."""
        file = self.folder / "report.html"
        file.write_text(build(facts), encoding="utf-8")
        return self.visit(file.as_uri() + fragment, width, scheme)

    def visit(self, address: str, width: int = 1280, scheme: str = "light") -> Any:
        """A page in a window of this width."""
        page = self.browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
        self.pages.append(page)
        self.homes.append(address.partition("#")[0])
        page.on("pageerror", lambda error: self.errors.append(str(error)))
        page.on("console", self._console)
        page.on("request", lambda request: self.requests.append(request.url))
        page.goto(address)
        page.wait_for_selector("footer")
        return page

    def _console(self, message: Any) -> None:
        if message.type in ("error", "warning"):
            self.errors.append(message.text)

    @property
    def foreign(self) -> list[str]:
        """The requests that were not for a page itself, or for what is below its address."""
        return [url for url in self.requests if not url.startswith(tuple(self.homes))]


@pytest.fixture
def visitor(browser: Any, tmp_path: Path) -> Iterator[Visitor]:
    """Pages without errors and without requests; both are checked at the end of the test."""
    visitor = Visitor(browser, tmp_path)
    yield visitor
    for page in visitor.pages:
        page.close()
    assert not visitor.errors
    assert not visitor.foreign
