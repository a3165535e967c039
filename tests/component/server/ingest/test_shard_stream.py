"""Launches whose ranks send shards: put together they are one stream, whoever comes first and whoever is left out."""

import json
import math
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import func, select, update

from gradcanary import wire
from gradcanary_server import validation
from gradcanary_server.api import layer_table
from gradcanary_server.api import runs as api_runs
from gradcanary_server.errors import RequestError
from gradcanary_server.incidents import liveness
from gradcanary_server.incidents.briefs import Briefs
from gradcanary_server.ingest import service as ingest_service
from gradcanary_server.ingest import shard_stream
from gradcanary_server.ingest.shard_stream import BACKOFF_S, LAG_S, STALL_S
from gradcanary_server.rules.config import Rules
from gradcanary_server.storage import runs as run_store
from gradcanary_server.storage.heartbeat import BEAT_S
from gradcanary_server.storage.schema import batch, rule_state, session
from gradcanary_server.tsdb import batch as tsdb_batch
from gradcanary_server.tsdb.log import BatchLog
from support import streams
from support.server.archives import LAYERS, RUN, decoded
from support.server.asked import counted

NUMEL = ((4, 3, 5), (4, 2, 0), (0, 1, 5))
"""Elements of each layer, by rank."""


@dataclass
class Part(streams.Stream):
    """What one rank measured of its elements."""

    rank: int = 0
    world_size: int = 2

    def __post_init__(self):
        super().__post_init__()
        layers = tuple(
            replace(layer, local_numel=numel) for layer, numel in zip(self.layers.layers, NUMEL[self.rank], strict=True)
        )
        self.layers = wire.LayerSet(wire.layer_set_id(layers), layers)

    def hello(self, **changes):
        place = {"rank": self.rank, "world_size": self.world_size, "sharded": True, "launch": "one"}
        return super().hello(**{**place, **changes})


@dataclass
class Whole(streams.Stream):
    """What one process would have measured of all elements."""

    norm: np.ndarray = field(default_factory=lambda: np.empty(0))
    bad: np.ndarray = field(default_factory=lambda: np.empty(0))

    def batch(self, begin, end, **how):
        made = super().batch(begin, end, **how)
        absmax, _, _ = made.blocks
        norm, bad = (
            replace(absmax, stat=stat, values=wire.column("f", plane[begin:end].ravel().tolist()))
            for stat, plane in (("norm", self.norm), ("nonfinite", self.bad))
        )
        return replace(made, blocks=(absmax, norm, bad))


def measured(seed, steps, ranks, every=1):
    """Parts of some ranks, with another loss each."""
    rng, found = np.random.default_rng(seed), []
    for rank in range(ranks):
        absmax = (10 ** rng.uniform(-6, 1, (steps, LAYERS))).astype(np.float32)
        for value in (0, np.nan, np.inf):
            absmax[rng.random(absmax.shape) < 0.08] = value
        found.append(Part(absmax, rng.normal(size=steps), every=every, rank=rank, world_size=ranks))
    return found


def together(parts):
    """The whole of parts, cell by cell and in float64."""
    shape = parts[0].absmax.shape
    absmax, norm, bad = np.full(shape, np.nan), np.full(shape, np.nan), np.zeros(shape)
    for cell in np.ndindex(shape):
        mine = [part.absmax[cell] for part in parts if NUMEL[part.rank][cell[1]]]
        finite = [value for value in mine if np.isfinite(value)]
        bad[cell] = sum(np.isinf(mine))
        if bad[cell]:
            absmax[cell] = np.inf
        elif finite:
            absmax[cell] = max(finite)
            norm[cell] = np.sqrt(sum(float(np.float32(3) * value) ** 2 for value in finite))
    return Whole(absmax, parts[0].loss, every=parts[0].every, norm=norm.astype(np.float32), bad=bad)


def greet(archive, parts):
    for part in parts:
        archive.ingest.hello(RUN, f"r{part.rank}", wire.dump(part.hello()))


def post(archive, part, seq, message):
    return archive.ingest.batch(RUN, f"r{part.rank}", seq, wire.dump(message))


