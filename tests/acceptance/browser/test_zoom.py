"""Zoom to the very step, by mouse, finger and key, while steps arrive."""

import re
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from playwright.sync_api import Page, Request, Route, expect

from gradcanary_dashboard.figures import palette
from support.browser import scenes
from support.browser.plots import IMAGE, drag, draw_over, meta, open_run, place, point, query, steps_in_sight, until
from support.waiting import eventually

RUN = "lora-collapse"
LAYER = "blocks.4.attn.q.lora_A.weight"


def test_dragging_on_the_heatmap_zooms_to_the_very_step(shared: Any, open_page: Callable[..., Page]) -> None:
    page = open_run(open_page, shared.url, RUN)
    assert np.diff(meta(page)["firsts"]).tolist()[:1] == [2]
    expect(page.locator("#run-zoom-note")).to_contain_text("2 steps per column")
    drag(page, "heatmap", 0.5, 0.7)
    expect(page.locator("#run-zoom-note")).to_have_text("single steps")
    eventually(lambda: np.diff(meta(page)["firsts"]).tolist()[:1] == [1])
    first, last = int(query(page)["from"]), int(query(page)["to"])
    assert 340 <= first <= 360 < 480 <= last <= 500
    eventually(lambda: steps_in_sight(page) == [first - 0.5, last + 0.5])
    ranged = "range => '' + document.querySelector('#trend .js-plotly-plot').layout.xaxis.range === '' + range"
    until(page, ranged, arg=[first - 0.5, last + 0.5])
    drag(page, "trend", 0.5, 0.52)
    until(page, "document.querySelector('#heatmap .js-plotly-plot').layout.meta.firsts.length < 6")
    first = int(query(page)["from"])
    point(page, "heatmap", first, down=0.1)
    expect(page.locator("#readout")).to_contain_text(re.compile(rf"step {first}\s*absmax 0\.\d"))
    point(page, "trend", first)
    measured = shared.get(f"/api/v1/runs/{RUN}/export.csv").text.splitlines()
    column = measured[0].split(",").index(page.locator("#trend-title").inner_text())
    row = next(line.split(",") for line in measured[1:] if line.split(",")[0] == str(first))
    expect(page.locator("#trend .hoverlayer")).to_contain_text(f"step {first}")
    told = (page.locator("#trend .hoverlayer").text_content() or "").replace(",", "")
    number = re.search(rf"step {first}\s*(\d\.\d+(?:e-\d+)?)", told)
    assert number is not None
    assert np.float32(number[1]) == pytest.approx(np.float32(row[column]), rel=1e-6)
    page.get_by_role("button", name="Reset zoom").click()
    expect(page.locator(".reset")).to_be_hidden()
    expect(page.locator("#run-zoom-note")).to_contain_text("2 steps per column")
    assert query(page) == {}


def test_nothing_lies_over_the_buttons_after_a_drag(shared: Any, open_page: Callable[..., Page]) -> None:
    page = open_run(open_page, shared.url, RUN)
    drag(page, "heatmap", 0.5, 0.7)
    expect(page.locator(".notifier-note")).to_have_count(0, timeout=100)
    drag(page, "trend", 0.5, 0.7)
    expect(page.locator(".notifier-note")).to_have_count(0, timeout=100)


def test_a_zoom_asks_once_and_metrics_wait_for_the_heatmap(shared: Any, open_page: Callable[..., Page]) -> None:
    page = open_run(open_page, shared.url, RUN)
    page.wait_for_selector("#trend .main-svg")
    asked: list[str] = []

    def said(request: Request) -> str:
        return f"{request.url} {request.post_data or ''}"

    page.on("request", lambda request: asked.append(said(request)))
    page.on("response", lambda answer: asked.append("answer to " + said(answer.request)))

    def dawdle(route: Route) -> None:
        if "from=" in (route.request.post_data or ""):
            time.sleep(1)  # metrics would be asked for meanwhile
        route.continue_()

    page.route("**/_refresh", dawdle)
    page.evaluate("""() => {
        const plot = document.querySelector("#heatmap .js-plotly-plot");
        window.drawn = [];
        plot.on("plotly_afterplot", () => {
            const [first, second] = plot.layout.meta.firsts;
            window.drawn.push(second - first);
        });
    }""")
    drag(page, "heatmap", 0.5, 0.7)
    expect(page.locator("#run-zoom-note")).to_have_text("single steps")
    page.locator("#loss").scroll_into_view_if_needed()
    until(page, "document.querySelector('#loss .js-plotly-plot').layout.xaxis.range[0] > 300")
    assert page.evaluate("window.drawn") == [2, 1], "where the mouse led, and what the collector says of it"
    first, second, *_ = [each for each in asked if "from=" in each or "from%3D" in each]
    assert "/_refresh" in first
    assert second == f"answer to {first}", "metrics wait for the heatmap"


