"""The tables. Times are unix seconds by the database's clock; text holds no NUL; the words are those of DESIGN.md.
Steps and seqs go up to 2^31 - 1, and what is counted from them beyond: 8 bytes.

Two families, so that the store can be spread over machines later (DESIGN.md, Store): *heavy* tables (batch, chain,
tile, fold_state, metric) whose every key leads with ``run_id``, and *coordination* tables (all others). No foreign
key leads from one family into the other.
"""

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Double,
    ForeignKey,
    ForeignKeyConstraint,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    Text,
    UniqueConstraint,
    false,
    text,
)

MAX_ID = 2**31 - 1
"""The largest number of a row: what is asked for beyond it would be an error of PostgreSQL, not an answer."""

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
    Column("run_id", Integer, primary_key=True),
    Column("name", String(100), nullable=False, unique=True),
    Column("created", Double, nullable=False),
    Column("last_seen", Double, nullable=False),
    Column("ended", String(10)),  # finished | crashed, None while a session is open
    Column("revision", Integer, nullable=False, default=0),
    Column("step", BigInteger),  # the last folded step
    Column("low", Integer, nullable=False, default=0),  # layers that are small without being an incident
    Column("spark", LargeBinary),  # spark.Spark.pack()
    Column("framework", String(100)),
    Column("note", Text, nullable=False, default=""),
    Column("tags", Text, nullable=False, default="[]"),  # JSON list of strings
    Column("archived", Boolean, nullable=False, default=False),
    Column("facts", Text, nullable=False, default="[]"),  # JSON list of wire.Fact
    Column("rules_version", Integer),  # of rule_set: the rules that it was last folded with
    Column("folded", BigInteger),  # a random number for each writing of fold_state
    # Its name, of one that was deleted and is there for its last messages only.
    Column("deleted_as", String(100), index=True),
    sqlite_autoincrement=True,  # a number is never used again: measurements of a deleted run go later than its row
)

run_alias = Table(
    "run_alias",
    metadata,
    Column("name", String(100), primary_key=True),  # what a run was called before: it goes on leading there
    Column("run_id", ForeignKey("run.run_id", ondelete="CASCADE"), nullable=False, index=True),
)

vigil = Table(
    "vigil",
    metadata,
    Column("vigil_id", Integer, primary_key=True),  # 1: what follows, for all collectors of the store; 2: retention
    Column("began", Double, nullable=False),  # when a collector listened for the first time
    Column("since", Double, nullable=False),  # since when one does without a break
    Column("at", Double, nullable=False),  # when that was noted last
)

deleted_session = Table(
    "deleted_session",
    metadata,
    Column("run", String(100), primary_key=True),
    Column("session", String(64), primary_key=True),
    Column("deleted", Double, nullable=False),
)

launch = Table(
    "launch",
    metadata,
    Column("run_id", ForeignKey("run.run_id", ondelete="CASCADE"), primary_key=True),
    Column("launch_no", Integer, primary_key=True),  # 1, 2, ... in the order of arrival
    Column("started", Double, nullable=False, server_default="0"),  # by the agent's clock: the order of launches
    Column("launch", String(64), nullable=False),  # not unique: somebody may fix it
    Column("world_size", Integer, nullable=False),
    Column("first_step", BigInteger),
    Column("late", Boolean, nullable=False),
    Column("absmax_below", Double),
    Column("norm_below", Double),
    Column("settled", BigInteger),  # sharded: samples of its ranks up to this step were put together
)

