"""Reader of ``rules.yaml``; an error names the line, the key and the allowed values."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import TypeAdapter, ValidationError

from gradcanary_server.errors import RulesError
from gradcanary_server.rules.config import (
    LAYER_RULES,
    NAMES,
    Collapse,
    Grace,
    LayerRule,
    MetricRule,
    Pace,
    Rules,
    Section,
)

VERSION = 1

AnySection = TypeVar("AnySection", Section, Grace, Pace)

QUOTES = r". An expression belongs in single quotes: match: '\.bias$'"


class _Mapping(dict[str, Any]):
    """A YAML mapping with the line of each key."""

    def __init__(self, line: int) -> None:
        super().__init__()
        self.line = line
        self.lines: dict[str, int] = {}

    def line_of(self, key: str) -> int:
        return self.lines.get(key, self.line)


class _Loader(yaml.SafeLoader):
    """Builds plain data with lines; ``1e-5`` is a number here, YAML 1.1 reads it as text."""


def _mapping(loader: _Loader, node: yaml.MappingNode) -> _Mapping:
    mapping = _Mapping(node.start_mark.line + 1)
    for key_node, value_node in node.value:
        if not isinstance(key_node, yaml.ScalarNode):
            raise yaml.constructor.ConstructorError(None, None, "a key is a word", key_node.start_mark)
        key = loader.construct_object(key_node, deep=True)
        if key in mapping:
            raise yaml.constructor.ConstructorError(None, None, f"{key!r} is there twice", key_node.start_mark)
        mapping[key] = loader.construct_object(value_node, deep=True)
        mapping.lines[key] = key_node.start_mark.line + 1
    return mapping


_Loader.add_constructor("tag:yaml.org,2002:map", _mapping)
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"^[-+]?(?:\d+\.?\d*|\.\d+)[eE][-+]?\d+$"),
    list("-+0123456789."),
)


def load(path: Path) -> Rules:
    """Return the rules of a file; raises RulesError if it cannot be read or is not valid."""
    try:
        text = path.read_text("utf-8")
    except OSError as error:
        raise RulesError(f"{path} cannot be read: {error.strerror}.") from error
    except UnicodeDecodeError as error:
        raise RulesError(f"{path} is not YAML: {error}") from error
    return parse(text, str(path))


def parse(text: str, name: str) -> Rules:
    """Return the rules of a text; raises RulesError with the ``name`` of the text."""
    try:
        content = yaml.load(text, _Loader)  # noqa: S506 -- a SafeLoader with line numbers
    except (ValueError, yaml.YAMLError) as error:  # a ValueError: the 30th of February, 5,000 digits
        words = str(error).replace("<unicode string>", name)
        words += QUOTES if "escape character" in words else ""
        raise RulesError(f"{name} is not YAML: {words}") from error
    except RecursionError as error:
        raise RulesError(f"{name} is not YAML that anybody writes: it is nested too deep.") from error
    return _File(name).rules(content)


class _File:
    """Converts the content of a file to rules; adds lines to the errors of the models."""

    def __init__(self, name: str) -> None:
        self._name = name

    def rules(self, content: object) -> Rules:
        top = self._keys(content, 1, ("version", "rules", "grace", "layers", "metrics", "pace"), "the file")
        if type(top.get("version")) is not int or top["version"] != VERSION:
            raise self._error(top.line_of("version"), "version", top.get("version"), str(VERSION))
        sections = self._keys(top.get("rules"), top.line_of("rules"), NAMES, "rules")
        rules = Rules(
            **{name: self._section(getattr(Rules(), name), sections, name) for name in NAMES},
            grace=self._section(Grace(), top, "grace"),
            pace=self._section(Pace(), top, "pace"),
        )
        return replace(
            rules,
            layers=tuple(self._layer(entry, top.line_of("layers"), rules) for entry in self._entries(top, "layers")),
            metrics=tuple(self._metric(entry, top.line_of("metrics")) for entry in self._entries(top, "metrics")),
        )

    def _entries(self, top: _Mapping, name: str) -> list[object]:
        entries = top.get(name, [])
        if not isinstance(entries, list):
            raise self._error(top.line_of(name), name, entries, "a list of entries with 'match'")
        return entries

    def _metric(self, content: object, line: int) -> MetricRule:
        keys = tuple(field.name for field in fields(MetricRule))
        entry = self._keys(content, line, keys, "an entry of metrics")
        try:
            return MetricRule(**{"match": None, **entry})
        except ValidationError as error:
            raise self._mistake(error, MetricRule, entry, {"match": None, **entry}) from error

    def _layer(self, content: object, line: int, rules: Rules) -> LayerRule:
        run_wide = tuple(name for name in NAMES if name not in LAYER_RULES)
        entry = self._keys(content, line, ("match", *LAYER_RULES), "an entry of layers", run_wide)
        defaults = {name: rules.section(name, None) for name in LAYER_RULES if name in entry}
        sections: dict[str, Any] = {
            name: self._section(default, entry, name, default.run_wide) for name, default in defaults.items()
        }
        match: Any = entry.get("match")
        try:
            return LayerRule(match=match, **sections)
        except ValidationError as error:
            raise self._mistake(error, LayerRule, entry, {"match": match}) from error

    def _section(self, default: AnySection, parent: _Mapping, name: str, run_wide: tuple[str, ...] = ()) -> AnySection:
        """Return a section, with the values of ``default`` for omitted keys."""
        allowed = tuple(field.name for field in fields(default) if field.name not in run_wide)
        given = self._keys(parent.get(name), parent.line_of(name), allowed, name, run_wide)
        values = {**asdict(default), **given}
        if isinstance(default, Collapse) and isinstance(given.get("enter"), float | int) and "exit" not in given:
            # ``enter`` without ``exit`` keeps their ratio: half a decade of hysteresis stays half a decade.
            values["exit"] = values["enter"] * default.exit / default.enter
        try:
            return type(default)(**values)
        except ValidationError as error:
            raise self._mistake(error, type(default), given, values) from error

    def _keys(
        self, content: object, line: int, allowed: tuple[str, ...], where: str, run_wide: tuple[str, ...] = ()
    ) -> _Mapping:
        if content is None or content == {}:
            content = _Mapping(line)
        if not isinstance(content, _Mapping):
            raise self._error(line, where, content, f"a mapping with the keys {', '.join(allowed)}")
        for key in content:
            if key in run_wide:
                message = f"{key!r} is of all layers together, so layers cannot have it; they can have"
                raise RulesError(f"{self._name}, line {content.lines[key]}: {message} {', '.join(allowed)}.")
            if key not in allowed:
                message = f"unknown key {key!r} in {where}; known are {', '.join(allowed)}"
                raise RulesError(f"{self._name}, line {content.lines[key]}: {message}.")
        return content

    def _mistake(self, error: ValidationError, model: type, given: _Mapping, values: Mapping[str, Any]) -> RulesError:
        """Return the first error of a model in the words of the file."""
        first = error.errors()[0]
        context = first.get("ctx", {})
        key = context.get("key") or str(first["loc"][0])
        inner = values[key]
        if isinstance(inner, _Mapping) and len(first["loc"]) > 1:  # a tag
            tag = str(first["loc"][1])
            return self._error(inner.line_of(tag), f"{key}.{tag}", inner.get(tag), context.get("allowed", "a text"))
        allowed = context.get("allowed") or _allowed(TypeAdapter(model).json_schema()["properties"][key])
        return self._error(given.line_of(key), key, values[key], allowed)

    def _error(self, line: int, key: str, value: object, allowed: str) -> RulesError:
        shown = "missing" if value is None else repr(dict(value) if isinstance(value, Mapping) else value)
        return RulesError(f"{self._name}, line {line}: {key} is {shown:.200}; allowed is {allowed}.")


def _allowed(schema: Mapping[str, Any]) -> str:
    """Return the values that a JSON schema of a flag, a word or a number allows, in words."""
    number = schema["anyOf"][0] if "anyOf" in schema else schema
    if "enum" in number:
        return " or ".join(number["enum"])
    if number["type"] == "object":
        return "a mapping of tags to regular expressions"
    if number["type"] == "boolean":
        return "true or false"
    words = "a whole number" if number["type"] == "integer" else "a number"
    words += f" over {number['exclusiveMinimum']:g}" if "exclusiveMinimum" in number else ""
    words += f" from {number['minimum']:g} on" if "minimum" in number else ""
    return words + (f", at most {number['maximum']:g}" if "maximum" in number else "")
