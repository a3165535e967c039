"""The figures of a run together: one axis, one crosshair, lines by tags, exact numbers, and what one takes along."""

import csv
import io
import json
import re
from collections.abc import Callable
from itertools import combinations
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageColor
from playwright.sync_api import Browser, Page, Route, expect

from support.browser import scenes
from support.browser.plots import (
    IMAGE,
    await_figures,
    drag,
    meta,
    open_row,
    open_run,
    place,
    point,
    query,
    steps_in_sight,
    until,
)
from support.streams import Stream
from support.waiting import eventually

RUN = "logged"
SHOWN = """() => Object.fromEntries(Array.from(document.querySelectorAll("main .js-plotly-plot"), (plot) => {
    const line = plot.querySelector(":scope > .crosshair");
    const { xaxis, _size: size } = plot._fullLayout;
    const across = line && !line.hidden ? new DOMMatrix(getComputedStyle(line).transform).e - size.l : null;
    return [plot.parentElement.id, across === null ? null : [xaxis.p2l(across), line.textContent]];
}))"""
KEEP_PICTURES = """() => {
    const { downloadImage, toImage } = window.Plotly;
    window.Plotly.downloadImage = async (figure, asked) => {
        window.saved = await toImage(figure, { ...asked, format: "svg", scale: 1 });
        return downloadImage(figure, asked);
    };
}"""
TEXTS_OF_PICTURE = """() => {
    const drawn = document.createElement("div");
    drawn.innerHTML = decodeURIComponent(window.saved.slice(window.saved.indexOf(",") + 1));
    document.body.append(drawn);
    const around = drawn.firstElementChild.getBoundingClientRect();
    const found = Array.from(drawn.querySelectorAll("text"), (text) => {
        const { left, right, top, bottom, width } = text.getBoundingClientRect();
        return width ? { text: text.textContent, left, right, top, bottom } : null;
    }).filter(Boolean);
    drawn.remove();
    const isOut = ({ left, right, top, bottom }) =>
        left < around.left || right > around.right || top < around.top || bottom > around.bottom;
    const out = found.filter(isOut);
    return { found, out };
}"""
EDGES = """() => Array.from(document.querySelectorAll("main .js-plotly-plot .nsewdrag"), (area) => {
    const { left, right } = area.getBoundingClientRect();
    return [area.closest("[id]").id, Math.round(left), Math.round(right)];
})"""
COUNT = """() => {
    window.redrawn = 0;
    const note = () => { window.redrawn += 1; };
    for (const plot of document.querySelectorAll(".js-plotly-plot")) plot.on("plotly_afterplot", note);
}"""


@pytest.fixture(scope="session")
def logged(shared: Any) -> Any:
    """A run with every stat and every metric, those of 30 hosts among them."""
    scenes.log(shared.url, RUN).end()
    return shared


def await_panel(page: Page, key: str) -> None:
    page.locator(f"#{key}-title").scroll_into_view_if_needed()
    expect(page.locator(f"#{key} .main-svg").first).to_be_attached()


def key_of(page: Page, title: str) -> str:
    heading = page.locator(".panel h2", has_text=title)
    return str(heading.get_attribute("id")).removesuffix("-title")


def lines(page: Page, key: str) -> list[str]:
    """The lines that are drawn, by the names that a pointer would be told."""
    return list(
        page.evaluate(
            "key => document.querySelector(`#${key} .plot`).data"
            ".filter((trace) => trace.meta).map((trace) => trace.name || '')",
            key,
        )
    )


