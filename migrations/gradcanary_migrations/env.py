"""How Alembic reaches the tables: on the connection, inside the transaction, that the caller holds."""

from alembic import context

from gradcanary_server.storage.schema import metadata

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=metadata,
    compare_server_default=True,
    # SQLite cannot alter most of a table in place: Alembic copies it.
    render_as_batch=True,
)
with context.begin_transaction():
    context.run_migrations()
