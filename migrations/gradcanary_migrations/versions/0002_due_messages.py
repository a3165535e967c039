"""An index for the messages that are due, and the version of gradcanary in the heartbeats of collectors."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add both; no row is changed."""
    op.add_column("collector_heartbeat", sa.Column("version", sa.String(length=40), nullable=True))
    op.create_index("ix_delivery_due", "delivery", ["state", "next_attempt"], unique=False)
