"""Batches and pages at the same time: who waits for whom. On SQLite, where one batch is stored at a time."""

import contextlib
import sqlite3
import time
from concurrent.futures import ThreadPoolExecutor, wait

import anyio.to_thread
import pytest
from fastapi.testclient import TestClient
from streams import Stream, healthy

from gradcanary import wire
from gradcanary_server import precedence
from gradcanary_server.app import create_app
from gradcanary_server.settings import Settings

STREAM = Stream(healthy(20, 3))
SESSIONS = ("/api/v1/runs/one/sessions/a", "/api/v1/runs/two/sessions/b")
HEADERS = {"content-type": "application/json"}


@pytest.fixture
def client(tmp_path):
    app = create_app(Settings.from_env({}, data=tmp_path))
    with TestClient(app, base_url="http://127.0.0.1", headers=HEADERS) as client:
        for path in SESSIONS:
            client.put(path, content=wire.dump(STREAM.hello())).raise_for_status()
        yield client


@contextlib.contextmanager
def two_batches_wait(client, data):
    """Hold SQLite's one writer, so that of two batches neither is stored until the block ends."""
    writer = sqlite3.connect(data / "gradcanary.db", isolation_level=None)
    writer.execute("BEGIN IMMEDIATE")
    with ThreadPoolExecutor(3) as pool:
        batch = wire.dump(STREAM.batch(0, 20, change_records=True))
        posted = [pool.submit(client.post, f"{path}/batches/0", content=batch) for path in SESSIONS]
        try:
            while client.app.state.precedence._batches < len(SESSIONS):
                time.sleep(0.01)
            yield pool
        finally:
            writer.execute("ROLLBACK")
            writer.close()
            assert [each.result(30).status_code for each in posted] == [200, 200]


def test_a_question_waits_while_a_batch_waits_for_another(client, tmp_path, monkeypatch):
    monkeypatch.setattr(precedence, "MOST_S", 60.0)
    with two_batches_wait(client, tmp_path) as pool:
        answer = pool.submit(client.get, "/api/v1/runs")
        assert not wait([answer], timeout=1).done
    assert {each["step"] for each in answer.result(30).json()["runs"]} != {None}, "it was answered before any batch"


def test_it_does_not_wait_for_ever(client, tmp_path, monkeypatch):
    monkeypatch.setattr(precedence, "MOST_S", 0.01)
    with two_batches_wait(client, tmp_path) as pool:
        assert pool.submit(client.get, "/api/v1/runs").result(30).status_code == 200


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
