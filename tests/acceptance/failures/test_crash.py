"""kill -9 of the collector while batches arrive: what it acknowledged is there once, and the fold as if undisturbed."""

import hashlib
import http.client
import random
import threading
import time

import httpx
import pytest
from sqlalchemy import make_url, select

from gradcanary import wire
from gradcanary_server.storage.database import Database
from gradcanary_server.storage.schema import batch, incident, rule_state, session
from gradcanary_server.tsdb import log as tsdb_log
from support import streams

KILLS = {"sqlite": 20, "postgresql": 6}
"""PostgreSQL does not die with the collector: what is tried there is the protocol only."""

BATCH_STEPS = 16
LAYERS = 150
BATCHES = 60


@pytest.fixture(scope="module")
def stream():
    absmax = streams.collapsed(BATCHES * BATCH_STEPS, LAYERS, range(40, 60), 400)
    return streams.Stream(absmax, loss=streams.falling_loss(len(absmax)))


@pytest.fixture(scope="module")
def bodies(stream):
    return [wire.dump(batch) for batch in stream.batches(BATCH_STEPS)]


def start(session, stream):
    assert session.put_hello(stream.hello()).status_code == 200


def measured(collector):
    """Every sample and every loss that the collector has, and which batch is the next."""
    samples = collector.get("/api/v1/runs/run-1/export.csv").text
    metrics = collector.get("/api/v1/runs/run-1/metrics", points=5000).json()["metrics"]
    return samples, metrics


def stored(collector):
    """What the store holds: the next seq, the packed fold state, and the incidents without their times."""
    told = (
        incident.c[name] for name in ("rule", "severity", "state", "opened_step", "since_step", "firing", "ever_firing")
    )
    database = Database(collector.store_url)
    with database.read() as connection:
        log = connection.execute(select(batch.c.sha256, batch.c.body)).all()
        assert all(hashlib.sha256(tsdb_log.decompress_body(body)).digest() == digest for digest, body in log)
        next_seq = connection.scalars(select(session.c.next_seq)).all()
        packed = connection.scalars(select(rule_state.c.packed).order_by(rule_state.c.part)).all()
        incidents = connection.execute(select(*told).order_by(incident.c.incident_id)).all()
    database.close()
    return next_seq, packed, incidents


class Attempt:
    """One POST on a connection of its own, watched from outside: was it sent whole, was it answered?"""

    def __init__(self, session, seq, raw):
        self.sent = threading.Event()
        self.status = None
        self._thread = threading.Thread(target=self._run, args=(session, seq, raw))
        self._thread.start()

    def _run(self, session, seq, raw):
        url = httpx.URL(session.path(f"/batches/{seq}"))
        connection = http.client.HTTPConnection(url.host, url.port, timeout=30)
        try:
            connection.request("POST", url.path, raw, {"Content-Type": "application/json"})
            self.sent.set()
            self.status = connection.getresponse().status
        except (OSError, http.client.HTTPException):
            pass
        finally:
            connection.close()
            self.sent.set()

    def wait(self):
        self._thread.join()
        return self.status == 200


def test_no_acknowledged_batch_is_lost_or_doubled(collector_factory, stream, bodies):
    rng = random.Random(20_240_613)
    collector = collector_factory()
    kills = KILLS[make_url(collector.store_url).get_backend_name()]
    moments = sorted(rng.sample(range(1, BATCHES), kills))
    session = streams.Session(collector.url)
    start(session, stream)
    unanswered = committed = 0
    for seq, raw in enumerate(bodies):
        if seq in moments:
            attempt = Attempt(session, seq, raw)
            attempt.sent.wait()
            time.sleep(rng.uniform(0, 0.05))
            collector.kill()
            acknowledged = attempt.wait()
            unanswered += not acknowledged
            collector.start()
            status = session.post_batch(seq, raw).json()["status"]
            assert status == "duplicate" if acknowledged else status in ("stored", "duplicate")
            committed += status == "duplicate" and not acknowledged
        else:
            assert session.post_batch(seq, raw).json()["status"] == "stored"
        earlier = rng.randrange(seq + 1)
        assert session.post_batch(earlier, bodies[earlier]).json()["status"] == "duplicate"
    print(f"killed {kills} times, {unanswered} between request and answer, {committed} of these after the commit")
    assert unanswered >= kills // 4

    undisturbed = collector_factory()
    other = streams.Session(undisturbed.url)
    start(other, stream)
    for seq, raw in enumerate(bodies):
        assert other.post_batch(seq, raw).json()["status"] == "stored"

    samples, metrics = measured(collector)
    assert (samples, metrics) == measured(undisturbed)
    assert len(samples.splitlines()) == 1 + BATCHES * BATCH_STEPS
    collector.stop(), undisturbed.stop()
    next_seq, packed, incidents = stored(collector)
    assert (next_seq, packed, incidents) == stored(undisturbed)
    assert next_seq == [BATCHES]
    assert [(rule, ever) for rule, *_, ever in incidents] == [("collapse", 20)]
