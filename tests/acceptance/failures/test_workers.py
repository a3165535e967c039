"""``gradcanary up --workers 2``: one port, one answer, and no worker whose death is noticed by an agent."""

import os
import re
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from gradcanary import cli
from support import streams
from support.collectors import Collector
from support.server.metrics import samples

STREAM = streams.Stream(streams.collapsed(200, 6, (1,), 130))
WORKERS = ("--workers", "2")


@pytest.fixture
def start(postgres_server, tmp_path):
    started = []

    def make(*options):
        started.append(Collector(tmp_path, (*WORKERS, *options), db=postgres_server.create_store()))
        return started[-1].start()

    yield make
    for collector in started:
        collector.kill()


def workers_of(collector):
    pid = collector.process.pid
    return [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def runs(pid):
    return Path(f"/proc/{pid}").exists() and "State:\tZ" not in Path(f"/proc/{pid}/status").read_text()


def wait_until(is_true, what):
    until = time.monotonic() + 60
    while not is_true():
        assert time.monotonic() < until, what()
        time.sleep(0.05)


def ask(collector, path):
    """Ask on connections of their own, which both workers get."""
    with ThreadPoolExecutor(4) as pool:
        return list(pool.map(lambda _: collector.get(path), range(12)))


def test_one_port_and_one_answer_and_a_killed_worker_is_started_again(start, receiver_factory):
    receiver = receiver_factory()
    collector = start("--webhook", receiver.url)
    assert sum("listening on" in line for line in collector.output) == 1
    checks = collector.get("/readyz").json()["checks"]
    assert checks == dict.fromkeys(("database", "tables", "worker 1", "worker 2"), "ok")
    for path in ("/_dash-layout", "/_dash-dependencies"):
        assert len({answer.text for answer in ask(collector, path)}) == 1, path
    assets = {tuple(re.findall(r'(?:src|href)="([^"]+)"', answer.text)) for answer in ask(collector, "/")}
    assert len(assets) == 1, "what a page of one worker loads, the other one has"
    sessions = [streams.Session(collector.url, run=f"run-{number}", client=httpx.Client()) for number in range(4)]

    def again(post, *message):
        try:
            return post(*message).raise_for_status()
        except httpx.TransportError:  # as an agent does: a connection is lost with its worker
            time.sleep(0.1)
            return again(post, *message)

    def send(session):
        with session.client:
            again(session.put_hello, STREAM.hello())
            for seq, batch in enumerate(STREAM.batches(5)):
                again(session.post_batch, seq, batch)

    with ThreadPoolExecutor(4) as pool:
        sending = [pool.submit(send, session) for session in sessions]
        killed = workers_of(collector)[0]
        os.kill(killed, signal.SIGKILL)
        for each in sending:
            each.result(60)
    assert [collector.get(f"/api/v1/runs/run-{number}").json()["step"] for number in range(4)] == [199] * 4
    answer = collector.get("/readyz")
    assert answer.status_code == 200, "the worker that answers works, whatever the other one does"
    all_work = lambda: set(collector.get("/readyz").json()["checks"].values()) == {"ok"}  # noqa: E731
    wait_until(all_work, lambda: collector.get("/readyz").text)
    assert killed not in workers_of(collector)
    assert len(workers_of(collector)) == 2
    assert "ended (SIGKILL): it is started again" in "".join(collector.output)
    found = samples(collector)
    assert {key[-1] for key in found if key[0] == "process_cpu_seconds_total"} == {"1", "2"}
    stored = sum(value for key, value in found.items() if key[:2] == ("gradcanary_ingest_batches_total", "stored"))
    assert 1 <= stored <= 4 * 40, "those of a worker that was killed are gone with it"
    assert found["gradcanary_runs",] == 4
    receiver.wait(4)
    time.sleep(1.0)
    assert sorted(message.data["run"] for message in receiver.got) == [f"run-{number}" for number in range(4)]
    before = workers_of(collector)
    assert collector.stop() == 0
    assert not any(map(runs, before))


def test_workers_end_with_a_parent_that_is_killed(start):
    collector = start("--auth")
    assert sum("shown once" in line and "administer" in line for line in collector.output) == 1
    assert {answer.status_code for answer in ask(collector, "/api/v1/runs")} == {401}
    workers = workers_of(collector)
    os.kill(collector.process.pid, signal.SIGKILL)
    wait_until(lambda: not any(map(runs, workers)), lambda: workers)
    assert len(workers) == 2


def test_sqlite_has_one_process(capsys, tmp_path):
    assert cli.main(["up", "--port", "0", "--data", str(tmp_path), "--workers", "2"]) == 2
    said = capsys.readouterr().err
    assert said.startswith("gradcanary up: --workers 2 needs PostgreSQL: SQLite is one file")
    assert len(said.splitlines()) == 1
    assert list(tmp_path.iterdir()) == [], "nothing was made"
    with pytest.raises(SystemExit):
        cli.main(["up", "--workers", "0"])
    assert "'0' is not a number of processes: 1 to 64" in capsys.readouterr().err
