"""A damaged file, a disk that is full or read-only, a clock that jumps: what a collector on SQLite says and keeps."""

import os
from contextlib import contextmanager

import httpx
import pytest
from fastapi.testclient import TestClient
from sqlalchemy import event

from gradcanary import wire
from gradcanary_server.app import create_app
from gradcanary_server.settings import Settings
from support import PROGRAMS, streams, warm
from support.collectors import Collector
from support.programs import ill_disk
from support.server.archives import RUN
from support.server.disks import limited
from support.server.outages import asked_to_come_back
from support.waiting import eventually

STREAM = streams.Stream(streams.healthy(4000, 40), streams.falling_loss(4000))
PAGE = 4096
UNPRIVILEGED = str(PROGRAMS / "unprivileged.py")


@pytest.fixture
def app(tmp_path):
    return create_app(Settings.from_env({}, data=tmp_path))


@pytest.fixture
def client(app):
    with opened(app) as client:
        yield client


def opened(app):
    headers = {"Content-Type": "application/json"}
    return TestClient(app, base_url="http://localhost", headers=headers, raise_server_exceptions=False)


def path(rest=""):
    return f"/api/v1/runs/{RUN}/sessions/s{rest}"


def post(client, seq, begin, end):
    return client.post(path(f"/batches/{seq}"), content=wire.dump(STREAM.batch(begin, end)))


def fill(folder):
    """Leave a store with some hundred pages, as a collector that was stopped does."""
    with opened(create_app(Settings.from_env({}, data=folder))) as client:
        client.put(path(), content=wire.dump(STREAM.hello())).raise_for_status()
        for seq in range(10):
            post(client, seq, seq * 64, seq * 64 + 64).raise_for_status()
    return folder / "gradcanary.db"


@pytest.mark.parametrize(("where", "what"), [(0, b"no database"), (20 * PAGE, b"\xff" * PAGE)], ids=["header", "page"])
def test_a_damaged_file_is_named_and_left_as_it_is(tmp_path, where, what):
    file = fill(tmp_path)
    with file.open("r+b") as damaging:
        damaging.seek(where)
        damaging.write(what)
    before = file.read_bytes()
    ended = warm.run(warm.COLLECTOR, ["-m", "gradcanary.cli", "up", "--port", "0", "--data", str(tmp_path)], os.environ)
    assert ended.returncode == 2
    assert ended.stdout == ""
    assert len(ended.stderr.splitlines()) == 1
    assert f"{file} is damaged" in ended.stderr
    assert file.read_bytes() == before
    assert {each.name for each in tmp_path.iterdir()} <= {file.name, f"{file.name}.lock"}


@pytest.mark.parametrize("there", ["nothing", "a store", "a store that is read-only"])
def test_a_folder_that_is_read_only_is_named_and_left_as_it_is(tmp_path, there):
    folder = tmp_path / "data"
    folder.mkdir()
    if there != "nothing":
        fill(folder)
    if there == "a store that is read-only":
        (folder / "gradcanary.db").chmod(0o400)
    else:
        folder.chmod(0o500)
    before = {each.name: each.read_bytes() for each in folder.iterdir()}
    words = [UNPRIVILEGED, "up", "--port", "0", "--data", str(folder)]
    ended = warm.run(warm.COLLECTOR, words, os.environ)
    folder.chmod(0o700)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert len(ended.stderr.splitlines()) == 1
    assert f"{folder / 'gradcanary.db'} cannot be created or written (" in ended.stderr
    assert ended.stderr.endswith("choose a folder of yours with --data DIR.\n")
    assert {each.name: each.read_bytes() for each in folder.iterdir()} == before


