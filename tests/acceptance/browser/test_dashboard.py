"""The dashboard as people use it: a real collector, a real browser, no request to any other host."""

import re
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import httpx
import pytest
from playwright.sync_api import Page, Response, expect

from gradcanary_dashboard.web.assets import PLOTLY
from support.browser import looks, scenes
from support.browser.plots import await_figures, open_row, until
from support.streams import Session, Stream, collapsed

RUN = "lora-fell"
IMAGE = "#heatmap .heatmaplayer image"
COUNT_REDRAWS = """() => {
    window.redrawn = 0;
    const plots = document.querySelectorAll(".js-plotly-plot");
    for (const plot of plots) plot.on("plotly_afterplot", () => { window.redrawn += 1; });
}"""


@pytest.fixture
def watched(collector: Any) -> Any:
    """A collector of one's own that has seen a collapse and a healthy run."""
    scenes.send(collector.url, RUN, scenes.collapse(steps=240, blocks=7, at=150))
    scenes.send(collector.url, "lora-quiet", scenes.quiet(steps=40, blocks=1), ended=True)
    return collector


def open_run(open_page: Callable[..., Page], url: str, query: str = "", *, run: str = RUN, **options: Any) -> Page:
    page = open_page(f"{url}/runs/{run}{query}", **options)
    page.wait_for_selector(IMAGE)
    expect(page.locator("#layer-rows tr").first).to_be_visible()
    return page


def click_row(page: Page, row: int) -> str:
    """Click the middle of a heatmap row and return the layer it stands for."""
    rows = page.evaluate("document.querySelector('#heatmap .js-plotly-plot').layout.meta.layers")
    box = page.locator("#heatmap .nsewdrag").bounding_box()
    assert box is not None
    page.mouse.click(box["x"] + box["width"] / 2, box["y"] + (row + 0.5) / len(rows) * box["height"])
    return str(rows[row])


def picture(page: Page) -> Any:
    """What the figures of a run page hold, and its words."""
    for figure in ("heatmap", "trend", "loss"):  # metrics come when they are in sight, or the page has nothing to do
        page.wait_for_selector(f"#{figure} .main-svg", state="attached")
    return page.evaluate(
        """() => {
            const plot = (id) => document.querySelector(`#${id} .js-plotly-plot`);
            const sent = (array) => array && array.bdata;
            const numbers = (id) => plot(id).data.map((trace) => [sent(trace.x), sent(trace.y), sent(trace.z)]);
            return {
                rows: plot("heatmap").layout.meta.layers,
                heatmap: numbers("heatmap"), trend: numbers("trend"), loss: numbers("loss"),
                verdict: document.querySelector("[data-verdict]").textContent,
                tiles: Array.from(document.querySelectorAll(".tile .value"), (tile) => tile.textContent),
                layers: document.querySelector("#layer-rows").textContent,
                incidents: document.querySelector("#incidents").textContent,
            };
        }"""
    )


def is_no_news(answer: Response) -> bool:
    return "/_refresh" in answer.url and answer.status == 204


@pytest.mark.smoke
def test_the_list_shows_every_run_and_filters(watched: Any, open_page: Callable[..., Page]) -> None:
    page = open_page(watched.url)
    expect(page.locator(".run .of-name > a")).to_have_count(2)
    collapsed = page.locator(".attention .run", has_text=RUN)
    expect(collapsed.locator(".badge")).to_contain_text("collapse18 of 84critical: ")
    expect(collapsed.locator(".of-sums")).to_have_text("bf16")
    expect(page.locator(".run", has_text="lora-quiet")).to_contain_text("finished")
    page.keyboard.press("/")
    page.keyboard.type("QUIET")
    expect(page.locator(".run .of-name > a")).to_have_text(["lora-quiet"])
    page.locator(".run .of-name > a").click()
    expect(page).to_have_url(f"{watched.url}/runs/lora-quiet")
    expect(page.locator("h1")).to_have_text("lora-quiet")
    expect(page.locator("[data-verdict=quiet]")).to_have_text("OKNo open incident in 12 parameters")


def test_each_state_has_room_beside_the_name_of_its_run(collector: Any, open_page: Callable[..., Page]) -> None:
    session = Session(collector.url, run="left")
    session.send(scenes.quiet(steps=20, blocks=1))
    session.end("detached").raise_for_status()
    page = open_page(collector.url)
    state = page.locator(".run .state")
    expect(state).to_have_text("detached")
    expect(state).to_have_attribute("title", "detached")
    needed, room = page.locator(".run .of-state").evaluate("state => [state.scrollWidth, state.clientWidth]")
    assert needed <= room