session = Table(
    "session",
    metadata,
    Column("run_id", Integer, primary_key=True),
    Column("session", String(64), primary_key=True),
    Column("launch_no", Integer, nullable=False),
    Column("rank", Integer, nullable=False),  # -1: all ranks of a sharded launch, put together
    Column("draws", Boolean, nullable=False, server_default=false()),  # its batches are the series of its launch
    Column("interval_s", Double, nullable=False),  # between heartbeats
    Column("hello", Text, nullable=False),  # wire.Hello as merged from every hello, without layer sets and facts
    Column("layer_sets", Text, nullable=False),  # JSON {layer set id: digest of layer_set}
    Column("sends_shards", Boolean, nullable=False, server_default=false()),  # of its layers, not all of each
    Column("next_seq", BigInteger, nullable=False, default=0),
    Column("sealed_seq", BigInteger, nullable=False, default=0),  # batches below it left the log
    Column("every", Integer),
    Column("phase", String(20)),
    Column("first_sample", BigInteger),  # the first and the last step that was measured
    Column("last_step", BigInteger),
    Column("started", Double, nullable=False),
    Column("last_seen", Double, nullable=False),
    Column("ended", String(10)),  # finished | crashed | silent (a newer launch is here), None while open
    Column("error", Text),
    Column("dropped_steps", BigInteger, nullable=False, default=0),
    Column("gaps", Text, nullable=False, default="[]"),  # JSON list of [from_step, to_step, why]
    Column("agent_share", Double),
    Column("reached", BigInteger),  # the highest step that it told of, sampled or not
    Column("moved", Double),  # when that rose last
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
    Column("digest", String(64), primary_key=True),  # of what follows: told again, it is kept once, and never changed
    Column("numbers", LargeBinary, nullable=False),  # layer_no of each, int32 little-endian
    Column("described", LargeBinary, nullable=False),  # layer_sets.Told of each: JSON, zstd
)

batch = Table(
    "batch",
    metadata,
    Column("run_id", Integer, primary_key=True),
    Column("session", String(64), primary_key=True),
    Column("seq", BigInteger, primary_key=True),
    Column("launch_no", Integer, nullable=False),
    Column("sha256", LargeBinary(32), nullable=False),
    Column("received", Double, nullable=False),
    Column("first_step", BigInteger),  # of its samples and metrics, None where it has neither
    Column("last_step", BigInteger),
    Column("body", LargeBinary, nullable=False),  # the request as received, log_bodies.kept()
    # Covers what a reader needs to choose batches, so that choosing touches no body.
    Index("ix_batch_choice", "run_id", "launch_no", "session", "seq", "first_step", "last_step"),
)

chain = Table(
    "chain",
    metadata,
    Column("run_id", Integer, primary_key=True),
    Column("launch_no", Integer, primary_key=True),
    Column("every", Integer, primary_key=True),  # 0: the metrics
    Column("sealed", BigInteger, nullable=False),  # samples of steps under it are in tiles, and not in the log
    Column("raw_from", BigInteger, nullable=False, default=0),  # of older ones only the pyramid is kept
    Column("rolled", Text, nullable=False, default="[]"),  # JSON: up to which step each level of the pyramid goes
)

tile = Table(
    "tile",
    metadata,
    Column("run_id", Integer, primary_key=True),
    Column("level", Integer, primary_key=True),  # 0: samples, 1 and up: nodes of 8 ** level samples
    Column("kind", String(20), primary_key=True),  # steps | state | metrics | a stat
    Column("launch_no", Integer, primary_key=True),
    Column("every", Integer, primary_key=True),
    Column("number", Integer, primary_key=True),  # of the range of 256 * every * 8 ** level steps
    Column("shelf", Integer, primary_key=True),  # layer_no // 128
    Column("part", Integer, primary_key=True),  # a range that was sealed in several parts
    Column("stored", Double, nullable=False),
    Column("body", LargeBinary, nullable=False),  # packing.pack()
)

fold_state = Table(
    "fold_state",
    metadata,
    Column("run_id", Integer, primary_key=True),
    Column("piece", Integer, primary_key=True, server_default="0"),  # 0, 1, ...: fold_states.cut()
    Column("packed", LargeBinary, nullable=False),
)

