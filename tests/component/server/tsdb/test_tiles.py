"""Tiles and rollups: what is read does not depend on what was compacted, and equals a plain reading in float64."""

import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import select, update

from gradcanary import wire
from gradcanary_server.api import layer_table
from gradcanary_server.storage.schema import batch, session, tile
from gradcanary_server.tsdb import compaction, rollup, tiles
from support import streams
from support.dialects import one_store
from support.server import stories
from support.server.archives import LAYERS, ROUGH, RUN, Store, decoded
from support.server.stories import stream


@pytest.fixture
def small_tiles(monkeypatch):
    """Tiles of so few rows that a short run has rollups."""
    monkeypatch.setattr(tiles, "TILE_ROWS", 8)
    return monkeypatch


@settings(max_examples=4, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    stories.launches(50),
    st.sampled_from([1, 9, 100, 600]),
    st.tuples(st.integers(0, 900), st.integers(0, 900)),
    st.sampled_from([1, 2, 64]),
)
def test_compaction_does_not_show(module_archive, small_tiles, story, points, some, most):
    small_tiles.setattr(compaction, "MOST_BATCHES", most)
    begin, end = min(some), max(some)
    stories.send(module_archive, story)
    whole, part = module_archive.pictures(points), module_archive.pictures(points, begin, end)
    module_archive.compactor.compact()
    for _ in range(2):
        assert module_archive.pictures(points) == whole
        assert module_archive.pictures(points, begin, end) == part
        module_archive.forget()