def test_crosshair_goes_through_every_figure(logged: Any, open_page: Callable[..., Page]) -> None:
    page = open_run(open_page, logged.url, RUN)
    score = key_of(page, "clip_score")
    await_panel(page, score)
    for key in ("loss", "step_time_s", "trend"):
        page.locator(f"#{key}").scroll_into_view_if_needed()
        expect(page.locator(f"#{key} .main-svg").first).to_be_attached()
    page.wait_for_timeout(300)
    page.evaluate(COUNT)
    point(page, "trend", 120)
    until(page, f"Object.values(({SHOWN})()).every(Boolean)")
    shown = page.evaluate(SHOWN)
    assert {key: round(at) for key, (at, _) in shown.items()} == dict.fromkeys(shown, 120)
    assert shown["heatmap"][1] == "step 120"
    assert re.fullmatch(r"1[5-9]\d(\.\d)? ms|1[5-9]\d\.\d+ ms", shown["step_time_s"][1])
    assert shown["trend"][1] == ""
    values = page.locator(f".panel[data-key={score}] .line .value")
    pointed = values.all_inner_texts()
    assert len(pointed) == 6
    page.mouse.move(2, 2)
    expect(page.locator(".crosshair:visible")).to_have_count(0)
    eventually(lambda: values.all_inner_texts() != pointed)
    assert page.evaluate("window.redrawn") == 0
    figure = page.locator("figure.plotted", has=page.locator("#loss"))
    figure.focus()
    page.keyboard.press("ArrowRight")
    until(page, f"({SHOWN})().heatmap")
    before = page.evaluate(SHOWN)["heatmap"][0]
    page.keyboard.press("Shift+ArrowRight")
    until(page, f"Math.abs(({SHOWN})().heatmap[0] - {before} - 10) < 0.5")
    expect(page.locator(".unseen[role=status]")).to_contain_text(re.compile(r"step 21\d 0\.\d+ 0\.\d"))
    page.keyboard.press("Escape")
    expect(page.locator(".crosshair:visible")).to_have_count(0)


def test_a_figure_that_is_drawn_restyles_the_page_twice_at_most(
    logged: Any, open_page: Callable[..., Page], browser: Browser
) -> None:
    page = open_run(open_page, logged.url, RUN)
    until(page, "document.querySelectorAll('.panel .plot:not(:has(.main-svg))').length === 0")  # at rest
    browser.start_tracing(page=page, categories=["devtools.timeline"])
    page.get_by_role("button", name="Draw the trend of blocks.1").first.click()
    page.wait_for_selector("#trend-title:has-text('blocks.1')")
    page.wait_for_timeout(500)
    events = json.loads(browser.stop_tracing())["traceEvents"]
    restyled = [event["args"]["elementCount"] for event in events if event["name"] == "UpdateLayoutTree"]
    # Not all of the page again at each drawing, as when a rule asks with :has() what is anywhere in it.
    assert 0 < sum(restyled) < 2 * page.evaluate("document.querySelectorAll('*').length")


@pytest.mark.parametrize("width", [1440, 800, 390])
@pytest.mark.parametrize("path", [RUN, f"{RUN}/layers/0"])
def test_a_step_is_at_one_place_in_all_figures_of_a_page(
    logged: Any, open_page: Callable[..., Page], path: str, width: int
) -> None:
    page = open_page(f"{logged.url}/runs/{path}")
    page.set_viewport_size({"width": width, "height": 900})
    await_figures(page)
    for panel in page.locator(".panel .plot").all():
        panel.scroll_into_view_if_needed()
        expect(panel.locator(".main-svg").first).to_be_attached()
    page.wait_for_timeout(300)  # figures follow the width when it rests
    edges = page.evaluate(EDGES)
    assert len(edges) > 4
    small = page.locator(".panel:not(.large) .plot").evaluate_all("plots => plots.map((plot) => plot.parentElement.id)")
    wide = [ends for name, *ends in edges if name not in small or width == 390]
    assert len({tuple(ends) for ends in wide}) == 1, edges
    assert len({tuple(ends) for name, *ends in edges if name in small}) <= 2, edges


