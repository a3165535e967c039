"""The configuration of a run: for each launch its program, the settings of its optimizer, and each change of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any, TypeAlias

from dash import html

from gradcanary_dashboard.components import elements
from gradcanary_dashboard.text import numbers

Setting: TypeAlias = Mapping[str, Any]

LISTED = 12
"""Changes of settings that are shown unfolded; the newest are kept."""

SHORT_COMMIT = 10


def cards(run: Mapping[str, Any]) -> list[html.Section]:
    """Return the card of the newest launch with a configuration, earlier ones folded; none if none is known."""
    known = [
        (number, launch)
        for number, launch in enumerate(run["launches"], start=1)
        if launch["environment"] or launch["settings"]
    ]
    if not known:
        return []
    *earlier, (number, newest) = known
    title = "Configuration" if len(run["launches"]) == 1 else f"Configuration of launch {number}"
    folded = [_folded(f"Launch {number}", _launch(launch)) for number, launch in reversed(earlier[-LISTED:])]
    return [elements.card("configuration", *_launch(newest), *folded, title=title)]


def _launch(launch: Mapping[str, Any]) -> list[Any]:
    settings = launch["settings"]
    first = [f"{_groups(groups)}: {words}" for groups, words in _first_values(settings)]
    changes = [_change(settings, place) for place, each in enumerate(settings) if each["checked"] is not None]
    shown = html.Ul([html.Li(line) for line in [*changes[-LISTED:], *_code(launch["environment"] or {})]])
    kept = changes[:-LISTED]
    more = [f"{name}: {value}" for name, value in _machine(launch["environment"] or {})]
    command = (launch["environment"] or {}).get("command")
    return [
        *([elements.code(command)] if command else []),
        shown,
        *([_folded("Optimizer", [_list(first)])] if first else []),
        *([_folded(f"{numbers.plural(len(kept), 'earlier change')} of settings", [_list(kept)])] if kept else []),
        *([_folded("Machine and versions", [_list(more)])] if more else []),
    ]


def _list(lines: Sequence[str]) -> html.Ul:
    return html.Ul([html.Li(line) for line in lines])


def _folded(title: str, children: list[Any]) -> html.Details:
    return html.Details([html.Summary(title), *children])


def _first_values(settings: Sequence[Setting]) -> Iterator[tuple[tuple[int, ...], str]]:
    """Yield groups with the same first values, and these values; a flag that is off is left out."""
    by_group: dict[int, list[str]] = {}
    for each in settings:
        if each["checked"] is None and each["value"] is not False:
            for group in each["groups"]:
                by_group.setdefault(group, []).append(_value_of(each))
    in_order = sorted(by_group, key=lambda group: (by_group[group], group))
    for words, groups in groupby(in_order, key=by_group.__getitem__):
        yield tuple(groups), ", ".join(words)
    for each in settings:
        if each["checked"] is None and not each["groups"]:
            yield (), f"{_value_of(each)} since step {numbers.integer(each['step'])} at the latest"


def _value_of(setting: Setting) -> str:
    if setting["name"] == "optimizer" or setting["value"] is True:
        return str(setting["value"] if setting["name"] == "optimizer" else setting["name"])
    return f"{setting['name']} {numbers.setting(setting['value'])}"


def _change(settings: Sequence[Setting], place: int) -> str:
    """Return the line of a change, with the value before it."""
    setting = settings[place]
    alike = [each for each in settings[:place] if each["name"] == setting["name"]]
    before = next((each for each in reversed(alike) if set(setting["groups"]) <= set(each["groups"])), None)
    values = (
        numbers.setting(setting["value"])
        if before is None
        else f"{numbers.setting(before['value'])} to {numbers.setting(setting['value'])}"
    )
    when = f"step {numbers.integer(setting['step'])}"
    if setting["step"] - setting["checked"] > 1:
        when = f"steps {numbers.integer(setting['checked'])} to {numbers.integer(setting['step'])}"
    return f"{when[:1].upper()}{when[1:]}: {setting['name']} of {_groups(setting['groups']).lower()}, {values}"


def _groups(groups: Sequence[int]) -> str:
    """Return ``Groups 0, 1 and 5``."""
    if not groups:
        return "All gradients"
    *others, last = map(str, groups)
    return f"Groups {', '.join(others)} and {last}" if others else f"Group {last}"


def _code(environment: Mapping[str, Any]) -> Iterator[str]:
    if environment.get("git_commit"):
        state = {True: ", with changes that are not committed", False: "", None: ""}[environment["git_dirty"]]
        yield f"Git commit {environment['git_commit'][:SHORT_COMMIT]}{state}"


def _machine(environment: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield what is known of the machine: names and values."""
    if environment.get("host"):
        yield "Host", environment["host"]
    if gpus := environment.get("gpus"):
        kinds = [f"{len(list(same))} x {name}" for name, same in groupby(sorted(gpus))]
        yield "GPUs", ", ".join(kinds)
    yield from environment.get("versions", {}).items()
    yield from environment.get("job", {}).items()
