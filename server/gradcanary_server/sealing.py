"""Batches of a session into tiles of level 0, and out of the log."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import Any

import numpy as np
from sqlalchemy import BigInteger, Connection, Row, Select, and_, bindparam, delete, func, or_, select, update

from gradcanary_server import tiles
from gradcanary_server.log import Log, Piece
from gradcanary_server.packing import Arrays
from gradcanary_server.samples import tiles_of
from gradcanary_server.schema import batch, chain, session
from gradcanary_server.sources import MetricSource, entries_of, named, points_of
from gradcanary_server.tiles import METRICS, OF_METRICS, Chain, Place, Tiles

MOST_BATCHES = 512
"""Of a session at once. Not less than two tiles of one sample each, so that what comes in trickles fills whole ones."""

MOST_BYTES = 64 * 2**20
"""Of a session at once, decoded, and a batch more: so much is held in memory."""

OVER_S = 6 * 3600.0
"""Without a word, after which a session is taken for ended: one that was killed never says so."""


def _waiting() -> Select[int, str]:
    """Return the query of :func:`waiting`, made once: it is asked every other second, and mostly for nothing."""
    joined = (chain.c.run_id == session.c.run_id) & (chain.c.launch_no == session.c.launch_no)
    span = bindparam("rows", type_=BigInteger) * session.c.every
    is_over = session.c.ended.is_not(None) | (session.c.last_seen < bindparam("heard"))
    fills_a_tile = session.c.last_step + 1 >= (func.coalesce(chain.c.sealed, 0) // span + 1) * span
    is_long = session.c.next_seq - session.c.sealed_seq >= bindparam("most", type_=BigInteger)
    return (
        select(session.c.run_id, session.c.session)
        .outerjoin(chain, and_(joined, chain.c.every == session.c.every))
        .where(session.c.sends_shards.is_(False), session.c.next_seq > session.c.sealed_seq)
        .where(or_(is_over, fills_a_tile, is_long))
    )


_WAITING = _waiting()


@dataclass(frozen=True)
class Work:
    """What is to be written of a session that was sealed up to ``was``: tiles, and its chains before and after."""

    run_id: int
    session: str
    was: int
    sealed_seq: int
    made: list[tuple[Place, Arrays]]
    packed: list[tuple[Place, bytes]]
    before: list[Chain]
    after: list[Chain]


def waiting(connection: Connection, now: float) -> list[tuple[int, str]]:
    """Return the sessions that fill a tile or have many batches, or that are over with something in the log.

    What is put together of shards leaves the log by itself.
    """
    told = {"heard": now - OVER_S, "rows": tiles.ROWS, "most": MOST_BATCHES}
    return [(row.run_id, row.session) for row in connection.execute(_WAITING, told)]


def prepare(connection: Connection, log: Log, store: Tiles, run_id: int, session_id: str, now: float) -> Work | None:
    """Return what to write to seal the next batches of a session, None if none can be sealed."""
    its = select(session).where(session.c.run_id == run_id, session.c.session == session_id)
    row = connection.execute(its).one_or_none()
    if row is None:
        return None
    pieces = log.of_session(connection, run_id, session_id, row.sealed_seq, MOST_BATCHES, MOST_BYTES)
    if not pieces:
        return None
    if not row.draws:
        return _told(connection, row, pieces, now)
    is_full = len(pieces) == MOST_BATCHES or sum(piece.columns.nbytes() for piece in pieces) >= MOST_BYTES
    is_over = (row.ended is not None or row.last_seen < now - OVER_S) and not is_full
    known = {each.every: each for each in tiles.chains(connection, run_id) if each.launch_no == row.launch_no}
    before = _of_samples(known, pieces, row.launch_no)
    ends = [(each, _until(each, pieces, is_over=is_over, is_full=is_full)) for each in before]
    after = {each.every: replace(each, sealed=max(each.sealed, end)) for each, end in ends}
    made = [tile for each in before for tile in tiles_of(pieces, each, after[each.every].sealed)]
    sealed_seq = next((piece.seq for piece in pieces if _is_open(piece, after)), pieces[-1].seq + 1)
    if not made and sealed_seq == row.sealed_seq:
        return None
    moved, whole = list(after.values()), [piece for piece in pieces if piece.seq < sealed_seq]
    if whole:
        of_metrics = known.get(OF_METRICS) or Chain(row.launch_no, OF_METRICS)
        grown, points = metric_tiles(whole, of_metrics, row.sealed_seq)
        made += [*points, *_late_tiles(connection, store, run_id, of_metrics, whole)]
        before.append(of_metrics)
        moved.append(grown)
    packed = [tiles.packed(*each) for each in made]
    return Work(run_id, session_id, row.sealed_seq, sealed_seq, made, packed, before, moved)


def _told(connection: Connection, row: Row[Any], pieces: Sequence[Piece], now: float) -> Work | None:
    """Let go of what another rank saw of its own: where it came from is noted once its launch has folded them."""
    mine = (session.c.run_id == row.run_id) & (session.c.launch_no == row.launch_no) & session.c.draws
    step = connection.execute(select(func.max(session.c.last_step)).where(mine)).scalar_one()
    known = np.inf if row.last_seen < now - OVER_S else -1 if step is None else step
    told = list(takewhile(lambda each: not len(each.columns.steps) or each.columns.steps[-1] <= known, pieces))
    return Work(row.run_id, row.session, row.sealed_seq, told[-1].seq + 1, [], [], [], []) if told else None


def carry_out(connection: Connection, work: Work, now: float) -> bool:
    """Write it, unless somebody else has sealed the session or moved its chains meanwhile; tell whether it is."""
    there = {(each.launch_no, each.every): each for each in tiles.chains(connection, work.run_id, held=True)}
    if any(each != there.get(key := (each.launch_no, each.every), Chain(*key)) for each in work.before):
        return False
    mine = (session.c.run_id == work.run_id) & (session.c.session == work.session)
    free = mine & (session.c.sealed_seq == work.was)
    if connection.execute(update(session).where(free).values(sealed_seq=work.sealed_seq)).rowcount != 1:
        return False
    sealed = (batch.c.run_id == work.run_id) & (batch.c.session == work.session) & (batch.c.seq < work.sealed_seq)
    connection.execute(delete(batch).where(sealed))  # before anything is written, which then takes its room
    for place, _ in work.packed:
        if place.level > 0:
            of = Chain(place.launch_no, place.every)
            begin = place.number * of.span(place.level)
            tiles.discard(connection, work.run_id, of, place.level, begin, begin + of.span(place.level))
    tiles.write(connection, work.run_id, work.packed, now)
    for each in work.after:
        tiles.note(connection, work.run_id, each)
    return True


def _of_samples(known: dict[int, Chain], pieces: Sequence[Piece], launch_no: int) -> list[Chain]:
    found = sorted({piece.columns.every for piece in pieces if len(piece.columns.steps)})
    return [known.get(every) or Chain(launch_no, every) for every in found]


def _until(of: Chain, pieces: Sequence[Piece], *, is_over: bool, is_full: bool) -> int:
    """Return the step up to which a chain can be sealed: whole tiles, or all of it where nothing follows.

    Where no tile gets whole of as much as is held at once, a part of it is sealed: the log must not grow for ever.
    """
    sampled = [piece.columns for piece in pieces if len(piece.columns.steps)]
    end = int(sampled[-1].steps[-1]) + 1
    whole = end // of.span(0) * of.span(0)
    if is_over or sampled[-1].every != of.every:
        return end
    mine = np.concatenate([columns.steps for columns in sampled if columns.every == of.every])
    begin = mine[np.searchsorted(mine, of.sealed) :][:1]
    return end if is_full and len(begin) and whole <= int(begin[0]) else whole


def _is_open(piece: Piece, after: dict[int, Chain]) -> bool:
    steps = piece.columns.steps
    return len(steps) > 0 and int(steps[-1]) >= after[piece.columns.every].sealed


def metric_tiles(pieces: Sequence[Piece], of: Chain, part: int) -> tuple[Chain, list[tuple[Place, Arrays]]]:
    """Return the chain of metrics with the points of these batches, and their tiles."""
    names: dict[tuple[str, str], int] = {}
    parts = [points_of(piece, names) for piece in pieces]
    series, steps, values, times = (np.concatenate(column) for column in zip(*parts, strict=True))
    if not len(steps):
        return of, []
    span, made = of.span(0), []
    for number in np.unique(steps // span).tolist():
        rows = steps // span == number
        arrays: Arrays = {"names": named(names)}
        arrays |= {"series": series[rows], "steps": steps[rows], "values": values[rows], "times": times[rows]}
        made.append((Place(0, METRICS, of.launch_no, OF_METRICS, number, 0, part), arrays))
    sampled = [int(piece.columns.steps[-1]) + 1 for piece in pieces if len(piece.columns.steps)]
    sealed = max([of.sealed, *(end // span * span for end in sampled)])
    return replace(of, sealed=sealed), made


def _late_tiles(
    connection: Connection, store: Tiles, run_id: int, of: Chain, pieces: Sequence[Piece]
) -> Iterator[tuple[Place, Arrays]]:
    """Yield those tiles of the pyramid of metrics that points of these batches come too late for, made again."""
    metrics = [metric for piece in pieces for metric in piece.columns.metrics]
    steps = np.concatenate([np.empty(0, np.int64), *(metric.steps for metric in metrics)])
    told = {key: number for number, key in enumerate(dict.fromkeys((each.name, each.tags) for each in metrics))}
    for level, whole in enumerate(of.rolled, start=1):
        span = of.span(level)
        for number in np.unique(steps[steps < whole] // span).tolist():
            begin, end, names = number * span, (number + 1) * span, dict(told)
            for _, arrays in store.read(connection, run_id, of, [METRICS], level, (begin, end)):
                for key in entries_of(level, arrays)[0]:
                    names.setdefault(key, len(names))
            made = MetricSource(store, connection, run_id, of, pieces, names).of_tiles(level, begin, end)
            place = Place(level, METRICS, of.launch_no, OF_METRICS, number, 0, 0)
            yield place, {"names": named(names), **vars(made)}
