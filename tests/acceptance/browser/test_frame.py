"""What surrounds the pages: the first start, the list of runs, keys, a tab in the background."""

import time
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from playwright.sync_api import Page, Request, Response, Route, expect

from support.browser import scenes
from support.browser.looks import faults
from support.browser.plots import IMAGE, until
from support.streams import Session

RUN = "lora-fell"
LONG_MS = 60_000
"""A list of cards, on a machine that does other things."""


def test_the_first_page_has_lines_to_copy_with_its_address(
    collector_factory: Callable[..., Any], open_page: Callable[..., Page]
) -> None:
    collector = collector_factory()
    page = open_page(collector.url)
    assert faults(page) == []
    line = page.locator(f"[data-copy$='gradcanary demo --url {collector.url}']")
    expect(line).to_be_visible()
    Session(collector.url, run=RUN).send(scenes.quiet(steps=40, blocks=2))
    expect(page.locator(".run .of-name > a")).to_have_text(RUN)
    expect(line).to_have_count(0)


def names(page: Page) -> Any:
    return page.locator(".run .of-name > a")


def test_the_list_of_runs_is_chosen_by_its_address(collector: Any, open_page: Callable[..., Page]) -> None:
    """Filter, state, order, archive and pages; back and forward, a copied link, and what arrives meanwhile."""
    quiet = scenes.quiet(steps=4, blocks=1)
    for number in range(52):
        Session(collector.url, run=f"run-{number:02}", session=f"s{number}").put_hello(quiet.hello())

    Session(collector.url, run="run-07", session="s7").end(state="crashed")
    api = httpx.Client(base_url=f"{collector.url}/api/v1", trust_env=False)
    api.patch("/runs/run-05", json={"tags": ["bad-lr"], "note": "as Ada said\nand more"}).raise_for_status()
    api.patch("/runs/run-06", json={"archived": True}).raise_for_status()
    page = open_page(collector.url)
    expect(names(page)).to_have_count(50, timeout=LONG_MS)
    expect(names(page).first).to_have_text("run-51", timeout=LONG_MS)  # seen last
    expect(page.locator(".folded .of-name > a")).to_have_text(["run-07"])  # it ended without a step
    page.get_by_role("link", name="Next 50").click()
    expect(names(page)).to_have_text(["run-00"], timeout=LONG_MS)
    page.go_back()
    expect(names(page)).to_have_count(50, timeout=LONG_MS)

    page.get_by_label("Order").select_option("name")
    expect(names(page).first).to_have_text("run-00", timeout=LONG_MS)
    page.get_by_label("State").select_option("crashed")
    expect(names(page)).to_have_text(["run-07"], timeout=LONG_MS)
    crashed = page.locator(".run .state")
    expect(crashed).to_have_text("crashed")
    expect(crashed.locator(".icon-critical")).to_be_visible()
    expect(page).to_have_url(f"{collector.url}/?sort=name&state=crashed")
    page.go_back()
    expect(page.get_by_label("State")).to_have_value("")
    expect(names(page)).to_have_count(50, timeout=LONG_MS)

    page.keyboard.press("/")
    page.keyboard.type("ada LR")
    expect(names(page)).to_have_text(["run-05"], timeout=LONG_MS)
    expect(page.locator(".run .words")).to_have_text("bad-lras Ada said")
    page.locator(".run .tag").click()
    expect(page).to_have_url(f"{collector.url}/?text=bad-lr")
    expect(page.locator("#runs-filter")).to_have_value("bad-lr")
    page.get_by_role("button", name="Archive").click()
    expect(page.locator("#runs")).to_contain_text("There is no run in the archive with bad-lr")
    page.locator("#runs-filter").fill("")
    expect(names(page)).to_have_text(["run-06"], timeout=LONG_MS)
    page.reload()
    expect(names(page)).to_have_text(["run-06"], timeout=LONG_MS)
    expect(page.get_by_role("button", name="Archive")).to_have_attribute("aria-pressed", "true")
    api.patch("/runs/run-07", json={"archived": True}).raise_for_status()
    expect(names(page)).to_have_text(["run-06", "run-07"], timeout=LONG_MS)
    page.get_by_label("Pages").get_by_role("link", name="Runs").click()
    expect(names(page)).to_have_count(50, timeout=LONG_MS)
    expect(page.get_by_role("button", name="Archive")).to_have_attribute("aria-pressed", "false")
    api.close()


