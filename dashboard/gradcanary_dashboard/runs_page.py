"""The list of runs, and what stands there before the first one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dash import dcc, html
from dash.development.base_component import Component

from gradcanary_dashboard import palette, parts, silent_endpoints, wording
from gradcanary_dashboard.columns import decode
from gradcanary_dashboard.sparkline import HEIGHT, WIDTH, sparkline
from gradcanary_dashboard.verdict import Verdict, firing, verdict
from gradcanary_dashboard.view import View, run_url

BANNER_LINES = 5
COLOURS = {
    "critical": palette.RED,
    "warning": "#e8890c",
    "information": palette.BLUE,
    "quiet": "#12a184",
    "waiting": palette.GREY,
}

SLOTS = {"runs": "children", "runs-head": "className"}
"""Id and property of everything that a refresh fills."""


def frame(_place: Mapping[str, str], contents: Mapping[str, Any]) -> list[Any]:
    """Return the page: a heading with the filter that stays, and the slot that a refresh fills."""
    return [
        html.Div(
            [
                html.H1("Runs"),
                dcc.Input(id="runs-filter", type="search", placeholder="Filter, press /", autoComplete="off"),
            ],
            id="runs-head",
            className=contents.get("runs-head", "runs-head"),
        ),
        html.Div(contents.get("runs"), id="runs"),
        parts.heart("runs", contents.get("shown")),
    ]


def fill(
    runs: Sequence[Mapping[str, Any]],
    incidents: Sequence[Mapping[str, Any]],
    wanted: str,
    collector_url: str,
    silent: Sequence[Mapping[str, Any]] = (),
    *,
    asks_token: bool = False,
    has_older: bool = False,
) -> dict[str, Any]:
    """Return the contents: the open incidents and a card per run whose name holds ``wanted``, or the empty state.

    ``has_older``: there are runs that are found by a part of their names only.
    Above all stand the endpoints that no message reaches, which are ``silent``.
    """
    unheard = silent_endpoints.banner(silent)
    if not runs and not has_older:
        return {"runs-head": "runs-head hidden", "runs": [*unheard, empty(collector_url, asks_token=asks_token)]}
    shown = [run for run in runs if wanted.strip().casefold() in run["run"].casefold()]
    cards = [_card(run, [incident for incident in incidents if incident["run"] == run["run"]]) for run in shown]
    none = html.P(["No run has ", html.Code(wanted), " in its name."], className="dim")
    rest = [html.P("Older runs are found by a part of their names: press /", className="dim")] if has_older else []
    listed = html.Div([*cards, *rest] if cards else none, className="runs")
    return {"runs-head": "runs-head", "runs": [*unheard, *_banner(incidents), listed]}


TOKEN = "A token of yours, made where the collector runs: gradcanary token create --scope ingest --name JOBS"  # noqa: S105


def empty(collector_url: str, *, asks_token: bool) -> html.Div:
    """Return what stands here before the first run: the lines that bring one, with this collector's address."""
    added = [html.Span(f"+ {line}\n", className="added") for line in ("import gradcanary", "gradcanary.watch()")]
    loop = html.Span("  for batch in loader:  # your training loop, unchanged", className="dim")
    return html.Div(
        [
            html.Div(parts.icon("pulse"), className="halo"),
            html.H1("Waiting for the first run"),
            html.P("Add two lines to a training; it shows up here within a second of its first step.", className="dim"),
            html.H2("Where the training runs"),
            parts.code("pip install gradcanary"),
            html.H2("In the training script, before the loop"),
            parts.code("import gradcanary\ngradcanary.watch()\n", [*added, loop]),
            html.H2("So that it finds this collector"),
            parts.code(
                f"export GRADCANARY_URL={collector_url}" + (" GRADCANARY_TOKEN=gc_ingest_..." if asks_token else "")
            ),
            *([html.P(TOKEN, className="dim")] if asks_token else []),
            html.P(
                [html.Span(className="beat"), f"Listening on {collector_url} · no agent seen yet"],
                className="listening",
            ),
        ],
        className="empty",
    )


def _banner(incidents: Sequence[Mapping[str, Any]]) -> list[html.Section]:
    opened = [incident for incident in incidents if incident["state"] == "open"]
    if not opened:
        return []
    worst = "critical" if any(incident["severity"] == "critical" for incident in opened) else opened[0]["severity"]
    lines = [html.Li([_link(incident), " ", incident["summary"]]) for incident in opened[:BANNER_LINES]]
    if len(opened) > BANNER_LINES:
        lines.append(html.Li(f"and {wording.integer(len(opened) - BANNER_LINES)} more", className="dim"))
    heading = html.H2([parts.icon(parts.ICONS[worst]), wording.plural(len(opened), "open incident")])
    return [html.Section([heading, html.Ul(lines)], className=f"banner tone-{worst}")]


def _link(incident: Mapping[str, Any]) -> dcc.Link:
    return dcc.Link(incident["run"], href=run_url(incident["run"], View(incident=incident["id"])))


def _card(run: Mapping[str, Any], incidents: Sequence[Mapping[str, Any]]) -> html.Article:
    said = verdict(run, incidents)
    facts: list[str | Component] = [parts.run_state(run["state"]), f"step {wording.integer(run['step'])}"]
    facts += [f"accumulators {wording.dtypes(run['accumulators'])}"] if run["accumulators"] else []
    facts.append(parts.moment(run["last_seen"]))
    facts += [*run["tags"], *([run["note"]] if run["note"] else [])]
    return html.Article(
        [
            html.Div(
                [
                    html.H2([parts.badge(said.tone, said.tone), dcc.Link(run["run"], href=run_url(run["run"]))]),
                    html.P(said.text, className="said"),
                    html.P([html.Span(fact) for fact in facts if fact], className="dim facts"),
                ]
            ),
            _counts(run),
            html.Div(_spark(run, said), className="spark"),
        ],
        className=f"run tone-{said.tone}",
    )


def _counts(run: Mapping[str, Any]) -> html.Div:
    fires = firing(run)
    total = wording.integer(run["layers"])
    return html.Div(
        [
            html.Div(f"{wording.integer(fires)} / {total}", className="value bad" if fires else "value"),
            html.Div(["layers firing", f", {wording.integer(run['low'])} low" if run["low"] else ""], className="dim"),
        ],
        className="counts",
    )


def _spark(run: Mapping[str, Any], said: Verdict) -> list[html.Img]:
    source = sparkline(decode(run["spark"]), COLOURS[said.tone]) if run["spark"] else None
    if source is None:
        return []
    return [html.Img(src=source, width=WIDTH, height=HEIGHT, alt="absmax of the worst layers over the run")]