@pytest.mark.smoke
def test_a_run_page_tells_what_happened(shared: Any, open_page: Callable[..., Page]) -> None:
    page = open_run(open_page, shared.url)
    expect(page).to_have_title(f"{RUN} · gradcanary")
    expect(page.locator("h1")).to_have_text(RUN)
    verdict = page.locator("[data-verdict=critical]")
    expect(verdict.locator(".badge")).to_have_text("collapse \N{MIDDLE DOT} 18 of 96")
    expect(verdict).to_contain_text("; the loss")
    heard = page.locator("main [aria-live=polite]", has_text="parameters collapsed")
    # Without what changes with each step.
    expect(heard).to_have_text("18 of 96 parameters collapsed at steps 249 to 255")
    expect(page.locator(".tile .value")).to_have_text(["399", "18 / 96", "bfloat16", re.compile(r"^0\.1\d+$")])
    expect(page.locator(".incident h3")).to_contain_text(["collapse"])
    first = page.locator("#layer-rows tr").first
    expect(first).to_contain_text("lora_A")
    expect(first.locator(".rule")).to_have_text("collapse firing")
    expect(first.locator(".accumulator")).to_have_text("\N{EN DASH} / bf16 / \N{EN DASH}")
    expect(first.locator(".k")).to_have_text("8")
    for figure in ("trend", "loss"):
        expect(page.locator(f"#{figure} .scatterlayer .trace").first).to_be_attached()
    assert page.locator("main").count() == 1
    assert page.locator("h1").count() == 1


def test_no_number_is_parted_at_the_end_of_a_line(watched: Any, open_page: Callable[..., Page]) -> None:
    page = open_run(open_page, watched.url)
    expect(page.locator(".incident .summary .number")).to_have_count(1)
    for width in range(360, 760, 8):
        page.set_viewport_size({"width": width, "height": 900})
        assert page.evaluate(looks.PARTED) == [], width


def test_a_red_row_that_layers_share_leads_to_the_one_that_fell(shared: Any, open_page: Callable[..., Page]) -> None:
    fallen = 301  # the second of its row
    stream = Stream(collapsed(steps=120, layers=402, which=[fallen], at=60))
    scenes.send(shared.url, "many-layers", stream, ended=True)
    page = open_run(open_page, shared.url, "?layer=0", run="many-layers")
    click_row(page, fallen // 2)
    expect(page.locator("#trend-title")).to_have_text(stream.names[fallen])
    expect(page.locator("#readout")).to_contain_text(f"{stream.names[fallen]} and 1 other parameter")
    open_row(page, (fallen // 2 + 0.5) / 201)
    expect(page.locator("h1")).to_have_text(stream.names[fallen])


def test_a_page_loads_only_a_third_of_plotly(shared: Any, open_page: Callable[..., Page]) -> None:
    page = open_page(shared.url)
    page.locator(".run .of-name > a", has_text=RUN).click()
    for load in (None, page.reload):
        if load:
            load()
        page.wait_for_selector(IMAGE)
        loaded = page.evaluate("performance.getEntriesByType('resource').map((one) => one.name.split('/').pop())")
        assert {name for name in loaded if name.startswith("plotly")} == {Path(PLOTLY).name}


def test_a_click_on_a_row_draws_that_layer_and_the_link_keeps_it(shared: Any, open_page: Callable[..., Page]) -> None:
    page = open_run(open_page, shared.url)
    layer = click_row(page, 60)
    expect(page.locator("#trend-title")).to_have_text(layer)
    assert f"layer={layer}" in page.url
    page.reload()
    expect(page.locator("#trend-title")).to_have_text(layer)
    page.locator("#layer-rows button").nth(1).focus()
    chosen = page.locator("#layer-rows a.layer").nth(1).inner_text()
    page.keyboard.press("Enter")
    expect(page.locator("#trend-title")).to_have_text(chosen)
    page.go_back()
    expect(page.locator("#trend-title")).to_have_text(layer)


def test_the_value_of_a_cell_can_be_read(shared: Any, open_page: Callable[..., Page]) -> None:
    page = open_run(open_page, shared.url)
    box = page.locator("#heatmap .nsewdrag").bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + 5, box["y"] + 2)
    expect(page.locator("#readout")).to_contain_text("blocks.0.attn.q.lora_A.weight")
    expect(page.locator("#readout")).to_contain_text("absmax 0.00")


@pytest.mark.smoke
def test_a_deep_link_shows_its_steps_and_its_incident(shared: Any, open_page: Callable[..., Page]) -> None:
    number = shared.get("/api/v1/incidents", run=RUN).json()["incidents"][0]["id"]
    page = open_run(open_page, shared.url, f"?incident={number}&from=200&to=300")
    until(page, "document.querySelectorAll(':is(#heatmap, #trend, #loss) .js-plotly-plot').length === 3")
    ranges = page.evaluate(
        "['heatmap', 'trend', 'loss'].map((id) => document.querySelector(`#${id} .js-plotly-plot`).layout.xaxis.range)"
    )
    assert ranges == [[199.5, 300.5]] * 3
    expect(page.locator(".incident.named h3")).to_contain_text(f"#{number}")
    expect(page.locator("#trend-title")).to_contain_text("lora_A")
    page.get_by_role("button", name="Reset zoom").click()
    expect(page.locator(".reset")).to_be_hidden()
    assert "from=" not in page.url


def test_dragging_zooms_all_figures_and_a_refresh_keeps_it(shared: Any, open_page: Callable[..., Page]) -> None:
    stream = scenes.quiet(steps=160, blocks=4)
    session = scenes.send(shared.url, "lora-dragged", stream)
    page = open_run(open_page, shared.url, run="lora-dragged")
    box = page.locator("#loss .nsewdrag").bounding_box()
    assert box is not None
    page.locator("#loss .nsewdrag").hover(position={"x": box["width"] * 0.25, "y": 30})
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] * 0.75, box["y"] + 30, steps=4)
    page.mouse.up()
    expect(page.locator(".reset")).to_be_visible()
    zoomed = page.evaluate("document.querySelector('#heatmap .js-plotly-plot').layout.xaxis.range")
    assert 20 < zoomed[0] < 60 < 100 < zoomed[1] < 140
    more = scenes.quiet(steps=200, blocks=4)
    session.post_batch(4, more.batch(160, 200)).raise_for_status()
    expect(page.locator(".tile .value").first).to_have_text("199")
    assert page.evaluate("document.querySelector('#heatmap .js-plotly-plot').layout.xaxis.range") == zoomed


