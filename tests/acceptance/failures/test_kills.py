"""kill -9 hundreds of times of ingest, compaction and delivery: what is killed is a fork that does a collector's work.

Half of the kills are counted, at a statement or at one side of a commit; half come at any instant. How a whole
collector takes it, with its sockets, is the subject of test_crash.py; migrations are killed in test_migrations.py.
"""

import random
import signal
import time
from dataclasses import replace
from functools import partial
from itertools import pairwise

import httpx
import numpy as np
import pytest
from sqlalchemy import select

from gradcanary import wire
from gradcanary_server.notify import dispatcher as dispatchers
from gradcanary_server.notify import endpoints, outbox
from gradcanary_server.notify.dispatcher import Dispatcher
from gradcanary_server.notify.planner import MAX_DOUBLINGS
from gradcanary_server.rules.config import Pace
from gradcanary_server.storage.schema import delivery, incident, session
from gradcanary_server.tsdb import compaction, tiles
from support import streams
from support.effort import EFFORT
from support.receivers import Receiver, close_mid_answer, status
from support.server.archives import RUN, Store
from support.server.frail import Frail, die, mortal
from support.strategies import QUICK

ROUNDS = 100 * EFFORT
AT_ONCE = 3
"""Batches that a process takes before it ends by itself."""

STEPS = 4

ROUND_S = 60.0
"""By the store's clock: claims and waits of the one that died are over."""

RULES = replace(QUICK, pace=Pace(interval_s=6 * ROUND_S))
LONGEST_APART_S = RULES.pace.interval_s * 2.0**MAX_DOUBLINGS
"""Between two messages of an incident that was reopened often, as in hundreds of rounds it is."""

MOST_POINTS, LONGEST_S = 80, 0.12


def troubled(rng):
    """Gradients that are small or not finite for some dozen steps, and well in between."""
    absmax = streams.healthy(ROUNDS * AT_ONCE * STEPS, 3)
    for begin in range(20, len(absmax), 60):
        absmax[begin : begin + int(rng.integers(10, 40)), int(rng.integers(3))] *= rng.choice([1e-5, np.inf])
    return streams.Stream(absmax, streams.falling_loss(len(absmax)))


@pytest.fixture
def receiver():
    made = Receiver()
    yield made
    made.close()


@pytest.fixture
def small(monkeypatch):
    monkeypatch.setattr(tiles, "TILE_ROWS", 8)
    monkeypatch.setattr(compaction, "MOST_BATCHES", 4)
    monkeypatch.setattr(dispatchers, "WAKE_S", 0.01)
    context = httpx.create_ssl_context()  # each would take longer to make one than for everything else
    monkeypatch.setattr(httpx, "create_ssl_context", lambda: context)


def listen(store, receiver):
    with store.database.write() as connection:
        endpoints.upsert_configured(connection, endpoints.ConfiguredEndpoint(receiver.url), None, Frail.time)


def next_seq(store):
    with store.database.read() as connection:
        return connection.execute(select(session.c.next_seq)).scalar_one()


def test_killed_hundreds_of_times_a_store_is_as_if_undisturbed(new_store_url, small, receiver):
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    store, undisturbed = (Store(new_store_url(), Frail) for _ in range(2))
    stream = troubled(np.random.default_rng(seed))
    bodies = [wire.dump(each) for each in stream.batches(STEPS)]
    hello = wire.dump(stream.hello(started=0.0))
    listen(store, receiver)
    history, begin, kills = [], 0, 0
    for each in (store, undisturbed):
        each.forget(RULES)
        each.ingest.hello(RUN, "s", hello)
    for _ in range(ROUNDS):
        store.database.time += ROUND_S
        store.database.close()
        receiver.answers[:] = rng.choices([status(200), status(500), close_mid_answer], (8, 1, 1), k=4)
        told = mortal(partial(work, store, bodies, begin), kill_in(store, rng))
        stored = next_seq(store)
        assert begin + len(told) <= stored <= begin + len(told) + 1, "what was acknowledged, and one more at most"
        kills += len(told) < AT_ONCE
        history += [(store.database.time, seq) for seq in range(len(history), stored)]
        begin += len(told)
    assert kills > ROUNDS // 4
    for undisturbed.database.time, seq in history:
        undisturbed.ingest.batch(RUN, "s", seq, bodies[seq])
    assert store.rows() == undisturbed.rows()
    assert store.pictures(500) == undisturbed.pictures(500)
    store.forget(RULES)
    store.compactor.compact()
    assert store.pictures(5000) == undisturbed.pictures(5000)
    check_messages(store, receiver)
    for each in (store, undisturbed):
        each.database.close()


