"""Incidents as somebody meets them who was woken up: the list, one of them, ack, silence, a new baseline."""

import re
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from typing import Any

import httpx
import pytest
from playwright.sync_api import Locator, Page, expect

from support.browser import scenes
from support.browser.plots import IMAGE, query
from support.streams import Session, Stream, collapsed, healthy
from support.waiting import eventually

RUN = "woken-up"


@pytest.fixture
def fallen(shared: Any) -> Any:
    """A run of which 18 of 84 layers have fallen, its collapse, and its session that goes on."""
    stream = scenes.collapse(steps=260, blocks=7, at=150)
    session = Session(shared.url, run=RUN)
    session.put_hello(stream.hello()).raise_for_status()
    for seq, start in enumerate(range(0, 220, 20)):
        session.post_batch(seq, stream.batch(start, start + 20, change_records=seq == 0)).raise_for_status()
    [found] = shared.get("/api/v1/incidents", run=RUN, rule="collapse").json()["incidents"]
    return session, stream, found["id"]


def row(page: Page, number: int) -> Locator:
    return page.locator(f".row:has(#row-{number})")


def ask(page: Page, do: str, number: int) -> Locator:
    """Open the dialog of a button, and wait for its form."""
    page.locator(f"[data-do={do}][data-incident='{number}']").click()
    dialog = page.get_by_role("dialog")
    expect(dialog.get_by_role("heading")).to_have_text(f"{do.capitalize()} #{number}")
    return dialog


def test_woken_up_one_acks_silences_and_learns_a_new_baseline(
    shared: Any, fallen: Any, open_page: Callable[..., Page]
) -> None:
    session, stream, number = fallen
    page = open_page(f"{shared.url}/incidents", alone=True)
    expect(row(page, number)).to_contain_text("18 of 84 parameters")
    page.keyboard.press("/")
    page.keyboard.type("WOKEN")
    expect(page.locator(".row")).to_have_count(2)
    page.get_by_label("Severity").select_option("critical")
    expect(page.locator(".row")).to_have_count(1)
    assert page.url.endswith("/incidents?run=WOKEN&severity=critical")
    page.get_by_label("State").select_option("resolved")
    expect(page.locator("#incidents-listed")).to_have_text("No incidents match these filters. See all")
    page.go_back()
    expect(page.get_by_label("State")).to_have_value("")
    row(page, number).get_by_role("link", name=f"#{number} Collapse").click()
    expect(page).to_have_title(f"#{number} collapse in {RUN} · gradcanary")
    expect(page.locator("#members tbody tr")).to_have_count(18)
    expect(page.locator(".timeline")).to_contain_text("Opened at step")
    page.go_back()
    expect(page.get_by_label("Severity")).to_have_value("critical")
    expect(page.get_by_label("Part of the run's name")).to_have_value("WOKEN")
    page.go_forward()

    dialog = ask(page, "ack", number)
    expect(dialog.get_by_label("Your name")).to_be_focused()
    page.keyboard.press("Enter")
    expect(dialog).to_contain_text("Say who you are")
    dialog.get_by_label("Note").fill("half a")
    before = page.locator("#incident-page-state").get_attribute("data-shown")
    until = (datetime.now(timezone.utc) + timedelta(hours=1)).isoformat()
    wish = {"run": RUN, "rule": "collapse", "match": "^blocks.4", "until": until, "by": "grace"}
    made = httpx.post(f"{shared.url}/api/v1/silences", json=wish)
    expect(page.locator("#incident-state")).to_contain_text("6 of 18 parameters silenced")
    assert page.locator("#incident-page-state").get_attribute("data-shown") != before
    expect(dialog.get_by_label("Note")).to_have_value("half a")
    expect(dialog.get_by_label("Note")).to_be_focused()
    page.keyboard.type(" sentence")
    dialog.get_by_label("Your name").fill("ada")
    dialog.get_by_role("button", name="Ack", exact=True).click()
    expect(page.get_by_role("status").filter(has_text=f"#{number} is acked.")).to_be_visible()
    expect(dialog).to_be_hidden()
    expect(page.locator(".timeline")).to_contain_text("Acked by ada: half a sentence")
    expect(page.get_by_role("button", name=f"Ack again #{number}")).to_be_focused()

    dialog = ask(page, "unsilence", number)
    expect(dialog).to_contain_text(re.compile(r"collapse in woken-up, parameters with \^blocks.4ends in [56][0-9] min"))
    dialog.get_by_role("button", name="End now").click()
    expect(page.locator("#incident-state")).not_to_contain_text("silenced")
    assert httpx.delete(f"{shared.url}/api/v1/silences/{made.json()['id']}").status_code == 404

    page.get_by_role("link", name=RUN).click()
    page.wait_for_selector(IMAGE)
    dialog = ask(page, "silence", number)
    expect(dialog.get_by_label("Your name")).to_have_value("ada")
    dialog.get_by_text("names with a regex").click()
    dialog.get_by_label("Which").fill("(lora_A")
    dialog.get_by_text("other").click()
    dialog.get_by_role("textbox", name="How long").fill("soon")
    for words in ("30m, 8h or 3d", "This expression does not work"):
        dialog.get_by_role("button", name="Silence", exact=True).click()
        expect(dialog).to_contain_text(words)
        dialog.get_by_role("textbox", name="How long").fill("90m")
    dialog.get_by_text("names that begin with").click()
    dialog.get_by_label("Which").fill("blocks.5.")
    page.keyboard.press("Enter")  # takes what is offered
    dialog.get_by_role("button", name="Silence", exact=True).click()
    card = page.locator(f".incident:has(#incident-{number})")
    expect(card).to_contain_text(re.compile("6 of 18 parameters silenced, ends in [89][0-9] min"))
    [own] = shared.get("/api/v1/silences").json()["silences"]
    assert (own["match"], own["by"], own["rule"], own["run"]) == (r"^blocks\.5\.", "ada", "collapse", RUN)
    page.locator(".members .layer").first.click()
    expect(page.locator("#layer-verdict")).to_be_visible()
    ask(page, "unsilence", number).get_by_role("button", name="End now").click()
    expect(page.locator(f"[data-do=unsilence][data-incident='{number}']")).to_have_count(0)

    dialog = ask(page, "ack", number)
    dialog.locator("summary").click()
    expect(dialog).to_contain_text("The incident closes as “new baseline”")
    dialog.get_by_role("button", name="Accept and close incident").click()
    expect(card).to_contain_text("new baseline")
    session.post_batch(11, stream.batch(220, 260)).raise_for_status()
    page.get_by_role("link", name="Incidents", exact=True).click()
    expect(row(page, number)).to_contain_text("new baseline")
    expect(row(page, number).get_by_role("button")).to_have_count(0)


