"""Statements on a cluster: which runs they name, and how a query leaves out the others."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

from sqlalchemy import (
    CTE,
    BigInteger,
    BindParameter,
    ColumnElement,
    Dialect,
    Executable,
    FromClause,
    Insert,
    Join,
    Select,
    SelectBase,
    Subquery,
    Table,
    any_,
    literal,
)
from sqlalchemy.dialects.postgresql import ARRAY
from sqlalchemy.sql import operators, visitors

from gradcanary_server.storage.citus import DISTRIBUTED

MOST_SHAPES = 1_000
"""Shapes of statements that are remembered."""

_OF_RUNS = frozenset(DISTRIBUTED)

Given = Mapping[str, Any]
"""The parameters of a statement."""


@dataclass
class Shape:
    """What statements with the same cache key have in common; to find it takes much longer than to look it up.

    ``names`` are the places of parameters that name a run, among all of a statement. ``columns`` are for each SELECT in
    it, as they are visited, ``run_id`` of its tables. They are None until a query is restricted; where it has aliases,
    which are copied with it; and where it has several derived tables, which SQLAlchemy visits in any order.
    """

    is_of_runs: bool
    selects: int
    names: tuple[int, ...]
    has_order: bool
    columns: list[tuple[ColumnElement[int], ...]] | None = None


_shapes: dict[tuple[Any, ...], Shape] = {}
"""By SQLAlchemy's key for what it compiles once."""


class ClusterStatement:
    """A statement that is about to be executed."""

    def __init__(self, statement: Executable) -> None:
        self._statement = statement
        key = statement._generate_cache_key()  # type: ignore[attr-defined]  # noqa: SLF001 -- there is no public one
        known = None if key is None else _shapes.get(key.key)
        self._binds: Sequence[BindParameter[Any]]
        if known is not None:
            self._shape, self._binds = known, key.bindparams
            return
        named = list(_naming_binds(statement))
        self._binds = named if key is None else key.bindparams
        places = {id(bind): place for place, bind in enumerate(self._binds)}
        inside = list(visitors.iterate(statement))  # type: ignore[arg-type]
        self._shape = Shape(
            is_of_runs=any(element in _OF_RUNS for element in inside),
            selects=sum(isinstance(element, SelectBase) for element in inside),
            names=tuple(places[id(bind)] for bind in named),
            has_order=len({id(element) for element in inside if isinstance(element, (CTE, Subquery))}) < 2,
        )
        if key is not None:
            if len(_shapes) >= MOST_SHAPES:
                _shapes.clear()
            _shapes[key.key] = self._shape

    @property
    def is_of_runs(self) -> bool:
        """True if it is about tables of runs."""
        return self._shape.is_of_runs

    def named_runs(self, given: Given, dialect: Dialect) -> Iterator[int]:
        """Yield the runs that the statement names with these parameters."""
        if isinstance(self._statement, Insert):
            run_id = given.get("run_id") or self._statement.compile(dialect=dialect).params.get("run_id")
            if run_id is not None:
                yield run_id
        for place in self._shape.names:
            bind = self._binds[place]
            value = given.get(bind.key, bind.effective_value)
            yield from [value] if isinstance(value, int) else value

    def may_ask_all_nodes(self, named: Collection[int]) -> bool:
        """Return True if it is a query, and Citus may ask each node for it if it names these runs, none = all.

        Of several runs it asks for tables that are joined, of one for a query inside the query: that is about the same
        run in all queries of this package.
        """
        return isinstance(self._statement, SelectBase) and (len(named) != 1 or self._shape.selects > 1)

    def restricted(self, run_ids: list[int]) -> Executable:
        """Return the query with these runs only, named for each of its tables."""
        remembered, found = iter(self._shape.columns or ()), []

        def conditions(query: Select[Any]) -> tuple[ColumnElement[bool], ...]:
            columns = next(remembered, None)
            if columns is None:
                columns = tuple(chain.from_iterable(map(_run_columns, query.get_final_froms())))
            found.append(columns)
            return tuple(column == any_(literal(run_ids, ARRAY(BigInteger))) for column in columns)

        def restrict(query: Select[Any]) -> None:
            query._where_criteria += conditions(query)  # noqa: SLF001 -- where() returns another one, and this is a clone

        if self._shape.selects == 1 and isinstance(self._statement, Select):
            restricted: Executable = self._statement.where(*conditions(self._statement))
        else:
            restricted = visitors.cloned_traverse(self._statement, {}, {"select": restrict})  # type: ignore[call-overload]
        if self._shape.has_order and all(isinstance(column.table, Table) for column in chain.from_iterable(found)):
            self._shape.columns = found
        return restricted


def _naming_binds(statement: Executable) -> Iterator[BindParameter[Any]]:
    """Yield the parameters of a statement that name a run."""
    for element in visitors.iterate(statement):  # type: ignore[arg-type]
        left, right = getattr(element, "left", None), getattr(element, "right", None)
        is_named = getattr(element, "operator", None) in (operators.eq, operators.in_op)
        if is_named and isinstance(right, BindParameter) and getattr(left, "name", None) == "run_id":
            yield right


def _run_columns(source: FromClause) -> Iterator[ColumnElement[int]]:
    """Yield ``run_id`` of each table of runs, except those of outer joins, whose rows may be missing."""
    if isinstance(source, Join):
        yield from _run_columns(source.left)
        yield from () if source.isouter else _run_columns(source.right)
    elif getattr(source, "element", source) in _OF_RUNS:
        yield source.c.run_id
