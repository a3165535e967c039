"""Launches in the order in which they began; which launch a metric's last value is of."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the columns; known launches began when their first session came, and the newest logged the metrics."""
    op.add_column("launch", sa.Column("started", sa.Double(), server_default="0", nullable=False))
    op.execute(
        "UPDATE launch SET started = coalesce((SELECT min(session.started) FROM session"
        " WHERE session.run_id = launch.run_id AND session.launch_no = launch.launch_no), 0)"
    )
    op.add_column("metric", sa.Column("launch_no", sa.Integer(), server_default="0", nullable=False))
    op.execute(
        "UPDATE metric SET launch_no = coalesce((SELECT max(launch.launch_no) FROM launch"
        " WHERE launch.run_id = metric.run_id), 0)"
    )
