"""What a session sends, stored: each message is one transaction, and its commit is the acknowledgement.

A batch, in this order: lock the run, look at its seq, append it to the log as it came, fold it, record what changed
in incidents, store the fold, update the layers, metrics, session and run that pages show. Of a sharded launch it is
folded when all ranks have passed its steps, put together (:mod:`gradcanary_server.gathering`).
"""

import hashlib
import logging
from collections.abc import Mapping
from functools import partial

import numpy as np
from sqlalchemy import Connection, insert, select

from gradcanary import wire
from gradcanary_server import (
    attribution,
    batches,
    fold_input,
    gathering,
    incidents,
    launches,
    layer_sets,
    layers,
    log_bodies,
    meters,
    metrics,
    requests,
    sessions,
    spark,
)
from gradcanary_server.batches import Columns
from gradcanary_server.cadence import Cadence
from gradcanary_server.database import Database, Record
from gradcanary_server.encoding import encode
from gradcanary_server.errors import RequestError, invalid
from gradcanary_server.fold import fold
from gradcanary_server.fold_states import FoldStates
from gradcanary_server.gaps import note_gaps
from gradcanary_server.gathering import Gathering
from gradcanary_server.layer_rules import compile_rules
from gradcanary_server.layer_sets import KnownSet, KnownSets
from gradcanary_server.leaps import TRIES, Pulse
from gradcanary_server.log import Log, Piece
from gradcanary_server.observations import Change, Launch
from gradcanary_server.outages import unavailable
from gradcanary_server.requests import LIMITS
from gradcanary_server.rule_versions import RuleVersions
from gradcanary_server.rules import Rules
from gradcanary_server.schema import batch

Values = Mapping[str, object]  # columns of a row, by name

_APPEND = insert(batch)
logger = logging.getLogger(__name__)


