"""Take a picture of a report's page.

::

    cd trainer && .venv/bin/python ../docs/take_page_picture.py OUT.png

The job comes from the program that makes the jobs of the page's tests.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path

from playwright.sync_api import sync_playwright

sys.path[:0] = [str(Path(__file__).resolve().parent.parent / "trainer")]

from rdm_log.report.write import write  # noqa: E402
from tests.unit.report.conftest import write_job, write_trace  # noqa: E402

SIZE = {"width": 1200, "height": 1000}


def take(page: Path, target: Path) -> None:
    """Write a browser's picture of a page."""
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        tab = browser.new_page(viewport=SIZE)  # type: ignore[arg-type]
        tab.goto(page.as_uri())
        tab.wait_for_selector("html[data-drawn]", state="attached")
        tab.screenshot(path=target)
        browser.close()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        job = write_job(Path(folder) / "gpt-1121-081512")
        write_trace(job, stages=4)
        write([job], Path(folder, "page.html"))
        take(Path(folder, "page.html"), Path(sys.argv[1]))
