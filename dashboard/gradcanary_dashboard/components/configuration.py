"""The overview of a run: its program and machine, its times and launches, the optimizer and each change of it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from itertools import groupby
from typing import Any, TypeAlias

from dash import html

from gradcanary_dashboard.analysis import launches as run_launches
from gradcanary_dashboard.analysis.launches import Launch
from gradcanary_dashboard.analysis.layers import Layer
from gradcanary_dashboard.components import elements
from gradcanary_dashboard.figures import learning_rates
from gradcanary_dashboard.text import numbers

Setting: TypeAlias = Mapping[str, Any]

LISTED = 12
"""Changes of settings that are shown unfolded; the newest are kept."""

SHORT_COMMIT, SHORT_COMMAND = 10, 160
"""Characters of a commit and of a command that are shown unfolded."""

MOST_VALUES = 4
"""Learning rates, and counts of micro-steps, that are shown."""

TRACKERS = {"wandb": "W&B", "mlflow": "MLflow"}
"""Other trackers, as they call themselves."""

_ADDRESS = re.compile(r"https?://((?:[A-Za-z0-9_.-]+|\[[0-9A-Fa-f:.]+\])(?::\d+)?)(?=[/?#]|\Z)")
"""An address that becomes a link, and its host. No user and no backslash: with them browsers open another host."""


def overview(run: Mapping[str, Any], layers: Sequence[Layer]) -> list[Any]:
    """Return what ran: command, times, machine, optimizer and its changes, of the newest launch; the rest is folded."""
    known = [(number, launch) for number, launch in enumerate(run["launches"], start=1) if _is_known(launch)]
    *earlier, (_, newest) = known or [(0, {"environment": None, "settings": []})]
    environment, settings = newest["environment"] or {}, newest["settings"]
    lines = _changes(settings)
    facts = {**_times(run), **_program(environment), **_training(run, settings, layers), "Launches": _launches(run)}
    return [
        *_command(environment),
        html.Dl([html.Div([html.Dt(name), html.Dd(told)]) for name, told in facts.items() if told], className="ran"),
        *([_list(lines[-LISTED:], "changes")] if lines else []),
        *_details(environment, settings, lines),
        *(_folded(f"Launch {number}", _whole(launch)) for number, launch in reversed(earlier[-LISTED:])),
    ]


def _is_known(launch: Mapping[str, Any]) -> bool:
    return bool(launch["environment"] or launch["settings"])


def _times(run: Mapping[str, Any]) -> dict[str, Any]:
    if not run["launches"]:
        return {}
    started = run["launches"][0]["started"]
    begin, end = (datetime.fromisoformat(when) for when in (started, run["last_seen"]))
    return {"Started": elements.moment(started), "Duration": numbers.duration((end - begin).total_seconds())}


def _program(environment: Mapping[str, Any]) -> dict[str, Any]:
    """Return where the program ran, and its code; values in full are in the fold."""
    versions: Mapping[str, str] = environment.get("versions", {})
    main = [f"{name} {versions[name]}" for name in ("python", "torch") if name in versions]
    return {
        "Host": environment.get("host"),
        "GPUs": _gpus(environment),
        "Commit": _commit(environment, SHORT_COMMIT),
        "Versions": " \N{MIDDLE DOT} ".join(main),
        **{title: _list(_newest(runs)) for title, runs in _tracker_runs(environment).items()},
    }


def _tracker_runs(environment: Mapping[str, Any]) -> dict[str, list[elements.Children]]:
    """Return the runs of each other tracker that were active beside a launch, in their order."""
    found: dict[str, list[elements.Children]] = {}
    for run in environment.get("trackers", ()):
        found.setdefault(TRACKERS.get(run["tracker"]) or str(run["tracker"]), []).append(_tracker_run(run))
    return found


def _newest(runs: Sequence[elements.Children]) -> list[elements.Children]:
    earlier = numbers.plural(len(runs) - LISTED, "earlier run")
    return [*runs[-LISTED:], *([earlier] if len(runs) > LISTED else [])]


def _tracker_run(run: Mapping[str, Any]) -> elements.Children:
    """Return a link with its host: a client sent the address. Without one it is what a run without a page is."""
    if address := _ADDRESS.match(run["url"] or ""):
        link = html.A(run["name"], href=run["url"], target="_blank", rel="noopener noreferrer")
        return [link, f" at {address[1]}"]
    words = list(dict.fromkeys((run["name"], run["id"])))
    if run["store"] is not None:
        words.append(f"{'offline run' if run['tracker'] == 'wandb' else 'kept'} in {run['store']}")
    return ", ".join(filter(None, (*words, run["url"])))


def _training(run: Mapping[str, Any], settings: Sequence[Setting], layers: Sequence[Layer]) -> dict[str, Any]:
    first = {each["name"]: numbers.setting(each["value"]) for each in reversed(settings) if each["checked"] is None}
    decay = f"weight_decay {first['weight_decay']}" if "weight_decay" in first else None
    rates = [metric["last"] for metric in run["metrics"] if learning_rates.is_rate(metric["name"])]
    ks = sorted({layer["micro_steps"] for layer in layers if layer["micro_steps"] is not None})
    return {
        "Optimizer": ", ".join(filter(None, (first.get("optimizer"), decay))),
        "Learning rate": ", ".join(map(numbers.scientific, list(dict.fromkeys(rates))[:MOST_VALUES])),
        "Micro-steps": ", ".join(map(numbers.integer, ks[:MOST_VALUES])) + (" a step" if ks else ""),
    }


def _command(environment: Mapping[str, Any]) -> list[Any]:
    """Return the command without the folders of its programs; the button copies all of it."""
    command = environment.get("command")
    return [elements.code(command, shown=_shortened(command))] if command else []


def _shortened(command: str) -> str:
    program, *rest = command.split(" ", 2)
    if rest and not rest[0].startswith("-"):
        rest[0] = rest[0].rpartition("/")[2]
    text = " ".join((program.rpartition("/")[2], *rest))
    return text if len(text) <= SHORT_COMMAND else f"{text[:SHORT_COMMAND]} …"


def _details(environment: Mapping[str, Any], settings: Sequence[Setting], changes: Sequence[str]) -> list[html.Details]:
    """Return what is folded of the newest launch."""
    first = [f"{_groups(groups)}: {words}" for groups, words in _first_values(settings)]
    kept = changes[:-LISTED]
    machine = [f"{name}: {value}" for name, value in _machine(environment)]
    return [
        *([_folded(f"{numbers.plural(len(kept), 'earlier change')} of settings", [_list(kept)])] if kept else []),
        *([_folded("Optimizer, every value", [_list(first)])] if first else []),
        *([_folded("Command, machine and versions", [_list(machine)])] if machine else []),
    ]


def _whole(launch: Mapping[str, Any]) -> list[Any]:
    """Return the configuration of an earlier launch."""
    environment, settings = launch["environment"] or {}, launch["settings"]
    lines = _changes(settings)
    runs = [[f"{title}: ", run] for title, each in _tracker_runs(environment).items() for run in each]
    shown = [*runs, *lines[-LISTED:]]
    return [*([_list(shown)] if shown else []), *_details(environment, settings, lines)]


def _list(lines: Sequence[Any], name: str | None = None) -> html.Ul:
    return html.Ul([html.Li(line) for line in lines], className=name)


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


def _changes(settings: Sequence[Setting]) -> list[str]:
    """Return a line for each change. A learning rate comes with each, and is told beside one of its group only."""
    changed = {
        (each["step"], group)
        for each in settings
        if each["checked"] is not None and each["name"] != "lr"
        for group in each["groups"]
    }
    return [
        _change(settings, place)
        for place, each in enumerate(settings)
        if each["checked"] is not None
        and (each["name"] != "lr" or any((each["step"], group) in changed for group in each["groups"]))
    ]


def _change(settings: Sequence[Setting], place: int) -> str:
    """Return the line of a change, with the value before it: of a learning rate that is in its curve."""
    setting = settings[place]
    alike = [each for each in settings[:place] if each["name"] == setting["name"] != "lr"]
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


def _launches(run: Mapping[str, Any]) -> html.Ul | None:
    launches = run_launches.launches(run)
    before: Sequence[Launch | None] = [None, *launches]
    lines = [_launch(launch, earlier) for launch, earlier in zip(launches, before, strict=False)][-LISTED:]
    return _list(lines) if lines else None


def _launch(launch: Launch, before: Launch | None) -> str:
    steps = numbers.steps(*launch.steps).lower() if launch.steps else f"no step{numbers.yet([launch.state])}"
    texts = (
        [run_launches.beginning(launch, before)]
        if before is not None and run_launches.steps_back(launch, before)
        else []
    )
    texts += [f"sampled each {numbers.integer(launch.every)}th step"] if launch.every > 1 else []
    texts += [f"agent {numbers.percent(launch.agent_share)}"] if launch.agent_share is not None else []
    texts += [numbers.plural(launch.ranks, "rank")] if launch.ranks > 1 else []
    return f"{launch.number}, {launch.state}: {'; '.join([steps, *texts])}"


def _commit(environment: Mapping[str, Any], letters: int | None = None) -> str:
    commit, is_dirty = environment.get("git_commit"), environment.get("git_dirty")
    return f"{commit[:letters]}{', with changes that are not committed' if is_dirty else ''}" if commit else ""


def _gpus(environment: Mapping[str, Any]) -> str:
    return ", ".join(f"{len(list(same))} x {name}" for name, same in groupby(sorted(environment.get("gpus", ()))))


def _machine(environment: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield what is known of program and machine: names and values."""
    told = {"Command": environment.get("command"), "Git commit": _commit(environment)}
    told |= {"Host": environment.get("host"), "GPUs": _gpus(environment)}
    yield from ((name, value) for name, value in told.items() if value)
    yield from environment.get("versions", {}).items()
    yield from environment.get("job", {}).items()