metric = Table(
    "metric",
    metadata,
    Column("run_id", Integer, primary_key=True),
    Column("series", LargeBinary(32), primary_key=True),  # a hash of name and tags, which are too long for an index
    Column("name", String(200), nullable=False),
    Column("tags", String(2000), nullable=False),  # canonical JSON object
    Column("launch_no", Integer, nullable=False, server_default="0"),  # that logged the last value
    Column("last_step", BigInteger, nullable=False),
    Column("last", Double),  # None where the value was NaN or infinite
)

incident = Table(
    "incident",
    metadata,
    Column("incident_id", Integer, primary_key=True),
    Column("run_id", ForeignKey("run.run_id", ondelete="CASCADE"), nullable=False, index=True),
    Column("launch_no", Integer, nullable=False),
    Column("rule", String(40), nullable=False),
    Column("severity", String(12), nullable=False),  # the highest that any member had
    Column("state", String(10), nullable=False, index=True),  # open | resolved
    Column("opened_step", BigInteger, nullable=False),
    Column("opened", Double, nullable=False),
    Column("since_step", BigInteger, nullable=False),  # the smallest that any member had
    Column("resolved_step", BigInteger),
    Column("resolved", Double),
    Column("resolution", String(20)),
    Column("reopened", Integer, nullable=False, default=0),
    Column("reopened_at", Double),
    Column("firing", Integer, nullable=False),
    Column("ever", Integer, nullable=False),
    Column("layers", Integer, nullable=False),  # of the run, when it opened
    Column("headline", Text, nullable=False),  # text of the last change, so that lists and replies need no members
    Column("summary", Text, nullable=False),
    Column("settled", Boolean, nullable=False, default=False, index=True),  # nothing left to tell any endpoint
    Column("acked", Double),
    Column("acked_by", String(200)),
    Column("ack_note", Text),
    Column("unheard", Integer, nullable=False, server_default="0"),  # members that are
    Column("jumps", Text, nullable=False, server_default="[]"),  # of learning rates, shortly before
    sqlite_autoincrement=True,  # a number is never used again: receivers know messages by it
)

incident_layer = Table(
    "incident_layer",
    metadata,
    Column("incident_id", ForeignKey("incident.incident_id", ondelete="CASCADE"), primary_key=True),
    Column("layer_no", Integer, primary_key=True),  # -1: the whole run
    Column("severity", String(12), nullable=False),
    Column("since_step", BigInteger, nullable=False),
    Column("until_step", BigInteger),  # None while firing
    Column("resolution", String(20)),  # of this member, None while firing
    Column("value", Double),
    Column("baseline", Double),
    Column("siblings", Double),
    Column("evidence", String(12)),
    Column("rank", Integer),
    Column("unheard", Boolean, nullable=False, server_default=false()),  # recovered while it was silenced
)

silence = Table(
    "silence",
    metadata,
    Column("silence_id", Integer, primary_key=True),
    Column("run_glob", String(100), nullable=False),  # a name, or one with * and ?
    Column("rule", String(40)),  # None: all of them
    Column("expression", String(200)),  # found in the names of the layers that are meant, None: the whole incident
    Column("created", Double, nullable=False),
    Column("ends", Double, nullable=False),
    Column("made_by", String(200), nullable=False),
    Column("note", Text, nullable=False),
    sqlite_autoincrement=True,  # a number is never used again: somebody may end the wrong one
)

rule_set = Table(
    "rule_set",
    metadata,
    Column("version", Integer, primary_key=True, autoincrement=False),  # 1, 2, ... as collectors began to apply them
    Column("content", Text, nullable=False),  # rules_json.dump()
    Column("since", Double, nullable=False),
)

