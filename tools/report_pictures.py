"""Pictures of a report for the docs: `python -m tools.report_pictures REPORT.html docs`.

It needs playwright (the extra `browser`), Chromium and Pillow. It writes report-top.png
(the README's), report-desktop.png, report-dark.png and report-phone.png.
"""

from __future__ import annotations

import io
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from PIL import Image
from playwright.sync_api import sync_playwright


@dataclass(frozen=True)
class Shot:
    """A part of the page: from the top of one section to the end of another."""

    name: str
    width: int
    scheme: str
    colour: str
    first: str
    last: str


SHOTS = (
    Shot("top", 1280, "light", "metric", "header", "#runs"),
    Shot("desktop", 1280, "light", "metric", "header", "#tree"),
    Shot("dark", 1280, "dark", "gain", "#tree", "#devices"),
    Shot("phone", 390, "light", "metric", "header", "#curves"),
)
MARGIN = 28  # px above a first section and below a last one


def take(browser: Any, report: Path, shot: Shot) -> bytes:
    """One picture as a PNG."""
    size = {"width": shot.width, "height": 900}
    page = browser.new_page(viewport=size, color_scheme=shot.scheme)
    page.goto(report.resolve().as_uri())
    page.check(f"input[name=colour][value={shot.colour}]", force=True)
    page.mouse.move(1, 1)
    page.evaluate("scrollTo(0, 0)")
    top = page.locator(shot.first).first.bounding_box()["y"]
    last = page.locator(shot.last).first.bounding_box()
    top = max(0, top - MARGIN)
    height = last["y"] + last["height"] + MARGIN - top
    clip = {"x": 0, "y": top, "width": shot.width, "height": height}
    picture: bytes = page.screenshot(full_page=True, clip=clip)
    page.close()
    return picture


def main(report: Path, folder: Path) -> None:
    """Write all pictures."""
    with sync_playwright() as playwright:
        path = shutil.which("chromium")
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        for shot in SHOTS:
            picture = Image.open(io.BytesIO(take(browser, report, shot))).convert("RGB")
            target = folder / f"report-{shot.name}.png"
            picture.save(target, optimize=True)
            print(f"{target}: {picture.size}, {target.stat().st_size / 1e3:.0f} kB")
        browser.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
