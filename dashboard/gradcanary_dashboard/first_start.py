"""What stands in the list before the first run: the lines that bring one, and a demo to look at meanwhile."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dash import Dash, Input, Output, State, dcc, html
from dash.development.base_component import Component
from dash.exceptions import PreventUpdate

from gradcanary_dashboard import forms, parts
from gradcanary_dashboard.client import Collector
from gradcanary_dashboard.errors import DashboardError
from gradcanary_dashboard.threads import Contents, changing

Demo = Mapping[str, Any]

TOKEN = "A token of yours, made where the collector runs: gradcanary token create --scope ingest --name JOBS"  # noqa: S105

FRAMEWORKS = "Transformers, Lightning, Accelerate and TRL need nothing else: any of these lines finds their optimizer."

DEMO = "A real LoRA training in which three layers collapse, and its healthy twin: they take a minute."
STARTING = "Starting the demo: two small trainings on the collector's machine"
RUNNING = "The demo trains: its first step shows here in a few seconds"


def way() -> Component:
    """Return the link that leads to these lines, for pages that have nothing to show before the first run."""
    return dcc.Link("How to bring the first one", href="/")


def page(collector_url: str, demo: Demo, *, asks_token: bool) -> html.Div:
    """Return the empty state with this collector's address in every line that needs it."""
    token = " GRADCANARY_TOKEN=gc_ingest_..." if asks_token else ""
    added = [html.Span(f"+ {line}\n", className="added") for line in ("import gradcanary", "gradcanary.watch()")]
    loop = html.Span("  for batch in loader:  # your training loop, unchanged", className="dim")
    return html.Div(
        [
            html.Div(parts.icon("pulse"), className="halo"),
            html.H1("Waiting for the first run"),
            html.P("A training that is watched shows up here within a second of its first step.", className="dim"),
            *_demo(demo),
            html.H2("Where the training runs, in a clone of gradcanary"),
            parts.code(f"pip install .\nexport GRADCANARY_URL={collector_url}{token}"),
            *([html.P(TOKEN, className="dim")] if asks_token else []),
            html.H2("Then one of these: two lines before the loop"),
            parts.code("import gradcanary\ngradcanary.watch()\n", [*added, loop]),
            html.H2("No change to the script"),
            parts.code("gradcanary run train.py"),
            html.H2("A training that runs already, on Linux"),
            parts.code(f"gradcanary attach PID --url {collector_url}"),
            html.P(FRAMEWORKS, className="dim"),
            html.P(
                [html.Span(className="beat"), f"Listening on {collector_url} · no agent seen yet"],
                className="listening",
            ),
        ],
        className="empty",
    )


def version(demo: Demo) -> str:
    """Return what changes when the page has something else to say of the demo."""
    return f"{demo['offered']} {demo['state']}"


def register(app: Dash, collector: Collector) -> None:
    """Start the demo at a click; how it goes is told by the refresh that follows."""
    outputs = {"said": Output("demo-said", "children")}

    @changing(app, outputs, Input("demo-start", "n_clicks"), State("url", "pathname"))
    def start(clicks: int | None, _pathname: str | None) -> Contents:
        if not clicks:
            raise PreventUpdate
        try:
            collector.change("POST", "/demo")
        except DashboardError as error:
            return {"said": forms.wrong(str(error))}
        return {}


def _demo(demo: Demo) -> list[Component]:
    if not demo["offered"]:
        return [
            html.H2("To see what it does, on a machine of yours, in a clone of gradcanary"),
            parts.code("pip install '.[all]' torch\ngradcanary demo"),
        ]
    if demo["state"] in ("starting", "running"):
        words = STARTING if demo["state"] == "starting" else RUNNING
        return [html.P([html.Span(className="beat"), words], className="demo", role="status")]
    failed = demo["state"] == "failed"
    words = "Try the demo again" if failed else "Play the demo"
    why = forms.wrong(f"The demo failed: {demo['why']}") if failed else None
    return [
        html.Div(
            [
                forms.button(words, "demo-start", icon="pulse", tone="main"),
                html.Span(DEMO, className="dim"),
                html.P(why, id="demo-said", className="answer", role="status"),
            ],
            className="demo",
        )
    ]
