"""Schedules of a learning rate, from an expression or a file. Pure but for the file.

An expression is parsed and walked, never run: numbers, ``step``, ``lr``, arithmetic, comparisons and a few functions of
float64, so the worst that one can do is to be infinite. A schedule is refused where it is not a learning rate.
"""

from __future__ import annotations

import ast
import csv
import operator
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import reduce
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from numpy.typing import NDArray

from gradcanary.wording import count
from gradcanary_server.errors import ScheduleError
from gradcanary_server.rules.types import Floats, Ints, Mask

MAX_CHARACTERS, MAX_DEPTH = 1_000, 50
"""Of an expression: far more than a schedule has, and less than makes Python's parser run out of its stack."""

FILES = (".csv", ".json", ".yaml", ".yml")

FUNCTIONS = "constant(lr), linear(from, to, steps), cosine(from, to, steps), warmup(steps), min, max, exp, sqrt"
ALLOWED = f"numbers, step, lr, + - * / **, comparisons, 'A if B else C', and, or, not, {FUNCTIONS}"

Array = NDArray[Any]
Points = list[tuple[int, int, float]]
"""The line of each in its file, the step, and the learning rate."""


def _progress(age: Array, steps: Array) -> Array:
    return np.clip(age / steps, 0, 1)


_CURVES: Mapping[str, tuple[int, Callable[..., Array]]] = {
    "constant": (1, lambda age, lr: lr + 0 * age),
    "linear": (3, lambda age, first, last, steps: first + (last - first) * _progress(age, steps)),
    "cosine": (
        3,
        lambda age, first, last, steps: last + (first - last) * (1 + np.cos(np.pi * _progress(age, steps))) / 2,
    ),
    "warmup": (1, lambda age, steps: np.minimum((age + 1) / steps, 1)),
}
"""Functions of the steps since the schedule began, with the number of their arguments."""

_PLAIN: Mapping[str, Callable[..., Array]] = {"min": np.minimum, "max": np.maximum, "exp": np.exp, "sqrt": np.sqrt}

_OPERATORS: Mapping[type[ast.AST], Callable[..., Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.Pow: operator.pow,
    ast.USub: operator.neg,
    ast.UAdd: operator.pos,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.And: np.logical_and,
    ast.Or: np.logical_or,
    ast.Not: np.logical_not,
}


@dataclass(frozen=True)
class Schedule:
    """Learning rates from a step on; ``groups`` are the parameter groups that it has a curve for, None for all."""

    text: str
    curves: Mapping[int | None, Callable[[Ints, int, float], Floats]]

    def rates(self, steps: Ints, first: int, last: Floats) -> Floats:
        """Return float64[n, groups] at some steps; raises ScheduleError where it is not a learning rate.

        ``first`` is the step at which the schedule begins, and ``last`` float64[groups] are the rates before it, which
        groups without a curve keep. A group whose rate is unknown (NaN) stays so.
        """
        known = sorted(group for group in self.curves if group is not None)
        if known and known[-1] >= len(last):
            have = f"the run has {len(last)} of them, numbered from 0"
            raise ScheduleError(f"{self.text}: there is no parameter group {known[-1]}; {have}.")
        found = np.tile(last, (len(steps), 1))
        for group in range(len(last)):
            curve = self.curves.get(group, self.curves.get(None))
            if curve is not None and not np.isnan(last[group]):
                found[:, group] = curve(steps, first, float(last[group]))
        _check_rates(self.text, steps, found[:, ~np.isnan(last)])
        return found


def _check_rates(text: str, steps: Ints, rates: Floats) -> None:
    is_wrong = ~(np.isfinite(rates) & (rates >= 0)).all(axis=1)
    if is_wrong.any():
        row = int(np.argmax(is_wrong))
        value = next(rate for rate in rates[row].tolist() if not (np.isfinite(rate) and rate >= 0))
        raise ScheduleError(
            f"{text}: the learning rate at step {int(steps[row]):,} is {value:g}; allowed are numbers from 0 on."
        )


def load(given: str, group: int | None = None) -> Schedule:
    """Return the schedule in a file, or of an expression, for all parameter groups or one; raises ScheduleError."""
    path = Path(given)
    if path.suffix.lower() not in FILES:
        return Schedule(given, {group: parse_expression(given)})
    try:
        text = path.read_text("utf-8-sig")
    except OSError as error:
        raise ScheduleError(f"{path} cannot be read: {error.strerror}.") from error
    except UnicodeDecodeError as error:
        raise ScheduleError(f"{path} is not text in UTF-8: {error}.") from error
    is_table = path.suffix.lower() == ".csv"
    points: dict[int | None, Points]
    points = _csv_points(given, text) if is_table else {None: _listed_points(given, text)}
    if group is not None:
        if set(points) != {None}:
            raise ScheduleError(f"{path} has a column of groups: leave out --group.")
        points = {group: points[None]}
    return Schedule(given, {number: _broken_line(given, rows) for number, rows in points.items()})


def parse_expression(text: str) -> Callable[[Ints, int, float], Floats]:
    """Return the curve of an expression: learning rates at steps, from the first step of the schedule and the last
    rate before it. Raises ScheduleError.
    """
    if len(text) > MAX_CHARACTERS:
        raise ScheduleError(f"This schedule has {len(text):,} characters; allowed are {MAX_CHARACTERS:,}.")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of the parser, about expressions that are refused below
            tree = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, MemoryError, RecursionError) as error:
        why = error.msg if isinstance(error, SyntaxError) else str(error) or type(error).__name__
        raise ScheduleError(f"{text!r:.200} is not a schedule ({why}); allowed are {ALLOWED}.") from error
    _compute(tree, {"step": np.zeros(1), "lr": np.float64(1e-4), "age": np.zeros(1)}, 0)  # names, calls and depth

    def curve(steps: Ints, first: int, last: float) -> Floats:
        values = {"step": steps.astype(np.float64), "lr": np.float64(last), "age": (steps - first).astype(np.float64)}
        with np.errstate(all="ignore"):
            found = np.asarray(_compute(tree, values, 0), np.float64)
        return np.broadcast_to(found, steps.shape)

    return curve


