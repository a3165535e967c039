"""Log and tiles as one: the measurements of a run as nodes of any level. The only reader of both.

Whether samples lie in the log, in tiles, or are summed up in the pyramid already does not show in what is returned.
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import Connection, select

from gradcanary import wire
from gradcanary_server.database import Database
from gradcanary_server.entries import Entries
from gradcanary_server.launches import ORDER, places
from gradcanary_server.log import Log, Piece
from gradcanary_server.nodes import Nodes, Ticks
from gradcanary_server.samples import FOR_EVER, inside, piece_of
from gradcanary_server.schema import launch, session
from gradcanary_server.sources import MetricSource, Numbered, StatSource, TickSource
from gradcanary_server.tiles import METRICS, OF_METRICS, STATE, STEPS, Chain, Tiles, chains

Part = TypeVar("Part")

NEWEST = 256
"""Samples that :meth:`Archive.newest` looks at: of a stat that is sampled in turns, each layer's is among them."""


@dataclass(frozen=True)
class Stretch:
    """Steps from ``begin`` to before ``end`` of a chain; ``pieces`` are what lies in the log of it.

    ``first`` and ``last`` are about where there is something: no step outside of them is. Where raw samples are gone it
    is made of whole nodes: a few steps more than were asked for, or than a later launch left, and never one less.
    """

    chain: Chain
    begin: int
    end: int
    first: int
    last: int
    pieces: tuple[Piece, ...]

    def every(self) -> int:
        """Return the distance in steps of what can be told apart: where raw samples are gone, nodes."""
        return self.chain.width(1 if self.begin < self.chain.raw_from else 0)


class Source(Protocol[Part]):
    """Reads one kind of nodes; every part is in the order of steps."""

    def of_tiles(self, level: int, begin: int, end: int) -> Part:
        """Return the nodes that tiles of a level hold of these steps."""
        ...

    def of_log(self, begin: int, end: int, /) -> Part:
        """Return the samples that the log holds of these steps."""
        ...

    def joined(self, parts: Sequence[Part]) -> Part:
        """Return parts as one."""
        ...

    def widened(self, part: Part, width: int) -> Part:
        """Return wider nodes."""
        ...