@settings(max_examples=4, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(0, 2**32 - 1), st.sampled_from([3, 50, 700]), st.lists(st.integers(0, 20), max_size=4))
def test_time_of_compaction_does_not_show(module_archive, small_tiles, seed, points, cuts):
    made = stream(np.random.default_rng(seed), 400, 0, 1)
    found = []
    for moments in ([], cuts):
        module_archive.clear()
        module_archive.ingest.hello(RUN, "s", wire.dump(made.hello()))
        for seq, each in enumerate(made.batches(20)):
            late = (wire.Metric(name, (), (seq // 4,), wire.column("d", [seq / 3])) for name in ("val", "loss"))
            told = (*each.metrics, *late) if seq % 4 == 3 else each.metrics
            module_archive.ingest.batch(RUN, "s", seq, wire.dump(replace(each, metrics=told)))
            if seq in moments:
                module_archive.compactor.compact()
        found.append(module_archive.pictures(points))
    module_archive.compactor.compact()
    assert found[0] == found[1] == module_archive.pictures(points)


@one_store
def test_envelopes_are_those_of_a_plain_reading(archive):
    rng = np.random.default_rng(5)
    made = stream(rng, 6_000, 40, 1)
    made.absmax[made.absmax[:, 1] == 0, 1] = 1e-3
    made.absmax[4_321, 1] = 1e-30
    archive.send("s", made, 500, end="finished")
    archive.compactor.compact()
    for points in (2, 30, 600, 5000):
        assert_plain(json.loads(archive.pictures(points))["absmax"], made, 40)


def assert_plain(answer, made, first):
    """Hold a series against the values themselves, in float64; layer 1 has one dip, of one step."""
    width, starts = answer["bucket_steps"], decoded(answer["steps"]).astype(int)
    rough = 0 if width < rollup.FACTOR else ROUGH
    values = made.absmax.astype(np.float64)
    for layer in range(LAYERS):
        line = {name: decoded(answer["series"][layer][name]) for name in ("min", "mean", "max", "count", "nonfinite")}
        for bucket, start in enumerate(starts.tolist()):
            inside = values[max(start - first, 0) : start - first + width, layer]
            finite = inside[np.isfinite(inside)]
            assert line["count"][bucket] == len(finite)
            assert line["nonfinite"][bucket] == np.isinf(inside).sum()
            if len(finite):
                assert finite.min() * (1 - rough) <= line["min"][bucket] <= finite.min()
                assert finite.max() <= line["max"][bucket] <= finite.max() * (1 + rough)
                np.testing.assert_allclose(line["mean"][bucket], finite.mean(), rtol=1e-5 + rough)
    lowest = min(decoded(answer["series"][1]["min"]))
    assert 1e-30 * (1 - ROUGH) <= lowest <= np.float32(1e-30), "a dip of one step is there at every zoom"


def test_the_log_is_emptied_and_a_late_retry_is_a_duplicate(archive):
    made = stream(np.random.default_rng(1), 700, 0, 1)
    archive.send("s", made, 64, end="finished")
    archive.compactor.compact()
    assert archive.count(batch) == 0
    for seq, each in enumerate(made.batches(64)):
        assert archive.ingest.batch(RUN, "s", seq, wire.dump(each)).status == "duplicate"
    assert archive.count(batch) == 0


@one_store
def test_a_live_run_keeps_less_than_a_tile_in_the_log(archive):
    archive.send("s", stream(np.random.default_rng(2), 5000, 0, 1), 64)
    archive.compactor.compact()
    assert archive.count(batch) <= 5
    before = archive.count(tile)
    archive.compactor.compact()
    assert archive.count(tile) == before > 0


def sampled(archive):
    return [step for piece in archive.samples() for step in piece.columns.steps.tolist()]


def test_single_step_batches_fill_tiles(archive):
    archive.send("s", stream(np.random.default_rng(8), 260, 0, 1), 1)
    archive.compactor.compact()
    assert archive.count(batch) == 260 - tiles.TILE_ROWS
    archive.ingest.end(RUN, "s", wire.dump(wire.End("finished", None, None)))
    archive.compactor.compact()
    assert archive.count(batch) == 0
    assert sampled(archive) == list(range(260))


def test_a_session_that_was_killed_is_sealed_and_may_go_on(archive):
    archive.send("s", stream(np.random.default_rng(13), 30, 0, 1), 10)
    archive.compactor.compact()
    assert archive.count(batch) == 3
    with archive.database.write() as connection:
        connection.execute(update(session).values(last_seen=session.c.last_seen - 86_400))
    archive.compactor.compact()
    assert archive.count(batch) == 0
    archive.send("s", stream(np.random.default_rng(13), 30, 30, 1), 10, first_seq=3)
    archive.compactor.compact()
    assert sampled(archive) == list(range(60))


def of_few_samples(steps, every):
    """One step a batch, with a loss for each and samples of some."""
    made = stream(np.random.default_rng(9), 1 + steps // every, 0, every)
    for step in range(steps):
        each = made.batch(step // every, step // every + (step % every == 0))
        yield replace(each, metrics=(wire.Metric("loss", (), (step,), wire.column("d", [1.0 / (1 + step)])),))


@pytest.mark.parametrize("every", [100, 1000])
def test_the_log_of_a_run_with_few_samples_does_not_grow_for_ever(archive, monkeypatch, every):
    monkeypatch.setattr(compaction, "MOST_BATCHES", 40)
    archive.ingest.hello(RUN, "s", wire.dump(stream(np.random.default_rng(9), 1, 0, every).hello()))
    for seq, each in enumerate(of_few_samples(110, every)):
        archive.ingest.batch(RUN, "s", seq, wire.dump(each))
    before = archive.pictures(50)
    archive.compactor.compact()
    assert archive.count(batch) < 40
    assert archive.pictures(50) == before


def test_large_runs_are_sealed_in_parts(archive, monkeypatch):
    monkeypatch.setattr(compaction, "MOST_BYTES", 5_000)
    archive.send("s", stream(np.random.default_rng(10), 300, 0, 1), 10, end="finished")
    before = archive.pictures(50)
    archive.compactor.compact()
    assert archive.count(batch) == 0
    with archive.database.read() as connection:
        parts = connection.scalars(select(tile.c.part).where(tile.c.kind == "absmax", tile.c.level == 0)).all()
    assert len(parts) > 2
    assert archive.pictures(50) == before


def test_the_layers_last_values_are_those_of_so_many_samples(archive):
    made = stream(np.random.default_rng(12), 400, 0, 1)
    archive.ingest.hello(RUN, "s", wire.dump(made.hello()))
    for seq, each in enumerate(made.batches(16)):
        ratio = wire.Block("update_ratio", None, (each.steps[0],), (seq % 3,), wire.column("f", [seq / 64]))
        told = (*each.blocks, ratio) if seq in (5, 12, 13) else each.blocks
        archive.ingest.batch(RUN, "s", seq, wire.dump(replace(each, blocks=told)))
    before = archive.read(lambda c, run: layer_table.build_layer_table(c, archive.archive, run.run_id))
    assert [layer["update_ratio"] for layer in before] == [12 / 64, 13 / 64, None]
    archive.compactor.compact()
    assert archive.read(lambda c, run: layer_table.build_layer_table(c, archive.archive, run.run_id)) == before


def test_a_session_that_goes_on_after_its_end_is_whole(archive):
    rng = np.random.default_rng(3)
    made = stream(rng, 1000, 0, 1)
    halves = [
        streams.Stream(made.absmax[:300], made.loss[:300]),
        streams.Stream(made.absmax[300:], made.loss[300:], first_step=300),
    ]
    archive.send("s", halves[0], 50, end="crashed")
    archive.compactor.compact()
    archive.send("s", halves[1], 50, first_seq=6)
    before = archive.pictures(77)
    archive.compactor.compact()
    assert archive.pictures(77) == before
    archive.clear()
    archive.send("s", made, 50)
    assert json.loads(archive.pictures(77))["absmax"]["series"] == json.loads(before)["absmax"]["series"]


def test_points_that_come_late_are_in_the_rollups(archive):
    made = stream(np.random.default_rng(4), 3000, 0, 1)
    archive.send("s", made, 100)
    archive.compactor.compact()
    late = wire.Metric("eval", (), (5, 1200), wire.column("d", [1.0, 2.0]))
    old = wire.Metric("loss", (), (7,), wire.column("d", [-1000.0]))
    more = streams.Stream(made.absmax[:600], first_step=3000)
    for seq, each in enumerate(more.batches(100), start=30):
        changed = replace(each, metrics=(*each.metrics, late, old)) if seq == 30 else each
        archive.ingest.batch(RUN, "s", seq, wire.dump(changed))
    before = archive.pictures(10)
    archive.compactor.compact()
    assert archive.pictures(10) == before
    metrics = {each["name"]: each for each in json.loads(before)["metrics"]["metrics"]}
    assert decoded(metrics["loss"]["min"])[0] == -1000
    assert decoded(metrics["eval"]["count"]).sum() == 2


def stored(archive):
    query = select(tile.c.level, tile.c.range_no, tile.c.stored).where(tile.c.kind == tiles.METRICS, tile.c.level > 0)
    with archive.database.read() as connection:
        return {(row.level, row.range_no): row.stored for row in connection.execute(query)}


def test_only_what_a_late_point_is_in_is_made_again(archive, small_tiles):
    archive.send("s", streams.Stream(streams.healthy(640, LAYERS), streams.falling_loss(640)), 64)
    archive.compactor.compact()
    before = stored(archive)
    late = wire.Metric("val", (), (70,), wire.column("d", [5.0]))
    more = streams.Stream(streams.healthy(64, LAYERS), first_step=640).batch(0, 64)
    archive.ingest.batch(RUN, "s", 10, wire.dump(replace(more, metrics=(late,))))
    archive.compactor.compact()
    after = stored(archive)
    assert before.keys() >= {(1, 1), (2, 0)}
    assert {place for place in before if after[place] != before[place]} == {(1, 1), (2, 0)}


def test_a_collector_sees_what_another_one_made_again(archive, small_tiles):
    archive.send("s", streams.Stream(streams.healthy(1000, LAYERS), streams.falling_loss(1000)), 50)
    archive.compactor.compact()
    other = Store(archive.url)
    for points in (1, 20, 100):
        other.pictures(points)
    late = wire.Metric("late", (), (100, 101), wire.column("d", [5.0, 6.0]))
    more = streams.Stream(streams.healthy(100, LAYERS), first_step=1000).batch(0, 100)
    archive.ingest.batch(RUN, "s", 20, wire.dump(replace(more, metrics=(late,))))
    archive.ingest.end(RUN, "s", wire.dump(wire.End("finished", None, None)))
    archive.compactor.compact()
    archive.forget()
    for points in (1, 20, 100):
        assert other.pictures(points) == archive.pictures(points)
    other.database.close()


def planned(archive, make_plan, *arguments):
    with archive.database.read() as connection:
        return make_plan(connection, *arguments)


def apply(archive, plan):
    with archive.database.write() as connection:
        return compaction.apply_plan(connection, plan, tiles.pack_tiles(plan.tiles), archive.database.now(connection))


def test_rollups_of_another_collector_stay(archive, small_tiles):
    made = stream(np.random.default_rng(11), 200, 0, 1)
    halves = [streams.Stream(made.absmax[:160], made.loss[:160]), streams.Stream(made.absmax[160:], first_step=160)]
    archive.send("s", halves[0], 40)
    ((*key, _),) = planned(archive, compaction.waiting_sessions, 0.0)
    assert apply(archive, planned(archive, compaction.plan_seal, archive.archive.log, archive.archive.tiles, *key, 0.0))
    archive.send("s", halves[1], 40, first_seq=4)
    stale = planned(archive, compaction.plan_seal, archive.archive.log, archive.archive.tiles, *key, 0.0)
    while (rollup_plan := planned(archive, compaction.plan_rollup, archive.archive.tiles, key[0], 1, 1)) is not None:
        assert apply(archive, rollup_plan)
    assert not apply(archive, stale)
    before = archive.pictures(50)
    archive.compactor.compact()
    assert archive.pictures(50) == before
    _, of = planned(archive, tiles.read_streams, key[0])
    assert (of.sealed_until, of.rollup_ends) == (200, (192,))


def test_a_batch_that_cannot_be_read_holds_up_no_other_session(archive, caplog):
    made = stream(np.random.default_rng(6), 300, 0, 1)
    for run in ("broken", RUN):
        archive.ingest.hello(run, run, wire.dump(made.hello()))
        for seq, each in enumerate(made.batches(100)):
            archive.ingest.batch(run, run, seq, wire.dump(each))
        archive.ingest.end(run, run, wire.dump(wire.End("finished", None, None)))
    with archive.database.write() as connection:
        connection.execute(update(batch).where(batch.c.session == "broken", batch.c.seq == 1).values(body=b"{"))
    archive.forget()
    archive.compactor.compact()
    assert "_seal of" in caplog.text
    with archive.database.read() as connection:
        assert set(connection.scalars(select(batch.c.session))) == {"broken"}


def test_a_rollup_that_failed_once_is_made_in_the_next_round(archive, small_tiles, caplog):
    archive.compactor.compact()  # only its first round looks at all runs
    archive.send("s", stream(np.random.default_rng(6), 300, 0, 1), 100, end="finished")
    with small_tiles.context() as patched:
        patched.setattr(compaction, "plan_rollup", lambda *_: [][0])
        archive.compactor.compact()
    assert "_roll_up of" in caplog.text
    archive.compactor.compact()
    run_id = archive.read(lambda _, run: run.run_id)
    with archive.database.read() as connection:
        assert not compaction.rollup_candidates(connection, [run_id])
