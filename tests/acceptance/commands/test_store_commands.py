"""``gradcanary backup``, a copy that a collector can start from, taken while one works; and ``gradcanary migrate``."""

import re
import shlex
import sqlite3
import stat
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import pytest
from sqlalchemy import select, text

from gradcanary_server.storage import citus, maintenance, runs
from gradcanary_server.storage.database import Database
from gradcanary_server.storage.schema import run
from support.citus import STAND_IN
from support.collectors import Collector
from support.streams import Session, Stream, collapsed, healthy
from support.waiting import eventually


@pytest.fixture
def typed(typed):
    def run(*words):
        with ThreadPoolExecutor(1) as thread:  # Playwright, once used, keeps an event loop in the main one
            return thread.submit(typed, *words).result()

    return run


def told(collector):
    """Everything that a page would ask for, but what depends on the moment."""
    answers = {path: collector.get(f"/api/v1{path}").json() for path in ("/runs/run-1", "/incidents")}
    answers["/runs/run-1"] |= {"state": "", "sessions": []}
    series = collector.get("/api/v1/runs/run-1/series", layer=3, points=50).json()
    return answers, series


def test_a_copy_is_of_one_moment_and_starts_a_collector(typed, collector, tmp_path):
    Session(collector.url).send(Stream(collapsed(600, 8, (3,), 300)))
    before = told(collector)
    stop, sent = threading.Event(), []

    def train():
        session, stream = Session(collector.url, run="meanwhile"), Stream(healthy(2000, 4))
        session.put_hello(stream.hello()).raise_for_status()
        for seq, batch in enumerate(stream.batches(2)):
            session.post_batch(seq, batch).raise_for_status()
            sent.append(seq)
            if stop.is_set():
                return

    thread = threading.Thread(target=train)
    thread.start()
    try:
        eventually(lambda: sent)
        copy = tmp_path / "copy.db"
        status, said, _ = typed("backup", copy, "--data", collector.data)
    finally:
        stop.set()
        thread.join()
    assert (status, said.startswith(f"{copy} holds 2 runs in ")) == (0, True)
    assert stat.S_IMODE(copy.stat().st_mode) == 0o600
    assert [each.name for each in tmp_path.iterdir() if "copy" in each.name] == ["copy.db"]
    collector.stop()
    folder = tmp_path / "restored"
    folder.mkdir()
    copy.rename(folder / "gradcanary.db")
    restored = Collector(folder)
    restored.port = collector.port  # it is in the addresses of incidents
    restored.start()
    try:
        assert told(restored) == before
        assert restored.get("/api/v1/runs/meanwhile").json()["step"] <= 2 * sent[-1] + 1
        agent = Session(restored.url, run="meanwhile")
        assert agent.post_batch(10_000, Stream(healthy(2, 4), first_step=5000).batch(0, 2)).json()["status"] == "stored"
    finally:
        restored.kill()


def test_failed_backup_is_reported_and_leaves_nothing(typed, tmp_path):
    folder, copy = tmp_path / "data", tmp_path / "copy.db"
    status, said, error = typed("backup", copy, "--data", folder)
    assert (status, said, folder.exists()) == (2, "", False)
    assert f"There is no store at {folder / 'gradcanary.db'}: name the collector's folder" in error
    assert typed("migrate", "--data", folder)[0] == 0
    for nonsense in ("nonsense", "postgresql://user:secret@here:port/name"):
        assert "--db is not a database URL" in typed("backup", copy, "--db", nonsense)[2]
    assert "cannot be written (No such file or directory)" in typed("backup", folder / "no" / "x", "--data", folder)[2]
    assert "is there already" in typed("backup", folder / "gradcanary.db", "--data", folder)[2]
    with closing(sqlite3.connect(folder / "gradcanary.db")) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        size = connection.execute("PRAGMA page_size").fetchone()[0]
    with (folder / "gradcanary.db").open("r+b") as file:
        file.seek(6 * size)
        file.write(b"\xff" * 4 * size)
    error = typed("backup", copy, "--data", folder)[2]
    assert "damaged" in error or "malformed" in error
    assert sorted(each.name for each in tmp_path.iterdir()) == ["data"]


