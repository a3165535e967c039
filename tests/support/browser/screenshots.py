"""Photograph every page: wide and as a phone, light and dark.

``python tests/support/browser/screenshots.py FOLDER`` starts a collector, runs the trainings of ``trainings.py``, which
takes minutes, and photographs what it found; with ``--url URL --run RUN`` it photographs a collector that runs already.
``--published`` writes what the documents show: a part of the pictures, and the demo as a moving one
(``make screenshots``).
"""

from __future__ import annotations

import argparse
import contextlib
import io
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

TESTS = Path(__file__).parents[2]
sys.path[:0] = [str(TESTS), str(TESTS.parent / "agent")]

import numpy as np  # noqa: E402 -- likewise
from PIL import Image  # noqa: E402 -- likewise
from playwright.sync_api import Browser, BrowserContext, sync_playwright  # noqa: E402 -- likewise
from playwright.sync_api import Error as PlaywrightError  # noqa: E402 -- likewise

from gradcanary.demo.processes import Collector, new_secret  # noqa: E402 -- likewise
from gradcanary.demo.story import Receiver  # noqa: E402 -- likewise
from support.browser import addresses, chromium, plots, trainings  # noqa: E402 -- found through the path above

RUN = trainings.COLLAPSED.run
RESUMED = trainings.RESUMED.run
PAIR = (trainings.BF16.run, trainings.FP32.run)
STATES = {
    "run_resumed": f"/runs/{RESUMED}?stat=update_ratio&order=block",
    "run_zoomed": f"/runs/{RESUMED}?from=180&to=260&value=max",
    "run_refused": f"/runs/{RUN}?rows=lora_(A",
    "run_filtered": f"/runs/{RUN}?rows=lora_A&order=worst&stat=norm",
    "runs_filtered": "/?text=lora&state=finished",
    "layer_resumed": f"/runs/{RESUMED}/layers/0",
    "layer_steps": f"/runs/{RUN}/layers/0?from=390&to=420",
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

WAIT_S = 60
"""For a run to begin, and for a message: its incident gathers for 10 s."""

MOST_HIGH = 1200
"""Pixels of a published picture: what one sees first."""
COLOURS, KEPT_COLOURS = 100, 28

FILM_SIZE = (1200, 760)
FILM_STEPS = 500
"""Of the demo's 1,000: until the loss falls again."""
FILM_EACH_MS = 300
"""Between two pictures of the film; loading and drawing take as long again."""
FRAMES_BEFORE, FRAMES_AFTER = 11, 8
"""Frames before and after the incident opens, of all that were taken."""
FRAME_MS, LAST_FRAME_MS = 700, 4000
"""How long a frame is shown."""


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
        try:
            photograph_trainings(camera)
        except trainings.TrainingError as error:
            sys.exit(f"No pictures of the trainings: {error}")


def photograph_trainings(camera: Camera) -> None:
    """Photograph a collector that is empty, then the demo, then all trainings."""
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        receiver = stack.enter_context(contextlib.closing(Receiver(new_secret(), lambda _message: None)))
        collector = stack.enter_context(
            contextlib.closing(Collector(folder / "data", 0, receiver.url, receiver.secret))
        )
        camera.photograph(collector.url, {"empty": "/"})
        runner = stack.enter_context(contextlib.closing(trainings.Runner(collector.url, folder)))
        runner.start(trainings.DEMO)
        if camera.published:
            camera.film(collector, trainings.DEMO[0].run)
        runner.wait()
        for wave in trainings.WAVES:
            runner.start(wave)
            runner.wait()
        camera.photograph(collector.url, pages(collector) | STATES)
        for run in (RUN, PAIR[0]):
            for incident in collector.read(f"/incidents?run={run}")["incidents"]:
                print(f"{run}: {incident['summary']}")  # the captions quote it


def pages(collector: Collector) -> dict[str, str]:
    """Return the address of each page: of the collapse, once its message was delivered, and of the two sums."""
    question = f"/incidents?run={RUN}&rule=collapse&detailed=1"
    wait_for(lambda: collector.read(question)["incidents"][0]["last_deliveries"], f"no message of {RUN}")
    (incident,) = collector.read(question)["incidents"]
    named = {
        "run": RUN,
        "layer": incident["layers"][0]["name"],
        "incident": str(incident["id"]),
        "endpoint": "1",
        "rule": "collapse",
    }
    return addresses.of_each(named, {"compare": f"?run={PAIR[0]}&run={PAIR[1]}&stat=norm"})


def wait_for(condition: Callable[[], object], complaint: str) -> None:
    """Wait until the condition holds, at most ``WAIT_S``."""
    deadline = time.monotonic() + WAIT_S
    while not condition():
        if time.monotonic() > deadline:
            raise trainings.TrainingError(f"{complaint} within {WAIT_S} s")
        time.sleep(0.2)


class Camera:
    """Photographs pages, all of them in each size and theme, or only those that are ``published``."""

    def __init__(self, browser: Browser, folder: Path, *, published: bool) -> None:
        self._browser = browser
        self._folder = folder
        self.published = published

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
                    words = [name, *([] if self.published and size == "wide" else [size]), theme]
                    picture = self._take(context, url + pages[name])
                    (self._folder / f"{'_'.join(words)}.png").write_bytes(picture)
                context.close()

    def film(self, collector: Collector, run: str) -> None:
        """Write ``demo.webp``, the page of a run while it trains, and its last picture for who wants no motion."""
        began = f"/runs?text={run}"
        wait_for(lambda: [each for each in collector.read(began)["runs"] if each["step"]], f"{run} did not begin")
        width, height = FILM_SIZE
        context = self._browser.new_context(viewport={"width": width, "height": height}, color_scheme="light")
        page = context.new_page()
        page.goto(f"{collector.url}/runs/{run}")
        plots.await_figures(page)
        before: list[bytes] = []
        after: list[bytes] = []
        while (seen := collector.read(f"/runs/{run}"))["step"] < FILM_STEPS:
            (after if seen["open_incidents"] else before).append(page.screenshot())
            page.wait_for_timeout(FILM_EACH_MS)
        context.close()
        if not after:
            raise trainings.TrainingError(f"{run} had no incident until step {FILM_STEPS}")
        frames = [*thinned(before, FRAMES_BEFORE), *thinned(after, FRAMES_AFTER)]
        (self._folder / "demo.webp").write_bytes(moving(frames))
        (self._folder / "demo_light.png").write_bytes(small(frames[-1]))

    def _is_wanted(self, name: str, size: str, theme: str) -> bool:
        return not self.published or f"{size} {theme}" in PUBLISHED.get(name, [])

    def _take(self, context: BrowserContext, address: str) -> bytes:
        """Return a picture of a page; a machine that is busy gets three tries."""
        for others in (2, 1, 0):
            page = context.new_page()
            try:
                page.goto(address)
                plots.await_figures(page)
                page.wait_for_timeout(1500)
                picture = page.screenshot(full_page=True)
                break
            except (AssertionError, PlaywrightError):
                if not others:
                    raise
            finally:
                page.close()
        return small(picture) if self.published else picture


def small(picture: bytes) -> bytes:
    """Return a picture in few colours and not too high: a third of its bytes, and one sees no difference."""
    image = Image.open(io.BytesIO(picture)).convert("RGB")
    image = image.crop((0, 0, image.width, min(image.height, MOST_HIGH)))
    colours, places, counts = np.unique(
        np.asarray(image).reshape(-1, 3) @ [1 << 16, 1 << 8, 1], return_inverse=True, return_counts=True
    )
    # The commonest as they are, so that no grey has a tint; the others far apart: a red word in a grey page is red.
    far = image.quantize(COLOURS, Image.Quantize.MAXCOVERAGE).getpalette() or []
    kept = _levels(colours[np.argsort(counts)[-KEPT_COLOURS:]])
    palette = np.concatenate([kept, np.array(far).reshape(-1, 3)])
    # Pillow takes the nearest colour of a palette by the upper bits alone.
    nearest = ((_levels(colours)[:, None] - palette) ** 2).sum(2).argmin(1)
    few = Image.fromarray(nearest[places].reshape(image.height, image.width).astype(np.uint8), "P")
    few.putpalette(palette.astype(np.uint8).tobytes())
    made = io.BytesIO()
    few.save(made, "PNG", optimize=True)
    return made.getvalue()


def _levels(colours: np.ndarray) -> np.ndarray:
    """Return red, green and blue of packed colours, a row for each."""
    return np.stack([colours >> 16, colours >> 8 & 255, colours & 255], axis=1)


def thinned(frames: list[bytes], count: int) -> list[bytes]:
    """Return at most so many frames, evenly spread, with the first and the last one."""
    places = {round(place * (len(frames) - 1) / (count - 1)) for place in range(count)}
    return [frames[place] for place in sorted(places)]


def moving(pictures: list[bytes]) -> bytes:
    """Return pictures as an animated WebP that begins again after a rest on the last one."""
    images = [Image.open(io.BytesIO(picture)).convert("RGB") for picture in pictures]
    durations = [FRAME_MS] * (len(images) - 1) + [LAST_FRAME_MS]
    made = io.BytesIO()
    images[0].save(
        made, "WEBP", save_all=True, append_images=images[1:], duration=durations, loop=0, lossless=True, method=6
    )
    return made.getvalue()


@contextlib.contextmanager
def started() -> Iterator[Browser]:
    """Start Debian's Chromium where there is one, else Playwright's own."""
    with sync_playwright() as playwright:
        flags = ["--no-sandbox", "--disable-gpu", "--hide-scrollbars"]
        browser = playwright.chromium.launch(executable_path=chromium.installed(), args=flags)
        yield browser
        browser.close()


if __name__ == "__main__":
    main()
