"""The log keeps bodies that older versions do not read (gradcanary_server.log_bodies): they refuse this store."""

revision = "0016"
down_revision = "0015"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Change no table: bodies that are there are read as they are."""