SEE_EXACT_TIMES = """() => {
    window.exactTimes = [];
    const look = () => {
        const times = Array.from(document.querySelectorAll(".tiles time"), (time) => time.textContent);
        window.exactTimes.push(...times.filter((text) => text.endsWith("Z")));
        requestAnimationFrame(look);
    };
    look();
}"""
"""Look at each picture that the browser paints."""


def test_each_new_step_shows(shared: Any, open_page: Callable[..., Page]) -> None:
    """How soon it shows is measured in tests/benchmarks/pages.py."""
    stream = scenes.quiet(steps=320, blocks=4)
    session = scenes.send(shared.url, "lora-live", scenes.quiet(steps=160, blocks=4))
    page = open_run(open_page, shared.url, run="lora-live")
    step = page.locator(".tile .value").first
    expect(step).to_have_text("159")
    page.evaluate(SEE_EXACT_TIMES)
    for seq, end in enumerate(range(180, 321, 20), start=4):
        session.post_batch(seq, stream.batch(end - 20, end)).raise_for_status()
        expect(step).to_have_text(str(end - 1))
    assert page.evaluate("window.exactTimes") == []  # each in words from its first picture on
    live = picture(page)["heatmap"]  # of which only new columns came
    page.reload()
    page.wait_for_selector(IMAGE)
    assert picture(page)["heatmap"] == live


def test_nothing_is_redrawn_while_nothing_changes(shared: Any, open_page: Callable[..., Page]) -> None:
    page = open_run(open_page, shared.url)
    await_figures(page)
    page.evaluate(COUNT_REDRAWS)
    # A browser that has little time draws what it learnt first behind some later answers; at rest it draws nothing.
    assert any(redrawn_during_two_answers(page) == 0 for _ in range(5))


def redrawn_during_two_answers(page: Page) -> int:
    """Return how often a figure was drawn while two answers said that nothing had changed."""
    before = page.evaluate("window.redrawn")
    for _ in range(2):
        with page.expect_response(is_no_news):
            pass
    return int(page.evaluate("window.redrawn")) - before


