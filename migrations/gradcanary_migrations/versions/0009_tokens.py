"""Access tokens, the browsers that signed in with one, and who changed what."""

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the tables; so far nobody was asked for a token."""
    op.create_table(
        "token",
        sa.Column("token_id", sa.Integer(), nullable=False),
        sa.Column("name", sa.String(length=100), nullable=False),
        sa.Column("scope", sa.String(length=10), nullable=False),
        sa.Column("secret_hash", sa.String(length=64), nullable=False),
        sa.Column("created", sa.Double(), nullable=False),
        sa.Column("expires", sa.Double(), nullable=True),
        sa.Column("last_used", sa.Double(), nullable=True),
        sa.Column("revoked", sa.Double(), nullable=True),
        sa.PrimaryKeyConstraint("token_id", name=op.f("pk_token")),
        sa.UniqueConstraint("secret_hash", name=op.f("uq_token_secret_hash")),
        sqlite_autoincrement=True,
    )
    op.create_table(
        "visit",
        sa.Column("secret_hash", sa.String(length=64), nullable=False),
        sa.Column("token_id", sa.Integer(), nullable=False),
        sa.Column("created", sa.Double(), nullable=False),
        sa.Column("expires", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(["token_id"], ["token.token_id"], name=op.f("fk_visit_token_id"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("secret_hash", name=op.f("pk_visit")),
    )
    op.create_index(op.f("ix_visit_token_id"), "visit", ["token_id"])
    op.create_table(
        "audit",
        sa.Column("audit_id", sa.Integer(), nullable=False),
        sa.Column("at", sa.Double(), nullable=False),
        sa.Column("who", sa.String(length=200), nullable=False),
        sa.Column("token_id", sa.Integer(), nullable=True),
        sa.Column("address", sa.String(length=100), nullable=False),
        sa.Column("what", sa.String(length=200), nullable=False),
        sa.Column("on_what", sa.String(length=500), nullable=False),
        sa.PrimaryKeyConstraint("audit_id", name=op.f("pk_audit")),
        sqlite_autoincrement=True,
    )
    op.create_index(op.f("ix_audit_at"), "audit", ["at"])
