"""Runs held against each other: chosen, drawn, listed, zoomed, followed while they go on."""

import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from support.browser import scenes
from support.browser.plots import await_figures, drag, place, query, steps_in_sight, until
from support.streams import Session
from support.waiting import eventually

FIGURES = ("compare-stat", "compare-loss", "compare-rate", "compare-time", "compare-memory")
BF16, FP32 = "pair-bf16", "pair-fp32"
STEPS = 240


@pytest.fixture(scope="module")
def pair(shared: Any) -> Iterator[tuple[Session, Session]]:
    sessions = scenes.pair(shared.url, BF16, FP32, steps=STEPS)
    yield sessions
    for session in sessions:
        session.end(last_step=STEPS - 1)


def drawn(page: Page, figure: str = "compare-stat") -> list[list[str]]:
    """The name, colour and dash of each line."""
    lines = f"document.querySelector('#{figure} .js-plotly-plot').data.filter((trace) => trace.name)"
    found = page.evaluate(f"{lines}.map((trace) => [trace.name, trace.line.color, trace.line.dash])")
    return list(found)


def until_redrawn(page: Page, gesture: Callable[[], object]) -> None:
    """Make a gesture and wait for the answer: the rows that it brings are others."""
    held = page.locator("#differences").get_attribute("data-trees")
    gesture()
    until(page, "held => document.getElementById('differences').dataset.trees !== held", arg=held)


def test_two_runs_are_chosen_and_held_against_each_other(
    shared: Any, pair: object, open_page: Callable[..., Page]
) -> None:
    page = open_page(f"{shared.url}/compare?run={BF16}")
    expect(page.locator("h1")).to_have_text("Compare runs")
    expect(page).to_have_title("Compare runs · gradcanary")
    expect(page.locator("#ways [aria-current]")).to_have_text("Compare")
    expect(page.locator("#compare-picker")).to_contain_text(f"Choose the run to hold against {BF16}")
    page.locator(".picks a", has_text=FP32).click()
    expect(page.locator("h1")).to_have_text(
        "B has fp32 accumulators instead of bf16; 0 of 85 parameters collapsed instead of 18 of 84; steps take 3.0 % "
        "longer, peak memory is 6.0 % more; over the same steps the loss ends at 0.106 in both."
    )
    assert page.evaluate("window.location.search") == f"?run={BF16}&run={FP32}"
    await_figures(page)
    first, other = page.locator(".compared-runs tbody tr").all()
    expect(first).to_contain_text("200 ms")
    expect(other).to_contain_text("+3.0 %")
    expect(other).to_contain_text("10.6 GiB")
    for figure in FIGURES:
        names, colours, dashes = zip(*drawn(page, figure), strict=True)
        assert (names, len({*colours}), len({*dashes})) == (("A", "B"), 2, 2)
    expect(page.locator("#compare-stat .annotation-text", has_text="A #").last).to_be_attached()
    # What differs between their configurations is on top; the rest is folded.
    rows = page.locator(".setup tbody tr:not(.section)")
    expect(rows.filter(visible=True)).to_have_text(["weight decay0.010", f"--name{BF16}{FP32}"])
    page.locator(".setup summary", has_text="values the same in both runs").click()
    expect(rows.filter(has_text="--batch")).to_have_text("--batch8")
    figure = page.locator("figure.plotted", has=page.locator("#compare-stat"))
    figure.hover()
    with page.expect_download() as picture:
        figure.get_by_role("button", name="Save as a picture").click()
    layer = page.locator("#compare-layer .layer").inner_text()
    assert picture.value.suggested_filename == f"compare-{BF16}-{FP32}-{layer}-absmax-0-239.png"
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.get_by_role("button", name="Copy link").click()
    until(page, "document.querySelector('.takeaway .word').textContent === 'Copied'")
    address = page.evaluate("navigator.clipboard.readText()")
    assert address == f"{shared.url}/compare?run={BF16}&run={FP32}&layer={layer}"
    # What differs: the layers that collapsed in one, and the one that the other does not have.
    rows = page.locator("#differences tr")
    expect(page.locator("#differences-tally")).to_have_text("84")
    expect(rows.first).to_have_attribute("class", "chosen")
    expect(rows.first.locator(".gap")).to_have_text("+3.3 decades")
    expect(rows.first.locator(".where")).to_contain_text("bf16 → fp32")
    assert all("lora_A" in name for name in rows.locator("button").all_inner_texts()[:18])
    page.locator("#differences-rest summary").click()
    expect(page.locator("#differences-rest li")).to_have_text([scenes.HOSTILE])