def finish(archive, parts):
    for part in parts:
        archive.ingest.end(RUN, f"r{part.rank}", wire.dump(wire.End("finished", None, None)))


def seen(archive):
    """Every picture and what the rules know, without what counts requests."""
    found = json.loads(archive.pictures(40))
    for picture in found.values():
        if isinstance(picture, dict):
            picture.pop("revision", None)
            picture.pop("gaps", None)
    with archive.database.read() as connection:
        packed = connection.scalars(select(rule_state.c.packed).order_by(rule_state.c.part)).all()
    return found, packed


def series(archive, stat="absmax", layer=0):
    found = json.loads(archive.pictures(1000))[stat]["series"][layer]
    return {name: decoded(found[name]).tolist() for name in ("min", "max", "count")}


@pytest.fixture
def clock(archive, monkeypatch):
    """The database's clock, which tests move on."""
    real, ahead = archive.database.now, [0.0]
    monkeypatch.setattr(archive.database, "now", lambda connection: real(connection) + ahead[0])

    def move(by_s, *, is_listening=False):
        rounds = math.ceil(by_s / BEAT_S) if is_listening else 1
        for _ in range(rounds):
            ahead[0] += by_s / rounds
            if is_listening:
                archive.watchdog.listen()

    archive.ingest.merge_overdue()  # it listens from now on
    return move


def beat(archive, rank):
    archive.ingest.heartbeat(RUN, f"r{rank}", wire.dump(wire.Heartbeat(None, 0, 0, 0.0)))


def step(archive):
    return archive.read(lambda _, run: run.step)


def waiting(archive):
    with archive.database.read() as connection:
        joined = (session.c.run_id == batch.c.run_id) & (session.c.session == batch.c.session) & (session.c.rank >= 0)
        return connection.execute(select(func.count()).select_from(batch).join(session, joined)).scalar_one()


def gaps(archive):
    with archive.database.read() as connection:
        run = run_store.get_run(connection, RUN)
        return [
            (gap["session"], gap["from_step"], gap["to_step"], gap["reason"])
            for gap in api_runs.read_gaps(connection, run.run_id)
        ]


