"""What looks after a collector reads: /readyz, and /metrics as Prometheus understands them."""

import errno
import resource
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from anyio.to_thread import current_default_thread_limiter
from fastapi.testclient import TestClient
from prometheus_client import generate_latest
from prometheus_client.openmetrics import parser as openmetrics
from sqlalchemy import select, text

from gradcanary import wire
from gradcanary_server.api import operations
from gradcanary_server.app import create_app
from gradcanary_server.incidents import service, watchdog
from gradcanary_server.notify import endpoints
from gradcanary_server.ops import process as ops_process
from gradcanary_server.rules.config import Rules
from gradcanary_server.rules.types import Transition
from gradcanary_server.settings import Settings
from gradcanary_server.storage import runs
from gradcanary_server.storage.schema import incident
from support.server.asked import counted
from support.server.metrics import samples
from support.streams import Session, Stream, collapsed, healthy


@pytest.fixture(scope="module")
def served(new_store_url):
    app = create_app(Settings.from_env({}, data=Path("unused"), db=new_store_url()))
    with TestClient(app, base_url="http://localhost") as client:
        yield client


def send(client, run, rows, **hello):
    session = Session("", run=run, client=client)
    session.send(Stream(rows), **hello)
    return session


def test_healthz_is_answered_while_all_threads_wait(served):
    threads = served.portal.call(current_default_thread_limiter)
    many, threads.total_tokens = threads.total_tokens, 1
    served.portal.call(threads.acquire_on_behalf_of, served)
    try:
        with ThreadPoolExecutor(1) as pool:
            asked = pool.submit(served.get, "/healthz")
            try:
                assert asked.result(30).json() == {"status": "ok"}
            finally:
                served.portal.call(threads.release_on_behalf_of, served)
    finally:
        threads.total_tokens = many


def test_metrics_are_there_while_the_disk_is_not(served, monkeypatch):
    def fail(_folder):
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(shutil, "disk_usage", fail)
    found = samples(served)
    assert found["gradcanary_database_up",] == 1
    assert found["gradcanary_store_bytes",] > 100_000
    assert ("gradcanary_store_free_bytes",) not in found


def test_metrics_of_runs_and_rules(served):
    before = samples(served)
    assert before["gradcanary_database_up",] == 1
    loops = {key[1] for key in before if key[0] == "gradcanary_loop_lag_seconds"}
    assert loops - {"checkpointer", "nodes"} == {"compactor", "dispatcher", "watchdog"}, (
        "SQLite and Citus have one more"
    )
    sick = send(served, "sick", collapsed(200, 8, (0, 2, 4), 120))
    send(served, "well", healthy(10, 4))
    done = send(served, "done", collapsed(200, 8, (3,), 120))
    done.end()
    found = samples(served)
    assert found["gradcanary_run_state", "sick", "live"] == 1
    assert found["gradcanary_run_step", "sick"] == 199
    assert 0 <= found["gradcanary_run_step_age_seconds", "well"] < 300
    assert found["gradcanary_firing_layers", "true", "collapse", "sick", "critical"] == 3
    assert not [key for key in found if "well" in key and key[0] == "gradcanary_firing_layers"]
    assert not [key for key in found if "done" in key], "a run that ended has no series"
    assert [found["gradcanary_open_incidents", each] for each in ("information", "warning", "critical")] == [0, 0, 1]
    assert found["gradcanary_runs",] == 3
    assert found["gradcanary_store_bytes",] > 100_000
    has_disk = served.app.state.services.database.has_one_writer
    assert (found.get(("gradcanary_store_free_bytes",), 0) > 0) is has_disk, "PostgreSQL's disk is its server's"
    assert found["process_resident_memory_bytes",] > 1e6

    def rise(*key):
        return found[key] - before.get(key, 0)

    assert rise("gradcanary_ingest_batches_total", "stored") == 9
    assert rise("gradcanary_ingest_points_total") == 2 * 200 * (8 * 3 + 1) + 10 * (4 * 3 + 1)
    assert rise("gradcanary_ingest_seconds_count") == 9
    assert sick.post_batch(3, Stream(collapsed(200, 8, (0, 2, 4), 120)).batch(192, 200)).json()["status"] == "duplicate"
    assert sick.post_batch(9, b"{}").status_code == 422
    served.patch("/api/v1/runs/sick", json={"archived": True}).raise_for_status()
    found = samples(served)
    assert not [key for key in found if "sick" in key], "nor has one in the archive"
    assert rise("gradcanary_ingest_batches_total", "duplicate") == 1
    assert rise("gradcanary_ingest_batches_total", "refused") == 1


def test_a_run_that_crashed_is_there_for_an_hour_or_until_it_starts_again(served):
    crash = wire.Crash("ValueError", "no", (), None, None)
    for name in ("again", "long_ago", "crashed"):
        send(served, name, healthy(10, 4)).post("/end", wire.End("crashed", 9, "ValueError", crash)).raise_for_status()
    Session("", run="again", session="two", client=served).send(Stream(healthy(10, 4), first_step=10), launch="two")
    with served.app.state.services.database.write() as connection:
        connection.execute(text("UPDATE run SET last_seen = last_seen - 3601 WHERE name = 'long_ago'"))
    states = {key[1:] for key in samples(served) if key[0] == "gradcanary_run_state"}
    assert {("crashed", "crashed"), ("again", "live")} <= states
    assert {name for name, state in states if state == "crashed"} == {"crashed"}


