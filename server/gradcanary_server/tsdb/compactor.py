"""The background loop for compaction and retention.

Tiles are built in a read transaction; a short write transaction stores them unless the session or the stream was
changed in between. A kill in between loses nothing: the log still has the batches.
"""

import logging
import time
from collections.abc import Callable, Sequence

from gradcanary_server.background import BackgroundLoop
from gradcanary_server.clock import timestamp
from gradcanary_server.errors import StoreUnavailable
from gradcanary_server.storage.database import Database
from gradcanary_server.storage.schema import iter_runs, stream
from gradcanary_server.tsdb import claims, compaction, retention
from gradcanary_server.tsdb.claims import Claim
from gradcanary_server.tsdb.compaction import Plan
from gradcanary_server.tsdb.log import BatchLog
from gradcanary_server.tsdb.tiles import TileStore, pack_tiles

WAKE_S = 2.0
RETENTION_S = 600.0
RECLAIMS = 50
"""Calls after each chunk: they free more than the chunk, and not all at once after a large deletion."""

_DOUBTED = (
    "by the clock of the store samples are too old, but the last check was long ago: none are deleted before %s. "
    "Check the clock."
)

logger = logging.getLogger(__name__)


class Compactor(BackgroundLoop):
    """Compacts one store from a daemon thread of this process."""

    def __init__(
        self,
        database: Database,
        log: BatchLog,
        tiles: TileStore,
        merge_overdue: Callable[[], None],
        raw_days: float | None = None,
    ) -> None:
        super().__init__("compactor", logger)
        self._database = database
        self._claims = claims.Claims(database)
        self._log = log
        self._tiles = tiles
        self._merge_overdue = merge_overdue
        self._raw_s = None if raw_days is None else raw_days * 86_400
        self._retention_at = 0.0
        self._doubted_until: float | None = None
        self._deleted: int | None = None
        self._has_free_pages = True
        self._is_first = True

    def compact(self) -> None:
        """Run one round; first merge the shards that have waited too long for a rank.

        Collectors of one store share the runs; one at a time merges, and deletes at the end.
        """
        with self._database.singleton_lock() as is_alone:
            if is_alone:
                self._merge_overdue()
            for runs in claims.split_groups(self._waiting_runs()):
                self._compact_group(runs)
            self._is_first = False
            if is_alone:
                self._tidy()

    def _waiting_runs(self) -> dict[int, int]:
        """Return the runs that have work, and the bytes of the log that wait in each."""
        with self._database.read() as connection:
            runs = dict.fromkeys(self._claims.left_over(connection), 0)
            if self._is_first and self._database.has_one_writer:  # it claims nothing: what a kill left is not known
                for page in iter_runs(connection, stream):
                    runs |= dict.fromkeys((key[0] for key in compaction.rollup_candidates(connection, page)), 0)
            for run_id, _, size in compaction.waiting_sessions(connection, self._database.now(connection)):
                runs[run_id] = runs.get(run_id, 0) + size
        return runs

    def _compact_group(self, runs: Sequence[int]) -> None:
        """Compact those of these runs that no other collector compacts."""
        with self._claims.claim(runs) as claim:
            if not claim.runs:
                return
            with self._database.read() as connection:  # again: another collector may have compacted them
                sessions = compaction.seal_candidates(connection, claim.runs, self._database.now(connection))
            for run_id, session_id, _ in sessions:
                self._repeat(claim, self._seal, run_id, session_id)
            with self._database.read() as connection:
                streams = compaction.rollup_candidates(connection, claim.runs)
            for key in streams:
                self._repeat(claim, self._roll_up, *key)

    def _repeat(self, claim: Claim, work: Callable[..., bool], run_id: int, *key: int | str) -> None:
        """Work on one session or stream until it is done; a failure does not stop the others."""
        try:
            while not self._stopping.is_set():
                if not work(run_id, *key):
                    return
                self._heartbeat()
                self._claims.renew(claim)
            claim.unfinished.add(run_id)
        except StoreUnavailable:
            raise  # the store fails, not this session
        except Exception:  # the log keeps everything until the next round
            claim.unfinished.add(run_id)
            logger.exception("%s of %s failed; again in %s s", work.__name__, (run_id, *key), WAKE_S)

    def _tidy(self) -> None:
        """Delete the measurements of deleted runs and expired samples, and return the space to the disk."""
        with self._database.read() as connection:
            deleted = retention.count_deletions(connection)
        if deleted != self._deleted and self._purge():
            self._deleted = deleted
        if self._raw_s is not None and time.monotonic() >= self._retention_at:
            self._drop_raw(self._raw_s)
        if self._has_free_pages:
            self._has_free_pages = self._database.release_free_pages()

    def _purge(self) -> bool:
        """Delete the measurements of deleted runs in chunks; return True when all are gone."""
        with self._database.read() as connection:
            orphans = retention.orphaned_tables(connection)
        return all(self._delete_chunks(retention.purge_chunk, *orphan) for orphan in orphans)

    def _drop_raw(self, raw_s: float) -> None:
        """Delete expired raw samples in chunks, unless the clock is doubted."""
        with self._database.write() as connection:
            now, _ = retention.CHECKS.beat(self._database, connection)
        with self._database.read() as connection:
            expired = retention.expired_streams(connection, now - raw_s)
            until = retention.doubted_until(connection, now) if expired else None
        if until != self._doubted_until and until is not None:
            logger.warning(_DOUBTED, timestamp(until))
        self._doubted_until = until
        for key in expired if until is None else ():
            self._delete_chunks(retention.drop_raw_chunk, *key)
        self._retention_at = time.monotonic() + RETENTION_S

    def _delete_chunks(self, delete_chunk: Callable[..., bool], *args: object) -> bool:
        """Delete chunks until there are no more; return False if the loop is stopped before.

        The space of each chunk is returned at once: for many chunks at the end it would take quadratic time.
        """
        is_more = True
        while is_more and not self._stopping.is_set():
            with self._database.write() as connection:
                is_more = delete_chunk(connection, *args)
            for _ in range(RECLAIMS):
                self._has_free_pages = self._database.release_free_pages()
                if self._stopping.is_set() or not self._has_free_pages:
                    break
            self._heartbeat()
        return not is_more

    def _run(self) -> None:
        while not self._stopping.wait(WAKE_S):
            with self._tracked_round():
                self.compact()

    def _seal(self, run_id: int, session_id: str) -> bool:
        """Seal some batches of a session; return True if there may be more."""
        with self._database.read() as connection:
            now = self._database.now(connection)
            plan = compaction.plan_seal(connection, self._log, self._tiles, run_id, session_id, now)
        return plan is not None and self._apply(plan)

    def _roll_up(self, run_id: int, launch_no: int, every: int) -> bool:
        """Make one tile of a rollup; return True if there may be more."""
        with self._database.read() as connection:
            plan = compaction.plan_rollup(connection, self._tiles, run_id, launch_no, every)
        return plan is not None and self._apply(plan)

    def _apply(self, plan: Plan) -> bool:
        packed = pack_tiles(plan.tiles)
        with self._database.write() as connection:
            now = self._database.now(connection)
            is_stored = compaction.apply_plan(connection, plan, packed, now)
        if is_stored:
            self._tiles.cache(plan.run_id, now, plan.tiles)
        return True
