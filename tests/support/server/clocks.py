"""A store whose clock goes through days, and the dispatcher as shipped on it."""

import threading
import time
from contextlib import contextmanager

from sqlalchemy import select

from gradcanary_server.notify import endpoints
from gradcanary_server.notify.dispatcher import Dispatcher
from gradcanary_server.rules.config import Pace, Rules
from gradcanary_server.storage import heartbeat
from gradcanary_server.storage.database import Database
from gradcanary_server.storage.schema import delivery

URL = "http://127.0.0.1:8787"


class Clocked(Database):
    """A store whose time can be moved on, and whose clock be set; ``asked`` counts how often anybody looked at it."""

    ahead_s = set_s = 0.0

    def __init__(self, url):
        super().__init__(url)
        self.looked = threading.Condition()
        self.asked = 0
        self.seen = threading.local()

    def now(self, connection):
        with self.looked:
            self.asked += 1
            self.looked.notify_all()
        self.seen.ahead_s = self.ahead_s  # a test may move it on before this thread asks what follows
        return super().now(connection) + self.seen.ahead_s + self.set_s

    def set(self, by_s):
        """Set the clock between two heartbeats of the collector, and let everybody see it."""
        self.beat()
        self.set_s += by_s
        self.beat()
        self.wait()

    def beat(self):
        with self.write() as connection:
            heartbeat.listen(self, connection)

    def wait(self, seconds=0.0):
        """Let time go by, and the dispatcher go through rounds of it until what it sends has arrived."""
        self.ahead_s += seconds
        self.look_on(10)
        end = time.monotonic() + 60
        while self._is_sending():
            assert time.monotonic() < end, "an attempt never ended"
            self.look_on(2)

    def look_on(self, times):
        with self.looked:
            until = self.asked + times
            assert self.looked.wait_for(lambda: self.asked >= until, 60)

    def _is_sending(self):
        under_way = (delivery.c.state == "pending") & delivery.c.lease_until.is_not(None)
        with self.read() as connection:
            return connection.execute(select(delivery.c.version).where(under_way)).first() is not None


def listen(store, receiver, *, sends_ended=False):
    configured = endpoints.ConfiguredEndpoint(receiver.url, sends_ended=sends_ended)
    with store.database.write() as connection:
        endpoints.upsert_configured(connection, configured, None, store.database.now(connection))


@contextmanager
def delivering(store):
    dispatcher = Dispatcher(store.database, Pace(), URL, Rules().muted)
    dispatcher.start()
    try:
        yield
    finally:
        dispatcher.stop()
