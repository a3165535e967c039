"""Silences, and which members of an incident recovered while they were silenced."""

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the table and the columns; so far nothing was silenced."""
    op.create_table(
        "silence",
        sa.Column("silence_id", sa.Integer(), nullable=False),
        sa.Column("run_glob", sa.String(length=100), nullable=False),
        sa.Column("rule", sa.String(length=40), nullable=True),
        sa.Column("expression", sa.String(length=200), nullable=True),
        sa.Column("created", sa.Double(), nullable=False),
        sa.Column("ends", sa.Double(), nullable=False),
        sa.Column("made_by", sa.String(length=200), nullable=False),
        sa.Column("note", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("silence_id", name=op.f("pk_silence")),
        sqlite_autoincrement=True,
    )
    op.add_column("incident", sa.Column("unheard", sa.Integer(), server_default="0", nullable=False))
    op.add_column("incident_layer", sa.Column("unheard", sa.Boolean(), server_default=sa.false(), nullable=False))
