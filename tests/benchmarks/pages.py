"""Pages in a real Chromium: how long they take to open, to zoom and to show a step, and what open tabs cost the server.

python tests/benchmarks/pages.py [--steps 1000000] [--layers 500] [--keep FOLDER] [--tabs 1 10 50]
The big run is that of big_run.py, whose folder ``--keep`` takes, and a launch in which layers collapse: its incident is
open. It and the run that grows log what an agent measures, and an evaluation each fifty steps: a hundred lines at once.
A first visit is one of a new profile, nothing cached.
A step is on its way from the moment its batch is posted till the page's tile says its number; ten steps a second are
posted, in a batch each half second. Tabs show a run that trains; their Chromium has what the collector leaves of this
machine (nice 19), for those who look on have machines of their own. Exit status 1 where a target is missed.
"""

import argparse
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Self

import ratios

TESTS = Path(__file__).parent.parent
sys.path[:0] = [str(TESTS)]

ratios.need("playwright", "psutil")

import big_run
import httpx
import jobs
import psutil
import servers
from playwright.sync_api import Browser, Page, sync_playwright

from gradcanary import wire
from support import streams
from support.browser import chromium, plots, scenes

TARGETS = {"first heatmap, s": 1.5, "zoom to redraw, ms": 400.0, "ingest to pixels, s": 2.0}
GROWING = "growing"
BEFORE, FELL_AT, FELL = 200, 120, 18
"""Steps that are there at once, the one at which layers collapse, and how many do."""

EVALUATED_EACH, LINES = 50, 100
"""Steps, and the lines of one of the metrics of an evaluation."""

MEASURED_S = 20
HEARD = """() => {
    window.seen = {};
    const note = () => {
        const tile = document.querySelector(".tile .value");
        const step = tile && Number(tile.textContent.replace(/\\D/g, ""));
        if (step && !(step in window.seen)) requestAnimationFrame(() => { window.seen[step] = Date.now() / 1000; });
    };
    new MutationObserver(note).observe(document.body, { childList: true, subtree: true, characterData: true });
}"""
REDRAWN = """() => {
    const { firsts } = document.querySelector("#heatmap .js-plotly-plot").layout.meta;
    return firsts.slice(0, 2).join() !== window.before && window.redrawn ? window.redrawn - window.released : null;
}"""
LISTEN = """() => {
    const plot = document.querySelector("#heatmap .js-plotly-plot");
    window.before = plot.layout.meta.firsts.slice(0, 2).join();
    window.addEventListener("mouseup", () => { window.released = performance.now(); window.redrawn = 0; }, true);
    plot.on("plotly_afterplot", () => { window.redrawn = performance.now(); });
}"""
LOADED = """() => [...performance.getEntriesByType("navigation"), ...performance.getEntriesByType("resource")]
    .reduce((sum, entry) => sum + entry.transferSize, 0)"""


def main() -> int:
    """Print the tables, and which targets were met."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=1_000_000)
    parser.add_argument("--layers", type=int, default=500)
    parser.add_argument("--keep", type=Path)
    parser.add_argument("--tabs", type=int, nargs="*", default=[1, 10, 50])
    parser.add_argument("--rounds", type=int, default=ratios.ROUNDS)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="gradcanary-pages-") as folder, started() as browser:
        data = arguments.keep or Path(folder) / "data"
        if not (data / "gradcanary.db").exists():
            big_run.load(data, arguments.steps, arguments.layers)
        with servers.collector(data) as server:
            go_on(server.url, arguments.steps, arguments.layers)
            found = open_and_zoom(browser, server.url, arguments.rounds)
        with servers.collector(Path(folder) / "live") as server, Growth(server.url, arguments.layers) as growth:
            found["ingest to pixels, s"] = latencies(browser, server.url, growth)
            step_aside()
            print("\n| tabs open | server's CPU | acks: median | p99 |\n|---|---|---|---|")
            for tabs in (0, *arguments.tabs):
                cost(browser, server, growth, tabs)
    are_met = [ratios.judged(name, statistics.median(found[name]), TARGETS[name]) for name in TARGETS]
    return int(not all(are_met))


@contextmanager
def started() -> Iterator[Browser]:
    """Yield a Chromium."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=chromium.installed(), args=["--no-sandbox", "--disable-gpu"]
        )
        yield browser
        browser.close()


@contextmanager
def visit(browser: Browser) -> Iterator[Page]:
    """Yield a tab of a profile of its own."""
    context = browser.new_context(viewport={"width": 1440, "height": 900})
    context.set_default_timeout(120_000)
    yield context.new_page()
    context.close()


def open_and_zoom(browser: Browser, url: str, rounds: int) -> dict[str, list[float]]:
    """Open the big run's page and zoom into it; print and return seconds to the heatmap, milliseconds to the redraw."""
    firsts, agains, zooms, sizes = [], [], [], [0]
    for _ in range(1 + rounds):  # the first one fills the collector's caches
        with visit(browser) as page:
            firsts.append(to_heatmap(page, url))
            sizes.append(page.evaluate(LOADED))
            agains.append(to_heatmap(page, url))
            zooms.append(zoomed(page))
    cold, *warm = firsts
    print("| the big run's page | median (range) |\n|---|---|")
    print(f"| first visit, to the heatmap: {sizes[-1] / 1e3:.0f} kB | {ratios.told(warm, '.2f')} s |")
    print(f"| the same, of a collector just started | {cold:.2f} s |")
    print(f"| another visit | {ratios.told(agains[1:], '.2f')} s |")
    print(f"| drag over the heatmap, to its redraw | {ratios.told(zooms[1:], '.0f')} ms |", flush=True)
    return {"first heatmap, s": warm, "zoom to redraw, ms": zooms[1:]}


