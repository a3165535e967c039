"""Storage of agent messages: one transaction each, and its commit is the acknowledgement.

A batch takes six calls: :func:`check` it, :func:`append` it to the log as it came, evaluate the rules, record the
changed incidents and rule state (:mod:`gradcanary_server.ingest.evaluation`), :func:`index` its layers and metrics, and
:func:`advance` session and run. A batch of a sharded launch waits in the log; merged with those of the other ranks
(:mod:`gradcanary_server.ingest.shard_stream`) it takes the same six calls.
"""

import hashlib
import logging
from typing import NamedTuple

import numpy as np
from sqlalchemy import Connection, insert, select

from gradcanary import wire
from gradcanary_server import telemetry
from gradcanary_server.caches import split_cache_budget
from gradcanary_server.errors import RequestError, StoreUnavailable, invalid
from gradcanary_server.incidents import briefs
from gradcanary_server.ingest import messages, rank_layers, sessions, shard_stream
from gradcanary_server.ingest.admission import Backpressure
from gradcanary_server.ingest.evaluation import BatchContext, Evaluator, LogEntry, Values, read_launch
from gradcanary_server.ingest.shard_merge import MergedBatch
from gradcanary_server.ingest.shard_stream import QuorumClock, ShardMerger
from gradcanary_server.rules.config import Rules
from gradcanary_server.storage import heartbeat, layers, runs
from gradcanary_server.storage.database import Database, Record
from gradcanary_server.storage.layers import LayerSetCache
from gradcanary_server.storage.prepared import Prepared
from gradcanary_server.storage.schema import HeldRun, batch
from gradcanary_server.tsdb import batch as tsdb_batch
from gradcanary_server.tsdb import log, metric_index
from gradcanary_server.tsdb.batch import Columns, encode_batch
from gradcanary_server.tsdb.log import LoggedBatch
from gradcanary_server.tsdb.reader import Reader
from gradcanary_server.validation import LIMITS

_APPEND = Prepared(insert(batch))
logger = logging.getLogger(__name__)


class Stored(NamedTuple):
    """The result of a transaction, for its reply."""

    run_id: int
    status: str
    next_seq: int
    has_incidents: bool
    has_other_layers: bool = False


