"""Settings as people use them: who is told, what is silenced, what is kept, which rules hold, who is let in."""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone

import httpx
import pytest
from playwright.sync_api import Locator, Page, Request, expect

from support.backtest_processes import frozen, is_over, player_of
from support.browser import scenes
from support.collectors import Collector
from support.receivers import Receiver, status
from support.streams import Session
from support.waiting import eventually

HOSTILE = "on call <img src=x onerror=alert(1)>"
SOON_MS = 180_000
"""The process that plays runs again lets others have the processor."""


@dataclass(frozen=True)
class Place:
    """A collector that asks for tokens, with a collapse and a quiet run, and who receives its messages."""

    collector: Collector
    url: str
    api: httpx.Client
    receiver: Receiver
    admin: str

    def made(self, what: str, **body: object) -> dict[str, object]:
        answer = self.api.post(f"/api/v1/{what}", json=body)
        answer.raise_for_status()
        found: dict[str, object] = answer.json()
        return found


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    receiver = Receiver()
    env = {"GRADCANARY_WEBHOOK_NETWORKS": "127.0.0.0/8", "GRADCANARY_RAW_DAYS": "30"}
    collector = Collector(tmp_path_factory.mktemp("settings"), ("--auth", "--webhook", receiver.url), env).start()
    admin, ingest = (re.findall(rf"gc_{scope}_[\w-]+", "".join(collector.output))[0] for scope in ("admin", "ingest"))
    with httpx.Client(headers={"authorization": f"Bearer {ingest}"}, trust_env=False) as client:
        for run, stream in (
            ("lora-fell", scenes.collapse(steps=400, blocks=7, at=200)),
            ("lora-quiet", scenes.quiet(steps=40, blocks=2)),
        ):
            Session(collector.url, run=run, session=f"session-of-{run}", client=client).send(stream)
    headers = {"authorization": f"Bearer {admin}"}
    with httpx.Client(base_url=collector.url, headers=headers, trust_env=False) as api:
        yield Place(collector, collector.url, api, receiver, admin)
    collector.kill()
    receiver.close()


@pytest.fixture
def visit(place: Place, open_page: Callable[..., Page]) -> Iterator[Callable[..., Page]]:
    """Open a page with a token."""
    pages: list[Page] = []

    def opened(path: str, secret: str = place.admin) -> Page:
        page = open_page(f"{place.url}/sign-in?next={path}")
        page.context.clear_cookies()
        page.goto(f"{place.url}/sign-in?next={path}")
        page.get_by_label("Access token").fill(secret)
        page.get_by_role("button", name="Sign in").click()
        expect(page.get_by_role("heading", level=1)).not_to_have_text("Sign in to gradcanary")
        pages.append(page)
        return page

    yield opened
    for page in pages:
        page.context.clear_cookies()


def tomorrow() -> str:
    return (datetime.now(timezone.utc) + timedelta(days=1)).isoformat()


def entry(page: Page, name: str) -> Locator:
    return page.locator(".listed", has=page.get_by_role("link", name=name, exact=True))