def test_the_list_follows_what_happens(shared: Any, open_page: Callable[..., Page]) -> None:
    page = open_page(f"{shared.url}/incidents?run=just-now")
    expect(page.locator("#incidents-listed")).to_have_text("No incidents match these filters. See all")
    Session(shared.url, run="just-now").send(Stream(collapsed(160, 24, (0, 2), 130)))
    expect(page.locator(".row")).to_have_count(1)
    [found] = shared.get("/api/v1/incidents", run="just-now").json()["incidents"]
    for note in ("one", "two", "three"):
        body = {"by": "ada", "note": note}
        httpx.post(f"{shared.url}/api/v1/incidents/{found['id']}/ack", json=body).raise_for_status()
        expect(row(page, found["id"])).to_contain_text(f"acked by ada: {note}")


def test_thousands_of_hostile_layers_can_be_read_on_a_phone(shared: Any, phone: Page) -> None:
    names = [f"<img src=x onerror=alert({number})>.{'long.' * 20}{number}" for number in range(800)]
    absmax = healthy(160, len(names))
    absmax[130:, :390] *= 1e-3
    Session(shared.url, run="hostile-incident").send(Stream(absmax, names=tuple(names)))
    [found] = shared.get("/api/v1/incidents", run="hostile-incident").json()["incidents"]

    phone.goto(f"{shared.url}/incidents?run=hostile-incident")
    expect(row(phone, found["id"])).to_contain_text("390 of 800 parameters")
    is_wider = "document.documentElement.scrollWidth > window.innerWidth"
    assert not phone.evaluate(is_wider)
    row(phone, found["id"]).get_by_role("link", name=f"#{found['id']} Collapse").tap()
    expect(phone.locator("#members tbody tr")).to_have_count(100)
    expect(phone.locator("#members a").first).to_have_text(names[0])
    expect(phone.locator("#members-shown")).to_have_text("100 of 390 shown")
    assert not phone.evaluate(is_wider)
    phone.get_by_role("button", name="Show more").tap()
    expect(phone.locator("#members tbody tr")).to_have_count(390)
    phone.get_by_label("Parameters with this in their name").fill("ALERT(38")
    expect(phone.locator("#members tbody tr")).to_have_count(11)
    phone.get_by_role("button", name="value", exact=True).tap()
    expect(phone.locator("#members [aria-sort=ascending]")).to_have_text("value")
    shown = phone.locator("#members .value")
    eventually(lambda: (now := [float(text) for text in shown.all_inner_texts()]) == sorted(now))
    values = [float(text) for text in shown.all_inner_texts()]
    expect(phone).to_have_url(f"{shared.url}/incidents/{found['id']}?find=ALERT%2838&by=4")
    phone.reload()
    expect(phone.locator("#members tbody tr")).to_have_count(11)
    assert [float(text) for text in phone.locator("#members .value").all_inner_texts()] == values
    expect(phone.get_by_label("Parameters with this in their name")).to_have_value("ALERT(38")
    ask(phone, "silence", found["id"])
    assert not phone.evaluate(is_wider)
    assert phone.evaluate(
        "document.querySelector('dialog').scrollWidth <= document.querySelector('dialog').clientWidth"
    )
    phone.keyboard.press("Escape")
    expect(phone.get_by_role("dialog")).to_be_hidden()
    assert phone.locator("main img").count() == 0


