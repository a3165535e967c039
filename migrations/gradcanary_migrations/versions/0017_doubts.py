"""Messages of which nobody knows whether they arrived: their sender was killed, or heard no answer."""

import sqlalchemy as sa
from alembic import op

revision = "0017"
down_revision = "0016"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the column; what was being sent when its sender ended may have arrived when it was sealed."""
    op.add_column("delivery", sa.Column("unsure", sa.Double(), nullable=True))
    delivery = sa.table("delivery", *(sa.column(name) for name in ("unsure", "sealed", "lease_until", "state")))
    under_way = (delivery.c.lease_until.is_not(None), delivery.c.state != "delivered")
    op.execute(delivery.update().where(*under_way).values(unsure=delivery.c.sealed))