def test_an_endpoint_from_its_making_to_its_end(place: Place, visit: Callable[..., Page]) -> None:
    page = visit("/settings")
    given = entry(page, place.receiver.url)
    expect(given).to_contain_text("given when the collector starts: --webhook")
    expect(given.locator(".badge")).to_have_text("enabled")

    page.get_by_label("URL").fill("ftp://hooks.example")
    page.get_by_label("Name").fill(HOSTILE)
    page.get_by_label("Name").press("Enter")
    answer = page.locator("#new-endpoint-answer")
    expect(answer).to_contain_text("'ftp://hooks.example' is not an http or https address")
    expect(page.get_by_label("Name")).to_have_value(HOSTILE)
    page.get_by_label("URL").fill(f"http://127.0.0.1:{place.receiver.port}/mine")
    page.get_by_role("button", name="information").click()

    # What somebody types stays while the list beside it is filled anew.
    page.get_by_label("Name").press("End")
    other = place.made("endpoints", url=f"http://127.0.0.1:{place.receiver.port}/other", name="another")
    expect(entry(page, "another")).to_be_visible()
    expect(page.get_by_label("Name")).to_be_focused()
    expect(page.get_by_label("Name")).to_have_value(HOSTILE)
    place.api.delete(f"/api/v1/endpoints/{other['id']}")
    expect(entry(page, "another")).to_have_count(0)

    page.get_by_role("button", name="Create endpoint").click()
    expect(answer).to_contain_text("shown this once")
    secret = str(answer.locator("[data-copy]").get_attribute("data-copy"))
    assert secret.startswith("whsec_")
    expect(page.get_by_label("URL")).to_have_value("")
    page.reload()
    expect(entry(page, HOSTILE)).to_contain_text("information and above")
    assert secret not in page.content()

    entry(page, HOSTILE).get_by_role("link").click()
    expect(page.get_by_role("heading", level=1)).to_have_text(f"enabled{HOSTILE}")
    # A new endpoint hears of what is open.
    expect(page.locator(".log li")).to_contain_text(["opened"])
    expect(page.locator(".log .state").first).to_have_text("delivered")
    page.get_by_role("button", name="Send a test message").click()
    expect(page.locator("#endpoint-answer")).to_contain_text("It arrived: status 200")
    assert place.receiver.wait(1)[-1].type == "gradcanary.test"
    place.receiver.answers[:] = [status(500)]
    page.get_by_role("button", name="Send a test message").click()
    expect(page.locator("#endpoint-answer")).to_contain_text("It did not arrive: answered 500")
    page.get_by_role("button", name="Send again").first.click()
    expect(page.locator("#endpoint-answer")).to_contain_text("It arrived")
    page.locator(".log summary").first.click()
    expect(page.locator(".log li li")).to_have_count(2)
    page.get_by_role("button", name="Send again").first.click()
    expect(page.locator(".log summary")).to_have_text("3 attempts")
    expect(page.locator(".log li li").last).to_be_visible()

    page.get_by_label("Name").fill("pager")
    page.get_by_role("button", name="critical only").click()
    page.get_by_label("Name").press("Enter")
    expect(page.locator("#endpoint-saved")).to_have_text("Saved.")
    expect(page.get_by_role("heading", level=1)).to_have_text("enabledpager")
    page.get_by_role("button", name="Disable").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("disabledpager")
    page.get_by_role("button", name="Enable").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("enabledpager")
    page.get_by_text("New secret", exact=True).click()
    page.get_by_role("button", name="Make a new secret").click()
    expect(page.locator("#endpoint-answer [data-copy]")).not_to_have_attribute("data-copy", secret)

    expect(page.get_by_role("button", name="Delete it")).not_to_be_visible()
    page.get_by_text("Delete", exact=True).press("Enter")  # by keys
    page.get_by_role("button", name="Delete it").press("Enter")
    page.wait_for_url(f"{place.url}/settings")
    expect(given).to_be_visible()
    expect(entry(page, "pager")).to_have_count(0)


KEPT = """async () => {
    const slot = document.createElement("div");
    const draw = async (...keys) => {
        slot.dataset.trees = JSON.stringify(keys.map(([key, text]) => ["p", { "data-key": key }, text]));
        await new Promise((drawn) => setTimeout(drawn));
    };
    document.body.append(slot);
    await draw(["1", "before"]);
    const first = slot.firstChild;
    await draw(["2", "newer"], ["1", "after"]);
    const kept = slot.lastChild === first && first.textContent;
    slot.remove();
    return kept;
}"""
"""Draw a list, then one in which an entry changed and a newer one stands above it."""