def test_another_run_stands_beside_a_run(shared: Any, pair: object, open_page: Callable[..., Page]) -> None:
    page = open_page(f"{shared.url}/runs/{BF16}")
    await_figures(page)
    expect(page.locator("#vs-heatmap")).to_be_hidden()
    page.get_by_label("Compare with another run").select_option(FP32)
    expect(page.locator("#vs h3")).to_have_text(f"vs {FP32}")
    expect(page.locator("#vs")).to_contain_text("No open incident in 85")
    page.wait_for_selector("#vs-heatmap .heatmaplayer image")
    layout = "(id) => document.querySelector(`#${id} .js-plotly-plot`).layout"
    own, other = (page.evaluate(layout, name) for name in ("heatmap", "vs-heatmap"))
    assert own["xaxis"]["range"] == other["xaxis"]["range"]
    assert other["meta"]["layers"][other["meta"]["chosen"]] == page.locator("#trend-title").inner_text()
    eventually(lambda: [(name, dash) for name, _, dash in drawn(page, "trend")] == [("this run", None), ("vs", "dash")])
    legend = page.locator(".panel[data-key=loss] .line .name")
    expect(legend).to_have_text(["this run", FP32])
    eventually(lambda: "dash" in [dash for _, _, dash in drawn(page, "loss")])

    page.reload()
    expect(page.locator("#vs-runs")).to_have_value(FP32)
    page.get_by_role("link", name="Full comparison").click()
    expect(page.locator(".compared-runs tbody th")).to_contain_text([BF16, FP32])
    page.go_back()
    page.get_by_role("button", name="Remove").click()
    expect(page.locator("#vs-heatmap")).to_be_hidden()
    expect(page.locator("#vs-runs")).to_have_value("")
    expect(legend).to_have_count(0)
    assert query(page) == {}
    page.goto(f"{shared.url}/runs/{BF16}?vs=no-such-run")
    expect(page.locator("#vs")).to_contain_text("The collector knows no run no-such-run.")


def test_a_step_takes_as_long_as_most_of_them(shared: Any, open_page: Callable[..., Page]) -> None:
    """Each of 600 buckets has a slow step in it: a median of their means would say 380 ms."""
    runs = {"slow-tenths": 0.2, "slower-tenths": 0.22}
    for run, step_time_s in runs.items():
        scenes.evaluating(shared.url, run, steps=6_000, step_time_s=step_time_s)
    page = open_page(f"{shared.url}/compare?run=" + "&run=".join(runs))
    times = page.locator(".compared-runs [data-head='Step time']")
    expect(times).to_have_text(["200 ms", "220 ms+10 %"])


