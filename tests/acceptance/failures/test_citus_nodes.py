"""A node of a Citus cluster that does not answer, on a stand-in for Citus: other runs are served."""

import contextlib
import os
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest

from gradcanary_server.api.ingest import NODE_THREADS, STORE_THREADS
from gradcanary_server.ops.commands import migrate_command
from support import streams
from support.citus import STAND_IN
from support.collectors import Collector
from support.waiting import eventually

pytestmark = pytest.mark.skipif("CITUS_URL" in os.environ, reason="on a cluster: support.server.citus_outage")

STREAM = streams.Stream(streams.collapsed(400, 4, (1,), 150), streams.falling_loss(400))

NODES = """
INSERT INTO pg_dist_node (nodeid, groupid, nodeport) VALUES (1, 0, 6500), (2, 1, 6501), (3, 2, 6502);
INSERT INTO pg_dist_placement VALUES (1, 1), (2, 2);
"""
SHARDS = "INSERT INTO pg_dist_shard VALUES ('run', 1, '-1'), ('run', 2, '2147483647')"
OF_NODE = "SELECT name FROM run_name WHERE hashint8(run_id) >= 0"
"""The runs of the node at port 6502."""


@pytest.fixture
def db(postgres_server):
    address = postgres_server.create_store()
    name = address.rpartition("/")[2]
    postgres_server.execute(STAND_IN + NODES, name)
    migrate_command(address, with_citus=True)
    postgres_server.execute(SHARDS, name)
    return address


@pytest.fixture
def silence(postgres_server, db):
    """Let the node at port 6502 not answer while the block lasts."""

    @contextlib.contextmanager
    def silence():
        postgres_server.execute("INSERT INTO silent VALUES (6502)", db.rpartition("/")[2])
        yield
        postgres_server.execute("DELETE FROM silent", db.rpartition("/")[2])

    return silence


@pytest.fixture
def collector(tmp_path, db):
    collector = Collector(tmp_path, db=db)
    yield collector.start()
    collector.kill()


def begin(collector, number):
    session = streams.Session(collector.url, run=f"run-{number}")
    session.put_hello(STREAM.hello()).raise_for_status()
    for seq in range(5):
        session.post_batch(seq, STREAM.batch(60 * seq, 60 * seq + 60)).raise_for_status()
    return session


def runs_of_node(db):
    with psycopg.connect(db) as connection:
        return {name for (name,) in connection.execute(OF_NODE)}


def listed(answer):
    return {run["run"] for run in answer.raise_for_status().json()["runs"]}


def missing(collector):
    answer = collector.get("/readyz")
    assert answer.status_code == 200, answer.text
    said = answer.json()["checks"]["nodes"]
    return None if said == "ok" else said


def test_the_runs_of_the_other_nodes_are_served(collector, db, silence):
    sessions = {f"run-{number}": begin(collector, number) for number in range(8)}
    while not 0 < len(runs_of_node(db)) < len(sessions):  # where a run lies is chance
        sessions[f"run-{len(sessions)}"] = begin(collector, len(sessions))
    lost = runs_of_node(db)
    incidents = collector.get("/api/v1/incidents").json()["incidents"]
    assert {incident["run"] for incident in incidents} == sessions.keys()
    with silence():
        said = eventually(lambda: missing(collector))
        assert said == f"node 127.0.0.1:6502 does not answer: {len(lost)} runs"
        for name, session in sessions.items():
            answers = [session.post_batch(5, STREAM.batch(300, 400)), collector.get(f"/api/v1/runs/{name}")]
            answers += [collector.get(f"/api/v1/incidents/{each['id']}") for each in incidents if each["run"] == name]
            assert {answer.status_code for answer in answers} == {503 if name in lost else 200}
            assert all(said in answer.text for answer in answers if name in lost)
        answer = collector.get("/api/v1/runs")
        assert listed(answer) == sessions.keys() - lost
        assert answer.headers["gradcanary-missing"] == said
        of_others = collector.get("/api/v1/incidents").json()["incidents"]
        assert {incident["run"] for incident in of_others} == sessions.keys() - lost
        assert collector.get("/api/v1/storage").status_code == collector.get("/metrics").status_code == 200
        new = {f"new-{number}" for number in range(8)}
        for name in new:
            streams.Session(collector.url, run=name).put_hello(STREAM.hello()).raise_for_status()
        assert listed(collector.get("/api/v1/runs")) == sessions.keys() - lost | new
        assert runs_of_node(db) == lost, "no run begins there"
    eventually(lambda: missing(collector) is None)
    answer = collector.get("/api/v1/runs")
    assert listed(answer) == sessions.keys() | new
    assert "gradcanary-missing" not in answer.headers
    for name in lost:
        sessions[name].post_batch(5, STREAM.batch(300, 400)).raise_for_status()
    assert "Traceback" not in "".join(collector.output)


HELD = "SELECT 1 FROM run WHERE hashint8(run_id) >= 0 FOR UPDATE"
"""What a batch for a run of the node at port 6502 waits for, as for a node that hangs."""


def test_a_node_that_hangs_leaves_threads_to_the_runs_of_others(collector, db):
    sessions = {}
    while len(lost := runs_of_node(db)) < STORE_THREADS + 4 or lost == sessions.keys():
        name = f"run-{len(sessions)}"
        sessions[name] = streams.Session(collector.url, run=name)
        sessions[name].put_hello(STREAM.hello()).raise_for_status()
    served = next(session for name, session in sessions.items() if name not in lost)
    with ThreadPoolExecutor(len(lost)) as threads, psycopg.connect(db) as connection:
        connection.execute(HELD)
        waiting = [threads.submit(sessions[name].post_batch, 0, STREAM.batch(0, 60)) for name in lost]
        eventually(lambda: count_waiting(connection) == NODE_THREADS)
        served.post_batch(0, STREAM.batch(0, 60)).raise_for_status()
        assert not any(each.done() for each in waiting), "the other run did not wait for one of them"
        connection.rollback()
        for each in waiting:
            each.result().raise_for_status()


def count_waiting(connection):
    """Return the number of statements that wait for a lock of this transaction."""
    waits = "SELECT count(*) FROM pg_locks WHERE NOT granted"
    return connection.execute(waits).fetchone()[0]