def test_before_the_first_run_the_page_says_how_to_get_one(collector: Any, open_page: Callable[..., Page]) -> None:
    page = open_page(collector.url, alone=True)
    expect(page.locator("h1")).to_have_text(["Runs", "Waiting for the first run"])
    expect(page.get_by_role("heading", level=1)).to_have_text(["Waiting for the first run"])
    expect(page.locator("main")).to_contain_text(f"export GRADCANARY_URL={collector.url}")
    expect(page.locator("main")).to_contain_text("no agent seen yet")
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.locator(".copy").nth(1).click()
    expect(page.locator(".copy").nth(1)).to_have_text("Copied")
    assert page.evaluate("navigator.clipboard.readText()") == "import gradcanary\ngradcanary.watch()\n"
    scenes.send(collector.url, RUN, scenes.quiet(steps=80, blocks=4))
    expect(page.locator(".run .of-name > a")).to_have_text([RUN])


def test_the_theme_follows_the_system_and_remembers_the_switch(shared: Any, open_page: Callable[..., Page]) -> None:
    page = open_run(open_page, shared.url, theme="dark", alone=True)
    dark = page.evaluate("getComputedStyle(document.body).backgroundColor")
    page.get_by_role("button", name="Switch between light and dark").click()
    light = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert dark != light
    assert light == "rgb(241, 243, 246)"
    page.reload()
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == light


def test_an_unknown_run_says_so(shared: Any, open_page: Callable[..., Page]) -> None:
    page = open_page(f"{shared.url}/runs/no-such-run?layer=x")
    expect(page.locator("h1")).to_have_text("No such run")
    page.get_by_role("link", name="See all runs").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Runs")


def test_hostile_layer_names_are_text(shared: Any, open_page: Callable[..., Page]) -> None:
    stream = scenes.quiet(steps=80, blocks=1)
    names = (
        "<img src=x onerror=alert(1)>.0",
        "</script><script>alert(2)</script>",
        "%{x} $a_b$ <b>bold</b> &amp;",
        "..//?layer=1&x=#",
    )
    hostile = scenes.Stream(stream.absmax[:, :4], stream.loss, names=names)
    scenes.send(shared.url, "hostile", hostile)
    page = open_run(open_page, shared.url, run="hostile")
    for name in names:
        page.locator(f"button.draw[data-layer={name!r}]").first.click()
        expect(page.locator("#trend-title")).to_have_text(name)
        page.locator("#trend-title a").click()
        expect(page.locator("h1")).to_have_text(name)
        expect(page.locator("#stat-absmax .scatterlayer .trace").first).to_be_attached()
        page.locator(".crumbs a").nth(1).click()
        expect(page.locator("#trend-title")).to_have_text(name)
    assert page.locator("main img, main b").count() == 0


def test_alone_the_dashboard_shows_the_same_page(
    shared: Any, standalone: Callable[[str], str], open_page: Callable[..., Page]
) -> None:
    mounted = picture(open_run(open_page, shared.url, "?layer=blocks.2.mlp.up.lora_B.weight"))
    url = standalone(shared.url)
    alone = picture(open_run(open_page, url, "?layer=blocks.2.mlp.up.lora_B.weight"))
    assert len(mounted["rows"]) == 96
    assert len(mounted["heatmap"][0][2]) > 96 * 100
    assert alone == mounted
    unknown = [httpx.get(f"{each}/nowhere", headers={"accept": "text/html"}) for each in (url, shared.url)]
    assert [(each.status_code, each.headers["content-type"]) for each in unknown] == [
        (404, "text/html; charset=utf-8")
    ] * 2


def test_the_page_says_when_the_collector_is_gone_and_goes_on_when_it_is_back(
    watched: Any, standalone: Callable[[str], str], open_page: Callable[..., Page], complaints: list[str]
) -> None:
    pages = standalone(watched.url)
    page = open_run(open_page, pages)
    watched.stop()
    expect(page.locator("#outage")).to_contain_text(f"The collector at {watched.url} does not answer")
    expect(page.locator("[data-verdict]")).to_contain_text("18 of 84 parameters")
    late = open_page(f"{pages}/runs/{RUN}")
    expect(late.locator("#outage")).to_contain_text("does not answer")
    expect(late.locator("#trend .main-svg").first).to_be_attached()
    assert late.locator(".xtick, .ytick").count() == 0, "axes of nothing have no numbers"
    watched.start()
    for each in (page, late):
        expect(each.locator("#outage")).to_be_empty()
        each.wait_for_selector(IMAGE)
    assert all("424 (Failed Dependency)" in each for each in complaints), "metrics may have been asked for meanwhile"
    complaints.clear()


