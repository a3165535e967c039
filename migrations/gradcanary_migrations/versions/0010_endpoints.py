"""Endpoints that are made over HTTP, and those that go through apprise; what became of them, and their last secret."""

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the columns; endpoints from before were all given on the command line."""
    for column in (
        sa.Column("kind", sa.String(10), nullable=False, server_default="webhook"),
        sa.Column("origin", sa.String(10), nullable=False, server_default="operator"),
        sa.Column("name", sa.String(100), nullable=False, server_default=sa.text("''")),
        sa.Column("previous_secret", sa.String(200)),
        sa.Column("previous_until", sa.Double()),
        sa.Column("disabled_by", sa.String(10)),
        sa.Column("last_success", sa.Double()),
        sa.Column("last_failure", sa.Double()),
        sa.Column("last_error", sa.Text()),
        sa.Column("deleted", sa.Double()),
    ):
        op.add_column("endpoint", column)
    _tell_who_disabled()


def _tell_who_disabled() -> None:
    endpoint = sa.table("endpoint", sa.column("disabled"), sa.column("disabled_why"), sa.column("disabled_by"))
    left_out = endpoint.c.disabled_why.startswith("--webhook did not name it")
    disabled = sa.update(endpoint).where(endpoint.c.disabled.is_not(None))
    op.execute(disabled.values(disabled_by=sa.case((left_out, "operator"), else_="failures")))
