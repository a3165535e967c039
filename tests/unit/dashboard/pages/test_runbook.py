"""The page of a runbook: its Markdown as components."""

from dash import html

from gradcanary_dashboard.pages import runbook
from support.api_answers import text_of


def shown(text: str) -> str:
    return text_of(list(runbook.render(text)))


def test_a_page_has_a_card_for_each_section_and_no_marks() -> None:
    page = runbook.frame({"rule": "collapse"}, {})
    titles = [part.children[0].children.children for part in page if isinstance(part, html.Section)]
    assert titles[0] == "Is it real?"
    assert len(titles) == 5
    said = text_of(page)
    assert not [mark for mark in ("<!--", "**Ack", "```", "](") if mark in said]


def test_links_lead_to_pages_of_the_collector_only() -> None:
    said = shown(
        "See [nonfinite](nonfinite.md), [the rules](../reference/rules.md#x) and [page](../knowledge/swamping.md)."
    )
    assert '"href": "/runbooks/nonfinite"' in said
    assert '"href": "/settings/rules"' in said
    assert "swamping" not in said


def test_lists_and_code_keep_their_lines() -> None:
    said = list(runbook.render("1. One\n   more\n2. Two `x`\n\n```python\na = 1\nb = 2\n```\n\nEnd.\n"))
    assert [type(each) for each in said] == [html.Ol, html.Div, html.P]
    assert said[0].children[0].children == ["One more"]
    assert "a = 1\\nb = 2" in text_of(said[1])


def test_the_state_is_sent_once() -> None:
    assert runbook.ask(None, {}, "", {}) != {}
    assert runbook.ask(None, {}, "", {"version": "1"}) == {}
