"""The stream of a sharded launch: batches of its ranks wait in the log until all passed their steps, and go on as one.

Put together are the steps behind those that were, up to the one that every rank which is waited for has passed
(:mod:`gradcanary_server.roll_call`). What one that is left out holds is partial, and a gap; what it sends of such steps
later is not looked at. The batches of rank 0 are taken whole, each with its
metrics, so that the stream is the same whoever comes first.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from sqlalchemy import Connection, Row, bindparam, delete, func, or_, select, update

from gradcanary_server import roll_call, shards
from gradcanary_server.assembly import Assembled, Holding, Part, assemble
from gradcanary_server.batches import MetricColumn
from gradcanary_server.gaps import with_late
from gradcanary_server.layer_sets import KnownSets
from gradcanary_server.leaps import AHEAD_S
from gradcanary_server.log import Log, Piece
from gradcanary_server.requests import LIMITS
from gradcanary_server.roll_call import Moment
from gradcanary_server.schema import batch, launch, session

AT_ONCE = 64
"""Rows of batches, without their bodies, that are asked for: mostly few of those that wait can be taken."""

TOTAL_NORM = "total_norm"


@dataclass(frozen=True)
class Waiting(Part):
    """A batch in the log; ``first`` and ``last`` are its steps, -1 of one that has none."""

    first: int
    last: int

    def is_done(self, until: int) -> bool:
        """Say whether nothing of it is behind a step."""
        return self.last <= until


_OVERDUE = (
    select(batch.c.run_id, batch.c.launch_no)
    .join(session, (session.c.run_id == batch.c.run_id) & (session.c.session == batch.c.session))
    .where(session.c.sends_shards, session.c.next_seq > session.c.sealed_seq)
    .where(or_(batch.c.received <= bindparam("latest"), batch.c.received > bindparam("ahead")))
    .distinct()
)


def overdue(connection: Connection, now: float) -> list[tuple[int, int]]:
    """Return the launches, by run and number, in which something has waited for too long."""
    rows = connection.execute(_OVERDUE, {"latest": now - roll_call.LAG_S, "ahead": now + AHEAD_S})
    return [(row.run_id, row.launch_no) for row in rows]


class Gathering:
    """Puts the batches of one sharded launch together, inside a write transaction that holds its run."""

    def __init__(self, connection: Connection, log: Log, sets: KnownSets, run_id: int, launch_no: int) -> None:
        self._connection, self._log, self._sets, self._run_id = connection, log, sets, run_id
        self._launch = (launch.c.run_id == run_id) & (launch.c.launch_no == launch_no)
        of = connection.execute(select(launch.c.settled, launch.c.world_size).where(self._launch)).one()
        self.settled = -1 if of.settled is None else int(of.settled)
        known = _ranks(connection, run_id, launch_no)
        self._moved = max((row.last_seen for row in known if row.rank < 0), default=-np.inf)
        self._ranks = {row.rank: row for row in known if row.rank >= 0}
        replicas = {row.rank for row in self._ranks.values() if not row.is_sharded and row.is_described}
        self._expected = [rank for rank in range(of.world_size) if rank not in replicas]
        self._waiting: list[Waiting] = []

    def settle(
        self, now: float, began: float, fresh: Piece | None = None, ending: str | None = None, *, is_round: bool = False
    ) -> list[Assembled]:
        """Take what can be put together out of the log, and return it.

        ``began`` is when this collector began to listen, ``fresh`` the batch that has just come, ``ending`` a session
        that ends now; only in a round of the compactor (``is_round``) it is asked who does not move.
        """
        moment = Moment(now, began, self._oldest(now, is_asked=is_round), self._moved if is_round else now)
        passed = roll_call.until(self._ranks, self._expected, self.settled, moment, ending)
        last = max((row.last_step for row in self._ranks.values() if row.last_step is not None), default=-1)
        until = max(int(min(passed, last)), self.settled)
        steps = np.empty(0, np.int64) if fresh is None else fresh.columns.steps
        is_news = fresh is not None and (not len(steps) or steps[0] <= self.settled)
        if passed <= self.settled and not is_news:
            return []
        until = self._read(until, fresh)
        found = list(self._segments(until))
        self._take_out(until)
        return found

    def _oldest(self, now: float, *, is_asked: bool) -> float:
        """Return when the oldest batch came that waits, ``now`` where it does not matter."""
        ranks = map(self._ranks.get, self._expected)
        if not is_asked and all(row is not None and roll_call.is_heard(row, now) for row in ranks):
            return now
        mine = [row.session for row in self._ranks.values() if row.is_sharded]
        oldest = select(func.min(batch.c.received)).where(batch.c.run_id == self._run_id, batch.c.session.in_(mine))
        received = self._connection.execute(oldest).scalar_one()
        return now if received is None else float(received)

    def _read(self, until: int, fresh: Piece | None) -> int:
        """Read what waits of steps up to that one, by rank and seq; return it, or the one before a batch of rank 0."""
        for rank, row in sorted(self._ranks.items()):
            for piece in self._pieces(row.session, fresh) if row.is_sharded else ():
                known = self._sets.find(self._connection, self._run_id, row.session, piece.columns.layer_set)
                first, last = piece.columns.steps[[0, -1]].tolist() if len(piece.columns.steps) else (-1, -1)
                self._waiting.append(Waiting(rank, piece, known.numel, first, last))
                if rank == 0 and first <= until < last:  # those are taken whole
                    until = max(self.settled, first - 1)
                if last > until:
                    break  # what follows is of later steps
        return until

    def _pieces(self, session_id: str, fresh: Piece | None) -> Iterator[Piece]:
        """Yield what waits of a session. The fresh one is as it came: nobody may keep it before the commit."""
        columns = (batch.c.session, batch.c.seq, batch.c.launch_no)
        mine = (batch.c.run_id == self._run_id) & (batch.c.session == session_id)
        seq = -1
        some = select(*columns).order_by(batch.c.seq).limit(AT_ONCE)
        while rows := self._connection.execute(some.where(mine, batch.c.seq > seq)).all():
            for row in rows:
                is_fresh = fresh is not None and (row.session, row.seq) == (fresh.session, fresh.seq)
                yield fresh if fresh is not None and is_fresh else self._log.piece(self._connection, self._run_id, row)
            seq = rows[-1].seq
            if len(rows) < AT_ONCE:
                return

    def _segments(self, until: int) -> Iterator[Assembled]:
        """Yield what is put together: along the batches of rank 0, then what is there without it."""
        covered = self.settled
        for each in self._waiting:
            if each.rank > 0 or not each.is_done(until):
                break
            last = max(covered, each.last)
            yield from self._segment(covered, last, each)
            covered = last
        yield from self._segment(covered, until, None)

    def _segment(self, after: int, until: int, leading: Waiting | None) -> Iterator[Assembled]:
        """Yield the steps behind one, up to another one, with the metrics of a batch; nothing where there is none."""
        mine = (each for each in self._waiting if each.first <= until and each.last > after)
        cut = [part for each in mine if len((part := each.inside(after + 1, until + 1)).steps)]
        metrics = () if leading is None else tuple(self._metrics(leading))
        if cut:
            whole = assemble(cut, self._absent({part.rank for part in cut}), metrics, self._every(after))
            if not len(whole.columns.steps) and not metrics:
                return
            yield from whole.divided(LIMITS.max_points)
        elif leading is not None and metrics:
            yield assemble([leading.inside(0, 0)], (), metrics, 1)

    def _every(self, after: int) -> int:
        """Return the widest interval at which a rank goes on behind a step: between its samples it lacks nothing."""
        following: dict[int, int] = {}
        for each in self._waiting:
            if each.last > after:
                following.setdefault(each.rank, each.piece.columns.every)
        return max(following.values(), default=1)

    def _absent(self, there: set[int]) -> list[Holding]:
        """Return what the ranks hold that sent nothing."""
        return [self._holding(self._ranks.get(rank)) for rank in self._expected if rank not in there]

    def _holding(self, row: Row[tuple[object, ...]] | None) -> Holding:
        if row is None or not row.is_described:
            return Holding()
        mine = (session.c.run_id == self._run_id) & (session.c.session == row.session)
        sets = list(json.loads(self._connection.execute(select(session.c.layer_sets).where(mine)).scalar_one()))
        known = self._sets.find(self._connection, self._run_id, row.session, sets[-1])
        return Holding(known.numbers, known.numel)

    def _metrics(self, leading: Waiting) -> Iterator[MetricColumn]:
        """Yield the metrics of a batch of rank 0; of the total norm each rank told its part."""
        for metric in leading.piece.columns.metrics:
            if not _is_total_norm(metric):
                yield metric
            elif (whole := self._total_norm(metric)) is not None:
                yield whole

    def _total_norm(self, mine: MetricColumn) -> MetricColumn | None:
        told: dict[int, dict[int, float]] = {}
        for each in self._waiting:
            for metric in filter(_is_total_norm, each.piece.columns.metrics):
                for step, value in zip(metric.steps.tolist(), metric.values.tolist(), strict=True):
                    told.setdefault(step, {})[each.rank] = value
        steps = [step for step in mine.steps.tolist() if len(told[step]) == len(self._expected)]
        values = [shards.total(list(told[step].values())) for step in steps]
        return MetricColumn(mine.name, mine.tags, np.array(steps), np.array(values)) if steps else None

    def _take_out(self, until: int) -> None:
        """Note how far it is and who was left out, and delete what was taken."""
        self._connection.execute(update(launch).where(self._launch).values(settled=until))
        steps = [int(step) for each in self._waiting for step in each.steps[each.steps > self.settled][:1]]
        for row in (row for row in self._ranks.values() if row.is_sharded):
            self._note_left_out(row, min(steps, default=until + 1), until)
            mine = [each for each in self._waiting if each.piece.session == row.session]
            kept = [each.piece.seq for each in mine if not each.is_done(until)]
            if len(kept) == len(mine):
                continue
            sealed = min(kept, default=mine[-1].piece.seq + 1)
            this = (session.c.run_id == self._run_id) & (session.c.session == row.session)
            self._connection.execute(update(session).where(this).values(sealed_seq=sealed))
            gone = (batch.c.run_id == self._run_id) & (batch.c.session == row.session) & (batch.c.seq < sealed)
            self._connection.execute(delete(batch).where(gone))

    def _note_left_out(self, row: Row[tuple[object, ...]], first: int, until: int) -> None:
        """Note the steps from ``first`` on that this rank has not come to."""
        begin = first if row.last_step is None else max(first, row.last_step + 1)
        begin = self.settled + 1 if roll_call.is_out(row, self.settled) else begin  # the gap goes on
        if begin <= until:
            this = (session.c.run_id == self._run_id) & (session.c.session == row.session)
            gaps = with_late(row.gaps, begin, until)
            self._connection.execute(update(session).where(this).values(gaps=gaps))


def _is_total_norm(metric: MetricColumn) -> bool:
    return (metric.name, metric.tags) == (TOTAL_NORM, "{}")


def _ranks(connection: Connection, run_id: int, launch_no: int) -> Sequence[Row[tuple[object, ...]]]:
    is_sharded = session.c.sends_shards.label("is_sharded")
    its = session.c
    is_described = (session.c.layer_sets != "{}").label("is_described")
    columns = (its.session, its.rank, its.last_step, its.last_seen, its.ended, its.gaps, is_described)
    mine = (session.c.run_id == run_id) & (session.c.launch_no == launch_no)
    return connection.execute(select(*columns, is_sharded).where(mine).order_by(session.c.rank)).all()