def collect(source: Source[Part], chain: Chain, level: int, begin: int, end: int) -> Part:
    """Return the nodes of a level from ``begin`` to before ``end``; one that is cut by either holds what is inside.

    Where raw samples are gone, neither may cut a node of level 1, as no :class:`Stretch` does.
    """
    if level == 0:
        return source.joined(list(_samples(source, chain, begin, end)))
    width = chain.width(level)
    low, high = -(-begin // width) * width, min(end // width * width, chain.end(level))
    if low >= high:
        return source.widened(collect(source, chain, level - 1, begin, end), width)
    parts = []
    if begin < low:
        parts.append(source.widened(collect(source, chain, level - 1, begin, low), width))
    parts.append(source.of_tiles(level, low, high))
    if high < end:
        parts.append(source.widened(collect(source, chain, level - 1, high, end), width))
    return source.joined(parts)


def _samples(source: Source[Part], chain: Chain, begin: int, end: int) -> Iterator[Part]:
    raw, sealed = max(begin, chain.raw_from), chain.sealed
    if begin < raw:
        yield source.of_tiles(1, begin, min(end, raw))
    if raw < min(end, sealed):
        yield source.of_tiles(0, raw, min(end, sealed))
    yield source.of_log(max(raw, sealed), end)


class Archive:
    """Finds what a reader may use of a run, and reads it."""

    def __init__(self, log: Log, tiles: Tiles) -> None:
        self.log = log
        self.tiles = tiles

    def stretches(
        self, connection: Connection, run_id: int, begin: int | None, end: int | None, *, overlapping: bool = False
    ) -> list[Stretch]:
        """Return the chains of samples between two steps, both included, None = no bound.

        Where launches overlap the later one counts, from the first to the last step that it measured, unless those
        that are ``overlapping`` are asked for: then each launch has all of its steps.
        """
        known = {(each.launch_no, each.every): each for each in _chains(connection, run_id)}
        pieces = [piece for piece in self.log.pieces(connection, run_id) if len(piece.columns.steps)]
        spans, measured = _visible(connection, run_id, begin, end, overlapping=overlapping)
        found = []
        place = {launch_no: number for number, launch_no in enumerate(spans)}
        keys = known.keys() | {(piece.launch_no, piece.columns.every) for piece in pieces}
        for key in sorted((key for key in keys if key[0] in measured), key=lambda key: (place[key[0]], key[1])):
            logged = tuple(piece for piece in pieces if (piece.launch_no, piece.columns.every) == key)
            found += _stretches(known.get(key) or Chain(*key), spans[key[0]], measured[key[0]], logged)
        return found

    def of_metrics(
        self, connection: Connection, run_id: int, begin: int | None, end: int | None, *, overlapping: bool = False
    ) -> list[Stretch]:
        """Return the chains of metrics between two steps, as :meth:`stretches`."""
        known = {each.launch_no: each for each in chains(connection, run_id) if each.every == OF_METRICS}
        pieces = self.log.pieces(connection, run_id)
        spans, _ = _visible(connection, run_id, begin, end, overlapping=overlapping)
        found = []
        for launch_no in spans:
            logged = tuple(piece for piece in pieces if piece.launch_no == launch_no)
            of = known.get(launch_no) or Chain(launch_no, OF_METRICS)
            steps = [each for piece in logged for metric in piece.columns.metrics for each in _ends(metric.steps)]
            last = max([self.tiles.end(connection, run_id, of, METRICS) - 1, *steps])
            found += _stretches(replace(of, sealed=FOR_EVER), spans[launch_no], (0, last), logged)
        return found

    def ticks(self, connection: Connection, run_id: int, of: Stretch, level: int) -> Ticks:
        """Return the steps of a stretch as nodes of a level."""
        source = TickSource(self.tiles, connection, run_id, of.chain, of.pieces)
        return collect(source, of.chain, level, of.begin, of.end)

    def nodes(
        self,
        connection: Connection,
        run_id: int,
        of: Stretch,
        stat: str,
        layers: NDArray[np.int32],
        level: int,
        wanted: Collection[str],
    ) -> Nodes:
        """Return a stat of some layers as the ``wanted`` planes of nodes [n, L] of a level."""
        source = StatSource(self.tiles, connection, run_id, of.chain, of.pieces, stat, layers, wanted)
        return collect(source, of.chain, level, of.begin, of.end)

    def entries(self, connection: Connection, run_id: int, of: Stretch, numbered: Numbered, level: int) -> Entries:
        """Return the points of some metrics as entries of a level."""
        source = MetricSource(self.tiles, connection, run_id, of.chain, of.pieces, numbered)
        return collect(source, of.chain, level, of.begin, of.end)

    def samples(self, database: Database, run_id: int, of: Stretch) -> Iterator[Piece]:
        """Yield the samples of a stretch that are still there, some hundred steps at a time.

        Each time in a transaction of its own: whoever takes them may take his time.
        """
        span = of.chain.span(0)
        begin, end = max(of.begin, of.chain.raw_from), min(of.end, of.chain.sealed)
        for low in range(begin // span * span, end, span):
            with database.read() as connection:
                pieces = list(self._sealed(connection, run_id, of.chain, low // span))
            for piece in pieces:
                yield inside(piece, begin, end)
        for piece in of.pieces:
            yield inside(piece, max(of.begin, of.chain.sealed), of.end)

    def newest(self, connection: Connection, run_id: int) -> list[Piece]:
        """Return the last samples of a run, with those of earlier launches where the last one has few, in no order."""
        logged = [piece for piece in self.log.pieces(connection, run_id) if len(piece.columns.steps)]
        known = {(each.launch_no, each.every): each for each in _chains(connection, run_id)}
        found: list[Piece] = []
        place = places(connection, run_id)
        for launch_no in sorted(place, key=lambda number: place[number], reverse=True):
            most, mine = NEWEST - sum(len(piece.columns.steps) for piece in found), []
            if most <= 0:
                break
            for piece in logged:
                if piece.launch_no == launch_no:
                    of = known.get((launch_no, piece.columns.every))
                    mine.append(piece if of is None else inside(piece, of.sealed, FOR_EVER))
            for of in known.values():
                if of.launch_no == launch_no:
                    mine += self._newest_sealed(connection, run_id, of)
            found += _last(mine, most)
        return found

    def _newest_sealed(self, connection: Connection, run_id: int, of: Chain) -> list[Piece]:
        found: list[Piece] = []
        number = self.tiles.last(connection, run_id, of, STEPS, FOR_EVER - 1)
        while number is not None and sum(len(piece.columns.steps) for piece in found) < NEWEST:
            found += self._sealed(connection, run_id, of, number)
            number = self.tiles.last(connection, run_id, of, STEPS, number - 1)
        return found

    def _sealed(self, connection: Connection, run_id: int, chain: Chain, number: int) -> Iterator[Piece]:
        """Yield the samples that the tiles of one number hold."""
        steps = (number * chain.span(0), (number + 1) * chain.span(0))
        found = self.tiles.read(connection, run_id, chain, (STEPS, STATE, *wire.STATS), 0, steps)
        for part in sorted({place.part for place, _ in found}):
            mine = {(place.kind, place.shelf): arrays for place, arrays in found if place.part == part}
            yield piece_of(chain, mine.pop((STEPS, 0)), mine)


def _last(pieces: Sequence[Piece], most: int) -> list[Piece]:
    """Return the last samples of a launch, however they are cut."""
    steps = np.sort(np.concatenate([np.empty(0, np.int64), *(piece.columns.steps for piece in pieces)]))
    if not len(steps):
        return []
    begin = int(steps[-most:][0])
    return [cut for piece in pieces if len((cut := inside(piece, begin, FOR_EVER)).columns.steps)]


def _chains(connection: Connection, run_id: int) -> list[Chain]:
    return [each for each in chains(connection, run_id) if each.every != OF_METRICS]


Span = tuple[int, int]
"""From a step to before another."""


def _visible(
    connection: Connection, run_id: int, begin: int | None, end: int | None, *, overlapping: bool
) -> tuple[dict[int, list[Span]], dict[int, Span]]:
    """Return, by launch, the steps that no later launch measured, and the first and last that it measured itself.

    Of ``overlapping`` ones all steps. Launches are in the order in which they began.
    """
    query = select(session.c.launch_no, session.c.first_sample, session.c.last_step)
    joined = (launch.c.run_id == session.c.run_id) & (launch.c.launch_no == session.c.launch_no)
    mine = (session.c.run_id == run_id) & session.c.draws
    rows = connection.execute(query.join(launch, joined).where(mine).order_by(*ORDER)).all()
    visible: dict[int, list[Span]] = {}
    measured: dict[int, Span] = {}
    free = [(begin or 0, FOR_EVER if end is None else end + 1)]
    for row in reversed(rows):
        visible[row.launch_no] = free
        if row.first_sample is not None:
            measured[row.launch_no] = (row.first_sample, row.last_step)
            if not overlapping:
                free = [left for span in free for left in _without(span, row.first_sample, row.last_step + 1)]
    return {row.launch_no: visible[row.launch_no] for row in rows}, measured


def _stretches(chain: Chain, spans: Sequence[Span], measured: Span, logged: tuple[Piece, ...]) -> list[Stretch]:
    """Return the spans in which there can be something."""
    found: list[Span] = []
    for begin, end in (whole for span in spans if (whole := _whole(chain, span, measured)) is not None):
        if found and begin < found[-1][1]:  # both have a part of the same node
            begin, _ = found.pop()
        found.append((begin, end))
    return [Stretch(chain, *span, max(span[0], measured[0]), min(span[1] - 1, measured[1]), logged) for span in found]


def _whole(chain: Chain, span: Span, measured: Span) -> Span | None:
    """Return a span with all of the nodes that it has a part of and whose samples are gone, None if it has no sample.

    Who is shown a little more misses nothing; without the node that an edge cuts, a dip in it would be hidden.
    """
    every, width = chain.width(0), chain.width(1)
    first = -(-max(span[0], measured[0]) // every) * every
    last = min(span[1] - 1, measured[1]) // every * every
    if first > last:
        return None
    begin = min(span[0], first // width * width) if first < chain.raw_from else span[0]
    return begin, max(span[1], (last // width + 1) * width) if last < chain.raw_from else span[1]


def _ends(steps: NDArray[np.int64]) -> list[int]:
    return [int(steps.min()), int(steps.max())] if len(steps) else []


def _without(span: Span, begin: int, end: int) -> list[Span]:
    parts = [(span[0], min(span[1], begin)), (max(span[0], end), span[1])]
    return [part for part in parts if part[0] < part[1]]
