"""The table of all pages: address, frame, contents, and the version by which a refresh finds a change."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote

from gradcanary_dashboard.address import incidents as incidents_address
from gradcanary_dashboard.address import runs as runs_address
from gradcanary_dashboard.address.comparison import PATH, parse_compare
from gradcanary_dashboard.address.run import View, parse
from gradcanary_dashboard.analysis import launches as run_launches
from gradcanary_dashboard.collector import comparison as comparison_data
from gradcanary_dashboard.collector import endpoints as failing_endpoints
from gradcanary_dashboard.collector import incidents as incident_data
from gradcanary_dashboard.collector import layer as layer_data
from gradcanary_dashboard.collector import run as run_data
from gradcanary_dashboard.collector.client import Answer, Collector
from gradcanary_dashboard.collector.errors import DashboardError
from gradcanary_dashboard.collector.incident import load_curves
from gradcanary_dashboard.components import elements, run_picker
from gradcanary_dashboard.figures import incident as incident_figures
from gradcanary_dashboard.pages import compare as compare_page
from gradcanary_dashboard.pages import first_start
from gradcanary_dashboard.pages import incident as incident_page
from gradcanary_dashboard.pages import incidents as incidents_page
from gradcanary_dashboard.pages import layer as layer_page
from gradcanary_dashboard.pages import run as run_page
from gradcanary_dashboard.pages import runbook as runbook_page
from gradcanary_dashboard.pages import runs as runs_page
from gradcanary_dashboard.pages.settings import endpoints as endpoint_pages
from gradcanary_dashboard.pages.settings import questions
from gradcanary_dashboard.pages.settings import retention as retention_page
from gradcanary_dashboard.pages.settings import rules as rules_page
from gradcanary_dashboard.pages.settings import run as run_settings_page
from gradcanary_dashboard.pages.settings import silences as silences_page
from gradcanary_dashboard.pages.settings import tokens as tokens_page

MOST_RUNS = 100
"""Runs to choose from on the page of another one, the last seen first."""

Arguments = Mapping[str, str]
"""The arguments in the path of a page: ``{"run": .., "layer": ..}``."""

Contents = Mapping[str, Any]
"""The contents of a page's slots, with ``shown`` and ``title``."""

Shown = Mapping[str, Any]
"""The state of a page: ``version`` and ``chosen`` of its contents, and more for some pages."""


@dataclass(frozen=True)
class Page:
    """One kind of page.

    ``path`` is its address; the groups of the expression are its arguments. ``frame`` returns the part that stays: the
    slots and ``<name>-page-state`` (``components.elements.page_state``). ``ask`` returns the contents, empty if the
    page has them by its ``shown``. The query of the address holds the choice on the page.
    """

    name: str
    path: str
    title: str
    slots: Mapping[str, str]
    frame: Callable[[Arguments, Contents], list[Any]]
    ask: Callable[[Collector, Arguments, str, Shown], Contents]
    unknown: Callable[[Collector, Arguments], list[Any]] = field(default=lambda _collector, _arguments: [])


def versioned(
    version: Callable[[Collector, Arguments, str], str], load: Callable[[Collector, Arguments, str], Contents]
) -> Callable[[Collector, Arguments, str, Shown], Contents]:
    """Return ``ask`` of a page that changes when its version does."""

    def ask(collector: Collector, arguments: Arguments, chosen: str, shown: Shown) -> Contents:
        now = version(collector, arguments, chosen)
        if (shown.get("version"), shown.get("chosen")) == (now, chosen):
            return {}
        return {**load(collector, arguments, chosen), "shown": json.dumps({"version": now, "chosen": chosen})}

    return ask


def find(pathname: str) -> tuple[Page, Arguments]:
    """Return the page of a path and its arguments; ``NOWHERE`` for an unknown path."""
    for page in PAGES:
        found = re.fullmatch(page.path, pathname.rstrip("/") or "/")
        if found is not None:
            return page, {name: unquote(text) for name, text in found.groupdict().items()}
    return NOWHERE, {}


def is_page(pathname: str) -> bool:
    """Return True if a path is the address of a page."""
    return any(re.fullmatch(page.path, pathname.rstrip("/") or "/") for page in PAGES)


def _run_lists(collector: Collector, chosen: runs_address.Listing) -> tuple[Answer, Answer | None]:
    """Return a page of runs, and those that need attention where they have a section of their own."""
    section, others = chosen.sections()
    return collector.runs(**others), None if section is None else collector.runs(**section)


def runs_version(collector: Collector, _arguments: Arguments | None = None, search: str = "") -> str:
    """Return the version of the list of runs."""
    listed, attention = _run_lists(collector, runs_address.parse(search))
    section = "" if attention is None else attention.version
    return f"{listed.version} {section} {failing_endpoints.version(collector)}"


