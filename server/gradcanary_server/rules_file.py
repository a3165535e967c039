"""Read ``rules.yaml``: every mistake in it is an error that names the line, the key and what is allowed."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, TypeVar

import yaml

from gradcanary_server.duty import BLOCK
from gradcanary_server.errors import RulesError
from gradcanary_server.pace import Pace
from gradcanary_server.rules import (
    EVIDENCE,
    OF_RUN,
    AccumulationLoss,
    Accumulator,
    Collapse,
    Explosion,
    Fp16Underflow,
    Frozen,
    Grace,
    LayerRule,
    Nonfinite,
    Rules,
    ScaleDrop,
    Silent,
    Stalled,
    Unused,
    Vanished,
)

VERSION = 1
MAX_OBSERVATIONS = 1_000
MAX_DECADES = 60
"""More than float32 has."""

Section = TypeVar(
    "Section",
    Collapse,
    ScaleDrop,
    Nonfinite,
    Explosion,
    Vanished,
    Unused,
    AccumulationLoss,
    Accumulator,
    Frozen,
    Fp16Underflow,
    Silent,
    Stalled,
    Grace,
    Pace,
)

_SECTIONS = tuple(each.name for each in fields(Rules) if each.name not in ("version", "grace", "layers", "pace"))
"""Of ``rules``."""


QUOTES = r". An expression belongs in single quotes: match: '\.bias$'"


class _Mapping(dict[str, Any]):
    """A YAML mapping that remembers on which line each key stands."""

    def __init__(self, line: int) -> None:
        super().__init__()
        self.line = line
        self.lines: dict[str, int] = {}


class _Loader(yaml.SafeLoader):
    """Builds plain data that knows its lines; ``1e-5`` is a number, which YAML 1.1 reads as text."""


def _mapping(loader: _Loader, node: yaml.MappingNode) -> _Mapping:
    found = _Mapping(node.start_mark.line + 1)
    for key_node, value_node in node.value:
        if not isinstance(key_node, yaml.ScalarNode):
            raise yaml.constructor.ConstructorError(None, None, "a key is a word", key_node.start_mark)
        key = loader.construct_object(key_node, deep=True)
        if key in found:
            raise yaml.constructor.ConstructorError(None, None, f"{key!r} is there twice", key_node.start_mark)
        found[key] = loader.construct_object(value_node, deep=True)
        found.lines[key] = key_node.start_mark.line + 1
    return found


_Loader.add_constructor("tag:yaml.org,2002:map", _mapping)
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"^[-+]?(?:\d+\.?\d*|\.\d+)[eE][-+]?\d+$"),
    list("-+0123456789."),
)


def load(path: Path) -> Rules:
    """Return the rules of a file; raises RulesError for what cannot be read or does not mean anything."""
    try:
        text = path.read_text("utf-8")
    except OSError as error:
        raise RulesError(f"--rules {path} cannot be read: {error.strerror}.") from error
    except UnicodeDecodeError as error:
        raise RulesError(f"{path} is not YAML: {error}") from error
    return parse(text, str(path))


def parse(text: str, name: str) -> Rules:
    """Return the rules of a text; raises RulesError, which calls it by its ``name``."""
    try:
        content = yaml.load(text, _Loader)  # noqa: S506 -- a SafeLoader with line numbers
    except (ValueError, yaml.YAMLError) as error:  # a ValueError: the 30th of February, 5,000 digits
        words = str(error).replace("<unicode string>", name)
        words += QUOTES if "escape character" in words else ""
        raise RulesError(f"{name} is not YAML: {words}") from error
    except RecursionError as error:
        raise RulesError(f"{name} is not YAML that anybody writes: it is nested too deep.") from error
    return _Reader(name).rules(content)


class _Reader:
    def __init__(self, name: str) -> None:
        self._path = name

    def rules(self, content: object) -> Rules:
        top = self._keys(content, 1, ("version", "rules", "grace", "layers", "pace"), "the file")
        if type(top.get("version")) is not int or top["version"] != VERSION:
            raise self._error(top.lines.get("version", 1), "version", top.get("version"), str(VERSION))
        sections = self._keys(top.get("rules", {}), _line(top, "rules"), _SECTIONS, "rules")
        rules = Rules(
            **{name: self._section(getattr(Rules(), name), sections, name) for name in _SECTIONS},
            grace=self._section(Grace(), top, "grace"),
            pace=self._section(Pace(), top, "pace"),
        )
        return replace(rules, layers=self._layers(top, rules))

    def _layers(self, top: _Mapping, rules: Rules) -> tuple[LayerRule, ...]:
        entries = top.get("layers", [])
        if not isinstance(entries, list):
            raise self._error(_line(top, "layers"), "layers", entries, "a list of entries with 'match'")
        return tuple(self._layer(entry, _line(top, "layers"), rules) for entry in entries)

    def _layer(self, content: object, line: int, rules: Rules) -> LayerRule:
        of_run = tuple(name for name in _SECTIONS if name not in OF_RUN)
        entry = self._keys(content, line, ("match", *OF_RUN), "an entry of layers", of_run)
        match = entry.get("match")
        try:
            re.compile(match if isinstance(match, str) else "(")
        except re.error as error:
            allowed = f"a regular expression ({error})" if isinstance(match, str) else "a regular expression"
            raise self._error(_line(entry, "match"), "match", match, allowed) from error
        own = {name: self._section(getattr(rules, name), entry, name, OF_RUN[name]) for name in OF_RUN if name in entry}
        return LayerRule(str(match), **own)

    def _section(self, default: Section, parent: _Mapping, name: str, of_run: tuple[str, ...] = ()) -> Section:
        allowed = {each.name: getattr(default, each.name) for each in fields(default) if each.name not in of_run}
        given = self._keys(parent.get(name, {}), _line(parent, name), tuple(allowed), name, of_run)
        values: dict[str, Any] = {key: self._value(given, key, value, allowed[key]) for key, value in given.items()}
        if isinstance(default, Collapse) and "enter" in values:
            # Half a decade of hysteresis stays half a decade, without anybody having to write it down twice.
            values.setdefault("exit", values["enter"] * default.exit / default.enter)
        section = replace(default, **values)
        for key, value, is_possible, allowed_value in _limits(section):
            if not is_possible:
                raise self._error(given.lines.get(key, given.line), key, value, allowed_value)
        return section

    def _value(self, given: _Mapping, key: str, value: object, default: object) -> object:
        line = given.lines[key]
        if isinstance(default, bool):
            if not isinstance(value, bool):
                raise self._error(line, key, value, "true or false")
            return value
        if isinstance(default, tuple):
            return self._evidence(line, key, value)
        if key.endswith("_decades") and isinstance(value, float | int) and value > MAX_DECADES:
            raise self._error(line, key, value, f"at most {MAX_DECADES}")
        wanted = "a whole number over 0" if isinstance(default, int) else "a number over 0"
        is_number = isinstance(value, int if isinstance(default, int) else (int, float))
        if not is_number or isinstance(value, bool) or not 0 < float(str(value)) < float("inf"):
            raise self._error(line, key, value, wanted)
        return value if isinstance(default, int) else float(str(value))

    def _evidence(self, line: int, key: str, value: object) -> tuple[str, ...]:
        if value == "threshold":
            return ("threshold",)
        if (
            isinstance(value, list)
            and 0 < len(value) == len({*map(str, value)})
            and all(each in EVIDENCE for each in value)
        ):
            return tuple(each for each in EVIDENCE if each in value)
        raise self._error(line, key, value, f"a list of {', '.join(EVIDENCE)}, or the word threshold")

    def _keys(
        self, content: object, line: int, allowed: tuple[str, ...], where: str, of_run: tuple[str, ...] = ()
    ) -> _Mapping:
        if content is None or content == {}:
            content = _Mapping(line)
        if not isinstance(content, _Mapping):
            raise self._error(line, where, content, f"a mapping with the keys {', '.join(allowed)}")
        for key in content:
            if key in of_run:
                message = f"{key!r} is of all layers together, so layers cannot have it; they can have"
                raise RulesError(f"{self._path}, line {content.lines[key]}: {message} {', '.join(allowed)}.")
            if key not in allowed:
                message = f"unknown key {key!r} in {where}; known are {', '.join(allowed)}"
                raise RulesError(f"{self._path}, line {content.lines[key]}: {message}.")
        return content

    def _error(self, line: int, key: str, value: object, allowed: str) -> RulesError:
        shown = "missing" if value is None else repr(dict(value) if isinstance(value, Mapping) else value)
        return RulesError(f"{self._path}, line {line}: {key} is {shown:.200}; allowed is {allowed}.")


def _line(mapping: _Mapping, key: str) -> int:
    return mapping.lines.get(key, mapping.line)


def _limits(section: Section) -> list[tuple[str, float, bool, str]]:
    """Return what a section's numbers promise each other: key, value, whether it holds, and what is allowed."""
    match section:
        case Collapse(enter=enter, exit=leave, baseline_observations=observations):
            # Each observation of an open block is remembered, per layer.
            return [
                ("exit", leave, leave >= enter, f"at least enter, {enter:g}"),
                (
                    "baseline_observations",
                    observations,
                    observations <= MAX_OBSERVATIONS,
                    f"at most {MAX_OBSERVATIONS}",
                ),
            ]
        case Vanished(steady_share=share, observations=observations):
            return [
                ("steady_share", share, share <= 1, "at most 1"),
                ("observations", observations, observations <= BLOCK, f"at most {BLOCK}"),
            ]
        case Frozen() | Fp16Underflow() | AccumulationLoss(norm_ratio=_):
            shares = ("share", "moved_share", "stopped_share", "least_lr_share", "growth", "norm_ratio")
            found = [(name, getattr(section, name)) for name in shares if hasattr(section, name)]
            return [(name, share, share <= 1, "at most 1") for name, share in found]
        case Grace(steps=steps, max_steps=longest):
            return [("max_steps", longest, longest >= steps, f"at least steps, {steps}")]
        case Pace(growth=growth):
            return [("growth", growth, growth > 1, "a number over 1")]
        case _:
            return []