def test_each_set_of_tags_is_a_line_that_can_be_chosen(logged: Any, open_page: Callable[..., Page]) -> None:
    page = open_run(open_page, logged.url, RUN)
    titles = page.locator(".panel h2").all_inner_texts()
    own = [
        "Loss",
        "Learning rate",
        "Total norm",
        "Clip factor",
        "Scale of the GradScaler",
        "Step time",
        "Peak memory",
        "Agent",
    ]
    assert titles == [*own, scenes.HOSTILE, "clip_score", "gpu_load"]
    score, load = key_of(page, "clip_score"), key_of(page, "gpu_load")
    await_panel(page, score)
    assert lines(page, score) == [f"category={c}, provider={p}" for c in ("bottles", "boxes", "cans") for p in "ab"]
    entry = page.locator(f".panel[data-key={score}] button.line", has_text="category=cans, provider=b")
    entry.focus()
    page.keyboard.press("Enter")
    until(page, f"document.querySelector('#{score} .plot').data.filter((trace) => trace.meta).length === 5")
    expect(entry).to_have_attribute("aria-pressed", "false")
    expect(entry).to_be_focused()
    await_panel(page, load)
    assert len(lines(page, load)) == 12
    panel = page.locator(f".panel[data-key={load}]")
    expect(panel.locator(".list > .dim")).to_have_text("12 of 30 lines drawn")
    panel.get_by_role("searchbox").fill("node-027")
    expect(panel.locator("button.line")).to_have_text([re.compile(r"^host=node-027")])
    panel.locator("button.line").click(modifiers=["Shift"])
    until(page, f"document.querySelector('#{load} .plot').data.filter((trace) => trace.meta).length === 1")
    assert lines(page, load) == ["host=node-027"]
    copied = open_page(page.url)
    copied.wait_for_selector(IMAGE)
    await_panel(copied, load)
    assert lines(copied, load) == ["host=node-027"]
    await_panel(copied, score)
    assert len(lines(copied, score)) == 5
    # Off is off: not what an address that says nothing of it would draw.
    panel.locator("button.line").click()
    expect(panel.locator(".annotation-text")).to_contain_text("switched off")
    assert lines(page, load) == []
    panel.locator("button.line").click()
    until(page, f"document.querySelector('#{load} .plot').data.filter((trace) => trace.meta).length === 1")
    assert lines(page, load) == ["host=node-027"]
    hostile = key_of(page, "onerror")
    await_panel(page, hostile)
    point(page, hostile, 100)
    expect(page.locator(f"#{hostile} .hoverlayer")).to_contain_text("step 10")
    assert page.locator("main img, main b").count() == 0


def test_time_is_an_axis_as_well(shared: Any, open_page: Callable[..., Page]) -> None:
    page = open_run(open_page, shared.url, "lora-collapse")
    page.get_by_role("button", name="time", exact=True).click()
    until(page, "document.querySelector('#heatmap .js-plotly-plot').layout.xaxis.type === 'date'")
    assert query(page) == {"x": "time"}
    expect(page.locator("#loss")).to_contain_text("time, UTC")
    point_ms = (1.7e9 + 20.0) * 1e3  # step 200, at ten steps a second
    left, right = steps_in_sight(page)
    page.mouse.move(*place(page, "heatmap", (point_ms - left) / (right - left), 0.5), steps=2)
    expect(page.locator("#readout")).to_contain_text(
        re.compile(r"step (19[89] to 199|200 to 201)  ·  2023-11-14 22:13:(39|40) UTC")
    )
    drag(page, "loss", 0.5, 0.7)
    expect(page.locator("#run-zoom-note")).to_have_text("single steps")
    first, last = int(query(page)["from"]), int(query(page)["to"])
    assert 345 <= first <= 355 < 485 <= last <= 495
    page.get_by_role("button", name="Zoom in").click()
    page.wait_for_url(lambda url: f"from={first}&" not in url)
    nearer = int(query(page)["from"]), int(query(page)["to"])
    assert first < nearer[0] < nearer[1] < last
    expect(page.locator("#trend-title a")).to_have_attribute("href", re.compile(f"from={nearer[0]}&"))
    page.locator("#trend-title a").click()
    expect(page.get_by_role("button", name="time", exact=True)).to_have_attribute("aria-pressed", "true")
    assert query(page) == {"x": "time", "from": str(nearer[0]), "to": str(nearer[1])}
    until(page, "document.querySelector('#stat-norm .js-plotly-plot')?.layout?.xaxis?.type === 'date'")


def test_a_cell_is_told_to_the_last_digit_and_leads_to_its_layer(shared: Any, open_page: Callable[..., Page]) -> None:
    page = open_run(open_page, shared.url, "lora-collapse?from=300&to=340")
    point(page, "heatmap", 310, down=0.5 / 84)
    layer = rows_of(page)[0]
    measured = list(csv.DictReader(io.StringIO(shared.get("/api/v1/runs/lora-collapse/export.csv").text)))
    number = measured[310][layer]
    expect(page.locator("#readout")).to_contain_text(re.compile(r"absmax 0\.\d{6,}"))
    told = re.search(r"absmax (\S+)", page.locator("#readout").inner_text())
    assert told is not None
    assert np.float32(told[1]) == np.float32(number)
    page.mouse.move(2, 2)
    row = rows_of(page)[meta(page)["chosen"] + 2]
    page.locator("figure.plotted", has=page.locator("#heatmap")).focus()
    for key in ("ArrowDown", "ArrowDown"):
        page.keyboard.press(key)
    expect(page.locator("#readout")).to_contain_text(row)
    page.keyboard.press("Space")
    expect(page.locator("#trend-title")).to_have_text(row)
    page.keyboard.press("Enter")
    expect(page.locator("h1")).to_have_text(row)
    assert query(page) == {"from": "300", "to": "340"}
    page.go_back()
    page.wait_for_selector(IMAGE)
    point(page, "heatmap", 320, down=0.5 / 84)
    expect(page.locator("#readout")).to_contain_text(layer)
    open_row(page, 0.5 / 84)
    expect(page.locator("h1")).to_have_text(layer)


