"""Claims of runs for compaction, with a lease: collectors of one PostgreSQL share the runs that have work.

A claim saves work and protects nothing: a plan is stored only if its streams are as they were when it was made. So a
collector whose lease ran out meanwhile does no harm. A row outlives a collector that was killed, and names the runs
whose work it left. SQLite has one collector, which claims nothing and remembers what it left.
"""

import secrets
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from sqlalchemy import ColumnElement, Connection, and_, delete, or_, select, update
from sqlalchemy.dialects.postgresql import insert

from gradcanary_server.storage.database import Database
from gradcanary_server.storage.schema import compaction_claim

LEASE_S = 60.0
"""After this time without a renewal another collector takes a run; the longest plan takes a few seconds."""

GROUP_RUNS = 8
"""Runs of one claim: the other collectors take part from the ninth on."""

GROUP_BYTES = 16 * 2**20
"""Of the log, in one claim of several runs; about two seconds of work."""


def split_groups(sizes: Mapping[int, int]) -> Iterator[list[int]]:
    """Yield runs, given the bytes of each, in groups of at most ``GROUP_RUNS`` and ``GROUP_BYTES`` or one run."""
    group: list[int] = []
    group_bytes = 0
    for run_id, size in sorted(sizes.items()):
        if group and (len(group) == GROUP_RUNS or group_bytes + size > GROUP_BYTES):
            yield group
            group, group_bytes = [], 0
        group.append(run_id)
        group_bytes += size
    if group:
        yield group


@dataclass
class Claim:
    """Some runs of one collector; ``unfinished`` are those that have work left."""

    runs: Sequence[int]
    unfinished: set[int] = field(default_factory=set)


class Claims:
    """The claims of one collector, used by one thread."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._holder = secrets.token_hex(16)
        self._claimed_at = 0.0
        self._unfinished: set[int] = set()  # of SQLite

    def left_over(self, connection: Connection) -> Sequence[int]:
        """Return the runs whose work was left unfinished, by this collector or by one whose lease ran out."""
        if self._database.has_one_writer:
            return sorted(self._unfinished)
        found = connection.scalars(select(compaction_claim.c.run_id).where(self._is_free(connection))).all()
        nodes = self._database.nodes
        return found if nodes is None else [run_id for run_id in found if not nodes.is_away(run_id)]

    @contextmanager
    def claim(self, runs: Sequence[int]) -> Iterator[Claim]:
        """Claim those of these runs that no other collector has; at the end, release them, the unfinished ones to all.

        After an error they stay claimed: this collector takes them again, or another one after the lease.
        """
        if self._database.has_one_writer:
            self._unfinished.update(runs)
            claim = Claim(runs)
            yield claim
            self._unfinished -= set(runs) - claim.unfinished
            return
        with self._database.write() as connection:
            claim = Claim(self._insert(connection, runs))
        self._claimed_at = time.monotonic()
        yield claim
        if claim.runs:
            with self._database.write() as connection:
                is_finished = compaction_claim.c.run_id.not_in(claim.unfinished)
                connection.execute(delete(compaction_claim).where(self._is_own(claim), is_finished))
                connection.execute(update(compaction_claim).where(self._is_own(claim)).values(lease_until=0.0))

    def renew(self, claim: Claim) -> None:
        """Extend the lease if a third of it is over."""
        if self._database.has_one_writer or time.monotonic() - self._claimed_at < LEASE_S / 3:
            return
        with self._database.write() as connection:
            until = self._database.now(connection) + LEASE_S
            connection.execute(update(compaction_claim).where(self._is_own(claim)).values(lease_until=until))
        self._claimed_at = time.monotonic()

    def _insert(self, connection: Connection, runs: Sequence[int]) -> Sequence[int]:
        until = self._database.now(connection) + LEASE_S
        row = insert(compaction_claim).values(
            [{"run_id": run_id, "holder": self._holder, "lease_until": until} for run_id in runs]
        )
        row = row.on_conflict_do_update(
            index_elements=[compaction_claim.c.run_id],
            set_={"holder": self._holder, "lease_until": until},
            where=self._is_free(connection),
        )
        return connection.scalars(row.returning(compaction_claim.c.run_id)).all()

    def _is_free(self, connection: Connection) -> ColumnElement[bool]:
        is_over = compaction_claim.c.lease_until <= self._database.now(connection)
        return or_(is_over, compaction_claim.c.holder == self._holder)

    def _is_own(self, claim: Claim) -> ColumnElement[bool]:
        return and_(compaction_claim.c.holder == self._holder, compaction_claim.c.run_id.in_(claim.runs))
