"""A store whose clock goes through days, and the deliverer as shipped on it."""

import threading
from contextlib import contextmanager

from gradcanary_server import endpoints
from gradcanary_server.database import Database
from gradcanary_server.deliverer import Deliverer
from gradcanary_server.pace import Pace
from gradcanary_server.rules import Rules

URL = "http://127.0.0.1:8787"


class Clocked(Database):
    """A store whose clock can be moved on; ``asked`` counts how often anybody looked at it."""

    ahead_s = 0.0

    def __init__(self, url):
        super().__init__(url)
        self.looked = threading.Condition()
        self.asked = 0

    def now(self, connection):
        with self.looked:
            self.asked += 1
            self.looked.notify_all()
        return super().now(connection) + self.ahead_s

    def wait(self, seconds=0.0):
        """Let time go by, and the deliverer go through rounds of it: to seal, to send, to conclude."""
        self.ahead_s += seconds
        with self.looked:
            until = self.asked + 10
            assert self.looked.wait_for(lambda: self.asked >= until, 60)


def listen(store, receiver):
    with store.database.write() as connection:
        endpoints.ensure_operator_endpoint(connection, receiver.url, None, store.database.now(connection))


@contextmanager
def delivering(store):
    deliverer = Deliverer(store.database, Pace(), URL, Rules().silent)
    deliverer.start()
    try:
        yield
    finally:
        deliverer.stop()