class Ingest:
    """Stores hellos, batches, heartbeats and ends; each method takes a body and returns the reply to it."""

    def __init__(
        self,
        database: Database,
        rules: Rules,
        sets: LayerSetCache,
        measurements: Reader,
        public_url: str,
        cache_bytes: int = split_cache_budget().states,
    ) -> None:
        self._database = database
        self._sets = sets
        self._log = measurements.log
        self._briefs = briefs.Briefs(public_url, rules.muted, measurements)
        self._rules = rules
        self._evaluator = Evaluator(database, rules, measurements.log, cache_bytes)
        self.rule_versions = self._evaluator.rule_versions
        self.listening_since: float | None = None
        """The first request to this collector, by the database's clock."""
        self.backpressure = Backpressure()

    def hello(self, run_name: str, session_id: str, raw: bytes, sent: float | None = None) -> wire.Reply:
        """Store a hello, the first or a fuller one; ``sent`` is the agent's clock."""
        message = messages.read_hello(raw)
        with self._database.write_shared() as connection:
            now = self._database.now(connection)
            next_seq = sessions.register_session(connection, run_name, session_id, message, sent, now)
            _, row = runs.lock_session(connection, run_name, session_id)
            stored = self._stored(connection, row.run_id, "ok", next_seq)
            has_other_layers = rank_layers.admit_rank(connection, row)
        return self._reply(run_name, stored._replace(has_other_layers=has_other_layers))

    def batch(self, run_name: str, session_id: str, seq: int, raw: bytes) -> wire.Reply:
        return self._reply(run_name, self._take(run_name, session_id, seq, raw))

    def _take(self, run_name: str, session_id: str, seq: int, raw: bytes) -> Stored:
        message = tsdb_batch.parse_batch(raw)
        tsdb_batch.check_batch(message)  # outside: a refused batch does not wait for SQLite's writer
        body = log.compress_body(raw)
        with self._database.write_shared() as connection:
            # Inside, though it needs no store: on SQLite one batch at a time is decoded and evaluated. Others would
            # take the interpreter from this one at each of its statements.
            columns = tsdb_batch.decode_batch(message)
            sha256 = hashlib.sha256(raw).digest()
            run_row, row = runs.lock_session(connection, run_name, session_id)
            if _is_stored(connection, row, seq, sha256):
                return self._stored(connection, row.run_id, "duplicate", row.next_seq)
            now = self._database.now(connection)
            context = self._context(connection, now, run_row, row, LogEntry(seq, sha256, body), columns)
            self._store(context)
            if row.is_sharded and not shard_stream.is_waiting(connection, row, columns.steps, now):
                merger = self._merger(connection, now, row.run_id, row.launch_no)
                self._store_merged(merger, merger.on_batch(context.batch))
            stored = self._stored(connection, row.run_id, "stored", seq + 1)
            should_cache = row.is_primary or (row.is_sharded and _is_logged(connection, row, seq))
        telemetry.POINTS.inc(columns.points())
        if should_cache:
            self._log.cache((row.run_id, session_id, seq), columns)
        return stored

    def heartbeat(self, run_name: str, session_id: str, raw: bytes) -> wire.Reply:
        message = messages.read_heartbeat(raw)
        with self._database.write_shared() as connection:
            _, row = runs.lock_session(connection, run_name, session_id)
            now = self._database.now(connection)
            values = {"dropped_steps": message.dropped_steps, "agent_share": message.agent_share}
            sessions.record_activity(connection, row, now, values, message.step)
            if row.is_sharded and not shard_stream.is_waiting(connection, row, None, now):
                merger = self._merger(connection, now, row.run_id, row.launch_no)
                self._store_merged(merger, merger.on_heartbeat())
            stored = self._stored(connection, row.run_id, "ok", row.next_seq)
            has_other_layers = rank_layers.admit_rank(connection, row)
        return self._reply(run_name, stored._replace(has_other_layers=has_other_layers))

    def end(self, run_name: str, session_id: str, raw: bytes) -> wire.Reply:
        """Store the end of a session, and of its run with the last of them."""
        message = messages.read_end(raw)
        with self._database.write_shared() as connection:
            _, row = runs.lock_session(connection, run_name, session_id)
            now = self._database.now(connection)
            if row.is_sharded and not shard_stream.is_waiting(connection, row, None, now, ends=True):
                merger = self._merger(connection, now, row.run_id, row.launch_no)
                self._store_merged(merger, merger.on_end(session_id))
            sessions.end_session(connection, row, message, now, self._rules)
            stored = self._stored(connection, row.run_id, "ok", row.next_seq)
        return self._reply(run_name, stored)

    def merge_overdue(self) -> None:
        """Merge the batches that have waited too long for a rank that sends no request any more."""
        with self._database.read() as connection:
            now = self._database.now(connection)
            self._listening(connection, now)
            overdue = shard_stream.find_overdue(connection, now)
        for run_id, launch_no in overdue:
            self._merge_launch(run_id, launch_no)

    def _merge_launch(self, run_id: int, launch_no: int) -> None:
        try:
            with self._database.write() as connection:
                if runs.lock_run(connection, run_id):
                    merger = self._merger(connection, self._database.now(connection), run_id, launch_no)
                    self._store_merged(merger, merger.on_timer())
        except StoreUnavailable:
            raise  # no other one can be stored now
        except Exception:  # it waits for the next round, and delays no other
            logger.exception("launch %s of run %s could not be merged", launch_no, run_id)

    def _store(self, context: BatchContext) -> None:
        check(context)
        append(context)
        run_values = self._evaluator.record(context, self._evaluator.evaluate(context))
        index(context)
        advance(context, run_values)

    def _store_merged(self, merger: ShardMerger, merged: list[MergedBatch]) -> None:
        """Store merged batches in the merged session of their launch."""
        connection, now = merger.connection, merger.clock.now
        for part in merged:
            layer_set, numbers = part.columns.layer_set, part.numbers.tolist()
            row = sessions.merged_session(connection, merger.run_id, merger.launch_no, numbers, layer_set, now)
            run_row = runs.read_held_run(connection, merger.run_id)
            raw = wire.dump(encode_batch(part.columns))
            entry = LogEntry(row.next_seq, hashlib.sha256(raw).digest(), log.compress_body(raw))
            self._store(self._context(connection, now, run_row, row, entry, part.columns))

    def _context(
        self, connection: Connection, now: float, run_row: HeldRun, row: Record, entry: LogEntry, columns: Columns
    ) -> BatchContext:
        layer_set = self._sets.find(connection, row.run_id, row.layer_sets, columns.layer_set)
        launch = read_launch(connection, run_row, row, layer_set.facts)
        piece = LoggedBatch(row.launch_no, row.session, entry.seq, layer_set.numbers, columns)
        return BatchContext(connection, now, run_row, row, launch, piece, entry)

    def _merger(self, connection: Connection, now: float, run_id: int, launch_no: int) -> ShardMerger:
        clock = QuorumClock(now, self._listening(connection, now))
        return ShardMerger(connection, self._log, self._sets, run_id, launch_no, clock)

    def _listening(self, connection: Connection, now: float) -> float:
        """Return the time since which this collector listens without a break."""
        if self.listening_since is None or self.listening_since > now:
            self.listening_since = now
        return max(self.listening_since, heartbeat.listening_since(connection, now))

    def _stored(self, connection: Connection, run_id: int, status: str, next_seq: int) -> Stored:
        return Stored(run_id, status, next_seq, briefs.has_open(connection, run_id))

    def _reply(self, run_name: str, stored: Stored) -> wire.Reply:
        """Return the reply, after the commit: other writers should not wait for the texts of incidents."""
        if self._database.nodes is not None:
            self._database.nodes.note(run_name, stored.run_id)
        incidents: tuple[wire.Brief, ...] = ()
        if stored.has_incidents:
            with self._database.read() as connection:
                incidents = self._briefs.read(connection, stored.run_id, self._database.now(connection))
        spacing_s = self.backpressure.next_interval_s()
        return wire.Reply(stored.status, stored.next_seq, LIMITS, incidents, spacing_s, stored.has_other_layers)


