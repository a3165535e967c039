"""The page of rules: which are in force, what they would have said of the last runs, and what others would."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from dash import dcc, html

from gradcanary_dashboard import first_start, forms, parts, settings_frame, wording
from gradcanary_dashboard.view import run_url

PAGE = "rules"

SLOTS = {
    **settings_frame.slots(PAGE),
    **settings_frame.ways(PAGE),
    "rules-source": "children",
    "rules-backtest": "children",
    "rules-list": "children",
    "rules-layers": "children",
    "rules-trial": "children",
}

Rules = Mapping[str, Any]
Counted = Mapping[str, Any]

HOW = (
    "Counted by playing the runs again: one receiver that hears of warnings and above, nobody acknowledges, nothing is "
    "silenced. The rules silent and stalled go by the clock, and are not counted."
)
ABOUT = ("version", "rules_version", "file", "grace", "pace", "layers")
"""What is no rule."""

EXAMPLE = "version: 1\nrules:\n  collapse: {enter: 1.0e-5}\n"


def frame(_place: Mapping[str, str], contents: Mapping[str, Any]) -> list[Any]:
    """Return the page: the rules of now, and the form for others, which stays as somebody writes in it."""

    def slot(name: str) -> html.Div:
        return html.Div(contents.get(name), id=name)

    return [
        *settings_frame.head(PAGE, "Rules", contents),
        parts.card(
            "backtest",
            slot("rules-source"),
            slot("rules-backtest"),
            html.P(HOW, className="dim"),
            title="In force",
        ),
        *settings_frame.controls(PAGE, contents, _trial_form()),
        # Outside of what may be disabled: a reader may look at what somebody else tried.
        slot("rules-trial"),
        parts.card("rules-of", slot("rules-list"), title="Rules"),
        slot("rules-layers"),
        dcc.Location(id=f"{PAGE}-url", refresh=False),
        parts.heart(PAGE, contents.get("shown")),
    ]


def _trial_form() -> html.Section:
    field = dcc.Textarea(id="rules-text", placeholder=EXAMPLE, rows=9, spellCheck=False)
    return parts.card(
        "try-rules",
        forms.field("A whole rules.yaml", field, "It changes nothing: the collector takes --rules FILE at its start."),
        forms.button("Try it on the last runs", "rules-try-do", tone="main"),
        forms.answer("rules-tried"),
        title="What would others say?",
    )


def fill(rules: Rules, counted: Counted, tried: Counted | None, *, is_chosen: bool, may: bool) -> dict[str, Any]:
    """Return the contents; ``tried`` is what other rules would have said, which the address names if ``is_chosen``."""
    return {
        "rules-source": html.P(_source(rules)),
        "rules-backtest": _backtest(counted),
        "rules-list": _listed(rules, counted),
        "rules-layers": _layers(rules, counted),
        "rules-trial": _trial(tried, is_chosen=is_chosen),
        **settings_frame.rights(PAGE, may=may),
    }


def _source(rules: Rules) -> list[Any]:
    known = f"version {rules['rules_version']} of this store"
    if rules["file"] is None:
        return [f"The defaults, {known}. A file of yours is given at the start: --rules FILE."]
    return [html.Code(rules["file"]), f", {known}. Changed there, it holds from the next start."]


def _backtest(counted: Counted) -> list[Any]:
    return [_verdict(counted), *_outcomes(counted)]


def _verdict(counted: Counted) -> html.P:
    """Return the sentence that says how often people would have been told."""
    runs, left = counted["runs"], counted["left"]
    done = runs - left
    if counted["state"] in ("waiting", "counting") and not done:
        return html.P([parts.icon("dots"), "The last runs are being played again …"], className="counted")
    if not runs:
        none: list[Any] = [parts.icon("info"), "There is no run yet to try them on. ", first_start.way()]
        return html.P(none, className="counted")
    of = "your last run" if done == 1 else f"your last {wording.integer(done)} runs"
    said = f"These rules would have sent {wording.plural(counted['messages'], 'message')} in {of}"
    rest: list[Any] = []
    if left:
        why = "are being played" if counted["state"] in ("waiting", "counting") else "could not be played: see the log"
        rest = [f"; {wording.integer(left)} more {why}"]
    elif counted["at"]:
        rest = [html.Span([", counted ", parts.moment(counted["at"])], className="dim")]
    return html.P([parts.icon("send"), html.Strong(said), *rest], className="counted")


def _outcomes(counted: Counted) -> list[Any]:
    spoken = [each for each in counted["outcomes"] if each["messages"]]
    lines = [html.Li(_outcome(each)) for each in spoken]
    cut = [each for each in counted["outcomes"] if not each["is_whole"] or each["gone_before"] is not None]
    notes = [html.Li(_bounds(each), className="dim") for each in cut]
    return [html.Ul([*lines, *notes], className="records")] if lines or notes else []


def _outcome(outcome: Mapping[str, Any]) -> list[Any]:
    by_rule = [(rule, number) for rule, number in outcome["by_rule"].items() if number]
    said = ", ".join(f"{rule.replace('_', ' ')} {wording.integer(number)}" for rule, number in by_rule)
    run = dcc.Link(outcome["run"], href=run_url(outcome["run"]))
    return [run, f": {wording.plural(outcome['messages'], 'message')} ({said})"]


def _bounds(outcome: Mapping[str, Any]) -> str:
    """Return what of a run was not played."""
    parts_of = [] if outcome["is_whole"] else [f"its first {wording.plural(outcome['samples'], 'sample')} only"]
    gone = outcome["gone_before"]
    parts_of += [] if gone is None else [f"without what was before step {wording.integer(gone)}, of which none is left"]
    return f"{outcome['run']}: {'; '.join(parts_of)}"


def _listed(rules: Rules, counted: Counted) -> list[Any]:
    told: dict[str, int] = {}
    for outcome in counted["outcomes"]:
        for rule, number in outcome["by_rule"].items():
            told[rule] = told.get(rule, 0) + number
    names = [name for name in rules if name not in ABOUT]
    entries = [_rule(name, rules[name], told.get(name)) for name in names]
    rest = [("Grace", _values(rules["grace"])), ("Pace", _values(rules["pace"]))]
    return [html.Ul(entries, className="rules-of"), settings_frame.facts(rest)]


def _rule(name: str, rule: Mapping[str, Any], told: int | None) -> html.Li:
    said = [] if not told else [html.Span(wording.plural(told, "message"), className="dim")]
    values = {key: value for key, value in rule.items() if key not in ("enabled", "notify")}
    head = html.Div([html.Code(name, className="name"), _state(rule), *said], className="told-of")
    return html.Li([head, html.P(_values(values), className="values")] if values else head)


def _state(rule: Mapping[str, Any]) -> html.Span:
    if not rule["enabled"]:
        return parts.badge("waiting", "off")
    return parts.badge("quiet", "notifies") if rule["notify"] else parts.badge("information", "on the pages only")


def _layers(rules: Rules, counted: Counted) -> list[Any]:
    entries = rules["layers"]
    if not entries:
        return []
    known = [
        _entry(entry, rules, [each["matched"][place] for each in counted["outcomes"]])
        for place, entry in enumerate(entries)
    ]
    words = html.P("Of a layer the first entry that is found in its name holds.", className="dim")
    return [
        parts.card("layers-of", words, html.Ul(known, className="rules-of"), title="Layers with rules of their own")
    ]


def _entry(entry: Mapping[str, Any], rules: Rules, matched: Sequence[int]) -> html.Li:
    own = {name: part for name, part in entry.items() if name != "match" and part is not None}
    lines = [html.P(f"{name}: {_values(_other(part, rules[name]))}", className="values") for name, part in own.items()]
    hit = [number for number in matched if number]
    found = (
        f"holds for up to {wording.plural(max(hit), 'layer')} of a run, in {len(hit)} of {len(matched)}"
        if hit
        else ("holds for no layer of the last runs" if matched else "")
    )
    head = html.Div([html.Code(entry["match"]), html.Span(found, className="dim")], className="told-of")
    return html.Li([head, *lines])


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
        elif value is not None:
            yield f"{key} {wording.scientific(value)}"


def _trial(tried: Counted | None, *, is_chosen: bool) -> list[Any]:
    if not is_chosen:
        return []
    if tried is None:
        text = "These rules are forgotten, as all are after a day, and all but the last few: try them again."
        return [parts.card("trial", html.P(text), title="What others would have said")]
    return [parts.card("trial", *_backtest(tried), title="What others would have said")]