def test_the_worst_rows_have_their_names_and_a_tooltip_says_how_low_they_are(
    shared: Any, open_page: Callable[..., Page]
) -> None:
    page = open_run(open_page, shared.url, "lora-collapse?order=worst")
    names = rows_of(page)
    labels = page.locator("#heatmap .ytick text").all_text_contents()
    assert len(set(labels)) == len(names)
    assert all(any(label in name for name in names) for label in labels)
    point(page, "heatmap", 500, down=0.5 / len(names))
    told = page.locator("#readout")
    expect(told.locator("strong")).to_have_text(names[0])
    expect(told).to_contain_text(re.compile(r"[\d,]+ times below the baseline 0\.\d+"))
    lines = told.inner_text().split("\n")
    page.locator("figure.plotted", has=page.locator("#heatmap")).focus()
    page.keyboard.press("ArrowRight")
    expect(page.locator("#announced")).to_contain_text("times below the baseline")
    page.keyboard.press("Escape")
    expect(told).to_be_hidden()
    assert lines[1].startswith("step 500")


def test_keys_on_a_figure_are_not_about_what_a_mouse_rests_on(shared: Any, open_page: Callable[..., Page]) -> None:
    page = open_run(open_page, shared.url, "lora-collapse")
    address, drawn = page.url, page.locator("#trend-title").inner_text()
    point(page, "heatmap", 310, down=0.5 / 84)
    expect(page.locator("#readout")).to_contain_text(rows_of(page)[0])
    page.evaluate("document.querySelector('figure.plotted:has(#trend)').focus({ preventScroll: true })")
    page.keyboard.press("Enter")
    page.keyboard.press("Space")
    page.wait_for_timeout(300)
    assert page.url == address
    expect(page.locator("#trend-title")).to_have_text(drawn)


def test_a_cell_whose_question_failed_is_asked_again(
    shared: Any, open_page: Callable[..., Page], complaints: list[str]
) -> None:
    page = open_run(open_page, shared.url, "lora-collapse?from=300&to=340")
    asked: list[str] = []

    def fail(route: Route) -> None:
        asked.append(route.request.url)
        route.fulfill(status=424, json={"error": "the collector does not answer"})

    page.route("**/_cell?*", fail)
    with page.expect_response("**/_cell?*"):
        point(page, "heatmap", 310, down=0.5 / 84)
    page.wait_for_timeout(600)
    assert len(asked) == 1, "however often a pointer moves within a cell before it rests"
    exact = re.compile(r"absmax 0\.\d{6,}")
    expect(page.locator("#readout")).not_to_contain_text(exact)
    page.unroute("**/_cell?*")
    point(page, "heatmap", 310, down=0.5 / 84)
    expect(page.locator("#readout")).to_contain_text(exact)
    complaints[:] = [each for each in complaints if "424" not in each]


def rows_of(page: Page) -> list[str]:
    return list(meta(page)["names"])


def test_a_finger_points_in_all_figures_on_a_phone(logged: Any, phone: Page) -> None:
    phone.goto(f"{logged.url}/runs/{RUN}")
    phone.wait_for_selector(IMAGE)
    load = key_of(phone, "gpu_load")
    await_panel(phone, load)
    await_panel(phone, "loss")
    phone.touchscreen.tap(*place(phone, "loss", 0.5, 0.5))
    until(phone, f"Math.abs((({SHOWN})().heatmap || [0])[0] - 200) < 3")
    eventually(lambda: re.fullmatch(r"step \d+", (phone.evaluate(SHOWN)["loss"] or ["", ""])[1]))
    value = phone.locator(".panel[data-key=loss] .line .value").first
    eventually(lambda: 0.12 < float(value.inner_text()) < 0.25)
    assert phone.evaluate("document.documentElement.scrollWidth") <= 390
    wide = ".card.accumulators, .card.accumulators table, .card.accumulators dl"
    for cut in phone.locator(wide).all():
        assert cut.evaluate("element => element.scrollWidth - element.clientWidth") <= 1
    tops = "Array.from(document.querySelectorAll('.dtypes dd'), (one) => one.getBoundingClientRect().top)"
    for width in (390, 800, 1280, 1440):
        phone.set_viewport_size({"width": width, "height": 844})
        line = phone.evaluate(tops)
        assert (len(line), len(set(line))) == (5, 1), f"K wraps at {width} pixels"


