"""The merged stream of a sharded launch: batches of its ranks wait in the log until a quorum has passed their steps.

The next steps are merged up to the one that every awaited rank has passed. Steps without an excluded rank are partial,
and a gap of its session; its later batches of such steps are deleted unread. A batch of rank 0 is merged as a whole,
with its metrics, so the stream is the same in any order of arrival.

Times are those of the database's clock, in seconds.
"""

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, cast

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import BigInteger, Connection, bindparam, delete, distinct, func, or_, select, update

from gradcanary_server.ingest.messages import END_STATES
from gradcanary_server.ingest.sessions import add_late_gap
from gradcanary_server.ingest.shard_merge import AbsentRank, MergedBatch, RankBatch, combine_norms, merge
from gradcanary_server.storage.database import Record
from gradcanary_server.storage.layers import LayerSetCache
from gradcanary_server.storage.schema import batch, iter_runs, launch, session
from gradcanary_server.tsdb.batch import MetricColumn
from gradcanary_server.tsdb.log import BatchLog, LoggedBatch
from gradcanary_server.validation import LIMITS, MAX_STEP

LAG_S = 60.0
"""A rank is excluded after so long without a request, while a batch waits for it."""

BACKOFF_S = 60.0
"""The longest retry delay of an agent: no rank is excluded sooner after the collector's own start."""

STALL_S = 600.0
"""A rank that still sends requests is excluded after so long without a merge: until then it may replay its spool."""

ROWS_AT_ONCE = 64
"""Rows of batches, without their bodies, in one query: usually few of the pending ones can be merged."""

TOTAL_NORM = "total_norm"

_OVERDUE = (
    select(batch.c.run_id, batch.c.launch_no)
    .join(session, (session.c.run_id == batch.c.run_id) & (session.c.session == batch.c.session))
    .where(session.c.run_id.in_(bindparam("runs", expanding=True)))
    .where(session.c.is_sharded, session.c.next_seq > session.c.sealed_seq)
    .where(batch.c.received <= bindparam("latest"))
    .distinct()
)


_BEHIND = (
    select(session.c.rank)
    .join(launch, (launch.c.run_id == session.c.run_id) & (launch.c.launch_no == session.c.launch_no))
    .where(session.c.run_id == bindparam("run_id"), session.c.launch_no == bindparam("launch_no"))
    .where(session.c.session != bindparam("ending"))
    .where(session.c.is_sharded, session.c.excluded_since_step.is_(None), session.c.last_seen > bindparam("heard"))
    .where(or_(session.c.ended.is_(None), session.c.ended.not_in(END_STATES)))
    .where(or_(session.c.rank < launch.c.world_size, launch.c.has_own_layers))
    .where(func.coalesce(session.c.last_step, -1) <= func.coalesce(launch.c.merged_step, -1))
    .where(func.coalesce(launch.c.merged_step, -1) < bindparam("first_step", type_=BigInteger))
    .limit(1)
)
"""A rank that is awaited with the first step to merge; none if a batch from ``first_step`` on is late."""

_DESCRIBED = (
    select(func.count(distinct(session.c.rank)))
    .where(session.c.run_id == bindparam("run_id"), session.c.launch_no == bindparam("launch_no"))
    .where(session.c.rank >= 0, session.c.rank < launch.c.world_size)
    .where(or_(session.c.is_sharded, session.c.layer_sets != "{}", session.c.ended.in_(END_STATES)))
    .scalar_subquery()
)
_LACKS_RANK = (
    select(launch.c.launch_no)
    .where(launch.c.run_id == bindparam("run_id"), launch.c.launch_no == bindparam("launch_no"))
    .where(launch.c.has_own_layers.is_(False), func.coalesce(launch.c.merged_step, -1) < 0)
    .where(launch.c.world_size > _DESCRIBED)
)
"""A launch of which nothing is merged, and a rank that did not say what it sends; the timer excludes that rank."""


class Rank(Protocol):
    """The session of a rank."""

    session: str
    rank: int
    last_step: int | None
    last_seen: float
    ended: str | None
    gaps: str
    layer_sets: str
    excluded_since_step: int | None
    is_sharded: bool
    is_described: bool


@dataclass(frozen=True)
class QuorumClock:
    """The time, and the time since which this collector listens."""

    now: float
    listening_since: float

    def has_elapsed(self, seconds: float, *since: float) -> bool:
        """Return True if so many seconds passed since the latest of these times, and since each agent could retry."""
        return self.now - max(self.listening_since + BACKOFF_S, *since) >= seconds

    def is_quiet(self, rank: Rank | None) -> bool:
        return rank is None or rank.last_seen <= self.now - LAG_S


