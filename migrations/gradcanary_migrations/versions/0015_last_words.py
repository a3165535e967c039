"""Deleted runs of which somebody is still to hear that they are."""

import sqlalchemy as sa
from alembic import op

revision = "0015"
down_revision = "0014"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the column, and what finds the few that have something in it."""
    op.add_column("run", sa.Column("deleted_as", sa.String(length=100), nullable=True))
    op.create_index(op.f("ix_run_deleted_as"), "run", ["deleted_as"])
