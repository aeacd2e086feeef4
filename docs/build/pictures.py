"""Draw docs/explore.png: `python docs/build/pictures.py runs/demo/none-1 runs/demo/rotary-1`, after `make demo`.

The picture is the first screen of a page that `jarilab explore --save` writes, in Chromium under Playwright.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from playwright.sync_api import ViewportSize, sync_playwright

from places import DOCS

EXPLORE = ("--input", "21+211", "--site", "encoder.1", "--head", "5")
SIZE = ViewportSize(width=1280, height=1010)
"""Pixels. The maps of the head end above the lower edge."""


def main() -> None:
    """Raises SystemExit if there is no Chromium, or a run cannot be opened."""
    chromium = shutil.which("chromium")
    if len(sys.argv) < 2 or chromium is None:
        sys.exit(
            f"expected folders of runs, and Chromium on PATH; got {sys.argv[1:]} and {chromium}; {__doc__}"
        )
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        page_file = Path(folder, "page.html")
        explore = [
            sys.executable,
            "-m",
            "jarilab",
            "explore",
            *sys.argv[1:],
            *EXPLORE,
            "--save",
            str(page_file),
        ]
        subprocess.run(explore, check=True)
        browser = playwright.chromium.launch(
            executable_path=chromium, args=["--no-sandbox"]
        )  # as root
        page = browser.new_page(viewport=SIZE, color_scheme="light")
        page.goto(page_file.as_uri())
        page.wait_for_selector("html[data-ready]")
        page.wait_for_timeout(1000)  # drawings are faded in
        page.screenshot(path=DOCS / "explore.png")
        browser.close()


if __name__ == "__main__":
    main()
