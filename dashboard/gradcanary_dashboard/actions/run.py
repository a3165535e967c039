"""Clicks that change runs: on the page of a run's settings, and in the list of runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast
from urllib.parse import quote, unquote

from dash import Dash, Input, Output, State, ctx
from dash.exceptions import PreventUpdate

from gradcanary_dashboard.actions.answers import answer_click
from gradcanary_dashboard.address.run import run_url
from gradcanary_dashboard.address.runs import parse
from gradcanary_dashboard.collector.client import Collector
from gradcanary_dashboard.collector.errors import DashboardError
from gradcanary_dashboard.components import forms
from gradcanary_dashboard.pages.settings import run as run_settings_page
from gradcanary_dashboard.text import numbers
from gradcanary_dashboard.web.threads import Contents, changing

PATH, CHOSEN = State("url", "pathname"), State("runs-chosen", "data")


def register(app: Dash, collector: Collector) -> None:
    """Register the callbacks of a run's settings, and of the list of runs."""
    _register_words(app, collector)
    _register_place(app, collector)
    _register_end(app, collector)
    _register_many(app, collector)
    _register_tags(app, collector)


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


def _register_many(app: Dash, collector: Collector) -> None:
    """Register the archive and the deletion of the runs that are chosen in the list."""
    outputs = {"answer": Output("runs-answer", "children")}

    @changing(app, outputs, Input("runs-archive", "n_clicks"), CHOSEN, State("url", "search"))
    def archive(clicks: object, runs: Sequence[str], search: str | None) -> Contents:
        archived = not parse(search).is_archived
        words = "put into the archive" if archived else "taken out of the archive"

        def change(run: str) -> None:
            collector.change("PATCH", _api(run), {"archived": archived})

        return {"answer": answer_click(clicks, lambda: _change_each(runs, words, change))}

    outputs = {"answer": Output("runs-answer", "children", allow_duplicate=True)}

    @changing(app, outputs, Input("runs-delete-do", "n_clicks"), CHOSEN, State("runs-delete-count", "value"))
    def delete(clicks: object, runs: Sequence[str], typed: str | None) -> Contents:
        def ask() -> list[Any]:
            if (typed or "").strip() != str(len(runs)):
                raise ValueError(f"Nothing is deleted. Type {len(runs)}, the number of chosen runs, to delete them.")
            return _change_each(runs, "deleted", lambda run: collector.change("DELETE", _api(run)))

        return {"answer": answer_click(clicks, ask)}


def _register_tags(app: Dash, collector: Collector) -> None:
    """Register adding tags to the runs that are chosen in the list, and removing them."""
    outputs = {"answer": Output("runs-answer", "children", allow_duplicate=True)}
    buttons = Input("runs-tag-do", "n_clicks"), Input("runs-untag-do", "n_clicks")

    @changing(app, outputs, *buttons, CHOSEN, State("runs-tags", "value"))
    def tag(adds: object, removes: object, runs: Sequence[str], text: str | None) -> Contents:
        is_added, named = ctx.triggered_id == "runs-tag-do", tags_of(text or "")
        words = f"tagged {', '.join(named)}" if is_added else f"without {', '.join(named)} now"

        def change(run: str) -> None:
            known = collector.run(run).body["tags"]
            left = [each for each in known if each not in named]
            collector.change("PATCH", _api(run), {"tags": [*known, *named] if is_added else left})

        def ask() -> list[Any]:
            if not named:
                raise ValueError("Type the tags, separated by commas.")
            return _change_each(runs, words, change)

        return {"answer": answer_click(adds or removes, ask)}


def _change_each(runs: Sequence[str], words: str, change: Callable[[str], object]) -> list[Any]:
    """Change each of the runs, and return how many were and, by the reason, which were not."""
    refused: dict[str, list[str]] = {}
    for run in runs:
        reason = _refusal(change, run)
        if reason is not None:
            refused.setdefault(reason, []).append(run)
    changed = len(runs) - sum(map(len, refused.values()))
    said = forms.done(f"{numbers.plural(changed, 'run')} {words}.") if changed else []
    for reason, names in refused.items():
        said += forms.wrong(f"Not {words}: {', '.join(names)}. {reason}")
    return said


def _refusal(change: Callable[[str], object], run: str) -> str | None:
    try:
        change(run)
    except DashboardError as error:
        return str(error)
    return None


def _run(pathname: str) -> str:
    return unquote(pathname.split("/")[2])


def _api(run: str) -> str:
    return f"/runs/{quote(run, safe='')}"


def tags_of(text: str) -> list[str]:
    """Return the tags of a field, split at commas, without empty ones."""
    return [tag.strip() for tag in text.split(",") if tag.strip()]
