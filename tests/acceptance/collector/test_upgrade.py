"""A store of an older revision: a collector upgrades it as it starts, and all answers stay the same; of a newer one it
takes nothing. The older tables are made by the migrations alone, with what trainings left in a collector of today."""

import os
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import httpx
import pytest
from sqlalchemy import text

from gradcanary import __version__
from gradcanary_server.storage.database import Database
from gradcanary_server.storage.maintenance import head_revision, revision
from support import warm
from support.collectors import Collector
from support.server import older_stores
from support.streams import Session, Stream, collapsed, falling_loss, healthy
from support.waiting import eventually

STREAM = Stream(collapsed(600, 8, (3,), 300), falling_loss(600))
SECRET = {"GRADCANARY_WEBHOOK_SECRET": "whsec_QUJDREVGR0hJSktMTU5PUFFSU1RVVldYWVowMTIzNDU="}
RUN = "/api/v1/runs/run-1"
OF_RUN = ("", "/layers", "/layers/3", "/metrics?points=500", "/series?layer=3&points=500", "/heatmap", "/export.csv")
OTHERS = ("runs", "incidents", "incidents/1", "silences", "rules", "endpoints", "endpoints/1/deliveries", "audit")
PATHS = (*(RUN + path for path in OF_RUN), RUN + "/metrics.csv", *(f"/api/v1/{path}" for path in OTHERS))
NEWER = "was written by a newer gradcanary (9.0.0; here is {here}) and is left as it is: install that version or"


@pytest.fixture
def receiver(receiver_factory):
    return receiver_factory()


@pytest.fixture
def start(tmp_path, receiver):
    """Start a collector on a store that is there."""
    started = []

    def start(db, port=0):
        folder = tmp_path / f"collector-{len(started)}"
        collector = Collector(folder, ("--webhook", receiver.url), SECRET, db)
        collector.port = port
        started.append(collector)
        return collector.start()

    yield start
    for collector in started:
        collector.kill()


def fill(collector, receiver):
    """Let a training collapse and end, and an operator acknowledge and silence; wait until the message is sent."""
    session = Session(collector.url)
    session.send(STREAM)
    receiver.wait(1)
    api = f"{collector.url}/api/v1"
    httpx.post(f"{api}/incidents/1/ack", json={"by": "ada", "note": "seen"}).raise_for_status()
    session.end(last_step=599).raise_for_status()
    until = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() + 3600))
    wish = {"run": "another", "until": until, "by": "ada"}
    httpx.post(f"{api}/silences", json=wish).raise_for_status()
    shown = f"{api}/incidents/1"
    eventually(lambda: {each["state"] for each in httpx.get(shown).json()["deliveries"]} == {"delivered"})


def told(collector):
    """Return all answers of the API about a store in which no training runs."""
    found = {path: httpx.get(collector.url + path, timeout=30) for path in PATHS}
    assert {path: answer.status_code for path, answer in found.items()} == dict.fromkeys(PATHS, 200)
    return {path: answer.text for path, answer in found.items()}


def revision_of(url):
    with closing(Database(url)) as database, database.read() as connection:
        return revision(connection)


@pytest.mark.parametrize("older", older_stores.REVISIONS)
def test_an_older_store_is_upgraded_by_a_start_and_answers_the_same(start, receiver, new_store_url, empty_url, older):
    first = start(new_store_url())
    fill(first, receiver)
    before = told(first)
    first.stop()
    older_stores.lay(empty_url, older, first.store_url)
    assert revision_of(empty_url) == older
    upgraded = start(empty_url, first.port)  # the port is in the addresses of incidents
    assert told(upgraded) == before
    count = len(receiver.got)
    Session(upgraded.url, run="run-2").send(STREAM)
    receiver.wait(count + 1)
    assert receiver.got[-1].data["run"] == "run-2"
    upgraded.stop()
    assert revision_of(empty_url) == head_revision()


def test_of_two_collectors_that_start_at_once_one_upgrades(start, receiver, postgres_server):
    first = start(postgres_server.create_store())
    fill(first, receiver)
    before = told(first)
    first.stop()
    older = postgres_server.create_database()
    older_stores.lay(older, older_stores.REVISIONS[-1], first.store_url)
    with ThreadPoolExecutor(2) as both:
        one, other = both.map(start, [older, older])
    assert revision_of(older) == head_revision()
    for collector in (one, other):
        answers = told(collector)
        assert {path: answers[path].replace(collector.url, first.url) for path in PATHS} == before
    Session(other.url, run="run-2").send(Stream(healthy(100, 4)))
    assert one.get("/api/v1/runs/run-2").json()["step"] == 99


@pytest.mark.parametrize("command", [("up", "--port", "0"), ("migrate",)], ids=lambda words: words[0])
def test_a_newer_store_is_refused_in_a_line_and_left_as_it_is(start, receiver, new_store_url, dialect, command):
    collector = start(new_store_url())
    fill(collector, receiver)
    collector.stop()
    with closing(Database(collector.store_url)) as database, database.write() as connection:
        connection.execute(text("ALTER TABLE run ADD COLUMN colour VARCHAR(10)"))
        connection.execute(text("UPDATE collector_heartbeat SET version = '9.0.0'"))
        connection.execute(text("UPDATE alembic_version SET version_num = '9999'"))
    before = older_stores.contents(collector.store_url)
    file = Path(collector.store_url.removeprefix("sqlite:///"))
    stored = file.read_bytes() if dialect == "sqlite" else None
    ended = warm.run(warm.COLLECTOR, ["-m", "gradcanary.cli", *command, "--db", collector.store_url], os.environ)
    assert (ended.returncode, ended.stdout) == (2, "")
    [line] = ended.stderr.splitlines()
    assert line.startswith(f"gradcanary {command[0]}: The database " + NEWER.format(here=__version__))
    assert stored is None or file.read_bytes() == stored
    assert older_stores.contents(collector.store_url) == before
