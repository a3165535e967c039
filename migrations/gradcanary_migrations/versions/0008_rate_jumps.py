"""The learning rates that jumped shortly before an incident."""

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the column; of incidents from before nothing is known."""
    op.add_column("incident", sa.Column("jumps", sa.Text(), nullable=False, server_default="[]"))