@dataclass(frozen=True)
class PendingBatch(RankBatch):
    """A batch in the log; ``first`` and ``last`` are its steps, -1 if it has none."""

    first: int
    last: int


def awaited_steps(ranks: Mapping[int, Rank], expected: Sequence[int], merged_step: int) -> dict[int, int]:
    """Return the last step of each rank of the quorum, -1 if it sent nothing.

    Not awaited are ranks that ended, excluded ones, and those without a hello once steps were merged without them.
    """
    last_steps = {}
    for number in expected:
        rank = ranks.get(number)
        if rank is None or not rank.is_sharded:
            is_awaited = merged_step < 0 and (rank is None or rank.ended not in END_STATES)
        else:
            is_awaited = rank.ended not in END_STATES and rank.excluded_since_step is None
        if is_awaited:
            last_steps[number] = -1 if rank is None or rank.last_step is None else rank.last_step
    return last_steps


def is_waiting(
    connection: Connection, row: Record, steps: NDArray[np.int64] | None, now: float, *, ends: bool = False
) -> bool:
    """Return True if nothing is merged after a batch of these steps, None = no batch, as another rank is awaited.

    ``ends`` if the session of ``row`` ends now. Each batch of each rank asks this, so it reads none of the other ranks.
    False if it cannot be told so.
    """
    first = MAX_STEP if steps is None else steps[0].item() if len(steps) else -1
    if first < 0:
        return False
    key = {"run_id": row.run_id, "launch_no": row.launch_no}
    behind = {**key, "heard": now - LAG_S, "first_step": first, "ending": row.session if ends else ""}
    return any(
        connection.execute(query, values).first() is not None
        for query, values in ((_BEHIND, behind), (_LACKS_RANK, key))
    )


def find_overdue(connection: Connection, now: float) -> list[tuple[int, int]]:
    """Return the launches, by run and number, in which a batch has waited too long."""
    overdue: list[tuple[int, int]] = []
    for runs in iter_runs(connection, batch):
        rows = connection.execute(_OVERDUE, {"runs": runs, "latest": now - LAG_S})
        overdue += [(row.run_id, row.launch_no) for row in rows]
    return overdue


