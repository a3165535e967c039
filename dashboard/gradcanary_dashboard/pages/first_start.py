"""The list of runs before the first run: lines to copy for a training, and for the demo."""

from __future__ import annotations

from dash import html

from gradcanary_dashboard.components import elements

TOKEN = "A token of yours, made where the collector runs: gradcanary token create --scope ingest --name JOBS"  # noqa: S105

FRAMEWORKS = "Transformers, Lightning, Accelerate and TRL need nothing else: any of these lines finds their optimizer."

DEMO = "A real LoRA training in which three parameters collapse, and its healthy twin: they take a minute."


def page(collector_url: str, *, asks_token: bool) -> html.Div:
    """Return the empty state, with this collector's address in its lines."""
    token = " GRADCANARY_TOKEN=gc_ingest_..." if asks_token else ""
    added = [html.Span(f"+ {line}\n", className="added") for line in ("import gradcanary", "gradcanary.watch()")]
    loop = html.Span("  for batch in loader:  # your training loop, unchanged", className="dim")
    return html.Div(
        [
            html.Div(elements.icon("pulse"), className="halo"),
            html.H1("Waiting for the first run"),
            html.P("A training that is watched shows up here within a second of its first step.", className="dim"),
            html.H2("Where the training runs, in a clone of gradcanary"),
            elements.code(f"pip install .\nexport GRADCANARY_URL={collector_url}{token}"),
            *([html.P(TOKEN, className="dim")] if asks_token else []),
            html.H2("Then one of these: two lines before the loop"),
            elements.code("import gradcanary\ngradcanary.watch()\n", [*added, loop]),
            html.H2("No change to the script"),
            elements.code("gradcanary run train.py"),
            html.H2("A training that runs already, on Linux"),
            elements.code(f"gradcanary attach PID --url {collector_url}"),
            html.P(FRAMEWORKS, className="dim"),
            html.H2("No training at hand: the demo, where torch is, in a clone of gradcanary"),
            elements.code(
                f"pip install .\n{token.lstrip()}{' ' if token else ''}gradcanary demo --url {collector_url}"
            ),
            html.P(DEMO, className="dim"),
            html.P(
                [html.Span(className="beat"), f"Listening on {collector_url} · no agent seen yet"],
                className="listening",
            ),
        ],
        className="empty",
    )