def work(store, bodies, begin, tell):
    """Take batches, compact, and deliver, as one process after its start."""
    store.forget(RULES)
    dispatcher = Dispatcher(store.database, RULES.pace, "http://here", RULES.muted)
    dispatcher.start()
    for seq in range(begin, min(begin + AT_ONCE, len(bodies))):
        assert store.ingest.batch(RUN, "s", seq, bodies[seq]).status in ("stored", "duplicate")
        tell(seq)
        store.compactor.compact()
    wait_until_told(store)


def wait_until_told(store):
    """Wait until nothing is due and nothing on its way, or for half a second; tell whether it came to that."""
    end = time.monotonic() + 0.5
    while time.monotonic() < end:
        with store.database.read() as connection:
            now = store.database.now(connection)
            under_way = (delivery.c.state == "pending") & (delivery.c.lease_until > now)
            due = outbox.plan_deliveries(connection, RULES.pace, now, RULES.muted) or outbox.claimable(connection, now)
            if not due and connection.execute(select(delivery.c.version).where(under_way)).first() is None:
                return True
        time.sleep(0.01)
    return False


def kill_in(store, rng):
    """Return what lets a fork die: at a point that is counted, or at any instant."""
    if rng.random() < 0.5:
        at = rng.randint(1, MOST_POINTS)
        return lambda: store.database.break_at(at, die)
    instant = rng.uniform(0.001, LONGEST_S)
    return lambda: signal.setitimer(signal.ITIMER_REAL, instant)


def check_messages(store, receiver):
    """Let everything be said: a message has one id, ids come in the order of versions, and the last word is true."""
    receiver.answers.clear()
    dispatcher = Dispatcher(store.database, RULES.pace, "http://here", RULES.muted)
    dispatcher.start()
    is_told = True
    for _ in range(60):
        store.database.time += LONGEST_APART_S / 20 if is_told else ROUND_S
        is_told = wait_until_told(store)
    dispatcher.stop()
    with store.database.read() as connection:
        states = {row.incident_id: row.state for row in connection.execute(select(incident))}
        sealed = connection.execute(select(delivery).order_by(delivery.c.incident_id, delivery.c.version)).all()
    assert {row.state for row in sealed} <= {"delivered", "expired"}
    bodies = {}
    for message in receiver.got:
        assert bodies.setdefault(message.id, message.body) == message.body
    for number, state in states.items():
        mine = [row for row in sealed if row.incident_id == number]
        ids = [f"msg_{number}_{row.version}" for row in mine]
        assert [row.version for row in mine] == list(range(1, len(mine) + 1))
        assert {each for each in bodies if each.startswith(f"msg_{number}_")} <= set(ids)
        arrived = [each for each in ids if each in bodies]
        assert [each for each in bodies if each in ids] == arrived, "in the order of their versions"
        taken = [row for row in mine if row.state == "delivered"]
        assert [row.kind for row in taken].count("opened") <= 1
        assert all(after.delivered - before.delivered >= RULES.pace.interval_s for before, after in pairwise(taken))
        heard = [message for message in receiver.got if message.id in ids and message.is_taken]
        told = heard[-1].data["state"] if heard else "resolved"  # over before anybody heard of it
        assert told == state, "whatever the collector knows of what arrived"
    print(f"{len(states)} incidents, {len(receiver.got)} attempts at {len(bodies)} messages, {len(sealed)} sealed")
