"""Photograph every page: wide and as a phone, light and dark.

``python tests/support/browser/screenshots.py FOLDER`` starts a collector of its own and fills it with runs that look
like real ones; with ``--url URL --run RUN`` it photographs a collector that runs already. ``--published`` writes those
that the documents show (``make screenshots``).
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

TESTS = Path(__file__).parents[2]
sys.path[:0] = [str(TESTS), str(TESTS.parent / "agent")]

import httpx  # noqa: E402 -- likewise
from PIL import Image  # noqa: E402 -- likewise
from playwright.sync_api import Browser, BrowserContext, sync_playwright  # noqa: E402 -- likewise

from gradcanary.demo.processes import new_secret  # noqa: E402 -- likewise
from gradcanary.demo.story import Receiver  # noqa: E402 -- likewise
from support.browser import addresses, chromium, plots, scenes  # noqa: E402 -- found through the path above

RUN = "sdxl-lora-bottles-0412"
RESUMED = "t5-adapters-0420"
TWIN = "sdxl-lora-bottles-0418-fp32"
PAIR = ("sd15-lora-bf16", "sd15-lora-fp32")
LAYER = "blocks.4.attn.q.lora_A.weight"
STATES = {
    "run_resumed": f"/runs/{RESUMED}?stat=update_ratio&order=block",
    "run_zoomed": f"/runs/{RESUMED}?from=110&to=150&value=max",
    "run_refused": f"/runs/{RUN}?rows=lora_(A",
    "run_filtered": f"/runs/{RUN}?rows=lora_A&order=worst&stat=norm",
    "runs_filtered": "/?text=sdxl&state=finished",
    "layer_resumed": f"/runs/{RESUMED}/layers/{LAYER}",
    "layer_steps": f"/runs/{RUN}/layers/{LAYER}?from=720&to=740",
    "settings": "/settings",
    "settings_rules": "/settings/rules",
    "settings_silences": "/settings/silences",
    "settings_retention": "/settings/retention",
    "settings_run": f"/runs/{RUN}/settings",
    "compare_choice": f"/compare?run={PAIR[0]}",
    "layer_unknown": f"/runs/{RUN}/layers/no.such.layer",
}
"""Addresses of pages as they are now and then."""

SIZES = {"wide": (1440, 900), "phone": (390, 844)}
THEMES = ("light", "dark")

PUBLISHED = {
    "runs": ["wide light", "wide dark"],
    "run": ["wide light", "wide dark", "phone light"],
    "layer": ["wide light"],
    "incidents": ["wide light"],
    "incident": ["wide light"],
    "compare": ["wide light"],
    "settings": ["wide light"],
    "empty": ["wide light"],
}
"""What the documents show of the pages that there are."""

TOLD_S = 60
"""How long the first message may take: its incident gathers for 10 s."""

MOST_HIGH = 1200
"""Pixels of a published picture: what one sees first."""
COLOURS = 128


def main() -> None:
    """Write the pictures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--url", help="a collector that runs already")
    parser.add_argument("--run", default=RUN, help="the run to photograph there")
    parser.add_argument("--published", action="store_true", help="only what the documents show, small")
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    with started() as browser:
        camera = Camera(browser, arguments.folder, published=arguments.published)
        if arguments.url is not None:
            camera.photograph(arguments.url, {"runs": "/", "run": f"/runs/{arguments.run}"})
            return
        with contextlib.closing(Receiver(new_secret(), lambda _message: None)) as receiver, collector(receiver) as url:
            camera.photograph(url, {"empty": "/"})
            pages = fill(url)
            deadline = time.monotonic() + TOLD_S
            while not receiver.messages and time.monotonic() < deadline:
                time.sleep(0.5)
            camera.photograph(url, pages | STATES)


