"""Photograph every page: wide and as a phone, light and dark.

``python tests/browser/screenshots.py FOLDER`` starts a collector of its own with a collapse and two quiet runs;
with ``--url URL --run RUN`` it photographs a collector that runs already.
"""

from __future__ import annotations

import argparse
import contextlib
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

TESTS = Path(__file__).parent.parent
sys.path[:0] = [str(TESTS), str(TESTS.parent / "agent")]

import chromium  # noqa: E402 -- found through the path above
import scenes  # noqa: E402 -- likewise
from playwright.sync_api import Browser, sync_playwright  # noqa: E402 -- likewise

RUN = "sdxl-lora-bottles-0412"
RESUMED = "t5-adapters-0420"
PAIR = ("sd15-lora-bf16", "sd15-lora-fp32")
LAYER = "blocks.4.attn.q.lora_A.weight"
PAGES = {
    "runs": "/",
    "run": f"/runs/{RUN}",
    "run_resumed": f"/runs/{RESUMED}?stat=update_ratio&order=block",
    "run_zoomed": f"/runs/{RESUMED}?from=110&to=150&value=max",
    "run_refused": f"/runs/{RUN}?rows=lora_(A",
    "run_filtered": f"/runs/{RUN}?rows=lora_A&order=worst&stat=norm",
    "layer": f"/runs/{RUN}/layers/{LAYER}",
    "layer_resumed": f"/runs/{RESUMED}/layers/{LAYER}",
    "layer_steps": f"/runs/{RUN}/layers/{LAYER}?from=720&to=740",
    "compare": f"/compare?run={PAIR[0]}&run={PAIR[1]}",
    "compare_choice": f"/compare?run={PAIR[0]}",
    "layer_unknown": f"/runs/{RUN}/layers/no.such.layer",
}
SIZES = {"wide": (1440, 900), "phone": (390, 844)}


def main() -> None:
    """Write the pictures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--url", help="a collector that runs already")
    parser.add_argument("--run", default=RUN, help="the run to photograph there")
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    with started() as browser:
        if arguments.url is not None:
            photograph(browser, arguments.url, {"runs": "/", "run": f"/runs/{arguments.run}"}, arguments.folder)
            return
        with collector() as url:
            photograph(browser, url, {"empty": "/"}, arguments.folder)
            fill(url)
            photograph(browser, url, PAGES, arguments.folder)


def fill(url: str) -> None:
    """Post what the pictures show."""
    scenes.send(url, "llama31-8b-qlora-s2", scenes.quiet(seed=5), ended=True)
    scenes.send(url, "sdxl-lora-bottles-0418-fp32", scenes.quiet(), ended=True)
    scenes.resume(url, RESUMED, scenes.quiet(steps=600, blocks=6))
    scenes.send(url, RUN, scenes.collapse(), missing=range(960, 1000))
    scenes.pair(url, *PAIR, steps=800)


def photograph(browser: Browser, url: str, pages: dict[str, str], folder: Path) -> None:
    """Write ``<page>_<size>_<theme>.png`` for each page."""
    for theme in ("light", "dark"):
        for size, (width, height) in SIZES.items():
            context = browser.new_context(viewport={"width": width, "height": height}, color_scheme=theme)  # type: ignore[arg-type]  # a literal, through a loop
            page = context.new_page()
            for name, path in pages.items():
                page.goto(url + path)
                page.wait_for_selector("main h1:visible")
                if name.startswith("run_") or name == "run":
                    page.wait_for_selector("#heatmap .heatmaplayer image")
                page.wait_for_timeout(1500)
                page.screenshot(path=folder / f"{name}_{size}_{theme}.png", full_page=True)
            context.close()


@contextlib.contextmanager
def started() -> Iterator[Browser]:
    """Start Debian's Chromium where there is one, else Playwright's own."""
    with sync_playwright() as playwright:
        flags = ["--no-sandbox", "--disable-gpu", "--hide-scrollbars"]
        browser = playwright.chromium.launch(executable_path=chromium.installed(), args=flags)
        yield browser
        browser.close()


@contextlib.contextmanager
def collector() -> Iterator[str]:
    """Start a collector on a free port with an empty database; yields its address."""
    with tempfile.TemporaryDirectory() as data:
        command = [sys.executable, "-m", "gradcanary.cli", "up", "--port", "0", "--data", data]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        try:
            yield next(line for line in process.stdout if "listening on" in line).split()[-1]
        finally:
            process.terminate()
            process.wait()


if __name__ == "__main__":
    main()
