"""The names that runs had before."""

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the table."""
    op.create_table(
        "run_alias",
        sa.Column("name", sa.String(length=100), nullable=False),
        sa.Column("run_id", sa.Integer(), nullable=False),
        sa.ForeignKeyConstraint(["run_id"], ["run.run_id"], name=op.f("fk_run_alias_run_id"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_run_alias")),
    )
    op.create_index(op.f("ix_run_alias_run_id"), "run_alias", ["run_id"])
