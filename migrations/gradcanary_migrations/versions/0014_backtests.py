"""What rules would have said of the last runs, and those that somebody tries."""

import sqlalchemy as sa
from alembic import op

revision = "0014"
down_revision = "0013"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the table."""
    op.create_table(
        "backtest",
        sa.Column("name", sa.String(length=16), nullable=False),
        sa.Column("rules", sa.Text(), nullable=False),
        sa.Column("asked", sa.Double(), nullable=False),
        sa.Column("found", sa.Text(), nullable=False),
        sa.Column("ended", sa.Double(), nullable=True),
        sa.Column("is_whole", sa.Boolean(), nullable=False),
        sa.Column("lease_until", sa.Double(), nullable=True),
        sa.Column("fence", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_backtest")),
    )
