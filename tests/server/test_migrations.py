"""The migrations make the tables that schema.py describes, once, and refuse a newer database."""

import json
import random
import signal
import stat

import pytest
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from effort import EFFORT
from frail import Frail, die, mortal
from sqlalchemy import MetaData, func, insert, inspect, select, text
from sqlalchemy.exc import DBAPIError

from gradcanary_server.database import Database
from gradcanary_server.errors import StoreError
from gradcanary_server.layer_sets import KnownSets
from gradcanary_server.observations import LayerFacts
from gradcanary_server.revisions import newest_revision
from gradcanary_server.schema import endpoint, fold_state, launch, layer_set, metadata, metric, session

OF_THE_OLDER_VERSION = {
    "run (run_id, name, created, last_seen, revision, low, note, tags, archived, facts)": (
        "(1, 'run', 0, 0, 1, 0, '', '[]', false, '[]')"
    ),
    "launch (run_id, launch_no, launch, world_size, late)": (
        "(1, 1, 'x', 2, false), (1, 2, 'x', 2, false), (1, 3, 'x', 2, false)"
    ),
    "session (run_id, session, launch_no, rank, started, interval_s, hello, layer_sets, next_seq, sealed_seq,"
    " last_seen, dropped_steps, gaps)": (
        "(1, 'a', 1, 0, 10, 1, '{}', '{}', 0, 0, 0, 0, ''), (1, 'b', 1, 1, 11, 1, '{}', '{}', 0, 0, 0, 0, ''),"
        " (1, 'c', 2, 0, 20, 1, '{}', '{}', 0, 0, 0, 0, '')"
    ),
    "metric (run_id, series, name, tags, last_step)": "(1, '1', 'loss', '', 0)",
}
"""A run of three launches, of which the last one has no session."""


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
        return connection.execute(select(func.count()).select_from(fold_state)).scalar_one()

    with database.read() as reading:
        assert count(reading) == 0
        with database.write() as writing:
            writing.execute(insert(fold_state).values(run_id=1, packed=b"\0"))
            assert count(reading) == 0
        assert count(reading) == 0
    with database.read() as reading:
        assert count(reading) == 1


def test_a_reader_cannot_write(postgres_server):
    database = Database(postgres_server.create_database())
    database.migrate()
    with pytest.raises(DBAPIError, match="read-only"), database.read() as connection:
        connection.execute(insert(fold_state).values(run_id=1, packed=b"\0"))
    database.close()


