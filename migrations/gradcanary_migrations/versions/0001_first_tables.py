"""All tables of the first version. Frozen: test_migrations.py has the digest of its statements."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


INCOMPRESSIBLE = (("batch", "body"), ("tile", "body"), ("rule_state", "packed"))
"""Columns with bytes that are compressed already: PostgreSQL would try it again for each row."""


def upgrade() -> None:
    """Create the tables."""
    op.create_table(
        "audit",
        sa.Column("audit_id", sa.Integer(), nullable=False),
        sa.Column("at", sa.Double(), nullable=False),
        sa.Column("actor", sa.String(length=200), nullable=False),
        sa.Column("token_id", sa.Integer(), nullable=True),
        sa.Column("address", sa.String(length=100), nullable=False),
        sa.Column("action", sa.String(length=200), nullable=False),
        sa.Column("target", sa.String(length=500), nullable=False),
        sa.PrimaryKeyConstraint("audit_id", name=op.f("pk_audit")),
        sqlite_autoincrement=True,
    )
    op.create_index(op.f("ix_audit_at"), "audit", ["at"], unique=False)
    op.create_table(
        "batch",
        sa.Column("run_id", sa.BigInteger(), nullable=False),
        sa.Column("session", sa.String(length=64), nullable=False),
        sa.Column("seq", sa.BigInteger(), nullable=False),
        sa.Column("launch_no", sa.Integer(), nullable=False),
        sa.Column("sha256", sa.LargeBinary(length=32), nullable=False),
        sa.Column("received", sa.Double(), nullable=False),
        sa.Column("first_step", sa.BigInteger(), nullable=True),
        sa.Column("last_step", sa.BigInteger(), nullable=True),
        sa.Column("body", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("run_id", "session", "seq", name=op.f("pk_batch")),
    )
    op.create_index(
        "ix_batch_choice", "batch", ["run_id", "launch_no", "session", "seq", "first_step", "last_step"], unique=False
    )
    op.create_table(
        "compaction_claim",
        sa.Column("run_id", sa.BigInteger(), nullable=False),
        sa.Column("holder", sa.String(length=32), nullable=False),
        sa.Column("lease_until", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("run_id", name=op.f("pk_compaction_claim")),
    )
    op.create_table(
        "counter",
        sa.Column("name", sa.String(length=40), nullable=False),
        sa.Column("last", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_counter")),
    )
    op.create_table(
        "deleted_run",
        sa.Column("run_id", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.PrimaryKeyConstraint("run_id", name=op.f("pk_deleted_run")),
    )
    op.create_table(
        "session_tombstone",
        sa.Column("run", sa.String(length=100), nullable=False),
        sa.Column("session", sa.String(length=64), nullable=False),
        sa.Column("deleted", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("run", "session", name=op.f("pk_session_tombstone")),
    )
    op.create_table(
        "endpoint",
        sa.Column("endpoint_id", sa.Integer(), nullable=False),
        sa.Column("kind", sa.String(length=10), server_default="webhook", nullable=False),
        sa.Column("origin", sa.String(length=10), server_default="operator", nullable=False),
        sa.Column("name", sa.String(length=100), server_default=sa.text("''"), nullable=False),
        sa.Column("url", sa.Text(), nullable=False),
        sa.Column("secret", sa.String(length=200), nullable=False),
        sa.Column("previous_secret", sa.String(length=200), nullable=True),
        sa.Column("previous_until", sa.Double(), nullable=True),
        sa.Column("min_severity", sa.String(length=12), nullable=False),
        sa.Column("sends_ended", sa.Boolean(), server_default=sa.false(), nullable=False),
        sa.Column("created", sa.Double(), nullable=False),
        sa.Column("disabled", sa.Double(), nullable=True),
        sa.Column("disabled_reason", sa.Text(), nullable=True),
        sa.Column("disabled_by", sa.String(length=10), nullable=True),
        sa.Column("failing_since", sa.Double(), nullable=True),
        sa.Column("last_success", sa.Double(), nullable=True),
        sa.Column("last_failure", sa.Double(), nullable=True),
        sa.Column("last_error", sa.Text(), nullable=True),
        sa.Column("deleted", sa.Double(), nullable=True),
        sa.PrimaryKeyConstraint("endpoint_id", name=op.f("pk_endpoint")),
        sa.UniqueConstraint("url", name=op.f("uq_endpoint_url")),
    )
    op.create_table(
        "metric",
        sa.Column("run_id", sa.BigInteger(), nullable=False),
        sa.Column("series", sa.LargeBinary(length=32), nullable=False),
        sa.Column("name", sa.String(length=200), nullable=False),
        sa.Column("tags", sa.String(length=2000), nullable=False),
        sa.Column("launch_no", sa.Integer(), server_default="0", nullable=False),
        sa.Column("last_step", sa.BigInteger(), nullable=False),
        sa.Column("last", sa.Double(), nullable=True),
        sa.PrimaryKeyConstraint("run_id", "series", name=op.f("pk_metric")),
    )
    op.create_table(
        "rule_set",
        sa.Column("version", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("content", sa.Text(), nullable=False),
        sa.Column("since", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("version", name=op.f("pk_rule_set")),
    )
    op.create_table(
        "rule_state",
        sa.Column("run_id", sa.BigInteger(), nullable=False),
        sa.Column("part", sa.Integer(), server_default="0", nullable=False),
        sa.Column("packed", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("run_id", "part", name=op.f("pk_rule_state")),
    )
    op.create_table(
        "run",
        sa.Column("run_id", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("name", sa.String(length=100), nullable=False),
        sa.Column("created", sa.Double(), nullable=False),
        sa.Column("last_seen", sa.Double(), nullable=False),
        sa.Column("ended", sa.String(length=10), nullable=True),
        sa.Column("revision", sa.Integer(), nullable=False),
        sa.Column("step", sa.BigInteger(), nullable=True),
        sa.Column("below_threshold", sa.Integer(), nullable=False),
        sa.Column("sparkline", sa.LargeBinary(), nullable=True),
        sa.Column("framework", sa.String(length=100), nullable=True),
        sa.Column("note", sa.Text(), nullable=False),
        sa.Column("tags", sa.Text(), nullable=False),
        sa.Column("archived", sa.Boolean(), nullable=False),
        sa.Column("facts", sa.Text(), nullable=False),
        sa.Column("rules_version", sa.Integer(), nullable=True),
        sa.Column("state_token", sa.BigInteger(), nullable=True),
        sa.Column("mean_step_s", sa.Double(), nullable=True),
        sa.Column("longest_step_s", sa.Double(), nullable=True),
        sa.PrimaryKeyConstraint("run_id", name=op.f("pk_run")),
    )
    op.create_table(
        "silence",
        sa.Column("silence_id", sa.Integer(), nullable=False),
        sa.Column("run_glob", sa.String(length=100), nullable=False),
        sa.Column("rule", sa.String(length=40), nullable=True),
        sa.Column("expression", sa.String(length=200), nullable=True),
        sa.Column("created", sa.Double(), nullable=False),
        sa.Column("ends", sa.Double(), nullable=False),
        sa.Column("created_by", sa.String(length=200), nullable=False),
        sa.Column("note", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("silence_id", name=op.f("pk_silence")),
        sqlite_autoincrement=True,
    )
    op.create_table(
        "stream",
        sa.Column("run_id", sa.BigInteger(), nullable=False),
        sa.Column("launch_no", sa.Integer(), nullable=False),
        sa.Column("every", sa.Integer(), nullable=False),
        sa.Column("sealed_until", sa.BigInteger(), nullable=False),
        sa.Column("raw_start", sa.BigInteger(), nullable=False),
        sa.Column("rollup_ends", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("run_id", "launch_no", "every", name=op.f("pk_stream")),
    )
    op.create_table(
        "tile",
        sa.Column("run_id", sa.BigInteger(), nullable=False),
        sa.Column("level", sa.Integer(), nullable=False),
        sa.Column("kind", sa.String(length=20), nullable=False),
        sa.Column("launch_no", sa.Integer(), nullable=False),
        sa.Column("every", sa.Integer(), nullable=False),
        sa.Column("range_no", sa.Integer(), nullable=False),
        sa.Column("layer_group", sa.Integer(), nullable=False),
        sa.Column("part", sa.Integer(), nullable=False),
        sa.Column("stored", sa.Double(), nullable=False),
        sa.Column("body", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint(
            "run_id", "level", "kind", "launch_no", "every", "range_no", "layer_group", "part", name=op.f("pk_tile")
        ),
    )
    op.create_table(
        "token",
        sa.Column("token_id", sa.Integer(), nullable=False),
        sa.Column("name", sa.String(length=100), nullable=False),
        sa.Column("scope", sa.String(length=10), nullable=False),
        sa.Column("secret_hash", sa.String(length=64), nullable=False),
        sa.Column("created", sa.Double(), nullable=False),
        sa.Column("expires", sa.Double(), nullable=True),
        sa.Column("last_used", sa.Double(), nullable=True),
        sa.Column("revoked", sa.Double(), nullable=True),
        sa.PrimaryKeyConstraint("token_id", name=op.f("pk_token")),
        sa.UniqueConstraint("secret_hash", name=op.f("uq_token_secret_hash")),
        sqlite_autoincrement=True,
    )
    op.create_table(
        "collector_heartbeat",
        sa.Column("heartbeat_id", sa.Integer(), nullable=False),
        sa.Column("listening_since", sa.Double(), nullable=False),
        sa.Column("last_beat", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("heartbeat_id", name=op.f("pk_collector_heartbeat")),
    )
    op.create_table(
        "incident",
        sa.Column("run_id", sa.BigInteger(), nullable=False),
        sa.Column("incident_id", sa.Integer(), nullable=False),
        sa.Column("launch_no", sa.Integer(), nullable=False),
        sa.Column("rule", sa.String(length=40), nullable=False),
        sa.Column("severity", sa.String(length=12), nullable=False),
        sa.Column("state", sa.String(length=10), nullable=False),
        sa.Column("opened_step", sa.BigInteger(), nullable=False),
        sa.Column("opened", sa.Double(), nullable=False),
        sa.Column("since_step", sa.BigInteger(), nullable=False),
        sa.Column("resolved_step", sa.BigInteger(), nullable=True),
        sa.Column("resolved", sa.Double(), nullable=True),
        sa.Column("resolution", sa.String(length=20), nullable=True),
        sa.Column("reopened", sa.Integer(), nullable=False),
        sa.Column("reopened_at", sa.Double(), nullable=True),
        sa.Column("firing", sa.Integer(), nullable=False),
        sa.Column("ever_firing", sa.Integer(), nullable=False),
        sa.Column("layers", sa.Integer(), nullable=False),
        sa.Column("headline", sa.Text(), nullable=False),
        sa.Column("summary", sa.Text(), nullable=False),
        sa.Column("revision", sa.Integer(), server_default="0", nullable=False),
        sa.Column("described_revision", sa.Integer(), server_default="0", nullable=False),
        sa.Column("notifications_done", sa.Boolean(), nullable=False),
        sa.Column("acked", sa.Double(), nullable=True),
        sa.Column("acked_by", sa.String(length=200), nullable=True),
        sa.Column("ack_note", sa.Text(), nullable=True),
        sa.Column("lr_jumps", sa.Text(), server_default="[]", nullable=False),
        sa.Column("scale_fall", sa.Text(), nullable=True),
        sa.Column("crash", sa.Text(), nullable=True),
        sa.Column("beside", sa.Integer(), nullable=True),
        sa.Column("series", sa.Text(), server_default="{}", nullable=False),
        sa.ForeignKeyConstraint(["run_id"], ["run.run_id"], name=op.f("fk_incident_run_id"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("run_id", "incident_id", name=op.f("pk_incident")),
    )
    op.create_index(op.f("ix_incident_incident_id"), "incident", ["incident_id"], unique=False)
    op.create_index(op.f("ix_incident_notifications_done"), "incident", ["notifications_done"], unique=False)
    op.create_index(op.f("ix_incident_state"), "incident", ["state"], unique=False)
    op.create_table(
        "launch",
        sa.Column("run_id", sa.BigInteger(), nullable=False),
        sa.Column("launch_no", sa.Integer(), nullable=False),
        sa.Column("started", sa.Double(), server_default="0", nullable=False),
        sa.Column("launch", sa.String(length=64), nullable=False),
        sa.Column("world_size", sa.Integer(), nullable=False),
        sa.Column("first_step", sa.BigInteger(), nullable=True),
        sa.Column("late", sa.Boolean(), nullable=False),
        sa.Column("absmax_below", sa.Double(), nullable=True),
        sa.Column("norm_below", sa.Double(), nullable=True),
        sa.Column("collapse_below", sa.Double(), nullable=True),
        sa.Column("merged_step", sa.BigInteger(), nullable=True),
        sa.Column("has_own_layers", sa.Boolean(), server_default=sa.false(), nullable=False),
        sa.ForeignKeyConstraint(["run_id"], ["run.run_id"], name=op.f("fk_launch_run_id"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("run_id", "launch_no", name=op.f("pk_launch")),
    )
    op.create_table(
        "layer",
        sa.Column("run_id", sa.BigInteger(), nullable=False),
        sa.Column("layer_no", sa.Integer(), nullable=False),
        sa.Column("name", sa.String(length=500), nullable=False),
        sa.Column("shape", sa.Text(), nullable=False),
        sa.Column("param_dtype", sa.String(length=40), nullable=False),
        sa.Column("module_class", sa.String(length=200), nullable=True),
        sa.Column("group_no", sa.Integer(), nullable=True),
        sa.Column("declared", sa.String(length=40), nullable=True),
        sa.Column("stored", sa.String(length=40), nullable=True),
        sa.Column("effective", sa.String(length=40), nullable=True),
        sa.ForeignKeyConstraint(["run_id"], ["run.run_id"], name=op.f("fk_layer_run_id"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("run_id", "layer_no", name=op.f("pk_layer")),
        sa.UniqueConstraint("run_id", "name", name=op.f("uq_layer_run_id_name")),
    )
    op.create_table(
        "layer_set",
        sa.Column("run_id", sa.BigInteger(), nullable=False),
        sa.Column("digest", sa.String(length=64), nullable=False),
        sa.Column("layer_nos", sa.LargeBinary(), nullable=False),
        sa.Column("descriptions", sa.LargeBinary(), nullable=False),
        sa.ForeignKeyConstraint(["run_id"], ["run.run_id"], name=op.f("fk_layer_set_run_id"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("run_id", "digest", name=op.f("pk_layer_set")),
    )
    op.create_table(
        "run_name",
        sa.Column("name", sa.String(length=100), nullable=False),
        sa.Column("run_id", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_run_name")),
    )
    op.create_index(op.f("ix_run_name_run_id"), "run_name", ["run_id"], unique=False)
    op.create_table(
        "web_session",
        sa.Column("secret_hash", sa.String(length=64), nullable=False),
        sa.Column("token_id", sa.Integer(), nullable=False),
        sa.Column("created", sa.Double(), nullable=False),
        sa.Column("expires", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(
            ["token_id"], ["token.token_id"], name=op.f("fk_web_session_token_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("secret_hash", name=op.f("pk_web_session")),
    )
    op.create_index(op.f("ix_web_session_token_id"), "web_session", ["token_id"], unique=False)
    op.create_table(
        "delivery",
        sa.Column("run_id", sa.BigInteger(), nullable=False),
        sa.Column("incident_id", sa.Integer(), nullable=False),
        sa.Column("endpoint_id", sa.Integer(), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("kind", sa.String(length=10), nullable=False),
        sa.Column("state", sa.String(length=10), nullable=False),
        sa.Column("body", sa.LargeBinary(), nullable=False),
        sa.Column("enqueued_at", sa.Double(), nullable=False),
        sa.Column("delivered", sa.Double(), nullable=True),
        sa.Column("notified_layers", sa.Integer(), nullable=False),
        sa.Column("notified_severity", sa.String(length=12), nullable=False),
        sa.Column("notified_reopens", sa.Integer(), nullable=False),
        sa.Column("next_attempt", sa.Double(), nullable=False),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("lease_until", sa.Double(), nullable=True),
        sa.Column("fence", sa.Integer(), nullable=False),
        sa.Column("maybe_delivered_at", sa.Double(), nullable=True),
        sa.PrimaryKeyConstraint("run_id", "incident_id", "endpoint_id", "version", name=op.f("pk_delivery")),
    )
    op.create_index(op.f("ix_delivery_incident_id"), "delivery", ["incident_id"], unique=False)
    op.create_table(
        "incident_layer",
        sa.Column("run_id", sa.BigInteger(), nullable=False),
        sa.Column("incident_id", sa.Integer(), nullable=False),
        sa.Column("layer_no", sa.Integer(), nullable=False),
        sa.Column("severity", sa.String(length=12), nullable=False),
        sa.Column("since_step", sa.BigInteger(), nullable=False),
        sa.Column("until_step", sa.BigInteger(), nullable=True),
        sa.Column("resolution", sa.String(length=20), nullable=True),
        sa.Column("value", sa.Double(), nullable=True),
        sa.Column("baseline", sa.Double(), nullable=True),
        sa.Column("siblings", sa.Double(), nullable=True),
        sa.Column("evidence", sa.String(length=24), nullable=True),
        sa.Column("rank", sa.Integer(), nullable=True),
        sa.ForeignKeyConstraint(
            ["run_id", "incident_id"],
            ["incident.run_id", "incident.incident_id"],
            name=op.f("fk_incident_layer_run_id_incident_id"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("run_id", "incident_id", "layer_no", name=op.f("pk_incident_layer")),
    )
    op.create_table(
        "configuration",
        sa.Column("run_id", sa.BigInteger(), nullable=False),
        sa.Column("launch_no", sa.Integer(), nullable=False),
        sa.Column("environment", sa.Text(), nullable=False),
        sa.Column("settings", sa.Text(), nullable=False),
        sa.Column("metrics", sa.Text(), server_default="[]", nullable=False),
        sa.ForeignKeyConstraint(
            ["run_id", "launch_no"],
            ["launch.run_id", "launch.launch_no"],
            name=op.f("fk_configuration_run_id_launch_no"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("run_id", "launch_no", name=op.f("pk_configuration")),
    )
    op.create_table(
        "session",
        sa.Column("run_id", sa.BigInteger(), nullable=False),
        sa.Column("session", sa.String(length=64), nullable=False),
        sa.Column("launch_no", sa.Integer(), nullable=False),
        sa.Column("rank", sa.Integer(), nullable=False),
        sa.Column("is_primary", sa.Boolean(), server_default=sa.false(), nullable=False),
        sa.Column("interval_s", sa.Double(), nullable=False),
        sa.Column("hello", sa.Text(), nullable=False),
        sa.Column("layer_sets", sa.Text(), nullable=False),
        sa.Column("is_sharded", sa.Boolean(), server_default=sa.false(), nullable=False),
        sa.Column("next_seq", sa.BigInteger(), nullable=False),
        sa.Column("sealed_seq", sa.BigInteger(), nullable=False),
        sa.Column("every", sa.Integer(), nullable=True),
        sa.Column("phase", sa.String(length=20), nullable=True),
        sa.Column("first_sample", sa.BigInteger(), nullable=True),
        sa.Column("last_step", sa.BigInteger(), nullable=True),
        sa.Column("started", sa.Double(), nullable=False),
        sa.Column("last_seen", sa.Double(), nullable=False),
        sa.Column("ended", sa.String(length=10), nullable=True),
        sa.Column("error", sa.Text(), nullable=True),
        sa.Column("dropped_steps", sa.BigInteger(), nullable=False),
        sa.Column("gaps", sa.Text(), nullable=False),
        sa.Column("excluded_since_step", sa.BigInteger(), nullable=True),
        sa.Column("agent_share", sa.Double(), nullable=True),
        sa.Column("max_step", sa.BigInteger(), nullable=True),
        sa.Column("max_step_at", sa.Double(), nullable=True),
        sa.ForeignKeyConstraint(
            ["run_id", "launch_no"],
            ["launch.run_id", "launch.launch_no"],
            name=op.f("fk_session_run_id_launch_no"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("run_id", "session", name=op.f("pk_session")),
    )
    op.create_table(
        "attempt",
        sa.Column("run_id", sa.BigInteger(), nullable=False),
        sa.Column("incident_id", sa.Integer(), nullable=False),
        sa.Column("endpoint_id", sa.Integer(), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("at", sa.Double(), nullable=False),
        sa.Column("status", sa.Integer(), nullable=True),
        sa.Column("ms", sa.Integer(), nullable=False),
        sa.Column("error", sa.Text(), nullable=True),
        sa.ForeignKeyConstraint(
            ["run_id", "incident_id", "endpoint_id", "version"],
            ["delivery.run_id", "delivery.incident_id", "delivery.endpoint_id", "delivery.version"],
            name=op.f("fk_attempt_run_id_incident_id_endpoint_id_version"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("run_id", "incident_id", "endpoint_id", "version", "number", name=op.f("pk_attempt")),
    )
    if op.get_bind().dialect.name == "postgresql":
        for name, column in INCOMPRESSIBLE:
            op.execute(f"ALTER TABLE {name} ALTER COLUMN {column} SET STORAGE EXTERNAL")
