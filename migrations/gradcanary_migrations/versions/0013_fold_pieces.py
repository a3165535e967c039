"""The rules' memory of a run in pieces, of which a batch writes those that it made others; which writing they are of.

What is there becomes the one piece of its run, until the next batch cuts it. PostgreSQL tries no more to make smaller
what cannot be: numbers in base64, and what is compressed already, took half of its time for a batch.
"""

import sqlalchemy as sa
from alembic import op

revision = "0013"
down_revision = "0012"
branch_labels = None
depends_on = None

INCOMPRESSIBLE = (("batch", "body"), ("tile", "body"), ("fold_state", "packed"))


def upgrade() -> None:
    """Let a run have several rows of its memory, and say in its own which writing they are of."""
    with op.batch_alter_table("fold_state") as table:
        table.add_column(sa.Column("piece", sa.Integer(), server_default="0", nullable=False))
        table.drop_constraint(op.f("pk_fold_state"), type_="primary")
        table.create_primary_key(op.f("pk_fold_state"), ["run_id", "piece"])
    op.add_column("run", sa.Column("folded", sa.BigInteger()))
    connection = op.get_bind()
    # Citus refuses this for tables that it has spread already.
    if connection.dialect.name == "postgresql" and not _has_citus(connection):
        for name, column in INCOMPRESSIBLE:
            op.execute(f"ALTER TABLE {name} ALTER COLUMN {column} SET STORAGE EXTERNAL")


def _has_citus(connection: sa.Connection) -> bool:
    return bool(connection.scalar(sa.text("SELECT to_regclass('pg_dist_partition') IS NOT NULL")))