def test_unknown_page_says_so_and_links_on(shared: Any, open_page: Callable[..., Page], complaints: list[str]) -> None:
    page = open_page(shared.url, theme="dark")
    expect(names(page).first).to_be_visible()
    page.on("response", lambda answer: answers.append(answer))
    answers: list[Response] = []
    page.goto(f"{shared.url}/runs")
    assert [each.status for each in answers if each.url.endswith("/runs")] == [404]
    expect(page.get_by_role("heading", level=1)).to_have_text("No such page")
    expect(page.get_by_label("Pages").get_by_role("link")).to_have_text([*ELSEWHERE])
    assert faults(page) == []
    page.get_by_role("link", name="See all runs").click()
    expect(names(page).first).to_be_visible()
    assert shared.get("/nowhere").json()["error"]["code"] == "not_found"
    assert complaints == ["Failed to load resource: the server responded with a status of 404 (Not Found)"]
    complaints.clear()


def focused(page: Page) -> Any:
    return page.evaluate("document.activeElement.textContent")


ELSEWHERE = {"Runs": "/", "Incidents": "/incidents", "Compare": "/compare", "Settings": "/settings"}
FIELDS = {
    "/": "#runs-filter",
    "/incidents": "#incidents-run",
    f"/runs/{RUN}": "#rows",
    f"/runs/{RUN}?metrics=l": "#metrics",
    "an incident": "#members-filter",
}


@pytest.mark.parametrize("path", FIELDS)
def test_typed_text_is_not_kept_on_the_next_page(path: str, shared: Any, open_page: Callable[..., Page]) -> None:
    if path == "an incident":
        [found] = shared.get("/api/v1/incidents", run=RUN, rule="collapse").json()["incidents"]
        path, field = f"/incidents/{found['id']}", FIELDS[path]
    else:
        field = FIELDS[path]
    page = open_page(shared.url)

    def dawdle(route: Route) -> None:
        time.sleep(0.7)  # the page that was left, and what was typed there, are still in sight
        route.continue_()

    for words, to in ELSEWHERE.items():
        if to == path:
            continue
        page.goto(shared.url + path)
        page.locator(field).click()
        page.wait_for_selector("#members summary, .run, .row, #heatmap .main-svg")
        page.route("**/_dash-update-component", dawdle)
        page.keyboard.type("lor")
        page.get_by_label("Pages").get_by_role("link", name=words).click()
        page.wait_for_timeout(600)
        page.unroute("**/_dash-update-component")
        expect(page).to_have_url(shared.url + to)
        expect(page.get_by_label("Pages").locator("[aria-current]")).to_have_text(words)


def test_a_visit_sends_the_first_questions_of_dash_before_its_scripts_and_once(
    shared: Any, open_page: Callable[..., Page]
) -> None:
    page = open_page(shared.url)
    first = ["/_dash-layout", "/_dash-dependencies", "/_dash-update-component"]
    address, held, sent = f"{shared.url}/runs/{RUN}?x=time", list[Route](), list[str]()

    def note(event: dict[str, Any]) -> None:
        if event["documentURL"] == address:  # the page before goes on asking for a moment
            sent.append(event["request"]["url"].removeprefix(shared.url).partition("?")[0])

    # From the browser itself: Playwright joins two events of a request, and tells requests in the order of the second.
    browser = page.context.new_cdp_session(page)
    browser.on("Network.requestWillBeSent", note)
    browser.send("Network.enable")
    page.route("**/_dash-component-suites/**", lambda route: held.append(route))
    with page.expect_request(lambda request: first[-1] in request.url and request.headers.get("referer") == address):
        page.goto(address, wait_until="commit")
    for route in held:
        route.continue_()
    page.unroute("**/_dash-component-suites/**")
    page.wait_for_selector(IMAGE)
    assert [path for path in sent if path in first] == first


def test_a_new_page_has_the_focus_and_begins_at_its_top(shared: Any, open_page: Callable[..., Page]) -> None:
    page = open_page(shared.url)
    expect(names(page).nth(2)).to_be_visible()
    assert page.evaluate("document.activeElement === document.body")
    names(page).get_by_text(RUN, exact=True).focus()
    page.keyboard.press("Enter")
    page.wait_for_selector(IMAGE)
    expect(page.locator("main")).to_be_focused()
    assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "none"
    page.mouse.move(700, 400)
    page.mouse.wheel(0, 500)
    until(page, "scrollY === 500")
    page.locator("tbody a.layer:visible").last.evaluate("(link) => link.click()")
    page.wait_for_selector("#stat-absmax .main-svg")
    expect(page.locator("main")).to_be_focused()
    assert page.evaluate("scrollY") == 0
    page.get_by_label("Pages").get_by_role("link", name="Incidents").click()
    page.wait_for_selector("#incidents-run")
    expect(page.locator("main")).to_be_focused()
    assert page.evaluate("scrollY") == 0