def check(context: BatchContext) -> None:
    """Raise RequestError 409 or 422 if a batch does not fit its session."""
    columns, row, width = context.columns, context.session, len(context.launch.layers)
    sessions.check_role(row)
    if len(columns.steps) and columns.state.shape[1] != width:
        raise invalid(f"The state plane has {columns.state.shape[1]} layers, its layer set {width}.", "state")
    if any(max(record.layers, default=-1) >= width for record in columns.accumulators):
        raise invalid(f"A layer index is 0 to {width - 1}.", "accumulators")
    if len(columns.steps) and row.last_step is not None and columns.steps[0] <= row.last_step:
        raise invalid(f"Steps rise inside a session, and its last one was {row.last_step}.", "steps")


def append(context: BatchContext) -> None:
    """Store a batch in the log, as it came."""
    piece, columns = context.batch, context.columns
    steps = np.concatenate([columns.steps, *(metric.steps for metric in columns.metrics)])
    first, last = (int(steps.min()), int(steps.max())) if len(steps) else (None, None)
    key = {"run_id": context.run.run_id, "session": piece.session, "seq": piece.seq, "launch_no": piece.launch_no}
    values = {"sha256": context.entry.sha256, "received": context.now, "body": context.entry.body}
    _APPEND.change(context.connection, {**key, **values, "first_step": first, "last_step": last})


def index(context: BatchContext) -> None:
    """Store the latest accumulators of each layer, and the last value of each metric of the series."""
    connection, run_id, newer, columns = context.connection, context.run.run_id, context.launch.newer, context.columns
    if columns.accumulators:
        owned_by_newer = layers.layer_ids(connection, run_id, newer)
        layers.note_accumulators(connection, run_id, context.batch.numbers, columns.accumulators, owned_by_newer)
    if context.session.is_primary:
        is_agents = context.session.rank >= 0  # the batches that were merged are acknowledged already
        metric_index.update_series(
            connection, run_id, context.launch.number, newer, columns.metrics, is_refused=is_agents
        )


def advance(context: BatchContext, run_values: Values) -> None:
    """Move session and run on to the end of a batch; ``run_values`` are the changed columns of the run."""
    columns, row, last_step = context.columns, context.session, context.last_step
    values: dict[str, object] = {"next_seq": context.batch.seq + 1, "dropped_steps": columns.dropped_steps}
    if last_step is not None:
        values |= {"last_step": last_step, "every": columns.every}
        if row.first_sample is None:
            values["first_sample"] = int(columns.steps[0])
        if row.rank == 0 or row.is_sharded:  # the others send only their own non-finite gradients
            values["gaps"] = sessions.add_gaps(row, columns, context.launch.first_step)
        if row.excluded_since_step is not None and last_step >= row.excluded_since_step:
            values["excluded_since_step"] = None  # the quorum waits for it again
    phases = columns.phases.get("absmax", np.empty(0, np.uint8))
    phases = phases[phases != tsdb_batch.NO_PHASE]
    if len(phases):
        values["phase"] = wire.PHASES[int(phases[-1])]
    # Only samples count: metrics may be logged for any step.
    sessions.record_activity(context.connection, row, context.now, values, last_step, run_values)


def _is_stored(connection: Connection, row: Record, seq: int, sha256: bytes) -> bool:
    """Return True if this batch is stored; raises RequestError 409 if another one has its number."""
    if seq >= row.next_seq:
        return False  # numbers may be missing: the agent set those batches aside
    query = select(batch.c.sha256).where(
        batch.c.run_id == row.run_id, batch.c.session == row.session, batch.c.seq == seq
    )
    stored = connection.execute(query).scalar_one_or_none()
    if stored == sha256 or (stored is None and seq < row.sealed_seq):
        return True
    if stored is None:
        raise RequestError(409, "superseded", f"Batch {seq} never came, and later ones did.", "seq")
    raise RequestError(409, "conflict", f"Batch {seq} is stored with another body.", "seq")


def _is_logged(connection: Connection, row: Record, seq: int) -> bool:
    """Return True if a batch waits in the log: one that completes a step of all ranks has left it."""
    where = (batch.c.run_id == row.run_id) & (batch.c.session == row.session) & (batch.c.seq == seq)
    return connection.execute(select(batch.c.seq).where(where)).first() is not None
