"""What rules would have said, as somebody asks for it: of the rules in force, and of some that are tried. It is in the
store; what is not counted there yet, or too long ago, is counted in the background."""

from __future__ import annotations

import logging
import threading

from gradcanary_server import backtest_rows
from gradcanary_server.backtest_rows import Backtest
from gradcanary_server.database import Database
from gradcanary_server.outages import Outage
from gradcanary_server.replays import Replay
from gradcanary_server.rules import Rules

logger = logging.getLogger(__name__)


class Backtests:
    """Counts rules one after the other, in a process each; safe to share between threads."""

    def __init__(self, database: Database, db: str, rules: Rules) -> None:
        self._database = database
        self._db = db
        self._rules = rules
        self.name = backtest_rows.name_of(rules)
        """By which the rules in force are known."""
        self._lock = threading.Lock()
        self._queue: list[str] = []
        self._thread: threading.Thread | None = None
        self._replay: Replay | None = None
        self._is_stopped = False
        self._outage = Outage(logger, "backtests")

    def present(self) -> Backtest:
        """Return what the rules in force would have said, and begin to count it where that was not done lately."""
        return self._asked(self.name) or Backtest()

    def tried(self, name: str) -> Backtest | None:
        """Return what rules that somebody tries would have said, None where they are forgotten."""
        return self._asked(name)

    def try_rules(self, rules: Rules) -> str:
        """Begin to count what rules would have said, and return by what name they can be asked for."""
        name = backtest_rows.name_of(rules)
        with self._database.write() as connection:
            backtest_rows.remember(connection, name, rules, self._database.now(connection), self.name)
        return name

    def end(self) -> None:
        """Count no more: the rest is left to another collector, or to the next start."""
        with self._lock:
            self._is_stopped, self._queue = True, []
            if self._replay is not None:
                self._replay.stop()

    def stop(self, timeout_s: float | None = None) -> None:
        """End, and wait for that, for so long at most."""
        self.end()
        with self._lock:
            thread = self._thread
        if thread is not None:
            thread.join(timeout_s)

    def _asked(self, name: str) -> Backtest | None:
        """Return what the store has. Who only looks writes nothing: the thread that counts does."""
        with self._database.read() as connection:
            found = backtest_rows.find(connection, name, self._database.now(connection))
        is_due = name == self.name if found is None else found.state == "waiting"
        if is_due:
            self._enqueue(name)
        return found

    def _enqueue(self, name: str) -> None:
        with self._lock:
            if self._is_stopped or name in self._queue:
                return
            self._queue.append(name)
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="gradcanary-backtests", daemon=True)
                self._thread.start()

    def _work(self) -> None:
        while (name := self._next()) is not None:
            self._attempt(name)

    def _attempt(self, name: str) -> None:
        try:
            self._count(name)
            self._outage.end()
        except Exception as error:
            if not self._outage.explains(error):
                logger.exception("runs could not be played again")
        finally:
            with self._lock:
                self._replay = None
                self._queue = [each for each in self._queue if each != name]

    def _next(self) -> str | None:
        with self._lock:
            if not self._queue:
                self._thread = None
                return None
            return self._queue[0]

    def _count(self, name: str) -> None:
        with self._database.write() as connection:
            now = self._database.now(connection)
            if name == self.name and backtest_rows.find(connection, name, now) is None:
                backtest_rows.remember(connection, name, self._rules, now, self.name)
            claim = backtest_rows.claim(connection, name, now)
        if claim is None:
            return  # another collector does, or did
        with self._lock:
            replay = self._replay = Replay(self._database, self._db, claim)
            if self._is_stopped:
                replay.stop()
        replay.run()
