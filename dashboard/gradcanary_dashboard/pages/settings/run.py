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
        elements.page_state(PAGE, contents.get("shown")),
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
    former = "Its old name still leads to it, for agents, too."
    note = dcc.Textarea(id="run-note", value=known["note"], rows=4)
    form = forms.form(
        settings_frame.row(
            forms.text("run-name", "Name", former, value=known["run"]),
            forms.text("run-tags", "Tags", "Separated by commas.", value=", ".join(known["tags"])),
        ),
        forms.field("Note", note),
        forms.button("Save", "run-save-do", tone="main", sends=True),
        forms.answer("run-saved"),
        html.P(contents.get("run-aliases"), id="run-aliases", className="dim"),
    )
    return elements.card("run-words", form, title="What it is called")


def _place(contents: Mapping[str, Any]) -> html.Section:
    archive = settings_frame.part("run-archive", contents, forms.button("Put it into the archive", "run-archive-do"))
    restore = settings_frame.part("run-restore", contents, forms.button("Take it out of the archive", "run-restore-do"))
    said = "It is not in the list of runs then; everything else is as before. Its next launch takes it out again."
    words = html.P(said, className="dim")
    return elements.card("run-place", words, archive, restore, forms.answer("run-placed"), title="Archive")


def _end(run: str) -> html.Section:
    question: list[str | Component] = [
        "This deletes all measurements and incidents of ",
        html.Code(run),
        ". Nothing brings them back.",
    ]
    really = forms.form(
        forms.text("run-delete-name", "Type its name"),
        forms.button("Delete it for ever", "run-delete-do", tone="danger", sends=True),
        forms.answer("run-deleted"),
    )
    said = (
        "What its agents still send is refused, and they stop sending; their trainings go on. "
        "Who was told of an incident is told that it is over."
    )
    return elements.card(
        "run-end", html.P(said, className="dim"), forms.asking("Delete this run", question, really), title="Delete"
    )