class Ingest:
    """Stores hellos, batches, heartbeats and ends; each method takes a body and returns the reply to it."""

    def __init__(self, database: Database, rules: Rules, sets: KnownSets, log: Log, public_url: str) -> None:
        self._database = database
        self._rules = rules
        self._sets = sets
        self._log = log
        self._public_url = public_url
        self._states = FoldStates()
        self.rule_versions = RuleVersions(database, rules, self._states)
        self.began: float | None = None
        """Since when this collector listens, by the database's clock: its first request, or when that was set."""
        self._pulse = Pulse()
        self.cadence = Cadence()

    def hello(self, run_name: str, session_id: str, raw: bytes, sent: float | None = None) -> wire.Reply:
        """Store a hello, the first or a fuller one; ``sent`` is the time at which it was, by the sender's clock."""
        message = requests.hello(raw)
        with self._database.write() as connection:
            now = self._database.now(connection)
            next_seq = sessions.say_hello(connection, run_name, session_id, message, sent, now)
            run_row, _ = sessions.lock(connection, run_name, session_id)
            return self._reply(connection, run_row.run_id, "ok", next_seq)

    def batch(self, run_name: str, session_id: str, seq: int, raw: bytes) -> wire.Reply:
        """Store and fold a batch, once."""
        body = log_bodies.kept(raw)
        with self._database.write() as connection:
            # In here, though it needs no store yet: on SQLite one batch at a time is decoded and folded. Others that
            # are decoded meanwhile would take the interpreter from this one at each of its statements.
            columns = batches.decode(requests.batch(raw))
            digest = hashlib.sha256(raw).digest()
            run_row, row = sessions.lock(connection, run_name, session_id)
            if _is_known(connection, row, seq, digest):
                return self._reply(connection, row.run_id, "duplicate", row.next_seq)
            now = self._database.now(connection)
            known = self._sets.find(connection, row.run_id, session_id, columns.layer_set)
            launched = _launch(connection, run_row, row, known)
            sessions.check_role(row)
            _check_place(row, columns, known)
            _append(connection, row, seq, digest, columns, body, now)
            settled = layer_sets.numbers_of(connection, row.run_id, launched.newer)
            layers.note_accumulators(connection, row.run_id, known.numbers, columns.accumulators, settled)
            piece = Piece(row.launch_no, session_id, seq, known.numbers, columns)
            of_run = self._draw(connection, run_row, row, launched, piece, now) if row.draws else {}
            _note_progress(connection, row, seq, columns, launched.first_step, now, of_run)
            if row.sends_shards:
                self._gather(connection, row.run_id, row.launch_no, now, piece)
            elif not row.draws:
                attribution.attribute(connection, row.run_id, row.launch_no, row.rank, [piece])
            reply = self._reply(connection, row.run_id, "stored", seq + 1)
            is_of_use = row.draws or (row.sends_shards and _is_logged(connection, row, seq))
        meters.POINTS.inc(columns.points())
        if is_of_use:
            self._log.keep((row.run_id, session_id, seq), columns)
        return reply

    def heartbeat(self, run_name: str, session_id: str, raw: bytes) -> wire.Reply:
        """Note a sign of life."""
        message = requests.heartbeat(raw)
        with self._database.write() as connection:
            _, row = sessions.lock(connection, run_name, session_id)
            now = self._database.now(connection)
            sessions.hear(connection, row, message, now)
            if row.sends_shards:
                self._gather(connection, row.run_id, row.launch_no, now)
            return self._reply(connection, row.run_id, "ok", row.next_seq)

    def end(self, run_name: str, session_id: str, raw: bytes) -> wire.Reply:
        """Note that a session ended, and its run with the last of them."""
        message = requests.end(raw)
        with self._database.write() as connection:
            _, row = sessions.lock(connection, run_name, session_id)
            now = self._database.now(connection)
            if row.sends_shards:
                self._gather(connection, row.run_id, row.launch_no, now, ending=session_id)
            sessions.end(connection, row, message, now)
            return self._reply(connection, row.run_id, "ok", row.next_seq)

    def settle(self) -> None:
        """Put together what has waited for a rank for too long: where no process is left, no request comes."""
        with self._database.read() as connection:
            now = self._database.now(connection)
            self._listening(connection, now)
            found = gathering.overdue(connection, now)
        for run_id, launch_no in found:
            self._settle(run_id, launch_no)

    def _settle(self, run_id: int, launch_no: int) -> None:
        try:
            with self._database.write() as connection:
                if sessions.is_there(connection, run_id):
                    now = self._database.now(connection)
                    launches.redate(connection, run_id, now)
                    self._gather(connection, run_id, launch_no, now, is_round=True)
        except Exception as error:  # it waits for the next round, and holds up no other
            if unavailable(error) is not None:
                raise  # nor does any other go now
            logger.exception("launch %s of run %s could not be put together", launch_no, run_id)

    def _gather(
        self,
        connection: Connection,
        run_id: int,
        launch_no: int,
        now: float,
        fresh: Piece | None = None,
        ending: str | None = None,
        *,
        is_round: bool = False,
    ) -> None:
        """Draw what the ranks of a sharded launch have sent together, and note what came too late for it."""
        gathering = Gathering(connection, self._log, self._sets, run_id, launch_no)
        for whole in gathering.settle(now, self._listening(connection, now, tries=1), fresh, ending, is_round=is_round):
            layer_set, numbers = whole.columns.layer_set, whole.numbers.tolist()
            row = sessions.joint(connection, run_id, launch_no, numbers, layer_set, now)
            found = self._sets.find(connection, run_id, row.session, layer_set)
            run_row = sessions.held(connection, run_id)
            launched = _launch(connection, run_row, row, found)
            raw, seq = wire.dump(encode(whole.columns)), row.next_seq
            _append(connection, row, seq, hashlib.sha256(raw).digest(), whole.columns, log_bodies.kept(raw), now)
            piece = Piece(launch_no, row.session, seq, whole.numbers, whole.columns)
            of_run = self._draw(connection, run_row, row, launched, piece, now)
            _note_progress(connection, row, seq, whole.columns, launched.first_step, now, of_run)

    def _listening(self, connection: Connection, now: float, tries: int = TRIES) -> float:
        """Return since when this collector listens, with that clock; who is missing by a leap of it is given time."""
        _, by_s = self._pulse.look(partial(self._database.now, connection), self._database.steady, tries)
        if by_s or self.began is None:
            self.began = now
        return self.began

    def _draw(
        self, connection: Connection, run_row: Record, row: Record, launched: Launch, piece: Piece, now: float
    ) -> Values:
        """Fold a batch that is the series of its launch, keep the last of its metrics; return what its run has new."""
        changed, of_run = self._fold(connection, run_row, row, launched, piece.columns, now)
        steps = [change.since_step for change in changed if change.rule == attribution.RULE and change.kind == "fired"]
        if row.rank == 0 and steps:
            others = attribution.of_others(connection, self._log, row.run_id, row.launch_no, min(steps), max(steps))
            for rank, each in [(row.rank, piece), *others]:
                attribution.attribute(connection, row.run_id, row.launch_no, rank, [each])
        told = (connection, row.run_id, row.launch_no, launched.newer, piece.columns.metrics)
        metrics.note(*told, is_refused=row.rank == 0)
        return of_run

    def _fold(
        self, connection: Connection, run_row: Record, row: Record, launched: Launch, columns: Columns, now: float
    ) -> tuple[tuple[Change, ...], Values]:
        self.rule_versions.revise(connection, run_row, now)
        samples = fold_input.samples(columns, compile_rules(launched.layers, self._rules).groups)
        before = self._states.read(connection, run_row)
        state, changes = fold(before.state, launched, samples, self._rules)
        values: dict[str, object] = {"low": state.low_count()}
        is_present = state.progress.launch == launched.number  # one that was replaced says nothing of the present
        if is_present:
            self._record(connection, run_row, launched, changes, columns, now)
            values["folded"] = self._states.write(connection, row.run_id, before, state)
            if len(columns.steps):
                values["step"] = int(columns.steps[-1])
        if "absmax" in columns.values:
            line = spark.Spark.unpack(run_row.spark)
            values["spark"] = line.add(columns.steps, spark.levels(columns.values["absmax"])).pack()
        return (changes if is_present else ()), values

    def _record(
        self,
        connection: Connection,
        run_row: Record,
        launched: Launch,
        changes: tuple[Change, ...],
        columns: Columns,
        now: float,
    ) -> None:
        has_others = launched.older or launched.newer  # on whose incidents the run may have ended
        reached = int(columns.steps[-1]) if has_others and len(columns.steps) else None
        incidents.record(connection, run_row.run_id, launched.number, changes, now, self._rules.pace.reopen_s, reached)
        if run_row.ended is not None:
            sessions.close_incidents(connection, run_row.run_id, now)  # a straggler must not reopen an ended run

    def _reply(self, connection: Connection, run_id: int, status: str, next_seq: int) -> wire.Reply:
        briefs = incidents.open_briefs(connection, run_id, self._public_url)
        return wire.Reply(status, next_seq, LIMITS, briefs, self.cadence.answered())


