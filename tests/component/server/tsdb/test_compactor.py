"""A round of compaction on PostgreSQL: what it reads, and how collectors share it."""

import time

import pytest
from sqlalchemy import event, select, text, update

from gradcanary_server.storage.schema import compaction_claim, run
from gradcanary_server.tsdb import claims
from support import streams
from support.server.archives import Store
from support.server.copies import copy_run

IDLE = 2_000
MADE = streams.Stream(streams.healthy(320, 3))


@pytest.fixture
def stores(postgres_server):
    """Return two collectors of one store."""
    url = postgres_server.create_store()
    both = [Store(url), Store(url)]
    yield both
    for each in both:
        each.database.close()


def sequential_rows(store):
    """Return how many rows PostgreSQL has read by scans of a whole table, without those of claims."""
    with store.database.write() as connection:
        connection.execute(text("SELECT pg_stat_force_next_flush()"))
    with store.database.read() as connection:
        tables = "('run', 'session', 'batch', 'stream', 'tile', 'session_tombstone')"
        scanned = f"SELECT sum(seq_tup_read) FROM pg_stat_user_tables WHERE relname IN {tables}"
        return connection.execute(text(scanned)).scalar_one()


def test_a_round_reads_the_runs_that_have_work_and_no_whole_table(stores):
    store, _ = stores
    store.send("s", MADE, 64, end="finished")
    with store.database.read() as connection:
        run_id = connection.scalar(select(run.c.run_id))
    store.compactor.compact()
    with store.database.write() as connection:
        copy_run(connection, run_id, IDLE)
        connection.execute(text("ANALYZE"))
    read = []
    event.listen(
        store.database._engine,
        "after_cursor_execute",
        lambda _c, cursor, statement, *_: read.append((max(cursor.rowcount, 0), statement)),
    )
    store.compactor.compact()  # its first rounds with an empty log
    before = sequential_rows(store)
    read.clear()
    store.compactor.compact()
    idle = len(read)
    store.ingest.hello("growing", "s", streams.wire.dump(MADE.hello()))
    for seq, each in enumerate(MADE.batches(64)):
        store.ingest.batch("growing", "s", seq, streams.wire.dump(each))
    read.clear()
    store.compactor.compact()
    assert max(read)[0] <= 20, max(read)
    assert idle < 15 < len(read) < 40
    assert sequential_rows(store) - before < IDLE / 10, "small tables are scanned, and no large one"


def test_a_claim_is_of_one_collector_until_its_lease_is_over(stores):
    one, two = (claims.Claims(store.database) for store in stores)
    with one.claim([1, 2]) as first, two.claim([1, 2, 3]) as second:
        assert (sorted(first.runs), sorted(second.runs)) == ([1, 2], [3])
        with stores[0].database.write() as connection:
            connection.execute(update(compaction_claim).values(lease_until=compaction_claim.c.lease_until - 61.0))
        one._claimed_at -= claims.LEASE_S
        one.renew(first)
        with two.claim([1, 2]) as third:
            assert not third.runs, "it was renewed"
        with stores[0].database.write() as connection:
            connection.execute(update(compaction_claim).values(lease_until=time.time() - 1.0))
        with two.claim([1]) as fourth:
            assert list(fourth.runs) == [1]
            fourth.unfinished.add(1)
        first.unfinished.add(2)
    with stores[0].database.read() as connection:
        assert sorted(one.left_over(connection)) == sorted(two.left_over(connection)) == [1, 2]


def test_what_a_killed_collector_left_is_finished_by_another_one(stores, monkeypatch):
    monkeypatch.setattr("gradcanary_server.tsdb.tiles.TILE_ROWS", 8)
    one, two = stores
    one.send("s", MADE, 64, end="finished")

    def die(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(one.compactor, "_roll_up", die)
    with pytest.raises(KeyboardInterrupt):
        one.compactor.compact()  # all of the log is in tiles, and nothing says that rollups are missing
    two.compactor.compact()
    assert two.count(compaction_claim) == 1, "its lease is not over"
    with one.database.write() as connection:
        connection.execute(update(compaction_claim).values(lease_until=0.0))
    two.compactor.compact()
    assert two.count(compaction_claim) == 0
    with two.database.read() as connection:
        ends = connection.scalars(text("SELECT rollup_ends FROM stream WHERE every = 1")).all()
    assert ends[0].startswith("[320"), ends