def test_shown_figures_can_be_exported(shared: Any, open_page: Callable[..., Page]) -> None:
    page = open_run(open_page, shared.url, "lora-collapse?from=300&to=340&rows=lora_A&x=time")
    with page.expect_download() as taken:
        page.locator("#csv").click()
    assert taken.value.suggested_filename == "lora-collapse-absmax-300-340.csv"
    held = list(csv.reader(taken.value.path().read_text().splitlines()))
    assert [row[0] for row in held[1:]] == [str(step) for step in range(300, 341)]
    assert all("lora_A" in name for name in held[0][2:])
    assert len(held[0]) == 2 + 42
    expect(page.locator("#loss .main-svg").first).to_be_attached()
    for link, name in (
        (".panel[data-key=loss] a.save", "loss-300-340"),
        ("#trend-csv", f"{page.locator('#trend-title').inner_text()}-absmax-300-340"),
        ("#layers-csv", "layers"),
    ):
        with page.expect_download() as taken:
            page.locator(link).press("Enter")
        assert taken.value.suggested_filename == f"lora-collapse-{name}.csv"
    figure = page.locator("figure.plotted", has=page.locator("#heatmap"))
    figure.hover()
    with page.expect_download() as drawn:
        figure.get_by_role("button", name="Save as a picture").click()
    assert drawn.value.suggested_filename == "lora-collapse-absmax-heatmap-300-340.png"
    with Image.open(drawn.value.path()) as picture:
        assert picture.format == "PNG"
        assert len(picture.convert("RGB").getcolors(2**24)) > 200, "a heatmap has its colours, an empty canvas has one"
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.get_by_role("button", name="Copy link").click()
    until(page, "document.querySelector('.takeaway .word').textContent === 'Copied'")
    address = page.evaluate("navigator.clipboard.readText()")
    layer = page.locator("#trend-title").inner_text()
    copied = open_page(address)
    copied.wait_for_selector(IMAGE)
    expect(copied.locator("#trend-title")).to_have_text(layer)
    assert query(copied) == {"from": "300", "to": "340", "rows": "lora_A", "x": "time", "layer": layer}
    eventually(lambda: meta(copied) == meta(page))


def upon_each_other(boxes: list[dict[str, Any]]) -> list[str]:
    def meet(one: dict[str, Any], other: dict[str, Any], low: str, high: str) -> bool:
        return bool(min(one[high], other[high]) - max(one[low], other[low]) > 2)

    return [
        f"{one['text']} and {other['text']}"
        for one, other in combinations(boxes, 2)
        if meet(one, other, "left", "right") and meet(one, other, "top", "bottom")
    ]


@pytest.mark.parametrize("width", [1440, 390])
@pytest.mark.parametrize(
    ("stat", "ends"), [("absmax", ("≤ 1e-8", "1e-4 threshold", "≥ 1")), ("norm", ("≤ ", "1e-8", "0.001"))]
)
def test_every_label_of_a_saved_heatmap_can_be_read(
    shared: Any, open_page: Callable[..., Page], stat: str, ends: tuple[str, str, str], width: int
) -> None:
    names = ("transformer.wte.weight", "transformer.wpe.weight", *scenes.adapter_names(6), "ln_f.weight", "lm_head")
    absmax = scenes.gradients(names, 60)
    absmax[40:, 3], absmax[30:50, 7], absmax[:5, 9] = 1e-30, 0, np.inf
    run = f"tiny-{stat}-{width}-of-a-long-name"
    scenes.send(shared.url, run, Stream(absmax, names=names), ended=True)
    page = open_page(f"{shared.url}/runs/{run}?stat={stat}")
    page.set_viewport_size({"width": width, "height": 900})
    page.wait_for_selector(IMAGE)
    page.wait_for_timeout(300)  # figures follow the width when it rests
    page.evaluate(KEEP_PICTURES)
    figure = page.locator("figure.plotted", has=page.locator("#heatmap"))
    figure.hover()
    with page.expect_download():
        figure.get_by_role("button", name="Save as a picture").click()
    picture = page.evaluate(TEXTS_OF_PICTURE)
    texts = [each["text"] for each in picture["found"]]
    assert upon_each_other(picture["found"]) == []
    assert picture["out"] == []
    assert {"exact 0", "no data", "non-finite"} <= set(texts)
    assert all(any(text.startswith(end) for text in texts) for end in ends), texts
    assert "steps 0 to 59" in " ".join(texts)


