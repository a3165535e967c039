"""Two collectors of one PostgreSQL share compaction; one of them is killed in the middle of it."""

import time
from collections import defaultdict

import pytest
from sqlalchemy import func, select, update

from gradcanary_server.storage.database import Database
from gradcanary_server.storage.schema import batch, compaction_claim, run, session, stream, tile
from support import streams
from support.collectors import Collector
from support.server.archives import Store
from support.server.copies import copy_run

RUNS, STEPS, LAYERS = 40, 768, 100
KEY = (tile.c.level, tile.c.kind, tile.c.every, tile.c.range_no, tile.c.layer_group, tile.c.part, tile.c.body)
TIMEOUT_S = 60.0


@pytest.fixture
def store(postgres_server):
    """Return a store of many equal runs, all of them in the log."""
    made = Store(postgres_server.create_store())
    made.send("s", streams.Stream(streams.healthy(STEPS, LAYERS), streams.falling_loss(STEPS)), 64, end="finished")
    with made.database.write() as connection:
        copy_run(connection, connection.scalar(select(run.c.run_id)), RUNS)
    yield made
    made.database.close()


@pytest.fixture
def collectors(store, tmp_path):
    """Return two collectors of the store, which are not started."""
    both = [Collector(tmp_path / name, db=store.url) for name in "ab"]
    yield both
    for each in both:
        if each.process is not None:
            each.kill()


def claims_now(database: Database) -> dict[str, set[int]]:
    with database.read() as connection:
        rows = connection.execute(select(compaction_claim.c.holder, compaction_claim.c.run_id)).all()
    holders = defaultdict(set)
    for holder, run_id in rows:
        holders[holder].add(run_id)
    return holders


def waiting(database: Database) -> set[int]:
    with database.read() as connection:
        return set(connection.scalars(select(batch.c.run_id).distinct()))


def watch(database: Database, is_over) -> dict[str, set[int]]:
    """Return which collector claimed which runs, until something is true."""
    seen, until = defaultdict(set), time.monotonic() + TIMEOUT_S
    while True:
        now = claims_now(database)
        for holder, runs in now.items():
            seen[holder] |= runs
        if is_over(now):
            return seen
        assert time.monotonic() < until, (seen, waiting(database))
        time.sleep(0.01)


def test_two_collectors_share_the_runs_and_one_finishes_when_the_other_is_killed(store, collectors):
    database = store.database
    for each in collectors:
        each.start()
    seen = watch(database, lambda now: len(now) == 2)
    assert collectors[0].kill()
    others = watch(database, lambda now: waiting(database) <= set().union(*now.values()) and len(now) == 1)
    (dead,) = claims_now(database)
    (alive,) = {*seen, *others} - {dead}
    left = claims_now(database)[dead]
    assert 1 <= len(left) <= 8
    assert not left & others[alive], "no run is taken before the lease is over"
    with database.write() as connection:  # it is a minute later
        connection.execute(update(compaction_claim).values(lease_until=compaction_claim.c.lease_until - 60.0))
    last = watch(database, lambda now: not now and not waiting(database))
    assert left <= last[alive]
    with database.read() as connection:
        assert connection.scalar(select(func.count()).select_from(run)) == RUNS + 1
        assert connection.scalar(select(func.count()).where(session.c.sealed_seq < session.c.next_seq)) == 0
        tiles, ends = defaultdict(list), defaultdict(list)
        for run_id, *row in connection.execute(select(tile.c.run_id, *KEY).order_by(*KEY)):
            tiles[run_id].append(tuple(row))
        for run_id, *row in connection.execute(select(stream).order_by(stream.c.every)):
            ends[run_id].append(tuple(row))
    assert len(tiles) == len(ends) == RUNS + 1
    assert len(set(map(tuple, tiles.values()))) == 1, "all have the same tiles, each once"
    assert len(set(map(tuple, ends.values()))) == 1
    reference = Store(f"sqlite:///{collectors[0].data}/reference.db")
    reference.send("s", streams.Stream(streams.healthy(STEPS, LAYERS), streams.falling_loss(STEPS)), 64, end="finished")
    reference.compactor.compact()
    with reference.database.read() as connection:
        assert {tuple(row) for row in connection.execute(select(*KEY))} == set(next(iter(tiles.values())))
    reference.database.close()