def test_keys_zoom_as_well_as_a_mouse(shared: Any, open_page: Callable[..., Page]) -> None:
    page = open_page(f"{shared.url}/runs/{RUN}/layers/{LAYER}")
    expect(page.locator("#stat-norm .scatterlayer .trace").first).to_be_attached()
    expect(page.locator("#layer-zoom-note")).to_contain_text("2 steps per point")
    for _ in range(9):
        address = page.url
        page.get_by_role("button", name="Zoom in").press("Enter")
        until(page, "address => window.location.href !== address", arg=address)
        expect(page.locator("#layer-reset")).to_be_visible()
        left, right = int(query(page)["from"]) - 0.5, int(query(page)["to"]) + 0.5
        until(
            page,
            "range => '' + document.querySelector('#stat-absmax .js-plotly-plot').layout.xaxis.range === '' + range",
            arg=[left, right],
        )
    assert right - left == 1
    expect(page.locator("#layer-zoom-note")).to_have_text("single steps")
    page.get_by_role("button", name="Later steps").press("Enter")
    page.wait_for_url(f"**?from={int(left + 1.5)}&to={int(left + 1.5)}")
    page.get_by_role("button", name="Reset zoom").press("Enter")
    expect(page.locator("#layer-reset")).to_be_hidden()