def test_filter_list_and_figures_are_reached_by_keys(shared: Any, open_page: Callable[..., Page]) -> None:
    page = open_page(shared.url)
    expect(names(page).nth(2)).to_be_visible()
    page.keyboard.press("Tab")
    assert focused(page) == "Skip to the content"
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "main"
    names(page).first.focus()
    page.keyboard.press("?")
    expect(page.get_by_role("dialog", name="Keyboard")).to_contain_text("To the filter")
    assert faults(page) == []
    page.keyboard.press("/")
    httpx.patch(f"{shared.url}/api/v1/runs/lora-quiet", json={"tags": ["seen-behind"]}).raise_for_status()
    expect(page.locator(".run .tag")).to_have_text("seen-behind")  # the list is another one now
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_have_count(0)
    expect(names(page).first).to_be_focused()  # nothing moved, and one is where one was

    page.keyboard.press("/")
    page.keyboard.type("fell ?/")
    expect(page.locator("#runs-filter")).to_have_value("fell ?/")
    expect(page.get_by_role("dialog")).to_have_count(0)
    page.keyboard.press("Escape")
    expect(page.locator("#runs-filter")).to_have_value("")
    expect(page.locator("#runs-filter")).to_be_focused()
    page.keyboard.press("Escape")
    expect(page.locator("#runs-filter")).not_to_be_focused()
    page.keyboard.press("/")
    page.keyboard.type("fell")
    expect(names(page)).to_have_text([RUN])
    names(page).first.focus()
    page.keyboard.press("Enter")
    page.wait_for_selector(IMAGE)

    page.locator("figure.plotted", has=page.locator("#heatmap")).focus()
    page.keyboard.press("ArrowRight")
    expect(page.locator("#readout")).to_contain_text("blocks.")
    page.keyboard.press("Enter")
    expect(page.locator("h1")).to_contain_text("blocks.")


@pytest.mark.parametrize("behind", ["nothing", "a dialog", "another window"])
def test_a_redrawn_list_keeps_the_links_that_it_had(behind: str, shared: Any, open_page: Callable[..., Page]) -> None:
    page = open_page(shared.url)
    row = page.locator(".run", has=page.get_by_role("link", name=RUN, exact=True))
    for link, place in ((row.locator(".of-name > a"), "name"), (row.locator(".badge"), "incident")):
        link.focus()
        link.evaluate("(one) => { one.isOld = true; }")
        if behind == "a dialog":
            page.keyboard.press("?")
            expect(page.get_by_role("dialog", name="Keyboard")).to_be_visible()
        elif behind == "another window":  # a page that is tested never is: this is the event that it gets there
            link.dispatch_event("focusout")
        tag = f"{place}-behind-{behind.replace(' ', '-')}"
        httpx.patch(f"{shared.url}/api/v1/runs/lora-quiet", json={"tags": [tag]}).raise_for_status()
        expect(page.locator(".run .tag")).to_have_text(tag)
        assert link.evaluate("(one) => one.isOld") is True
        if behind == "a dialog":
            page.keyboard.press("Escape")
        expect(link).to_be_focused()


def test_reduced_motion_and_forced_colours_are_respected(shared: Any, open_page: Callable[..., Page]) -> None:
    page = open_page(shared.url)
    icon = page.locator(".state .icon").first
    icon.evaluate("(one) => one.parentElement.classList.add('state-live')")  # some time ago it was
    seen = "(one) => [getComputedStyle(one).animationName, getComputedStyle(one).backgroundColor]"
    assert icon.evaluate(seen)[0] == "beat"
    page.emulate_media(reduced_motion="reduce", forced_colors="active")
    animation, colour = icon.evaluate(seen)
    assert animation == "none"
    assert colour == page.evaluate("getComputedStyle(document.body).color"), "an icon is drawn in the text's colour"
    page.emulate_media(reduced_motion="null", forced_colors="null")


def test_a_tab_in_the_background_asks_nothing_and_catches_up(shared: Any, open_page: Callable[..., Page]) -> None:
    session = scenes.send(shared.url, "behind", scenes.quiet(steps=80, blocks=1))
    page = open_page(f"{shared.url}/runs/behind")
    step = page.locator(".tile .value").first
    expect(step).to_have_text("79")
    # A headless browser has no tab that is hidden: the page is told so.
    page.evaluate("Object.defineProperty(document, 'hidden', { configurable: true, get: () => window.isAway })")
    page.evaluate("window.isAway = true")
    page.wait_for_timeout(300)  # what was asked just before
    asked: list[str] = []

    def note(request: Request) -> None:
        asked.append(request.url)

    page.on("request", note)
    session.post_batch(2, scenes.quiet(steps=120, blocks=1).batch(80, 120)).raise_for_status()
    page.wait_for_timeout(2_500)
    page.remove_listener("request", note)
    assert asked == []
    expect(step).to_have_text("79")
    # Nobody waits for the next second: with no second to come, who comes back is still asked for.
    page.evaluate("for (let timer = setInterval(() => {}, 1e9); timer > 0; timer -= 1) clearInterval(timer)")
    with page.expect_request("**/_refresh"):
        page.evaluate("window.isAway = false; document.dispatchEvent(new Event('visibilitychange'))")
    expect(step).to_have_text("119")
