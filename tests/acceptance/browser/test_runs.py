"""The list of runs in the browser: what needs attention, orders, columns, and changes of many runs at once."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import httpx
import pytest
from playwright.sync_api import Locator, Page, expect

from support.browser import scenes
from support.browser.looks import faults
from support.streams import Session

FELL, CALM = "lora-fell", ("calm-a", "calm-b", "calm-c")


@pytest.fixture
def api(collector: Any) -> Iterator[httpx.Client]:
    """The API of a collector with an ended run that fell, three healthy ones, and one without a step."""
    scenes.send(collector.url, FELL, scenes.collapse(steps=240, blocks=7, at=150), ended=True)
    for run in CALM:
        scenes.send(collector.url, run, scenes.quiet(steps=40, blocks=1), ended=True)
    empty = Session(collector.url, run="empty")
    empty.put_hello(scenes.quiet(steps=4, blocks=1).hello()).raise_for_status()
    empty.end().raise_for_status()
    with httpx.Client(base_url=f"{collector.url}/api/v1", trust_env=False) as client:
        yield client


def row(page: Page, run: str) -> Locator:
    return page.locator(".run", has=page.get_by_role("link", name=run, exact=True))


def names(page: Page, part: str) -> Locator:
    return page.locator(f"{part} .of-name > a")


def choose(page: Page, *runs: str) -> None:
    for run in runs:
        page.get_by_label(f"Choose {run}", exact=True).check()
    expect(page.locator("#runs-count")).to_have_text(f"{len(runs)} chosen")


def test_a_run_that_failed_stays_on_top_until_it_is_acknowledged(
    collector: Any, api: httpx.Client, open_page: Callable[..., Page]
) -> None:
    page = open_page(f"{collector.url}/?sort=name")
    expect(names(page, ".attention")).to_have_text([FELL])
    expect(names(page, "#runs > .runs > tbody:not(.attention)")).to_have_text([*CALM])
    empty = page.locator("summary", has_text="1 run without a step")
    expect(row(page, "empty")).to_be_hidden()
    empty.click()
    expect(row(page, "empty")).to_be_visible()
    head = page.get_by_role("table", name="Runs").get_by_role("columnheader", name="Run", exact=True)
    head.get_by_role("link").click()
    expect(names(page, "#runs > .runs > tbody:not(.attention)")).to_have_text([*CALM[::-1]])
    expect(head).to_have_attribute("aria-sort", "descending")
    expect(names(page, ".attention")).to_have_text([FELL])
    expect(row(page, "empty")).to_be_visible()  # what is open stays open

    row(page, FELL).get_by_role("button", name="Ack").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Your name").fill("ada")
    dialog.get_by_role("button", name="Ack", exact=True).click()
    expect(page.locator(".attention")).to_have_count(0)
    expect(names(page, "#runs > .runs > tbody")).to_have_text([FELL, *CALM[::-1]])
    page.get_by_label("Groups").select_option("state")
    expect(page.locator(".group-head")).to_have_text(["finished4"])
    row(page, FELL).locator(".badge").click()
    worst = api.get(f"/runs/{FELL}").json()["worst_incident"]
    expect(page).to_have_url(f"{collector.url}/incidents/{worst['id']}")


def test_hidden_columns_stay_hidden(collector: Any, api: httpx.Client, open_page: Callable[..., Page]) -> None:
    page = open_page(collector.url, alone=True)
    expect(row(page, FELL).locator(".of-host")).to_be_visible()
    page.locator("summary", has_text="Columns").click()
    for words in ("Host", "Accumulators"):
        page.get_by_label(words, exact=True).uncheck()
    expect(page.locator(".of-host, .of-sums").locator("visible=true")).to_have_count(0)
    assert faults(page) == []
    page.reload()
    expect(row(page, FELL).locator(".of-step")).to_be_visible()
    expect(row(page, FELL).locator(".of-host")).to_be_hidden()
    page.locator("summary", has_text="Columns").click()
    expect(page.get_by_label("Host", exact=True)).not_to_be_checked()
    page.keyboard.press("Escape")
    expect(page.locator("#columns")).to_be_hidden()
    page.keyboard.press("Enter")  # the button has the focus
    expect(page.locator("#columns")).to_be_visible()
    page.locator("h1").click()
    expect(page.locator("#columns")).to_be_hidden()


def test_steps_of_nine_digits_and_long_names_have_room(collector: Any, open_page: Callable[..., Page]) -> None:
    stream = replace(scenes.quiet(steps=40, blocks=1), first_step=987_650_000, every=1000)
    name = "long"
    scenes.send(collector.url, name, stream, ended=True)
    scenes.send(collector.url, "tiny-norm-1440-of-a-name-of-many-words", scenes.collapse(steps=240, blocks=7, at=150))
    page = open_page(collector.url)
    expect(row(page, name).locator(".of-step")).to_have_text("987,689,000")
    assert faults(page) == []


def test_many_runs_are_tagged_compared_archived_and_deleted(
    collector: Any, api: httpx.Client, open_page: Callable[..., Page]
) -> None:
    api.patch(f"/runs/{CALM[0]}", json={"tags": ["old"]}).raise_for_status()
    page = open_page(collector.url)
    bar, answer = page.get_by_role("group", name="With the runs that are ticked"), page.locator("#runs-answer")
    expect(names(page, ".runs").first).to_be_visible()
    expect(bar).to_be_hidden()
    choose(page, CALM[0])
    expect(bar.get_by_role("button", name="Compare")).to_be_disabled()
    bar.get_by_role("button", name="Clear").click()
    expect(bar).to_be_hidden()
    choose(page, *CALM[:2])
    bar.locator("summary", has_text="Tag").click()
    assert faults(page) == []
    bar.get_by_label("Tags").fill("sdxl, lr")
    bar.get_by_label("Tags").press("Enter")
    expect(answer).to_have_text("2 runs tagged sdxl, lr.")
    expect(row(page, CALM[0]).locator(".tag")).to_have_text(["old", "sdxl", "lr"])
    bar.get_by_label("Tags").fill("lr")
    bar.get_by_role("button", name="Remove").click()
    expect(answer).to_have_text("2 runs without lr now.")
    expect(row(page, CALM[1]).locator(".tag")).to_have_text(["sdxl"])

    bar.get_by_role("button", name="Compare").click()
    expect(page).to_have_url(f"{collector.url}/compare?run={CALM[1]}&run={CALM[0]}")
    expect(page.get_by_role("table", name="The runs")).to_be_visible()
    page.go_back()
    expect(page.get_by_role("heading", level=1)).to_have_text("Runs")
    choose(page, *CALM[:2])
    bar.get_by_role("button", name="Archive").click()
    expect(answer).to_have_text("2 runs put into the archive.")
    expect(row(page, CALM[0])).to_have_count(0)
    assert {each["run"] for each in api.get("/runs", params={"archived": True}).json()["runs"]} == {*CALM[:2]}

    choose(page, FELL, CALM[2])
    bar.locator("summary", has_text="Delete").click()
    assert faults(page) == []
    bar.get_by_label("How many runs are these?").fill("3")
    bar.get_by_role("button", name="Delete for ever").click()
    expect(answer).to_contain_text("Nothing is deleted. Type 2, the number of chosen runs")
    bar.get_by_label("How many runs are these?").fill("2")
    bar.get_by_role("button", name="Delete for ever").click()
    expect(answer).to_have_text("2 runs deleted.")
    assert [each["run"] for each in api.get("/runs").json()["runs"]] == ["empty"]
    page.locator(".list-choices").get_by_role("button", name="Archive").click()
    choose(page, CALM[0])
    bar.get_by_role("button", name="Take out of the archive").click()
    expect(answer).to_have_text("1 run taken out of the archive.")
    expect(row(page, CALM[0])).to_have_count(0)


def test_each_run_that_was_not_changed_is_named_with_the_reason(
    collector: Any, api: httpx.Client, open_page: Callable[..., Page]
) -> None:
    page = open_page(collector.url)
    choose(page, *CALM[:2])
    page.route("**/_refresh", lambda route: route.fulfill(status=204))  # the page does not hear that one is gone
    api.delete(f"/runs/{CALM[1]}").raise_for_status()
    page.locator("#runs-archive").click()
    said = page.locator("#runs-answer > span")
    expect(said).to_have_count(2)
    expect(said.first).to_have_text("1 run put into the archive.")
    expect(said.nth(1)).to_contain_text(f"Not put into the archive: {CALM[1]}. ")
    page.unroute("**/_refresh")
