"""Layer pages, gaps, launches, and every page on a phone, in a browser."""

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from support.browser import scenes
from support.browser.plots import IMAGE, await_figures, open_run, place, point, query
from support.streams import Session, Stream, healthy

RUN = "lora-collapse"
RESUMED = "resumed-twice"
LAYER = "blocks.4.attn.q.lora_A.weight"


def test_a_layer_page_shows_every_stat_that_was_measured(shared: Any, open_page: Callable[..., Page]) -> None:
    page = open_page(f"{shared.url}/runs/{RUN}/layers/{LAYER}")
    expect(page.locator("[data-verdict]")).to_contain_text(
        re.compile(r"Collapse since step 4\d\d, not recovered at the end: from .* to .*e-")
    )
    expect(page).to_have_title(f"{LAYER} · gradcanary")
    values = ["measured", re.compile("e-"), "bfloat16", re.compile("^8 . 64$")]
    expect(page.locator(".tile .value")).to_have_text(values)
    expect(page.locator(".tile").nth(3)).to_contain_text("K 8")
    expect(page.locator(".tile").nth(1)).to_contain_text("baseline")
    for stat in ("absmax", "norm"):
        expect(page.locator(f"#stat-{stat} .scatterlayer .trace").first).to_be_attached()
    expect(page.locator("#shown-update_ratio")).to_be_hidden()
    expect(page.locator("#stat-absmax")).to_contain_text("threshold 1e-4")
    expect(page.locator("#stat-absmax")).to_contain_text("baseline")
    expect(page.locator("#stat-absmax")).to_contain_text("#1")
    expect(page.locator("#layer-incidents h3")).to_contain_text(["collapse", "accumulator"])
    expect(page.locator("#layer-incidents .members a").first).to_have_text(LAYER)
    expect(page.locator("#siblings tr")).to_have_count(7)
    page.locator("#siblings a", has_text="blocks.6.").click()
    expect(page.locator("h1")).to_have_text(LAYER.replace("4", "6"))
    expect(page).to_have_url(re.compile(r"layers/blocks\.6\."))
    page.go_back()
    expect(page.locator("h1")).to_have_text(LAYER)


def test_a_healthy_layer_has_no_incident_and_all_stats_have_their_place(
    shared: Any, open_page: Callable[..., Page]
) -> None:
    page = open_page(f"{shared.url}/runs/{RESUMED}/layers/0")
    expect(page.locator("[data-verdict]")).to_contain_text("No rule fires for this parameter")
    expect(page.locator("h1")).to_have_text("blocks.0.attn.q.lora_A.weight")
    for stat in ("zero_fraction", "update_ratio", "weight_norm", "accumulation_error", "norm_ratio"):
        expect(page.locator(f"#stat-{stat} .scatterlayer .trace").first).to_be_attached()
    expect(page.locator("#layer-incidents")).to_have_text("No incident so far.")
    expect(page.get_by_role("table", name="Siblings")).to_be_visible()


def test_siblings_without_any_have_no_table(shared: Any, open_page: Callable[..., Page]) -> None:
    Session(shared.url, run="without-siblings").send(Stream(healthy(40, 2)))
    page = open_page(f"{shared.url}/runs/without-siblings/layers/0")
    expect(page.locator("#siblings-tally")).to_have_text("none")
    expect(page.locator(".card.layers table")).to_be_hidden()


def test_a_name_is_short_in_sight_and_whole_on_hover_and_when_copied(
    shared: Any, open_page: Callable[..., Page]
) -> None:
    page = open_page(f"{shared.url}/runs/{RUN}")
    link = page.locator("#layer-rows a.layer").first
    name = link.get_attribute("title")
    assert name is not None
    assert re.fullmatch(r"blocks\.\d\.attn\..*\.weight", name)
    left_out = link.locator(".shared")
    expect(left_out).to_have_text(".weight")
    assert left_out.evaluate("(part) => part.getBoundingClientRect().width") == 0
    assert link.evaluate("(link) => { getSelection().selectAllChildren(link); return `${getSelection()}`; }") == name
    expect(page.get_by_role("link", name=name).first).to_be_visible()


def test_a_word_is_explained_on_hover_and_below_it_while_it_has_the_focus(
    shared: Any, open_page: Callable[..., Page]
) -> None:
    page = open_page(f"{shared.url}/runs/{RUN}")
    word = page.locator(".dtypes .explained", has_text=re.compile("^K$")).first
    expect(word).to_have_attribute("title", re.compile("micro-steps whose gradients are summed"))
    below = "(word) => getComputedStyle(word, '::after').content"
    assert word.evaluate(below) == "none"
    word.focus()
    assert "micro-steps whose gradients are summed" in word.evaluate(below)


def test_missing_layers_and_runs_say_so(shared: Any, open_page: Callable[..., Page]) -> None:
    page = open_page(f"{shared.url}/runs/{RUN}/layers/no.such/layer?from=3")
    expect(page.locator("h1")).to_have_text("No such run")
    page.goto(f"{shared.url}/runs/{RUN}/layers/no.such.layer")
    expect(page.locator("h1")).to_have_text("No such parameter")
    page.get_by_role("link", name="See the run").click()
    page.wait_for_selector(IMAGE)


