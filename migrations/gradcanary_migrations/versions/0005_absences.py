"""What does not come: since when a collector listens, and when a session told of a new step."""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the table and the columns; of steps nothing is known until the next one."""
    op.create_table(
        "vigil",
        sa.Column("vigil_id", sa.Integer(), nullable=False),
        sa.Column("began", sa.Double(), nullable=False),
        sa.Column("since", sa.Double(), nullable=False),
        sa.Column("at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("vigil_id", name="pk_vigil"),
    )
    op.add_column("session", sa.Column("reached", sa.BigInteger(), nullable=True))
    op.add_column("session", sa.Column("moved", sa.Double(), nullable=True))
