"""The page where people say something of a run: name, note, tags, the archive, and its end."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dash import dcc, html
from dash.development.base_component import Component

from gradcanary_dashboard.address.run import run_url
from gradcanary_dashboard.components import elements, forms
from gradcanary_dashboard.pages.settings import frame as settings_frame

PAGE = "run-settings"

SLOTS = {
    **settings_frame.slots(PAGE),
    "run-archive": "hidden",
    "run-restore": "hidden",
    "run-aliases": "children",
}


def frame(place: Mapping[str, str], contents: Mapping[str, Any]) -> list[Any]:
    """Return the page; its form begins with what is known, and stays as somebody types it."""
    run = place["run"]
    return [
        elements.crumbs([("Runs", "/"), (run, run_url(run))], "Settings"),
        html.H1(run),
        *settings_frame.controls(PAGE, contents, _words(contents), _place(contents), _end(run)),
        settings_frame.leaving(PAGE),
        elements.heart(PAGE, contents.get("shown")),
    ]


def fill(run: Mapping[str, Any], *, may: bool) -> dict[str, Any]:
    """Return the contents; ``run`` is what the form begins with."""
    former = " and ".join(run["aliases"])
    return {
        "run-archive": run["archived"],
        "run-restore": not run["archived"],
        "run-aliases": f"Was called {former}: what is sent or asked under that comes here." if former else None,
        **settings_frame.rights(PAGE, may=may),
        "run": run,
        "title": f"Settings of {run['run']}",
    }


def _words(contents: Mapping[str, Any]) -> html.Section:
    known = contents.get("run", {"run": "", "note": "", "tags": []})
    name = dcc.Input(id="run-name", type="text", value=known["run"], autoComplete="off", spellCheck=False)
    tags = dcc.Input(id="run-tags", type="text", value=", ".join(known["tags"]), autoComplete="off")
    note = dcc.Textarea(id="run-note", value=known["note"], rows=4)
    return elements.card(
        "run-words",
        settings_frame.row(
            forms.field("Name", name, "Its old name still leads to it, for agents, too."),
            forms.field("Tags", tags, "Separated by commas."),
        ),
        forms.field("Note", note),
        forms.button("Save", "run-save-do", tone="main"),
        forms.answer("run-saved"),
        html.P(contents.get("run-aliases"), id="run-aliases", className="dim"),
        title="What it is called",
    )


def _place(contents: Mapping[str, Any]) -> html.Section:
    archive = html.Div(
        forms.button("Put it into the archive", "run-archive-do"),
        id="run-archive",
        hidden=contents.get("run-archive", True),
    )
    restore = html.Div(
        forms.button("Take it out of the archive", "run-restore-do"),
        id="run-restore",
        hidden=contents.get("run-restore", True),
    )
    said = "It is not in the list of runs then; everything else is as before. Its next launch takes it out again."
    words = html.P(said, className="dim")
    return elements.card("run-place", words, archive, restore, forms.answer("run-placed"), title="Archive")


def _end(run: str) -> html.Section:
    question: list[str | Component] = [
        "This deletes all measurements and incidents of ",
        html.Code(run),
        ". Nothing brings them back.",
    ]
    field = dcc.Input(id="run-delete-name", type="text", autoComplete="off", spellCheck=False)
    really = html.Div(
        [
            forms.field("Type its name", field),
            forms.button("Delete it for ever", "run-delete-do", tone="danger"),
            forms.answer("run-deleted"),
        ],
        className="really",
    )
    said = (
        "What its agents still send is refused, and they stop sending; their trainings go on. "
        "Who was told of an incident is told that it is over."
    )
    return elements.card(
        "run-end", html.P(said, className="dim"), forms.asking("Delete this run", question, really), title="Delete"
    )