def fill(url: str) -> dict[str, str]:
    """Post what the pictures show, and return the address of each page."""
    crashed = scenes.send(url, "t5-adapters-0419", scenes.quiet(steps=240, blocks=6, seed=7))
    crashed.end(state="crashed", last_step=239).raise_for_status()
    scenes.send(url, "llama31-8b-qlora-s2", scenes.quiet(seed=5), ended=True)
    scenes.send(url, TWIN, scenes.quiet(), ended=True)
    scenes.resume(url, RESUMED, scenes.quiet(steps=600, blocks=6))
    scenes.send(url, RUN, scenes.collapse(), missing=range(960, 1000))
    scenes.pair(url, *PAIR, steps=800)
    with httpx.Client(base_url=f"{url}/api/v1", trust_env=False) as api:
        for run, said in {
            RUN: {"tags": ["sdxl", "bottles"], "note": "bf16 accumulators, 8 micro-steps"},
            TWIN: {"tags": ["sdxl", "bottles"], "note": "the same with fp32 accumulators"},
            "llama31-8b-qlora-s2": {"tags": ["llm"]},
        }.items():
            api.patch(f"/runs/{run}", json=said).raise_for_status()
        worst = api.get("/incidents", params={"run": RUN}).json()["incidents"]
    critical = next(each for each in worst if each["severity"] == "critical")
    named = {"run": RUN, "layer": LAYER, "incident": str(critical["id"]), "endpoint": "1"}
    return addresses.of_each(named, {"compare": f"?run={PAIR[0]}&run={PAIR[1]}"})


class Camera:
    """Photographs pages, all of them in each size and theme, or only those that are ``published``."""

    def __init__(self, browser: Browser, folder: Path, *, published: bool) -> None:
        self._browser = browser
        self._folder = folder
        self._published = published

    def photograph(self, url: str, pages: Mapping[str, str]) -> None:
        """Write ``<page>_<size>_<theme>.png`` for each page; published ones without ``wide``."""
        for theme in THEMES:
            for size in SIZES:
                wanted = [name for name in pages if self._is_wanted(name, size, theme)]
                if not wanted:
                    continue
                width, height = SIZES[size]
                context = self._browser.new_context(
                    viewport={"width": width, "height": height},
                    color_scheme=theme,  # type: ignore[arg-type]  # a literal, through a loop
                    reduced_motion="reduce",
                )
                for name in wanted:
                    words = [name, *([] if self._published and size == "wide" else [size]), theme]
                    picture = self._take(context, url + pages[name])
                    (self._folder / f"{'_'.join(words)}.png").write_bytes(picture)
                context.close()

    def _is_wanted(self, name: str, size: str, theme: str) -> bool:
        return not self._published or f"{size} {theme}" in PUBLISHED.get(name, [])

    def _take(self, context: BrowserContext, address: str) -> bytes:
        page = context.new_page()
        page.goto(address)
        plots.await_figures(page)
        page.wait_for_timeout(1500)
        picture = page.screenshot(full_page=True)
        page.close()
        return small(picture) if self._published else picture


def small(picture: bytes) -> bytes:
    """Return a picture in few colours and not too high: a third of its bytes, and one sees no difference."""
    image = Image.open(io.BytesIO(picture)).convert("RGB")
    image = image.crop((0, 0, image.width, min(image.height, MOST_HIGH)))
    made = io.BytesIO()
    # Not the colours of most pixels: a red word in a grey page would be grey.
    few = image.quantize(COLOURS, Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE)
    few.save(made, "PNG", optimize=True)
    return made.getvalue()


@contextlib.contextmanager
def started() -> Iterator[Browser]:
    """Start Debian's Chromium where there is one, else Playwright's own."""
    with sync_playwright() as playwright:
        flags = ["--no-sandbox", "--disable-gpu", "--hide-scrollbars"]
        browser = playwright.chromium.launch(executable_path=chromium.installed(), args=flags)
        yield browser
        browser.close()


@contextlib.contextmanager
def collector(receiver: Receiver) -> Iterator[str]:
    """Start a collector on a free port with an empty database, which tells the receiver; yields its address."""
    with tempfile.TemporaryDirectory() as data:
        where = ["--port", "0", "--data", data, "--webhook", receiver.url]
        command = [sys.executable, "-m", "gradcanary.cli", "up", *where]
        env = {**os.environ, "GRADCANARY_WEBHOOK_SECRET": receiver.secret}
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=env)
        assert process.stdout is not None
        try:
            yield next(line for line in process.stdout if "listening on" in line).split()[-1]
        finally:
            process.terminate()
            process.wait()


if __name__ == "__main__":
    main()
