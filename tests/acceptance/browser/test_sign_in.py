"""A collector that asks for tokens, as people meet it: the sign-in page, a visit, its end. The pages' policy holds."""

import re
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from playwright.sync_api import Page, expect

from support.browser import scenes
from support.browser.plots import IMAGE, await_figures
from support.streams import Session

RUN = "lora-fell"
LOOK = """() => {
    const { backgroundColor, color } = getComputedStyle(document.body);
    return [backgroundColor, color, getComputedStyle(document.querySelector("button")).backgroundColor];
}"""


class Guarded:
    """A collector with a run, and who administers it."""

    def __init__(self, collector: Any) -> None:
        self.url = collector.url
        secrets = [re.findall(r"gc_\w+_[\w-]+", line) for line in collector.output]
        admin, ingest = [found[0] for found in secrets if found]
        self.admin = httpx.Client(base_url=self.url, headers={"authorization": f"Bearer {admin}"}, trust_env=False)
        with httpx.Client(headers={"authorization": f"Bearer {ingest}"}, trust_env=False) as client:
            Session(self.url, run=RUN, client=client).send(scenes.collapse(steps=240, blocks=7, at=150))

    def token(self, scope: str = "read") -> Any:
        return self.admin.post("/api/v1/tokens", json={"name": "ada", "scope": scope}).json()

    def revoke(self, token: Any) -> None:
        self.admin.delete(f"/api/v1/tokens/{token['id']}").raise_for_status()


@pytest.fixture
def guarded(collector_factory: Callable[..., Any]) -> Any:
    guarded = Guarded(collector_factory("--auth"))
    yield guarded
    guarded.admin.close()


def give(page: Page, secret: str) -> None:
    page.get_by_label("Access token").fill(secret)
    page.get_by_role("button", name="Sign in").click()


def ack(page: Page) -> None:
    """Ack the incident, and say no name: the collector knows it."""
    page.get_by_role("button", name="Ack #1").click()
    page.get_by_role("button", name="Ack", exact=True).click()
    assert page.get_by_label("Your name").count() == 0


def test_mistyped_address_is_not_found_for_a_reader(guarded: Guarded) -> None:
    headers = {"authorization": f"Bearer {guarded.token()['secret']}", "accept": "text/html"}
    with httpx.Client(base_url=guarded.url, headers=headers, trust_env=False) as reader:
        answers = {path: reader.get(path) for path in ("/runs", "/rnus/lora", "/settings/nothing", "/api/v1/nothing")}
    assert {path: answer.status_code for path, answer in answers.items()} == {
        "/runs": 404, "/rnus/lora": 404, "/settings/nothing": 404, "/api/v1/nothing": 403,
    }  # fmt: skip
    assert "content-security-policy" in answers["/runs"].headers
    assert "/assets/pages-" in answers["/runs"].text, "the document of all pages"


def test_a_visit_from_its_beginning_to_its_end(
    guarded: Guarded, open_page: Callable[..., Page], complaints: list[str]
) -> None:
    page = open_page(f"{guarded.url}/runs/{RUN}?stat=norm", alone=True, theme="dark")
    expect(page.get_by_role("heading", level=1)).to_have_text("Sign in to gradcanary")
    expect(page.get_by_role("main")).to_contain_text(guarded.url.removeprefix("http://"))
    look = page.evaluate(LOOK)
    assert len({*look}) == 3, "its style is let in"
    assert page.evaluate("document.activeElement.id") == "token"
    page.set_default_timeout(60_000)  # this profile has compiled nothing yet
    give(page, "gc_read_wrong")
    expect(page.get_by_role("alert")).to_contain_text("unknown, expired or revoked")
    assert len(complaints) == 1, "of the 401"
    complaints.clear()

    token = guarded.token()
    give(page, token["secret"])
    page.wait_for_selector(IMAGE)
    assert page.url == f"{guarded.url}/runs/{RUN}?stat=norm"
    await_figures(page)
    assert page.evaluate(LOOK)[:2] == look[:2], "the pages have the same colours"
    ack(page)
    expect(page.get_by_role("dialog")).to_contain_text("The token 'ada' has the scope read, and this takes admin.")
    page.keyboard.press("Escape")
    page.locator("#layer-rows a").first.click()
    expect(page.locator("#layer-verdict")).to_be_visible()
    await_figures(page)
    page.locator(".brand").click()
    expect(page.locator(".run .of-name > a")).to_have_count(1)
    assert complaints == [], "nothing that the pages do is against their policy"
    assert page.evaluate("document.cookie") == "", "no script reads it"

    guarded.revoke(token)
    expect(page.get_by_role("heading", level=1)).to_have_text("Sign in to gradcanary")
    assert all("401" in each for each in complaints)
    complaints.clear()
    give(page, guarded.token("admin")["secret"])
    expect(page.locator(".run .of-name > a")).to_have_count(1)
    page.get_by_role("link", name="Incidents", exact=True).click()
    ack(page)
    expect(page.locator(".row", has_text="acked by ada")).to_have_count(1)
    page.get_by_role("button", name="Sign out").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Sign in to gradcanary")
    page.goto(guarded.url)
    expect(page.get_by_label("Access token")).to_be_visible()
    told = [each["action"] for each in guarded.admin.get("/api/v1/audit").json()["audit"]]
    assert told[:2] == ["signed out", "POST /incidents/1/ack"]
    assert all("401" in each for each in complaints), "what was under way as a visit ended"
    complaints.clear()
