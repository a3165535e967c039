"""A run in a notebook: what its cell shows, which origins may frame its page, and that no frame changes anything."""

import base64
import io
import re
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import numpy as np
import pytest
from IPython.core.formatters import DisplayFormatter
from PIL import Image
from playwright.sync_api import FrameLocator, Page, Route, expect

import gradcanary
from gradcanary.client import picture
from gradcanary.display import live_page
from gradcanary_dashboard.analysis.arrays import decode
from gradcanary_dashboard.analysis.stats import STATS
from gradcanary_dashboard.figures import heatmap
from support.browser import scenes
from support.browser.plots import IMAGE
from support.collectors import Collector
from support.waiting import eventually

RUN = "lora-collapse"
JUPYTER, STRANGER = "http://jupyter.example:8888", "http://stranger.example"
NOTE = "Written from inside a frame"


@pytest.fixture
def notebook() -> Iterator[Callable[[str], str]]:
    """Serve a page on another port of this machine, as Jupyter does; takes its HTML, returns its address."""
    served: list[ThreadingHTTPServer] = []

    def serve(body: str) -> str:
        class Answer(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                page = document(body).encode()
                self.send_response(200)
                self.send_header("Content-Type", "text/html; charset=utf-8")
                self.send_header("Content-Length", str(len(page)))
                self.end_headers()
                self.wfile.write(page)

            def log_message(self, *arguments: object) -> None:
                """Say nothing."""

        served.append(ThreadingHTTPServer(("127.0.0.1", 0), Answer))
        threading.Thread(target=served[-1].serve_forever).start()
        return f"http://127.0.0.1:{served[-1].server_port}/"

    yield serve
    for server in served:
        server.shutdown()
        server.server_close()


PIXELS = """async (image) => {
    await image.decode();
    const canvas = new OffscreenCanvas(image.naturalWidth, image.naturalHeight).getContext("2d");
    canvas.drawImage(image, 0, 0);
    const { data } = canvas.getImageData(0, 0, image.naturalWidth, image.naturalHeight);
    return Array.from(new Uint32Array(data.buffer));
}"""


def shown_in_cell(run: gradcanary.client.Run) -> dict[str, Any]:
    """Return what IPython shows of the last line of a cell."""
    shown, _ = DisplayFormatter().format(run)
    return shown


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_a_cell_says_what_the_page_says(
    shared: Collector, notebook: Callable[[str], str], open_page: Callable[..., Page], theme: str
) -> None:
    shown = shown_in_cell(gradcanary.Client(shared.url).run(RUN))
    page = open_page(f"{shared.url}/runs/{RUN}", theme=theme)
    label, verdict = page.locator(".verdict .badge").inner_text(), page.locator(".verdict [aria-live]").inner_text()
    page.goto(notebook(shown["text/html"]))
    expect(page.locator("main")).to_contain_text(f"{RUN} {label} {verdict}")
    assert f"{RUN} [{label}] {verdict}" in shown["text/plain"]
    assert page.locator("script").count() == 0
    assert page.locator("main > div").bounding_box()["width"] <= 640
    expect(page.get_by_role("link")).to_have_attribute("href", f"{shared.url}/runs/{RUN}")


def test_the_picture_is_the_heatmap_of_the_collector(
    shared: Collector, notebook: Callable[[str], str], open_page: Callable[..., Page]
) -> None:
    """Cell by cell in the colours of the page, decoded by Pillow and by Chromium."""
    html = shown_in_cell(gradcanary.Client(shared.url).run(RUN))["text/html"]
    png = base64.b64decode(re.search('data:image/png;base64,([^"]+)', html)[1])
    drawn = np.asarray(Image.open(io.BytesIO(png)).convert("RGBA"))
    answer = shared.get(f"/api/v1/runs/{RUN}/heatmap", columns=picture.COLUMNS, rows=picture.ROWS).json()
    cells = decode(answer["cells"]).copy()
    cells[(cells == heatmap.NO_DATA) & np.isfinite(decode(answer["times"]))] = heatmap.NOT_SAMPLED
    scale, codes = heatmap.coded(cells, STATS["absmax"], answer["threshold"]["enter"])
    rows, columns = cells.shape
    stops = [(stop, rgb(colour)) for stop, colour in scale.colours() if colour.startswith("#")]
    places = (codes.astype(float) - scale.first) / (scale.last - scale.first)
    at, colours = [stop for stop, _ in stops], np.array([colour for _, colour in stops])
    wanted = np.stack([np.interp(places, at, channel) for channel in colours.T], axis=-1)
    x = (np.arange(picture.WIDTH_PX) + 0.5) * columns / picture.WIDTH_PX
    y = np.arange(drawn.shape[0]) * rows // drawn.shape[0]
    far = np.abs(drawn[..., :3] - wanted[y][:, x.astype(int)]).max(axis=-1)
    assert {(0, 0, 0, 255), (154, 161, 169, 255)} < set(map(tuple, drawn.reshape(-1, 4).tolist())), "zero and missing"
    assert far.max() <= 3.3, "the nearest of 241 colours"
    assert (drawn[..., 3] == 255).all()
    page = open_page(notebook(html))
    seen = page.locator("img").evaluate(PIXELS)
    assert (np.array(seen, "<u4").view(np.uint8).reshape(drawn.shape) == drawn).all()


def rgb(colour: str) -> tuple[int, ...]:
    return tuple(bytes.fromhex(colour[1:]))


def document(body: str) -> str:
    return f"<!doctype html><meta charset=utf-8><link rel=icon href=data:,><title>notebook</title><main>{body}</main>"


def shown_at(page: Page, origin: str, url: str) -> FrameLocator:
    """Open a page of an origin that frames ``url``; no such host is asked."""

    def answer(route: Route) -> None:
        route.fulfill(body=document(live_page.frame(url, 800)), content_type="text/html")

    page.route(f"{origin}/", answer)
    page.goto(f"{origin}/")
    return page.frame_locator("iframe")


def test_a_notebook_on_this_machine_shows_the_live_page(
    shared: Collector, notebook: Callable[[str], str], open_page: Callable[..., Page]
) -> None:
    page = open_page(notebook(live_page.frame(f"{shared.url}/runs/{RUN}", 800)))
    frame = page.frame_locator("iframe")
    expect(frame.locator("h1")).to_have_text(RUN)
    expect(frame.locator(".verdict")).to_contain_text("collapse")
    frame.locator(IMAGE).first.wait_for()
    expect(frame.get_by_role("button", name="Ack")).to_have_count(0)
    frame.get_by_role("button", name="Copy link").click()
    expect(frame.get_by_role("button", name="Copied")).to_be_visible()
    expect(page.get_by_role("link")).to_have_attribute("href", f"{shared.url}/runs/{RUN}")


def test_nothing_is_changed_from_inside_a_frame(
    collector: Collector, notebook: Callable[[str], str], open_page: Callable[..., Page]
) -> None:
    """A page around it could hide what a click does."""
    scenes.send(collector.url, RUN, scenes.quiet(steps=40, blocks=1))
    settings = f"{collector.url}/runs/{RUN}/settings"
    page = open_page(notebook(live_page.frame(settings, 800)))
    write_note(page.frame_locator("iframe"))
    expect(page.frame_locator("iframe").locator("main")).to_contain_text("Inside another page nothing is changed here")
    assert collector.get(f"/api/v1/runs/{RUN}").json()["note"] == ""
    page.goto(settings)
    write_note(page)
    assert eventually(lambda: collector.get(f"/api/v1/runs/{RUN}").json()["note"]) == NOTE


def write_note(place: Any) -> None:
    place.get_by_label("Note").fill(NOTE)
    place.get_by_role("button", name="Save").first.click()


def test_only_named_origins_frame_a_page(
    collector_factory: Callable[..., Collector], open_page: Callable[..., Page], complaints: list[str]
) -> None:
    collector = collector_factory(env={"GRADCANARY_EMBED_IN": JUPYTER})
    scenes.send(collector.url, RUN, scenes.quiet(steps=40, blocks=1))
    page = open_page("about:blank")
    expect(shown_at(page, JUPYTER, f"{collector.url}/runs/{RUN}").locator("h1")).to_have_text(RUN)
    assert complaints == []
    refused = shown_at(page, STRANGER, f"{collector.url}/runs/{RUN}")
    expect(refused.locator("h1")).not_to_have_text(RUN)
    assert len(complaints) == 1
    assert "frame-ancestors" in complaints[0]
    complaints.clear()
