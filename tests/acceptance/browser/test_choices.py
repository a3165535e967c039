"""Rows, order, value and stat of the heatmap; all of it in the address."""

from collections.abc import Callable
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from support.browser import scenes
from support.browser.looks import faults
from support.browser.plots import IMAGE, drag, meta, open_run, query, rows, until
from support.streams import Session
from support.waiting import eventually

RUN = "lora-collapse"
SUITE = "evaluated"


@pytest.fixture(scope="module")
def evaluated(shared: Any) -> tuple[Session, Any]:
    """A run that goes on, with a loss, a learning rate and 130 scores; its session, and what it sends next."""
    stream = scenes.quiet(steps=80, blocks=2)
    session = Session(shared.url, run=SUITE)
    session.put_hello(stream.hello()).raise_for_status()
    first, further = (
        scenes.costing(batch, **{f"eval/score_{number:03}": 0.5 for number in range(130)})
        for batch in stream.batches(40)
    )
    session.post_batch(0, first).raise_for_status()
    return session, further


def test_rows_can_be_chosen_ordered_and_valued(shared: Any, open_page: Callable[..., Page]) -> None:
    page = open_run(open_page, shared.url, RUN)
    assert len(rows(page)) == 84
    page.get_by_role("searchbox", name="Rows whose name matches").fill(r"^blocks\.[45].*lora_A")
    page.wait_for_url("**?rows=*")
    until(page, "document.querySelector('#heatmap .js-plotly-plot').layout.meta.names.length === 12")
    assert all("lora_A" in name for name in rows(page))
    expect(page.locator("#layer-rows-tally")).to_have_text("12 matching, of 84")
    before = rows(page)
    page.get_by_role("button", name="worst first").click()
    until(
        page,
        "first => document.querySelector('#heatmap .js-plotly-plot').layout.meta.names[0] !== first",
        arg=before[0],
    )
    assert sorted(rows(page)) == sorted(before)
    low = page.evaluate("document.querySelector('#heatmap .js-plotly-plot').data[0].z.bdata")
    page.get_by_role("button", name="max", exact=True).click()
    until(page, "low => document.querySelector('#heatmap .js-plotly-plot').data[0].z.bdata !== low", arg=low)
    assert meta(page)["value"] == "max"
    expect(page.get_by_role("button", name="max", exact=True)).to_have_attribute("aria-pressed", "true")
    page.get_by_role("combobox", name="Stat").select_option(label="Gradient norm")
    expect(page.locator("#heat-words")).to_have_text("Gradient norm, every parameter")
    expect(page.locator("#trend-note")).to_contain_text("gradient norm")
    asked = {"rows": r"^blocks\.[45].*lora_A", "order": "worst", "value": "max", "stat": "norm"}
    assert query(page) == asked
    page.go_back()
    expect(page.locator("#heat-words")).to_have_text("Gradient absmax, every parameter")
    expect(page.get_by_role("combobox", name="Stat")).to_have_value("")
    for _ in range(3):
        page.go_back()
    until(page, "document.querySelector('#heatmap .js-plotly-plot').layout.meta.names.length === 84")
    assert query(page) == {}
    expect(page.locator("#rows")).to_have_value("")
    page.go_forward()
    expect(page.locator("#rows")).to_have_value(r"^blocks\.[45].*lora_A")
    until(page, "document.querySelector('#heatmap .js-plotly-plot').layout.meta.names.length === 12")


def test_a_copied_address_shows_the_same_picture(shared: Any, open_page: Callable[..., Page]) -> None:
    page = open_run(open_page, shared.url, RUN)
    page.get_by_role("button", name="mean", exact=True).click()
    page.wait_for_url("**value=mean")
    page.locator("#rows").fill("attn")
    page.wait_for_url("**rows=attn")
    until(page, "document.querySelector('#heatmap .js-plotly-plot').layout.meta.names.length === 56")
    drag(page, "heatmap", 0.3, 0.6)
    expect(page.locator(".reset")).to_be_visible()
    picture = """() => {
        const plot = document.querySelector("#heatmap .js-plotly-plot");
        return [plot.data[0].z.bdata, plot.layout.meta, plot.layout.xaxis.range, document.getElementById("rows").value];
    }"""
    copied = open_page(page.url)
    copied.wait_for_selector(IMAGE)
    eventually(lambda: copied.evaluate(picture) == page.evaluate(picture))
    expect(copied.get_by_role("button", name="mean", exact=True)).to_have_attribute("aria-pressed", "true")


def test_a_broken_expression_says_what_is_wrong_and_loses_nothing(shared: Any, open_page: Callable[..., Page]) -> None:
    page = open_run(open_page, shared.url, RUN)
    page.locator("#rows").fill("lora_(A")
    expect(page.locator("#refusal")).to_contain_text("missing )")
    expect(page.locator("#rows")).to_have_value("lora_(A")
    assert len(rows(page)) == 84
    expect(page.locator("#outage")).to_be_empty()
    page.locator("#rows").fill("nowhere<b>")
    expect(page.locator("#heatmap")).to_contain_text("No parameter has a name that")
    expect(page.locator("#heatmap")).to_contain_text("nowhere<b>")
    page.locator("#rows").fill("lora_A")
    expect(page.locator("#refusal")).to_be_empty()
    until(page, "document.querySelector('#heatmap .js-plotly-plot').layout.meta?.names.length === 42")