def test_a_page_that_is_asked_for_while_the_server_is_away_is_there_when_it_is_back(
    watched: Any, open_page: Callable[..., Page], complaints: list[str]
) -> None:
    page = open_page(watched.url)
    link = page.locator(".run .of-name > a", has_text=RUN)
    expect(link).to_be_visible()
    watched.kill()
    link.click()
    expect(page.locator("#offline")).to_be_visible()
    watched.start()
    expect(page.locator("[data-verdict]")).to_contain_text("parameters collapsed")
    expect(page.locator("#offline")).to_be_hidden()
    page.wait_for_selector(IMAGE)
    complaints.clear()


def test_a_page_that_loads_as_the_server_goes_away_is_filled_when_it_is_back(
    watched: Any, open_page: Callable[..., Page], complaints: list[str]
) -> None:
    page = open_page(watched.url)
    page.route("**/_dash-update-component*", lambda route: route.abort())
    page.goto(f"{watched.url}/runs/{RUN}")
    expect(page.locator("#offline")).to_be_visible()
    page.unroute("**/_dash-update-component*")
    expect(page.locator("[data-verdict]")).to_contain_text("parameters collapsed")
    expect(page.locator("#offline")).to_be_hidden()
    complaints.clear()


def test_a_server_that_hangs_is_one_that_is_gone(
    watched: Any, open_page: Callable[..., Page], complaints: list[str]
) -> None:
    page = open_run(open_page, watched.url)
    page.add_init_script(
        """(() => {
            const timeout = AbortSignal.timeout.bind(AbortSignal);
            AbortSignal.timeout = (ms) => timeout(ms / 4); // of twenty seconds
        })()"""
    )
    page.reload()
    page.wait_for_selector(IMAGE)
    with watched.stopped():
        expect(page.locator("#offline")).to_be_visible()
    expect(page.locator("#offline")).to_be_hidden()
    complaints.clear()


def test_the_page_says_when_its_own_server_is_gone(
    watched: Any, open_page: Callable[..., Page], complaints: list[str]
) -> None:
    page = open_run(open_page, watched.url)
    watched.kill()
    expect(page.locator("#offline")).to_be_visible()
    watched.start()
    expect(page.locator("#offline")).to_be_hidden()
    scenes.send(watched.url, "another", scenes.quiet(steps=40, blocks=1))
    page.locator(".crumbs").get_by_role("link", name="Runs").click()
    expect(page.locator(".run .of-name > a")).to_have_count(3)
    complaints.clear()


@pytest.mark.parametrize(("path", "times"), [("/", ".run time"), (f"/runs/{RUN}", ".tiles time")])
def test_relative_times_show_the_exact_time(shared: Any, open_page: Callable[..., Page], path: str, times: str) -> None:
    when = open_page(shared.url + path).locator(times).first
    expect(when).to_have_text(re.compile(r"^(just now|\d+ (s|min|h|days) ago)$"))
    told = str(when.get_attribute("title"))
    assert datetime.fromisoformat(told.replace("Z", "+00:00")).tzinfo is not None
    assert told == when.get_attribute("datetime")


def test_open_dialogs_stay_open_during_a_refresh(shared: Any, open_page: Callable[..., Page]) -> None:
    stream = scenes.quiet(steps=120, blocks=2)
    session = Session(shared.url, run="summed-up")
    session.put_hello(stream.hello()).raise_for_status()
    first, *further = (scenes.with_every_stat(batch, len(stream.names)) for batch in stream.batches(40))
    session.post_batch(0, first).raise_for_status()
    page = open_run(open_page, shared.url, run="summed-up")
    card = page.locator(".card.accumulators")
    more = card.locator("summary", has_text="6 more kinds of parameters")
    more.click()
    expect(card.locator(".kinds").nth(1)).to_be_visible()
    for seq, batch in enumerate(further, start=1):
        before = card.locator(".kinds").first.inner_text()
        session.post_batch(seq, batch).raise_for_status()
        expect(card.locator(".kinds").first).not_to_have_text(before, use_inner_text=True)
        expect(card.locator(".kinds").nth(1)).to_be_visible()
        expect(more).to_be_focused()
    kind = card.locator("button.kind").first
    name = kind.inner_text()
    kind.press("Enter")
    expect(page.locator("#rows")).not_to_have_value("")
    expect(card.get_by_role("button", name=name, exact=True)).to_have_attribute("aria-pressed", "true")
    expect(card.get_by_role("button", name=name, exact=True)).to_be_focused()
