"""Tiles in the store: samples and pyramid nodes of a range of steps, a shelf of layers at a time, written once.

A *chain* is what one launch sampled at one interval. Level 0 holds its samples, 256 to a tile; level k the nodes of
8 ** k samples each. ``steps`` tiles tell which steps, the planes of ``state`` and of each stat lie beside them row by
row. Metrics are a chain of their own, without planes (:mod:`gradcanary_server.entries`).
"""

import json
from collections import OrderedDict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from threading import Lock
from typing import Any, NamedTuple

from sqlalchemy import Connection, Row, Select, bindparam, delete, func, insert, select

from gradcanary_server.nodes import FACTOR
from gradcanary_server.packing import Arrays, lean, pack, unpack
from gradcanary_server.rows import change
from gradcanary_server.schema import chain, tile

ROWS = 256
"""Samples or nodes of a tile, at most."""

SHELF = 128
"""Layers of a tile, at most."""

TOP = 7
"""The highest level: a node of it holds two million samples."""

STEPS, STATE, METRICS = "steps", "state", "metrics"
ABSENT = 255
"""The state of a layer that a step's layer set did not have."""

OF_METRICS = 0
"""The ``every`` of the chain of metrics."""

_CACHE_BYTES = 256 * 2**20
_ONE_BY_ONE = 2
_HIGHEST = 2**31 - 1


@dataclass(frozen=True)
class Chain:
    """How far a chain was sealed into tiles and rolled up, in steps."""

    launch_no: int
    every: int
    sealed: int = 0
    raw_from: int = 0
    rolled: tuple[int, ...] = ()

    def width(self, level: int) -> int:
        """Return the steps of a node."""
        return max(self.every, 1) * int(FACTOR**level)

    def span(self, level: int) -> int:
        """Return the steps of a tile."""
        return ROWS * self.width(level)

    def end(self, level: int) -> int:
        """Return the step up to which a level is whole."""
        if level == 0:
            return self.sealed
        return self.rolled[level - 1] if level <= len(self.rolled) else 0

    def level_for(self, width: int) -> int:
        """Return the highest level whose nodes fit into buckets of a width."""
        level = 0
        while level < TOP and width % self.width(level + 1) == 0:
            level += 1
        return level


class Place(NamedTuple):
    """The key of a tile within its run."""

    level: int
    kind: str
    launch_no: int
    every: int
    number: int
    shelf: int
    part: int


def _tiles(*columns: Any, of: Collection[str]) -> Select[Any]:  # noqa: ANN401 -- columns of any type
    """Return a query for tiles whose columns named in ``of`` have the values that it is executed with."""
    return select(*columns).where(*(tile.c[name] == bindparam(name) for name in of))


# Made once: to put them together anew took longer than to ask them.
_CHAIN = ("run_id", "level", "launch_no", "every")
_RANGE = (
    _tiles(tile.c.kind, tile.c.number, tile.c.shelf, tile.c.part, tile.c.stored, of=_CHAIN)
    .where(tile.c.kind.in_(bindparam("kinds", expanding=True)))
    .where(tile.c.number.between(bindparam("lowest"), bindparam("highest")))
    .order_by(tile.c.number, tile.c.part)
)
_SHELVES = _RANGE.where(tile.c.shelf.in_(bindparam("shelves", expanding=True)))
_RANGE_BODIES, _SHELVES_BODIES = _RANGE.add_columns(tile.c.body), _SHELVES.add_columns(tile.c.body)
_BODY = _tiles(tile.c.body, of=("run_id", *Place._fields))
_FIRST = _tiles(func.min(tile.c.number), of=(*_CHAIN, "kind")).where(tile.c.number >= bindparam("lowest"))
_LAST = _tiles(func.max(tile.c.number), of=(*_CHAIN, "kind")).where(tile.c.number <= bindparam("highest"))

_CHAINS = select(chain).where(chain.c.run_id == bindparam("run_id")).order_by(chain.c.launch_no, chain.c.every)
_HELD_CHAINS = _CHAINS.with_for_update()

Kept = tuple[int, Place, float]
"""A tile that was decoded: of which run, where, and when it was stored."""


