"""The rules that a store was judged by, and which of them each run was last folded with."""

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the table and the column; of runs from before, the rules of the next start are taken for theirs."""
    op.create_table(
        "rule_set",
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("content", sa.Text(), nullable=False),
        sa.Column("since", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("version", name=op.f("pk_rule_set")),
    )
    op.add_column("run", sa.Column("rules_version", sa.Integer(), nullable=True))
