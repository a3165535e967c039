"""What is worth a line beside the figures: findings before the first step, launches, steps that nobody has."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dash import html

from gradcanary_dashboard import history, parts, wording
from gradcanary_dashboard.history import Hole, Launch

LISTED = 12
"""Lines of a card; the newest are kept."""


def cards(run: Mapping[str, Any]) -> list[Any]:
    """Return the cards that have something to say."""
    facts = [fact["text"] for fact in run["facts"]]
    launches, holes = history.launches(run), history.holes(run)
    listed = {"note": _note(run), "facts": facts, "gaps": _holes(holes, launches), "launches": _launches(launches)}
    titles = {"note": "Note", "facts": "Findings", "gaps": "Gaps", "launches": "Launches"}
    return [
        parts.card(name, html.Ul([html.Li(line) for line in lines]), title=titles[name])
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
        lines.insert(0, f"{wording.plural(len(holes) - LISTED, 'earlier gap')}, and then")
    dropped = sum(launch.dropped_steps for launch in launches)
    if dropped:
        lines.append(f"{wording.plural(dropped, 'step')} dropped in all, says the agent")
    return lines


def _launches(launches: Sequence[Launch]) -> list[str]:
    before: Sequence[Launch | None] = [None, *launches]
    return [_launch(launch, earlier) for launch, earlier in zip(launches, before, strict=False)][-LISTED:]


def _launch(launch: Launch, before: Launch | None) -> str:
    none = "no step" if launch.state in wording.ENDED else "no step yet"
    steps = wording.steps(*launch.steps).lower() if launch.steps else none
    texts = [history.beginning(launch, before)] if before is not None and history.steps_back(launch, before) else []
    texts += [f"sampled each {wording.integer(launch.every)}th step"] if launch.every > 1 else []
    texts += [f"agent {wording.percent(launch.agent_share)}"] if launch.agent_share is not None else []
    texts += [wording.plural(launch.ranks, "rank")] if launch.ranks > 1 else []
    return f"Launch {launch.number}, {launch.state}: {'; '.join([steps, *texts])}"
