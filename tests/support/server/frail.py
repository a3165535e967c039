"""A store whose clock stands still, and on which a collector dies at any statement, before a commit or after it."""

import os
import signal
import traceback
from contextlib import contextmanager

from sqlalchemy import event

from gradcanary_server.storage.database import Database


class Killed(BaseException):
    """The process ended here: nothing in it can catch this."""


class CutOffError(Exception):
    """The database was lost here, and whoever asked it lives on with what it remembers."""


def die():
    """End this process as ``kill -9`` does."""
    os.kill(os.getpid(), signal.SIGKILL)


class Frail(Database):
    """``points`` counts what is asked of the store: each statement, and each commit before and after it."""

    time = 1.7e9

    def __init__(self, url):
        super().__init__(url)
        self.points = self.commits = 0
        self._at, self._error = None, CutOffError
        event.listen(self._engine, "before_cursor_execute", lambda *_: self._pass())

    def now(self, connection):
        return self.time

    def break_at(self, points, error):
        """Raise an error at the point that comes after so many others."""
        self._at, self._error = self.points + points, error

    def mend(self):
        self._at = None

    def write(self):
        return self._frail(super().write())

    def write_shared(self):
        return self._frail(super().write_shared())

    @contextmanager
    def _frail(self, transaction):
        with transaction as connection:
            yield connection
            self._pass()
        self.commits += 1
        self._pass()

    def _pass(self):
        self.points += 1
        if self.points == self._at:
            self._at = None
            raise self._error()


def mortal(work, kill):
    """Let a fork work until it dies; ``kill`` says in there when that will be. Return the numbers that it told.

    No store may be open: a connection is of one process.
    """
    ours, theirs = os.pipe()
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            signal.signal(signal.SIGALRM, signal.SIG_DFL)  # as good as SIGKILL: no line of Python is run any more
            kill()
            work(lambda number: os.write(theirs, b"%d\n" % number))
            status = 0
        except Exception:  # noqa: BLE001 -- whatever it is, the status tells it
            traceback.print_exc()
        finally:
            os._exit(status)
    os.close(theirs)
    with os.fdopen(ours) as told:
        numbers = [int(line) for line in told]
    ended = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    assert ended in (0, -signal.SIGKILL, -signal.SIGALRM)
    return numbers
