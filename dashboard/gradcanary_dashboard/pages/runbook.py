"""The page of a runbook: docs/runbooks as the package has it, so that it needs no other host.

It knows the Markdown that the runbooks use: headings, paragraphs, lists, blocks of code; links, code and bold words.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from dash import dcc, html
from dash.development.base_component import Component

from gradcanary import __version__, knowledge
from gradcanary_dashboard.components import elements

RULES = tuple(page.name for page in knowledge.runbooks())
SLOTS: Mapping[str, str] = {}

_COMMENT = re.compile(r"<!--.*?-->\n?")
_BLOCK = re.compile(r"^```\w*\n(?P<code>.*?)^```$|(?P<text>(?:^(?!```)[^\n]+\n?)+)", re.DOTALL | re.MULTILINE)
_POINT = re.compile(r"^(?:- |\d+\. )", re.MULTILINE)
_INLINE = re.compile(r"`([^`]+)`|\*\*([^*]+)\*\*|\*([^*]+)\*|\[([^]]+)\]\(([^)]+)\)")
_PAGES = {"rules.md": "/settings/rules", **{f"{rule}.md": f"/runbooks/{rule}" for rule in RULES}}
"""By the file that a link names: the pages that this collector serves. Other links are shown as their words."""


def ask(_collector: object, _place: Mapping[str, str], _search: str, shown: Mapping[str, Any]) -> dict[str, Any]:
    """Return the state of the page, once: a runbook changes with the version only."""
    return {} if shown else {"shown": json.dumps({"version": __version__})}


def frame(place: Mapping[str, str], contents: Mapping[str, Any]) -> list[Any]:
    """Return the page: a card for each section, after what the rule means."""
    page = knowledge.runbook(place["rule"])
    head, *sections = re.split(
        r"^## ", _COMMENT.sub("", page.text if page else f"# {place['rule']}\n"), flags=re.MULTILINE
    )
    title, _, meaning = head.removeprefix("# ").partition("\n")
    return [
        elements.crumbs([("Incidents", f"/incidents?rule={place['rule']}")], "runbook"),
        html.H1(title),
        *render(meaning),
        *(_section(number, text) for number, text in enumerate(sections)),
        elements.page_state("runbook", contents.get("shown")),
    ]


def _section(number: int, text: str) -> html.Section:
    title, _, body = text.partition("\n")
    return elements.card(f"part-{number}", *render(body), title=title)


def render(text: str) -> Iterator[Component]:
    """Yield the blocks of Markdown as components."""
    for block in _BLOCK.finditer(text):
        if block["code"] is not None:
            yield elements.code(block["code"].rstrip("\n"))
        elif _POINT.match(block["text"]):
            points = [html.Li(_inline(point)) for point in _POINT.split(block["text"]) if point]
            yield (html.Ul if block["text"].startswith("-") else html.Ol)(points)
        else:
            yield html.P(_inline(block["text"]))


def _inline(text: str) -> list[Any]:
    """Return words, code, bold words and links; a line break in the source is a space."""
    found: list[Any] = []
    end = 0
    text = " ".join(text.split())
    for match in _INLINE.finditer(text):
        code, bold, slanted, words, target = match.groups()
        found += [text[end : match.start()], _WRAPPED[match.lastindex or 1](code or bold or slanted or words, target)]
        end = match.end()
    return [part for part in [*found, text[end:]] if part]


def _link(words: str, target: str | None) -> Component | str:
    page = _PAGES.get((target or "").rpartition("/")[2].partition("#")[0])
    return dcc.Link(words, href=page, className="in-text") if page else words


_WRAPPED: Mapping[int, Callable[[str, str | None], Component | str]] = {
    1: lambda words, _: html.Code(words),
    2: lambda words, _: html.B(words),
    3: lambda words, _: html.I(words),
    5: _link,
}
"""By the last group of ``_INLINE`` that matched."""
