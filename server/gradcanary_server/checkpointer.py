"""The loop that puts SQLite's write-ahead log into the file, beside those who write and not inside their commits.

A page that was written eight times since is put there once, and who commits waits for one flush of the log and not for
two of the file. The log itself is as long as what is written between two rounds.
"""

import logging

from gradcanary_server.database import Database
from gradcanary_server.loops import Loop

WAKE_S = 0.25

EACH_BYTES = 32 * 2**20
"""In the log, from which on it is put into the file."""

MOST_PAGES = 2**15
"""In the log, 128 MiB, from which on each commit tries that, as SQLite has it: where this loop fails."""

logger = logging.getLogger(__name__)


class Checkpointer(Loop):
    """Keeps the log of one SQLite store short from a daemon thread of this process."""

    def __init__(self, database: Database) -> None:
        super().__init__("checkpointer", logger)
        self._database = database
        self._at = EACH_BYTES
        self._put: int | None = None  # how long the log was as all of it was in the file: it stays so until a write

    def _run(self) -> None:
        while not self._stopping.wait(WAKE_S):
            try:
                self._work()
            except Exception as error:  # the log keeps everything until the next round
                if not self._outage.explains(error):
                    logger.exception("a checkpoint failed; the next one is in %s s", WAKE_S)
            self._beat()

    def _work(self) -> None:
        size = self._database.log_size()
        if size < EACH_BYTES:
            self._at = EACH_BYTES  # it began anew
        elif size >= self._at and size != self._put:
            if not self._database.checkpoint():
                self._at = size + EACH_BYTES  # whoever reads for long is not asked each time
                return
            self._at, self._put = EACH_BYTES, self._database.log_size()
        self._done()