def test_each_incident_has_its_own_order_and_filter(shared: Any, open_page: Callable[..., Page]) -> None:
    listed = [
        shared.get("/api/v1/incidents", run=run, rule="collapse").json() for run in ("lora-fell", "lora-collapse")
    ]
    one, other = (answer["incidents"][0]["id"] for answer in listed)
    page = open_page(f"{shared.url}/incidents/{one}?find=q.lora&by=-4")
    expect(page.locator("#members tbody tr")).to_have_count(3)
    page.evaluate(f"window.gradcanary.open('/incidents/{other}')")
    expect(page.locator("#members tbody tr")).to_have_count(18)
    expect(page.get_by_label("Parameters with this in their name")).to_have_value("")
    page.go_back()
    expect(page.locator("#members tbody tr")).to_have_count(3)
    expect(page.get_by_label("Parameters with this in their name")).to_have_value("q.lora")


def test_the_steps_that_an_incident_offers_are_those_of_its_run(shared: Any, open_page: Callable[..., Page]) -> None:
    """The run grows after the incident: the page follows, though the incident stays as it is."""
    stream = scenes.collapse(steps=400, blocks=7, at=211)
    session = Session(shared.url, run="short", session="session-of-short")
    session.put_hello(stream.hello(first_step=0)).raise_for_status()
    session.post_batch(0, stream.batch(0, 280, change_records=True)).raise_for_status()
    number = shared.get("/api/v1/incidents", run="short", rule="collapse").json()["incidents"][0]["id"]
    page = open_page(f"{shared.url}/incidents/{number}")
    link = page.get_by_role("link", name="See steps")
    expect(link).to_have_text(re.compile(r"See steps \d+ to 279 of the run"))
    session.post_batch(1, stream.batch(280, 399)).raise_for_status()
    expect(link).to_have_text(re.compile(r"See steps \d+ to 398 of the run"))
    expect(page.locator("#members a").first).to_have_attribute("href", re.compile(r"[?&]to=398\b"))
    session.end(last_step=398).raise_for_status()
    link.click()
    page.wait_for_selector(IMAGE)
    assert query(page)["to"] == "398"


def test_cold_one_sees_what_fell_when_and_why(shared: Any, open_page: Callable[..., Page]) -> None:
    listed = [
        shared.get("/api/v1/incidents", run=run, rule="collapse").json() for run in ("lora-fell", "lora-collapse")
    ]
    one = min(answer["incidents"][0]["id"] for answer in listed)  # another run follows
    page = open_page(f"{shared.url}/incidents/{one}")
    page.wait_for_selector("#incident-curves .main-svg")
    expect(page.get_by_role("heading", level=1)).to_contain_text(re.compile(r"Collapse: \d+ of 84 parameters"))
    expect(page.locator("#incident-curves")).to_contain_text("first sign")
    expect(page.locator("#incident-loss .main-svg").first).to_be_visible()
    expect(page.locator("#incident-legend li")).to_have_count(5)
    heads = page.locator(".card.cause h3").all_inner_texts()
    assert [head.split(",")[0] for head in heads] == ["Since", "Do first", "Why", "Evidence"][: len(heads)]

    blocks = page.locator("#members details")
    rows = blocks.first.locator("tbody tr")
    expect(rows.first).to_be_hidden()
    blocks.first.locator("summary").click()
    expect(rows.first).to_be_visible()
    seen = page.locator("#incident-seen").inner_text()
    plot = page.locator("#incident-curves .nsewdrag").first.bounding_box()
    assert plot is not None
    page.mouse.move(plot["x"] + plot["width"] / 4, plot["y"] + 40)
    page.mouse.down()
    page.mouse.move(plot["x"] + plot["width"] / 2, plot["y"] + 40, steps=4)
    page.mouse.up()
    expect(page.locator("#incident-seen")).not_to_have_text(seen)
    assert {"from", "to"} <= query(page).keys()
    expect(rows.first).to_be_visible()
    page.get_by_role("button", name="Zoom out").click()
    expect(page.locator("#incident-seen")).to_have_text(seen)

    following = page.get_by_role("link", name="Next incident").get_attribute("href")
    page.keyboard.press("]")
    expect(page).to_have_url(f"{shared.url}{following}")
    expect(page.get_by_role("link", name="Previous incident")).to_have_attribute("href", f"/incidents/{one}")
    page.keyboard.press("[")
    expect(page).to_have_url(f"{shared.url}/incidents/{one}")


def test_an_unknown_incident_says_so(shared: Any, open_page: Callable[..., Page]) -> None:
    page = open_page(f"{shared.url}/incidents/999999")
    expect(page.get_by_role("heading", level=1)).to_have_text("No such incident")
    page.get_by_role("link", name="See all incidents").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Incidents")