@pytest.mark.parametrize(
    ("metrics", "phases"),
    [
        ({"total_norm": 1.2}, "accumulated"),  # no gradient was written to after its sample
        ({"total_norm": 1.2, "clip_factor": 1.0}, "accumulated"),
        ({"total_norm": 1.2, "clip_factor": 0.8}, "accumulated, post_clip"),
        ({}, "accumulated, post_clip"),  # no clip was looked for
    ],
)
def test_no_clip_marks_without_clipping(
    shared: Any, open_page: Callable[..., Page], metrics: dict[str, float], phases: str
) -> None:
    run = f"clips-{'-'.join(map(str, metrics.values()))}"
    stream = scenes.quiet(steps=40, blocks=1)
    session = Session(shared.url, run=run)
    session.put_hello(stream.hello()).raise_for_status()
    first, rest = replace(stream, phase="post_clip").batch(0, 1, change_records=True), stream.batch(1, 40)
    for seq, batch in enumerate((first, scenes.costing(rest, **metrics))):
        session.post_batch(seq, batch).raise_for_status()
    session.end().raise_for_status()
    page = open_run(open_page, shared.url, run)
    expect(page.locator("#trend-note")).to_have_text(f"gradient absmax, {phases}: mean in its min to max")
    page.goto(f"{shared.url}/runs/{run}/layers/0")
    expect(page.locator("#note-norm")).to_have_text(f"L2 norm of the gradient, {phases}")


def test_heatmap_table_and_incidents_lead_to_the_layer(shared: Any, open_page: Callable[..., Page]) -> None:
    page = open_run(open_page, shared.url, f"{RUN}?from=300&to=500")
    page.mouse.click(*place(page, "heatmap", 0.5, 0.5 / 84))
    page.locator("#chosen a", has_text="blocks.0.attn.q.lora_A.weight").click()
    expect(page.locator("h1")).to_have_text("blocks.0.attn.q.lora_A.weight")
    expect(page.locator("#layer-reset")).to_be_visible()
    assert query(page) == {"from": "300", "to": "500"}
    page.locator(".crumbs a").nth(1).click()
    page.wait_for_selector(IMAGE)
    assert query(page) == {"from": "300", "to": "500", "layer": "blocks.0.attn.q.lora_A.weight"}
    for where in ("#layer-rows a.layer", "#incidents .members a", "#trend-title a"):
        link = page.locator(where).first
        name = link.inner_text()
        link.press("Enter")
        expect(page.locator("h1")).to_have_text(name)
        page.go_back()
        page.wait_for_selector(IMAGE)


def test_missing_steps_are_holes_and_say_why(shared: Any, open_page: Callable[..., Page]) -> None:
    page = open_run(open_page, shared.url, RESUMED)
    expect(page.locator(".card.gaps")).to_contain_text("Steps 120 to 159: dropped by the agent")
    expect(page.locator(".card.gaps")).to_contain_text("Steps 200 to 239: never received")
    expect(page.locator(".card.gaps")).to_contain_text("Steps 400 to 439: between the end of launch 2")
    line = page.evaluate(
        "Array.from(document.querySelector('#trend .js-plotly-plot').data.find((t) => t.mode === 'lines').x._inputArray"
        " || document.querySelector('#trend .js-plotly-plot').calcdata.flat().map((point) => point.x))"
    )
    known = [step for step in line if isinstance(step, int | float)]
    assert not any(119 < step < 160 or 199 < step < 240 or 399 < step < 440 for step in known)
    assert 119 in known
    assert 160 in known
    for step, words in ((140, "dropped by the agent"), (220, "never received"), (420, "between the end of launch 2")):
        point(page, "heatmap", step)
        expect(page.locator("#readout")).to_contain_text(words)
        point(page, "trend", step)
        expect(page.locator("#trend .hoverlayer")).to_contain_text(words.split()[0])
    page.goto(f"{shared.url}/runs/{RESUMED}/layers/0")
    expect(page.locator("#stat-norm .scatterlayer .trace").first).to_be_attached()
    point(page, "stat-norm", 220)
    expect(page.locator("#stat-norm .hoverlayer")).to_contain_text("received")


def test_a_resumed_launch_begins_at_a_marked_line(shared: Any, open_page: Callable[..., Page]) -> None:
    page = open_run(open_page, shared.url, RESUMED)
    for figure in ("heatmap", "trend", "loss"):
        expect(page.locator(f"#{figure} .annotation-text", has_text="launch")).to_have_text(["launch 2", "launch 3"])
    expect(page.locator(".ran li")).to_have_count(3)
    expect(page.locator(".ran")).to_contain_text("20 steps before the end of launch 1")
    point(page, "heatmap", 260)
    expect(page.locator("#readout")).to_contain_text("Launch 2 begins at step 260, 20 steps before the end of launch 1")
    point(page, "loss", 440)
    expect(page.locator("#loss .hoverlayer")).to_contain_text("Launch 3 begins at step")


PATHS = (
    "/",
    f"/runs/{RUN}",
    f"/runs/{RESUMED}?stat=update_ratio",
    f"/runs/{RUN}?rows=lora_(A&from=3&to=5",
    f"/runs/{RUN}/layers/{LAYER}",
    f"/runs/{RESUMED}/layers/0?from=100&to=300",
    f"/runs/{RUN}/layers/none",
    "/runs/no-such-run",
    "/compare",
    f"/compare?run={RUN}&run={RESUMED}&run=lora-quiet",
)


@pytest.mark.parametrize("path", PATHS)
def test_a_phone_never_scrolls_sideways(shared: Any, phone: Page, path: str) -> None:
    phone.goto(shared.url + path)
    await_figures(phone)
    assert phone.evaluate("document.documentElement.scrollWidth") <= 390
    height = "pre => (pre.clientHeight - 18) / parseFloat(getComputedStyle(pre).lineHeight)"
    for code in phone.locator(".code pre:visible").all():  # each line in one piece, which scrolls
        assert round(code.evaluate(height)) == len(code.inner_text().rstrip().split("\n"))