@pytest.mark.parametrize(("figure", "name"), [("trend", "absmax-trend"), ("loss", "loss")])
def test_curves_and_metrics_are_saved_as_pictures(
    shared: Any, open_page: Callable[..., Page], figure: str, name: str
) -> None:
    page = open_run(open_page, shared.url, "lora-collapse?from=300&to=340")
    await_panel(page, figure)
    held = page.locator("figure.plotted", has=page.locator(f"#{figure}"))
    held.hover()
    with page.expect_download() as drawn:
        held.get_by_role("button", name="Save as a picture").click()
    assert drawn.value.suggested_filename == f"lora-collapse-{name}-300-340.png"
    plot = held.locator(".js-plotly-plot")
    width = plot.evaluate("(one) => one.clientWidth")
    pen = plot.evaluate("(one) => one.data.map((trace) => trace.line?.color).findLast((colour) => /^#/.test(colour))")
    with Image.open(drawn.value.path()) as picture:
        assert (picture.format, picture.width) == ("PNG", 2 * width)
        found = picture.convert("RGB").getcolors(2**24)
    assert ImageColor.getrgb(pen) in {colour for count, colour in found if count > width}, "the line goes across"


def test_the_picture_of_a_metric_has_its_name(logged: Any, open_page: Callable[..., Page]) -> None:
    page = open_run(open_page, logged.url, f"{RUN}?from=100&to=200")
    await_panel(page, key_of(page, "clip_score"))
    held = page.locator(".panel", has=page.get_by_role("heading", name="clip_score", exact=True))
    held.locator("figure").hover()
    with page.expect_download() as drawn:
        held.get_by_role("button", name="Save as a picture").click()
    assert drawn.value.suggested_filename == f"{RUN}-clip_score-100-200.png"


def test_a_figure_that_is_not_there_yet_says_so_in_its_room(
    shared: Any, open_page: Callable[..., Page], complaints: list[str]
) -> None:
    page = open_run(open_page, shared.url, "lora-quiet")
    waiting: list[Route] = []
    page.route("**/_metrics?*", lambda route: waiting.append(route))
    page.reload()
    plot = page.locator("#loss .plot")
    expect(plot).to_have_attribute("data-says", "Loading ...")
    seen = "(one) => [getComputedStyle(one, '::before').content, getComputedStyle(one, '::before').animationName]"
    assert plot.evaluate(seen) == ['"Loading ..."', "waits"]
    page.emulate_media(reduced_motion="reduce")
    assert plot.evaluate(seen)[1] == "none"
    page.emulate_media(reduced_motion="null")
    room = page.locator(".panel[data-key=loss]").evaluate("(card) => card.getBoundingClientRect().height")
    expect(page.locator(".panel[data-key=loss] .saves")).to_be_hidden()
    until(page, "document.querySelector('#loss')")
    for _ in range(100):
        if waiting:
            break
        page.wait_for_timeout(50)
    waiting.pop().abort()
    expect(plot).to_have_attribute("data-says", re.compile("does not answer"))
    page.unroute("**/_metrics?*")
    expect(page.locator("#loss .main-svg").first).to_be_attached()
    assert page.locator(".panel[data-key=loss]").evaluate("(card) => card.getBoundingClientRect().height") == room
    expect(page.locator(".panel[data-key=loss] a.save")).to_be_attached()
    complaints.clear()


def test_a_figure_that_an_answer_left_out_is_asked_for_again(logged: Any, open_page: Callable[..., Page]) -> None:
    """Of a run that has ended no news comes, after which the page would ask."""
    page = open_run(open_page, logged.url, RUN)
    left_out: list[str] = []

    def leave_out(route: Route) -> None:
        answer = route.fetch()
        panels = answer.json()["panels"]
        left_out.extend(panel["key"] for panel in panels[:1])
        route.fulfill(json={"panels": panels[1:]})

    page.route("**/_metrics?*", leave_out, times=1)
    page.reload()
    page.wait_for_selector(IMAGE)
    expect(page.locator(".panel .main-svg").first).to_be_attached()
    [key] = left_out
    await_panel(page, key)
