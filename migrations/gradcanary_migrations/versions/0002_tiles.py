"""Tiles: measurements that left the batch log, and the pyramid on them; sessions of deleted runs."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Create the tables of tiles, and tell for known sessions where their samples begin."""
    op.create_table(
        "chain",
        sa.Column("run_id", sa.Integer(), nullable=False),
        sa.Column("launch_no", sa.Integer(), nullable=False),
        sa.Column("every", sa.Integer(), nullable=False),
        sa.Column("sealed", sa.BigInteger(), nullable=False),
        sa.Column("raw_from", sa.BigInteger(), nullable=False),
        sa.Column("rolled", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("run_id", "launch_no", "every", name=op.f("pk_chain")),
    )
    op.create_table(
        "tile",
        sa.Column("run_id", sa.Integer(), nullable=False),
        sa.Column("level", sa.Integer(), nullable=False),
        sa.Column("kind", sa.String(length=20), nullable=False),
        sa.Column("launch_no", sa.Integer(), nullable=False),
        sa.Column("every", sa.Integer(), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("shelf", sa.Integer(), nullable=False),
        sa.Column("part", sa.Integer(), nullable=False),
        sa.Column("stored", sa.Double(), nullable=False),
        sa.Column("body", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint(
            "run_id", "level", "kind", "launch_no", "every", "number", "shelf", "part", name=op.f("pk_tile")
        ),
    )
    op.create_table(
        "deleted_session",
        sa.Column("run", sa.String(length=100), nullable=False),
        sa.Column("session", sa.String(length=64), nullable=False),
        sa.Column("deleted", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("run", "session", name=op.f("pk_deleted_session")),
    )
    op.add_column("session", sa.Column("first_sample", sa.BigInteger(), nullable=True))
    op.execute(
        "UPDATE session SET first_sample = (SELECT min(batch.first_step) FROM batch"
        " WHERE batch.run_id = session.run_id AND batch.session = session.session) WHERE last_step IS NOT NULL"
    )
