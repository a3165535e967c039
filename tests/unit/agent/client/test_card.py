"""A run in the cell of a notebook, made of the API's answers."""

import re
from html import unescape
from html.parser import HTMLParser
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from gradcanary.client import card, picture
from gradcanary.client.heatmap import Heatmap
from support.api_answers import full, heatmap_answer, run

HOSTILE = "<script>alert(1)</script><img src=x onerror=alert(1)>\"'&"
URL = "http://127.0.0.1:8787/runs/run"


class Tags(HTMLParser):
    """The tags and attributes of HTML, and its text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: set[str] = set()
        self.text = ""
        self.open: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attributes}
        self.open += [] if tag == "img" else [tag]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, text: str) -> None:
        self.text += text


def drawing(answer: dict[str, Any]) -> picture.Picture | None:
    return picture.draw(Heatmap.decode({"spans": [], **answer}))


def sick(**changes: Any) -> dict[str, Any]:
    return run(
        open_incidents=[31],
        worst="critical",
        headline="1 of 2 parameters collapsed at step 31",
        firing={"collapse": 1},
        **changes,
    )


def test_a_run_has_its_verdict_state_step_loss_incidents_and_link() -> None:
    drawn = drawing(heatmap_answer(2, 8))
    made = Tags(card.html(sick(step=1234), [full(state="open")], drawn, URL))
    for words in (
        "collapse \N{MIDDLE DOT} 1 of 2",
        "1 of 2 parameters collapsed at step 31",
        "live, step 1,234, loss 0.125, last seen 2026-11-20 10:00:00 UTC",
        "#31 collapse, critical, open: 1 of 2 parameters fell from 0.0031 to 6.1e-7 at step 31.",
        "Do first: Check the schedule.",
        "white is the threshold 1e-4",
        URL,
    ):
        assert words in made.text
    assert made.tags == {"div", "strong", "span", "em", "img", "a"}


def test_the_plain_text_says_the_same() -> None:
    assert card.text(sick(), [full(state="open")], URL).splitlines() == [
        "run [collapse \N{MIDDLE DOT} 1 of 2] 1 of 2 parameters collapsed at step 31",
        "live, step 99, loss 0.125, last seen 2026-11-20 10:00:00 UTC",
        "  #31 collapse, critical, open: 1 of 2 parameters fell from 0.0031 to 6.1e-7 at step 31.",
        "    Do first: Check the schedule.",
        URL,
    ]


def test_what_is_unknown_is_left_out() -> None:
    assert card.text(run(step=None, loss=None, layers=0), [], URL).splitlines() == [
        "run [waiting] Waiting for the first step",
        "live, last seen 2026-11-20 10:00:00 UTC",
        URL,
    ]
    assert "<img" not in card.html(run(step=None), [], None, URL)
    assert "loss not finite" in card.text(run(loss={"name": "loss", "tags": {}, "last": None}), [], URL)


def test_incidents_that_are_over_are_not_told_and_many_are_counted() -> None:
    many = [full(id=number, state="open") for number in range(5)]
    assert card.text(sick(), [*many, full(id=9, state="resolved")], URL).count("Do first") == 3
    assert "and 2 more incidents" in card.html(sick(), many, None, URL)
    ended = run(state="finished", severity_at_end="critical", headline="x")
    assert "#31 collapse, critical, ended" in card.text(ended, [full(state="ended")], URL)


def test_long_advice_is_cut_between_words() -> None:
    parts = {**full()["explanation"], "do_first": "Lower the rate. " * 40}
    said = card.text(sick(), [full(state="open", explanation=parts)], URL)
    assert re.search(r"Do first: .* \u2026$", said, re.MULTILINE)
    assert max(map(len, said.splitlines())) < 260


@given(st.text() | st.just(HOSTILE))
def test_no_text_of_an_answer_is_markup(hostile: str) -> None:
    parts = {**full()["explanation"], "do_first": hostile}
    incidents = [full(state="open", summary=hostile, explanation=parts)]
    answer = {**heatmap_answer(1, 2), "run": hostile}
    made = card.html(sick(run=hostile) | {"headline": hostile or "x"}, incidents, drawing(answer), URL + hostile)
    tags = Tags(made)
    assert tags.tags == {"div", "strong", "span", "em", "img", "a"}
    assert tags.attributes == {"style", "src", "alt", "width", "height", "href", "target", "rel"}
    assert f"<strong>{hostile}</strong>" in unescape(made)


def test_a_failure_is_a_sentence() -> None:
    assert Tags(card.failure(f"the collector does not answer {HOSTILE}")).tags == {"div"}


def test_labels_are_readable_on_any_background() -> None:
    """White on the label: a contrast of 4.5 to 1 at least, WCAG's for text of this size."""
    for colour in card.SOLID.values():
        red, green, blue = (each / 255 for each in bytes.fromhex(colour[1:]))
        linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in (red, green, blue)]
        light = 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
        assert 1.05 / (light + 0.05) >= 4.5, colour