def test_a_choice_and_a_narrower_window_leave_figures_as_high_as_they_are(
    shared: Any, open_page: Callable[..., Page]
) -> None:
    page = open_run(open_page, shared.url, RUN)
    drawn = "document.querySelector('#heatmap .svg-container').getBoundingClientRect().height"
    page.get_by_role("combobox", name="Stat").select_option(label="Gradient norm")
    expect(page.locator("#heat-words")).to_have_text("Gradient norm, every parameter")
    until(page, "document.querySelector('#heatmap .js-plotly-plot').layout.height > 0")
    high = page.evaluate(drawn)
    page.set_viewport_size({"width": 390, "height": 844})
    until(page, "document.querySelector('#heatmap .main-svg').getBoundingClientRect().width < 390")
    assert high > 200
    eventually(lambda: page.evaluate(drawn) == high)


def test_metrics_have_a_log_axis_by_choice(shared: Any, open_page: Callable[..., Page]) -> None:
    page = open_run(open_page, shared.url, RUN)
    page.locator("#loss").scroll_into_view_if_needed()
    axis = "document.querySelector('#loss .js-plotly-plot')?.layout?.yaxis.type === "
    until(page, f"{axis} 'linear'")
    choice = page.get_by_role("combobox", name="Axis of metrics")
    choice.select_option(label="log axis")
    until(page, f"{axis} 'log'")
    expect(page).to_have_url(f"{shared.url}/runs/{RUN}?y=log")
    expect(page.locator(".panel[data-key=loss] .aside").first).to_contain_text("log axis · last")
    page.go_back()
    until(page, f"{axis} 'linear'")
    expect(choice).to_have_value("")


def test_metrics_are_smoothed_by_choice(shared: Any, open_page: Callable[..., Page]) -> None:
    page = open_run(open_page, shared.url, RUN)
    page.locator("#loss").scroll_into_view_if_needed()
    page.get_by_role("combobox", name="Smoothing of metrics").select_option(label="smoothed, 0.9")
    until(page, "document.querySelector('#loss .js-plotly-plot').data.some((trace) => trace.opacity < 1)")
    expect(page).to_have_url(f"{shared.url}/runs/{RUN}?smooth=0.9")
    page.reload()
    expect(page.get_by_role("combobox", name="Smoothing of metrics")).to_have_value("0.9")
    until(page, "document.querySelector('#loss .js-plotly-plot')?.data?.some((trace) => trace.opacity < 1)")


def test_any_of_very_many_metrics_is_found_by_a_part_of_its_name(
    shared: Any, evaluated: tuple[Session, Any], open_page: Callable[..., Page]
) -> None:
    session, further = evaluated
    page = open_run(open_page, shared.url, SUITE)
    cards = page.locator(".panel h2")
    expect(page.locator("#metrics-tally")).to_have_text("132 metrics, of which 100 are drawn")
    expect(page.locator(".panel", has_text="eval/score_129")).to_have_count(0)
    field = page.get_by_role("searchbox", name="Metrics whose name has in it")
    field.press_sequentially("SCORE_12")
    expect(cards).to_have_text([f"eval/score_12{digit}" for digit in range(10)])
    expect(page.locator("#metrics-tally")).to_have_text("10 of 132 metrics")
    assert query(page) == {"metrics": "SCORE_12"}
    step = page.locator(".tile .value").first.inner_text()
    session.post_batch(1, further).raise_for_status()
    expect(page.locator(".tile .value").first).not_to_have_text(step)
    expect(field).to_be_focused()
    page.keyboard.type("9")
    expect(cards).to_have_text(["eval/score_129"])
    expect(page.locator(".panel .main-svg").first).to_be_attached()
    copied = open_page(page.url)
    expect(copied.locator(".panel h2")).to_have_text(["eval/score_129"])
    expect(copied.locator("#metrics")).to_have_value("SCORE_129")
    expect(copied.locator(".panel .main-svg").first).to_be_attached()
    with copied.expect_download() as taken:
        copied.locator(".panel a.save").press("Enter")
    assert taken.value.path().read_text().splitlines()[0].endswith("eval/score_129")
    copied.locator("#metrics").fill("<b>")
    expect(copied.locator("#panels")).to_have_text("No metric has “<b>” in its name.")
    expect(copied.locator("#metrics")).to_be_focused()
    page.go_back()
    expect(cards).to_have_count(10)


def test_few_metrics_have_no_picker(shared: Any, open_page: Callable[..., Page]) -> None:
    page = open_run(open_page, shared.url, RUN)
    expect(page.get_by_role("combobox", name="Axis of metrics")).to_be_visible()
    expect(page.locator("#metrics")).to_be_hidden()


def test_the_field_of_metrics_looks_as_it_should(
    shared: Any, evaluated: tuple[Session, Any], open_page: Callable[..., Page]
) -> None:
    page = open_run(open_page, shared.url, f"{SUITE}?metrics=score_00")
    expect(page.locator("#metrics")).to_be_visible()
    assert faults(page) == []