def test_a_silence_is_tried_made_moved_and_ended(place: Place, visit: Callable[..., Page]) -> None:
    page = visit("/settings/silences")
    expect(page.locator("#silence-list")).to_contain_text("Nothing is silenced")
    plan, answer = page.locator("#new-silence-plan"), page.locator("#new-silence-answer")
    runs = page.get_by_label("Runs")
    page.get_by_role("button", name="Silence", exact=True).click()
    expect(answer).to_contain_text("Say which runs")
    runs.fill("lora-*")
    expect(plan).to_contain_text("Would silence 2 open incidents. Matches 2 runs.")
    page.get_by_label("Rule").select_option("explosion")
    expect(plan).to_contain_text("No open incident would be silenced right now.")
    page.get_by_label("Rule").select_option("collapse")
    page.get_by_role("button", name="names with a regex").click()
    page.get_by_label("Which").fill("(blocks")
    expect(plan).to_contain_text("This expression does not work")
    page.get_by_role("button", name="names that begin with").click()
    page.get_by_label("Which").fill("blocks.4.")
    expect(plan.locator("li")).to_have_text(re.compile(r"#\d+ collapse in lora-fell, 6 of 18 parameters"))
    page.get_by_role("button", name="other").click()
    page.get_by_role("textbox", name="How long").fill("soon")
    page.get_by_label("Note").fill("<b>")
    page.get_by_label("Note").press("Control+Enter")
    expect(answer).to_contain_text("30m, 8h or 3d")
    page.get_by_role("textbox", name="How long").fill("90m")
    page.get_by_role("textbox", name="How long").press("Enter")
    expect(answer).to_contain_text("is active. It mutes 1 open incident")
    expect(runs).to_have_value("")
    card = page.locator(".listed")
    expect(card).to_contain_text("Runlora-*Rulecollapse")
    expect(card).to_contain_text("Note<b>")
    expect(card.get_by_role("link", name=re.compile("#"))).to_have_count(1)
    expect(card.locator("time").first).to_have_text(re.compile("^in [89][0-9] min$"))
    [made] = place.api.get("/api/v1/silences").json()["silences"]
    assert (made["match"], made["by"]) == (r"^blocks\.4\.", "first administrator")

    change = card.get_by_role("button", name="Change its end")
    change.click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("collapse in lora-*, parameters with")
    page.keyboard.press("Escape")
    expect(dialog).to_be_hidden()
    expect(change).to_be_focused()
    change.click()
    dialog.get_by_role("button", name="1 day").click()
    dialog.get_by_role("button", name="Save").click()
    expect(dialog).to_be_hidden()
    expect(card.locator("time").first).to_have_text("in 24 h")
    expect(page.locator("#silence-past li").first).to_contain_text(f"gave silence {made['id']} another end")

    # A question stays open while the list is filled anew, and Escape takes it back.
    card.get_by_text("End now").click()
    other = place.made("silences", run="nobody", until=tomorrow())
    expect(card).to_have_count(2)
    expect(page.get_by_role("button", name="Yes, end it")).to_have_count(1)
    page.get_by_role("button", name="Yes, end it").press("Escape")
    expect(page.get_by_role("button", name="Yes, end it")).to_have_count(0)
    expect(card.get_by_text("End now").first).to_be_focused()
    place.api.delete(f"/api/v1/silences/{other['id']}")
    expect(card).to_have_count(1)
    page.keyboard.press("Enter")
    page.get_by_role("button", name="Yes, end it").click()
    expect(page.locator("#silence-answer")).to_contain_text(
        "is over: one notification is sent for each incident still open"
    )
    expect(page.locator("#silence-list")).to_contain_text("Nothing is silenced")
    assert place.api.get("/api/v1/silences").json() == {"silences": []}


def test_a_run_is_renamed_and_deleted(place: Place, visit: Callable[..., Page]) -> None:
    page = visit("/settings/silences")
    page.get_by_role("link", name="Retention").click()
    expect(page.locator("#storage-facts")).to_contain_text("30 days")
    rows = page.locator(".sizes tbody tr")
    expect(rows.locator(".name")).to_contain_text(["lora-fell", "lora-quiet"])
    rows.filter(has_text="lora-quiet").get_by_role("link", name="Edit or delete").click()

    page.get_by_label("Name").first.fill("lora/quiet")
    page.get_by_label("Name").first.press("Enter")
    expect(page.locator("#run-saved .tone-critical")).to_be_visible()
    page.get_by_label("Name").first.fill("lora-calm")
    page.get_by_label("Tags").fill("sdxl, , <i>")
    page.get_by_label("Note").fill("as it shall be\n</textarea>")
    page.get_by_role("button", name="Save").click()
    page.wait_for_url(f"{place.url}/runs/lora-calm/settings")
    expect(page.locator("#run-aliases")).to_contain_text("Was called lora-quiet")
    expect(page.get_by_label("Note")).to_have_value("as it shall be\n</textarea>")
    run = place.api.get("/api/v1/runs/lora-calm").json()
    assert (run["tags"], run["note"]) == (["sdxl", "<i>"], "as it shall be\n</textarea>")
    page.get_by_role("button", name="Put it into the archive").click()
    expect(page.locator("#run-placed")).to_have_text("It is in the archive.")
    page.get_by_role("button", name="Take it out of the archive").click()
    expect(page.locator("#run-placed")).to_have_text("It is in the list of runs.")

    page.get_by_text("Delete this run").click()
    page.get_by_role("button", name="Delete it for ever").click()
    expect(page.locator("#run-deleted")).to_contain_text("That is not its name. Type lora-calm to delete it.")
    assert place.api.get("/api/v1/runs/lora-calm").status_code == 200
    page.get_by_label("Type its name").fill("lora-calm")
    page.get_by_label("Type its name").press("Enter")
    page.wait_for_url(f"{place.url}/settings/retention")
    expect(rows).to_have_count(1)
    assert place.api.get("/api/v1/runs/lora-calm").status_code == 404


