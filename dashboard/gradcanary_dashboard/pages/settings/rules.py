"""The page of rules: those in force, and a form that tries others on the last runs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from dash import dcc, html

from gradcanary_dashboard.address.run import run_url
from gradcanary_dashboard.collector.errors import DashboardError
from gradcanary_dashboard.components import elements, forms, static
from gradcanary_dashboard.pages.settings import frame as settings_frame
from gradcanary_dashboard.text import numbers

PAGE = "rules"

SLOTS = {
    **settings_frame.slots(PAGE),
    "rules-source": "children",
    "rules-list": "children",
    "rules-layers": "children",
}

Rules = Mapping[str, Any]
Line = Mapping[str, Any]

HOW = (
    "The runs are played again for one receiver of warnings and above, without acks and silences. "
    "The rules silent, stalled and crash are about processes, and are not counted."
)
HINT = (
    "It changes nothing: the collector takes --rules FILE at its start. "
    "An empty field tries the rules in force alone. Nothing of a trial is kept."
)
WORDS = (
    "A rule fires when one of its cases holds. Its numbers are below, as rules.yaml names them. A factor of 10 is a "
    "decade; the baseline is a parameter's own normal level."
)
ABOUT = ("version", "rules_version", "file", "grace", "pace", "layers", "metrics", "descriptions")
"""What is no rule."""

EXAMPLE = "version: 1\nrules:\n  collapse: {enter: 1.0e-5}\n"


def frame(_place: Mapping[str, str], contents: Mapping[str, Any]) -> list[Any]:
    """Return the page: the rules of now, and the form for others, which stays while it is edited."""

    def slot(name: str) -> html.Div:
        return html.Div(contents.get(name), id=name)

    return [
        *settings_frame.head("Rules"),
        html.Div(
            [
                html.Div(
                    [
                        elements.card("rules-of", slot("rules-source"), slot("rules-list"), title="Rules in force"),
                        slot("rules-layers"),
                    ],
                    className="figures",
                ),
                html.Div(
                    [*settings_frame.controls(PAGE, contents, _trial_form()), static.slot("rules-trial", None)],
                    className="beside",
                ),
            ],
            className="columns",
        ),
        elements.page_state(PAGE, contents.get("shown")),
    ]


def _trial_form() -> html.Section:
    # Not Dash's own: rules.js fills it from the address, and reads it.
    field = html.Textarea(id="rules-text", placeholder=EXAMPLE, rows=9, spellCheck="false")
    stop = html.Button("Stop", id="rules-try-stop", type="button", className="do", hidden=True)
    tried = static.slot("rules-tried", None, tag=html.P)
    form = forms.form(
        forms.field("A whole rules.yaml", field, HINT),
        settings_frame.row(forms.button("Try it on the last runs", "rules-try-do", tone="main", sends=True), stop),
        html.Div(tried, className="answer", **elements.attributes(aria_live="polite")),
    )
    return elements.card("try-rules", form, title="What would they have sent?")


def fill(rules: Rules, *, may: bool) -> dict[str, Any]:
    """Return the contents."""
    return {
        "rules-source": html.P(_source(rules)),
        "rules-list": _listed(rules),
        "rules-layers": [*_layers(rules), *_metrics(rules)],
        **settings_frame.rights(PAGE, may=may),
    }


def tried(line: Line) -> dict[str, str]:
    """Return what is drawn into the slots of the page for a line of a trial."""
    if line["kind"] == "progress":
        return {"rules-tried": static.encode(_progress(line)), "rules-trial": static.encode(None)}
    if line["kind"] == "error":
        return {"rules-tried": static.encode(forms.wrong(line["message"]))}
    return {"rules-tried": static.encode(forms.done("Done.")), "rules-trial": static.encode(_result(line))}


def refused(error: DashboardError) -> dict[str, str]:
    """Return what is drawn where no trial began, or one broke off."""
    return {"rules-tried": static.encode(forms.wrong(str(error)))}


def _progress(line: Line) -> list[Any]:
    if line["runs"] is None:
        return [elements.icon("dots"), "The last runs are being played again …"]
    done, runs = numbers.integer(line["played"]), numbers.plural(line["runs"], "run")
    return [elements.icon("dots"), f"The last runs are being played again: {done} of {runs} …"]


def _result(line: Line) -> html.Section:
    found = [_of_rules(name, line) for name in ("tried", "in_force") if name in line["totals"]]
    contents = [*found, *_bounds(line), html.P(HOW, className="dim")] if line["runs"] else [_no_run()]
    return elements.card("trial", *contents, title="What they would have sent")


def _no_run() -> html.P:
    none: list[Any] = [elements.icon("info"), "There is no run yet to try them on. ", elements.first_run_link()]
    return html.P(none, className="counted")


def _of_rules(name: str, line: Line) -> html.Div:
    """Return what some rules would have sent: of all runs, of each, and what their entries of ``layers`` hold for."""
    total, played = line["totals"][name], line["played"]
    whose = "Your rules" if name == "tried" else "The rules in force"
    of = "your last run" if played == 1 else f"your last {numbers.integer(played)} runs"
    said = f"{whose} would have sent {numbers.plural(total['messages'], 'message')} in {of}"
    counts = [(each["run"], each["counts"][name]) for each in line["outcomes"]]
    lines = [html.Li(_outcome(run, count)) for run, count in counts if count["messages"]]
    lines += [
        html.Li([html.Code(each["match"]), f" {_held(each, played)}"], className="dim") for each in total["entries"]
    ]
    verdict = html.P([elements.icon("send"), html.Strong(said)], className="counted")
    return html.Div([verdict, *([html.Ul(lines, className="records")] if lines else [])], className=name)


def _outcome(run: str, count: Mapping[str, Any]) -> list[Any]:
    by_rule = [(rule, number) for rule, number in count["by_rule"].items() if number]
    said = ", ".join(f"{rule.replace('_', ' ')} {numbers.integer(number)}" for rule, number in by_rule)
    return [dcc.Link(run, href=run_url(run)), f": {numbers.plural(count['messages'], 'message')} ({said})"]


def _held(entry: Mapping[str, Any], runs: int) -> str:
    if not entry["runs"]:
        return "holds for no parameter of these runs"
    return f"holds for up to {numbers.plural(entry['layers'], 'parameter')} of a run, in {entry['runs']} of {runs}"


def _bounds(line: Line) -> list[html.Ul]:
    """Return the runs that were not played, or not whole."""
    cut = [each for each in line["outcomes"] if not each["is_whole"] or each["raw_start_step"] is not None]
    notes = [_bound(each) for each in cut]
    left = line["runs"] - line["played"]
    if left:
        notes.append(f"{numbers.plural(left, 'run')} could not be played, or not in time: see the collector's log")
    return [html.Ul([html.Li(each, className="dim") for each in notes], className="records")] if notes else []


def _bound(outcome: Mapping[str, Any]) -> str:
    parts_of = [] if outcome["is_whole"] else [f"its first {numbers.plural(outcome['samples'], 'sample')} only"]
    gone = outcome["raw_start_step"]
    parts_of += [] if gone is None else [f"without what was before step {numbers.integer(gone)}, of which none is left"]
    return f"{outcome['run']}: {'; '.join(parts_of)}"


def _source(rules: Rules) -> list[Any]:
    known = f"version {rules['rules_version']} of this store"
    if rules["file"] is None:
        return [f"The defaults, {known}. A file of yours is given at the start: --rules FILE."]
    return [html.Code(rules["file"]), f", {known}. Changed there, it holds from the next start."]


def _listed(rules: Rules) -> list[Any]:
    described = rules["descriptions"]
    entries = [_rule(name, rules[name], described[name]) for name in rules if name not in ABOUT]
    rest = [("Grace", _values(rules["grace"])), ("Pace", _values(rules["pace"]))]
    return [html.P(WORDS, className="dim"), html.Ul(entries, className="rules-of"), settings_frame.facts(rest)]


def _rule(name: str, rule: Mapping[str, Any], described: Mapping[str, Any]) -> html.Li:
    """Return a rule: what it means, when it fires and how bad that is, and its numbers as rules.yaml names them."""
    values = {key: value for key, value in rule.items() if key not in ("enabled", "notify")}
    head = html.Div([html.H3(html.Code(name)), _state(rule)], className="told-of")
    cases = [
        html.Li([elements.badge(case["severity"], case["severity"]), html.Span(elements.prose(case["when"]))])
        for case in described["cases"]
    ]
    numbered = [html.P(_values(values), className="values")] if values else []
    return html.Li([head, html.P(described["means"]), html.Ul(cases, className="cases"), *numbered])


def _state(rule: Mapping[str, Any]) -> html.Span:
    if not rule["enabled"]:
        return elements.badge("waiting", "off")
    return elements.badge("quiet", "notifies") if rule["notify"] else elements.badge("information", "on the pages only")


def _layers(rules: Rules) -> list[Any]:
    if not rules["layers"]:
        return []
    entries = html.Ul([_entry(entry, rules) for entry in rules["layers"]], className="rules-of")
    words = html.P("For each parameter the first entry applies that is found in its name.", className="dim")
    return [elements.card("layers-of", words, entries, title="Parameters with rules of their own")]


def _metrics(rules: Rules) -> list[Any]:
    if not rules.get("metrics"):
        return []
    entries = [
        html.Li(
            [
                html.Div(html.Code(entry["match"]), className="told-of"),
                html.P(_values(_given(entry)), className="values"),
            ]
        )
        for entry in rules["metrics"]
    ]
    words = html.P(
        "For each series of a metric, one set of tags, the first entry applies that matches.", className="dim"
    )
    return [elements.card("metrics-of", words, html.Ul(entries, className="rules-of"), title="Bounds of metrics")]


def _given(entry: Mapping[str, Any]) -> dict[str, Any]:
    tags = {f"tag {tag}": expression for tag, expression in entry["tags"].items()}
    return {**tags, **{key: value for key, value in entry.items() if key not in ("match", "tags")}}


def _entry(entry: Mapping[str, Any], rules: Rules) -> html.Li:
    own = {name: part for name, part in entry.items() if name != "match" and part is not None}
    lines = [html.P(f"{name}: {_values(_other(part, rules[name]))}", className="values") for name, part in own.items()]
    return html.Li([html.Div(html.Code(entry["match"]), className="told-of"), *lines])


def _other(part: Mapping[str, Any], base: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of an entry that are not those of all layers."""
    return {key: value for key, value in part.items() if value != base[key]}


def _values(values: Mapping[str, Any]) -> str:
    return " · ".join(_worded(values)) or "as for all"


def _worded(values: Mapping[str, Any]) -> Iterator[str]:
    for key, value in values.items():
        if isinstance(value, bool):
            yield f"{key} {'true' if value else 'false'}"
        elif isinstance(value, list):
            yield f"{key} {', '.join(value)}"
        elif isinstance(value, str):
            yield f"{key} {value}"
        elif value is not None:
            yield f"{key} {numbers.scientific(value)}"
