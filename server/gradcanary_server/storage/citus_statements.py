"""Statements on a cluster: which runs they name, and how a query leaves out the others."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from itertools import chain
from typing import Any

from sqlalchemy import (
    BigInteger,
    BindParameter,
    ColumnElement,
    Connection,
    Executable,
    FromClause,
    Insert,
    Join,
    Select,
    SelectBase,
    Table,
    any_,
    literal,
)
from sqlalchemy.dialects.postgresql import ARRAY
from sqlalchemy.sql import operators, visitors

from gradcanary_server.storage.citus import DISTRIBUTED

MOST_SHAPES = 1_000
"""Shapes of queries whose tables are remembered."""

OF_RUNS = frozenset(DISTRIBUTED)

_columns_of: dict[tuple[Any, ...], list[tuple[ColumnElement[int], ...]]] = {}
"""By the shape of a query, for each SELECT in it as they are visited, ``run_id`` of its tables. To find them takes most
of the time of a restriction. A query of aliases, which are copied with it, is not here."""

Given = Mapping[str, Any]
"""The parameters of a statement."""


def named_runs(connection: Connection, statement: Executable, given: Given) -> Iterator[int]:
    """Yield the runs that a statement names with these parameters."""
    if isinstance(statement, Insert):
        run_id = given.get("run_id") or statement.compile(dialect=connection.dialect).params.get("run_id")
        if run_id is not None:
            yield run_id
    for element in visitors.iterate(statement):  # type: ignore[arg-type]
        left, right = getattr(element, "left", None), getattr(element, "right", None)
        is_named = getattr(element, "operator", None) in (operators.eq, operators.in_op)
        if is_named and isinstance(right, BindParameter) and getattr(left, "name", None) == "run_id":
            value = given.get(right.key, right.effective_value)
            yield from [value] if isinstance(value, int) else value


def may_ask_all_nodes(statement: SelectBase, named: Collection[int]) -> bool:
    """Return True if Citus may ask each node for a query that names these runs, none = all.

    Of several runs it asks for tables that are joined, of one for a query inside the query: that is about the same run
    in all queries of this package.
    """
    return len(named) != 1 or sum(isinstance(each, SelectBase) for each in visitors.iterate(statement)) > 1


def restricted(statement: SelectBase, run_ids: list[int]) -> SelectBase:
    """Return a query with these runs only, named for each of its tables."""
    key = statement._generate_cache_key()  # noqa: SLF001 -- SQLAlchemy's key for what it compiles once; there is no public one
    known = None if key is None else _columns_of.get(key.key)
    remembered, found = iter(known or ()), []

    def restrict(query: Select[Any]) -> None:
        columns = next(remembered, None)
        if columns is None:
            columns = tuple(column for each in query.get_final_froms() for column in _run_columns(each))
        found.append(columns)
        conditions = tuple(column == any_(literal(run_ids, ARRAY(BigInteger))) for column in columns)
        query._where_criteria += conditions  # noqa: SLF001 -- where() returns another one, and this is a clone

    copy = visitors.cloned_traverse(statement, {}, {"select": restrict})
    if key is not None and known is None and all(isinstance(each.table, Table) for each in chain.from_iterable(found)):
        if len(_columns_of) >= MOST_SHAPES:
            _columns_of.clear()
        _columns_of[key.key] = found
    return copy


def _run_columns(source: FromClause) -> Iterator[ColumnElement[int]]:
    """Yield ``run_id`` of each table of runs, except those of outer joins, whose rows may be missing."""
    if isinstance(source, Join):
        yield from _run_columns(source.left)
        yield from () if source.isouter else _run_columns(source.right)
    elif getattr(source, "element", source) in OF_RUNS:
        yield source.c.run_id