class Tiles:
    """Reads tiles; decoded ones are kept, and those that were just made.

    A late metric has tiles made again at the same place, maybe by another collector: when one was stored is looked at.
    """

    def __init__(self, cache_bytes: int = _CACHE_BYTES) -> None:
        self._lock = Lock()
        self._decoded: OrderedDict[Kept, Arrays] = OrderedDict()
        self._room = cache_bytes

    def read(
        self,
        connection: Connection,
        run_id: int,
        of: Chain,
        kinds: Collection[str],
        level: int,
        steps: tuple[int, int],
        shelves: Collection[int] | None = None,
    ) -> list[tuple[Place, Arrays]]:
        """Return the tiles that ``steps``, from one to before another, lie in, by number and part."""
        span, (begin, end) = of.span(level), steps
        values = _key(run_id, of, level) | {"lowest": begin // span, "highest": (end - 1) // span, "kinds": list(kinds)}
        keys, bodies = _RANGE, _RANGE_BODIES
        if shelves is not None:
            keys, bodies, values = _SHELVES, _SHELVES_BODIES, values | {"shelves": list(shelves)}
        rows = connection.execute(keys, values).all()
        stored = {_place(of, level, row): row.stored for row in rows}
        found = self._kept(run_id, stored)
        missing = stored.keys() - found
        if len(missing) > _ONE_BY_ONE:
            for row in connection.execute(bodies, values):
                place = _place(of, level, row)
                if place in missing:
                    found[place] = self._keep((run_id, place, row.stored), unpack(row.body))
        else:
            for place in missing:
                body = connection.execute(_BODY, {"run_id": run_id, **place._asdict()}).scalar_one()
                found[place] = self._keep((run_id, place, stored[place]), unpack(body))
        return [(place, found[place]) for place in stored]

    def first(self, connection: Connection, run_id: int, of: Chain, kind: str, level: int, begin: int) -> int | None:
        """Return the number of the first tile of a kind from a step on."""
        values = _key(run_id, of, level) | {"kind": kind, "lowest": begin // of.span(level)}
        found: int | None = connection.execute(_FIRST, values).scalar_one()
        return found

    def last(self, connection: Connection, run_id: int, of: Chain, kind: str, highest: int) -> int | None:
        """Return the number of the last tile of samples of a kind up to a number."""
        values = _key(run_id, of, 0) | {"kind": kind, "highest": highest}
        found: int | None = connection.execute(_LAST, values).scalar_one()
        return found

    def end(self, connection: Connection, run_id: int, of: Chain, kind: str) -> int:
        """Return the step behind the last tile of samples of a kind, 0 where there is none."""
        last = self.last(connection, run_id, of, kind, _HIGHEST)
        return 0 if last is None else (last + 1) * of.span(0)

    def _kept(self, run_id: int, stored: Mapping[Place, float]) -> dict[Place, Arrays]:
        with self._lock:
            known = [key for place, at in stored.items() if (key := (run_id, place, at)) in self._decoded]
            for key in known:
                self._decoded.move_to_end(key)
            return {key[1]: self._decoded[key] for key in known}

    def keep(self, run_id: int, stored: float, made: Iterable[tuple[Place, Arrays]]) -> None:
        """Keep tiles that were just written, so that what sums them up need not read them; they must be committed."""
        for place, arrays in made:
            self._keep((run_id, place, stored), lean(arrays))

    def _keep(self, key: Kept, arrays: Arrays) -> Arrays:
        with self._lock:
            if key not in self._decoded:
                self._decoded[key] = arrays
                self._room -= _size(arrays)
            while self._room < 0:
                _, oldest = self._decoded.popitem(last=False)
                self._room += _size(oldest)
        return arrays


def write(connection: Connection, run_id: int, packed: Iterable[tuple[Place, bytes]], now: float) -> None:
    """Store tiles."""
    rows = [{"run_id": run_id, "stored": now, "body": body, **place._asdict()} for place, body in packed]
    if rows:
        connection.execute(insert(tile), rows)


def packed(place: Place, arrays: Arrays) -> tuple[Place, bytes]:
    """Return a tile as it is stored."""
    return place, pack(arrays)


def chains(connection: Connection, run_id: int, *, held: bool = False) -> list[Chain]:
    """Return the chains of a run by launch and interval; ``held``: nobody moves them until the transaction ends."""
    return [_chain(row) for row in connection.execute(_HELD_CHAINS if held else _CHAINS, {"run_id": run_id})]


def every_chain(connection: Connection, runs: Collection[int] | None = None) -> list[tuple[int, Chain]]:
    """Return the chains of many runs, None = all, each with the number of its run."""
    query = select(chain) if runs is None else select(chain).where(chain.c.run_id.in_(runs))
    return [(row.run_id, _chain(row)) for row in connection.execute(query)]


def note(connection: Connection, run_id: int, of: Chain) -> None:
    """Store how far a chain is."""
    values = {"sealed": of.sealed, "raw_from": of.raw_from, "rolled": json.dumps(of.rolled)}
    mine = {"run_id": run_id, "launch_no": of.launch_no, "every": of.every}
    if change(connection, chain, mine, values) == 0:
        connection.execute(insert(chain).values(**mine, **values))


def discard(connection: Connection, run_id: int, of: Chain, level: int, begin: int, end: int) -> None:
    """Delete the tiles of a level that lie between two steps."""
    span = of.span(level)
    connection.execute(
        delete(tile).where(
            tile.c.run_id == run_id,
            tile.c.level == level,
            tile.c.launch_no == of.launch_no,
            tile.c.every == of.every,
            tile.c.number >= begin // span,
            tile.c.number < -(-end // span),
        )
    )


def _chain(row: Row[Any]) -> Chain:
    return Chain(row.launch_no, row.every, row.sealed, row.raw_from, tuple(json.loads(row.rolled)))


def _key(run_id: int, of: Chain, level: int) -> dict[str, Any]:
    return {"run_id": run_id, "level": level, "launch_no": of.launch_no, "every": of.every}


def _place(of: Chain, level: int, row: Row[Any]) -> Place:
    return Place(level, row.kind, of.launch_no, of.every, row.number, row.shelf, row.part)


def _size(arrays: Arrays) -> int:
    # A constant array is a view of one value.
    return 1000 + sum(values.nbytes if values.strides != (0,) * values.ndim else 0 for values in arrays.values())
