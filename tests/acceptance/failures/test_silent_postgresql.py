"""A PostgreSQL that neither answers nor refuses: whoever asks hears so in time, and nothing that may be long is cut."""

import contextlib
import re
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest
from sqlalchemy import select

from gradcanary.export.transport import TIMEOUT_S
from gradcanary_server.auth.token_cache import TokenCache
from gradcanary_server.errors import StoreUnavailable
from gradcanary_server.storage import postgresql
from gradcanary_server.storage.database import Database
from gradcanary_server.storage.postgresql import PING_S
from gradcanary_server.storage.schema import run
from support import streams
from support.collectors import Collector
from support.server.muffle import Muffle
from support.waiting import eventually

STREAM = streams.Stream(streams.healthy(40, 6), streams.falling_loss(40))

CLIENTS = 60
"""More than a collector has threads."""

LOCKED = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"


@pytest.fixture
def db(postgres_server):
    return postgres_server.create_store()


@pytest.fixture
def muffle(postgres_server):
    with contextlib.closing(Muffle(postgres_server.port)) as muffle:
        yield muffle


@pytest.fixture
def database(db):
    with contextlib.closing(Database(db)) as database:
        yield database


@pytest.fixture
def collector(tmp_path, db, postgres_server, muffle):
    through = db.replace(f":{postgres_server.port}/", f":{muffle.port}/")
    collector = Collector(tmp_path, ("--auth",), db=through)
    yield collector.start()
    collector.kill()


@pytest.fixture
def client(collector):
    """Return many agents at once: each gives up as one does, and has a token."""
    (token,) = re.findall(r"gc_admin_\S+", "".join(collector.output))
    limits = httpx.Limits(max_connections=None, keepalive_expiry=1.0)  # uvicorn closes after 5 s, maybe at a request
    with httpx.Client(headers={"Authorization": f"Bearer {token}"}, timeout=TIMEOUT_S, limits=limits) as client:
        yield client


def asked_to_come_back(answer):
    assert answer.status_code == 503, answer.text
    assert answer.json()["error"]["code"] == "unavailable"
    return int(answer.headers["retry-after"]) >= 1


def test_many_who_ask_a_silent_server_are_told_to_come_back(collector, client, muffle, database):
    free, held = (streams.Session(collector.url, run=name, client=client) for name in ("free", "held"))
    for session in (free, held):
        session.put_hello(STREAM.hello()).raise_for_status()
    for seq, is_cut in enumerate((False, True)):
        batch = STREAM.batch(10 * seq, 10 * seq + 10)

        def ask(number, seq=seq, batch=batch):
            return client.get(f"{collector.url}/api/v1/runs") if number % 2 else free.post_batch(seq, batch)

        with ThreadPoolExecutor(CLIENTS + 1) as pool, database.write() as connection:
            connection.execute(select(run).where(run.c.name == "held").with_for_update())
            amid = pool.submit(held.post_batch, seq, batch)  # has asked when the server falls silent
            eventually(lambda: waits_for_a_row(database))
            muffle.fall_silent(cut=is_cut)
            asked = [pool.submit(ask, number) for number in range(CLIENTS)]
            assert client.get(f"{collector.url}/healthz").status_code == 200
            assert all(asked_to_come_back(each.result()) for each in [*asked, amid])
            assert all(map(asked_to_come_back, pool.map(ask, range(CLIENTS))))
        muffle.heal()
        for session in (free, held):
            told = eventually(lambda session=session, seq=seq, batch=batch: taken(session.post_batch(seq, batch)))
            assert told in ("stored", "duplicate")
            assert session.post_batch(seq, batch).json()["status"] == "duplicate"
    muffle.lose()
    assert client.get(f"{collector.url}/api/v1/runs").status_code == 200, "by new connections"
    assert "Traceback" not in "".join(collector.output)


def waits_for_a_row(database):
    with database.read() as connection:
        return connection.exec_driver_sql(LOCKED).scalar_one() == 1


def taken(answer):
    """Return what became of a batch, None where it has to come again."""
    return None if answer.status_code == 503 else answer.raise_for_status().json()["status"]


def test_work_takes_its_time_while_the_server_answers(database):
    with database.write() as connection:
        connection.exec_driver_sql(f"SELECT pg_sleep({PING_S + 0.5})")
        assert connection.execute(select(run)).all() == []


def test_an_answer_that_was_lost_is_not_waited_for_but_where_a_store_is_prepared(database, monkeypatch):
    monkeypatch.setattr(postgresql, "LOST_S", PING_S + 0.2)
    with pytest.raises(StoreUnavailable), database.write() as connection:
        connection.exec_driver_sql("SELECT pg_sleep(29)")
    with database.setup_transaction() as connection:
        connection.exec_driver_sql(f"SELECT pg_sleep({PING_S + 0.7})")


@pytest.fixture
def through(db, postgres_server, muffle):
    """A store that can fall silent."""
    with contextlib.closing(Database(db.replace(f":{postgres_server.port}/", f":{muffle.port}/"))) as database:
        yield database


def test_a_moment_of_silence_cuts_nothing_after_it(through, muffle):
    with through.write() as held:
        muffle.fall_silent(cut=False)
        with pytest.raises(StoreUnavailable), through.read():
            pass
        muffle.heal()
        assert held.exec_driver_sql("SELECT 1").scalar_one() == 1
        with through.read():
            pass


def test_waiting_requests_share_one_token_failure(database, monkeypatch):
    reads = Counter()
    read = database.read

    def counted():
        reads["tokens"] += 1
        return read()

    askers = 6
    ring, gate = TokenCache(database), threading.Barrier(askers)

    def look(_):
        gate.wait()
        with pytest.raises(StoreUnavailable) as refused:
            ring.load("gc_read_x")
        return refused.value.message

    arrived_at = ring.now()
    with contextlib.ExitStack() as taken:
        for _ in range(20):
            taken.enter_context(database.read())
        monkeypatch.setattr(database, "read", counted)
        with ThreadPoolExecutor(askers) as pool:
            assert set(pool.map(look, range(askers))) == {"Every database connection is in use."}
    asked = reads["tokens"]
    assert asked < askers
    with pytest.raises(StoreUnavailable):
        ring.load("gc_read_x", arrived_at)  # got no thread until now
    assert reads["tokens"] == asked
    assert ring.load("gc_read_x") is None