def _load_runs(collector: Collector, _arguments: Arguments, search: str) -> Contents:
    chosen = runs_address.parse(search)
    listed, attention = _run_lists(collector, chosen)
    section = None if attention is None else attention.body
    unheard, first = failing_endpoints.load(collector), None
    is_empty = not listed.body["runs"] and not (section and section["runs"])
    if is_empty and chosen.is_everything and not collector.runs(archived="true", limit=1).body["runs"]:
        first = first_start.page(collector.public_url, asks_token=collector.as_reader)
    return runs_page.fill(listed.body, section, chosen, unheard, first=first)


def _ask_run(collector: Collector, arguments: Arguments, search: str, shown: Shown) -> Contents:
    run = arguments["run"]
    view, wrong = run_data.view_of(collector.run(run).body, search)
    listed = _runs_beside(collector, run, view, shown)
    if shown and shown.get("chosen") == search and _is_run_shown(collector, arguments, shown, view):
        return {**listed, "shown": json.dumps(shown)} if listed else {}
    version = run_data.version(collector, run, view)
    data = run_data.load(collector, run, view, shown.get("layer"))
    drawn = data.layer and data.layer["layer"]
    return {
        **run_page.fill(data, view, search, wrong),
        **listed,
        "shown": _run_state(version, search, data, layer=drawn),
    }


def _runs_beside(collector: Collector, run: str, view: View, shown: Shown) -> Contents:
    """Return the choice of another run: of all runs at the first refresh, as a page opens faster without them."""
    if "vs-runs" in shown.get("slots", ()):
        return {}
    listed = collector.runs(limit=MOST_RUNS).body["runs"] if shown else []
    return {"vs-runs": run_picker.options(collector.run(run).body, listed, view)}


def _ask_layer(collector: Collector, arguments: Arguments, search: str, shown: Shown) -> Contents:
    if shown and shown.get("chosen") == search and _is_run_shown(collector, arguments, shown, View()):
        return {}
    version, view = collector.run(arguments["run"]).version, parse(search)
    data = layer_data.load(collector, arguments["run"], arguments["layer"], view)
    return {**layer_page.fill(data, view), "shown": _run_state(version, search, data, of_layer=data.layer["layer"])}


def _run_state(version: str, search: str, data: run_data.RunData | layer_data.LayerData, **own: object) -> str:
    incidents = data.incidents_version if run_data.is_unsettled(data.incidents) else None
    return json.dumps({"version": version, "chosen": search, "incidents": incidents, **own})


def _is_run_shown(collector: Collector, arguments: Arguments, shown: Shown, view: View) -> bool:
    if shown.get("version") != run_data.version(collector, arguments["run"], view):
        return False
    if shown.get("incidents") is None:
        return True
    # Deliveries change without a new revision of the run.
    listed = incident_data.worst_of_run(collector, arguments["run"], shown.get("of_layer"))
    return bool(listed.version == shown["incidents"])


def _ask_compare(collector: Collector, _arguments: Arguments, search: str, shown: Shown) -> Contents:
    wanted = parse_compare(search)
    version = comparison_data.version(collector, wanted)
    if (shown.get("version"), shown.get("chosen")) == (version, search):
        return {}
    data = comparison_data.load(collector, wanted, shown.get("layer"))
    state = {"version": version, "chosen": search, "layer": data.layer}
    return {**compare_page.fill(data, wanted), "shown": json.dumps(state)}


def _unknown(collector: Collector, arguments: Arguments) -> list[Any]:
    """Return the page of an unknown run, or of an unknown layer of a known run."""
    try:
        collector.run(arguments["run"])
    except DashboardError:
        return run_page.unknown(arguments["run"])
    return layer_page.unknown(arguments["run"], arguments["layer"])


def _incidents_version(collector: Collector, _arguments: Arguments, search: str) -> str:
    return incident_data.version(collector, incidents_address.parse(search))


def _load_incidents(collector: Collector, _arguments: Arguments, search: str) -> Contents:
    chosen = incidents_address.parse(search)
    rules = incident_data.rules(collector)
    return incidents_page.fill(incident_data.load(collector, chosen), chosen, rules, collector.public_url)


def _incident_version(collector: Collector, arguments: Arguments, search: str) -> str:
    incident = collector.incident(int(arguments["incident"]))
    run = collector.run(incident.body["run"])
    there = _steps(run.body)
    around = incident_page.steps_around(incident.body, there)
    seen = incident_page.pictured(incident.body, run.body, search)
    is_growing = there is None or there[1] <= (seen.to_step or 0)
    return f"{incident.version} {around.from_step} {around.to_step} {run.version if is_growing else ''}"