def test_backup_of_postgresql_shows_a_command_that_works(typed, postgres_server, tmp_path):
    url, target, file = postgres_server.create_store(), postgres_server.create_database(), tmp_path / "copy"
    database = Database(url)
    with database.write() as connection:
        runs.create_run(connection, "kept", 0.0, {})
    database.close()
    status, said, error = typed("backup", file, "--db", url)
    assert (status, said, "password" in error) == (2, "", False)
    dump = shlex.split(next(line for line in error.splitlines() if line.startswith("    pg_dump")))
    restore = ["pg_restore", "--no-owner", f"--dbname={target}", str(file)]
    assert dump[-1] == f"postgresql://{url.partition('//')[2].partition(':')[0]}@{url.partition('@')[2]}"
    for program, *words in ([*dump[:-1], url], restore):
        postgres_server.run(program, *words)
    restored = Database(target)
    before, now = restored.migrate()
    assert before == now
    with restored.read() as connection:
        assert connection.scalar(select(run.c.name)) == "kept"
    restored.close()


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("postgres://user@here/name", "postgresql://user@here/name"),
        ("postgresql+psycopg://user:se%40c:r@here:5432/name", "postgresql://user@here:5432/name"),
        ("postgresql://here/name?password=secret&sslmode=require", "postgresql://here/name?sslmode=require"),
        ("postgresql://u@here/name?sslmode=require&sslpassword=secret", "postgresql://u@here/name?sslmode=require"),
        ("postgresql:///name?host=/run/one", "postgresql:///name?host=/run/one"),
        ("sqlite:////srv/a:b@c.db", "/srv/a:b@c.db"),
    ],
)
def test_a_store_is_shown_without_its_password(url, shown):
    assert maintenance.display_address(url) == shown


def test_migrate_says_what_the_tables_were_and_are(typed, tmp_path, collector):
    status, said, _ = typed("migrate", "--data", tmp_path / "new")
    assert status == 0
    newest = re.fullmatch(r"the tables are of revision (\d{4}), and were of none\n", said)[1]
    assert typed("migrate", "--data", tmp_path / "new")[1] == f"the tables are of revision {newest}\n"
    assert "belongs to another collector that runs" in typed("migrate", "--data", collector.data)[2]
    with closing(sqlite3.connect(tmp_path / "new" / "gradcanary.db")) as connection, connection:
        connection.execute("UPDATE alembic_version SET version_num = '9999'")
    for command in ("migrate", "up"):
        status, said, error = typed(command, "--data", tmp_path / "new", *(["--port", "0"] if command == "up" else []))
        assert (status, said) == (2, "")
        assert "was written by a newer gradcanary" in error
        assert "install that version or a later one here, or use a backup" in error


def test_citus_is_asked_for_what_it_has_to_do(typed, postgres_server, tmp_path):
    """On a stand-in with the names and types of Citus' own functions: Citus is no package that tests can have."""
    url = postgres_server.create_store()
    name = url.rpartition("/")[2]
    assert "goes with --db postgresql" in typed("migrate", "--citus", "--data", tmp_path)[2]
    status, _, error = typed("migrate", "--citus", "--db", url)
    assert (status, "This database has no Citus" in error) == (2, True)
    postgres_server.execute(STAND_IN, name)
    status, _, error = typed("migrate", "--citus", "--db", url)
    assert (status, "Citus does not know the address of this server" in error) == (2, True)
    postgres_server.execute("INSERT INTO pg_dist_node VALUES (1, 0, 'on'), (2, 1, 'off')", name)
    status, _, error = typed("migrate", "--citus", "--db", url)
    assert (status, "Node 2 of the cluster has synchronous_commit = off" in error) == (2, True)
    postgres_server.execute("UPDATE pg_dist_node SET setting = 'on'", name)
    status, said, _ = typed("migrate", "--citus", "--db", url)
    assert (status, said.split("; ")[1]) == (
        0,
        f"spread over the cluster: {', '.join(table.name for table in citus.DISTRIBUTED)}\n",
    )
    assert typed("migrate", "--citus", "--db", url)[1].endswith(
        "spread over the cluster: nothing that was not before\n"
    )
    database = Database(url)
    with database.read() as connection:
        asked = dict(
            connection.execute(text("SELECT logicalrelid::regclass::text, beside FROM pg_dist_partition")).all()
        )
        emptied = set(connection.scalars(text("SELECT name::text FROM emptied")))
        told = set(connection.scalars(text("SELECT command FROM told")))
    database.close()
    of_runs = [table.name for table in citus.DISTRIBUTED]
    beside = {"run": "none", **dict.fromkeys(of_runs[1:], "run")}
    assert asked == beside | dict.fromkeys([*(table.name for table in citus.KEPT), "alembic_version"], "kept")
    assert emptied == set(of_runs), "what lay on the coordinator before would be read by nobody"
    assert told == {
        f"ALTER DATABASE {name} SET lock_timeout = '5s'",
        f"ALTER DATABASE {name} SET statement_timeout = '30s'",
        f"ALTER DATABASE {name} SET idle_in_transaction_session_timeout = '60s'",
        f"ALTER DATABASE {name} SET citus.node_connection_timeout = '2s'",
        f"ALTER DATABASE {name} SET citus.max_adaptive_executor_pool_size = '1'",
    }