def _compute(node: ast.AST, values: Mapping[str, Any], depth: int) -> Any:  # noqa: ANN401, C901 -- numbers and arrays; a case for each kind of node
    """Return the value of a part of an expression; raises ScheduleError on a part that is not allowed."""
    if depth > MAX_DEPTH:
        raise ScheduleError(f"This schedule is nested more than {MAX_DEPTH} deep.")
    deeper = depth + 1
    with np.errstate(all="ignore"):
        match node:
            case ast.Constant(value=bool() | str() | bytes() | complex() | None):
                pass
            case ast.Constant(value=int() | float() as number):
                return _number(number)
            case ast.Name(id="step" | "lr" as name):
                return values[name]
            case ast.UnaryOp(op=sign, operand=operand) if type(sign) in _OPERATORS:
                return _OPERATORS[type(sign)](np.asarray(_compute(operand, values, deeper), np.float64))
            case ast.BinOp(left=left, op=sign, right=right) if type(sign) in _OPERATORS:
                sides = (_compute(each, values, deeper) for each in (left, right))
                return _OPERATORS[type(sign)](*(np.asarray(side, np.float64) for side in sides))
            case ast.BoolOp(op=sign, values=parts):
                return reduce(_OPERATORS[type(sign)], (_compute(part, values, deeper) for part in parts))
            case ast.Compare(left=left, ops=signs, comparators=others) if all(
                type(sign) in _OPERATORS for sign in signs
            ):
                return _compare(signs, [_compute(each, values, deeper) for each in (left, *others)])
            case ast.IfExp(test=test, body=body, orelse=other):
                return np.where(*(_compute(each, values, deeper) for each in (test, body, other)))
            case ast.Call(func=ast.Name(id=name), args=parts, keywords=[]):
                return _call(
                    name, [np.asarray(_compute(part, values, deeper), np.float64) for part in parts], values["age"]
                )
    raise ScheduleError(f"{_source(node)!r} is not allowed in a schedule; allowed are {ALLOWED}.")


def _source(node: ast.AST) -> str:
    try:
        return ast.unparse(node)[:80]
    except RecursionError:
        return f"a deep {type(node).__name__}"


