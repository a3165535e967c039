"""A store that is away for hours: what is asked meanwhile, and that all heals."""

import contextlib
import threading
import time

from fastapi.testclient import TestClient

from gradcanary import wire
from gradcanary_server.api import ingest
from gradcanary_server.app import create_app
from gradcanary_server.incidents import watchdog
from gradcanary_server.notify import dispatcher
from gradcanary_server.settings import Settings
from gradcanary_server.tsdb import compactor
from support import streams
from support.receivers import Receiver
from support.waiting import eventually

STREAM = streams.Stream(streams.collapsed(1200, 6, [0], 420), streams.falling_loss(1200))


SIZE = 40


LOOPS = ("dispatcher", "compactor", "watchdog")


QUICK = (compactor, dispatcher, watchdog)
"""Loops that look often: nobody waits here for rounds of seconds."""


SEVEN_HOURS = 7 * 3600.0
"""After which a run is silent, a session taken for over, and each message due."""


def path(rest=""):
    return f"/api/v1/runs/run/sessions/s{rest}"


class Story:
    """A collector with all its loops, one agent, one receiver, and time that only a test moves on."""

    def __init__(self, client, receiver):
        self.client, self.receiver, self.time = client, receiver, time.time()
        database = client.app.state.services.database
        database.now = lambda _: self.time

    def post(self, seq):
        made = STREAM.batch(seq * SIZE, seq * SIZE + SIZE, change_records=seq == 0)
        return self.client.post(path(f"/batches/{seq}"), content=wire.dump(made))

    def checks(self):
        answer = self.client.get("/readyz")
        assert answer.status_code == (200 if answer.json()["status"] == "ready" else 503)
        assert answer.status_code == 200 or answer.headers["retry-after"]
        return answer.json()["checks"]

    def incidents(self):
        return [(each["rule"], each["state"]) for each in self.client.get("/api/v1/incidents").json()["incidents"]]


def asked_to_come_back(answer):
    """Return what a 503 says."""
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "unavailable"), answer.text
    assert int(answer.headers["retry-after"]) >= 1
    return answer.json()["error"]["message"]


POOLS = {"gradcanary-dispatcher-": dispatcher.MAX_THREADS, "gradcanary-ingest_": ingest.STORE_THREADS}
"""Pools of threads by their names, and how large each may grow. A pool begins a thread when none of its own is idle."""


def threads():
    """Return the threads of the loops, and check that the pools are not larger than they may be."""
    ours = {each.name: each.ident for each in threading.enumerate() if each.name.startswith("gradcanary-")}
    for pool, limit in POOLS.items():
        workers = [name for name in ours if name.startswith(pool)]
        assert len(workers) <= limit
        ours = {name: ident for name, ident in ours.items() if name not in workers}
    return ours


def tell(folder, db, away):
    with contextlib.closing(Receiver()) as receiver:
        app = create_app(Settings.from_env({}, data=folder, db=db, webhooks=[receiver.url]))
        with TestClient(app, base_url="http://localhost", headers={"Content-Type": "application/json"}) as client:
            live_through(Story(client, receiver), away)


def live_through(story, away):
    story.client.put(path(), content=wire.dump(STREAM.hello())).raise_for_status()
    for seq in range(12):
        story.post(seq).raise_for_status()
    eventually(lambda: set(story.checks().values()) == {"ok"})
    before = threads()
    assert story.incidents() == [("collapse", "open")]
    with away():
        story.time += SEVEN_HOURS
        for _ in range(3):
            assert asked_to_come_back(story.post(12))
            assert asked_to_come_back(story.client.post(path("/heartbeat"), content=wire.dump(BEAT)))
            eventually(lambda: not {"ok"} & {story.checks()[loop] for loop in LOOPS})
            assert story.client.get("/healthz").status_code == 200
            story.time += 600.0
        assert story.receiver.got == []
    eventually(lambda: set(story.checks().values()) == {"ok"})
    assert threads() == before
    story.time += 600.0
    story.receiver.wait(1)
    assert [story.post(seq).json()["status"] for seq in (11, 12, 13)] == ["duplicate", "stored", "stored"]
    assert story.incidents() == [("collapse", "open")], "it was not heard of because nobody listened"
    assert len(story.client.get("/api/v1/runs/run/export.csv").text.splitlines()) == 1 + 14 * SIZE
    assert [message.type for message in story.receiver.got] == ["gradient.collapse.opened"]


BEAT = wire.Heartbeat(None, 0, 0, 0.0)
