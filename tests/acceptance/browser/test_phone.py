"""A phone at night: from the link of a message to its end, figures under fingers, and room for the thumb."""

import re
from collections.abc import Sequence
from typing import Any

import pytest
from playwright.sync_api import CDPSession, Page, expect

from support.browser import addresses
from support.browser.looks import amiss, too_small_for_fingers
from support.browser.plots import IMAGE, await_figures, await_rest, place, query, until
from support.streams import Session, Stream, falling_loss, healthy

RUN = "lora-collapse"
NIGHT = "two-at-night"
KEYBOARD = 414
"""Pixels that a keyboard leaves of 844."""

ARGUMENTS = {"run": RUN, "layer": "blocks.4.attn.q.lora_A.weight", "incident": "1", "endpoint": "1", "rule": "collapse"}
ADDRESSES = addresses.of_each(ARGUMENTS, {"compare": f"?run={RUN}&run=lora-quiet"})

Points = Sequence[tuple[float, float]]


class Fingers:
    """Fingers on the screen of a phone, as Chromium gets them from the system."""

    def __init__(self, page: Page) -> None:
        self._devtools: CDPSession = page.context.new_cdp_session(page)

    def drag(self, begin: Points, end: Points, moves: int = 8) -> None:
        """Move each finger from a place to another, and lift them."""
        self._send("touchStart", begin)
        for number in range(1, moves + 1):
            part = number / moves
            pairs = zip(begin, end, strict=True)
            self._send("touchMove", [(x + part * (u - x), y + part * (v - y)) for (x, y), (u, v) in pairs])
        self._send("touchEnd", ())

    def _send(self, kind: str, points: Points) -> None:
        touched = [{"x": x, "y": y, "id": number} for number, (x, y) in enumerate(points)]
        self._devtools.send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": touched})


@pytest.mark.parametrize(("first", "every"), [(0, 100), (1_000_000, 1), (987_600, 10), (99_950_000, 1000)])
def test_steps_of_many_digits_fit(shared: Any, phone: Page, first: int, every: int) -> None:
    absmax = healthy(136, 24)
    absmax[100:, :3] *= 1e-3
    absmax[112:, 6:9] *= 1e-3
    run = f"far-{first}"
    session = Session(shared.url, run=run)
    session.send(Stream(absmax, falling_loss(136), first_step=first, every=every), size=4)
    session.end().raise_for_status()
    phone.goto(f"{shared.url}/runs/{run}")
    phone.wait_for_selector(IMAGE)
    await_figures(phone)
    assert amiss(phone, "phone") == []


def test_woken_up_by_a_message_one_sees_what_happened_acks_and_sees_it_end(shared: Any, phone: Page) -> None:
    absmax = healthy(420, 24)
    absmax[130:190, [0, 2, 4]] *= 1e-3
    stream, session = Stream(absmax, stored="bfloat16"), Session(shared.url, run=NIGHT)
    session.put_hello(stream.hello()).raise_for_status()
    for seq, start in enumerate(range(0, 180, 20)):
        session.post_batch(seq, stream.batch(start, start + 20, change_records=seq == 0)).raise_for_status()
    incidents = shared.get("/api/v1/incidents", run=NIGHT).json()["incidents"]
    [found] = [each for each in incidents if each["rule"] == "collapse"]

    phone.goto(found["url"])
    expect(phone.locator("[data-verdict]")).to_contain_text("3 of 24 parameters collapsed")
    card = phone.locator(".incident").first
    expect(card).to_have_class("incident open critical named")
    for words in ("since step 130", "Do first", "Why", "Parameters"):
        expect(card).to_contain_text(words)
    order = "(name) => document.querySelector(name).getBoundingClientRect().top"
    tops = [phone.evaluate(order, name) for name in ("[data-verdict]", ".card.incidents", ".card.heat", ".tiles")]
    assert tops == sorted(tops)
    expect(phone.locator(".incident.information > details")).not_to_have_attribute("open", "")

    phone.locator(f"[data-do=silence][data-incident='{found['id']}']").tap()
    dialog = phone.get_by_role("dialog")
    expect(dialog.get_by_label("Your name")).not_to_be_focused()  # or the keyboard covers what one came to read
    phone.set_viewport_size({"width": 390, "height": KEYBOARD})
    dialog.get_by_label("Note").tap()
    for seen in (dialog, dialog.get_by_label("Note"), dialog.get_by_role("button", name="Silence", exact=True)):
        expect(seen).to_be_in_viewport(ratio=1)
    dialog.get_by_role("button", name="Silence", exact=True).tap()
    expect(dialog.get_by_text("Say who you are")).to_be_in_viewport(ratio=1)
    phone.set_viewport_size({"width": 390, "height": 844})
    dialog.get_by_role("button", name="Cancel").tap()
    expect(dialog).to_be_hidden()

    phone.locator(f"[data-do=ack][data-incident='{found['id']}']").tap()
    dialog.get_by_label("Your name").fill("ada")
    dialog.get_by_label("Your name").press("Enter")
    expect(card).to_contain_text(re.compile("acked by ada, (just now|.* ago)"))
    for seq, start in enumerate(range(180, 420, 40), start=9):
        session.post_batch(seq, stream.batch(start, start + 40)).raise_for_status()
    expect(card.locator(".outcome")).to_have_text("resolved")
    expect(card.get_by_role("button", name="Ack")).to_have_count(0)
    expect(phone.locator("[data-verdict]")).not_to_contain_text("collapsed")