def to_heatmap(page: Page, url: str) -> float:
    """Return the seconds from the request to the picture."""
    began = time.perf_counter()
    page.goto(f"{url}/runs/{big_run.RUN}", wait_until="commit")
    page.wait_for_selector(plots.IMAGE)
    return time.perf_counter() - began


def zoomed(page: Page) -> float:
    """Drag over a fifth of the heatmap; return the milliseconds from letting go to the picture of those steps."""
    plots.await_figures(page)
    page.evaluate(LISTEN)
    plots.drag(page, "heatmap", 0.4, 0.6)
    plots.until(page, REDRAWN)
    return float(page.evaluate(REDRAWN))


def troubled(steps: int, layers: int, first_step: int = 0) -> streams.Stream:
    """Return a run in which layers collapse, so early that the incident is open before anything is measured."""
    absmax = streams.collapsed(steps, layers, range(FELL), FELL_AT)
    return streams.Stream(absmax, streams.falling_loss(steps), first_step=first_step)


def logged(batch: wire.Batch) -> wire.Batch:
    """Return a batch with what an agent measures by itself, and in some steps an evaluation."""
    if any(step % EVALUATED_EACH == 0 for step in batch.steps):
        return scenes.with_metrics(batch, hosts=LINES)
    return scenes.costing(batch, **scenes.METRICS)


def go_on(url: str, steps: int, layers: int) -> None:
    """Post one more launch of the big run, unless it is there, and leave it open."""
    known = httpx.get(f"{url}/api/v1/runs/{big_run.RUN}", timeout=60).raise_for_status().json()
    if known["step"] >= steps:
        return
    stream = troubled(BEFORE, layers, first_step=steps)
    session = streams.Session(url, big_run.RUN, "session-of-trouble")
    session.put_hello(stream.hello(launch="trouble")).raise_for_status()
    for seq, batch in enumerate(stream.batches(EVALUATED_EACH)):
        session.post_batch(seq, logged(batch)).raise_for_status()


class Growth:
    """A training of ten steps a second, after some at once; ``posted`` is when a batch was, by its last step."""

    def __init__(self, url: str, layers: int) -> None:
        self.posted: dict[int, float] = {}
        self.acks_s: list[float] = []
        stream = troubled(4000, layers)
        live = (logged(stream.batch(begin, begin + jobs.STEPS)) for begin in range(BEFORE, 4000, jobs.STEPS))
        self._bodies = [(each.steps[-1], wire.dump(each)) for each in live]
        self._session = streams.Session(url, GROWING)
        self._session.put_hello(stream.hello()).raise_for_status()
        self._session.post_batch(0, logged(stream.batch(0, BEFORE, change_records=True))).raise_for_status()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._work)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._thread.join()

    def _work(self) -> None:
        for seq, (last, body) in enumerate(self._bodies, start=1):
            self.posted[last] = time.time()
            began = time.perf_counter()
            self._session.post_batch(seq, body).raise_for_status()
            self.acks_s.append(time.perf_counter() - began)
            if self._stopping.wait(max(0.0, jobs.EACH_S - (time.perf_counter() - began))):
                return


def latencies(browser: Browser, url: str, growth: Growth) -> list[float]:
    """Watch a training's page; print and return the seconds from post to pixels of the steps that it said."""
    with visit(browser) as page:
        page.goto(f"{url}/runs/{GROWING}")
        plots.await_figures(page)
        page.evaluate(HEARD)
        time.sleep(MEASURED_S)
        seen = {int(step): at for step, at in page.evaluate("window.seen").items()}
    found = [at - growth.posted[step] for step, at in seen.items() if step in growth.posted]
    print(f"\na step is on the page {ratios.told(found, '.2f')} s after it was posted: {len(found)} refreshes")
    return found


def step_aside() -> None:
    """Let Chromium take no CPU that others want, the tabs that it opens later neither."""
    for each in psutil.Process().children(recursive=True):
        with suppress(psutil.NoSuchProcess):  # some live for seconds
            if "chrom" in each.name():
                each.nice(19)


def cost(browser: Browser, server: servers.Server, growth: Growth, tabs: int) -> None:
    """Print what so many tabs on a run that trains cost the server, and how long batches take meanwhile."""
    context = browser.new_context()
    for _ in range(tabs):
        context.new_page().goto(f"{server.url}/runs/{GROWING}", wait_until="commit", timeout=120_000)
    time.sleep(2 + tabs / 5)
    before, used, began = len(growth.acks_s), server.cpu_s(), time.perf_counter()
    time.sleep(MEASURED_S)
    share = (server.cpu_s() - used) / (time.perf_counter() - began)
    acks = _rising(growth.acks_s[before:])
    context.close()
    print(f"| {tabs} | {share:.1%} of a core | {acks[len(acks) // 2]:.0f} ms | {acks[len(acks) * 99 // 100]:.0f} ms |")


def _rising(acks_s: Sequence[float]) -> list[float]:
    return sorted(each * 1e3 for each in acks_s)


if __name__ == "__main__":
    raise SystemExit(main())