def test_endpoints_that_fail_are_counted_until_they_succeed_or_are_deleted(served):
    def failing():
        return samples(served)["gradcanary_endpoints_failing",]

    assert failing() == 0
    made = served.post("/api/v1/endpoints", json={"url": "https://hook.example/"}).json()
    with served.app.state.services.database.write() as connection:
        endpoints.record_failure(connection, made["id"], 1.0, "500", permanent=False)
    assert failing() == 1
    with served.app.state.services.database.write() as connection:
        endpoints.record_success(connection, made["id"], 2.0)
    assert failing() == 0
    with served.app.state.services.database.write() as connection:
        endpoints.record_failure(connection, made["id"], 3.0, "410", permanent=True)
    assert failing() == 1, "disabled by failures"
    served.patch(f"/api/v1/endpoints/{made['id']}", json={"enabled": True}).raise_for_status()
    served.patch(f"/api/v1/endpoints/{made['id']}", json={"enabled": False}).raise_for_status()
    assert failing() == 0, "disabled by a person"


def test_a_rule_that_recovered_is_at_zero_and_one_of_the_whole_run_at_one(served):
    rows = healthy(400, 8)
    rows[100:200, 2] = 1e-7
    recovered = send(served, "recovered", rows)
    fell = healthy(300, 8)
    fell[150:] *= 1e-3
    send(served, "fell", fell)
    found = {key[2:]: value for key, value in samples(served).items() if key[0] == "gradcanary_firing_layers"}
    assert found["collapse", "recovered", "critical"] == 0
    assert {value for (rule, run, _), value in found.items() if (rule, run) == ("scale_drop", "fell")} == {1}
    assert recovered.end().status_code == 200


def test_metrics_are_openmetrics_for_who_asks_for_it(served):
    asked = {"Accept": "application/openmetrics-text;version=1.0.0,text/plain;q=0.5"}
    scraped = served.get("/metrics", headers=asked)
    assert scraped.headers["content-type"].startswith("application/openmetrics-text; version=1.0.0")
    names = [family.name for family in openmetrics.text_string_to_metric_families(scraped.text)]
    assert "gradcanary_ingest_batches" in names


def test_ready_says_what_is_not(served):
    answer = served.get("/readyz")
    parts = ("database", "tables", *(loop.name for loop in served.app.state.services.loops))
    assert {"dispatcher", "compactor", "watchdog"} <= {*parts}
    working = dict.fromkeys(parts, "ok")
    assert (answer.status_code, answer.json()) == (200, {"status": "ready", "checks": working})
    with served.app.state.services.database.write() as connection:
        [newest] = connection.scalars(text("SELECT version_num FROM alembic_version"))
        connection.execute(text("UPDATE alembic_version SET version_num = '9999'"))
    served.app.state.services.watchdog.stop()
    answer = served.get("/readyz")
    assert (answer.status_code, answer.headers["retry-after"], answer.json()["status"]) == (503, "2", "not ready")
    said = answer.json()["checks"]
    assert said["tables"] == f"They are of revision 9999, this collector works with {newest}."
    assert said["watchdog"].startswith("It does not run")
    assert {key: said[key] for key in ("database", "dispatcher", "compactor")} == dict.fromkeys(
        ("database", "dispatcher", "compactor"), "ok"
    )
    with served.app.state.services.database.write() as connection:
        connection.execute(text("UPDATE alembic_version SET version_num = :newest"), {"newest": newest})
    served.app.state.services.watchdog.start()
    assert served.get("/readyz").status_code == 200


def test_a_collector_may_have_more_open_than_a_shell_gives_it(tmp_path):
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    given = ["bash", "-c", 'ulimit -Sn 300; exec "$@"', "up", sys.executable, "-m", "gradcanary.cli", "up"]
    with subprocess.Popen([*given, "--port", "0", "--data", tmp_path], stdout=subprocess.PIPE, text=True) as process:
        assert any("listening on" in line for line in process.stdout)
        soft, hard = resource.prlimit(process.pid, resource.RLIMIT_NOFILE)
        process.terminate()
    assert (soft, hard) == (min(most, ops_process.OPEN_FILES), most)


def test_a_scrape_reads_the_newest_incident_of_each_rule_only(archive):
    """A run of many restarts opens the same rule again and again, and a scrape comes each quarter of a minute."""

    def rows(incidents):
        archive.clear()
        archive.ingest.hello("run", "s", wire.dump(Stream(healthy(5, 4)).hello()))
        with archive.database.write() as connection:
            run_id = runs.get_run(connection, "run").run_id
            for number in range(incidents):
                begun = Transition(3, "silent", None, "fired", "critical", 3)
                service.record_transitions(connection, run_id, 1, [begun], 1e9 * number)
                watchdog.close_absence(connection, run_id, "silent", "resumed", 1e9 * number + 1)
            assert len(connection.scalars(select(incident.c.run_id)).all()) == incidents
        registry = operations.create_registry(archive.database, Rules(), ())
        with counted(archive.database) as asked:
            found = generate_latest(registry).decode()
        assert 'gradcanary_firing_layers{notify="true",rule="silent",run="run",severity="critical"} 0.0' in found
        return asked.rows

    assert rows(9) == rows(1)
