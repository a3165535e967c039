"""Batches of a session into tiles of level 0, and out of the log."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from sqlalchemy import ColumnElement, Connection, and_, delete, func, or_, select, update

from gradcanary_server import tiles
from gradcanary_server.archive import FOR_EVER, lowered
from gradcanary_server.log import Log, Piece
from gradcanary_server.packing import Arrays
from gradcanary_server.samples import tiles_of
from gradcanary_server.schema import batch, chain, session
from gradcanary_server.sources import named, points_of
from gradcanary_server.tiles import METRICS, OF_METRICS, Chain, Place

MOST_BATCHES = 64
"""Of a session at once: so much is held in memory."""


@dataclass(frozen=True)
class Work:
    """What is to be written of a session that was sealed up to ``was``: tiles, and how far it is then."""

    run_id: int
    session: str
    was: int
    sealed_seq: int
    packed: list[tuple[Place, bytes]]
    chains: list[Chain]


def waiting(connection: Connection) -> list[tuple[int, str]]:
    """Return the sessions that fill a tile, or that ended with something in the log."""
    joined = (chain.c.run_id == session.c.run_id) & (chain.c.launch_no == session.c.launch_no)
    query = (
        select(session.c.run_id, session.c.session)
        .outerjoin(chain, and_(joined, chain.c.every == session.c.every))
        .where(session.c.rank == 0, session.c.next_seq > session.c.sealed_seq)
        .where(or_(session.c.ended.is_not(None), _fills_a_tile()))
    )
    return [(row.run_id, row.session) for row in connection.execute(query)]


def prepare(connection: Connection, log: Log, run_id: int, session_id: str) -> Work | None:
    """Return what to write to seal the next batches of a session, None if none can be sealed."""
    its = select(session).where(session.c.run_id == run_id, session.c.session == session_id)
    row = connection.execute(its).one_or_none()
    if row is None:
        return None
    pieces = log.of_session(connection, run_id, session_id, row.sealed_seq, MOST_BATCHES)
    if not pieces:
        return None
    is_over = row.ended is not None and len(pieces) < MOST_BATCHES
    known = {each.every: each for each in tiles.chains(connection, run_id) if each.launch_no == row.launch_no}
    before = _of_samples(known, pieces, row.launch_no)
    after = {each.every: replace(each, sealed=_until(each, pieces, is_over=is_over)) for each in before}
    packed = [tile for each in before for tile in tiles_of(pieces, each, after[each.every].sealed)]
    sealed_seq = next((piece.seq for piece in pieces if _is_open(piece, after)), pieces[-1].seq + 1)
    if not packed and sealed_seq == row.sealed_seq:
        return None
    moved, whole = list(after.values()), [piece for piece in pieces if piece.seq < sealed_seq]
    if whole:
        of_metrics, made = metric_tiles(
            whole, known.get(OF_METRICS) or Chain(row.launch_no, OF_METRICS), row.sealed_seq
        )
        packed += made
        moved.append(of_metrics)
    return Work(run_id, session_id, row.sealed_seq, sealed_seq, [tiles.packed(*each) for each in packed], moved)


def carry_out(connection: Connection, work: Work, now: float) -> None:
    """Write it, unless somebody else has sealed meanwhile."""
    mine = (session.c.run_id == work.run_id) & (session.c.session == work.session)
    free = mine & (session.c.sealed_seq == work.was)
    if connection.execute(update(session).where(free).values(sealed_seq=work.sealed_seq)).rowcount != 1:
        return
    tiles.write(connection, work.run_id, work.packed, now)
    for each in work.chains:
        tiles.note(connection, work.run_id, each)
        for level, end in enumerate(each.rolled, start=1):
            if each.every == OF_METRICS:
                tiles.discard(connection, work.run_id, each, level, end, FOR_EVER)
    sealed = (batch.c.run_id == work.run_id) & (batch.c.session == work.session) & (batch.c.seq < work.sealed_seq)
    connection.execute(delete(batch).where(sealed))


def _fills_a_tile() -> ColumnElement[bool]:
    span = tiles.ROWS * session.c.every
    return session.c.last_step + 1 >= (func.coalesce(chain.c.sealed, 0) // span + 1) * span


def _of_samples(known: dict[int, Chain], pieces: Sequence[Piece], launch_no: int) -> list[Chain]:
    found = sorted({piece.columns.every for piece in pieces if len(piece.columns.steps)})
    return [known.get(every) or Chain(launch_no, every) for every in found]


def _until(of: Chain, pieces: Sequence[Piece], *, is_over: bool) -> int:
    """Return the step up to which a chain can be sealed: whole tiles, or all of it where nothing follows."""
    sampled = [piece for piece in pieces if len(piece.columns.steps)]
    end = int(sampled[-1].columns.steps[-1]) + 1
    if is_over or sampled[-1].columns.every != of.every:
        return max(of.sealed, end)
    return max(of.sealed, end // of.span(0) * of.span(0))


def _is_open(piece: Piece, after: dict[int, Chain]) -> bool:
    steps = piece.columns.steps
    return len(steps) > 0 and int(steps[-1]) >= after[piece.columns.every].sealed


def metric_tiles(pieces: Sequence[Piece], of: Chain, part: int) -> tuple[Chain, list[tuple[Place, Arrays]]]:
    """Return the chain of metrics with the points of these batches, and their tiles.

    A point may come late. Where the pyramid is there already, it is made again from there on.
    """
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
    return lowered(replace(of, sealed=sealed), int(steps.min())), made
