"""Counts of what rules would have said, made in the background and remembered: for the rules in force, and for some
that somebody tries."""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import subprocess
import sys
import threading
import time
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import IO, Any, Literal, cast

from gradcanary_server import rules_json
from gradcanary_server.backtest import Count
from gradcanary_server.rules import Rules

FOR_S = 600.0
"""How long counts hold: a run that goes on is another one each second."""

LONGEST_S = 900.0
"""Of one round; what was counted until then stands."""

KEPT = 4
"""Rules that are remembered beside those in force."""

_START = "import sys; sys.path[:] = sys.argv[1:]; from gradcanary_server.backtest_worker import main; main()"

State = Literal["waiting", "counting", "counted", "failed"]

logger = logging.getLogger(__name__)


@dataclass(eq=False)
class Backtest:
    """What was counted of some rules so far; ``runs`` are the numbers of those to count, the newest first."""

    rules: Rules
    state: State = "waiting"
    runs: list[int] = field(default_factory=list)
    counts: dict[int, Count] = field(default_factory=dict)
    left: int = 0
    """Runs that are still to be counted in this round."""
    ended: float | None = None
    """When the last round did, by time.monotonic()."""
    at: float | None = None
    """Likewise, in unix seconds."""

    @property
    def is_old(self) -> bool:
        """Tell whether it is time for another round."""
        is_idle = self.state in ("counted", "failed")
        return is_idle and (self.ended is None or time.monotonic() - self.ended > FOR_S)


class Backtests:
    """Counts rule by rule, one process at a time; safe to share between threads."""

    def __init__(self, db: str, rules: Rules) -> None:
        self._db = db
        self._lock = threading.Lock()
        self._present = Backtest(rules)
        self._tried: OrderedDict[str, Backtest] = OrderedDict()
        self._queue: list[Backtest] = []
        self._process: subprocess.Popen[str] | None = None
        self._is_stopped = False

    def present(self) -> Backtest:
        """Return what the rules in force would have said, and begin to count it where that was not done lately."""
        return self._counted(self._present)

    def tried(self, name: str) -> Backtest | None:
        """Return what rules that somebody tries would have said, None where they are forgotten."""
        with self._lock:
            found = self._tried.get(name)
        return None if found is None else self._counted(found)

    def try_rules(self, rules: Rules) -> str:
        """Begin to count what rules would have said, and return by what name they can be asked for."""
        name = hashlib.sha256(rules_json.dump(rules).encode()).hexdigest()[:16]
        with self._lock:
            found = self._tried.setdefault(name, Backtest(rules))
            self._tried.move_to_end(name)
            while len(self._tried) > KEPT:
                _, forgotten = self._tried.popitem(last=False)
                self._queue = [each for each in self._queue if each is not forgotten]
        self._counted(found)
        return name

    def stop(self) -> None:
        """Count no more."""
        with self._lock:
            self._is_stopped, self._queue = True, []
            if self._process is not None:
                self._process.kill()

    def _counted(self, asked: Backtest) -> Backtest:
        with self._lock:
            is_new = asked.state == "waiting" and asked not in self._queue
            if (is_new or asked.is_old) and not self._is_stopped:
                asked.state = "waiting"
                self._queue.append(asked)
                if len(self._queue) == 1:
                    threading.Thread(target=self._work, name="gradcanary-backtests", daemon=True).start()
            return asked

    def _work(self) -> None:
        while True:
            with self._lock:
                if not self._queue:
                    return
                asked = self._queue[0]
                asked.state = "counting"
            try:
                is_whole = self._play(asked)
            except Exception:  # of one that cannot be counted others are not to wait for ever
                logger.exception("runs could not be played again")
                is_whole = False
            with self._lock:
                asked.state = "counted" if is_whole else "failed"
                asked.ended, asked.at = time.monotonic(), time.time()
                self._queue = [each for each in self._queue if each is not asked]

    def _play(self, asked: Backtest) -> bool:
        """Let a process count, and tell whether it came to its end."""
        known = {number: each.revision for number, each in asked.counts.items()}
        task = {"db": self._db, "rules": json.loads(rules_json.dump(asked.rules)), "known": known}
        process = self._start()
        if process is None:
            return False
        limit = threading.Timer(LONGEST_S, process.kill)
        limit.daemon = True
        limit.start()
        # Where it is killed while it reads, writing to it fails; its status says enough.
        try:
            with process, contextlib.suppress(BrokenPipeError):
                with cast(IO[str], process.stdin) as said:
                    json.dump(task, said)
                for line in cast(IO[str], process.stdout):
                    _note(asked, json.loads(line))
        finally:
            limit.cancel()
        if process.returncode != 0 and not self._is_stopped:
            logger.warning("runs were not all played again: the process that does ended with %s", process.returncode)
        return process.returncode == 0

    def _start(self) -> subprocess.Popen[str] | None:
        with self._lock:
            if self._is_stopped:
                return None
            # The store's password goes in by stdin: arguments are for everybody to see.
            self._process = subprocess.Popen(  # noqa: S603 -- this very Python, and a program written above
                [sys.executable, "-c", _START, *sys.path],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                env={**os.environ, "OMP_NUM_THREADS": "1"},
            )
            return self._process


def _note(asked: Backtest, found: dict[str, Any]) -> None:
    """Keep what the process says: first which runs there are, and then each count. Readers hold what they have."""
    if "left" in found:
        asked.runs, asked.left = found["runs"], found["left"]
        asked.counts = {number: each for number, each in asked.counts.items() if number in asked.runs}
        return
    count = Count(**{**found["count"], "matched": tuple(found["count"]["matched"])})
    asked.counts = {**asked.counts, found["run_id"]: count}
    asked.left -= 1