def test_nothing_asks_what_a_click_does_before_there_is_one(place: Place, visit: Callable[..., Page]) -> None:
    """Dash asks it at once where an output was there before its button, and the button is disabled meanwhile."""
    endpoint = place.made("endpoints", url=f"http://127.0.0.1:{place.receiver.port}/early", name="early")
    page = visit("/settings")
    asked: list[str] = []

    def hear(request: Request) -> None:
        if "_dash-update-component" in request.url:
            body = request.post_data_json
            asked.extend(each["id"] for each in body["inputs"] if each["property"] == "n_clicks")

    page.on("request", hear)
    entry(page, "early").get_by_role("link").click()
    expect(page.get_by_role("button", name="Send a test message")).to_be_visible()
    page.go_back()
    for link in ("Rules", "Silences", "Tokens", "Retention"):
        page.get_by_role("link", name=link, exact=True).click()
        expect(page.locator(".sections [aria-current]")).to_have_text(link)
    page.get_by_role("link", name="Edit or delete").first.click()
    expect(page.get_by_role("button", name="Save")).to_be_enabled()
    page.goto(f"{place.url}/incidents/1")
    page.locator("button[data-do=ack]").first.click()
    expect(page.locator("#ack-send")).to_be_enabled()
    page.wait_for_load_state("networkidle")
    assert asked == []

    page.locator("#ack-send").click()
    expect(page.locator("#said")).not_to_be_empty()
    assert asked == ["ack-send"]
    place.api.delete(f"/api/v1/endpoints/{endpoint['id']}")


def test_rules_are_tried_beside_those_in_force(place: Place, visit: Callable[..., Page]) -> None:
    page = visit("/settings/rules")
    expect(page.locator(".rules-of > li").first).to_contain_text("far below their own normal level")
    expect(page.locator(".rules-of > li").first).to_contain_text("is under 1e-4, at least 1.5 decades below")
    expect(page.locator(".rules-of > li").first).to_contain_text("enter 1e-4 · exit 3e-4")
    expect(page.locator(".rules-of > li", has_text="accumulatoron the pages only")).to_be_visible()

    text, start = page.get_by_label("A whole rules.yaml"), page.get_by_role("button", name="Try it on the last runs")
    said, trial = page.locator("#rules-tried"), page.locator("#rules-trial")
    text.fill("version: 1\nrules:\n  colapse: {}\n")
    start.click()
    expect(said).to_contain_text("rules.yaml, line 3: unknown key 'colapse'")
    others = "version: 1\nrules:\n  collapse: {enabled: false}\n"
    text.fill(others)
    text.press("Control+Enter")
    expect(trial).to_contain_text("Your rules would have sent 0 messages in your last", timeout=SOON_MS)
    expect(trial).to_contain_text("The rules in force would have sent 1 message in your last")
    expect(trial.locator(".in_force li")).to_have_text(["lora-fell: 1 message (collapse 1)"])
    expect(said).to_contain_text("Done.")

    # The address has the text and not the result; an empty field is about the rules in force alone.
    page.reload()
    expect(text).to_have_value(others)
    expect(trial).to_be_empty()
    text.fill("")
    start.click()
    expect(trial).to_contain_text("The rules in force would have sent 1 message in your last", timeout=SOON_MS)
    expect(trial).not_to_contain_text("Your rules")
    expect(page).to_have_url(f"{place.url}/settings/rules")


