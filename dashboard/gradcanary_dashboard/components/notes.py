"""Lines beside the figures: notes, findings before the first step, missing steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dash import html

from gradcanary_dashboard.analysis import launches as run_launches
from gradcanary_dashboard.analysis.launches import Hole, Launch
from gradcanary_dashboard.components import elements
from gradcanary_dashboard.text import numbers

LISTED = 12
"""Lines of a card; the newest are kept."""


def cards(run: Mapping[str, Any]) -> list[Any]:
    """Return the cards that have something to say."""
    facts = [fact["text"] for fact in run["facts"]]
    gaps = _holes(run_launches.holes(run), run_launches.launches(run))
    listed = {"note": _note(run), "facts": facts, "gaps": gaps}
    titles = {"note": "Note", "facts": "Findings", "gaps": "Gaps"}
    return [
        elements.card(name, html.Ul([html.Li(line) for line in lines]), title=titles[name])
        for name, lines in listed.items()
        if lines
    ]


def _note(run: Mapping[str, Any]) -> list[str]:
    """Return what people said of the run."""
    lines = [line for line in run["note"].splitlines() if line.strip()]
    lines += [f"Tags: {', '.join(run['tags'])}"] if run["tags"] else []
    lines += [f"Was called {' and '.join(run['aliases'])}"] if run["aliases"] else []
    return [*lines, *(["In the archive"] if run["archived"] else [])]


def _holes(holes: Sequence[Hole], launches: Sequence[Launch]) -> list[str]:
    lines = [hole.text for hole in holes[-LISTED:]]
    if len(holes) > LISTED:
        lines.insert(0, f"{numbers.plural(len(holes) - LISTED, 'earlier gap')}, and then")
    dropped = sum(launch.dropped_steps for launch in launches)
    if dropped:
        lines.append(f"{numbers.plural(dropped, 'step')} dropped in all, says the agent")
    return lines
