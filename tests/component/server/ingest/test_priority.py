"""Batches and pages at the same time: who waits for whom. On SQLite one batch is stored at a time."""

import contextlib
import sqlite3
from concurrent.futures import ThreadPoolExecutor, wait

import anyio.to_thread
import pytest
from fastapi.testclient import TestClient
from sqlalchemy import create_engine, text

from gradcanary import wire
from gradcanary_server.app import create_app
from gradcanary_server.ingest import admission
from gradcanary_server.settings import Settings
from support.streams import Stream, healthy
from support.waiting import eventually

STREAM = Stream(healthy(20, 3))
SESSIONS = [f"/api/v1/runs/{run}/sessions/s" for run in ("one", "two", "three", "four")]
HEADERS = {"content-type": "application/json"}


@contextlib.contextmanager
def serving(settings):
    with TestClient(create_app(settings), base_url="http://127.0.0.1", headers=HEADERS) as client:
        for path in SESSIONS:
            client.put(path, content=wire.dump(STREAM.hello())).raise_for_status()
        yield client


@pytest.fixture
def client(tmp_path):
    with serving(Settings.from_env({}, data=tmp_path)) as client:
        yield client


@contextlib.contextmanager
def written_by_another(data):
    """Hold SQLite's one writer."""
    with contextlib.closing(sqlite3.connect(data / "gradcanary.db", isolation_level=None)) as writer:
        writer.execute("BEGIN IMMEDIATE")
        yield
        writer.execute("ROLLBACK")


@contextlib.contextmanager
def runs_held_by_another(url):
    """Hold the rows of all runs in PostgreSQL."""
    engine = create_engine(url)
    with engine.begin() as connection:
        for run_id in connection.scalars(text("SELECT run_id FROM run")).all():  # Citus locks one node at a time
            connection.execute(text("SELECT 1 FROM run WHERE run_id = :run_id FOR UPDATE"), {"run_id": run_id}).one()
        yield
    engine.dispose()


@contextlib.contextmanager
def batches_wait(client, held, count=2):
    """None of so many batches is stored until the block ends."""
    with ThreadPoolExecutor(count + 1) as pool:
        with held:
            batch = wire.dump(STREAM.batch(0, 20, change_records=True))
            posted = [pool.submit(client.post, f"{path}/batches/0", content=batch) for path in SESSIONS[:count]]
            eventually(lambda: client.app.state.services.priority._batches >= count)
            yield pool
        assert [each.result(30).status_code for each in posted] == [200] * count


def test_a_question_waits_while_a_batch_waits_for_another(client, tmp_path, monkeypatch):
    monkeypatch.setattr(admission, "MAX_WAIT_S", 60.0)
    with batches_wait(client, written_by_another(tmp_path)) as pool:
        answer = pool.submit(client.get, "/api/v1/runs")
        assert not wait([answer], timeout=1).done
    assert {each["step"] for each in answer.result(30).json()["runs"]} != {None}, "it was answered before any batch"


@pytest.mark.parametrize(("path", "status"), [("incidents", 200), ("incidents/1", 404)])
def test_a_question_about_incidents_waits_too(client, tmp_path, monkeypatch, path, status):
    monkeypatch.setattr(admission, "MAX_WAIT_S", 60.0)
    with batches_wait(client, written_by_another(tmp_path)) as pool:
        answer = pool.submit(client.get, f"/api/v1/{path}")
        assert not wait([answer], timeout=1).done
    assert answer.result(30).status_code == status


def test_page_does_not_wait_for_ever(client, tmp_path, monkeypatch):
    monkeypatch.setattr(admission, "MAX_WAIT_S", 0.01)
    with batches_wait(client, written_by_another(tmp_path)) as pool:
        assert pool.submit(client.get, "/api/v1/runs").result(30).status_code == 200


def test_postgresql_question_waits_for_no_batch_while_few_are_stored(postgres_server, tmp_path, monkeypatch):
    monkeypatch.setattr(admission, "MAX_WAIT_S", 60.0)
    db = postgres_server.create_store()
    with (
        serving(Settings.from_env({}, data=tmp_path, db=db)) as client,
        batches_wait(client, runs_held_by_another(db), client.app.state.services.priority.max_batches - 1) as pool,
    ):
        assert pool.submit(client.get, "/api/v1/runs").result(30).status_code == 200


def test_postgresql_question_waits_while_many_batches_are_stored(postgres_server, tmp_path, monkeypatch):
    monkeypatch.setattr(admission, "MAX_WAIT_S", 60.0)
    db = postgres_server.create_store()
    with serving(Settings.from_env({}, data=tmp_path, db=db)) as client:
        with batches_wait(client, runs_held_by_another(db), client.app.state.services.priority.max_batches) as pool:
            answer = pool.submit(client.get, "/api/v1/runs")
            assert not wait([answer], timeout=1).done
        assert answer.result(30).status_code == 200


def test_a_batch_does_not_wait_for_a_thread_behind_questions(client):
    async def busy():
        """Take all threads in which questions are answered."""
        threads = anyio.to_thread.current_default_thread_limiter()
        holders = [object() for _ in range(int(threads.available_tokens))]
        for each in holders:
            threads.acquire_on_behalf_of_nowait(each)
        return threads, holders

    async def free(threads, holders):
        for each in holders:
            threads.release_on_behalf_of(each)

    threads, holders = client.portal.call(busy)
    with ThreadPoolExecutor(1) as pool:
        batch = wire.dump(STREAM.batch(0, 20, change_records=True))
        posted = pool.submit(client.post, f"{SESSIONS[0]}/batches/0", content=batch)
        try:
            assert posted.result(30).json()["status"] == "stored"
        finally:
            client.portal.call(free, threads, holders)
