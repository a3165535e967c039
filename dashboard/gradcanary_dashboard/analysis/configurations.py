"""The configurations of compared runs, value by value: optimizer, clip, arguments, commit, versions, machine. Pure."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, TypeAlias

from gradcanary_dashboard.text import numbers

Texts: TypeAlias = dict[str, str]
"""The values of a run in words, by their names."""

RATE_FIRST, RATE_LAST, CLIP = "learning rate, first", "learning rate, last", "clip, max norm"
OPTIMIZER, COMMAND, CODE, MACHINE = "Optimizer and clip", "Command", "Code and versions", "Machine"

PROGRAM = "the program"
"""No argument has a space in its name."""

NO_LIMIT = "no limit seen"
"""Gradients were not clipped, or not often enough to know the limit: without a clip, or under its limit."""

RATE_OF_GROUP = re.compile(r"lr(\d{1,6})")
"""The name of the metric of a parameter group's learning rate."""

SHORT_COMMIT = 10
LISTED = 3
"""Values of a setting that changed; of more the first and the last are shown."""

_LAUNCHER = re.compile(r"python[\d.]*|torchrun|accelerate|deepspeed")
_OPTION = re.compile(r"-(?!\.?\d)")
_PAIR = re.compile(r"\+{0,2}[\w.]+=")


@dataclass(frozen=True)
class Row:
    """A value of each run, None = not set. ``unknown`` are the places of runs that sent nothing of the section."""

    section: str
    name: str
    values: Sequence[str | None]
    unknown: frozenset[int]

    @property
    def differs(self) -> bool:
        """True if two runs have different values."""
        return len({value for place, value in enumerate(self.values) if place not in self.unknown}) > 1


def rows(runs: Sequence[Mapping[str, Any]]) -> list[Row]:
    """Return each value of the sections that at least two runs sent."""
    known = [_sections(run) for run in runs]
    found: list[Row] = []
    for section in (OPTIMIZER, COMMAND, CODE, MACHINE):
        texts = [sections[section] for sections in known]
        unknown = frozenset(place for place, each in enumerate(texts) if not each)
        if len(runs) - len(unknown) > 1:
            names = dict.fromkeys(name for each in texts for name in each)
            found += [Row(section, name, [each.get(name) for each in texts], unknown) for name in names]
    return found


def arguments(command: str) -> Texts:
    """Return the program of a command, and its arguments by name; a flag is ``set``."""
    program, words = _program(command)
    found: Texts = {PROGRAM: program}
    name = ""  # of the option whose values the next words are
    for word in words:
        if _OPTION.match(word) or _PAIR.match(word):
            name, is_pair, value = word.lstrip("+").partition("=")
            found[name] = value if is_pair else "set"
            name = "" if is_pair else name
        elif name:
            found[name] = word if found[name] == "set" else f"{found[name]} {word}"
        else:
            found[f"argument {len([each for each in found if each.startswith('argument ')]) + 1}"] = word
    return found


def _program(command: str) -> tuple[str, list[str]]:
    """Return the script or module of a command, without what launches it, and the words after it."""
    try:
        words = shlex.split(command)
    except ValueError:  # a quote that is not closed
        words = command.split()
    if script := next((place for place, word in enumerate(words) if word.endswith(".py")), None):
        return words[script], words[script + 1 :]
    if "-m" in words and _LAUNCHER.fullmatch(words[0].rpartition("/")[2]):
        module = words.index("-m")
        return " ".join(words[module : module + 2]), words[module + 2 :]
    return " ".join(words[:1]), words[1:]


def _sections(run: Mapping[str, Any]) -> dict[str, Texts]:
    known = (each["settings"] for each in reversed(run["launches"]) if each["settings"])
    settings: Sequence[Mapping[str, Any]] = next(known, ())
    sent = next((each["environment"] for each in reversed(run["launches"]) if each["environment"]), None)
    environment = sent or {}
    last = {metric["name"]: metric["last"] for metric in run["metrics"] if not metric["tags"]}
    return {
        OPTIMIZER: {**_settings(settings, last), **_clip(settings, last)},
        COMMAND: arguments(environment["command"]) if environment.get("command") else {},
        CODE: dict(_code(run, environment)) if sent else {},
        MACHINE: dict(_machine(environment)) if sent else {},
    }


def _settings(settings: Sequence[Mapping[str, Any]], last: Mapping[str, float | None]) -> Texts:
    """Return the settings of the parameter groups by name; groups with the same values share them."""
    values: dict[str, dict[int, list[str]]] = {}
    for each in settings:
        for group in each["groups"]:
            values.setdefault(each["name"], {}).setdefault(group, []).append(numbers.setting(each["value"]))
    rates = values.pop("lr", {})
    ends = {int(match[1]): name for name in last if (match := RATE_OF_GROUP.fullmatch(name))}
    now = {
        group: [numbers.setting(float(f"{rate:.6g}"))]
        for group, name in ends.items()
        if (rate := last[name]) is not None  # it is where it was not finite
    }
    found = {
        RATE_FIRST: _by_group({group: texts[:1] for group, texts in rates.items()}),
        RATE_LAST: _by_group(now or {group: texts[-1:] for group, texts in rates.items()}),
        **{name.replace("_", " "): _by_group(groups) for name, groups in values.items()},
    }
    return {name: text for name, text in found.items() if text}


def _by_group(values: Mapping[int, Sequence[str]]) -> str:
    """Return ``0.01``, or ``0.01 of group 0, 0 → 0.1 of group 1``."""
    groups: dict[str, list[int]] = {}
    for group, texts in sorted(values.items()):
        listed = texts if len(texts) <= LISTED else [texts[0], "…", texts[-1]]
        groups.setdefault(" \N{RIGHTWARDS ARROW} ".join(listed), []).append(group)
    if len(groups) == 1:
        return next(iter(groups))
    return ", ".join(f"{text} of {_named(numbered)}" for text, numbered in groups.items())


def _named(groups: Sequence[int]) -> str:
    return f"group{'s' if len(groups) > 1 else ''} {' and '.join(map(str, groups))}"


def _clip(settings: Iterable[Mapping[str, Any]], last: Mapping[str, float | None]) -> Texts:
    limits = [numbers.setting(each["value"]) for each in settings if each["name"] == "max_norm"]
    if limits:
        return {CLIP: _by_group({0: limits})}
    return {CLIP: NO_LIMIT} if "total_norm" in last else {}


def _code(run: Mapping[str, Any], environment: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    if commit := environment.get("git_commit"):
        yield (
            "git commit",
            commit[:SHORT_COMMIT] + (", with changes that are not committed" if environment["git_dirty"] else ""),
        )
    yield "framework", run["framework"] or "pytorch"
    yield from environment.get("versions", {}).items()


def _machine(environment: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    yield "host", environment.get("host") or numbers.NOTHING
    kinds = [f"{len(list(same))} x {name}" for name, same in groupby(sorted(environment.get("gpus") or ()))]
    yield "GPUs", ", ".join(kinds) or "none"
    yield from environment.get("job", {}).items()
