"""Sharded launches: which sessions are drawn, what a rank holds of each layer, and how far ranks were put together."""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the columns; so far the first rank is drawn."""
    op.add_column("session", sa.Column("draws", sa.Boolean(), server_default=sa.false(), nullable=False))
    op.execute(sa.text("UPDATE session SET draws = :first WHERE rank = 0").bindparams(first=True))
    op.add_column("session", sa.Column("local_numels", sa.Text(), nullable=True))
    op.add_column("launch", sa.Column("settled", sa.BigInteger(), nullable=True))
