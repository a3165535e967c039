"""SIGTERM: what is under way is finished, what cannot be is given back, and both are said."""

import json
import signal
import socket
import threading
import time

import pytest
from sqlalchemy import select

from gradcanary import wire
from gradcanary_server.storage.database import Database
from gradcanary_server.storage.schema import attempt, delivery
from support.receivers import hang, status
from support.streams import Session, Stream, collapsed, healthy

RULES = """\
version: 1
pace: {wait_s: 0.1}
"""


@pytest.fixture
def telling(collector_factory, receiver_factory, tmp_path):
    """Start a collector that is just telling a receiver of a collapse, which answers so."""

    def start(answer):
        receiver = receiver_factory(answer)
        (tmp_path / "rules.yaml").write_text(RULES)
        words = ("--webhook", receiver.url, "--rules", str(tmp_path / "rules.yaml"))
        collector = collector_factory(*words, env={"GRADCANARY_LOG": "json"})
        Session(collector.url).send(Stream(collapsed(170, 4, (1,), 130)))
        receiver.wait(1)
        return collector

    return start


def told(collector):
    """The JSON lines that the collector has written."""
    return [json.loads(line) for line in list(collector.output) if line.startswith("{")]


def wait_for_words(collector, words):
    until = time.monotonic() + 60
    while not any(each["message"].startswith(words) for each in told(collector)):
        assert time.monotonic() < until, collector.output
        time.sleep(0.02)


def left_behind(collector):
    """What the store has of the message: its state, whether it is claimed, and what became of its attempts."""
    database = Database(collector.store_url)
    with database.read() as connection:
        [row] = connection.execute(select(delivery.c.state, delivery.c.lease_until)).all()
        errors = connection.scalars(select(attempt.c.error)).all()
    database.close()
    return row.state, row.lease_until, errors


def begin_request(collector, body):
    """Send a request up to its body; return the connection once the collector waits for that."""
    connection = socket.create_connection(("127.0.0.1", collector.port), 30)
    head = "PUT /api/v1/runs/late/sessions/s HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    connection.sendall(f"{head}Content-Length: {len(body)}\r\nExpect: 100-continue\r\n\r\n".encode())
    assert connection.recv(1000).startswith(b"HTTP/1.1 100 ")
    return connection


def test_a_request_and_a_delivery_that_are_under_way_are_finished(telling):
    may_answer = threading.Event()

    def answer_late(handler):
        may_answer.wait(60)
        status(200)(handler)

    collector = telling(answer_late)
    body = wire.dump(Stream(healthy(1, 2)).hello())
    with begin_request(collector, body) as request:
        collector.process.send_signal(signal.SIGTERM)
        wait_for_words(collector, "stopping")
        may_answer.set()
        request.sendall(body)
        assert request.recv(1000).startswith(b"HTTP/1.1 200 ")
    assert collector.process.wait(60) == 0
    wait_for_words(collector, "stopped")
    assert left_behind(collector) == ("delivered", None, [None])
    collector.start()
    assert collector.get("/api/v1/runs/late").status_code == 200
    serving = next(each for each in told(collector) if each["message"].startswith("serving"))
    assert set(serving) == {"time", "level", "logger", "message"}
    assert (serving["level"], serving["logger"]) == ("info", "gradcanary_server.ops.process")


def test_a_delivery_without_an_answer_is_given_back(telling):
    collector = telling(hang)
    collector.process.send_signal(signal.SIGTERM)
    assert collector.process.wait(60) == 0
    wait_for_words(collector, "stopped")
    state, lease, [error] = left_behind(collector)
    assert (state, lease, error) == ("pending", None, "the collector stopped before an answer came")
    [warning] = [each for each in told(collector) if each["level"] == "warning"]
    assert warning["message"] == "message msg_1_1 was not delivered: the collector stopped before an answer came"
