"""What is worth a line beside the figures: findings before the first step, launches, steps that nobody has."""

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
    launches, holes = run_launches.launches(run), run_launches.holes(run)
    listed = {"note": _note(run), "facts": facts, "gaps": _holes(holes, launches), "launches": _launches(launches)}
    titles = {"note": "Note", "facts": "Findings", "gaps": "Gaps", "launches": "Launches"}
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


def _launches(launches: Sequence[Launch]) -> list[str]:
    before: Sequence[Launch | None] = [None, *launches]
    return [_launch(launch, earlier) for launch, earlier in zip(launches, before, strict=False)][-LISTED:]


def _launch(launch: Launch, before: Launch | None) -> str:
    steps = numbers.steps(*launch.steps).lower() if launch.steps else f"no step{numbers.yet([launch.state])}"
    texts = (
        [run_launches.beginning(launch, before)]
        if before is not None and run_launches.steps_back(launch, before)
        else []
    )
    texts += [f"sampled each {numbers.integer(launch.every)}th step"] if launch.every > 1 else []
    texts += [f"agent {numbers.percent(launch.agent_share)}"] if launch.agent_share is not None else []
    texts += [numbers.plural(launch.ranks, "rank")] if launch.ranks > 1 else []
    return f"Launch {launch.number}, {launch.state}: {'; '.join([steps, *texts])}"