def test_damage_at_run_time_is_reported_in_a_sentence(app, client, tmp_path, caplog):
    client.put(path(), content=wire.dump(STREAM.hello())).raise_for_status()
    post(client, 0, 0, 64).raise_for_status()
    with said_of_connections(app, "PRAGMA query_only = ON", "PRAGMA query_only = OFF"):
        assert "read-only" in asked_to_come_back(post(client, 1, 64, 128))
        assert client.get("/api/v1/runs").status_code == 200
    assert post(client, 1, 64, 128).json()["status"] == "stored"

    def is_refused():
        with (tmp_path / "gradcanary.db").open("r+b") as file:
            app.state.services.database.close()  # the next connection reads the file again
            file.write(b"no database")
        return post(client, 2, 128, 192).status_code == 503

    eventually(is_refused)  # a loop that had a connection then keeps the log, and so what was written over
    assert "damaged" in asked_to_come_back(post(client, 2, 128, 192))
    assert "damaged" in asked_to_come_back(client.get("/api/v1/runs"))
    assert client.get("/healthz").status_code == 200
    assert "Traceback" not in caplog.text


@contextmanager
def said_of_connections(app, before, after):
    """Let every connection begin with a statement, and undo it."""
    engine = app.state.services.database._engine
    for statement in (before, after):
        app.state.services.database.close()

        def say(connection, _record, statement=statement):
            connection.execute(statement)

        event.listen(engine, "connect", say)
        if statement == before:
            yield
        event.remove(engine, "connect", say)
    app.state.services.database.close()


def test_a_full_disk_is_503_keeps_what_was_taken_and_heals(client, tmp_path):
    client.put(path(), content=wire.dump(STREAM.hello())).raise_for_status()
    seq = 0
    room = 300 * PAGE  # no file may grow over it
    with limited(room):
        while (answer := post(client, seq, seq * 64, seq * 64 + 64)).status_code == 200:
            seq += 1
            assert seq * 64 < len(STREAM.absmax), "it was never full"
        assert "full" in asked_to_come_back(answer)
        assert client.get("/api/v1/runs").json()["runs"][0]["step"] == seq * 64 - 1
        assert "full" in asked_to_come_back(post(client, seq, seq * 64, seq * 64 + 64))
    assert seq > 0
    assert post(client, seq, seq * 64, seq * 64 + 64).json()["status"] == "stored"
    for earlier in range(seq):
        assert post(client, earlier, earlier * 64, earlier * 64 + 64).json()["status"] == "duplicate"
    samples = client.get(f"/api/v1/runs/{RUN}/export.csv").text
    assert len(samples.splitlines()) == 1 + (seq + 1) * 64


@pytest.fixture
def ill(tmp_path):
    """A collector on a disk that does what a file says."""
    collector = Collector(tmp_path / "data", env={ill_disk.WORD: str(tmp_path / "disk")})
    collector.program = (ill_disk.__file__,)
    yield collector.start()
    collector.kill()


def asking(collector):
    return httpx.Client(base_url=collector.url, headers={"Content-Type": "application/json"}, timeout=60)


@pytest.mark.parametrize("order", ["fail", "lose"])
def test_a_disk_that_fails_or_loses_heals_without_a_restart(ill, tmp_path, order):
    disk = tmp_path / "disk"
    with asking(ill) as client:
        client.put(path(), content=wire.dump(STREAM.hello())).raise_for_status()
        post(client, 0, 0, 64).raise_for_status()
        disk.write_text(order)
        assert "failed to keep" in asked_to_come_back(post(client, 1, 64, 128))
        assert "failed to keep" in client.get("/readyz").json()["checks"]["database"]
        assert "gradcanary_database_up 0.0" in client.get("/metrics").text
        disk.unlink()
        eventually(lambda: post(client, 1, 64, 128).status_code == 200)
        assert client.get("/readyz").json()["checks"]["database"] == "ok"
        post(client, 2, 128, 192).raise_for_status()
    ill.kill()
    with asking(ill.start()) as client:
        answers = [post(client, seq, seq * 64, seq * 64 + 64).json()["status"] for seq in range(4)]
    assert answers == ["duplicate", "duplicate", "duplicate", "stored"]
