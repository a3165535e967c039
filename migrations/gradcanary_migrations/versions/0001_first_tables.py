"""The first tables: runs, launches, sessions, layers; the batch log, the fold; incidents and their deliveries."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Create every table of the first version."""
    op.create_table(
        "batch",
        sa.Column("run_id", sa.Integer(), nullable=False),
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
        "endpoint",
        sa.Column("endpoint_id", sa.Integer(), nullable=False),
        sa.Column("url", sa.Text(), nullable=False),
        sa.Column("secret", sa.String(length=200), nullable=False),
        sa.Column("min_severity", sa.String(length=12), nullable=False),
        sa.Column("created", sa.Double(), nullable=False),
        sa.Column("disabled", sa.Double(), nullable=True),
        sa.Column("disabled_why", sa.Text(), nullable=True),
        sa.Column("failing_since", sa.Double(), nullable=True),
        sa.PrimaryKeyConstraint("endpoint_id", name=op.f("pk_endpoint")),
        sa.UniqueConstraint("url", name=op.f("uq_endpoint_url")),
    )
    op.create_table(
        "fold_state",
        sa.Column("run_id", sa.Integer(), nullable=False),
        sa.Column("packed", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("run_id", name=op.f("pk_fold_state")),
    )
    op.create_table(
        "metric",
        sa.Column("run_id", sa.Integer(), nullable=False),
        sa.Column("series", sa.LargeBinary(length=32), nullable=False),
        sa.Column("name", sa.String(length=200), nullable=False),
        sa.Column("tags", sa.String(length=2000), nullable=False),
        sa.Column("last_step", sa.BigInteger(), nullable=False),
        sa.Column("last", sa.Double(), nullable=True),
        sa.PrimaryKeyConstraint("run_id", "series", name=op.f("pk_metric")),
    )
    op.create_table(
        "run",
        sa.Column("run_id", sa.Integer(), nullable=False),
        sa.Column("name", sa.String(length=100), nullable=False),
        sa.Column("created", sa.Double(), nullable=False),
        sa.Column("last_seen", sa.Double(), nullable=False),
        sa.Column("ended", sa.String(length=10), nullable=True),
        sa.Column("revision", sa.Integer(), nullable=False),
        sa.Column("step", sa.BigInteger(), nullable=True),
        sa.Column("low", sa.Integer(), nullable=False),
        sa.Column("spark", sa.LargeBinary(), nullable=True),
        sa.Column("framework", sa.String(length=100), nullable=True),
        sa.Column("note", sa.Text(), nullable=False),
        sa.Column("tags", sa.Text(), nullable=False),
        sa.Column("archived", sa.Boolean(), nullable=False),
        sa.Column("facts", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("run_id", name=op.f("pk_run")),
        sa.UniqueConstraint("name", name=op.f("uq_run_name")),
        sqlite_autoincrement=True,
    )
    op.create_table(
        "incident",
        sa.Column("incident_id", sa.Integer(), nullable=False),
        sa.Column("run_id", sa.Integer(), nullable=False),
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
        sa.Column("ever", sa.Integer(), nullable=False),
        sa.Column("layers", sa.Integer(), nullable=False),
        sa.Column("headline", sa.Text(), nullable=False),
        sa.Column("summary", sa.Text(), nullable=False),
        sa.Column("settled", sa.Boolean(), nullable=False),
        sa.Column("acked", sa.Double(), nullable=True),
        sa.Column("acked_by", sa.String(length=200), nullable=True),
        sa.Column("ack_note", sa.Text(), nullable=True),
        sa.ForeignKeyConstraint(["run_id"], ["run.run_id"], name=op.f("fk_incident_run_id"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("incident_id", name=op.f("pk_incident")),
        sqlite_autoincrement=True,
    )
    op.create_index(op.f("ix_incident_run_id"), "incident", ["run_id"], unique=False)
    op.create_index(op.f("ix_incident_settled"), "incident", ["settled"], unique=False)
    op.create_index(op.f("ix_incident_state"), "incident", ["state"], unique=False)
    op.create_table(
        "launch",
        sa.Column("run_id", sa.Integer(), nullable=False),
        sa.Column("launch_no", sa.Integer(), nullable=False),
        sa.Column("launch", sa.String(length=64), nullable=False),
        sa.Column("world_size", sa.Integer(), nullable=False),
        sa.Column("first_step", sa.BigInteger(), nullable=True),
        sa.Column("late", sa.Boolean(), nullable=False),
        sa.Column("absmax_below", sa.Double(), nullable=True),
        sa.Column("norm_below", sa.Double(), nullable=True),
        sa.ForeignKeyConstraint(["run_id"], ["run.run_id"], name=op.f("fk_launch_run_id"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("run_id", "launch_no", name=op.f("pk_launch")),
    )
    op.create_table(
        "layer",
        sa.Column("run_id", sa.Integer(), nullable=False),
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
        "delivery",
        sa.Column("incident_id", sa.Integer(), nullable=False),
        sa.Column("endpoint_id", sa.Integer(), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("kind", sa.String(length=10), nullable=False),
        sa.Column("state", sa.String(length=10), nullable=False),
        sa.Column("body", sa.LargeBinary(), nullable=False),
        sa.Column("sealed", sa.Double(), nullable=False),
        sa.Column("delivered", sa.Double(), nullable=True),
        sa.Column("told_ever", sa.Integer(), nullable=False),
        sa.Column("told_severity", sa.String(length=12), nullable=False),
        sa.Column("told_reopened", sa.Integer(), nullable=False),
        sa.Column("next_attempt", sa.Double(), nullable=False),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("lease_until", sa.Double(), nullable=True),
        sa.Column("fence", sa.Integer(), nullable=False),
        sa.ForeignKeyConstraint(
            ["endpoint_id"], ["endpoint.endpoint_id"], name=op.f("fk_delivery_endpoint_id"), ondelete="CASCADE"
        ),
        sa.ForeignKeyConstraint(
            ["incident_id"], ["incident.incident_id"], name=op.f("fk_delivery_incident_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("incident_id", "endpoint_id", "version", name=op.f("pk_delivery")),
    )
    op.create_table(
        "incident_layer",
        sa.Column("incident_id", sa.Integer(), nullable=False),
        sa.Column("layer_no", sa.Integer(), nullable=False),
        sa.Column("severity", sa.String(length=12), nullable=False),
        sa.Column("since_step", sa.BigInteger(), nullable=False),
        sa.Column("until_step", sa.BigInteger(), nullable=True),
        sa.Column("resolution", sa.String(length=20), nullable=True),
        sa.Column("value", sa.Double(), nullable=True),
        sa.Column("baseline", sa.Double(), nullable=True),
        sa.Column("siblings", sa.Double(), nullable=True),
        sa.Column("evidence", sa.String(length=12), nullable=True),
        sa.Column("rank", sa.Integer(), nullable=True),
        sa.ForeignKeyConstraint(
            ["incident_id"], ["incident.incident_id"], name=op.f("fk_incident_layer_incident_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("incident_id", "layer_no", name=op.f("pk_incident_layer")),
    )
    op.create_table(
        "session",
        sa.Column("run_id", sa.Integer(), nullable=False),
        sa.Column("session", sa.String(length=64), nullable=False),
        sa.Column("launch_no", sa.Integer(), nullable=False),
        sa.Column("rank", sa.Integer(), nullable=False),
        sa.Column("interval_s", sa.Double(), nullable=False),
        sa.Column("hello", sa.Text(), nullable=False),
        sa.Column("layer_sets", sa.Text(), nullable=False),
        sa.Column("next_seq", sa.BigInteger(), nullable=False),
        sa.Column("sealed_seq", sa.BigInteger(), nullable=False),
        sa.Column("every", sa.Integer(), nullable=True),
        sa.Column("phase", sa.String(length=20), nullable=True),
        sa.Column("last_step", sa.BigInteger(), nullable=True),
        sa.Column("started", sa.Double(), nullable=False),
        sa.Column("last_seen", sa.Double(), nullable=False),
        sa.Column("ended", sa.String(length=10), nullable=True),
        sa.Column("error", sa.Text(), nullable=True),
        sa.Column("dropped_steps", sa.BigInteger(), nullable=False),
        sa.Column("gaps", sa.Text(), nullable=False),
        sa.Column("agent_share", sa.Double(), nullable=True),
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
        sa.Column("incident_id", sa.Integer(), nullable=False),
        sa.Column("endpoint_id", sa.Integer(), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("at", sa.Double(), nullable=False),
        sa.Column("status", sa.Integer(), nullable=True),
        sa.Column("ms", sa.Integer(), nullable=False),
        sa.Column("error", sa.Text(), nullable=True),
        sa.ForeignKeyConstraint(
            ["incident_id", "endpoint_id", "version"],
            ["delivery.incident_id", "delivery.endpoint_id", "delivery.version"],
            name=op.f("fk_attempt_incident_id_endpoint_id_version"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("incident_id", "endpoint_id", "version", "number", name=op.f("pk_attempt")),
    )
