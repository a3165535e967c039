"""Clicks on the page of a run's settings."""

from __future__ import annotations

from typing import Any, cast
from urllib.parse import quote, unquote

from dash import Dash, Input, Output, State
from dash.exceptions import PreventUpdate

from gradcanary_dashboard.actions.answers import answer_click
from gradcanary_dashboard.address.run import run_url
from gradcanary_dashboard.collector.client import Collector
from gradcanary_dashboard.collector.errors import DashboardError
from gradcanary_dashboard.components import forms
from gradcanary_dashboard.pages.settings import run as run_settings_page
from gradcanary_dashboard.web.threads import Contents, changing

PATH = State("url", "pathname")


def register(app: Dash, collector: Collector) -> None:
    """Register the callbacks of a run's settings."""
    _register_words(app, collector)
    _register_place(app, collector)
    _register_end(app, collector)


def _register_words(app: Dash, collector: Collector) -> None:
    fields = [State(name, "value") for name in ("run-name", "run-tags", "run-note")]
    outputs = {
        "answer": Output("run-saved", "children"),
        "url": Output(f"{run_settings_page.PAGE}-leaving", "pathname", allow_duplicate=True),
    }

    @changing(app, outputs, Input("run-save-do", "n_clicks"), *fields, PATH)
    def save(clicks: object, name: str | None, tags: str | None, note: str | None, path: str) -> Contents:
        run, moved = _run(path), {}

        def ask() -> list[Any]:
            wished: dict[str, Any] = {"note": note or "", "tags": tags_of(tags or "")}
            named = (name or "").strip()
            if named and named != run:
                wished["name"] = named
            known = cast(dict[str, Any], collector.change("PATCH", _api(run), wished))
            if known["run"] != run:
                moved["url"] = f"{run_url(known['run'])}/settings"
            return forms.done("Saved.")

        return {"answer": answer_click(clicks, ask), **moved}


def _register_place(app: Dash, collector: Collector) -> None:
    outputs = {"answer": Output("run-placed", "children")}

    def button(name: str, *, archived: bool, words: str) -> None:
        @changing(
            app,
            {**outputs, "answer": Output("run-placed", "children", allow_duplicate=archived)},
            Input(name, "n_clicks"),
            PATH,
        )
        def place(clicks: object, path: str) -> Contents:
            def ask() -> list[Any]:
                collector.change("PATCH", _api(_run(path)), {"archived": archived})
                return forms.done(words)

            return {"answer": answer_click(clicks, ask)}

    button("run-restore-do", archived=False, words="It is in the list of runs.")
    button("run-archive-do", archived=True, words="It is in the archive.")


def _register_end(app: Dash, collector: Collector) -> None:
    outputs = {
        "answer": Output("run-deleted", "children"),
        "url": Output(f"{run_settings_page.PAGE}-leaving", "pathname", allow_duplicate=True),
    }

    @changing(app, outputs, Input("run-delete-do", "n_clicks"), State("run-delete-name", "value"), PATH)
    def delete(clicks: object, typed: str | None, path: str) -> Contents:
        if not clicks:
            raise PreventUpdate
        run = _run(path)
        if (typed or "").strip() != run:
            return {"answer": forms.wrong(f"That is not its name. Type {run} to delete it.")}
        try:
            collector.change("DELETE", _api(run))
        except DashboardError as error:
            return {"answer": forms.wrong(str(error))}
        return {"url": "/settings/retention"}


def _run(pathname: str) -> str:
    return unquote(pathname.split("/")[2])


def _api(run: str) -> str:
    return f"/runs/{quote(run, safe='')}"


def tags_of(text: str) -> list[str]:
    """Return the tags of a field, split at commas, without empty ones."""
    return [tag.strip() for tag in text.split(",") if tag.strip()]