def _is_known(connection: Connection, row: Record, seq: int, digest: bytes) -> bool:
    """Tell whether this very batch is stored; raises RequestError 409 when another one has its place."""
    if seq >= row.next_seq:
        return False  # seqs may be left out: the agent set those batches aside
    query = select(batch.c.sha256).where(
        batch.c.run_id == row.run_id, batch.c.session == row.session, batch.c.seq == seq
    )
    stored = connection.execute(query).scalar_one_or_none()
    if stored == digest or (stored is None and seq < row.sealed_seq):
        return True
    if stored is None:
        raise RequestError(409, "superseded", f"Batch {seq} never came, and later ones did.", "seq")
    raise RequestError(409, "conflict", f"Batch {seq} is stored with another body.", "seq")


def _is_logged(connection: Connection, row: Record, seq: int) -> bool:
    """Tell whether a batch waits in the log: one that completes a step of all ranks has left it."""
    this = (batch.c.run_id == row.run_id) & (batch.c.session == row.session) & (batch.c.seq == seq)
    return connection.execute(select(batch.c.seq).where(this)).first() is not None


def _launch(connection: Connection, run_row: Record, row: Record, known: KnownSet) -> Launch:
    known_launches = launches.in_order(connection, row.run_id)
    place = [each.launch_no for each in known_launches].index(row.launch_no)
    mine = known_launches[place]
    if mine.first_step is None:
        raise RequestError(409, "unknown_layer_set", "No hello told the first step of this launch.", "first_step")
    return Launch(
        number=mine.launch_no,
        first_step=mine.first_step,
        late=mine.late,
        absmax_below=mine.absmax_below,
        norm_below=mine.norm_below,
        layers=known.facts,
        newer=frozenset(each.launch_no for each in known_launches[place + 1 :]),
        older=frozenset(each.launch_no for each in known_launches[:place]),
        facts=sessions.facts(run_row.facts),
    )


def _check_place(row: Record, columns: Columns, known: KnownSet) -> None:
    width = len(known.facts)
    if len(columns.steps) and columns.state.shape[1] != width:
        raise invalid(f"The state plane has {columns.state.shape[1]} layers, its layer set {width}.", "state")
    if any(max(record.layers, default=-1) >= width for record in columns.accumulators):
        raise invalid(f"A layer index is 0 to {width - 1}.", "accumulators")
    if len(columns.steps) and row.last_step is not None and columns.steps[0] <= row.last_step:
        raise invalid(f"Steps rise inside a session, and its last one was {row.last_step}.", "steps")


def _append(
    connection: Connection, row: Record, seq: int, digest: bytes, columns: Columns, body: bytes, now: float
) -> None:
    steps = np.concatenate([columns.steps, *(metric.steps for metric in columns.metrics)])
    first, last = (int(steps.min()), int(steps.max())) if len(steps) else (None, None)
    place = {"run_id": row.run_id, "session": row.session, "seq": seq, "launch_no": row.launch_no}
    told = {"sha256": digest, "received": now, "first_step": first, "last_step": last, "body": body}
    connection.execute(_APPEND, {**place, **told})


def _note_progress(
    connection: Connection, row: Record, seq: int, columns: Columns, begins: int, now: float, of_run: Values
) -> None:
    values: dict[str, object] = {"next_seq": seq + 1, "dropped_steps": columns.dropped_steps}
    if len(columns.steps):
        values |= {"last_step": int(columns.steps[-1]), "every": columns.every}
        if row.first_sample is None:
            values["first_sample"] = int(columns.steps[0])
        if row.rank == 0 or row.sends_shards:  # the others send only what is not finite of their own
            values["gaps"] = note_gaps(row, columns, begins)
    phases = columns.phases.get("absmax", np.empty(0, np.uint8))
    seen = phases[phases != batches.NO_PHASE]
    if len(seen):
        values["phase"] = wire.PHASES[int(seen[-1])]
    # Metrics may be logged for any step: they say nothing of where the training is.
    sessions.touch(connection, row, now, values, int(columns.steps[-1]) if len(columns.steps) else None, of_run)