backtest = Table(
    "backtest",
    metadata,
    Column("name", String(16), primary_key=True),  # backtest_rows.name_of()
    Column("rules", Text, nullable=False),  # rules_json.dump()
    Column("asked", Double, nullable=False),  # when somebody tried them last
    Column("found", Text, nullable=False),  # backtest_rows.Found
    Column("ended", Double),  # the last round, None before
    Column("is_whole", Boolean, nullable=False, default=False),  # that round came to its end
    Column("lease_until", Double),
    Column("fence", Integer, nullable=False, default=0),
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
    sqlite_autoincrement=True,  # a number is never used again: somebody may revoke the wrong one
)

visit = Table(
    "visit",
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
    Column("who", String(200), nullable=False),  # a token's name, else from where it was done
    Column("token_id", Integer),  # no foreign key: a record outlives the token
    Column("address", String(100), nullable=False),
    Column("what", String(200), nullable=False),
    Column("on_what", String(500), nullable=False),
    sqlite_autoincrement=True,
)

endpoint = Table(
    "endpoint",
    metadata,
    Column("endpoint_id", Integer, primary_key=True),
    Column("kind", String(10), nullable=False, server_default="webhook"),  # webhook | apprise
    Column("origin", String(10), nullable=False, server_default="operator"),  # operator | api
    Column("name", String(100), nullable=False, server_default=text("''")),
    Column("url", Text, nullable=False, unique=True),  # apprise, deleted: what stands for it (endpoints.py)
    Column("secret", String(200), nullable=False),  # whsec_..., empty where nothing is signed
    Column("previous_secret", String(200)),  # signs too, until previous_until
    Column("previous_until", Double),
    Column("min_severity", String(12), nullable=False, default="warning"),
    Column("created", Double, nullable=False),  # or enabled again
    Column("disabled", Double),
    Column("disabled_why", Text),
    Column("disabled_by", String(10)),  # failures | operator | api
    Column("failing_since", Double),
    Column("last_success", Double),
    Column("last_failure", Double),
    Column("last_error", Text),
    Column("deleted", Double),  # its row stays for what it was told
)

delivery = Table(
    "delivery",
    metadata,
    Column("incident_id", ForeignKey("incident.incident_id", ondelete="CASCADE"), primary_key=True),
    Column("endpoint_id", ForeignKey("endpoint.endpoint_id", ondelete="CASCADE"), primary_key=True),
    Column("version", Integer, primary_key=True),  # 1, 2, ...: webhook-id is msg_<incident>_<version>
    Column("kind", String(10), nullable=False),  # opened | grew | reopened | resolved | reminder
    Column("state", String(10), nullable=False),  # pending | delivered | expired | disabled
    Column("body", LargeBinary, nullable=False),  # frozen when sealed: the same bytes on each attempt
    Column("sealed", Double, nullable=False),
    Column("delivered", Double),
    Column("told_ever", Integer, nullable=False),  # layers that the message covers
    Column("told_severity", String(12), nullable=False),
    Column("told_reopened", Integer, nullable=False),
    Column("next_attempt", Double, nullable=False),
    Column("attempts", Integer, nullable=False, default=0),
    Column("lease_until", Double),
    Column("fence", Integer, nullable=False, default=0),
    Column("unsure", Double),  # when it was last sent and may have arrived, though nobody knows that it did
)

attempt = Table(
    "attempt",
    metadata,
    Column("incident_id", Integer, primary_key=True),
    Column("endpoint_id", Integer, primary_key=True),
    Column("version", Integer, primary_key=True),
    Column("number", Integer, primary_key=True),
    Column("at", Double, nullable=False),
    Column("status", Integer),  # None: no answer
    Column("ms", Integer, nullable=False),
    Column("error", Text),
    ForeignKeyConstraint(
        ["incident_id", "endpoint_id", "version"],
        ["delivery.incident_id", "delivery.endpoint_id", "delivery.version"],
        ondelete="CASCADE",
    ),
)

HEAVY = (batch, chain, tile, fold_state, metric)
"""The tables of measurements: every key leads with ``run_id``, and no foreign key leads into or out of them."""
