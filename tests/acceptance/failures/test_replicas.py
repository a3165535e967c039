"""Two collectors on one PostgreSQL, killed in turn under a client that goes from one to the other: equal to one."""

import random
import threading
import time
from itertools import cycle
from pathlib import Path

import httpx
import pytest

from support import streams
from support.collectors import Collector
from support.receivers import Receiver, hang, status

LAYERS, FALLEN = 24, range(4, 10)
BATCH_STEPS = 8
AT, WELL_AT, STEPS = 160, 240, 400
INTERVAL_S = 20
"""Longer than a claim of somebody who died: its message is taken over, not renewed."""

RULES = "version: 1\npace: {{wait_s: 1, interval_s: {interval_s}}}\n"
SECRET = "whsec_QUJDREVGR0hJSktMTU5PUFFSU1RVVldYWVowMTIzNDU="
OF_TIME = ("opened", "resolved", "reopened_at", "last_deliveries", "url", "runbook_url", "deliveries")
OF_MESSAGE = ("rule", "severity", "state", "resolution", "opened_step", "counts", "worst", "prefixes", "summary")


@pytest.fixture
def start(tmp_path):
    started = []

    def start(receiver, interval_s, db=None):
        rules = tmp_path / f"rules-{interval_s}.yaml"
        rules.write_text(RULES.format(interval_s=interval_s))
        arguments = ("--webhook", receiver.url, "--rules", str(rules))
        folder = tmp_path / f"collector-{len(started)}"
        started.append(Collector(folder, arguments, {"GRADCANARY_WEBHOOK_SECRET": SECRET}, db))
        return started[-1].start()

    yield start
    for collector in started:
        collector.kill()


@pytest.fixture
def receivers():
    made = [Receiver(), Receiver()]
    yield made
    for each in made:
        each.close()


@pytest.fixture(scope="module")
def stream():
    absmax = streams.collapsed(STEPS, LAYERS, FALLEN, AT)
    absmax[WELL_AT:] = streams.healthy(STEPS - WELL_AT, LAYERS, seed=1)
    return streams.Stream(absmax, streams.falling_loss(STEPS))


