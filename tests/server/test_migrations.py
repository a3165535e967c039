"""The migrations make the tables that schema.py describes, once, and refuse a newer database."""

import stat

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import text

from gradcanary_server.database import Database
from gradcanary_server.errors import StoreError
from gradcanary_server.schema import metadata


@pytest.fixture
def database(tmp_path):
    opened = Database(f"sqlite:///{tmp_path / 'new' / 'gradcanary.db'}")
    yield opened
    opened.close()


def test_models_and_migrations_agree(database):
    database.migrate()
    with database.read() as connection:
        context = MigrationContext.configure(connection, opts={"compare_server_default": True})
        assert compare_metadata(context, metadata) == []


def test_migrating_twice_changes_nothing(database):
    database.migrate()
    database.migrate()


def test_a_database_of_a_newer_version_is_refused(database):
    database.migrate()
    with database.write() as connection:
        connection.execute(text("UPDATE alembic_version SET version_num = '9999'"))
    with pytest.raises(StoreError, match="newer gradcanary"):
        database.migrate()


def test_a_migration_that_fails_leaves_nothing(database):
    with database.write() as connection:
        connection.execute(text("CREATE TABLE run (nonsense INTEGER)"))
    with pytest.raises(StoreError, match="cannot be migrated"):
        database.migrate()
    with database.read() as connection:
        tables = connection.execute(text("SELECT name FROM sqlite_master WHERE type = 'table'")).scalars().all()
    assert tables == ["run"]


def test_only_the_owner_may_read_the_file(database, tmp_path):
    database.migrate()
    for path in (tmp_path / "new").iterdir():
        assert stat.S_IMODE(path.stat().st_mode) == 0o600, path


def test_a_commit_is_on_disk_and_readers_do_not_wait(database):
    database.migrate()
    with database.write() as writing:
        writing.execute(text("INSERT INTO fold_state (run_id, packed) VALUES (1, x'00')"))
        with database.read() as reading:
            assert reading.execute(text("SELECT count(*) FROM fold_state")).scalar_one() == 0
            for pragma, value in (("journal_mode", "wal"), ("synchronous", 2), ("foreign_keys", 1)):
                assert reading.execute(text(f"PRAGMA {pragma}")).scalar_one() == value
    with database.read() as reading:
        assert reading.execute(text("SELECT count(*) FROM fold_state")).scalar_one() == 1


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("sqlite:///:memory:", "name a file"),
        ("sqlite://", "name a file"),
        ("postgresql://localhost/x", "SQLite only"),
        ("nonsense", "not a database URL"),
        ("sqlite:////proc/nowhere/x.db", "choose a folder"),
    ],
)
def test_a_store_that_cannot_be_opened(url, words):
    with pytest.raises(StoreError, match=words):
        Database(url)