def test_a_commit_is_on_disk_before_it_is_told(database):
    durable = {
        # 1: SQLite flushes at its checkpoints, the collector after each transaction (test_wal.py)
        "sqlite": {"PRAGMA journal_mode": "wal", "PRAGMA synchronous": 1, "PRAGMA foreign_keys": 1},
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


POINTS = 91
"""Statements, and both sides of the commit, of the upgrade from that version."""


def fill_older(database):
    """Make the tables of an older version, with a run in them."""
    to_head = command.upgrade
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(command, "upgrade", lambda config, _: to_head(config, "0002"))
        database.migrate()
    with database.write() as connection:
        for table, rows in OF_THE_OLDER_VERSION.items():
            connection.execute(text(f"INSERT INTO {table} VALUES {rows}"))


def shape(database):
    """Return the version that a database says to have, and its tables with their columns."""
    with database.read() as connection:
        found = inspect(connection)
        columns = {name: [column["name"] for column in found.get_columns(name)] for name in found.get_table_names()}
        return connection.execute(text("SELECT version_num FROM alembic_version")).scalar_one(), columns


def test_killed_at_any_moment_an_upgrade_is_done_or_not_begun(empty_url):
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    rng, database = random.Random(seed), Frail(empty_url)
    fill_older(database)
    before = shape(database)
    kills = 0
    while kills < 40 * EFFORT and shape(database) == before:  # until one comes after the commit
        database.close()
        point, instant = rng.choice([(rng.randint(1, POINTS), None), (None, rng.uniform(0.001, 0.03))])

        def kill(point=point, instant=instant):
            database.break_at(point, die) if point else signal.setitimer(signal.ITIMER_REAL, instant)

        kills += not mortal(lambda tell: database.migrate() or tell(1), kill)
    print(f"killed {kills} times")
    assert (found := shape(database)) == before or found[0] == newest_revision(), "it stopped in the middle"
    database.migrate()
    with database.read() as connection:
        context = MigrationContext.configure(connection, opts={"compare_server_default": True})
        assert compare_metadata(context, metadata) == []
        assert connection.execute(select(func.count()).select_from(launch)).scalar_one() == 3
        assert connection.execute(select(func.count()).select_from(session)).scalar_one() == 3
    database.close()


def test_launches_of_an_older_version_are_in_the_order_in_which_they_came(database):
    fill_older(database)
    database.migrate()
    with database.read() as connection:
        began = connection.execute(select(launch.c.launch_no, launch.c.started).order_by(launch.c.launch_no)).all()
        assert began == [(1, 10.0), (2, 20.0), (3, 0.0)]
        assert connection.execute(select(metric.c.launch_no)).all() == [(3,)]
        drawn = connection.execute(select(session.c.session, session.c.draws).order_by(session.c.session)).all()
        assert drawn == [("a", True), ("b", False), ("c", True)], "the first rank of each launch"
    with database.write() as connection:
        its = {"run_id": 1, "session": "d", "launch_no": 1, "rank": 1, "interval_s": 15.0, "hello": "{}"}
        connection.execute(insert(session).values(**its, layer_sets="{}", started=0.0, last_seen=0.0))
        draws = connection.execute(select(session.c.draws).where(session.c.session == "d")).scalar_one()
        assert draws is False, "a session is drawn only where somebody says so"


def described(dtype, *names):
    """Return what a set says of its layers, as the rules know them."""
    return [LayerFacts(number, name, (8,), dtype, "Linear", 0) for number, name in names]


def test_layer_sets_of_an_older_version_say_what_they_said(database, monkeypatch):
    to_head = command.upgrade
    monkeypatch.setattr(command, "upgrade", lambda config, _: to_head(config, "0011"))
    database.migrate()
    anew = [{"id": "x", "layers": [[0, "a", [8], "float32", "Linear", 0]]}]
    told = [
        ("first", 1, {"layer_sets": anew, "rank": 0}, {"x": [0], "y": [0, 1]}, None),
        ("second", 2, {}, {"y": [0, 1]}, None),
        ("shards", 3, {}, {"z": [1, 0]}, {"z": [3, 4]}),
        ("nothing", 3, {"rank": 1, "layer_sets": []}, {}, {}),
    ]
    zero = dict.fromkeys(("rank", "started", "interval_s", "last_seen", "next_seq", "sealed_seq", "dropped_steps"), 0)
    with database.write() as connection:
        for table in ("run", "launch"):
            (columns,) = (each for each in OF_THE_OLDER_VERSION if each.startswith(f"{table} "))
            connection.execute(text(f"INSERT INTO {columns} VALUES {OF_THE_OLDER_VERSION[columns]}"))
        older = MetaData()
        older.reflect(connection, only=["layer", "session"])
        of_layer = {"run_id": 1, "shape": "[8]", "param_dtype": "bfloat16", "module_class": "Linear", "group_no": 0}
        named = [{**of_layer, "layer_no": number, "name": name} for number, name in enumerate("ab")]
        connection.execute(insert(older.tables["layer"]), named)
        for name, launch_no, hello, sets, numels in told:
            row = {"run_id": 1, "session": name, "launch_no": launch_no, "gaps": "[]", "draws": True, **zero}
            row |= {"hello": json.dumps(hello), "layer_sets": json.dumps(sets)}
            row |= {"local_numels": None if numels is None else json.dumps(numels)}
            connection.execute(insert(older.tables["session"]).values(row))
    monkeypatch.undo()
    database.migrate()
    sets = KnownSets()
    with database.read() as connection:
        for name, set_id, facts in (
            ("first", "x", described("float32", (0, "a"))),
            ("first", "y", described("bfloat16", (0, "a"), (1, "b"))),
            ("second", "y", described("bfloat16", (0, "a"), (1, "b"))),
            ("shards", "z", described("bfloat16", (1, "b"), (0, "a"))),
        ):
            assert list(sets.find(connection, 1, name, set_id).facts) == facts
        assert sets.find(connection, 1, "shards", "z").numel.tolist() == [3, 4]
        assert connection.execute(select(func.count()).select_from(layer_set)).scalar_one() == 3
        told = connection.execute(select(session.c.session, session.c.hello, session.c.sends_shards)).all()
    assert {row.session: (json.loads(row.hello), row.sends_shards) for row in told} == {
        "first": ({"layer_sets": [], "rank": 0}, False),
        "second": ({}, False),
        "shards": ({}, True),
        "nothing": ({"layer_sets": [], "rank": 1}, True),
    }


def test_endpoints_of_an_older_version_are_the_operators(database, monkeypatch):
    to_head = command.upgrade
    monkeypatch.setattr(command, "upgrade", lambda config, _: to_head(config, "0008"))
    database.migrate()
    rows = {
        "http://a/": ("NULL", "NULL"),
        "http://b/": ("5", "'--webhook did not name it at the last start'"),
        "http://c/": ("6", "'answered 410'"),
    }
    with database.write() as connection:
        for url, (disabled, why) in rows.items():
            columns = "endpoint (url, secret, min_severity, created, disabled, disabled_why)"
            values = f"('{url}', 'whsec_x', 'warning', 1, {disabled}, {why})"
            connection.execute(text(f"INSERT INTO {columns} VALUES {values}"))
    monkeypatch.undo()
    database.migrate()
    with database.read() as connection:
        found = connection.execute(select(endpoint).order_by(endpoint.c.endpoint_id)).all()
    assert [(row.url, row.kind, row.origin, row.name) for row in found] == [
        (url, "webhook", "operator", "") for url in rows
    ]
    assert [row.disabled_by for row in found] == [None, "operator", "failures"]
