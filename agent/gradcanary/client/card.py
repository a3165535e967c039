"""A run as a notebook shows it: HTML without scripts, and the same as plain text. Pure.

The verdict and the advice are the collector's; nothing is judged here. All texts of the answers are escaped: the name
of a run may be HTML. A notebook is light or dark: a text of one colour has its own background.
"""

from __future__ import annotations

import base64
import textwrap
from collections.abc import Sequence
from html import escape

from gradcanary.client.picture import WIDTH_PX, Picture
from gradcanary.client.records import Json
from gradcanary.display.verdict import is_unrecovered, label, verdict
from gradcanary.wording import count, number

MOST_INCIDENTS = 3
MOST_ADVICE = 240
"""Characters of the advice on an incident; the page has all of it."""

SOLID = {
    "critical": "#c92a2a",
    "warning": "#9a5700",
    "information": "#1765b3",
    "quiet": "#0a7a5c",
    "waiting": "#5b6570",
}
"""The background of a label by the tone of its verdict, as in the light style sheet of the pages; its text is white."""


def html(run: Json, incidents: Sequence[Json], picture: Picture | None, url: str) -> str:
    """Return a run as HTML: the API's run, its incidents with the worst first, and the address of its page."""
    found = verdict(run)
    style = f"padding:1px 7px;border-radius:9px;background:{SOLID[found.tone]};color:#fff;white-space:nowrap"
    badge = f'<span style="{style}">{escape(label(found, incidents))}</span>'
    return _framed(
        f"<div><strong>{escape(run['run'])}</strong> {badge} {escape(found.text)}</div>",
        f'<div style="opacity:.75">{escape(_state(run))}</div>',
        *(_incident(each) for each in _standing(incidents)[:MOST_INCIDENTS]),
        *([f"<div>{escape(more)}</div>"] if (more := _more(incidents)) else []),
        "" if picture is None else _image(picture),
        f'<div><a href="{escape(url)}" target="_blank" rel="noopener">{escape(url)}</a></div>',
    )


def text(run: Json, incidents: Sequence[Json], url: str) -> str:
    """Return a run as plain text, likewise."""
    found = verdict(run)
    lines = [f"{run['run']} [{label(found, incidents)}] {found.text}", _state(run)]
    for each in _standing(incidents)[:MOST_INCIDENTS]:
        lines += [f"  {_headline(each)}", f"    Do first: {_advice(each)}"]
    return "\n".join(filter(None, [*lines, _more(incidents), url]))


def failure(sentence: str) -> str:
    """Return a sentence in place of a run that cannot be read."""
    return _framed(f"<div>{escape(sentence)}</div>")


def _framed(*parts: str) -> str:
    style = f"max-width:{WIDTH_PX + 160}px;line-height:1.5;overflow-wrap:anywhere"
    return f'<div style="{style}">{"".join(parts)}</div>'


def _state(run: Json) -> str:
    """Return ``live, step 1,234, loss 0.125, last seen 2026-11-20 10:00:00 UTC``."""
    loss = run["loss"]
    parts = [
        run["state"],
        None if run["step"] is None else f"step {run['step']:,}",
        None if loss is None else f"loss {'not finite' if loss['last'] is None else number(loss['last'])}",
        f"last seen {run['last_seen'][:19].replace('T', ' ')} UTC",
    ]
    return ", ".join(filter(None, parts))


def _standing(incidents: Sequence[Json]) -> list[Json]:
    """Return the open incidents, or those that the run ended on, in their order: the verdict is about the worst."""
    return [each for each in incidents if each["state"] == "open"] or list(filter(is_unrecovered, incidents))


def _more(incidents: Sequence[Json]) -> str:
    more = len(_standing(incidents)) - MOST_INCIDENTS
    return f"and {count(more, 'more incident')}" if more > 0 else ""


def _headline(incident: Json) -> str:
    known = ", acknowledged" if incident["acked"] else ""
    rule = incident["rule"].replace("_", " ")
    return f"#{incident['id']} {rule}, {incident['severity']}, {incident['state']}{known}: {incident['summary']}"


def _advice(incident: Json) -> str:
    return textwrap.shorten(incident["explanation"]["do_first"], MOST_ADVICE, placeholder=" \N{HORIZONTAL ELLIPSIS}")


def _incident(incident: Json) -> str:
    style = f"margin:6px 0;padding-left:8px;border-left:3px solid {SOLID[incident['severity']]}"
    advice = f"<div><em>Do first:</em> {escape(_advice(incident))}</div>"
    return f'<div style="{style}"><div>{escape(_headline(incident))}</div>{advice}</div>'


def _image(picture: Picture) -> str:
    data, words = base64.b64encode(picture.png).decode(), escape(picture.caption)
    style = "display:block;max-width:100%;margin:6px 0 2px;background:rgba(134,142,150,.18);image-rendering:pixelated"
    size = f'width="{picture.width}" height="{picture.height}"'
    image = f'<img src="data:image/png;base64,{data}" alt="{words}" {size} style="{style}">'
    return f'{image}<div style="opacity:.75;font-size:.9em">{words}</div>'
