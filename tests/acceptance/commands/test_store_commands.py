"""``gradcanary backup``, a copy that a collector can start from, taken while one works; and ``gradcanary migrate``."""

import re
import shlex
import sqlite3
import stat
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import pytest
from sqlalchemy import BigInteger, UniqueConstraint, select, text

from gradcanary_server.storage import maintenance, runs
from gradcanary_server.storage.database import Database
from gradcanary_server.storage.schema import (
    HEAVY,
    attempt,
    delivery,
    incident,
    incident_layer,
    metadata,
    run,
    run_name,
)
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
        assert "upgrade this one, or use another database" in error


def test_rows_of_a_run_can_lie_on_one_node():
    """The conditions of Citus for tables that are distributed by run_id, and for the others."""
    of_runs = {table for table in metadata.tables.values() if "run_id" in table.c and table is not run_name}
    assert of_runs >= {*HEAVY, incident, incident_layer, delivery, attempt}
    for table in of_runs:
        unique = [constraint.columns for constraint in table.constraints if isinstance(constraint, UniqueConstraint)]
        unique += [index.columns for index in table.indexes if index.unique]
        for columns in unique:
            assert "run_id" in columns, f"{table} is unique over all nodes only where run_id is in {columns}"
        assert table.primary_key.columns.keys()[0] == "run_id", f"rows of a run lie together in {table}"
        assert isinstance(table.c.run_id.type, BigInteger), "rows of a run are on one node by equal types"
        assert table.c.run_id.autoincrement is not True
    for table in metadata.tables.values():
        for constraint in table.foreign_key_constraints:
            is_of_run = "run_id" in constraint.column_keys
            assert is_of_run == (table in of_runs) == (constraint.referred_table in of_runs), (
                f"{constraint.name} of {table} leads to rows on another node"
            )


def test_measurements_have_no_foreign_keys():
    """They are distributed today, and the other tables are not."""
    for table in metadata.tables.values():
        assert table not in HEAVY or not table.foreign_keys
        assert all(constraint.referred_table not in HEAVY for constraint in table.foreign_key_constraints)


def test_citus_is_asked_for_what_it_has_to_do(typed, postgres_server, tmp_path):
    """On a stand-in with the names and types of Citus' own functions: Citus is no package that tests can have."""
    url = postgres_server.create_store()
    name = url.rpartition("/")[2]
    assert "goes with --db postgresql" in typed("migrate", "--citus", "--data", tmp_path)[2]
    status, _, error = typed("migrate", "--citus", "--db", url)
    assert (status, "This database has no Citus" in error) == (2, True)
    postgres_server.execute(STAND_IN, name)
    status, said, _ = typed("migrate", "--citus", "--db", url)
    assert (status, said.split("; ")[1]) == (0, "spread over the cluster: batch, stream, tile, rule_state, metric\n")
    assert typed("migrate", "--citus", "--db", url)[1].endswith(
        "spread over the cluster: nothing that was not before\n"
    )
    database = Database(url)
    with database.read() as connection:
        asked = connection.execute(
            text("SELECT logicalrelid::regclass::text, partkey, beside FROM pg_dist_partition")
        ).all()
    database.close()
    others = [(table.name, "run_id", "batch") for table in HEAVY[1:]]
    assert asked == [("batch", "run_id", "none"), *others]


STAND_IN = """
CREATE TABLE pg_dist_partition (logicalrelid regclass, partkey text, beside text);
GRANT SELECT ON pg_dist_partition TO PUBLIC;
CREATE FUNCTION create_distributed_table(table_name regclass, distribution_column text,
    distribution_type text DEFAULT 'hash', colocate_with text DEFAULT 'default', shard_count int DEFAULT NULL)
    RETURNS void LANGUAGE sql SECURITY DEFINER AS 'INSERT INTO pg_dist_partition VALUES ($1, $2, $4)';
SET allow_system_table_mods = on;
INSERT INTO pg_extension SELECT 9999, 'citus', extowner, extnamespace, false, '13.0-1' FROM pg_extension LIMIT 1;
"""
