"""The loop that misses what does not come: a run of which nothing is heard, and one that makes no step.

It reads the tables, so a restart forgets nothing; what it finds is looked at again in a transaction that holds the run.
"""

import logging
import time

from sqlalchemy import Connection

from gradcanary_server import absences, sessions, tempo, vigils
from gradcanary_server.archive import Archive
from gradcanary_server.database import Database
from gradcanary_server.life import Absence, standstill_s
from gradcanary_server.loops import Loop
from gradcanary_server.rules import Rules

WAKE_S = 5.0

logger = logging.getLogger(__name__)


class Watchdog(Loop):
    """Watches the runs of one store from a daemon thread of this process."""

    def __init__(self, database: Database, archive: Archive, rules: Rules) -> None:
        super().__init__("watchdog", logger)
        self._database, self._archive, self._rules = database, archive, rules
        self._tempos: dict[int, tuple[Absence, float]] = {}

    def listen(self) -> None:
        """Note that requests can be taken: by writing, because a disk may be full and still be read."""
        with self._database.write() as connection:
            vigils.keep(self._database, connection)

    def look(self) -> None:
        """Open an incident of each run that is missed."""
        with self._database.read() as connection:
            now = self._database.now(connection)
            found = absences.found(connection, now, self._rules)
            missed = {run_id for run_id, what in found.items() if self._is_missed(connection, run_id, what, now)}
        self._tempos = {run_id: known for run_id, known in self._tempos.items() if run_id in found}
        for run_id in sorted(missed):
            self._report_or_log(run_id)

    def _report_or_log(self, run_id: int) -> None:
        try:
            self._report(run_id)
        except Exception as error:  # it is missed in the next round as well, and holds up no other
            if not self._outage.explains(error):
                logger.exception("run %s could not be reported", run_id)

    def _report(self, run_id: int) -> None:
        with self._database.write() as connection:
            if not sessions.is_there(connection, run_id):
                return
            now = self._database.now(connection)
            what = absences.found(connection, now, self._rules, run_id).get(run_id)
            if what is None or not self._is_missed(connection, run_id, what, now):
                return  # it was heard of meanwhile, or another collector was first
            absences.report(connection, run_id, what, now, self._rules.pace.reopen_s)
            sessions.revise(connection, run_id)

    def _is_missed(self, connection: Connection, run_id: int, what: Absence, now: float) -> bool:
        """Tell whether a run that makes no step is slower than ever; how slow its steps are is read once."""
        if what.rule == "silent" or what.step is None:
            return True
        known = self._tempos.get(run_id)
        if known is None or known[0] != what:
            its = tempo.read(self._archive, connection, run_id, what.step)
            known = what, standstill_s(self._rules.stalled, its.median_s, its.longest_s)
            self._tempos[run_id] = known
        return now - what.since > known[1]

    def _run(self) -> None:
        beat_at = 0.0
        while True:
            try:
                if time.monotonic() >= beat_at:
                    self.listen()
                    beat_at = time.monotonic() + vigils.BEAT_S
                self.look()
                self._done()
            except Exception as error:  # a round later is worth more than a reason to stop now
                if not self._outage.explains(error):
                    logger.exception("a round of the watchdog failed; the next one is in %s s", WAKE_S)
            self._beat()
            if self._stopping.wait(WAKE_S):
                return
