"""A round of counting what rules would have said: a process plays the runs again, and what it says is kept."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import subprocess
import sys
import threading
import time
from typing import IO, Any, cast

from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError

from gradcanary_server import backtest_rows
from gradcanary_server.backtest_rows import Claim
from gradcanary_server.database import Database
from gradcanary_server.errors import RequestError

LONGEST_S = 900.0
"""Of one round; what was counted until then stands."""

KEEP_S = 1.0
"""How often what is counted meanwhile is put into the store: a page asks each second."""

RENEW_S = 5.0
"""How often the claim is taken anew where there is nothing to keep: well within its lease."""

_START = "import sys; sys.path[:] = sys.argv[1:]; from gradcanary_server.backtest_worker import main; main()"

logger = logging.getLogger(__name__)


class Replay:
    """Counts what is claimed; :meth:`stop` may be called from another thread."""

    def __init__(self, database: Database, db: str, claim: Claim) -> None:
        self._database = database
        self._db = db
        self._claim = claim
        self._found = self._kept = claim.found
        self._lock = threading.Lock()
        self._process: subprocess.Popen[str] | None = None
        self._is_stopped = False
        self._over = threading.Event()

    def run(self) -> None:
        """Count to the end, for so long at most, while the claim holds; raises what the store says as it is noted."""
        is_whole = False
        try:
            is_whole = self._play()
        except Exception:  # of rules that cannot be counted others are not to wait for ever
            logger.exception("runs could not be played again")
        with self._database.write() as connection:
            if self._is_stopped:
                backtest_rows.release(connection, self._claim, self._found)
                return
            now = self._database.now(connection)
            backtest_rows.conclude(connection, self._claim, self._found, now, is_whole=is_whole)

    def stop(self) -> None:
        """Count no more: the rest is another collector's."""
        with self._lock:
            self._is_stopped = True
            if self._process is not None:
                self._process.kill()

    def _play(self) -> bool:
        """Let a process count, and tell whether it came to its end."""
        known = {number: each.revision for number, each in self._found.counts.items()}
        task = {"db": self._db, "rules": json.loads(self._claim.rules), "known": known}
        process = self._start()
        if process is None:
            return False
        keeper = threading.Thread(target=self._keep, args=[process], name="gradcanary-replay", daemon=True)
        keeper.start()
        # Where it is killed while it reads, writing to it fails; its status says enough.
        try:
            with process, contextlib.suppress(BrokenPipeError):
                with cast(IO[str], process.stdin) as said:
                    json.dump(task, said)
                for line in cast(IO[str], process.stdout):
                    self._note(json.loads(line))
        finally:
            self._over.set()
            keeper.join()
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

    def _note(self, said: dict[str, Any]) -> None:
        """Note what the process says: first which runs there are, and then each count."""
        if "left" in said:
            self._found = self._found.among(said["runs"], said["left"])
        else:
            self._found = self._found.plus(said["run_id"], backtest_rows.read(said["count"]))

    def _keep(self, process: subprocess.Popen[str]) -> None:
        """Keep what is counted, and the claim; stop where that was lost, and end the process after the longest time."""
        end, kept_at = time.monotonic() + LONGEST_S, time.monotonic()
        while not self._over.wait(KEEP_S):
            now = time.monotonic()
            if now > end:
                process.kill()
            elif self._found is not self._kept or now - kept_at > RENEW_S:
                kept_at = now
                if not self._is_kept():
                    self.stop()

    def _is_kept(self) -> bool:
        found = self._found
        try:
            with self._database.write() as connection:
                is_mine = backtest_rows.keep(connection, self._claim, found, self._database.now(connection))
        except (DBAPIError, PoolTimeoutError, RequestError):
            return True  # it is tried again, and if that takes too long another one counts: the fence says so
        except Exception:  # without this thread the claim would be lost, and nobody would end the process
            logger.exception("what was counted could not be kept")
            return True
        self._kept = found
        return is_mine