def test_a_comparison_is_looked_through_and_its_link_shows_the_same(
    shared: Any, pair: object, open_page: Callable[..., Page]
) -> None:
    page = open_page(f"{shared.url}/compare?run={BF16}&run={FP32}")
    await_figures(page)
    # A layer, by keys.
    page.locator("#differences button").nth(20).focus()
    layer = page.locator("#differences button").nth(20).inner_text()
    page.keyboard.press("Enter")
    expect(page.locator("#compare-layer .layer")).to_have_text(layer)
    expect(page.locator("#differences tr.chosen button")).to_be_focused()
    # One pointer in all figures.
    page.mouse.move(*place(page, "compare-loss", 0.5, 0.5))
    page.mouse.move(*place(page, "compare-loss", 0.51, 0.5))
    expect(page.locator(".crosshair:not([hidden])")).to_have_count(
        len(FIGURES) + 1
    )  # and in the empty one of total norms
    expect(page.locator("#compare-loss .hoverlayer")).to_contain_text("B  ")
    for figure in set(FIGURES) - {"compare-loss"}:
        expect(page.locator(f"#{figure} .crosshair")).to_have_text(re.compile(r"A \S+ · B \S+$"))
    page.mouse.move(0, 0)
    expect(page.locator(".crosshair:not([hidden])")).to_have_count(0)
    # One zoom for all; what differs is of the steps in sight.
    until_redrawn(page, lambda: drag(page, "compare-time", 0.1, 0.3))
    ranges = (
        "Array.from(document.querySelectorAll('#compare-body .js-plotly-plot'), (plot) => '' + plot.layout.xaxis.range)"
    )
    eventually(lambda: steps_in_sight(page, "compare-stat")[1] < STEPS / 2)
    until(page, f"new Set({ranges}).size === 1")
    expect(page.locator("#differences .gap.far")).to_have_count(0)
    page.get_by_role("button", name="Reset zoom").click()
    expect(page.locator("#differences .gap.far").first).to_be_visible()
    # Rows, stat, and what the axis counts from.
    until_redrawn(page, lambda: page.locator("#rows").fill(r"blocks\.4.*lora_A"))
    expect(page.locator("#differences-tally")).to_have_text("6")
    page.locator("#rows").fill("lora_(A")
    expect(page.locator("#compare-refusal")).to_contain_text("missing )")
    expect(page.locator("#differences-tally")).to_have_text("84")
    page.locator("#rows").fill("<b>")
    expect(page.locator("#compare-measure")).to_have_text("No parameter has a name that <b> matches.")
    page.locator("#rows").fill("mlp")
    expect(page.locator("#differences-tally")).to_have_text("28")
    page.get_by_role("combobox", name="Stat").select_option(label="Gradient norm")
    expect(page.locator("#compare-measure")).to_contain_text("gradient norm")
    page.get_by_role("button", name="since the first step").click()
    expect(page.locator("#compare-stat .xtitle")).to_have_text("steps since the first of each run")
    assert query(page) == {"run": FP32, "layer": layer, "rows": "mlp", "stat": "norm", "align": "first"}
    copied = open_page(page.url)
    await_figures(copied)
    expect(copied.locator("#compare-layer .layer")).to_have_text(layer)
    expect(copied.locator("#rows")).to_have_value("mlp")
    expect(copied.get_by_role("button", name="since the first step")).to_have_attribute("aria-pressed", "true")
    expect(copied.locator("#differences-tally")).to_have_text("28")
    with page.expect_download() as taken:
        page.locator("#compare-csv").click()
    assert taken.value.suggested_filename == f"compare-{BF16}-{FP32}-norm.csv"
    heads = taken.value.path().read_text().splitlines()[0].split(",")
    costs = ("loss", "lr0", "peak_memory_bytes", "step_time_s")
    told = [f"{run} {what}" for run in (BF16, FP32) for what in (f"norm {layer}", *costs)]
    assert heads == ["steps since the first of each run", *told]
    with page.expect_download() as taken:
        page.locator("#differences-csv").click()
    assert taken.value.suggested_filename == f"compare-{BF16}-{FP32}-norm-differences.csv"
    assert len(taken.value.path().read_text().splitlines()) == 29
    page.go_back()
    expect(page.locator("#compare-stat .xtitle")).to_have_text("step")
    page.locator(".leave").first.click()
    expect(page.locator("#compare-picker")).to_contain_text(f"Choose the run to hold against {FP32}")


def test_a_run_that_goes_on_is_followed_and_others_can_be_added(
    shared: Any, pair: tuple[Session, Session], open_page: Callable[..., Page]
) -> None:
    page = open_page(f"{shared.url}/compare?run={BF16}&run={BF16}&run=no<b>such&from=20&to=100")
    expect(page.locator(".note")).to_have_count(2)
    expect(page.locator(".note").first).to_contain_text("The collector knows no run no<b>such")
    expect(page.locator(".note").last).to_contain_text("is named twice")
    page.get_by_role("link", name="Leave it out").click()
    expect(page.locator(".note")).to_have_count(0)
    page.get_by_label("Add a run").fill(FP32)
    page.keyboard.press("Enter")
    expect(page.locator(".compared-runs tbody tr")).to_have_count(2)
    await_figures(page)
    expect(page.locator("#compare-add")).to_have_value("")
    layer = page.locator("#differences button").nth(3).inner_text()
    page.locator("#differences button").nth(3).click()
    expect(page.locator("#compare-layer .layer")).to_have_text(layer)
    steps = page.locator(".compared-runs tbody tr").nth(1).locator("td").nth(1)
    expect(steps).to_have_text(f"0 to {STEPS - 1}")
    goes_on = scenes.quiet(steps=STEPS + 8, blocks=7)
    pair[0].post_batch(STEPS // 40, goes_on.batch(STEPS, STEPS + 8)).raise_for_status()
    first = page.locator(".compared-runs tbody tr").first.locator("td").nth(1)
    expect(first).to_have_text(f"0 to {STEPS + 7}")
    expect(page.locator("#differences tr.chosen button")).to_have_text(layer)
    eventually(lambda: steps_in_sight(page, "compare-stat") == [19.5, 100.5])
    page.get_by_label("Add a run").fill("resumed-twice")
    page.keyboard.press("Enter")
    expect(page.locator(".compared-runs tbody tr")).to_have_count(3)
    expect(page.locator("h1")).to_contain_text("shortest steps: A, 200 ms (not known of C)")
    until(page, "document.querySelector('#compare-loss .js-plotly-plot').data.filter((one) => one.name).length === 3")
    page.get_by_role("button", name="since the first step").click()
    page.wait_for_url("**align=first")
    assert "from" not in query(page)  # they were counted from elsewhere