def _number(value: float) -> np.float64:
    try:
        return np.float64(value)
    except OverflowError as error:
        raise ScheduleError("A number of this schedule is larger than 1.8e308.") from error


def _compare(signs: Iterable[ast.cmpop], sides: list[Any]) -> Mask:
    pairs = zip(signs, pairwise(sides), strict=True)
    found: Mask = reduce(np.logical_and, (_OPERATORS[type(sign)](*pair) for sign, pair in pairs))
    return found


def _call(name: str, parts: list[Any], age: Floats) -> Array:
    if name in _CURVES and len(parts) == _CURVES[name][0]:
        return _CURVES[name][1](age, *parts)
    if (name in ("min", "max") and len(parts) > 1) or (
        name in _PLAIN and name not in ("min", "max") and len(parts) == 1
    ):
        return reduce(_PLAIN[name], parts) if len(parts) > 1 else _PLAIN[name](parts[0])
    raise ScheduleError(
        f"{name}() of {count(len(parts), 'value')} is not allowed in a schedule; allowed are {FUNCTIONS}."
    )


def _broken_line(text: str, rows: Points) -> Callable[[Ints, int, float], Floats]:
    """Return the curve through points: straight between them, level before and after."""
    for (_, before, _), (line, step, _) in pairwise(rows):
        if step <= before:
            raise ScheduleError(f"{text}, line {line}: step {step:,} does not come after {before:,}; steps must rise.")
    steps, rates = np.array([row[1] for row in rows], np.float64), np.array([row[2] for row in rows], np.float64)
    return lambda at, _first, _last: np.interp(at.astype(np.float64), steps, rates)


def _csv_points(name: str, text: str) -> dict[int | None, Points]:
    """Return the points of each group of a CSV file, None for all groups."""
    rows = csv.reader(text.splitlines())
    header = [title.strip() for title in next(rows, [])]
    if header not in (["step", "lr"], ["step", "lr", "group"]):
        raise ScheduleError(f"{name}, line 1: allowed is step,lr or step,lr,group.")
    points: dict[int | None, Points] = {}
    for cells in filter(None, rows):
        if len(cells) != len(header):
            raise ScheduleError(f"{name}, line {rows.line_num} has {len(cells)} cells, the first line {len(header)}.")
        group = _whole(name, rows.line_num, "group", cells[2]) if len(cells) > 2 else None
        points.setdefault(group, []).append(_point(name, rows.line_num, cells))
    if not points:
        raise ScheduleError(f"{name} has no steps.")
    return points


def _listed_points(name: str, text: str) -> Points:
    """Return the points of a list of pairs in JSON or YAML."""
    try:
        node = yaml.compose(text, yaml.SafeLoader)
    except (ValueError, RecursionError, yaml.YAMLError) as error:
        raise ScheduleError(f"{name} is neither JSON nor YAML: {error}") from error
    pairs = node.value if isinstance(node, yaml.SequenceNode) else []
    points = []
    for pair in pairs:
        cells = pair.value if isinstance(pair, yaml.SequenceNode) else []
        line = pair.start_mark.line + 1
        if len(cells) != 2 or not all(isinstance(cell, yaml.ScalarNode) for cell in cells):
            raise ScheduleError(f"{name}, line {line}: allowed is a pair of a step and a learning rate, [5000, 1e-5].")
        points.append(_point(name, line, [cell.value for cell in cells]))
    if not points:
        raise ScheduleError(f"{name}, line 1: allowed is a list of pairs, [[0, 1e-4], [5000, 1e-5]].")
    return points


def _point(name: str, line: int, cells: list[str]) -> tuple[int, int, float]:
    try:
        rate = float(cells[1])
    except ValueError:
        rate = -1.0
    if not 0 <= rate < np.inf:
        raise ScheduleError(f"{name}, line {line}: lr is {cells[1]!r:.80}; allowed are numbers from 0 on.")
    return line, _whole(name, line, "step", cells[0]), rate


def _whole(name: str, line: int, key: str, cell: str) -> int:
    cell = cell.strip()
    if not (cell.isascii() and cell.isdigit() and len(cell) < 19):
        raise ScheduleError(f"{name}, line {line}: {key} is {cell!r:.80}; allowed are whole numbers from 0 on.")
    return int(cell)