class ShardMerger:
    """Merges the batches of one sharded launch, inside a write transaction that holds its run.

    Each method deletes the batches that it merged from the log, and returns the merged ones.
    """

    def __init__(
        self,
        connection: Connection,
        log: BatchLog,
        sets: LayerSetCache,
        run_id: int,
        launch_no: int,
        clock: QuorumClock,
    ) -> None:
        self.connection, self.run_id, self.launch_no, self.clock = connection, run_id, launch_no, clock
        self._log, self._sets = log, sets
        self._launch = (launch.c.run_id == run_id) & (launch.c.launch_no == launch_no)
        columns = (launch.c.merged_step, launch.c.world_size, launch.c.has_own_layers)
        row = connection.execute(select(*columns).where(self._launch)).one()
        self._merged_step = -1 if row.merged_step is None else int(row.merged_step)
        sessions = _read_sessions(connection, run_id, launch_no)
        self._last_merge = max((row.last_seen for row in sessions if row.rank < 0), default=-np.inf)
        self._ranks = {row.rank: row for row in sessions if row.rank >= 0}
        if row.has_own_layers:  # a rank that is not admitted has no part of a layer
            self._expected = [row.rank for row in self._ranks.values() if row.is_sharded]
        else:
            replicas = {row.rank for row in self._ranks.values() if not row.is_sharded and row.is_described}
            self._expected = [rank for rank in range(row.world_size) if rank not in replicas]
        self._pending: list[PendingBatch] = []

    def on_batch(self, piece: LoggedBatch) -> list[MergedBatch]:
        """Merge the steps that a new batch completes; delete it if its steps were merged without it."""
        awaited = self._awaited_steps()
        steps = piece.columns.steps
        is_late = not len(steps) or steps[0] <= self._merged_step
        return self._merge(awaited, piece) if is_late or self._is_complete(awaited) else []

    def on_heartbeat(self) -> list[MergedBatch]:
        """Merge the steps that only silent ranks lack."""
        return self._merge_complete(self._awaited_steps())

    def on_end(self, session_id: str) -> list[MergedBatch]:
        """Merge the steps that only silent ranks and this session lack, which ends now."""
        ending = {rank for rank, row in self._ranks.items() if row.session == session_id}
        awaited = self._awaited_steps()
        return self._merge_complete({rank: step for rank, step in awaited.items() if rank not in ending})

    def on_timer(self) -> list[MergedBatch]:
        """Merge the steps that only silent ranks lack; in a stall exclude the ranks that are furthest behind."""
        awaited = self._awaited_steps()
        if awaited and self.clock.has_elapsed(STALL_S, self._waiting_since(), self._last_merge):
            least = min(awaited.values())
            awaited = {rank: step for rank, step in awaited.items() if step > least}
        return self._merge_complete(awaited)

    def _awaited_steps(self) -> dict[int, int]:
        """Return the last step of each rank of the quorum, without those that have been silent for LAG_S."""
        awaited = awaited_steps(self._ranks, self._expected, self._merged_step)
        quiet = [rank for rank in awaited if self.clock.is_quiet(self._ranks.get(rank))]
        if quiet:  # else the query is not needed
            waiting_since = self._waiting_since()
            for rank in quiet:
                row = self._ranks.get(rank)
                since = [waiting_since] if row is None else [waiting_since, row.last_seen]
                if self.clock.has_elapsed(LAG_S, *since):
                    del awaited[rank]
        return awaited

    def _waiting_since(self) -> float:
        """Return the time at which the oldest pending batch came, now if there is none."""
        sessions = [row.session for row in self._ranks.values() if row.is_sharded]
        is_waiting = (batch.c.run_id == self.run_id) & batch.c.session.in_(sessions)
        received = self.connection.execute(select(func.min(batch.c.received)).where(is_waiting)).scalar_one()
        return self.clock.now if received is None else float(received)

    def _is_complete(self, awaited: Mapping[int, int]) -> bool:
        """Return True if all awaited ranks have passed a step that is not merged, or none is awaited."""
        return min(awaited.values(), default=np.inf) > self._merged_step

    def _merge_complete(self, awaited: Mapping[int, int]) -> list[MergedBatch]:
        return self._merge(awaited) if self._is_complete(awaited) else []

    def _merge(self, awaited: Mapping[int, int], fresh: LoggedBatch | None = None) -> list[MergedBatch]:
        last = max((row.last_step for row in self._ranks.values() if row.last_step is not None), default=-1)
        until = self._read(max(min(awaited.values(), default=last), self._merged_step), fresh)
        merged = list(self._segments(until))
        self._delete_merged(until)
        return merged

    def _read(self, until: int, fresh: LoggedBatch | None) -> int:
        """Read the pending batches up to a step; return it, or the step before a batch of rank 0 that passes it."""
        for number, rank in sorted(self._ranks.items()):
            for piece in self._pieces(rank, fresh) if rank.is_sharded else ():
                layer_set = self._sets.find(self.connection, self.run_id, rank.layer_sets, piece.columns.layer_set)
                first, last = piece.columns.steps[[0, -1]].tolist() if len(piece.columns.steps) else (-1, -1)
                self._pending.append(PendingBatch(number, piece, layer_set.numel, first, last))
                if number == 0 and first <= until < last:  # it is merged as a whole
                    until = max(self._merged_step, first - 1)
                if last > until:
                    break  # the next ones are of later steps
        return until

    def _pieces(self, rank: Rank, fresh: LoggedBatch | None) -> Iterator[LoggedBatch]:
        """Yield the pending batches of a session; not the fresh one from the log, which caches only committed ones."""
        columns = (batch.c.session, batch.c.seq, batch.c.launch_no)
        is_pending = (batch.c.run_id == self.run_id) & (batch.c.session == rank.session)
        seq = -1
        query = select(*columns).order_by(batch.c.seq).limit(ROWS_AT_ONCE)
        while rows := self.connection.execute(query.where(is_pending, batch.c.seq > seq)).all():
            for row in rows:
                if fresh is not None and (row.session, row.seq) == (fresh.session, fresh.seq):
                    yield fresh
                else:
                    yield self._log.read(self.connection, self.run_id, row, rank.layer_sets)
            seq = rows[-1].seq
            if len(rows) < ROWS_AT_ONCE:
                return

    def _segments(self, until: int) -> Iterator[MergedBatch]:
        """Yield the merged steps: one batch for each of rank 0, then the steps that it lacks."""
        covered = self._merged_step
        for pending in self._pending:
            if pending.rank > 0 or pending.last > until:
                break
            last = max(covered, pending.last)
            yield from self._segment(covered, last, pending)
            covered = last
        yield from self._segment(covered, until, None)

    def _segment(self, after: int, until: int, leading: PendingBatch | None) -> Iterator[MergedBatch]:
        """Yield the steps after ``after`` up to ``until``, with the metrics of the leading batch."""
        overlapping = (pending for pending in self._pending if pending.first <= until and pending.last > after)
        slices = [pending.slice_steps(after + 1, until + 1) for pending in overlapping]
        parts = [part for part in slices if len(part.steps)]
        metrics = () if leading is None else tuple(self._metrics(leading))
        if parts:
            present = {part.rank for part in parts}
            absent = [self._absent_rank(self._ranks.get(rank)) for rank in self._expected if rank not in present]
            merged = merge(parts, absent, metrics, self._every(after))
            if len(merged.columns.steps) or metrics:
                yield from merged.split(LIMITS.max_points)
        elif leading is not None and metrics:
            yield merge([leading.slice_steps(0, 0)], (), metrics, 1)

    def _every(self, after: int) -> int:
        """Return the widest interval of a rank after a step: no samples are missing inside it."""
        intervals: dict[int, int] = {}
        for pending in self._pending:
            if pending.last > after:
                intervals.setdefault(pending.rank, pending.piece.columns.every)
        return max(intervals.values(), default=1)

    def _absent_rank(self, rank: Rank | None) -> AbsentRank:
        if rank is None or not rank.is_described:
            return AbsentRank()
        newest = list(json.loads(rank.layer_sets))[-1]
        layer_set = self._sets.find(self.connection, self.run_id, rank.layer_sets, newest)
        return AbsentRank(layer_set.numbers, layer_set.numel)

    def _metrics(self, leading: PendingBatch) -> Iterator[MetricColumn]:
        """Yield the metrics of a batch of rank 0, with the total norm over all ranks."""
        for metric in leading.piece.columns.metrics:
            if not _is_total_norm(metric):
                yield metric
            elif (total := self._total_norm(metric)) is not None:
                yield total

    def _total_norm(self, leading: MetricColumn) -> MetricColumn | None:
        parts: dict[int, dict[int, float]] = {}
        for pending in self._pending:
            for metric in filter(_is_total_norm, pending.piece.columns.metrics):
                for step, value in zip(metric.steps.tolist(), metric.values.tolist(), strict=True):
                    parts.setdefault(step, {})[pending.rank] = value
        steps = [step for step in leading.steps.tolist() if len(parts[step]) == len(self._expected)]
        values = [combine_norms(list(parts[step].values())) for step in steps]
        return MetricColumn(leading.name, leading.tags, np.array(steps), np.array(values)) if steps else None

    def _delete_merged(self, until: int) -> None:
        """Store the merged step and the excluded ranks, and delete the merged batches."""
        self.connection.execute(update(launch).where(self._launch).values(merged_step=until))
        steps = [int(step) for part in self._pending for step in part.steps[part.steps > self._merged_step][:1]]
        first, pieces = min(steps, default=until + 1), defaultdict[int, list[PendingBatch]](list)
        for pending in self._pending:
            pieces[pending.rank].append(pending)
        for rank in (rank for rank in self._ranks.values() if rank.is_sharded):
            values, of_rank = self._exclusion(rank, first, until), pieces[rank.rank]
            kept = [pending.piece.seq for pending in of_rank if pending.last > until]
            if len(kept) < len(of_rank):
                sealed = min(kept, default=of_rank[-1].piece.seq + 1)
                values["sealed_seq"] = sealed
                is_merged = (batch.c.run_id == self.run_id) & (batch.c.session == rank.session)
                self.connection.execute(delete(batch).where(is_merged, batch.c.seq < sealed))
            if values:
                where = (session.c.run_id == self.run_id) & (session.c.session == rank.session)
                self.connection.execute(update(session).where(where).values(values))

    def _exclusion(self, rank: Rank, first: int, until: int) -> dict[str, object]:
        """Return the columns of a rank that change if the steps from ``first`` on were merged without it."""
        since = rank.excluded_since_step
        begin = max(first, -1 if rank.last_step is None else rank.last_step + 1)
        if since is not None:
            begin = self._merged_step + 1  # the gap goes on
        if begin > until:
            return {}
        return {
            "gaps": add_late_gap(rank.gaps, begin, until),
            "excluded_since_step": begin if since is None else since,
        }


def _is_total_norm(metric: MetricColumn) -> bool:
    return (metric.name, metric.tags) == (TOTAL_NORM, "{}")


def _read_sessions(connection: Connection, run_id: int, launch_no: int) -> Sequence[Rank]:
    names = (
        "session",
        "rank",
        "last_step",
        "last_seen",
        "ended",
        "gaps",
        "layer_sets",
        "excluded_since_step",
        "is_sharded",
    )
    is_described = (session.c.layer_sets != "{}").label("is_described")
    query = select(*(session.c[name] for name in names), is_described).order_by(session.c.rank)
    of_launch = (session.c.run_id == run_id) & (session.c.launch_no == launch_no)
    return cast("Sequence[Rank]", connection.execute(query.where(of_launch)).all())
