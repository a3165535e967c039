"""The loop that moves the log into tiles and builds the pyramid on them, beside ingest and never in its way.

Tiles are made of what a reading transaction sees; a short writing one puts them in place, only if nobody moved the
session meanwhile. A kill between the two loses nothing: the log still has it.
"""

import logging
from collections.abc import Callable

from gradcanary_server import deletion, retention, rolling, sealing
from gradcanary_server.database import Database
from gradcanary_server.log import Log
from gradcanary_server.loops import Loop
from gradcanary_server.outages import unavailable
from gradcanary_server.tiles import Tiles
from gradcanary_server.timestamps import timestamp

WAKE_S = 2.0
THIN_EACH_S = 600.0
RECLAIMS = 50
"""After a bite: more than it frees, and not all the room that an older version may have left."""

_DOUBTED = (
    "by the clock of the store samples are too old, but it is far ahead of when anybody looked last: none of them go "
    "before %s. See that it is right."
)

logger = logging.getLogger(__name__)


class Compactor(Loop):
    """Compacts one store from a daemon thread of this process."""

    def __init__(
        self,
        database: Database,
        log: Log,
        tiles: Tiles,
        settle: Callable[[], None],
        raw_days: float | None = None,
    ) -> None:
        super().__init__("compactor", logger)
        self._database = database
        self._log = log
        self._tiles = tiles
        self._settle = settle
        self._raw_s = None if raw_days is None else raw_days * 86_400
        self._thin_at = 0.0
        self._doubted_until: float | None = None
        self._deleted: tuple[int, float] | None = None
        self._is_roomy = True
        self._is_first = True

    def compact(self) -> None:
        """Move everything that can be moved; first what waits in vain for a rank of its launch."""
        self._settle()
        with self._database.read() as connection:
            waiting = sealing.waiting(connection, self._database.now(connection))
        for key in waiting:
            self._repeat(self._seal, *key)
        moved = None if self._is_first else {run_id for run_id, _ in waiting}
        if moved is None or moved:
            with self._database.read() as connection:
                unrolled = rolling.waiting(connection, moved)
            for chain in unrolled:
                self._repeat(self._roll, *chain)
        self._is_first = False
        self._tidy()

    def _repeat(self, work: Callable[..., bool], *key: int | str) -> None:
        """Work on one session or chain as long as there is something; what fails holds up no other."""
        try:
            while not self._stopping.is_set() and work(*key):
                self._beat()
        except Exception as error:  # the log keeps everything until the next round
            if unavailable(error) is not None:
                raise  # it is the store that fails, and with it the round
            logger.exception("%s of %s failed; again in %s s", work.__name__, key, WAKE_S)

    def _tidy(self) -> None:
        """Take away what was deleted or is too old, and give its room back."""
        with self._database.read() as connection:
            deleted, is_over = deletion.count(connection), deletion.is_over(connection)
        if is_over:
            with self._database.write() as connection:
                deletion.forget(connection)
        if deleted != self._deleted and self._purge():
            self._deleted = deleted
        if self._raw_s is not None and self._database.steady() >= self._thin_at:
            self._thin(self._raw_s)
        if self._is_roomy:
            self._is_roomy = self._database.reclaim()

    def _purge(self) -> bool:
        """Take away what deleted runs left behind, a bite at a time; tell whether all of it is gone."""
        with self._database.read() as connection:
            orphans = deletion.orphans(connection)
        return all(self._bite_by_bite(deletion.purge, *each) for each in orphans)

    def _thin(self, raw_s: float) -> None:
        """Take away the raw samples that are too old, a bite at a time, if the clock that says so is believed."""
        with self._database.write() as connection:
            now = self._database.now(connection)
            retention.look(connection, now)
        with self._database.read() as connection:
            aged = deletion.aged(connection, now - raw_s)
            until = retention.doubted_until(connection, now) if aged else None
        if until != self._doubted_until and until is not None:
            logger.warning(_DOUBTED, timestamp(until))
        self._doubted_until = until
        for each in aged if until is None else ():
            self._bite_by_bite(deletion.thin, *each)
        self._thin_at = self._database.steady() + THIN_EACH_S

    def _bite_by_bite(self, take: Callable[..., bool], *of: object) -> bool:
        """Take bites until there are no more, and tell whether it came to that.

        The room of each is given back at once: that of many at the end would take the square of the time.
        """
        is_more = True
        while is_more and not self._stopping.is_set():
            with self._database.write() as connection:
                is_more = take(connection, *of)
            for _ in range(RECLAIMS):
                self._is_roomy = self._database.reclaim()
                if self._stopping.is_set() or not self._is_roomy:
                    break
            self._beat()
        return not is_more

    def _run(self) -> None:
        while not self._stopping.wait(WAKE_S):
            self._compact_or_log()
            self._beat()

    def _compact_or_log(self) -> None:
        try:
            with self._database.alone() as is_mine:
                if is_mine:
                    self.compact()
            self._done()
        except Exception as error:  # the log keeps everything until the next round
            if not self._outage.explains(error):
                logger.exception("a round of compaction failed; the next one is in %s s", WAKE_S)

    def _seal(self, run_id: int, session_id: str) -> bool:
        """Seal some batches of a session; tell whether there may be more."""
        with self._database.read() as connection:
            now = self._database.now(connection)
            work = sealing.prepare(connection, self._log, self._tiles, run_id, session_id, now)
        if work is None:
            return False
        with self._database.write() as connection:
            now = self._database.now(connection)
            is_written = sealing.carry_out(connection, work, now)
        if is_written:
            self._tiles.keep(run_id, now, work.made)
        return True

    def _roll(self, run_id: int, launch_no: int, every: int) -> bool:
        """Make one tile of the pyramid; tell whether there may be more."""
        with self._database.read() as connection:
            work = rolling.prepare(connection, self._tiles, run_id, launch_no, every)
        if work is None:
            return False
        with self._database.write() as connection:
            now = self._database.now(connection)
            is_written = rolling.carry_out(connection, work, now)
        if is_written:
            self._tiles.keep(run_id, now, work.made)
        return True