@pytest.mark.parametrize("path", ["runs/lora-quiet", f"runs/lora-quiet/layers/{LAYER}", "compare?run=lora-quiet"])
def test_no_button_leads_beyond_the_steps_there_are(path: str, shared: Any, open_page: Callable[..., Page]) -> None:
    first = f"{shared.url}/{path}" + ("&run=lora-fell" if "?" in path else "")
    last = 399 if "?" in path else 119
    page = open_page(first)
    button = {word: page.get_by_role("button", name=word) for word in ("Zoom out", "Earlier steps", "Later steps")}
    page.wait_for_selector(".plotted .main-svg", state="attached")
    for each in button.values():
        each.click()
        page.wait_for_timeout(200)
        assert page.url == first, "all of it stays followed"
    page.get_by_role("button", name="Zoom in").click()
    until(page, "location.search.includes('from=')")
    for _ in range(4):
        button["Later steps"].click()
        page.wait_for_timeout(200)
    width = int(query(page)["to"]) - int(query(page)["from"])
    assert (width, int(query(page)["to"])) == ((last + 1) // 2 - 1, last)
    button["Zoom out"].click()
    page.wait_for_timeout(200)
    seen = query(page)
    assert int(seen["to"]) == last
    assert int(seen["from"]) < last - width
    button["Zoom out"].click()
    page.wait_for_url(first)


def test_steps_that_nobody_has_yet_are_no_data_and_not_white(shared: Any, open_page: Callable[..., Page]) -> None:
    """White is the threshold; a link that leads further than the run still shows all that it names."""
    page = open_run(open_page, shared.url, "lora-quiet?from=60&to=239")
    assert steps_in_sight(page) == [59.5, 239.5]
    fills = page.evaluate(
        "document.querySelector('#heatmap .js-plotly-plot').layout.shapes.map((one) => one.fillcolor)"
    )
    void = page.locator(f"#heatmap .shapelayer path[data-index='{fills.index(palette.NO_DATA)}']")
    paper, box = page.locator("#heatmap .nsewdrag").bounding_box(), void.bounding_box()
    assert paper is not None
    assert box is not None
    assert box["x"] == pytest.approx(paper["x"] + paper["width"] / 3, abs=6)
    assert box["width"] == pytest.approx(paper["width"] * 2 / 3, abs=6)
    page.get_by_role("button", name="Zoom out").click()
    page.wait_for_url("**/lora-quiet")


def test_a_zoom_of_a_layer_page_is_kept_while_steps_arrive(shared: Any, open_page: Callable[..., Page]) -> None:
    session = scenes.send(shared.url, "growing-layers", scenes.quiet(steps=160, blocks=4))
    page = open_page(f"{shared.url}/runs/growing-layers/layers/0")
    expect(page.locator("#stat-norm .scatterlayer .trace").first).to_be_attached()
    drag(page, "stat-norm", 0.25, 0.75)
    page.locator("#siblings a").first.focus()
    expect(page.locator("#layer-reset")).to_be_visible()
    zoomed = steps_in_sight(page, "stat-norm")
    assert 30 < zoomed[0] < 50 < 110 < zoomed[1] < 130
    eventually(lambda: steps_in_sight(page, "stat-absmax") == zoomed)
    session.post_batch(4, scenes.quiet(steps=200, blocks=4).batch(160, 200)).raise_for_status()
    expect(page.locator(".tile").first).to_contain_text("at step 199")
    assert steps_in_sight(page, "stat-absmax") == zoomed
    expect(page.locator("#siblings a").first).to_be_focused()


BACK_AS_IT_IS_DRAWN = """() => {
    const plot = document.querySelector("#heatmap .js-plotly-plot");
    const before = String(plot.layout.xaxis.range);
    const look = () => (String(plot.layout.xaxis.range) === before ? setTimeout(look) : history.back());
    const paint = window.requestAnimationFrame;
    window.requestAnimationFrame = () => 0; // as slow as it may be
    setTimeout(() => { window.requestAnimationFrame = paint; }, 300);
    window.gradcanary.go({ from: 100, to: 300 });
    look();
}"""


def test_a_zoom_that_is_taken_back_as_it_is_drawn_leaves_nothing(shared: Any, open_page: Callable[..., Page]) -> None:
    """The page got a new picture before Dash had it, and Dash never took it."""
    page = open_run(open_page, shared.url, RUN)
    whole = steps_in_sight(page)
    for _ in range(5):
        page.evaluate(BACK_AS_IT_IS_DRAWN)
        until(page, "location.search === ''")
        range_of = "'' + document.querySelector('#heatmap .js-plotly-plot').layout.xaxis.range"
        until(page, f"whole => {range_of} === '' + whole", arg=whole)


@pytest.mark.parametrize(("begin", "end"), [(0.05, 0.95), (0, 1), (0.01, 1.05)])
@pytest.mark.parametrize("figure", ["heatmap", "trend"])
def test_a_drag_over_all_that_is_in_sight_leaves_it(
    figure: str, begin: float, end: float, shared: Any, open_page: Callable[..., Page]
) -> None:
    """Nothing is asked for then, so nothing would put the figure back."""
    page = open_run(open_page, shared.url, f"{RUN}?from=100&to=103")
    plot = f"document.querySelector('#{figure} .js-plotly-plot')"
    page.evaluate(f"{plot}.on('plotly_relayout', () => {{ document.title = 'dragged'; }})")
    draw_over(page, figure, begin, end)
    until(page, f"document.title === 'dragged' && '' + {plot}.layout.xaxis.range === '99.5,103.5'")
    assert query(page) == {"from": "100", "to": "103"}


@pytest.mark.parametrize(("begin", "end", "steps"), [(0.6, 1.05, ("102", "103")), (0.4, -0.02, ("100", "101"))])
@pytest.mark.parametrize("choice", ["", "&x=time"])
def test_a_drag_past_an_end_shows_no_step_that_was_not_in_sight(
    choice: str, begin: float, end: float, steps: tuple[str, str], shared: Any, open_page: Callable[..., Page]
) -> None:
    page = open_run(open_page, shared.url, f"{RUN}?from=100&to=103{choice}")
    drag(page, "heatmap", begin, end)
    assert (query(page)["from"], query(page)["to"]) == steps


def test_keyboard_zoom_stays_in_place_while_steps_arrive(shared: Any, open_page: Callable[..., Page]) -> None:
    session = scenes.send(shared.url, "growing-run", scenes.quiet(steps=160, blocks=4))
    page = open_run(open_page, shared.url, "growing-run")
    growing = scenes.quiet(steps=280, blocks=4)
    places = ("#layer-rows a >> nth=2", "#chosen a", "[data-choice=worst]")
    for seq, selector in enumerate(places, start=4):
        page.locator(selector).focus()
        words = page.locator(selector).inner_text()
        session.post_batch(seq, growing.batch(40 * seq, 40 * seq + 40)).raise_for_status()
        expect(page.locator(".tile .value").first).to_have_text(str(40 * seq + 39))
        expect(page.locator(":focus")).to_have_text(words)


def test_a_finger_reads_a_cell_chooses_a_row_and_zooms(shared: Any, phone: Page) -> None:
    phone.goto(f"{shared.url}/runs/{RUN}")
    phone.wait_for_selector(IMAGE)
    phone.touchscreen.tap(*place(phone, "heatmap", 0.3, 0.5 / 84))
    expect(phone.locator("#chosen")).to_contain_text("blocks.0.attn.q.lora_A.weight")
    expect(phone.locator("#readout")).to_contain_text("blocks.0.attn.q.lora_A.weight")
    phone.get_by_role("button", name="Zoom in").tap()
    expect(phone.locator(".reset")).to_be_visible()
    expect(phone.locator("#run-zoom-note")).to_have_text("single steps")
    phone.get_by_role("button", name="Earlier steps").tap()
    phone.wait_for_url("**from=0&to=*")
    phone.locator("#chosen a").tap()
    expect(phone.locator("h1")).to_have_text("blocks.0.attn.q.lora_A.weight")
    phone.get_by_role("button", name="Reset zoom").tap()
    expect(phone.locator("#layer-reset")).to_be_hidden()
