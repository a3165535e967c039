"""What is drawn without Dash: text and attributes."""

import json

from dash import dcc, html
from hypothesis import given
from hypothesis import strategies as st

from gradcanary_dashboard.components import static

HOSTILE = "</script><img src=x onerror=alert(1)>"


TEXTS = st.text(st.characters(blacklist_categories=("Cs", "Cc")), min_size=1, max_size=40)


@given(st.lists(TEXTS, max_size=4))
def test_drawn_page_is_text_and_attributes(texts: list[str]) -> None:
    drawn = static.encode([html.P([text, html.B(text)], title=text, className="x", hidden=True) for text in texts])
    paragraphs = [["p", {"title": text, "class": "x", "hidden": ""}, text, ["b", {}, text]] for text in texts]
    assert json.loads(drawn) == paragraphs
    assert "<" not in drawn or any("<" in text for text in texts)


def test_a_link_within_the_pages_leads_on_without_loading() -> None:
    drawn = json.loads(static.encode(dcc.Link(HOSTILE, href="/incidents/1", className="do")))
    assert drawn == [["a", {"href": "/incidents/1", "class": "do", "data-way": ""}, HOSTILE]]


def test_a_zero_is_an_attribute_and_a_false_is_none() -> None:
    [drawn] = json.loads(static.encode(html.Div(tabIndex=0, hidden=False)))
    assert drawn[1] == {"tabindex": "0"}