@settings(max_examples=5, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_any_interleaving_is_the_stream_of_the_whole(module_archive, data):
    ranks = data.draw(st.integers(2, 3))
    parts = measured(data.draw(st.integers(0, 2**32 - 1)), 60, ranks, data.draw(st.sampled_from([1, 10])))
    sizes = [data.draw(st.integers(3, 25)) for _ in parts]
    module_archive.clear()
    module_archive.send("one", together(parts), 7, end="finished")
    expected = seen(module_archive)
    module_archive.clear()
    greet(module_archive, parts)
    left = [list(enumerate(part.batches(size))) for part, size in zip(parts, sizes, strict=True)]
    while any(left):
        rank = data.draw(st.sampled_from([rank for rank in range(ranks) if left[rank]]))
        seq, message = left[rank].pop(0)
        assert post(module_archive, parts[rank], seq, message).status == "stored"
        if data.draw(st.booleans()):
            assert post(module_archive, parts[rank], seq, message).status == "duplicate"
        if data.draw(st.sampled_from([False, False, True])):
            module_archive.forget()  # as after a restart
            module_archive.compactor.compact()
    finish(module_archive, data.draw(st.permutations(parts)))
    assert seen(module_archive) == expected
    assert waiting(module_archive) == 0
    module_archive.compactor.compact()
    assert seen(module_archive) == expected


def test_a_step_is_folded_when_all_ranks_have_passed_it(archive):
    first, second = measured(1, 30, 2)
    greet(archive, (first, second))
    post(archive, first, 0, first.batch(0, 20))
    assert not series(archive)["count"]
    post(archive, second, 0, second.batch(0, 10))
    assert not series(archive)["count"], "a batch of the first rank is taken whole"
    post(archive, second, 1, second.batch(10, 30))
    assert archive.read(lambda _, run: run.step) == 19
    assert waiting(archive) == 1
    finish(archive, (first,))
    assert archive.read(lambda _, run: run.step) == 29


def test_a_dead_rank_is_not_waited_for_and_what_it_held_is_partial(archive, clock):
    first, second = measured(2, 30, 2)
    first.absmax[:], second.absmax[:] = 1e-3, 2e-3
    greet(archive, (first, second))
    post(archive, first, 0, first.batch(0, 10))
    post(archive, second, 0, second.batch(0, 10))
    post(archive, first, 1, first.batch(10, 20))
    assert archive.read(lambda _, run: run.step) == 9
    clock(LAG_S + BACKOFF_S)
    beat(archive, 0)
    assert archive.read(lambda _, run: run.step) == 19
    assert waiting(archive) == 0
    table = archive.read(lambda c, run: layer_table.build_layer_table(c, archive.archive, run.run_id))
    assert [row["state"] for row in table] == ["partial", "partial", "measured"], "of the last layer it held nothing"
    assert [row["absmax"] for row in table] == [None, None, np.float32(1e-3)]
    assert series(archive)["count"] == [1] * 10 + [0] * 10
    assert series(archive, layer=2)["count"] == [1] * 20
    assert gaps(archive) == [("r1", 10, 19, "late")]

    late = post(archive, second, 1, second.batch(10, 25))
    assert late.status == "stored"
    assert gaps(archive) == [("r1", 10, 19, "late")]
    assert series(archive)["count"] == [1] * 10 + [0] * 10, "what comes too late is not looked at"
    assert post(archive, second, 1, second.batch(10, 25)).status == "duplicate"
    post(archive, first, 2, first.batch(20, 25))
    assert series(archive)["count"] == [1] * 10 + [0] * 10 + [1] * 5, "it is waited for again"
    assert waiting(archive) == 0


def test_a_rank_that_is_excluded_again_in_its_replay_is_not_waited_for_at_each_batch(archive, clock):
    first, second = measured(24, 50, 2)
    greet(archive, (first, second))
    post(archive, first, 0, first.batch(0, 20))
    post(archive, second, 0, second.batch(0, 10))
    clock(LAG_S + BACKOFF_S)
    beat(archive, 0)
    assert (step(archive), gaps(archive)) == (19, [("r1", 10, 19, "late")])
    post(archive, second, 1, second.batch(10, 15))
    post(archive, first, 1, first.batch(20, 30))
    assert step(archive) == 19, "it is waited for again"
    clock(LAG_S + BACKOFF_S)
    beat(archive, 0)
    assert (step(archive), gaps(archive)) == (29, [("r1", 10, 29, "late")])
    post(archive, first, 2, first.batch(30, 40))
    assert (step(archive), gaps(archive)) == (39, [("r1", 10, 39, "late")])
    post(archive, second, 2, second.batch(15, 40))
    post(archive, first, 3, first.batch(40, 50))
    assert step(archive) == 39, "and again"


def test_waiting_shards_are_merged_when_no_session_is_left(archive, clock):
    first, _ = measured(3, 10, 2)
    greet(archive, (first,))
    post(archive, first, 0, first.batch(0, 10))
    archive.compactor.compact()
    assert not series(archive)["count"]
    clock(LAG_S + BACKOFF_S)
    archive.compactor.compact()
    assert archive.read(lambda _, run: run.step) == 9
    table = archive.read(lambda c, run: layer_table.build_layer_table(c, archive.archive, run.run_id))
    assert {row["state"] for row in table} <= {"partial", "nonfinite"}, "nobody knows what the other one holds"


def test_a_rank_that_could_not_reach_us_is_waited_for_after_a_restart(archive, clock):
    first, second = measured(12, 30, 2)
    greet(archive, (first, second))
    post(archive, first, 0, first.batch(0, 10))
    clock(90.0)
    archive.forget()  # the collector was killed, and is back
    archive.compactor.compact()
    assert step(archive) is None, "its agent waits up to 60 s before it tries again"
    clock(BACKOFF_S - 1)
    archive.compactor.compact()
    post(archive, first, 1, first.batch(10, 20))
    assert step(archive) is None
    post(archive, second, 0, second.batch(0, 10))
    assert (step(archive), gaps(archive)) == (9, [])


@pytest.mark.parametrize("set_s", [3600.0, -86_400.0], ids=["forward", "back"])
def test_a_clock_that_is_set_neither_leaves_a_rank_out_nor_waits_for_one_for_a_day(archive, clock, set_s):
    first, second = measured(22, 40, 2)
    greet(archive, (first, second))
    clock(LAG_S + BACKOFF_S, is_listening=True)
    post(archive, second, 0, second.batch(0, 10))
    post(archive, first, 0, first.batch(0, 20))
    clock(set_s)
    archive.compactor.compact()
    beat(archive, 0)
    assert (step(archive), gaps(archive)) == (None, []), "it is there, and has 60 s"
    post(archive, second, 1, second.batch(10, 15))
    clock(LAG_S + BACKOFF_S + BEAT_S + 1, is_listening=True)
    archive.compactor.compact()
    assert (step(archive), gaps(archive), waiting(archive)) == (19, [("r1", 15, 19, "late")], 0)


def test_a_rank_that_died_before_the_clock_was_set_back_is_not_waited_for_for_a_day(archive, clock):
    first, second = measured(23, 20, 2)
    greet(archive, (first, second))
    post(archive, first, 0, first.batch(0, 20))
    archive.watchdog.listen()
    clock(-86_400.0)
    archive.compactor.compact()
    clock(LAG_S + BACKOFF_S + BEAT_S, is_listening=True)
    archive.compactor.compact()
    assert (step(archive), waiting(archive)) == (19, 0)


def test_a_rank_that_is_heard_of_is_waited_for_longer(archive, clock):
    first, second = measured(13, 40, 2)
    greet(archive, (first, second))
    clock(3600.0)  # away, and so are we
    archive.forget()
    archive.compactor.compact()
    for seq in range(3):
        post(archive, first, seq, first.batch(10 * seq, 10 * seq + 10))
    for _ in range(6):  # it replays what it kept, and is slow
        clock(STALL_S / 7)
        beat(archive, 1)
        archive.compactor.compact()
    assert (step(archive), gaps(archive)) == (None, [])
    post(archive, second, 0, second.batch(0, 10))
    clock(STALL_S / 2)
    beat(archive, 1)
    archive.compactor.compact()
    assert (step(archive), gaps(archive)) == (9, []), "it moved"
    clock(STALL_S / 2)
    beat(archive, 1)
    archive.compactor.compact()
    assert (step(archive), gaps(archive)) == (29, [("r1", 10, 29, "late")])
    post(archive, first, 3, first.batch(30, 40))
    assert step(archive) == 39, "till it moves it is not waited for"
    assert gaps(archive) == [("r1", 10, 39, "late")]


def test_ranks_that_come_one_after_another_long_after(archive, clock):
    first, second = measured(14, 20, 2)
    greet(archive, (first, second))
    clock(3600.0)
    post(archive, first, 0, first.batch(0, 20))  # as ``gradcanary sync`` does
    clock(LAG_S / 2)
    archive.compactor.compact()
    assert step(archive) is None
    post(archive, second, 0, second.batch(0, 20))
    assert (step(archive), gaps(archive)) == (19, [])


def test_a_whole_is_not_larger_than_what_readers_take(archive, monkeypatch):
    first, second = measured(15, 30, 2)
    stores = []
    for points in (10**6, 6 * LAYERS * 3):
        limits = replace(validation.LIMITS, max_points=points)
        for module in (tsdb_batch, shard_stream):
            monkeypatch.setattr(module, "LIMITS", limits)
        archive.clear()
        greet(archive, (first, second))
        for seq, message in enumerate(second.batches(6)):
            post(archive, second, seq, message)
        finish(archive, (first, second))
        archive.forget()
        stores.append(seen(archive))
    assert stores[0] == stores[1]
    assert step(archive) == 29


def test_only_what_can_be_taken_is_read(archive, monkeypatch):
    first, second = measured(16, 90, 2)
    greet(archive, (first, second))
    for seq, message in enumerate(first.batches(1)):
        post(archive, first, seq, message)
    archive.forget()
    read = []
    really = tsdb_batch.decode_batch
    monkeypatch.setattr(tsdb_batch, "decode_batch", lambda message: read.append(message.steps) or really(message))
    post(archive, second, 0, second.batch(0, 5))
    assert step(archive) == 4
    assert len(read) == 1 + 6, "its own, those five, and the next one"
    post(archive, second, 1, second.batch(5, 90))
    assert (step(archive), waiting(archive)) == (89, 0)


def test_a_batch_that_left_the_log_is_not_kept_decoded(archive, monkeypatch):
    first, second = measured(17, 5, 2)
    greet(archive, (first, second))
    kept, really = [], BatchLog.cache
    monkeypatch.setattr(BatchLog, "cache", lambda log, key, columns: kept.append(key[1]) or really(log, key, columns))
    post(archive, first, 0, first.batch(0, 5))
    post(archive, second, 0, second.batch(0, 5))
    assert (kept, waiting(archive)) == (["r0"], 0)


def test_a_resumed_run_has_come_as_far_as_all_its_ranks(archive):
    parts = measured(18, 200, 2)
    for part in parts:
        part.absmax[:] = 1e-2
        part.absmax[120:, 0] = 1e-7
    greet(archive, parts)
    for part in parts:
        post(archive, part, 0, part.batch(0, 200))
    finish(archive, parts)
    resumed = [Part(np.tile(part.absmax[-1], (260, 1)), first_step=200, rank=part.rank) for part in parts]
    for part in resumed:
        archive.ingest.hello(RUN, f"s{part.rank}", wire.dump(part.hello(launch="two")))
        for seq, message in enumerate(part.batches(10)):
            if seq == 1 and part.rank == 1:
                assert not archive.read(lambda c, run: Briefs("").read(c, run.run_id, 0.0))
            archive.ingest.batch(RUN, f"s{part.rank}", seq, wire.dump(message))
    (brief,) = archive.read(lambda c, run: Briefs("").read(c, run.run_id, 0.0))
    assert brief.rule == "collapse"


def test_a_batch_waits_until_its_session_said_what_it_sends(archive):
    first, second = measured(19, 10, 2)
    for part in (first, second):
        archive.ingest.hello(RUN, f"r{part.rank}", wire.dump(part.hello(sharded=None)))
        with pytest.raises(RequestError, match="shards") as refused:
            post(archive, part, 0, part.batch(0, 10))
        assert (refused.value.status, refused.value.code) == (409, "unknown_layer_set")
    greet(archive, (first, second))
    for part in (first, second):
        assert post(archive, part, 0, part.batch(0, 10)).status == "stored"
    assert (step(archive), waiting(archive)) == (9, 0)


def test_kind_of_a_session_follows_its_data(archive):
    (first,) = measured(20, 20, 1)
    archive.ingest.hello(RUN, "r0", wire.dump(first.hello(sharded=False)))
    post(archive, first, 0, first.batch(0, 10))
    with archive.database.write() as connection:  # as an older version stored it, which took any batch
        told = connection.execute(select(session.c.hello)).scalar_one()
        unknown = json.dumps({**json.loads(told), "sharded": None})
        connection.execute(update(session).values(hello=unknown))
    greet(archive, (first,))
    post(archive, first, 1, first.batch(10, 20))
    assert json.loads(archive.pictures(40))["samples"] == 20
    assert archive.count(session) == 1, "nothing was put together"


def test_pages_come_without_a_launch_that_nobody_draws(archive):
    (first,) = measured(21, 20, 1)
    archive.send("one", replace(first), 20, end="finished", sharded=False)
    archive.compactor.compact()
    with archive.database.write() as connection:
        connection.execute(update(session).values(is_primary=False))
    assert json.loads(archive.pictures(40))["samples"] == 0


def test_a_rank_that_samples_less_lacks_nothing_between_its_samples(archive):
    first = Part(np.full((60, LAYERS), 1e-3), every=10)
    second = Part(np.full((6, LAYERS), 2e-3), every=100, rank=1)
    greet(archive, (first, second))
    for seq, message in enumerate(first.batches(4)):
        post(archive, first, seq, message)
    for seq, message in enumerate(second.batches(1)):
        post(archive, second, seq, message)
    shown = series(archive)
    assert [value for value, count in zip(shown["max"], shown["count"], strict=True) if count] == [np.float32(2e-3)] * 5
    assert json.loads(archive.pictures(1000))["samples"] == 5, "none is partial"


def test_the_total_norm_is_that_of_all_parts(archive):
    parts = measured(4, 4, 2)
    greet(archive, parts)
    for part, values in zip(parts, ([3.0, 1.0, 5.0, 8.0], [4.0, 0.0, 12.0]), strict=True):
        made = part.batch(0, 4)
        told = wire.Metric("total_norm", (), made.steps[: len(values)], wire.column("d", values))
        post(archive, part, 0, replace(made, metrics=(*made.metrics, told)))
    metrics = {each["name"]: each for each in json.loads(archive.pictures(10))["metrics"]["metrics"]}
    assert decoded(metrics["total_norm"]["min"])[:3].tolist() == [5.0, 1.0, 13.0]
    assert decoded(metrics["total_norm"]["count"])[3:].tolist() == [0], "one part is missing"


def test_pages_show_the_ranks_and_a_collapse_of_the_whole(archive):
    parts = measured(5, 200, 2)
    for part in parts:
        part.absmax[:] = 1e-2
        part.absmax[120:, 0] = 1e-7
    parts[1].absmax[120:, 0] = 1e-8
    greet(archive, parts)
    for seq in range(4):
        for part in parts:
            post(archive, part, seq, part.batch(50 * seq, 50 * seq + 50))
    detail = archive.read(
        lambda c, run: api_runs.to_json(c, liveness.read_status(c, RUN, 0.0, Rules().silent), 0.0, Rules())
    )
    assert [(each["session"], each["rank"]) for each in detail["sessions"]] == [("r0", 0), ("r1", 1)]
    assert detail["gaps"] == []
    (brief,) = archive.read(lambda c, run: Briefs("http://here").read(c, run.run_id, 0.0))
    assert (brief.rule, brief.layers) == ("collapse", 1)
    finish(archive, parts)
    assert archive.read(lambda _, run: run.ended) == "finished"


def test_ranks_that_post_at_once(archive):
    parts = measured(6, 80, 2)
    archive.send("one", together(parts), 8, end="finished")
    expected = seen(archive)
    archive.clear()
    greet(archive, parts)

    def send(part):
        return [post(archive, part, seq, message).status for seq, message in enumerate(part.batches(8))]

    with ThreadPoolExecutor(len(parts)) as pool:
        assert list(pool.map(send, parts)) == [["stored"] * 10] * 2
    finish(archive, parts)
    assert seen(archive) == expected


def test_a_transaction_that_fails_leaves_nothing_and_is_said_again(archive, monkeypatch):
    parts = measured(7, 20, 2)
    greet(archive, parts)
    post(archive, parts[0], 0, next(parts[0].batches()))
    before = seen(archive)
    with monkeypatch.context() as patched:
        patched.setattr(ingest_service, "advance", killed_when_merged)
        with pytest.raises(KeyboardInterrupt):
            post(archive, parts[1], 0, next(parts[1].batches()))
    assert seen(archive) == before
    assert waiting(archive) == 1
    # What the one that failed had decoded must not be what is read now.
    other = replace(parts[1], absmax=np.full((20, LAYERS), 1.0))
    assert post(archive, other, 0, next(other.batches())).status == "stored"
    after = seen(archive)
    archive.clear()
    archive.send("one", together([parts[0], other]), 20)
    assert seen(archive) == after


def test_layers_that_were_described_again_after_a_failure_are_judged_as_they_are_described(archive, monkeypatch):
    parts = measured(7, 20, 2)
    reshaped = tuple(replace(layer, shape=(16, 32)) for layer in parts[0].layers.layers)
    again = parts[0].hello(layer_sets=(wire.LayerSet(wire.layer_set_id(reshaped), reshaped),))

    def tell(failing):
        greet(archive, parts)
        post(archive, parts[0], 0, next(parts[0].batches()))
        if failing:
            with monkeypatch.context() as patched:
                patched.setattr(ingest_service, "advance", killed_when_merged)
                with pytest.raises(KeyboardInterrupt):
                    post(archive, parts[1], 0, next(parts[1].batches()))
        archive.ingest.hello(RUN, "r0", wire.dump(again))
        post(archive, parts[1], 0, next(parts[1].batches()))
        return seen(archive)

    failed = tell(failing=True)
    archive.clear()
    assert failed == tell(failing=False)


def killed_when_merged(context, values, really=ingest_service.advance):
    if context.session.rank < 0:
        raise KeyboardInterrupt
    really(context, values)


@pytest.mark.parametrize("what", ["batch", "heartbeat"])
def test_what_completes_no_step_reads_no_other_rank(archive, what):
    """Each rank sends each step, so a batch that read all ranks would make their square of it."""

    def rows(ranks):
        archive.clear()
        archive.ingest.merge_overdue()
        parts = [Part(streams.healthy(2, LAYERS), rank=0, world_size=ranks) for _ in range(ranks)]
        for rank, part in enumerate(parts):
            archive.ingest.hello(RUN, f"r{rank}", wire.dump(part.hello(rank=rank)))
            archive.ingest.batch(RUN, f"r{rank}", 0, wire.dump(part.batch(0, 1, change_records=True)))
        with counted(archive.database) as asked:
            if what == "batch":
                archive.ingest.batch(RUN, "r0", 1, wire.dump(parts[0].batch(1, 2)))
            else:
                beat(archive, 0)
        return asked.rows

    assert rows(24) == rows(3)


@pytest.mark.parametrize("last", ["no hello", "no layers"])
def test_a_launch_that_lacks_a_rank_reads_none_of_the_others(archive, clock, last):
    """Until that rank counts as lost all others send, and their batches wait."""

    def rows(ranks):
        archive.clear()
        archive.ingest.merge_overdue()
        part = Part(streams.healthy(4, LAYERS), rank=0, world_size=ranks + 1)
        for rank in range(ranks):
            archive.ingest.hello(RUN, f"r{rank}", wire.dump(part.hello(rank=rank)))
            archive.ingest.batch(RUN, f"r{rank}", 0, wire.dump(part.batch(0, 1, change_records=True)))
        if last == "no layers":
            archive.ingest.hello(RUN, f"r{ranks}", wire.dump(part.hello(rank=ranks, sharded=None, layer_sets=())))
        before = asked(part, 1)
        clock(LAG_S + BACKOFF_S)
        for rank in range(ranks):
            beat(archive, rank)
        archive.compactor.compact()
        assert step(archive) == 0, "it is lost"
        return before, asked(part, 2)

    def asked(part, seq):
        with counted(archive.database) as found:
            archive.ingest.batch(RUN, "r0", seq, wire.dump(part.batch(seq, seq + 1)))
            beat(archive, 0)
        return found.rows

    assert rows(24) == rows(3)


def test_an_end_reads_no_other_rank(archive):
    """All ranks end at once."""

    def rows(ranks):
        archive.clear()
        archive.ingest.merge_overdue()
        part = Part(streams.healthy(2, LAYERS), rank=0, world_size=ranks)
        for rank in range(ranks):
            archive.ingest.hello(RUN, f"r{rank}", wire.dump(part.hello(rank=rank)))
        for rank in range(ranks):
            archive.ingest.batch(RUN, f"r{rank}", 0, wire.dump(part.batch(0, 2, change_records=True)))
        with counted(archive.database) as asked:
            archive.ingest.end(RUN, "r1", wire.dump(wire.End("finished", None, None)))
        for rank in range(ranks):
            archive.ingest.end(RUN, f"r{rank}", wire.dump(wire.End("crashed" if rank == 2 else "finished", None, None)))
        assert archive.read(lambda _, run: (run.ended, run.step)) == ("crashed", 1)
        return asked.rows

    assert rows(24) == rows(3)
