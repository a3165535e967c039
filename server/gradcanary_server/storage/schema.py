"""All tables, and statements that differ between SQL dialects.

Times are unix seconds by the database's clock; text holds no NUL. Steps and seqs go up to 2^31 - 1; numbers counted
from them take 8 bytes. Every key of a table with ``run_id`` begins with it, and foreign keys between such tables
include it, so that Citus can keep the rows of a run together; no foreign key leads from them to any other table.
``run_name``, which finds the run of a name, and ``compaction_claim`` are the exceptions: see ``storage/citus.py``. So
a statement that locks or changes rows of a run names the run by its id, and none joins them to tables of no run.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    ColumnElement,
    Connection,
    Double,
    Engine,
    ForeignKey,
    ForeignKeyConstraint,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    Select,
    String,
    Table,
    Text,
    UniqueConstraint,
    and_,
    bindparam,
    exists,
    false,
    func,
    select,
    text,
    update,
)
from sqlalchemy.dialects import postgresql, sqlite

from gradcanary_server.storage.prepared import Prepared

MAX_ID = 2**31 - 1
"""The largest id of a row: PostgreSQL fails for a larger number in a query."""

metadata = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "fk": "fk_%(table_name)s_%(column_0_N_name)s",
        "pk": "pk_%(table_name)s",
    }
)

run = Table(
    "run",
    metadata,
    Column("run_id", BigInteger, primary_key=True, autoincrement=False),  # runs.new_run_id()
    Column("name", String(100), nullable=False),  # the display name; run_name makes it unique
    Column("created", Double, nullable=False),
    Column("last_seen", Double, nullable=False),
    Column("ended", String(10)),  # finished | crashed | detached, None while a session is open
    Column("revision", Integer, nullable=False, default=0),
    Column("step", BigInteger),  # the last evaluated step
    Column("below_threshold", Integer, nullable=False, default=0),  # layers under ``enter`` without an incident
    Column("sparkline", LargeBinary),  # sparkline.Sparkline.pack()
    Column("framework", String(100)),
    Column("note", Text, nullable=False, default=""),
    Column("tags", Text, nullable=False, default="[]"),  # JSON list of strings
    Column("archived", Boolean, nullable=False, default=False),
    Column("facts", Text, nullable=False, default="[]"),  # JSON list of wire.Fact
    Column("rules_version", Integer),  # of rule_set: the rules that last evaluated it
    Column("state_token", BigInteger),  # random, new with each write of rule_state
    Column("mean_step_s", Double),  # the time of its steps, liveness.StepTimes
    Column("longest_step_s", Double),
)


class HeldRun(NamedTuple):
    """The columns of a locked run that a batch needs: drivers take time for each column of a result."""

    run_id: int
    ended: str | None
    sparkline: bytes | None
    facts: str
    rules_version: int | None
    state_token: int | None
    mean_step_s: float | None
    longest_step_s: float | None


HELD_RUN = tuple(run.c[name] for name in HeldRun._fields)

run_name = Table(
    "run_name",
    metadata,
    Column("name", String(100), primary_key=True),  # the name of the run, or one that it had before
    Column("run_id", BigInteger, nullable=False, index=True),  # no foreign key: its key does not begin with the run
)

collector_heartbeat = Table(
    "collector_heartbeat",
    metadata,
    Column("heartbeat_id", Integer, primary_key=True),  # 1: a collector listens; 2: retention runs
    Column("listening_since", Double, nullable=False),  # the first beat after the last interruption
    Column("last_beat", Double, nullable=False),
    Column("version", String(40)),  # of gradcanary, that last beat or migrated: an older one names it as it refuses
)

session_tombstone = Table(
    "session_tombstone",
    metadata,
    Column("run", String(100), primary_key=True),
    Column("session", String(64), primary_key=True),
    Column("deleted", Double, nullable=False),
)

deleted_run = Table(
    "deleted_run",
    metadata,
    Column("run_id", BigInteger, primary_key=True, autoincrement=False),  # until its measurements are deleted, too
)

launch = Table(
    "launch",
    metadata,
    Column("run_id", ForeignKey("run.run_id", ondelete="CASCADE"), primary_key=True),
    Column("launch_no", Integer, primary_key=True),  # 1, 2, ... in the order of arrival
    Column("started", Double, nullable=False, server_default="0"),  # by the agent's clock: the order of launches
    Column("launch", String(64), nullable=False),  # not unique: a user may set it to a constant
    Column("world_size", Integer, nullable=False),
    Column("first_step", BigInteger),
    Column("late", Boolean, nullable=False),
    Column("absmax_below", Double),
    Column("norm_below", Double),
    Column("collapse_below", Double),  # ``enter`` of collapse; null: that of the rules
    Column("merged_step", BigInteger),  # samples of its ranks up to this step are merged
    Column("has_own_layers", Boolean, nullable=False, server_default=false()),  # its ranks, not shards
)

configuration = Table(
    "configuration",
    metadata,
    Column("run_id", BigInteger, primary_key=True),
    Column("launch_no", Integer, primary_key=True),
    Column("environment", Text, nullable=False),  # JSON of wire.Environment, or null
    Column("settings", Text, nullable=False),  # JSON list of wire.Setting, in the order of their steps
    Column("metrics", Text, nullable=False, server_default="[]"),  # JSON list of wire.MetricBound
    ForeignKeyConstraint(["run_id", "launch_no"], ["launch.run_id", "launch.launch_no"], ondelete="CASCADE"),
)

session = Table(
    "session",
    metadata,
    Column("run_id", BigInteger, primary_key=True),
    Column("session", String(64), primary_key=True),
    Column("launch_no", Integer, nullable=False),
    Column("rank", Integer, nullable=False),  # -1: all ranks that send samples, merged
    Column("is_primary", Boolean, nullable=False, server_default=false()),  # its batches are the series of its launch
    Column("interval_s", Double, nullable=False),  # between heartbeats
    Column("hello", Text, nullable=False),  # wire.Hello as merged from every hello, without layer sets and facts
    Column("layer_sets", Text, nullable=False),  # JSON {layer set id: digest of layer_set}
    Column("is_sharded", Boolean, nullable=False, server_default=false()),  # its batches wait to be merged
    Column("next_seq", BigInteger, nullable=False, default=0),
    Column("sealed_seq", BigInteger, nullable=False, default=0),  # batches below it left the log
    Column("every", Integer),
    Column("phase", String(20)),
    Column("first_sample", BigInteger),  # the first and the last step that was measured
    Column("last_step", BigInteger),
    Column("started", Double, nullable=False),
    Column("last_seen", Double, nullable=False),
    Column("ended", String(10)),  # finished | crashed | detached | silent (a newer launch is here), None while open
    Column("error", Text),
    Column("dropped_steps", BigInteger, nullable=False, default=0),
    Column("gaps", Text, nullable=False, default="[]"),  # JSON list of [from_step, to_step, why]
    Column("excluded_since_step", BigInteger),  # steps from this one on were merged without it
    Column("agent_share", Double),
    Column("max_step", BigInteger),  # the highest step that it reported, sampled or not
    Column("max_step_at", Double),  # when that last rose
    ForeignKeyConstraint(["run_id", "launch_no"], ["launch.run_id", "launch.launch_no"], ondelete="CASCADE"),
)

layer = Table(
    "layer",
    metadata,
    Column("run_id", ForeignKey("run.run_id", ondelete="CASCADE"), primary_key=True),
    Column("layer_no", Integer, primary_key=True),  # from 0, by name, never reused
    Column("name", String(500), nullable=False),
    Column("shape", Text, nullable=False),  # JSON list of ints
    Column("param_dtype", String(40), nullable=False),
    Column("module_class", String(200)),
    Column("group_no", Integer),
    Column("declared", String(40)),
    Column("stored", String(40)),
    Column("effective", String(40)),
    UniqueConstraint("run_id", "name"),
)

layer_set = Table(
    "layer_set",
    metadata,
    Column("run_id", ForeignKey("run.run_id", ondelete="CASCADE"), primary_key=True),
    Column("digest", String(64), primary_key=True),  # of the columns below, which never change
    Column("layer_nos", LargeBinary, nullable=False),  # layer_no of each, int32 little-endian
    Column("descriptions", LargeBinary, nullable=False),  # layers.Description of each: JSON, zstd
)

batch = Table(
    "batch",
    metadata,
    Column("run_id", BigInteger, primary_key=True),
    Column("session", String(64), primary_key=True),
    Column("seq", BigInteger, primary_key=True),
    Column("launch_no", Integer, nullable=False),
    Column("sha256", LargeBinary(32), nullable=False),
    Column("received", Double, nullable=False),
    Column("first_step", BigInteger),  # of its samples and metrics, None where it has neither
    Column("last_step", BigInteger),
    Column("body", LargeBinary, nullable=False),  # the request as received, log.compress_body()
    # Covers what a reader needs to choose batches, so that choosing touches no body.
    Index("ix_batch_choice", "run_id", "launch_no", "session", "seq", "first_step", "last_step"),
)

stream = Table(
    "stream",
    metadata,
    Column("run_id", BigInteger, primary_key=True),
    Column("launch_no", Integer, primary_key=True),
    Column("every", Integer, primary_key=True),  # 0: the metrics
    Column("sealed_until", BigInteger, nullable=False),  # samples before this step are in tiles and not in the log
    Column("raw_start", BigInteger, nullable=False, default=0),  # of samples before it only rollups exist
    Column("rollup_ends", Text, nullable=False, default="[]"),  # JSON: the end step of each rollup level
)

tile = Table(
    "tile",
    metadata,
    Column("run_id", BigInteger, primary_key=True),
    Column("level", Integer, primary_key=True),  # 0: samples, 1 and up: aggregates of 8 ** level samples
    Column("kind", String(20), primary_key=True),  # steps | state | metrics | a stat
    Column("launch_no", Integer, primary_key=True),
    Column("every", Integer, primary_key=True),
    Column("range_no", Integer, primary_key=True),  # of the range of 256 * every * 8 ** level steps
    Column("layer_group", Integer, primary_key=True),  # layer_no // 128
    Column("part", Integer, primary_key=True),  # a range that was sealed in several parts
    Column("stored", Double, nullable=False),
    Column("body", LargeBinary, nullable=False),  # tile_codec.pack()
)

compaction_claim = Table(
    "compaction_claim",
    metadata,
    Column("run_id", BigInteger, primary_key=True),  # no foreign key: a collector may compact while a run is deleted
    Column("holder", String(32), nullable=False),  # a collector, named at random
    Column("lease_until", Double, nullable=False),
)

rule_state = Table(
    "rule_state",
    metadata,
    Column("run_id", BigInteger, primary_key=True),
    Column("part", Integer, primary_key=True, server_default="0"),  # 0, 1, ...: parts of rule_states.PART_BYTES bytes
    Column("packed", LargeBinary, nullable=False),
)

metric = Table(
    "metric",
    metadata,
    Column("run_id", BigInteger, primary_key=True),
    Column("series", LargeBinary(32), primary_key=True),  # hash of name and tags, which are too long for an index
    Column("name", String(200), nullable=False),
    Column("tags", String(2000), nullable=False),  # canonical JSON object
    Column("launch_no", Integer, nullable=False, server_default="0"),  # that logged the last value
    Column("last_step", BigInteger, nullable=False),
    Column("last", Double),  # None where the value was NaN or infinite
)

counter = Table(
    "counter",
    metadata,
    Column("name", String(40), primary_key=True),  # incident | deletion (of a run)
    Column("last", Integer, nullable=False),  # never used again, also after the deletion of its row
)

incident = Table(
    "incident",
    metadata,
    Column("run_id", ForeignKey("run.run_id", ondelete="CASCADE"), primary_key=True),
    Column("incident_id", Integer, primary_key=True, index=True),  # unique in the store: counter gives it
    Column("launch_no", Integer, nullable=False),
    Column("rule", String(40), nullable=False),
    Column("severity", String(12), nullable=False),  # the highest that any member had
    Column("state", String(10), nullable=False, index=True),  # open | resolved | ended
    Column("opened_step", BigInteger, nullable=False),
    Column("opened", Double, nullable=False),
    Column("since_step", BigInteger, nullable=False),  # the smallest that any member had
    Column("resolved_step", BigInteger),
    Column("resolved", Double),
    Column("resolution", String(20)),
    Column("reopened", Integer, nullable=False, default=0),
    Column("reopened_at", Double),
    Column("firing", Integer, nullable=False),
    Column("ever_firing", Integer, nullable=False),
    Column("layers", Integer, nullable=False),  # of the run, when it opened
    Column("headline", Text, nullable=False),  # text of the last change, so that lists need no members
    Column("summary", Text, nullable=False),  # of ``described_revision``; see incidents/text.py
    Column("revision", Integer, nullable=False, server_default="0"),  # how often it was saved
    Column("described_revision", Integer, nullable=False, server_default="0"),
    Column("notifications_done", Boolean, nullable=False, default=False, index=True),  # none is to come
    Column("acked", Double),
    Column("acked_by", String(200)),
    Column("ack_note", Text),
    Column("lr_jumps", Text, nullable=False, server_default="[]"),  # JSON list of rules.types.Jump, shortly before
    Column("scale_fall", Text),  # JSON of rules.types.ScaleFall until then, if there was one
    Column("crash", Text),  # JSON of wire.Crash, of the rule crash only
    Column("beside", Integer),  # incident_id of a collapse, of the rule explosion; of an explosion, of no_update
    Column("series", Text, nullable=False, server_default="{}"),  # JSON of rules.types.SeriesFacts by layer_no
)

incident_layer = Table(
    "incident_layer",
    metadata,
    Column("run_id", BigInteger, primary_key=True),
    Column("incident_id", Integer, primary_key=True),
    Column("layer_no", Integer, primary_key=True),  # -1: the whole run; -2, -3, ...: series of a metric
    Column("severity", String(12), nullable=False),
    Column("since_step", BigInteger, nullable=False),
    Column("until_step", BigInteger),  # None while firing
    Column("resolution", String(20)),  # of this member, None while firing
    Column("value", Double),
    Column("baseline", Double),
    Column("siblings", Double),
    Column("evidence", String(24)),
    Column("rank", Integer),
    ForeignKeyConstraint(["run_id", "incident_id"], ["incident.run_id", "incident.incident_id"], ondelete="CASCADE"),
)

silence = Table(
    "silence",
    metadata,
    Column("silence_id", Integer, primary_key=True),
    Column("run_glob", String(100), nullable=False),  # a name, or one with * and ?
    Column("rule", String(40)),  # None: all of them
    Column("expression", String(200)),  # that matches the names of its layers, None: the whole incident
    Column("created", Double, nullable=False),
    Column("ends", Double, nullable=False),
    Column("created_by", String(200), nullable=False),
    Column("note", Text, nullable=False),
    sqlite_autoincrement=True,  # a number is never used again: a late request would end another silence
)

rule_set = Table(
    "rule_set",
    metadata,
    Column("version", Integer, primary_key=True, autoincrement=False),  # 1, 2, ... as collectors began to apply them
    Column("content", Text, nullable=False),  # rules_to_json()
    Column("since", Double, nullable=False),
)

token = Table(
    "token",
    metadata,
    Column("token_id", Integer, primary_key=True),
    Column("name", String(100), nullable=False),
    Column("scope", String(10), nullable=False),  # ingest | read | admin
    Column("secret_hash", String(64), nullable=False, unique=True),  # tokens.digest()
    Column("created", Double, nullable=False),
    Column("expires", Double),
    Column("last_used", Double),  # to the minute
    Column("revoked", Double),
    sqlite_autoincrement=True,  # a number is never used again: an administrator could revoke the wrong one
)

web_session = Table(
    "web_session",
    metadata,
    Column("secret_hash", String(64), primary_key=True),  # of what the browser's cookie holds
    Column("token_id", ForeignKey("token.token_id", ondelete="CASCADE"), nullable=False, index=True),
    Column("created", Double, nullable=False),
    Column("expires", Double, nullable=False),
)

audit = Table(
    "audit",
    metadata,
    Column("audit_id", Integer, primary_key=True),
    Column("at", Double, nullable=False, index=True),
    Column("actor", String(200), nullable=False),  # the name of a token, else the place of the change
    Column("token_id", Integer),  # no foreign key: a record outlives the token
    Column("address", String(100), nullable=False),
    Column("action", String(200), nullable=False),
    Column("target", String(500), nullable=False),
    sqlite_autoincrement=True,
)

endpoint = Table(
    "endpoint",
    metadata,
    Column("endpoint_id", Integer, primary_key=True),
    Column("kind", String(10), nullable=False, server_default="webhook"),  # webhook | apprise
    Column("origin", String(10), nullable=False, server_default="operator"),  # operator | api
    Column("name", String(100), nullable=False, server_default=text("''")),
    Column("url", Text, nullable=False, unique=True),  # of apprise a fingerprint; deleted:ID of a deleted one
    Column("secret", String(200), nullable=False),  # whsec_..., empty where nothing is signed
    Column("previous_secret", String(200)),  # signs too, until previous_until
    Column("previous_until", Double),
    Column("min_severity", String(12), nullable=False, default="warning"),
    Column("sends_ended", Boolean, nullable=False, server_default=false()),  # what its receiver keeps open is closed
    Column("created", Double, nullable=False),  # or enabled again
    Column("disabled", Double),
    Column("disabled_reason", Text),
    Column("disabled_by", String(10)),  # failures | operator | api
    Column("failing_since", Double),
    Column("last_success", Double),
    Column("last_failure", Double),
    Column("last_error", Text),
    Column("deleted", Double),  # the row stays for its deliveries
)

delivery = Table(
    "delivery",
    metadata,
    Column("run_id", BigInteger, primary_key=True),  # no foreign key: the last messages outlive a deleted run
    Column("incident_id", Integer, primary_key=True, index=True),
    Column("endpoint_id", Integer, primary_key=True),  # rows of endpoints are never deleted
    Column("version", Integer, primary_key=True),  # 1, 2, ...: webhook-id is msg_<incident>_<version>
    Column("kind", String(10), nullable=False),  # opened | grew | reopened | resolved | ended | reminder
    Column("state", String(10), nullable=False),  # pending | delivered | expired | disabled
    Column("body", LargeBinary, nullable=False),  # the same bytes in each attempt
    Column("enqueued_at", Double, nullable=False),
    Column("delivered", Double),
    Column("notified_layers", Integer, nullable=False),  # that the message covers
    Column("notified_severity", String(12), nullable=False),
    Column("notified_reopens", Integer, nullable=False),
    Column("next_attempt", Double, nullable=False),
    Column("attempts", Integer, nullable=False, default=0),
    Column("lease_until", Double),
    Column("fence", Integer, nullable=False, default=0),
    Column("maybe_delivered_at", Double),  # when it was last sent without a known result
    # The dispatcher looks for what is due twice a second, and messages stay as long as their run.
    Index("ix_delivery_due", "state", "next_attempt"),
)

attempt = Table(
    "attempt",
    metadata,
    Column("run_id", BigInteger, primary_key=True),
    Column("incident_id", Integer, primary_key=True),
    Column("endpoint_id", Integer, primary_key=True),
    Column("version", Integer, primary_key=True),
    Column("number", Integer, primary_key=True),
    Column("at", Double, nullable=False),
    Column("status", Integer),  # None: no answer
    Column("ms", Integer, nullable=False),
    Column("error", Text),
    ForeignKeyConstraint(
        ["run_id", "incident_id", "endpoint_id", "version"],
        ["delivery.run_id", "delivery.incident_id", "delivery.endpoint_id", "delivery.version"],
        ondelete="CASCADE",
    ),
)

HEAVY = (batch, stream, tile, rule_state, metric)
"""The tables of measurements. They have no foreign keys: those of a deleted run are deleted later."""

_INSERT: dict[str, Callable[[Table], sqlite.Insert | postgresql.Insert]] = {
    "sqlite": sqlite.insert,
    "postgresql": postgresql.insert,
}


def insert_new(connection: Connection, table: Table, values: Mapping[str, object]) -> bool:
    """Insert a row unless its key exists, also in an open transaction, for which it waits; return True if it is new."""
    row = _INSERT[connection.dialect.name](table).values(**values).on_conflict_do_nothing()
    return connection.execute(row.returning(*table.primary_key)).first() is not None


def insert_missing(connection: Connection, table: Table, rows: Sequence[Mapping[str, object]]) -> None:
    """Insert rows, except those whose key exists."""
    if rows:
        connection.execute(_INSERT[connection.dialect.name](table).on_conflict_do_nothing(), rows)


PAGE_RUNS = 256
"""Runs of one page of :func:`iter_runs`."""


def iter_runs(connection: Connection, table: Table) -> Iterator[Sequence[int]]:
    """Yield the ids of all runs that have rows in a table, in pages; looks up each run and scans no rows."""
    after, query = -1, _page_of_runs(table)
    while page := connection.scalars(query, {"after": after}).all():
        yield page
        if len(page) < PAGE_RUNS:
            return
        after = page[-1]


@lru_cache(maxsize=8)
def _page_of_runs(table: Table) -> Select[int]:
    has_rows = exists().where(table.c.run_id == run.c.run_id)
    query = select(run.c.run_id).where(run.c.run_id > bindparam("after", type_=BigInteger), has_rows)
    return query.order_by(run.c.run_id).limit(PAGE_RUNS)


NUMBERS = "numbers"
"""The execution option of a connection that names the engine of :func:`next_incident_id` and :func:`new_id`."""


def next_incident_id(connection: Connection) -> int:
    """Return the next number of an incident; its transaction should hold the run, whose numbers rise then.

    On PostgreSQL it is committed at once, on a connection of its own: who opens an incident waits for no other
    transaction that does, and a batch changes rows of one node only. A rollback leaves a number unused.
    """
    numbers: Engine | None = connection.get_execution_options().get(NUMBERS)
    if numbers is None:
        return next_number(connection, "incident")
    with numbers.begin() as own:
        return next_number(own, "incident")


_SEQUENCE = text("SELECT pg_sequence_last_value(CAST(pg_get_serial_sequence(:table, :column) AS regclass))")


def new_id(connection: Connection, table: Table) -> dict[str, int]:
    """Return the primary key of a new row of a table of no run, by its column; SQLite gives it, so nothing is returned.

    It is never used again. On PostgreSQL it is a number of a counter: workers of Citus have no sequences of integers.
    """
    if connection.dialect.name == "sqlite":
        return {}
    (column,) = table.primary_key.columns
    numbers: Engine = connection.get_execution_options()[NUMBERS]
    with numbers.begin() as own:
        first = 1
        if own.execute(select(counter.c.last).where(counter.c.name == table.name)).first() is None:
            newest = own.execute(select(func.max(column))).scalar_one()
            given = own.execute(_SEQUENCE, {"table": table.name, "column": column.name}).scalar_one()
            # It may have rows of a version that used its sequence. Citus has set those of workers to their end.
            first += max(newest or 0, given if given is not None and given < MAX_ID else 0)
        return {column.name: next_number(own, table.name, first)}


def next_number(connection: Connection, name: str, first: int = 1) -> int:
    """Return the next number of a counter; another transaction waits for its number until this one ends."""
    row = _INSERT[connection.dialect.name](counter).values(name=name, last=first)
    row = row.on_conflict_do_update(index_elements=[counter.c.name], set_={"last": counter.c.last + 1})
    return int(connection.execute(row.returning(counter.c.last)).scalar_one())


def update_row(connection: Connection, table: Table, key: Mapping[str, object], values: Mapping[str, object]) -> int:
    """Update the rows with these values of ``key``; return their number."""
    parameters = {f"at_{column}": value for column, value in key.items()} | dict(values)
    return _update_by_key(table, tuple(key)).change(connection, parameters)


def is_of_incident(
    table: Table, run_id: int | ColumnElement[int], incident_id: int | ColumnElement[int]
) -> ColumnElement[bool]:
    """Return the condition of the rows of an incident in a table."""
    return and_(table.c.run_id == run_id, table.c.incident_id == incident_id)


def contains(column: ColumnElement[str], text: str) -> ColumnElement[bool]:
    """Return the condition that a column contains a text, whatever the case of its letters."""
    escaped = text.replace("/", "//").replace("%", "/%").replace("_", "/_")
    return func.lower(column).contains(func.lower(escaped), escape="/")


@lru_cache(maxsize=64)
def _update_by_key(table: Table, key: tuple[str, ...]) -> Prepared:
    # Cached: building a statement for each batch took longer than executing it.
    return Prepared(update(table).where(*(table.c[column] == bindparam(f"at_{column}") for column in key)))