def test_fingers_go_along_a_figure_and_scroll_past_it(shared: Any, phone: Page) -> None:
    phone.goto(f"{shared.url}/runs/{RUN}")
    phone.wait_for_selector(IMAGE)
    await_figures(phone)
    fingers = Fingers(phone)
    phone.locator("#heatmap").evaluate("(one) => one.scrollIntoView({ block: 'center' })")
    await_rest(phone, "#heatmap")
    fingers.drag([place(phone, "heatmap", 0.2, 0.5)], [place(phone, "heatmap", 0.8, 0.5)])
    said = "Number(document.querySelector('#readout').textContent.match(/steps? ([0-9]+)/i)?.[1])"
    until(phone, f"Math.abs({said} - 560) < 30")
    assert query(phone) == {}

    above = phone.evaluate("scrollY")
    fingers.drag([place(phone, "heatmap", 0.5, 0.7)], [place(phone, "heatmap", 0.5, 0.2)])
    until(phone, f"scrollY > {above + 40}")
    assert query(phone) == {}


@pytest.mark.parametrize("path", ADDRESSES.values(), ids=ADDRESSES)
def test_touch_targets_are_large_enough(shared: Any, phone: Page, path: str) -> None:
    phone.goto(shared.url + path)
    await_figures(phone)
    assert too_small_for_fingers(phone) == []
    assert phone.evaluate("document.documentElement.scrollWidth") <= 390


BESIDE = """() => Array.from(document.querySelectorAll(".card.layers tr")).flatMap((row) => {
    const cells = Array.from(row.cells).filter((cell) => !cell.matches(".name"));
    const texts = cells.flatMap((cell) => {
        const range = new Range();
        range.selectNodeContents(cell);
        return Array.from(range.getClientRects(), (box) => [cell.textContent, box]).filter(([, box]) => box.width);
    });
    return texts.flatMap(([text, box]) => texts
        .filter(([other, its]) => other !== text && its.top < box.bottom && its.bottom > box.top)
        .filter(([, its]) => its.left >= box.left && its.left < box.right + 5)
        .map(([other]) => `${text} and ${other}`));
})"""
"""Texts of two cells of a row with less than 5 pixels between them; a name has a line of its own."""


@pytest.mark.parametrize("width", [360, 390, 430])
def test_columns_of_the_table_of_layers_stay_apart(shared: Any, phone: Page, width: int) -> None:
    phone.set_viewport_size({"width": width, "height": 844})
    phone.goto(f"{shared.url}/runs/lora-collapse")
    expect(phone.locator("#layer-rows tr").first).to_be_attached()
    assert phone.evaluate(BESIDE) == []