def _load_incident(collector: Collector, arguments: Arguments, search: str) -> Contents:
    incident = collector.incident(int(arguments["incident"])).body
    run = collector.run(incident["run"]).body
    there = _steps(run)
    view = incident_page.pictured(incident, run, search)
    curves = load_curves(collector, incident, run, view, incident_figures.names(run["metrics"]))
    return incident_page.fill(incident, curves, view, there, incidents_address.parse_members(search))


def _steps(run: Mapping[str, Any]) -> run_launches.Steps | None:
    return run_launches.measured(run_launches.launches(run))


def _unknown_incident(_collector: Collector, arguments: Arguments) -> list[Any]:
    return incident_page.unknown(arguments["incident"])


_ask_incidents = versioned(_incidents_version, _load_incidents)
_ask_incident = versioned(_incident_version, _load_incident)


def _unknown_run(_collector: Collector, arguments: Arguments) -> list[Any]:
    return run_page.unknown(arguments["run"])


def _unknown_endpoint(_collector: Collector, arguments: Arguments) -> list[Any]:
    return endpoint_pages.unknown(arguments["endpoint"])


def _nowhere(_arguments: Arguments, _contents: Contents) -> list[Any]:
    """Return the page of an unknown address."""
    text = ["Nothing is at this address. It may be mistyped, or from an older version."]
    return [elements.missing("No such page", text, ("See all runs", "/"))]


_ask_runs = versioned(runs_version, _load_runs)

NOWHERE = Page("nowhere", "", "No such page", {}, _nowhere, lambda *_question: {})

RUNS = Page("runs", "/", "Runs", runs_page.SLOTS, runs_page.frame, _ask_runs)
LAYER = Page(
    "layer",
    "/runs/(?P<run>[^/]+)/layers/(?P<layer>[^/]+)",
    "Parameter",
    layer_page.SLOTS,
    layer_page.frame,
    _ask_layer,
    _unknown,
)
RUN = Page("run", "/runs/(?P<run>.+)", "Run", run_page.SLOTS, run_page.frame, _ask_run, _unknown)
INCIDENTS = Page(
    "incidents",
    "/incidents",
    "Incidents",
    incidents_page.SLOTS,
    incidents_page.frame,
    _ask_incidents,
)
INCIDENT = Page(
    "incident",
    "/incidents/(?P<incident>[0-9]{1,10})",
    "Incident",
    incident_page.SLOTS,
    incident_page.frame,
    _ask_incident,
    _unknown_incident,
)

RUN_SETTINGS = Page(
    run_settings_page.PAGE,
    "/runs/(?P<run>[^/]+)/settings",
    "Settings of a run",
    run_settings_page.SLOTS,
    run_settings_page.frame,
    questions.RUN,
    _unknown_run,
)
ENDPOINTS = Page(
    endpoint_pages.ALL,
    "/settings(?:/endpoints)?",
    "Settings",
    endpoint_pages.SLOTS,
    endpoint_pages.frame,
    questions.ENDPOINTS,
)
ENDPOINT = Page(
    endpoint_pages.ONE,
    "/settings/endpoints/(?P<endpoint>[0-9]{1,10})",
    "Endpoint",
    endpoint_pages.SLOTS_OF_ONE,
    endpoint_pages.frame_of_one,
    questions.ENDPOINT,
    _unknown_endpoint,
)
RULES = Page(
    rules_page.PAGE,
    "/settings/rules",
    "Rules",
    rules_page.SLOTS,
    rules_page.frame,
    questions.RULES,
)
SILENCES = Page(
    silences_page.PAGE,
    "/settings/silences",
    "Silences",
    silences_page.SLOTS,
    silences_page.frame,
    questions.SILENCES,
)
STORAGE = Page(
    retention_page.PAGE,
    "/settings/retention",
    "Retention",
    retention_page.SLOTS,
    retention_page.frame,
    questions.STORAGE,
)
TOKENS = Page(
    tokens_page.PAGE,
    "/settings/tokens",
    "Tokens",
    tokens_page.SLOTS,
    tokens_page.frame,
    questions.TOKENS,
)
RUNBOOK = Page(
    "runbook",
    f"/runbooks/(?P<rule>{'|'.join(runbook_page.RULES)})",
    "Runbook",
    runbook_page.SLOTS,
    runbook_page.frame,
    runbook_page.ask,
)
COMPARE = Page("compare", PATH, "Compare runs", compare_page.SLOTS, compare_page.frame, _ask_compare)

PAGES = (
    RUNS,
    LAYER,
    RUN_SETTINGS,
    RUN,
    COMPARE,
    INCIDENTS,
    INCIDENT,
    ENDPOINTS,
    ENDPOINT,
    RULES,
    SILENCES,
    STORAGE,
    TOKENS,
    RUNBOOK,
)
"""The first page whose expression matches a path is used."""