class Client:
    """Sends to several collectors in turn, and to the next one where nobody answers."""

    def __init__(self, *collectors):
        self._places = cycle(collectors)
        self.session = streams.Session("")
        self.seq = 0

    def send(self, ask):
        for collector in self._places:
            self.session.url = collector.url
            try:
                answer = ask(self.session)
            except httpx.TransportError:
                continue
            if answer.status_code != 503:
                return answer.raise_for_status().json()["status"]
        raise AssertionError

    def send_batches(self, stream, until, disturb=lambda: None):
        for seq in range(self.seq, until // BATCH_STEPS):
            disturb()
            begin = seq * BATCH_STEPS
            raw = stream.batch(begin, begin + BATCH_STEPS, change_records=seq == 0)
            assert self.send(lambda session, raw=raw, seq=seq: session.post_batch(seq, raw)) in ("stored", "duplicate")
            self.seq = seq + 1


class Killer:
    """Kills one of two collectors now and then, in the middle of what it does, and starts it again later."""

    def __init__(self, rng, collectors):
        self._rng, self._collectors, self._dead, self.kills = rng, collectors, None, 0

    def __call__(self):
        if self._dead is not None and self._rng.random() < 0.5:
            self.restore()
        elif self._dead is None and self.kills < 4 and self._rng.random() < 0.3:
            self._dead, self.kills = self._rng.choice(self._collectors), self.kills + 1
            threading.Timer(self._rng.uniform(0, 0.02), self._dead.kill).start()

    def restore(self):
        if self._dead is not None:
            self._dead.process.wait(30)
            self._dead.start()
            self._dead = None


def whose(collectors, receiver, port):
    """Return the collector from whose port a request to a receiver came, and comes still."""
    # By both ends: another connection of this machine may have the same port, to somebody else.
    ends = [f"0100007F:{each:04X}" for each in (port, receiver.port)]
    rows = (line.split() for line in Path("/proc/net/tcp").read_text().splitlines())
    [inode] = [row[9] for row in rows if row[1:3] == ends]
    for collector in collectors:
        for descriptor in Path(f"/proc/{collector.process.pid}/fd").iterdir():
            if str(descriptor.readlink()) == f"socket:[{inode}]":
                return collector
    raise AssertionError(port)


def told(collector):
    """Return what a store says of its only incident, without what depends on when, and its messages that arrived."""
    [each] = collector.get("/api/v1/incidents").json()["incidents"]
    found = collector.get(f"/api/v1/incidents/{each['id']}").json()
    del found["explanation"]["since"]
    sent = [(row["version"], row["kind"]) for row in found["deliveries"] if row["state"] == "delivered"]
    return {name: value for name, value in found.items() if name not in OF_TIME}, sent


def measured(collector):
    samples = collector.get("/api/v1/runs/run-1/export.csv").text
    metrics = collector.get("/api/v1/runs/run-1/metrics", points=5000).json()["metrics"]
    layers = collector.get("/api/v1/runs/run-1/layers").json()["layers"]
    return samples, metrics, layers


def wait_until_sent(collector, kinds):
    end = time.monotonic() + 120
    while [kind for _, kind in told(collector)[1]] != kinds:
        assert time.monotonic() < end, told(collector)[1]
        time.sleep(0.2)


def said(collector, receiver):
    """Return what was said of the incident, without what depends on when."""
    bodies = {message.id: message for message in receiver.got}
    arrived = [bodies[f"msg_1_{version}"] for version, _ in told(collector)[1]]
    return [(each.type, {name: each.data[name] for name in OF_MESSAGE}) for each in arrived]


def test_two_that_are_killed_in_turn_equal_one_that_is_left_alone(start, postgres_server, receivers, stream):
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    faulty, fine = receivers
    db = postgres_server.create_store()
    both = [start(faulty, INTERVAL_S, db) for _ in range(2)]
    client, killer = Client(*both), Killer(random.Random(seed), both)
    client.send(lambda session: session.put_hello(stream.hello()))
    faulty.answers[:] = [hang, status(500), slowly]
    client.send_batches(stream, AT, killer)
    killer.restore()
    client.send_batches(stream, WELL_AT)
    [first] = faulty.wait(1)
    dead = whose(both, faulty, first.port)
    dead.kill()
    [alive] = [each for each in both if each is not dead]
    faulty.wait(2)  # what the dead one had claimed is sent by the other
    dead.start()
    wait_until_sent(alive, ["opened"])
    client.send_batches(stream, STEPS, killer)
    killer.restore()
    client.send(lambda session: session.end(last_step=STEPS - 1))
    wait_until_sent(dead, ["opened", "resolved"])

    undisturbed = start(fine, 1)
    one = Client(undisturbed)
    one.send(lambda session: session.put_hello(stream.hello()))
    one.send_batches(stream, WELL_AT)
    wait_until_sent(undisturbed, ["opened"])
    one.send_batches(stream, STEPS)
    one.send(lambda session: session.end(last_step=STEPS - 1))
    wait_until_sent(undisturbed, ["opened", "resolved"])

    expected = measured(undisturbed)
    for each in both:
        assert measured(each) == expected
        assert told(each)[0] == told(undisturbed)[0]
    assert said(dead, faulty) == said(undisturbed, fine)
    check_receiver(faulty)
    print(f"killed {killer.kills + 1} times, {len(faulty.got)} attempts")


def check_receiver(receiver):
    """Each id is one body, versions come in order, and what was taken keeps its distance."""
    receiver.verified(SECRET)
    bodies = {}
    for message in receiver.got:
        assert bodies.setdefault(message.id, message.body) == message.body
    assert list(bodies) == [f"msg_1_{version}" for version in range(1, len(bodies) + 1)]
    last = [[message.at for message in receiver.got if message.id == name][-1] for name in bodies]
    assert last[-1] - last[-2] >= INTERVAL_S - 1


def slowly(handler):
    time.sleep(2)
    status(200)(handler)
