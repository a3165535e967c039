"""The migrations make the tables that schema.py describes, once, and refuse a newer database."""

import hashlib
import itertools
import random
import signal
import stat

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.operations import Operations
from alembic.script import ScriptDirectory
from sqlalchemy import create_mock_engine, func, insert, inspect, select, text

from gradcanary_server.errors import StoreError, StoreUnavailable
from gradcanary_server.storage.database import Database
from gradcanary_server.storage.maintenance import alembic_config, head_revision, revision
from gradcanary_server.storage.schema import metadata, rule_state
from support.effort import EFFORT
from support.server import older_stores, stores
from support.server.frail import Frail, die, mortal


@pytest.fixture
def database(empty_url):
    opened = Database(empty_url)
    yield opened
    opened.close()


def test_models_and_migrations_agree(database):
    database.migrate()
    with database.read() as connection:
        context = MigrationContext.configure(connection, opts={"compare_server_default": True})
        assert compare_metadata(context, metadata) == []


FROZEN = {
    ("0001", "sqlite"): "6ab19ab7158164e27882e58ae2e5a108f70a280d26ffaf29b60a63827acdb55a",
    ("0001", "postgresql"): "5bdb106ad2a73fea7a423b6f2304f25a3f9a1a02767d142e9f9b97681541ca19",
}
"""Digests of the statements of released migrations. Stores have their tables: a change is a migration of its own."""


@pytest.mark.parametrize(("released", "name"), FROZEN)
def test_a_released_migration_is_never_edited(released, name):
    statements = []
    engine = create_mock_engine(f"{name}://", lambda statement, *_, **__: statements.append(statement))
    with Operations.context(MigrationContext.configure(engine)):
        ScriptDirectory.from_config(alembic_config()).get_revision(released).module.upgrade()
    plain = [" ".join(str(each.compile(dialect=engine.dialect)).split()) for each in statements]
    assert hashlib.sha256("\n".join(plain).encode()).hexdigest() == FROZEN[released, name], plain


def test_migrating_twice_changes_nothing(database):
    database.migrate()
    with database.write() as connection:
        connection.execute(insert(rule_state).values(run_id=1, packed=b"state"))
    before = shape(database)
    database.migrate()
    assert shape(database) == before
    with database.read() as connection:
        assert connection.execute(select(rule_state.c.packed)).scalars().all() == [b"state"]


def test_a_database_of_a_newer_version_is_refused(database):
    database.migrate()
    with database.write() as connection:
        connection.execute(text("UPDATE alembic_version SET version_num = '9999'"))
    with pytest.raises(StoreError, match=r"newer gradcanary \(Can't locate revision identified by '9999'; here is "):
        database.migrate()
    with database.write() as connection:
        connection.execute(text("DROP TABLE collector_heartbeat"))  # a newer version may have
    with pytest.raises(StoreError, match=r"newer gradcanary \(Can't locate"):
        database.migrate()


def test_a_migration_that_fails_leaves_nothing(database):
    with database.write() as connection:
        connection.execute(text("CREATE TABLE run (nonsense INTEGER)"))
    with pytest.raises(StoreError, match="cannot be migrated"):
        database.migrate()
    with database.read() as connection:
        assert inspect(connection).get_table_names() == ["run"]


def test_only_the_owner_may_read_the_file_of_sqlite(tmp_path):
    database = Database(f"sqlite:///{tmp_path / 'new' / 'gradcanary.db'}")
    database.migrate()
    database.close()
    for path in (tmp_path / "new").iterdir():
        assert stat.S_IMODE(path.stat().st_mode) == 0o600, path


def test_readers_see_one_moment_and_do_not_wait(database):
    database.migrate()

    def count(connection):
        return connection.execute(select(func.count()).select_from(rule_state)).scalar_one()

    with database.read() as reading:
        assert count(reading) == 0
        with database.write() as writing:
            writing.execute(insert(rule_state).values(run_id=1, packed=b"\0"))
            assert count(reading) == 0
        assert count(reading) == 0
    with database.read() as reading:
        assert count(reading) == 1


def test_a_reader_cannot_write(postgres_server):
    database = Database(postgres_server.create_database())
    database.migrate()
    with pytest.raises(StoreUnavailable, match="read-only"), database.read() as connection:
        connection.execute(insert(rule_state).values(run_id=1, packed=b"\0"))
    database.close()


def test_a_commit_is_on_disk_before_it_is_told(database):
    durable = {
        # 2: FULL, SQLite flushes its log at each commit
        "sqlite": {"PRAGMA journal_mode": "wal", "PRAGMA synchronous": 2, "PRAGMA foreign_keys": 1},
        "postgresql": {"SHOW synchronous_commit": "on"},  # the server of the tests has it off
    }
    with database.write() as connection:
        for question, answer in durable[connection.dialect.name].items():
            assert connection.execute(text(question)).scalar_one() == answer


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("sqlite:///:memory:", "name a file"),
        ("sqlite://", "name a file"),
        ("mysql://localhost/x", "SQLite and PostgreSQL"),
        ("postgresql+asyncpg://localhost/x", "SQLite and PostgreSQL"),
        ("nonsense", "not a database URL"),
        ("sqlite:////proc/nowhere/x.db", "choose a folder"),
    ],
)
def test_a_store_that_cannot_be_opened(url, words):
    with pytest.raises(StoreError, match=words):
        Database(url)


POINTS = 60
"""Statements, and both sides of the commit, of the first migration."""


def shape(database):
    """Return the version that a database says to have, and its tables with their columns."""
    with database.read() as connection:
        found = inspect(connection)
        columns = {name: [column["name"] for column in found.get_columns(name)] for name in found.get_table_names()}
        return (revision(connection), columns)


def test_killed_at_any_moment_an_upgrade_is_done_or_not_begun(empty_url):
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    rng, database = random.Random(seed), Frail(empty_url)
    before = shape(database)
    kills = 0
    while kills < 40 * EFFORT and shape(database) == before:  # until one comes after the commit
        database.close()
        point, instant = rng.choice([(rng.randint(1, POINTS), None), (None, rng.uniform(0.001, 0.03))])

        def kill(point=point, instant=instant):
            database.break_at(point, die) if point else signal.setitimer(signal.ITIMER_REAL, instant)

        kills += not mortal(lambda tell: (database.migrate(), tell(1)), kill)
    print(f"killed {kills} times")
    assert (found := shape(database)) == before or found[0] == head_revision(), "it stopped in the middle"
    database.migrate()
    with database.read() as connection:
        context = MigrationContext.configure(connection, opts={"compare_server_default": True})
        assert compare_metadata(context, metadata) == []
    database.close()


@pytest.mark.parametrize("older", older_stores.REVISIONS)
def test_killed_at_each_statement_of_an_upgrade_the_next_start_upgrades(new_store_url, empty_url, older):
    source = new_store_url()
    stores.Store(source).database.close()
    older_stores.lay(empty_url, older, source)
    rows = older_stores.contents(empty_url)
    assert rows["run"]
    assert len(rows["layer"]) == 300
    for point in itertools.count(1):
        database = Frail(empty_url)
        has_survived = mortal(
            lambda tell, database=database: (database.migrate(), tell(1)),
            lambda database=database, point=point: database.break_at(point, die),
        )
        now = older_stores.contents(empty_url)
        assert now.pop("alembic_version")[0]["version_num"] in (older, head_revision())
        assert now == {name: rows[name] for name in now}
        if has_survived:
            break
        database.close()
    print(f"killed {point - 1} times")
    assert shape(database)[0] == head_revision()
    database.close()