def test_a_trial_shows_how_far_it_is_and_ends_with_a_click_or_its_page(
    place: Place, visit: Callable[..., Page]
) -> None:
    page = visit("/settings/rules")
    start, stop = page.get_by_role("button", name="Try it on the last runs"), page.get_by_role("button", name="Stop")
    said = page.locator("#rules-tried")
    expect(stop).to_be_hidden()

    def leave() -> None:
        page.get_by_role("link", name="Retention", exact=True).click()
        expect(page.locator(".sections [aria-current]")).to_have_text("Retention")

    for end in (stop.click, leave):
        start.click()
        expect(said).to_contain_text("The last runs are being played again")
        expect(start).to_be_disabled()
        with frozen(player := player_of(place.collector)):
            answer = place.api.post("/api/v1/rules/trials", json={}, timeout=60)
            assert answer.status_code == 429
            end()
            eventually(lambda: is_over(player))
        if end == stop.click:
            expect(said).to_be_empty()
            expect(start).to_be_enabled()
            expect(stop).to_be_hidden()


def test_a_visitor_who_may_only_read_sees_why_and_tokens_are_made_and_revoked(
    place: Place, visit: Callable[..., Page]
) -> None:
    page = visit("/settings/tokens")
    page.get_by_label("Name").fill("wall <b>")
    page.get_by_role("button", name=re.compile("^read:")).click()
    page.get_by_label("Days").fill("many")
    page.get_by_role("button", name="Create token").click()
    answer = page.locator("#new-token-answer")
    expect(answer).to_contain_text("Days are a number")
    page.get_by_label("Days").fill("90")
    page.get_by_label("Days").press("Enter")
    secret = str(answer.locator("[data-copy]").get_attribute("data-copy"))
    expect(page.locator(".listed").filter(has_text="wall <b>")).to_contain_text("Scoperead")
    page.reload()
    expect(page.locator(".listed").filter(has_text="wall <b>")).to_be_visible()
    assert secret not in page.content()

    page = visit("/settings", secret)
    why = page.locator(".may-not")
    for path, control in (
        ("/settings", "Create endpoint"),
        ("/settings/endpoints/1", "Send a test message"),
        ("/settings/rules", "Try it on the last runs"),
        ("/settings/tokens", "Create token"),
        ("/runs/lora-fell/settings", "Save"),
    ):
        page.goto(place.url + path)
        expect(why).to_contain_text("Your token may read.")
        expect(page.get_by_role("button", name=control)).to_be_disabled()
    expect(page.get_by_label("Name").first).to_be_disabled()
    page.goto(f"{place.url}/settings/tokens")
    expect(page.locator(".listed")).to_have_count(0)

    page = visit("/settings/tokens")
    wall = page.locator(".listed").filter(has_text="wall <b>")
    wall.locator("summary").click()
    # While one makes up one's mind others make and use tokens: the question stays, and about this one.
    for scope in ("read", "ingest"):
        place.made("tokens", name=f"newer {scope}", scope=scope)
    httpx.get(f"{place.url}/api/v1/runs", headers={"authorization": f"Bearer {secret}"}, trust_env=False)
    expect(page.locator(".listed").filter(has_text="newer")).to_have_count(2)
    expect(page.get_by_role("button", name="Revoke it")).to_have_count(1)
    expect(wall).to_contain_text("Clients with wall <b> are refused within seconds")
    wall.get_by_role("button", name="No").click()
    expect(wall.get_by_role("button", name="Revoke it")).to_have_count(0)
    wall.locator("summary").press("Enter")
    wall.get_by_role("button", name="Revoke it").click()
    expect(page.locator("#token-answer")).to_have_text("Revoked.")
    assert page.evaluate(KEPT) == "after"
    expect(wall.locator(".badge")).to_have_text("revoked")


def test_a_collector_that_asks_for_no_token_has_a_tab_for_tokens_too(
    shared: Collector, open_page: Callable[..., Page]
) -> None:
    page = open_page(f"{shared.url}/settings")
    sections = page.get_by_role("navigation", name="Sections of the settings")
    sections.get_by_role("link", name="Tokens", exact=True).click()
    expect(sections.locator("[aria-current]")).to_have_text("Tokens")
    expect(page.locator("#token-list")).to_contain_text("The collector asks for one when it runs with --auth")
    expect(page.get_by_role("button", name="Create token")).to_be_enabled()


def test_settings_fit_a_phone(place: Place, visit: Callable[..., Page]) -> None:
    page = visit("/settings")
    page.set_viewport_size({"width": 390, "height": 844})
    for path in ("/settings", "/settings/endpoints/1", "/settings/rules", "/settings/silences", "/settings/retention"):
        page.goto(place.url + path)
        expect(page.get_by_role("heading", level=1)).to_be_visible()
        assert page.evaluate("document.documentElement.scrollWidth") <= 390, path
